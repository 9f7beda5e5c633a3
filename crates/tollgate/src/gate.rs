//! One limit without rules, for code that has its own keys.

use tollgate_core::algorithm::Demand;
use tollgate_core::{Enforcement, Hit, Limit, Micros, Space, Verdict, Verdicts};

use crate::store::{Store, StoreError};

/// One limit over a store: `allow("user:123")`.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Gate, Limit, MemoryStore, Ticks};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // capacity 5; 5 tokens come back every minute, all at once
/// let limit = Limit::interval(5, Duration::from_secs(60), 5, Ticks::FromFirstTake)?;
/// let gate = Gate::new(limit, MemoryStore::new());
/// for left in (0..5).rev() {
///     let verdict = gate.allow("user:123").await?;
///     assert!(verdict.allowed && verdict.remaining == left);
/// }
/// assert!(!gate.allow("user:123").await?.allowed);
/// # Ok(()) }
/// ```
///
/// Gates over one store share a bucket when key and algorithm are the same, and never with a rule.
#[derive(Debug)]
pub struct Gate<S> {
    limit: Limit,
    space: Space,
    store: S,
}

impl<S: Store> Gate<S> {
    /// A gate with this limit.
    pub fn new(limit: Limit, store: S) -> Self {
        Gate { space: Space::ad_hoc(&limit), limit, store }
    }

    /// Takes one token from the key's bucket, if one is left.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    #[inline]
    pub async fn allow(&self, key: &str) -> Result<Verdict, StoreError> {
        self.allow_cost(key, 1).await
    }

    /// Takes `cost` tokens from the key's bucket, if so many are left.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    #[inline]
    pub async fn allow_cost(&self, key: &str, cost: u64) -> Result<Verdict, StoreError> {
        let mut verdicts = Verdicts::new();
        self.store.charge(&[self.hit(key, cost)], &mut verdicts).await?;
        Ok(only(&verdicts))
    }

    /// Answers what [`allow`](Self::allow) would, and takes nothing.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn peek(&self, key: &str) -> Result<Verdict, StoreError> {
        let mut verdicts = Verdicts::new();
        self.store.peek(&[self.hit(key, 1)], &mut verdicts).await?;
        Ok(only(&verdicts))
    }

    /// Gives tokens back, never beyond full.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn refund(&self, key: &str, cost: u64) -> Result<Verdict, StoreError> {
        let mut verdicts = Verdicts::new();
        self.store.refund(&[self.hit(key, cost)], &mut verdicts).await?;
        Ok(only(&verdicts))
    }

    /// Forgets the key's bucket.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn reset(&self, key: &str) -> Result<Verdict, StoreError> {
        let mut verdicts = Verdicts::new();
        self.store.reset(&[self.hit(key, 1)], &mut verdicts).await?;
        Ok(only(&verdicts))
    }

    /// The store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    #[inline]
    fn hit<'a>(&'a self, key: &'a str, cost: u64) -> Hit<'a> {
        Hit {
            key: self.space.named(key),
            limit: &self.limit,
            demand: Demand { cost, patience: Micros::MAX },
            enforcement: Enforcement::Enforce,
        }
    }
}

#[inline]
fn only(verdicts: &Verdicts) -> Verdict {
    *verdicts.first().expect("a store answers every hit")
}
