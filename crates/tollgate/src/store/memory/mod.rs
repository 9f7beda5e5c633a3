//! Buckets in this process: the embedded default.
//!
//! Keys are spread over shards by a keyed 128-bit hash; each shard is a flat table behind a short lock. A request
//! locks the shards of all its hits, in their order, asks every bucket, charges all or none, and unlocks: nobody
//! ever sees half a request. Nothing is allocated for an ordinary decision.
//!
//! The store is bounded. Buckets that are as good as new are dropped a few at a time while new ones come in. When
//! that is not enough, a new key is counted in its rule's **overflow bucket**, which all such keys share. A key
//! that gets a place of its own later starts with what the overflow bucket has used, so running out of memory
//! never hands anybody a fresh quota.

mod decide;
mod limits;
mod notes;
mod packed;
mod place;
mod settle;
mod shard;

use std::collections::HashMap;
use std::future::{Future, ready};
use std::hash::Hash;
use std::slice;

use foldhash::quality::RandomState;
use tollgate_core::algorithm::{Answer, Bucket, State};
use tollgate_core::limit::Algorithm;
use tollgate_core::{Hit, Mark, Micros, Timestamp, Verdict, Verdicts};

use self::limits::Limits;
use self::notes::Notes;
use self::packed::Content;
use self::shard::{KeyHash, Shard, ShardBounds, Wide};
use super::{Due, NoteName, Store, StoreError, window};
use crate::clock::Clock;
use crate::key_hash::KeySeeds;
use crate::reserve::ReservationId;
use crate::sync::{AtomicBool, Mutex, MutexGuard};

/// Buckets a shard is meant for; fewer buckets, fewer shards.
const BUCKETS_PER_SHARD: usize = 4_096;
const MOST_SHARDS: usize = 1_024;
/// The longest pause between two tries at a lock before the thread goes to sleep on it; what the lock guards
/// takes tens of nanoseconds.
const MOST_PAUSES: u32 = 64;
/// A store that stays full says so in the log this often.
const LOG_INTERVAL: Micros = Micros::new(60_000_000);

/// How much a [`MemoryStore`] may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The most buckets.
    pub buckets: usize,
    /// The most bytes, for tables and logs together.
    pub bytes: usize,
}

impl Default for Bounds {
    /// Ten million buckets, one gigabyte.
    fn default() -> Self {
        Bounds { buckets: 10_000_000, bytes: 1 << 30 }
    }
}

/// What a [`MemoryStore`] holds and has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryStats {
    /// Buckets held.
    pub buckets: usize,
    /// Bytes of tables and logs.
    pub bytes: usize,
    /// Buckets dropped because they were as good as new.
    pub dropped: u64,
    /// Decisions on new keys that an overflow bucket made, because the store is or was full; refusals included.
    pub overflowed: u64,
    /// States shifted because the clock went back by more than a second.
    pub clock_steps: u64,
}

/// Keeps buckets in this process.
///
/// ```
/// use tollgate::{Gate, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gate = Gate::new("10/s burst 50".parse()?, MemoryStore::new());
/// assert!(gate.allow("user:123").await?.allowed);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
    seeds: KeySeeds,
    shards: Box<[Padded]>,
    limits: Limits,
    overflow: Mutex<Overflow>,
    /// Whether any overflow bucket is in use; spares the usual insertion that lock.
    overflowing: AtomicBool,
    notes: Notes,
}

/// A shard and its lock, on a cache line of their own.
#[derive(Debug)]
#[repr(align(64))]
struct Padded(Mutex<Shard>);

/// Where keys are counted for which there is no room.
#[derive(Debug, Default)]
struct Overflow {
    /// The overflow bucket of each rule that has one, by the hash of the rule's part of the key.
    buckets: HashMap<u128, Wide, RandomState>,
    /// When the log last said that the store is full.
    logged: Option<Timestamp>,
}

impl Overflow {
    /// Logs that the store is full, unless the log has said so a short time ago.
    fn log_full(&mut self, now: Timestamp) {
        if self.logged.is_none_or(|logged| logged.after(LOG_INTERVAL) <= now) {
            self.logged = Some(now);
            tracing::warn!(
                "the store is full: new keys of a rule share one bucket, and some are refused early; give the store more \
                 memory, or find out who makes up keys"
            );
        }
    }
}

/// What is done to the buckets of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Charge,
    Peek,
    Refund,
    /// Of the charge with this mark.
    Undo(Mark),
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store on the system's clock with the default bounds.
    pub fn new() -> Self {
        Self::with(Clock::system(), Bounds::default())
    }

    /// An empty store on the given clock and with the given bounds.
    pub fn with(clock: Clock, bounds: Bounds) -> Self {
        let shards = (bounds.buckets / BUCKETS_PER_SHARD).clamp(1, MOST_SHARDS);
        Self::with_shards(clock, bounds, 1 << shards.ilog2())
    }

    /// The same with a given number of shards, a power of two; small stores have one otherwise.
    #[cfg(shuttle)]
    pub fn sharded(clock: Clock, bounds: Bounds, shards: usize) -> Self {
        Self::with_shards(clock, bounds, shards)
    }

    fn with_shards(clock: Clock, bounds: Bounds, shards: usize) -> Self {
        let each = ShardBounds { buckets: (bounds.buckets / shards).max(1), bytes: bounds.bytes / shards };
        MemoryStore {
            clock,
            seeds: KeySeeds::random(),
            shards: (0..shards).map(|_| Padded(Mutex::new(Shard::new(each)))).collect(),
            limits: Limits::new(),
            overflow: Mutex::default(),
            overflowing: AtomicBool::new(false),
            notes: Notes::default(),
        }
    }

    /// What it holds and has seen.
    pub fn stats(&self) -> MemoryStats {
        self.shards.iter().map(|shard| shard.0.lock()).fold(MemoryStats::default(), |sum, shard| {
            MemoryStats {
                buckets: sum.buckets + shard.len(),
                bytes: sum.bytes + shard.bytes(),
                dropped: sum.dropped + shard.dropped,
                overflowed: sum.overflowed + shard.overflowed,
                clock_steps: sum.clock_steps + shard.clock_steps,
            }
        })
    }

    #[inline]
    fn run(&self, hits: &[Hit<'_>], operation: Operation, verdicts: &mut Verdicts) -> Timestamp {
        match hits {
            [] => self.clock.now(),
            [hit] => {
                let hash = self.hash(&hit.key);
                let quick = match hit.limit.algorithm() {
                    Algorithm::TokenBucket(refill) if operation == Operation::Charge => {
                        self.charge_token_bucket(refill, hash, hit)
                    }
                    _ => None,
                };
                let (verdict, now) = quick.unwrap_or_else(|| {
                    let mut shard = self.lock(self.shard_of(hash));
                    self.one(&mut shard, hash, hit, operation)
                });
                verdicts.push(verdict);
                now
            }
            hits => self.many(hits, operation, verdicts),
        }
    }

    #[inline]
    fn hash(&self, key: &impl Hash) -> KeyHash {
        KeyHash(self.seeds.hash(key))
    }

    fn overflow_hash(&self, hit: &Hit<'_>) -> u128 {
        self.hash(&hit.key.space().digest()).0
    }

    #[inline]
    fn shard_of(&self, hash: KeyHash) -> usize {
        (hash.0 >> 96) as usize & (self.shards.len() - 1)
    }

    #[inline]
    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        let mutex = &self.shards[shard].0;
        let mut pauses = 1;
        while pauses <= MOST_PAUSES {
            if let Some(guard) = mutex.try_lock() {
                return guard;
            }
            // Back off twice as long each time: whoever holds the line gets its work done meanwhile.
            (0..pauses).for_each(|_| std::hint::spin_loop());
            pauses *= 2;
        }
        mutex.lock()
    }
}

/// Every call is done when it returns; what it returns is a future that is ready.
impl Store for MemoryStore {
    #[inline]
    fn charge(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> impl Future<Output = Result<Timestamp, StoreError>> + Send {
        ready(Ok(self.run(hits, Operation::Charge, verdicts)))
    }

    fn peek(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> impl Future<Output = Result<Timestamp, StoreError>> + Send {
        ready(Ok(self.run(hits, Operation::Peek, verdicts)))
    }

    fn refund(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> impl Future<Output = Result<Timestamp, StoreError>> + Send {
        ready(Ok(self.run(hits, Operation::Refund, verdicts)))
    }

    async fn undo(
        &self,
        hits: &[Hit<'_>],
        charged: &[Verdict],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        let mut at = self.clock.now();
        for (hit, charged) in hits.iter().zip(charged) {
            at = self.run(slice::from_ref(hit), Operation::Undo(charged.mark), verdicts);
        }
        Ok(at)
    }

    async fn reset(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        for hit in hits {
            let hash = self.hash(&hit.key);
            let mut shard = self.lock(self.shard_of(hash));
            if let Some(at) = shard.find(hash) {
                shard.remove(at);
            }
        }
        let now = self.clock.now();
        let fresh = |hit: &Hit<'_>| {
            let bucket = Bucket::open(hit.limit, None, now, window(hit, hit.limit));
            bucket.verdict(Answer::Pass { delay: Micros::ZERO })
        };
        verdicts.extend(hits.iter().map(fresh));
        Ok(now)
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn answers_at_once(&self) -> bool {
        true
    }

    async fn inspect(&self, hit: &Hit<'_>) -> Result<Option<State>, StoreError> {
        let hash = self.hash(&hit.key);
        let shard = self.lock(self.shard_of(hash));
        let state = shard.find(hash).and_then(|at| {
            let packed = shard.content(at);
            match packed.content() {
                Content::Wide(place) => shard.wide_state(place).cloned(),
                Content::Empty | Content::Narrow(_) => self.inspected(packed, hit),
            }
        });
        let now = self.clock.now();
        let is_new = |state: &State| {
            !state.is_of(hit.limit) || state.is_as_good_as_new(hit.limit, now, window(hit, hit.limit))
        };
        let state = state.filter(|state| !is_new(state));
        Ok(state)
    }

    async fn keep(&self, name: NoteName, note: &[u8], ttl: Micros) -> Result<Option<Vec<u8>>, StoreError> {
        self.notes.keep(name, note, self.clock.now(), ttl)
    }

    async fn recall(&self, name: NoteName) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.notes.recall(name, self.clock.now()))
    }

    async fn settle(
        &self,
        reservation: ReservationId,
        due: &[Due<'_>],
        ttl: Micros,
    ) -> Result<Vec<u64>, StoreError> {
        self.settle_once(reservation, due, ttl)
    }
}

#[cfg(test)]
mod tests;
