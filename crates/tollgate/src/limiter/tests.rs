mod slow;

use super::*;
use crate::rules;
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
        assert_eq!(limiter.check(&user("1"), 1).await.allowed(), allowed);
    }
    let other = limiter.check(&user("2"), 1).await;
    let all = other.tiers().iter().find(|tier| other.rules().rule(tier.rule).label() == "all").unwrap();
    assert_eq!(all.verdict.remaining, 97, "two of user 1, one of user 2");
}

#[tokio::test]
async fn a_reload_keeps_what_was_used() {
    let (limiter, _) = limiter(USER);
    limiter.check(&user("1"), 2).await;
    limiter.set_rules(rules::parse("rules.yaml", &USER.replace("burst 2", "burst 5")).unwrap());
    assert_eq!(limiter.peek(&user("1"), 1).await.remaining(), Some(3));
}

#[tokio::test]
async fn whoever_waits_until_allowed_is_let_in_at_the_first_instant() {
    let (limiter, clock) = limiter(USER);
    limiter.check(&user("1"), 2).await;
    let waiting = tokio::spawn({
        let limiter = Arc::clone(&limiter);
        async move { limiter.until_allowed(&user("1"), 1, Timestamp::from_micros(1_000_000)).await }
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
async fn whoever_cannot_be_let_in_before_the_deadline_is_told_at_once_and_charged_nothing() {
    let (limiter, _) = limiter(USER);
    limiter.check(&user("1"), 2).await;
    let answer = limiter.until_allowed(&user("1"), 1, Timestamp::from_micros(99_999)).await;
    assert!(!answer.allowed());
    assert_eq!(answer.retry_after(), Some(Micros::new(100_000)));
    let never = limiter.until_allowed(&user("1"), 3, Timestamp::from_micros(i64::MAX)).await;
    assert_eq!((never.allowed(), never.retry_after()), (false, None));
}

#[tokio::test]
async fn a_leaky_bucket_holds_the_waiter_and_a_turn_after_the_deadline_is_not_taken() {
    let (limiter, clock) = limiter(r#"rules: [{ name: queue, key: global, limit: 10/s queue 5 }]"#);
    let deadline = Timestamp::from_micros(150_000);
    assert!(limiter.until_allowed(&Descriptor::new(), 1, deadline).await.allowed());
    let second = tokio::spawn({
        let limiter = Arc::clone(&limiter);
        async move { limiter.until_allowed(&Descriptor::new(), 1, deadline).await }
    });
    while limiter.peek(&Descriptor::new(), 1).await.delay() < Micros::new(200_000) {
        tokio::task::yield_now().await; // until the second stands in the queue
    }
    let third = limiter.until_allowed(&Descriptor::new(), 1, deadline).await;
    assert_eq!((third.allowed(), third.retry_after()), (false, Some(Micros::new(50_000))));
    assert!(!second.is_finished());
    clock.advance(Micros::new(100_000));
    assert!(second.await.unwrap().allowed());
}

/// Here a second passes while it is asked whether the turn would come by waiting, and with it the wait.
#[tokio::test]
async fn whoever_finds_that_the_turn_has_come_takes_it() {
    let clock = Clock::manual(Timestamp::from_micros(0));
    let store = slow::SlowToPeek(MemoryStore::with(clock.clone(), Bounds::default()));
    let limiter = Limiter::new(rules::parse("rules.yaml", USER).unwrap(), store);
    assert!(limiter.check(&user("1"), 2).await.allowed());
    let answer = limiter.until_allowed(&user("1"), 1, Timestamp::from_micros(5_000_000)).await;
    assert!(answer.allowed());
    assert_eq!(clock.now(), Timestamp::from_micros(1_000_000));
}

#[tokio::test]
async fn explain_says_of_every_rule_whether_and_why() {
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
async fn refund_gives_back_and_reset_forgets() {
    let (limiter, _) = limiter(USER);
    limiter.check(&user("1"), 2).await;
    let refunded = limiter.refund(&user("1"), 1).await.unwrap();
    assert_eq!((refunded.allowed(), refunded.remaining()), (true, Some(1)));
    let reset = limiter.reset(&user("1")).await.unwrap();
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
        let answer = limiter.check(&Descriptor::new(), 1).await;
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
        let peeked = limiter.peek(&user("1"), 0).await;
        peeked.tiers().iter().map(|tier| tier.verdict.remaining).collect::<Vec<u64>>()
    };
    assert!(limiter.check(&request("5000.0"), 1).await.allowed());
    let before = left().await;
    assert_eq!(before, [99, 5_000]);
    for tokens in ["5000 ", "-5000", "1e308", "0"] {
        let (request, ttl) = (request(tokens), Micros::new(60_000_000));
        let reserved = limiter.reserve(&request, 1, ttl).await.unwrap();
        assert_eq!(reserved.reservation, None);
        let deadline = Timestamp::from_micros(i64::MAX);
        for answer in [
            limiter.check(&request, 1).await,
            limiter.peek(&request, 1).await,
            limiter.refund(&request, 1).await.unwrap(),
            limiter.try_check(&request, 1).await.unwrap(),
            limiter.until_allowed(&request, 1, deadline).await,
            reserved.answer,
        ] {
            assert_eq!((answer.outcome(), answer.rule()), (Outcome::Invalid, Some("model-tokens")));
            assert_eq!((answer.allowed(), answer.retry_after()), (false, None));
            let error = answer.invalid_cost().unwrap();
            assert_eq!((&*error.attribute, &*error.value), ("tokens", tokens));
        }
        assert_eq!(left().await, before, "{tokens}");
    }
}
