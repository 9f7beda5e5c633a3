//! Buckets in this process: the embedded default.
//!
//! Keys are spread over shards by a keyed 128-bit hash; each shard is a flat table behind a short lock. A request
//! locks the shards of all its rows, in ascending order, asks every bucket, charges all or none, and unlocks: no other
//! request sees half of it. Nothing is allocated for an ordinary decision. Keys without attributes, which all requests
//! share, are in the highest shards, so the most contended locks are taken last and held shortest.
//!
//! The store is bounded. Idle buckets are evicted a few at a time while new ones come in. When that is not enough, a new
//! key is counted in its rule's **overflow bucket**, which all such keys share. A key that gets a slot later starts with
//! what the overflow bucket has used, so running out of memory never gives a caller a fresh quota.

mod bucket;
mod limits;
mod packed;
mod reservations;
mod run;
mod table;

use std::collections::HashMap;
use std::future::{Future, ready};

use foldhash::quality::RandomState;
use tollgate_core::algorithm::State;
use tollgate_core::{Key, KeyHash, Micros, Rule, StoreError, Timestamp};

use self::limits::Limits;
use self::packed::Content;
use self::reservations::Reservations;
pub(crate) use self::run::Charged;
use self::table::{Table, TableBounds, Wide};
use super::{Call, Store, window};
use crate::clock::Clock;
use crate::reserve::{Reservation, ReservationId, ReservationLimit, SettleError, Settled};
use crate::sync::{AtomicBool, Mutex, MutexGuard};

/// Buckets a shard is meant for; fewer buckets, fewer shards.
const BUCKETS_PER_SHARD: usize = 4_096;
const MAX_SHARDS: usize = 1_024;
/// The longest pause between two tries at a lock before the thread sleeps on it, in spins; a critical section takes tens
/// of nanoseconds.
const MAX_PAUSES: u32 = 64;
/// How often a store that stays full is logged.
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
    /// Idle buckets that were evicted.
    pub evicted: u64,
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
/// assert!(gate.allow("user:123").await.allowed());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
    shards: Box<[Padded]>,
    limits: Limits,
    overflow: Mutex<Overflow>,
    /// Whether any overflow bucket is in use; spares the usual insertion that lock.
    overflowing: AtomicBool,
    reservations: Mutex<Reservations>,
}

/// A table and its lock, on cache lines of their own.
#[derive(Debug)]
#[repr(align(64))]
struct Padded(Mutex<Table>);

/// Where keys are counted for which there is no room.
#[derive(Debug, Default)]
struct Overflow {
    /// The overflow bucket of each rule that has one, by the digest of the rule's keys.
    buckets: HashMap<[u64; 2], Wide, RandomState>,
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
                 memory, or find the client that invents keys"
            );
        }
    }
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
        let shards = (bounds.buckets / BUCKETS_PER_SHARD).clamp(1, MAX_SHARDS);
        Self::with_shards(clock, bounds, 1 << shards.ilog2())
    }

    /// The same with a given number of shards, a power of two; small stores have one otherwise.
    #[cfg(shuttle)]
    pub fn sharded(clock: Clock, bounds: Bounds, shards: usize) -> Self {
        Self::with_shards(clock, bounds, shards)
    }

    fn with_shards(clock: Clock, bounds: Bounds, shards: usize) -> Self {
        let each = TableBounds { buckets: (bounds.buckets / shards).max(1), bytes: bounds.bytes / shards };
        MemoryStore {
            clock,
            shards: (0..shards).map(|_| Padded(Mutex::new(Table::new(each)))).collect(),
            limits: Limits::new(),
            overflow: Mutex::default(),
            overflowing: AtomicBool::new(false),
            reservations: Mutex::default(),
        }
    }

    #[inline]
    fn run_call(&self, call: &mut Call<'_>) -> Timestamp {
        match call.reservation {
            None => self.run_rows(call, call.rules, |_| true, None),
            Some(_) => self.run_reserving(call),
        }
    }

    /// Starts to fetch the slots of all rows into the cache, so that many decisions wait for memory together.
    fn prefetch(&self, calls: &[Call<'_>]) {
        for tier in calls.iter().flat_map(|call| call.tiers.iter()) {
            self.lock(self.shard_of(tier.hash)).prefetch(tier.hash);
        }
    }

    /// What it holds and has seen.
    pub fn stats(&self) -> MemoryStats {
        self.shards.iter().map(|shard| shard.0.lock()).fold(MemoryStats::default(), |sum, table| {
            let counts = table.counts();
            MemoryStats {
                buckets: sum.buckets + table.len(),
                bytes: sum.bytes + table.bytes(),
                evicted: sum.evicted + counts.evicted,
                overflowed: sum.overflowed + counts.overflowed,
                clock_steps: sum.clock_steps + counts.clock_steps,
            }
        })
    }

    /// The shard of a key: the highest bits of its hash.
    #[inline]
    fn shard_of(&self, hash: KeyHash) -> usize {
        (((hash.0 >> 96) as u64 * self.shards.len() as u64) >> 32) as usize
    }

    #[inline]
    fn lock(&self, shard: usize) -> MutexGuard<'_, Table> {
        let mutex = &self.shards[shard].0;
        mutex.try_lock().unwrap_or_else(|| lock_contended(mutex))
    }
}

#[cold]
fn lock_contended(mutex: &Mutex<Table>) -> MutexGuard<'_, Table> {
    let mut pauses = 1;
    while pauses <= MAX_PAUSES {
        // Back off twice as long each time, so that the holder keeps the cache line.
        (0..pauses).for_each(|_| std::hint::spin_loop());
        pauses *= 2;
        if let Some(guard) = mutex.try_lock() {
            return guard;
        }
    }
    mutex.lock()
}

/// Every call is done when it returns; its future is ready.
impl Store for MemoryStore {
    #[inline]
    fn run(&self, call: &mut Call<'_>) -> impl Future<Output = Timestamp> + Send {
        ready(self.run_call(call))
    }

    #[inline]
    fn run_now(&self, call: &mut Call<'_>) -> Option<Timestamp> {
        Some(self.run_call(call))
    }

    fn waits(&self) -> bool {
        false
    }

    fn run_many(&self, calls: &mut [Call<'_>]) -> impl Future<Output = Vec<Timestamp>> + Send {
        self.prefetch(calls);
        ready(calls.iter_mut().map(|call| self.run_call(call)).collect())
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    async fn inspect(&self, rule: &Rule, key: Key<'_>) -> Result<Option<State>, StoreError> {
        let Some(limit) = rule.limit() else { return Ok(None) };
        let hash = crate::key_seeds().hash(key);
        let mut table = self.lock(self.shard_of(hash));
        let state = table.find(hash).and_then(|at| {
            let packed = table.content(at);
            match packed.content() {
                Content::Wide(place) => table.wide_state(place).cloned(),
                Content::Empty | Content::Narrow(_) => self.inspected(packed, key),
            }
        });
        let now = self.clock.now();
        let is_idle = |state: &State| !state.is_of(limit) || state.is_idle(limit, now, window(key, limit));
        Ok(state.filter(|state| !is_idle(state)))
    }

    fn claim_reservation(&self, reservation: &Reservation) -> Result<(), ReservationLimit> {
        self.reservations.lock().claim(reservation, self.clock.now())
    }

    fn drop_reservation(&self, id: ReservationId) {
        self.reservations.lock().remove(id);
    }

    async fn settle(&self, id: ReservationId, actual: u64) -> Result<Settled, SettleError> {
        self.settle_reservation(id, actual)
    }
}

#[cfg(test)]
mod tests;
