use std::pin::pin;
use std::task::{Context, Poll, Waker};

use std::future::Future as _;

use tollgate_core::{Holder, Op};

use super::*;
use crate::audit::Violations;
use crate::rules;
use crate::store::scripted::{Finished, Reply, Scripted};
use crate::store::{Bounds, MemoryStore};

fn limiter(text: &str) -> (Arc<Limiter<MemoryStore>>, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(0));
    let store = MemoryStore::with(clock.clone(), Bounds::default());
    let rules = rules::parse("rules.yaml", text).unwrap();
    (Arc::new(Limiter::new(rules, store)), clock)
}

const USER: &str = r#"rules: [{ name: user, key: "user:{user_id}", limit: 10/s burst 2 }]"#;

fn user(id: &str) -> Descriptor<'_> {
    Descriptor::new().with("user_id", id)
}

#[tokio::test]
async fn a_refused_request_charges_none_of_its_tiers() {
    let (limiter, _) = limiter(
        r#"rules:
          - { name: user, key: "user:{user_id}", limit: 10/s burst 2 }
          - { name: all, key: global, limit: 100/s }"#,
    );
    for allowed in [true, true, false, false] {
        assert_eq!(limiter.check(&user("1")).await.allowed(), allowed);
    }
    let other = limiter.check(&user("2")).await;
    let all = other.tiers().iter().find(|tier| other.rules().rule(tier.rule).label() == "all").unwrap();
    assert_eq!(all.verdict().remaining, 97, "two of user 1, one of user 2");
}

#[tokio::test]
async fn a_reload_keeps_what_was_used() {
    let (limiter, _) = limiter(USER);
    limiter.request(&user("1")).cost(2).check().await;
    limiter.set_rules(rules::parse("rules.yaml", &USER.replace("burst 2", "burst 5")).unwrap());
    assert_eq!(limiter.request(&user("1")).peek().await.remaining(), Some(3));
}

#[tokio::test]
async fn until_allowed_passes_at_the_first_possible_instant() {
    let (limiter, clock) = limiter(USER);
    limiter.request(&user("1")).cost(2).check().await;
    let waiting = tokio::spawn({
        let limiter = Arc::clone(&limiter);
        async move { limiter.request(&user("1")).until_allowed(Timestamp::from_micros(1_000_000)).await }
    });
    let mut turned = 0;
    while !waiting.is_finished() {
        tokio::task::yield_now().await;
        clock.advance(Micros::new(1_000));
        turned += 1;
        assert!(turned < 10_000);
    }
    assert!(waiting.await.unwrap().allowed());
}

#[tokio::test]
async fn until_allowed_refuses_immediately_and_charges_nothing_if_the_deadline_is_too_early() {
    let (limiter, _) = limiter(USER);
    limiter.request(&user("1")).cost(2).check().await;
    let answer = limiter.request(&user("1")).until_allowed(Timestamp::from_micros(99_999)).await;
    assert!(!answer.allowed());
    assert_eq!(answer.retry_after(), Some(Micros::new(100_000)));
    let never = limiter.request(&user("1")).cost(3).until_allowed(Timestamp::from_micros(i64::MAX)).await;
    assert_eq!((never.allowed(), never.retry_after()), (false, None));
}

#[tokio::test]
async fn until_allowed_waits_in_the_queue_of_a_leaky_bucket_and_takes_no_turn_after_the_deadline() {
    let (limiter, clock) = limiter(r#"rules: [{ name: queue, key: global, limit: 10/s queue 5 }]"#);
    let deadline = Timestamp::from_micros(150_000);
    assert!(limiter.request(&Descriptor::new()).until_allowed(deadline).await.allowed());
    let second = tokio::spawn({
        let limiter = Arc::clone(&limiter);
        async move { limiter.request(&Descriptor::new()).until_allowed(deadline).await }
    });
    while limiter.request(&Descriptor::new()).peek().await.delay() < Micros::new(200_000) {
        tokio::task::yield_now().await; // until the second stands in the queue
    }
    let third = limiter.request(&Descriptor::new()).until_allowed(deadline).await;
    assert_eq!((third.allowed(), third.retry_after()), (false, Some(Micros::new(50_000))));
    assert!(!second.is_finished());
    clock.advance(Micros::new(100_000));
    assert!(second.await.unwrap().allowed());
}

/// Here a second passes while it is asked whether the turn would come by waiting, and with it the wait.
#[tokio::test]
async fn until_allowed_takes_a_turn_that_comes_during_the_peek() {
    let clock = Clock::manual(Timestamp::from_micros(0));
    let store = Scripted::new(clock.clone(), |memory, call| {
        if call.op == Op::Peek {
            memory.clock().advance(Micros::new(1_000_000));
        }
        memory.run_now(call);
        Reply::Now
    });
    let limiter = Limiter::new(rules::parse("rules.yaml", USER).unwrap(), store);
    assert!(limiter.request(&user("1")).cost(2).check().await.allowed());
    let answer = limiter.request(&user("1")).until_allowed(Timestamp::from_micros(5_000_000)).await;
    assert!(answer.allowed());
    assert_eq!(clock.now(), Timestamp::from_micros(1_000_000));
}

#[tokio::test]
async fn explain_says_for_every_rule_whether_it_applies_and_why() {
    let (limiter, _) = limiter(
        r#"rules:
          - { name: default, key: "user:{user_id}", limit: 1/s }
          - { name: post, key: global, limit: 1/s, when: { method: POST }, replaces: [default] }
          - { name: tenant, key: "tenant:{tenant}", limit: 1/s }
          - { name: off, key: global, limit: 1/s, mode: off }"#,
    );
    let rules = limiter.rules();
    let told = |request: &Descriptor<'_>| -> Vec<String> {
        let tell = |explanation: &Explanation<'_>| match &explanation.mismatch {
            Some(mismatch) => mismatch.to_string(),
            None if explanation.replaced => "replaced".to_owned(),
            None => "applies".to_owned(),
        };
        limiter.explain(&rules, request).iter().map(tell).collect()
    };
    let nothing = ["the request has no tenant", "the rule is off"];
    assert_eq!(told(&user("1"))[..2], ["applies", "needs method is POST"]);
    assert_eq!(told(&user("1").with("method", "post"))[..2], ["replaced", "applies"]);
    assert_eq!(told(&user("1"))[2..], nothing);
}

#[tokio::test]
async fn refund_gives_the_cost_back_and_reset_deletes_the_buckets() {
    let (limiter, _) = limiter(USER);
    limiter.request(&user("1")).cost(2).check().await;
    let refunded = limiter.request(&user("1")).refund().await.unwrap();
    assert_eq!((refunded.allowed(), refunded.remaining()), (true, Some(1)));
    let reset = limiter.request(&user("1")).reset().await.unwrap();
    assert_eq!((reset.allowed(), reset.remaining(), reset.reset_after()), (true, Some(2), Micros::ZERO));
}

/// A flip between two sets under load never mixes them within a request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_sees_one_rule_set_from_beginning_to_end() {
    let set = |name: &str| {
        let text = format!(
            "rules: [{{ name: {name}-a, key: global, limit: 1000000/s }}, {{ name: {name}-b, key: global, limit: 1000000/s }}]"
        );
        Arc::new(rules::parse("rules.yaml", &text).unwrap())
    };
    let (limiter, _) = limiter(USER);
    let (one, two) = (set("one"), set("two"));
    limiter.set_rules(Arc::clone(&one));
    let flipping = tokio::spawn({
        let limiter = Arc::clone(&limiter);
        async move {
            for flip in 0..2_000 {
                limiter.set_rules(Arc::clone(if flip % 2 == 0 { &two } else { &one }));
                tokio::task::yield_now().await;
            }
        }
    });
    while !flipping.is_finished() {
        let answer = limiter.check(&Descriptor::new()).await;
        let labels: Vec<&str> =
            answer.tiers().iter().map(|tier| answer.rules().rule(tier.rule).label()).collect();
        assert!(labels == ["one-a", "one-b"] || labels == ["two-a", "two-b"], "{labels:?}");
    }
}

#[tokio::test]
async fn an_invalid_cost_attribute_is_refused_with_the_reason_and_charges_no_tier() {
    let (limiter, _) = limiter(
        r#"rules:
          - { name: requests, key: "user:{user_id}", limit: 100/h }
          - { name: model-tokens, key: "user:{user_id}", limit: 10000/h, cost: tokens }"#,
    );
    let request = |tokens: &'static str| user("1").with("tokens", tokens);
    let left = async || {
        let peeked = limiter.request(&user("1")).cost(0).peek().await;
        peeked.tiers().iter().map(|tier| tier.verdict().remaining).collect::<Vec<u64>>()
    };
    assert!(limiter.check(&request("5000.0")).await.allowed());
    let before = left().await;
    assert_eq!(before, [99, 5_000]);
    for tokens in ["5000 ", "-5000", "1e308", "0"] {
        let (request, ttl) = (request(tokens), Micros::new(60_000_000));
        let reserved = limiter.request(&request).reserve(ttl).await.unwrap();
        assert_eq!(reserved.reservation, None);
        let deadline = Timestamp::from_micros(i64::MAX);
        for answer in [
            limiter.check(&request).await,
            limiter.request(&request).peek().await,
            limiter.request(&request).refund().await.unwrap(),
            limiter.request(&request).until_allowed(deadline).await,
            reserved.answer,
        ] {
            assert_eq!((answer.status(), answer.rule()), (Status::Invalid, Some("model-tokens")));
            assert_eq!((answer.allowed(), answer.retry_after()), (false, None));
            let error = answer.invalid_cost().unwrap();
            assert_eq!((&*error.attribute, &*error.value), ("tokens", tokens));
        }
        assert_eq!(left().await, before, "{tokens}");
    }
}

/// Everything that an answer says.
fn told(answer: &Answer) -> impl PartialEq + fmt::Debug + use<> {
    let numbers =
        (answer.limit(), answer.remaining(), answer.retry_after(), answer.reset_after(), answer.delay());
    let rule = answer.rule().map(str::to_owned);
    let invalid = answer.invalid_cost().cloned();
    (answer.status(), rule, numbers, answer.tiers().to_vec(), answer.at(), answer.degraded(), invalid)
}

const MIXED: &str = r#"rules:
  - { name: user, key: "user:{user_id}", limit: 10/s burst 3 }
  - { name: all, key: "all:{kind}", limit: 5/s burst 12 }
  - { name: trial, key: "user:{user_id}", limit: 1/s, mode: shadow }
  - { name: queue, key: "queue:{queue}", limit: 10/s queue 3 }
  - { name: model-tokens, key: "user:{user_id}", limit: 1000/h, cost: tokens }
  - { name: banned, key: "user:{user_id}", action: deny, when: { user_id: "666" } }
  - { name: trusted, key: "user:{user_id}", action: allow, when: { user_id: root } }"#;

#[tokio::test]
async fn check_many_answers_in_order_what_single_checks_would() {
    let requests = [
        (user("1").with("kind", "api"), 1),
        (user("666").with("kind", "api"), 1),
        (user("1").with("kind", "api"), 2),
        (Descriptor::new(), 1),
        (user("root").with("kind", "api"), 50),
        (user("1").with("kind", "api"), 1),
        (Descriptor::new().with("queue", "q"), 2),
        (user("1").with("tokens", "many"), 1),
        (Descriptor::new().with("queue", "q"), 2),
        (user("2").with("kind", "api").with("tokens", "700"), 3),
        (user("2").with("kind", "api"), 0),
        (Descriptor::new().with("kind", "api"), 6),
        (Descriptor::new().with("kind", "api"), 1),
    ];
    let max_wait = Micros::new(100_000);
    let ((many, _), (single, _)) = (limiter(MIXED), limiter(MIXED));
    for round in 0..3 {
        for limiter in [&many, &single] {
            limiter.clock().advance(Micros::new(150_000));
        }
        let batch: Vec<Request<'_, MemoryStore>> = requests
            .iter()
            .map(|(request, cost)| many.request(request).cost(*cost).max_wait(max_wait))
            .collect();
        let answers = many.check_many(&batch).await;
        assert_eq!(answers.len(), requests.len());
        let mut statuses = Vec::new();
        for (place, ((request, cost), answer)) in requests.iter().zip(&answers).enumerate() {
            let expected = single.request(request).cost(*cost).max_wait(max_wait).check().await;
            assert_eq!(told(answer), told(&expected), "request {place} of round {round}");
            statuses.push(answer.status());
        }
        for status in [Status::Allowed, Status::Refused, Status::Denied, Status::Invalid] {
            assert!(statuses.contains(&status), "round {round} has no {status:?}");
        }
    }
    assert_eq!(many.store().stats(), single.store().stats());
}

#[tokio::test]
async fn check_many_of_no_requests_has_no_answers() {
    let (limiter, _) = limiter(USER);
    assert!(limiter.check_many(&[]).await.is_empty());
}

#[tokio::test]
async fn check_many_records_refusals_as_violations_and_uses_the_policies_of_lost_rows() {
    let violations = Violations::with_room(100);
    let rules = rules::parse("rules.yaml", USER).unwrap();
    let limiter = Limiter::new(rules, MemoryStore::new()).with_violations(violations.clone());
    let user = user("1");
    let batch: Vec<_> = (0..5).map(|_| limiter.request(&user)).collect();
    limiter.check_many(&batch).await;
    assert_eq!(violations.stats().produced, 3, "two of five pass");

    let text = USER.replace("burst 2", "burst 2, on_store_failure: closed");
    let unavailable = Limiter::new(rules::parse("rules.yaml", &text).unwrap(), Scripted::unavailable());
    let answers = unavailable.check_many(&[unavailable.request(&user), unavailable.request(&user)]).await;
    assert!(answers.iter().all(|answer| answer.status() == Status::Unavailable));
    let counts = unavailable.degraded_decisions();
    assert_eq!(counts.iter().map(|count| count.decisions).sum::<u64>(), 2);
}

/// A store that holds the rows of every request that it admits.
fn holding(reply: Reply) -> Scripted {
    let clock = Clock::manual(Timestamp::from_micros(0));
    Scripted::new(clock, move |memory, call| {
        memory.run_now(call);
        let is_charged = !call.refuses();
        for tier in call.tiers.iter_mut().filter(|_| is_charged) {
            let if_passed = *tier.verdict();
            tier.outcome = Outcome::Held { if_passed, holder: Holder::Hold(Timestamp::from_micros(1)) };
        }
        reply
    })
}

const PAIR: &str = r#"rules:
  - { name: user, key: "user:{user_id}", limit: 10/s burst 2 }
  - { name: all, key: global, limit: 100/s }"#;

#[tokio::test]
async fn a_decision_that_is_dropped_gives_back_what_the_store_holds() {
    let limiter = Limiter::new(rules::parse("rules.yaml", PAIR).unwrap(), holding(Reply::Never));
    let request = user("1");
    let mut decision = Box::pin(limiter.check(&request));
    let poll = decision.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll.is_pending());
    assert_eq!(limiter.store().finished(), [], "it is under way");
    drop(decision);
    assert_eq!(limiter.store().finished(), [Finished { passes: false, held: 2 }]);
}

#[tokio::test]
async fn check_many_that_is_dropped_finishes_every_call() {
    let limiter = Limiter::new(rules::parse("rules.yaml", PAIR).unwrap(), holding(Reply::Never));
    let (one, other) = (user("1"), user("2"));
    let batch = [limiter.request(&one), limiter.request(&other)];
    {
        let decisions = pin!(limiter.check_many(&batch));
        assert!(matches!(decisions.poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
    }
    let mut finished = limiter.store().finished();
    finished.sort_by_key(|finished| finished.held);
    assert_eq!(finished, [0, 2].map(|held| Finished { passes: false, held }), "the second did not run");
}

#[tokio::test]
async fn a_decision_is_finished_once_with_whether_the_request_passes() {
    let limiter = Limiter::new(rules::parse("rules.yaml", PAIR).unwrap(), holding(Reply::Now));
    for (passes, left, held) in [(true, 1, 2), (true, 0, 2), (false, 0, 0)] {
        let answer = limiter.check(&user("1")).await;
        assert_eq!((answer.allowed(), answer.remaining()), (passes, Some(left)));
        assert_eq!(limiter.store().finished(), [Finished { passes, held }]);
    }
}

#[tokio::test]
async fn until_allowed_charges_its_cost_once() {
    let (limiter, clock) = limiter(USER);
    limiter.request(&user("1")).cost(2).check().await;
    let waiting = tokio::spawn({
        let limiter = Arc::clone(&limiter);
        async move { limiter.request(&user("1")).cost(2).until_allowed(Timestamp::from_micros(200_000)).await }
    });
    while !waiting.is_finished() {
        tokio::task::yield_now().await;
        clock.advance(Micros::new(1_000));
    }
    assert!(waiting.await.unwrap().allowed());
    assert_eq!(limiter.request(&user("1")).peek().await.remaining(), Some(0));
}

/// The store is unavailable for the first two calls: the check, and the peek after it.
#[tokio::test]
async fn until_allowed_tries_again_when_a_closed_rule_has_refused_for_a_second() {
    let clock = Clock::manual(Timestamp::from_micros(0));
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let store = Scripted::new(clock.clone(), move |memory, call| {
        match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 | 1 => call.lose(StoreError::Timeout),
            _ => drop(memory.run_now(call)),
        }
        Reply::Now
    });
    let text = USER.replace("burst 2", "burst 2, on_store_failure: closed");
    let limiter = Arc::new(Limiter::new(rules::parse("rules.yaml", &text).unwrap(), store));
    let waiting = tokio::spawn({
        let limiter = Arc::clone(&limiter);
        async move { limiter.request(&user("1")).until_allowed(Timestamp::from_micros(5_000_000)).await }
    });
    while !waiting.is_finished() {
        tokio::task::yield_now().await;
        clock.advance(Micros::new(1_000));
        assert!(clock.now() < Timestamp::from_micros(60_000_000));
    }
    let answer = waiting.await.unwrap();
    assert_eq!((answer.allowed(), answer.degraded(), answer.remaining()), (true, None, Some(1)));
    assert!(clock.now() >= Timestamp::from_micros(1_000_000));
}

#[tokio::test]
async fn the_bucket_of_a_rule_that_replaces_others_is_inspected_and_reset() {
    let (limiter, _) = limiter(
        r#"rules:
          - { name: default, key: "user:{user_id}", limit: 10/s }
          - { name: special, key: "user:{user_id}", limit: 5/s, replaces: [default] }"#,
    );
    limiter.request(&user("1")).cost(3).check().await;
    let rules = limiter.rules();
    let special = rules.rules().iter().find(|rule| rule.label() == "special").unwrap();
    let preview = limiter.inspect(special, &user("1"), 1).await.unwrap();
    assert_eq!((preview.before.remaining, preview.after.remaining), (2, 1));
    limiter.reset_bucket(special, &user("1")).await.unwrap();
    assert_eq!(limiter.request(&user("1")).peek().await.remaining(), Some(5));
}

#[tokio::test]
async fn check_now_answers_as_check_does_or_does_nothing() {
    let ((now, _), (waiting, _)) = (limiter(MIXED), limiter(MIXED));
    for request in [user("1"), user("666"), Descriptor::new(), user("root"), user("1"), user("1"), user("1")]
    {
        let answer = now.request(&request).check_now().expect("a store in memory answers immediately");
        assert_eq!(told(&answer), told(&waiting.check(&request).await));
    }
    let unavailable = Limiter::new(rules::parse("rules.yaml", USER).unwrap(), Scripted::unavailable());
    assert!(unavailable.request(&user("1")).check_now().is_none(), "this store has to be waited for");
    assert_eq!(unavailable.store().finished(), []);
}
