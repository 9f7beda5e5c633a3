use std::num::NonZeroU32;

use tollgate_core::rule::FailurePolicy;
use tollgate_core::{Descriptor, Holder, Micros, Outcome, Status, StoreError, Timestamp};

use crate::clock::Clock;
use crate::rules;
use crate::store::Store as _;
use crate::store::scripted::{Finished, Reply, Scripted};
use crate::{Answer, Limiter};

fn limiter(text: &str) -> Limiter<Scripted> {
    over(text, Scripted::unavailable())
}

/// A limiter over this store, as one of two nodes.
fn over(text: &str, store: Scripted) -> Limiter<Scripted> {
    let rules = rules::parse("rules.yaml", text).unwrap_or_else(|error| panic!("{error}"));
    Limiter::new(rules, store).with_nodes(NonZeroU32::new(2).expect("not zero"))
}

async fn check(limiter: &Limiter<Scripted>) -> Answer {
    limiter.check(&Descriptor::new().with("user_id", "1")).await
}

#[tokio::test]
async fn open_admits_with_the_numbers_of_a_full_limit_and_reports_that() {
    let limiter = limiter("rules: [{ key: 'user:{user_id}', limit: 1/s }]");
    for _ in 0..3 {
        let answer = check(&limiter).await;
        assert_eq!((answer.status(), answer.rule()), (Status::Allowed, Some("user:{user_id} 1s")));
        assert_eq!(
            (answer.limit(), answer.remaining(), answer.reset_after()),
            (Some(1), Some(1), Micros::ZERO)
        );
        let degraded = answer.degraded().expect("it was");
        assert_eq!((degraded.policy, degraded.reason), (FailurePolicy::Open, "timeout"));
    }
    let counted: Vec<_> = limiter.degraded_decisions().into_iter().filter(|c| c.decisions > 0).collect();
    assert_eq!(counted.len(), 1);
    assert_eq!(
        (counted[0].policy, counted[0].reason, counted[0].decisions),
        (FailurePolicy::Open, "timeout", 3)
    );
}

#[tokio::test]
async fn closed_is_unavailable_rather_than_refused() {
    let limiter = limiter("rules: [{ name: shut, key: global, limit: 1/s, on_store_failure: closed }]");
    let answer = check(&limiter).await;
    assert_eq!((answer.status(), answer.rule()), (Status::Unavailable, Some("shut")));
    assert_eq!(answer.retry_after(), Some(Micros::new(1_000_000)));
}

#[tokio::test]
async fn local_counts_against_this_nodes_share() {
    let limiter = limiter("rules: [{ key: global, limit: 4/s burst 6, on_store_failure: local }]");
    let mut remaining = Vec::new();
    for _ in 0..3 {
        remaining.push(check(&limiter).await.remaining());
    }
    assert_eq!(remaining, [Some(2), Some(1), Some(0)], "half of 6");
    let refused = check(&limiter).await;
    assert_eq!(refused.status(), Status::Refused);
    assert_eq!(refused.retry_after(), Some(Micros::new(500_000)), "half of 4 a second");
}

#[tokio::test]
async fn a_request_that_a_closed_rule_stops_is_charged_to_no_share() {
    let rules = |policy| {
        format!(
            "rules: [{{ name: a, key: global, limit: 4/s, on_store_failure: local }},
                     {{ name: b, key: 'user:{{user_id}}', limit: 9/s, on_store_failure: {policy} }}]"
        )
    };
    let limiter = limiter(&rules("closed"));
    for _ in 0..5 {
        assert_eq!(check(&limiter).await.status(), Status::Unavailable);
    }
    limiter.set_rules(rules::parse("rules.yaml", &rules("open")).expect("rules"));
    let answer = check(&limiter).await;
    assert_eq!((answer.status(), answer.rule(), answer.remaining()), (Status::Allowed, Some("a"), Some(1)));
    let policy = answer.degraded().expect("it was").policy;
    assert_eq!(policy, FailurePolicy::Local);
}

#[tokio::test]
async fn a_rule_in_shadow_mode_closes_nothing() {
    let limiter = limiter("rules: [{ key: global, limit: 1/s, on_store_failure: closed, mode: shadow }]");
    assert_eq!(check(&limiter).await.status(), Status::Allowed);
}

fn instead(answer: &Answer) -> Vec<Option<FailurePolicy>> {
    answer.tiers().iter().map(tollgate_core::Tier::instead).collect()
}

fn remaining(answer: &Answer) -> Vec<u64> {
    answer.tiers().iter().map(|tier| tier.verdict().remaining).collect()
}

const THREE: &str = r#"rules:
  - { name: a, key: "a:{user_id}", limit: 4/s, on_store_failure: local }
  - { name: b, key: "b:{user_id}", limit: 9/s, on_store_failure: POLICY }
  - { name: c, key: "c:{user_id}", limit: 6/s, on_store_failure: local }
  - { name: d, key: "d:{user_id}", limit: 8/s, on_store_failure: local, mode: shadow }"#;

#[tokio::test]
async fn each_lost_row_gets_the_answer_of_its_own_rule() {
    let limiter = limiter(&THREE.replace("POLICY", "open"));
    let answer = check(&limiter).await;
    let local = Some(FailurePolicy::Local);
    assert_eq!(instead(&answer), [local, Some(FailurePolicy::Open), local, local]);
    assert_eq!(remaining(&answer), [1, 9, 2, 3], "half of 4, 6 and 8, and one taken");
    assert_eq!((answer.status(), answer.store_error()), (Status::Allowed, Some(StoreError::Timeout)));
}

#[tokio::test]
async fn shares_only_peek_where_a_closed_rule_refuses_and_shadow_shares_are_charged_all_the_same() {
    let limiter = limiter(&THREE.replace("POLICY", "closed"));
    for turn in 1..=3 {
        let answer = check(&limiter).await;
        let local = Some(FailurePolicy::Local);
        assert_eq!(instead(&answer), [local, Some(FailurePolicy::Closed), local, local]);
        assert_eq!(remaining(&answer), [2, 0, 3, 4 - turn]);
        assert_eq!((answer.status(), answer.rule()), (Status::Unavailable, Some("b")));
    }
}

#[tokio::test]
async fn one_share_that_refuses_charges_no_other_share() {
    let limiter = limiter(&THREE.replace("POLICY", "open"));
    check(&limiter).await;
    check(&limiter).await;
    for _ in 0..3 {
        let refused = check(&limiter).await;
        assert_eq!((refused.status(), refused.rule()), (Status::Refused, Some("a")));
        assert_eq!(remaining(&refused)[..3], [0, 9, 1], "c has one of three left");
    }
}

/// A part of the store answers for `a`, and the rest is lost.
fn partly_lost() -> Scripted {
    let clock = Clock::manual(Timestamp::from_micros(0));
    Scripted::new(clock, |memory, call| {
        call.tiers[1..].iter_mut().for_each(|tier| tier.outcome = Outcome::Lost(StoreError::Unreachable));
        memory.run_now(call);
        if let Outcome::Decided(verdict) = call.tiers[0].outcome
            && verdict.allowed
        {
            call.tiers[0].outcome =
                Outcome::Held { if_passed: verdict, holder: Holder::Hold(Timestamp::from_micros(1)) };
        }
        Reply::Now
    })
}

const TWO: &str = r#"rules:
  - { name: a, key: "a:{user_id}", limit: 3/s }
  - { name: b, key: "b:{user_id}", limit: LIMIT, on_store_failure: local }"#;

#[tokio::test]
async fn a_share_is_not_charged_where_the_store_has_refused_another_row() {
    let limiter = over(&TWO.replace("LIMIT", "100/s"), partly_lost());
    let left: Vec<(Status, u64)> = {
        let mut left = Vec::new();
        for _ in 0..5 {
            let answer = check(&limiter).await;
            left.push((answer.status(), remaining(&answer)[1]));
        }
        left
    };
    let (yes, no) = (Status::Allowed, Status::Refused);
    assert_eq!(left, [(yes, 49), (yes, 48), (yes, 47), (no, 47), (no, 47)]);
}

#[tokio::test]
async fn a_held_row_is_spent_if_the_policies_admit_and_given_back_if_one_refuses() {
    let limiter = over(&TWO.replace("LIMIT", "4/s"), partly_lost());
    let finished = |passes| vec![Finished { passes, held: 1 }];
    for _ in 0..2 {
        assert!(check(&limiter).await.allowed());
        assert_eq!(limiter.store().finished(), finished(true));
    }
    let refused = check(&limiter).await;
    assert_eq!((refused.status(), refused.rule()), (Status::Refused, Some("b")));
    assert_eq!(limiter.store().finished(), finished(false));
    assert_eq!(remaining(&refused), [1, 0], "what a was charged is given back in the numbers");
}

#[tokio::test]
async fn a_peek_charges_no_share() {
    let limiter = limiter("rules: [{ key: global, limit: 4/s, on_store_failure: local }]");
    for _ in 0..5 {
        let peeked = limiter.request(&Descriptor::new()).peek().await;
        assert_eq!((peeked.status(), peeked.remaining()), (Status::Allowed, Some(2)));
    }
}
