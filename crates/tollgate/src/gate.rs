//! One limit without a rules file, for code that has its own keys.

use tollgate_core::rule::{Consistency, FailurePolicy};
use tollgate_core::{Limit, Rule, RuleSet, StoreError};

use crate::limiter::{Answer, Limiter};
use crate::store::Store;

/// One limit over a store: `allow("user:123")`.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Gate, Limit, MemoryStore, Ticks};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // capacity 5; 5 tokens come back together, every minute
/// let limit = Limit::interval(5, Duration::from_secs(60), 5, Ticks::FromFirstTake)?;
/// let gate = Gate::new(limit, MemoryStore::new());
/// for left in (0..5).rev() {
///     let answer = gate.allow("user:123").await;
///     assert!(answer.allowed() && answer.remaining() == Some(left));
/// }
/// assert!(!gate.allow("user:123").await.allowed());
/// # Ok(()) }
/// ```
///
/// Gates over one store share a bucket when key and algorithm (for windows and logs also their length) are the same, and
/// never with a rule. While the store is unavailable, requests are admitted unless
/// [`on_store_failure`](Self::on_store_failure) says otherwise.
#[derive(Debug)]
pub struct Gate<S> {
    rule: Rule,
    limiter: Limiter<S>,
}

impl<S: Store> Gate<S> {
    /// A gate with this limit.
    pub fn new(limit: Limit, store: S) -> Self {
        let rule = Rule::ad_hoc(limit);
        Gate { limiter: Limiter::new(RuleSet::of(rule.clone()), store), rule }
    }

    /// The same with another answer while the store is unavailable.
    #[must_use]
    pub fn on_store_failure(self, policy: FailurePolicy) -> Self {
        let rule = self.rule.clone().with_failure_policy(policy);
        self.with(rule)
    }

    /// The same with decisions made elsewhere: on leases or on this node's share.
    #[must_use]
    pub fn consistency(self, consistency: Consistency) -> Self {
        let rule = self.rule.clone().with_consistency(consistency);
        self.with(rule)
    }

    fn with(self, rule: Rule) -> Self {
        self.limiter.set_rules(RuleSet::of(rule.clone()));
        Gate { rule, ..self }
    }

    /// Takes one token from the key's bucket, if one is left.
    #[inline]
    pub async fn allow(&self, key: &str) -> Answer {
        self.limiter.check(&Rule::naming(key)).await
    }

    /// Takes `cost` tokens from the key's bucket, if that many are left.
    #[inline]
    pub async fn allow_cost(&self, key: &str, cost: u64) -> Answer {
        self.limiter.request(&Rule::naming(key)).cost(cost).check().await
    }

    /// Answers what [`allow`](Self::allow) would, and takes nothing.
    pub async fn peek(&self, key: &str) -> Answer {
        self.limiter.request(&Rule::naming(key)).peek().await
    }

    /// Gives tokens back, never beyond full.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn refund(&self, key: &str, cost: u64) -> Result<Answer, StoreError> {
        self.limiter.request(&Rule::naming(key)).cost(cost).refund().await
    }

    /// Deletes the key's bucket.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn reset(&self, key: &str) -> Result<Answer, StoreError> {
        self.limiter.request(&Rule::naming(key)).reset().await
    }

    /// The store.
    pub const fn store(&self) -> &S {
        self.limiter.store()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_core::{Micros, Status, StoreError, Timestamp};

    use super::*;
    use crate::clock::Clock;
    use crate::store::scripted::Scripted;
    use crate::store::{Bounds, MemoryStore};

    fn gate(policy: Option<FailurePolicy>) -> Gate<Scripted> {
        let gate = Gate::new("4/s".parse().unwrap(), Scripted::unavailable());
        match policy {
            None => gate,
            Some(policy) => gate.on_store_failure(policy),
        }
    }

    #[tokio::test]
    async fn a_gate_admits_while_the_store_is_unavailable_unless_it_is_closed() {
        for (policy, expected) in [
            (None, Status::Allowed),
            (Some(FailurePolicy::Open), Status::Allowed),
            (Some(FailurePolicy::Closed), Status::Unavailable),
        ] {
            let answer = gate(policy).allow_cost("a", 3).await;
            assert_eq!((answer.status(), answer.store_error()), (expected, Some(StoreError::Timeout)));
        }
        let closed = gate(Some(FailurePolicy::Closed)).allow("a").await;
        assert_eq!((closed.remaining(), closed.retry_after()), (Some(0), Some(Micros::new(1_000_000))));
    }

    #[tokio::test]
    async fn a_local_gate_counts_each_key_while_the_store_is_unavailable() {
        let gate = gate(Some(FailurePolicy::Local));
        for left in (0..4).rev() {
            assert_eq!(gate.allow("a").await.remaining(), Some(left));
        }
        assert_eq!(gate.allow("a").await.status(), Status::Refused);
        assert_eq!(gate.allow("b").await.remaining(), Some(3));
    }

    #[tokio::test]
    async fn a_refund_and_a_reset_fail_whatever_the_policy() {
        let gate = gate(Some(FailurePolicy::Open));
        assert_eq!(gate.refund("a", 1).await.unwrap_err(), StoreError::Timeout);
        assert_eq!(gate.reset("a").await.unwrap_err(), StoreError::Timeout);
    }

    #[tokio::test]
    async fn another_policy_or_consistency_is_the_same_bucket() {
        let clock = Clock::manual(Timestamp::from_micros(0));
        let store = MemoryStore::with(clock, Bounds::default());
        let gate = Gate::new("4/h".parse().unwrap(), store);
        assert_eq!(gate.allow("a").await.remaining(), Some(3));
        let gate = gate.on_store_failure(FailurePolicy::Closed);
        assert_eq!(gate.allow("a").await.remaining(), Some(2));
        let gate = Arc::new(gate.consistency(Consistency::Leased));
        assert_eq!(gate.allow("a").await.remaining(), Some(1));
        assert_eq!(gate.peek("a").await.remaining(), Some(1));
        assert_eq!(gate.refund("a", 2).await.unwrap().remaining(), Some(3));
        assert_eq!(gate.reset("a").await.unwrap().remaining(), Some(4));
    }
}
