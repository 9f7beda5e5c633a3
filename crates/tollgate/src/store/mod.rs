//! Where buckets live.
//!
//! A store charges the hits of one request together or not at all. [`MemoryStore`] keeps its buckets in this
//! process. Which store a program uses is often known only when it starts: [`AnyStore`] is the choice made then.

mod memory;

use std::future::Future;

use tollgate_core::algorithm::State;
use tollgate_core::{Hit, Verdicts};

use crate::clock::Clock;
pub use memory::{Bounds, MemoryStats, MemoryStore};

/// Keeps buckets and charges them.
///
/// Verdicts are pushed to a list of the caller's, one for each hit and in their order: nothing is moved or
/// allocated on the way.
pub trait Store: Send + Sync + 'static {
    /// Charges every enforcing hit, or none of them; shadow hits are charged each on their own.
    ///
    /// The hits of one request stand or fall together: when any bucket refuses, no bucket is touched, so a
    /// caller stopped by the tenant's limit does not also use up their own. Calls that share a key take effect
    /// one after the other.
    ///
    /// # Errors
    ///
    /// The store could not be asked, or did not answer in time. The hits may have been charged, so do not
    /// retry; let the rule's policy decide.
    fn charge(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Answers what [`charge`](Self::charge) would, with the numbers as they are, and writes nothing.
    ///
    /// # Errors
    ///
    /// The store could not be asked.
    fn peek(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Gives the cost of each hit back, never beyond full, and answers the numbers afterwards.
    ///
    /// # Errors
    ///
    /// The store could not be asked.
    fn refund(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Forgets the bucket of each hit and answers the numbers of fresh ones.
    ///
    /// # Errors
    ///
    /// The store could not be asked.
    fn reset(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The clock of this process that waits for this store are counted on.
    fn clock(&self) -> &Clock;

    /// What is remembered of the bucket of a hit; `None` when it is as good as new.
    ///
    /// # Errors
    ///
    /// The store could not be asked.
    fn inspect(&self, hit: &Hit<'_>) -> impl Future<Output = Result<Option<State>, StoreError>> + Send;
}

/// Why a store gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It did not answer before the decision's deadline.
    #[error("the store did not answer in time")]
    Timeout,
    /// It could not be reached.
    #[error("the store cannot be reached")]
    Unreachable,
}

/// The store chosen when the program starts.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyStore {
    /// Buckets in this process.
    Memory(MemoryStore),
}

impl From<MemoryStore> for AnyStore {
    fn from(store: MemoryStore) -> Self {
        AnyStore::Memory(store)
    }
}

/// Calls the same method of whichever store is there.
macro_rules! each {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            AnyStore::Memory($store) => $call.await,
        }
    };
}

impl Store for AnyStore {
    #[inline]
    async fn charge(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<(), StoreError> {
        each!(self, store => store.charge(hits, verdicts))
    }

    #[inline]
    async fn peek(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<(), StoreError> {
        each!(self, store => store.peek(hits, verdicts))
    }

    #[inline]
    async fn refund(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<(), StoreError> {
        each!(self, store => store.refund(hits, verdicts))
    }

    #[inline]
    async fn reset(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<(), StoreError> {
        each!(self, store => store.reset(hits, verdicts))
    }

    fn clock(&self) -> &Clock {
        match self {
            AnyStore::Memory(store) => store.clock(),
        }
    }

    async fn inspect(&self, hit: &Hit<'_>) -> Result<Option<State>, StoreError> {
        each!(self, store => store.inspect(hit))
    }
}
