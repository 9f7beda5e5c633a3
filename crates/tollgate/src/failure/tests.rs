use std::future::{Future, ready};
use std::num::NonZeroU32;

use tollgate_core::algorithm::State;
use tollgate_core::rule::FailurePolicy;
use tollgate_core::{Descriptor, Hit, Micros, Outcome, Timestamp, Verdict, Verdicts};

use crate::clock::Clock;
use crate::rules;
use crate::store::{Due, NoteName, Store, StoreError};
use crate::{Answer, Limiter, ReservationId};

/// A store that is never there.
#[derive(Debug)]
struct Away(Clock);

impl Store for Away {
    fn charge(
        &self,
        _: &[Hit<'_>],
        _: &mut Verdicts,
    ) -> impl Future<Output = Result<Timestamp, StoreError>> + Send {
        ready(Err(StoreError::Timeout))
    }

    async fn peek(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.charge(hits, verdicts).await
    }

    async fn refund(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.charge(hits, verdicts).await
    }

    async fn undo(
        &self,
        hits: &[Hit<'_>],
        _: &[Verdict],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        self.charge(hits, verdicts).await
    }

    async fn reset(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.charge(hits, verdicts).await
    }

    fn clock(&self) -> &Clock {
        &self.0
    }

    async fn inspect(&self, _: &Hit<'_>) -> Result<Option<State>, StoreError> {
        Err(StoreError::Timeout)
    }

    async fn keep(&self, _: NoteName, _: &[u8], _: Micros) -> Result<Option<Vec<u8>>, StoreError> {
        Err(StoreError::Timeout)
    }

    async fn recall(&self, _: NoteName) -> Result<Option<Vec<u8>>, StoreError> {
        Err(StoreError::Timeout)
    }

    async fn settle(&self, _: ReservationId, _: &[Due<'_>], _: Micros) -> Result<Vec<u64>, StoreError> {
        Err(StoreError::Timeout)
    }
}

fn limiter(text: &str) -> Limiter<Away> {
    let rules = rules::parse("rules.yaml", text).unwrap_or_else(|error| panic!("{error}"));
    Limiter::new(rules, Away(Clock::manual(Timestamp::from_micros(0))))
        .with_nodes(NonZeroU32::new(2).expect("not zero"))
}

async fn check(limiter: &Limiter<Away>) -> Answer {
    limiter.check(&Descriptor::new().with("user_id", "1"), 1).await
}

#[tokio::test]
async fn open_lets_pass_with_the_numbers_of_a_full_limit_and_says_so() {
    let limiter = limiter("rules: [{ key: 'user:{user_id}', limit: 1/s }]");
    for _ in 0..3 {
        let answer = check(&limiter).await;
        assert_eq!((answer.outcome(), answer.rule()), (Outcome::Allowed, Some("user:{user_id} 1s")));
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
async fn closed_is_no_refusal_but_nobody_knows() {
    let limiter = limiter("rules: [{ name: shut, key: global, limit: 1/s, on_store_failure: closed }]");
    let answer = check(&limiter).await;
    assert_eq!((answer.outcome(), answer.rule()), (Outcome::Unavailable, Some("shut")));
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
    assert_eq!(refused.outcome(), Outcome::Refused);
    assert_eq!(refused.retry_after(), Some(Micros::new(500_000)), "half of 4 a second");
}

#[tokio::test]
async fn what_a_closed_rule_stops_is_charged_to_nobodys_share() {
    let rules = |policy| {
        format!(
            "rules: [{{ name: a, key: global, limit: 4/s, on_store_failure: local }},
                     {{ name: b, key: 'user:{{user_id}}', limit: 9/s, on_store_failure: {policy} }}]"
        )
    };
    let limiter = limiter(&rules("closed"));
    for _ in 0..5 {
        assert_eq!(check(&limiter).await.outcome(), Outcome::Unavailable);
    }
    limiter.set_rules(rules::parse("rules.yaml", &rules("open")).expect("rules"));
    let answer = check(&limiter).await;
    assert_eq!((answer.outcome(), answer.rule(), answer.remaining()), (Outcome::Allowed, Some("a"), Some(1)));
    let policy = answer.degraded().expect("it was").policy;
    assert_eq!(policy, FailurePolicy::Local);
}

#[tokio::test]
async fn a_rule_on_trial_closes_nothing() {
    let limiter = limiter("rules: [{ key: global, limit: 1/s, on_store_failure: closed, mode: shadow }]");
    assert_eq!(check(&limiter).await.outcome(), Outcome::Allowed);
}
