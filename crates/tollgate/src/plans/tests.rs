use super::*;
use crate::rules;
use crate::store::MemoryStore;
use crate::{Limiter, Violations};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::advance;

/// A source whose answers come when the test says so.
#[derive(Default)]
struct Desk(Mutex<Vec<Answer>>);

type Answer = oneshot::Sender<Result<Option<String>, LookUpError>>;

impl Desk {
    fn plans(self: &Arc<Self>, options: PlanOptions) -> Plans {
        let desk = Arc::clone(self);
        Plans::new(options, move |_| {
            let (answer, answered) = oneshot::channel();
            desk.0.lock().push(answer);
            async move { answered.await.expect("the test answers") }
        })
    }

    fn waiting(&self) -> usize {
        self.0.lock().len()
    }

    /// Answers everybody, and lets the look-ups end.
    async fn answer(&self, plan: Option<&str>) {
        for answer in self.0.lock().drain(..) {
            drop(answer.send(Ok(plan.map(str::to_owned))));
        }
        settled().await;
    }

    async fn fail(&self) {
        for answer in self.0.lock().drain(..) {
            drop(answer.send(Err("down".into())));
        }
        settled().await;
    }
}

/// Lets every task that can go on do so.
async fn settled() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

fn options() -> PlanOptions {
    PlanOptions::new("free")
}

#[tokio::test(start_paused = true)]
async fn a_plan_is_looked_up_once_and_believed_for_its_time() {
    let desk = Arc::new(Desk::default());
    let plans = desk.plans(options());
    let (asked, ()) = tokio::join!(plans.plan("42"), async {
        settled().await;
        desk.answer(Some("pro")).await;
    });
    assert_eq!(&*asked, "pro");
    advance(options().ttl - Duration::from_millis(1)).await;
    assert_eq!(&*plans.plan("42").await, "pro");
    assert_eq!(plans.stats().look_ups, 1);
    advance(Duration::from_millis(1)).await;
    assert_eq!(&*plans.plan("42").await, "pro", "stale, for nobody answered within the deadline");
    assert_eq!((plans.stats().look_ups, plans.stats().late), (2, 1));
    desk.answer(Some("enterprise")).await;
    assert_eq!(&*plans.plan("42").await, "enterprise", "the late answer is there for the next one");
}

#[tokio::test(start_paused = true)]
async fn a_slow_look_up_delays_nobody_beyond_the_deadline_and_later_ones_less() {
    let desk = Arc::new(Desk::default());
    let plans = desk.plans(options());
    let begun = Instant::now();
    assert_eq!(&*plans.plan("42").await, "free");
    assert_eq!(begun.elapsed(), options().deadline);
    assert_eq!(&*plans.plan("42").await, "free");
    assert_eq!(begun.elapsed(), options().deadline, "the deadline of this look-up is over");
    assert_eq!((desk.waiting(), plans.stats().look_ups), (1, 1), "one look-up per user");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_user_is_on_the_default_plan_and_asked_for_again_after_a_while() {
    let desk = Arc::new(Desk::default());
    let plans = desk.plans(options());
    plans.plan("7").await;
    desk.answer(None).await;
    advance(options().unknown_ttl - Duration::from_millis(1)).await;
    assert_eq!(&*plans.plan("7").await, "free");
    assert_eq!(desk.waiting(), 0);
    advance(Duration::from_millis(1)).await;
    plans.plan("7").await;
    assert_eq!(desk.waiting(), 1);
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_what_was_known_stays_and_the_source_is_left_alone_for_a_second() {
    let desk = Arc::new(Desk::default());
    let plans = desk.plans(options());
    plans.plan("42").await;
    desk.answer(Some("pro")).await;
    advance(options().ttl).await;
    plans.plan("42").await;
    desk.fail().await;
    plans.plan("7").await;
    desk.fail().await;
    for _ in 0..100 {
        assert_eq!((&*plans.plan("42").await, &*plans.plan("7").await), ("pro", "free"));
    }
    assert_eq!((desk.waiting(), plans.stats().failures), (0, 2));
    advance(FAILURE_TTL).await;
    plans.plan("42").await;
    assert_eq!(desk.waiting(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_never_answers_has_failed_in_the_end() {
    let desk = Arc::new(Desk::default());
    let plans = desk.plans(options());
    plans.plan("42").await;
    advance(LOOK_UP_TIMEOUT).await;
    settled().await;
    assert_eq!(plans.stats().failures, 1);
}

#[tokio::test(start_paused = true)]
async fn look_ups_and_users_have_a_bound() {
    let desk = Arc::new(Desk::default());
    let plans = desk.plans(PlanOptions { users: 1_000, deadline: Duration::ZERO, ..options() });
    for user in 0..5_000 {
        assert_eq!(&*plans.plan(&user.to_string()).await, "free");
    }
    settled().await;
    assert_eq!(desk.waiting(), MAX_LOOK_UPS);
    assert_eq!(plans.stats().users, MAX_LOOK_UPS, "a user who is not looked up takes no entry");
    plans.plan(&"x".repeat(MAX_USER_ID + 1)).await;
    assert_eq!(plans.stats().look_ups, 256);
}

#[tokio::test(start_paused = true)]
async fn a_look_up_that_panics_is_begun_again() {
    let plans = Plans::new(options(), |user_id| async move {
        assert_ne!(user_id, "42", "this source has a bug");
        Ok(None)
    });
    assert_eq!(&*plans.plan("42").await, "free");
    assert_eq!(&*plans.plan("42").await, "free");
    assert_eq!(plans.stats().look_ups, 2);
}

#[tokio::test(start_paused = true)]
async fn only_a_request_with_a_user_and_without_a_plan_is_looked_up() {
    let text = r#"rules:
      - { name: free, key: "user:{user_id}", plan: free, limit: 1/h }
      - { name: pro, key: "{plan}:{user_id}", plan: pro, limit: 1/h }"#;
    let violations = Violations::default();
    let plans = Plans::new(options(), |_| async { Ok(Some("pro".to_owned())) });
    let limiter = Limiter::new(rules::parse("rules.yaml", text).unwrap(), MemoryStore::new())
        .with_plans(plans.clone())
        .with_violations(violations.clone());
    let user = || Descriptor::new().with("user_id", "42");
    let named = limiter.check(&user().with("plan", "free")).await;
    assert_eq!((named.rule(), named.plan()), (Some("free"), None));
    limiter.check(&Descriptor::new().with("ip", "192.0.2.1")).await;
    assert_eq!(plans.stats().look_ups, 0);

    let found = limiter.check(&user()).await;
    assert_eq!((found.rule(), found.plan()), (Some("pro"), Some("pro")));
    assert!(!limiter.check(&user()).await.allowed());
    assert_eq!(violations.drain_all()[0].bucket_key, "pro:42");
    assert!(limiter.request(&user()).reset().await.unwrap().allowed());
    assert!(limiter.check(&user()).await.allowed(), "reset finds the bucket of the plan");
}

#[tokio::test]
async fn the_first_request_of_a_user_waits_for_the_answer_in_real_time_too() {
    let patient = PlanOptions { deadline: Duration::from_secs(60), ..options() };
    let plans = Plans::new(patient, |_| async { Ok(Some("pro".to_owned())) });
    for user in 0..100 {
        assert_eq!(&*plans.plan(&user.to_string()).await, "pro");
    }
}
