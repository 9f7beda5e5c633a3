//! Where buckets live.
//!
//! A store charges the hits of one request together or not at all. [`MemoryStore`] keeps its buckets in this
//! process, `RedisStore` (feature `redis`) in a Redis or Valkey that many processes share, and `LeasedStore` decides
//! locally on tokens borrowed from there. Which store a program uses is often known only when it starts: [`AnyStore`] is
//! the choice made then.

#[cfg(feature = "redis")]
pub(crate) mod leased;
mod memory;
mod note;
#[cfg(feature = "redis")]
pub(crate) mod redis;

use std::future::Future;

use tollgate_core::algorithm::{State, Window};
use tollgate_core::limit::{Algorithm, Phase, Rank};
use tollgate_core::{Hit, Limit, Micros, Timestamp, Verdict, Verdicts};

#[cfg(feature = "redis")]
use self::leased::LeasedStore;
#[cfg(feature = "redis")]
use self::redis::RedisStore;
use crate::clock::Clock;
use crate::reserve::ReservationId;
pub use memory::{Bounds, MemoryStats, MemoryStore};
pub(crate) use note::LONGEST_NOTE;
pub use note::{About, Difference, Due, NoteName};

/// Keeps buckets and charges them.
///
/// Verdicts are pushed to a list of the caller's, one for each hit and in their order: nothing is moved or
/// allocated on the way. Every operation answers the instant of the store's clock at which it took effect.
pub trait Store: Send + Sync + 'static {
    /// Charges every enforcing hit, or none of them; shadow hits are charged each on their own.
    ///
    /// The hits of one request stand or fall together: when any bucket refuses, no bucket is touched, so a
    /// caller stopped by the tenant's limit does not also use up their own. Calls that share a key take effect
    /// one after the other.
    ///
    /// # Errors
    ///
    /// The store could not be asked, or did not answer in time. The hits [may have been
    /// charged](StoreError::is_in_doubt), so do not retry; let the rule's policy decide. Of [a part](StoreError::Part)
    /// that did not answer, the rest was not charged but for what is on trial, and may be asked without it.
    fn charge(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> impl Future<Output = Result<Timestamp, StoreError>> + Send;

    /// Answers what [`charge`](Self::charge) would, with the numbers as they are, and writes nothing.
    ///
    /// # Errors
    ///
    /// The store could not be asked.
    fn peek(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> impl Future<Output = Result<Timestamp, StoreError>> + Send;

    /// Gives the cost of each hit back, never beyond full, and answers the numbers afterwards.
    ///
    /// # Errors
    ///
    /// The store could not be asked.
    fn refund(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> impl Future<Output = Result<Timestamp, StoreError>> + Send;

    /// Gives back what was charged with these verdicts, one for each hit, and answers the numbers afterwards.
    ///
    /// A [refund](Self::refund) that knows what it undoes: it names the [mark](Verdict::mark) of the charge and touches only
    /// that window or entry. What time has given back already is not given a second time.
    ///
    /// # Errors
    ///
    /// The store could not be asked. The charge may stay.
    fn undo(
        &self,
        hits: &[Hit<'_>],
        charged: &[Verdict],
        verdicts: &mut Verdicts,
    ) -> impl Future<Output = Result<Timestamp, StoreError>> + Send;

    /// Forgets the bucket of each hit and answers the numbers of fresh ones.
    ///
    /// # Errors
    ///
    /// The store could not be asked.
    fn reset(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> impl Future<Output = Result<Timestamp, StoreError>> + Send;

    /// The clock of this process that waits for this store are counted on.
    fn clock(&self) -> &Clock;

    /// Whether its futures are ready when they are first asked: it waits for nobody.
    fn answers_at_once(&self) -> bool {
        false
    }

    /// Takes note that these hits were admitted without asking, while the store was away, and certainly not charged. A
    /// store that can, charges them later; at most what is there then.
    fn owe(&self, hits: &[Hit<'_>]) {
        let _ = hits;
    }

    /// This node's place in its fleet, where the store knows of one.
    fn rank(&self) -> Option<Rank> {
        None
    }

    /// What is remembered of the bucket of a hit; `None` when it is as good as new.
    ///
    /// # Errors
    ///
    /// The store could not be asked.
    fn inspect(&self, hit: &Hit<'_>) -> impl Future<Output = Result<Option<State>, StoreError>> + Send;

    /// Keeps a note for so long, unless there is one of that name: then that stays, and is the answer.
    ///
    /// Of several who write at once exactly one is answered that there was none.
    ///
    /// # Errors
    ///
    /// The store could not be asked, and may have kept the note all the same; or it has no room
    /// ([`StoreError::Rejected`] with `OOM`).
    fn keep(
        &self,
        name: NoteName,
        note: &[u8],
        ttl: Micros,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;

    /// The note of a name; `None` when there was none, or its time is over.
    ///
    /// # Errors
    ///
    /// The store could not be asked.
    fn recall(&self, name: NoteName) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;

    /// Settles the buckets of a reservation, each on its own and once, and answers how much that moved for each.
    ///
    /// What is done to a bucket and the receipt of it are written together. Whoever asks again, within so long, is
    /// answered from the receipt and changes nothing, so a settlement whose answer was lost may be repeated.
    ///
    /// # Errors
    ///
    /// The store could not be asked about every bucket. Ask again: what was done is not done twice.
    fn settle(
        &self,
        reservation: ReservationId,
        due: &[Due<'_>],
        ttl: Micros,
    ) -> impl Future<Output = Result<Vec<u64>, StoreError>> + Send;
}

/// Why a store gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It did not answer before the decision's deadline. It may have charged the request all the same.
    #[error("the store does not answer in time")]
    Timeout,
    /// The connection to it broke, or what it answered makes no sense. It may have charged the request all the same.
    #[error("the store cannot be reached")]
    Unreachable,
    /// It is known to be away, or no connection to it came about in time: it was not asked.
    #[error("the store is away, and was not asked: {reason}")]
    Away {
        /// Why it is away: one of [`REASONS`](Self::REASONS).
        reason: &'static str,
    },
    /// Too many decisions wait for it already.
    #[error("too many decisions wait for the store")]
    Overloaded,
    /// A part of it gave no answer; no enforcing hit was charged anywhere. What the rest says can still be asked.
    #[error("a part of the store is away: {error}")]
    Part {
        /// Why there is no answer.
        error: Box<StoreError>,
        /// The places, in the request, of the hits that live there.
        lost: Vec<usize>,
        /// The places of hits on trial that were decided already, each on its own, and charged if they passed: asked again
        /// they would be charged twice.
        decided: Vec<(usize, Verdict)>,
    },
    /// It answered that it will not; `OOM`, `READONLY`, `NOAUTH` and their like.
    #[error("the store refuses to decide: {code}")]
    Rejected {
        /// The first word of its answer.
        code: &'static str,
    },
}

/// Words with which a Redis refuses.
#[cfg(feature = "redis")]
const REJECTIONS: [&str; 15] = [
    "BUSY",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "ERR",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOPERM",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "WRONGPASS",
];

impl StoreError {
    /// Every word that [`reason`](Self::reason) has.
    pub const REASONS: [&str; 4] = ["timeout", "unreachable", "overloaded", "rejected"];

    /// A store that refused with this word; anything but the usual words counts as `ERR`.
    #[cfg(feature = "redis")]
    pub(crate) fn rejected(code: &str) -> Self {
        let code = REJECTIONS.into_iter().find(|known| *known == code).unwrap_or("ERR");
        StoreError::Rejected { code }
    }

    /// The same of a request in which what was asked stands at these places, of so many: what was not asked is not lost.
    pub(crate) fn at(self, places: &[usize], of: usize) -> Self {
        match self {
            StoreError::Part { error, lost, decided } => {
                let place = |place: usize| places.get(place).copied();
                let lost = lost.into_iter().filter_map(place).collect();
                let decided = decided.into_iter().filter_map(|(at, verdict)| Some((place(at)?, verdict)));
                StoreError::Part { error, lost, decided: decided.collect() }
            }
            whole if places.len() == of => whole,
            whole => StoreError::part(whole, places.to_vec()),
        }
    }

    /// The same of a request that was never sent.
    #[cfg(feature = "redis")]
    pub(crate) fn unsent(self) -> Self {
        if self.is_in_doubt() { StoreError::Away { reason: self.reason() } } else { self }
    }

    /// Whether nobody knows if the request was charged. Where this is false, it certainly was not.
    pub fn is_in_doubt(&self) -> bool {
        match self {
            StoreError::Part { error, .. } => error.is_in_doubt(),
            StoreError::Timeout | StoreError::Unreachable => true,
            StoreError::Away { .. } | StoreError::Overloaded | StoreError::Rejected { .. } => false,
        }
    }

    /// A part with these places is away.
    pub(crate) fn part(error: StoreError, lost: Vec<usize>) -> Self {
        StoreError::Part { error: Box::new(error), lost, decided: Vec::new() }
    }

    /// The same where these hits on trial were decided.
    #[cfg(feature = "redis")]
    pub(crate) fn with_decided(mut self, more: impl IntoIterator<Item = (usize, Verdict)>) -> Self {
        if let StoreError::Part { decided, .. } = &mut self {
            decided.extend(more);
        }
        self
    }

    /// One of a few words, for answers and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            StoreError::Part { error, .. } => error.reason(),
            StoreError::Away { reason } => reason,
            StoreError::Timeout => "timeout",
            StoreError::Unreachable => "unreachable",
            StoreError::Overloaded => "overloaded",
            StoreError::Rejected { .. } => "rejected",
        }
    }
}

/// Where the spread windows of a hit's key begin.
#[inline]
pub(crate) fn window(hit: &Hit<'_>, limit: &Limit) -> Window {
    match limit.algorithm() {
        Algorithm::FixedWindow { phase: Phase::Spread, window, .. } => {
            Window::Spread(hit.key.spread(*window))
        }
        _ => Window::Own,
    }
}

/// The store chosen when the program starts.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyStore {
    /// Buckets in this process.
    Memory(MemoryStore),
    /// Buckets in a Redis or Valkey.
    #[cfg(feature = "redis")]
    Redis(RedisStore),
    /// Buckets in a Redis or Valkey, with decisions made here where rules want that.
    #[cfg(feature = "redis")]
    Leased(Box<LeasedStore>),
}

impl AnyStore {
    /// The Redis where the buckets are, if they are in one.
    #[cfg(feature = "redis")]
    pub fn redis(&self) -> Option<&RedisStore> {
        match self {
            AnyStore::Memory(_) => None,
            AnyStore::Redis(store) => Some(store),
            AnyStore::Leased(store) => Some(store.redis()),
        }
    }

    /// What stands before it, if decisions may be made here.
    #[cfg(feature = "redis")]
    pub fn leased(&self) -> Option<&LeasedStore> {
        match self {
            AnyStore::Leased(store) => Some(store),
            _ => None,
        }
    }

    /// Gives back what is borrowed, if anything is: call it when no decision is asked for any more.
    pub async fn close(&self) {
        #[cfg(feature = "redis")]
        if let AnyStore::Leased(store) = self {
            store.close().await;
        }
    }
}

impl From<MemoryStore> for AnyStore {
    fn from(store: MemoryStore) -> Self {
        AnyStore::Memory(store)
    }
}

#[cfg(feature = "redis")]
impl From<RedisStore> for AnyStore {
    fn from(store: RedisStore) -> Self {
        AnyStore::Redis(store)
    }
}

#[cfg(feature = "redis")]
impl From<LeasedStore> for AnyStore {
    fn from(store: LeasedStore) -> Self {
        AnyStore::Leased(Box::new(store))
    }
}

/// Calls the same method of whichever store is there.
macro_rules! each {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            AnyStore::Memory($store) => $call.await,
            #[cfg(feature = "redis")]
            AnyStore::Redis($store) => $call.await,
            #[cfg(feature = "redis")]
            AnyStore::Leased($store) => $call.await,
        }
    };
}

impl Store for AnyStore {
    #[inline]
    async fn charge(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        each!(self, store => store.charge(hits, verdicts))
    }

    #[inline]
    async fn peek(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        each!(self, store => store.peek(hits, verdicts))
    }

    #[inline]
    async fn refund(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        each!(self, store => store.refund(hits, verdicts))
    }

    async fn undo(
        &self,
        hits: &[Hit<'_>],
        charged: &[Verdict],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        each!(self, store => store.undo(hits, charged, verdicts))
    }

    #[inline]
    async fn reset(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        each!(self, store => store.reset(hits, verdicts))
    }

    fn clock(&self) -> &Clock {
        match self {
            AnyStore::Memory(store) => store.clock(),
            #[cfg(feature = "redis")]
            AnyStore::Redis(store) => store.clock(),
            #[cfg(feature = "redis")]
            AnyStore::Leased(store) => store.clock(),
        }
    }

    fn owe(&self, hits: &[Hit<'_>]) {
        #[cfg(feature = "redis")]
        if let AnyStore::Leased(store) = self {
            store.owe(hits);
        }
        #[cfg(not(feature = "redis"))]
        let _ = hits;
    }

    fn rank(&self) -> Option<Rank> {
        match self {
            #[cfg(feature = "redis")]
            AnyStore::Leased(store) => store.rank(),
            _ => None,
        }
    }

    fn answers_at_once(&self) -> bool {
        match self {
            AnyStore::Memory(store) => store.answers_at_once(),
            #[cfg(feature = "redis")]
            AnyStore::Redis(store) => store.answers_at_once(),
            #[cfg(feature = "redis")]
            AnyStore::Leased(store) => store.answers_at_once(),
        }
    }

    async fn inspect(&self, hit: &Hit<'_>) -> Result<Option<State>, StoreError> {
        each!(self, store => store.inspect(hit))
    }

    async fn keep(&self, name: NoteName, note: &[u8], ttl: Micros) -> Result<Option<Vec<u8>>, StoreError> {
        each!(self, store => store.keep(name, note, ttl))
    }

    async fn recall(&self, name: NoteName) -> Result<Option<Vec<u8>>, StoreError> {
        each!(self, store => store.recall(name))
    }

    async fn settle(
        &self,
        reservation: ReservationId,
        due: &[Due<'_>],
        ttl: Micros,
    ) -> Result<Vec<u64>, StoreError> {
        each!(self, store => store.settle(reservation, due, ttl))
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    fn part(lost: &[usize]) -> StoreError {
        StoreError::part(StoreError::Timeout, lost.to_vec())
    }

    #[test]
    fn what_was_not_asked_is_not_lost() {
        assert_eq!(StoreError::Timeout.at(&[0, 1, 2], 3), StoreError::Timeout, "all of it was");
        assert_eq!(StoreError::Timeout.at(&[0, 2], 3), part(&[0, 2]));
        assert_eq!(
            part(&[1]).at(&[0, 2], 3),
            part(&[2]),
            "the second that was asked is the third of the request"
        );
    }

    #[test]
    fn only_what_was_not_sent_or_was_declined_is_certainly_not_charged() {
        let away = StoreError::Timeout.unsent();
        assert_eq!((away.reason(), away.is_in_doubt()), ("timeout", false));
        assert_eq!(StoreError::rejected("OOM").unsent(), StoreError::rejected("OOM"));
        for (error, in_doubt) in [
            (StoreError::Timeout, true),
            (StoreError::Unreachable, true),
            (part(&[0]), true),
            (StoreError::Overloaded, false),
            (StoreError::rejected("OOM"), false),
            (away.at(&[0], 2), false),
        ] {
            assert_eq!(error.is_in_doubt(), in_doubt, "{error:?}");
        }
    }
}
