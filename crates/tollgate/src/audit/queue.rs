//! Refusals that wait to be written.
//!
//! A decision adds its refusal to a table that is there already and goes on: no I/O, no waiting, and nothing is
//! allocated unless it is the first of its kind in this second. A kind is a bucket with one user, address and endpoint,
//! so every refusal is found by each of them, and a flood of equal requests is one growing count. A caller who sends
//! ever new endpoints cannot fill the tables: a bucket has at most [`MAX_KINDS`] kinds per second and table, and further
//! kinds share [`LANES`] records that keep only what their refusals have in common. The tables have a bound, too; what finds
//! no room is counted as dropped.
//!
//! ```text
//! check -> shard: (bucket, kind or lane, second) -> count    drain: swap the table for an empty one -> carried -> writer
//! ```

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate_core::{Descriptor, KeyHash, Status, Timestamp, Value};

use super::{Violation, ViolationStats};
use crate::key_seeds::key_seeds;
use crate::limiter::Answer;

const SHARDS: usize = 16;
/// The most kinds of refusals of one bucket that have a record of their own in one second: user, address and endpoint
/// together make a kind.
const MAX_KINDS: u32 = 256;
/// Records per bucket and second that the kinds beyond [`MAX_KINDS`] share.
const LANES: u64 = 8;

/// Refusals that are not written down yet, with a bound; clones share them.
///
/// ```
/// use tollgate::{Descriptor, Limiter, MemoryStore, Violations, rules};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rules = rules::parse("rules.yaml", "rules: [{ name: user, key: 'user:{user_id}', limit: 1/h }]")?;
/// let violations = Violations::default();
/// let limiter = Limiter::new(rules, MemoryStore::new()).with_violations(violations.clone());
/// let request = Descriptor::new().with("user_id", "42");
/// for _ in 0..4 {
///     limiter.check(&request).await;
/// }
/// let recorded = violations.drain_all();
/// assert_eq!(recorded.iter().map(|violation| violation.count).sum::<u64>(), 3);
/// assert_eq!(recorded[0].bucket_key, "user:42");
/// # Ok(()) }
/// ```
///
/// A database's writer empties it where there is one; others drain it and say with
/// [`settle`](Self::settle) what became of it.
#[derive(Clone)]
pub struct Violations(Arc<Queue>);

/// What became of refusals that were drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteOutcome {
    /// They are on record.
    Written,
    /// They are lost.
    Dropped,
}

struct Queue {
    /// The most records in each shard, and in what is carried over.
    room: usize,
    shards: [Padded; SHARDS],
    /// What was drained before its second was over, and an empty table to exchange for a full one.
    carried: Mutex<(Table, Table)>,
    written: AtomicU64,
    dropped: AtomicU64,
    write_error: Mutex<Option<String>>,
    half_full: Notify,
}

/// A shard and its lock, on cache lines of their own.
#[repr(align(128))]
struct Padded(Mutex<Shard>);

struct Shard {
    table: Table,
    /// How many kinds each bucket has in each second of the table.
    kinds: Kinds,
    produced: u64,
    dropped: u64,
}

type Table = HashMap<Place, Tally, RandomState>;
type Kinds = HashMap<(u128, i64), u32, RandomState>;

/// What one record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    /// A keyed hash; the same 128 bits count as the same bucket.
    bucket: u128,
    within: Within,
    second: i64,
}

/// Which refusals of a bucket a record counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Within {
    /// Those with the same user, address and endpoint, by a keyed hash of them.
    Kind(u64),
    /// Those of kinds without a record of their own.
    Lane(u64),
}

struct Tally {
    /// The first refusal, and what the others share with it.
    violation: Box<Violation>,
    /// How many there are; here, so that another one need not look into the box.
    count: u64,
    /// A hash of the facts; the same as the last one's means that nothing new is to be compared.
    facts: u64,
}

impl Default for Violations {
    /// Room for 32,768 records.
    fn default() -> Self {
        Violations::with_room(32_768)
    }
}

impl Violations {
    /// Room for about this number of records. As many again may be on their way to the writer.
    pub fn with_room(records: usize) -> Self {
        let room = records.div_ceil(SHARDS).max(1);
        let table = || Table::with_capacity_and_hasher(room, RandomState::default());
        let shard = |_| {
            Padded(Mutex::new(Shard { table: table(), kinds: Kinds::default(), produced: 0, dropped: 0 }))
        };
        Violations(Arc::new(Queue {
            room,
            shards: std::array::from_fn(shard),
            carried: Mutex::new((Table::default(), table())),
            written: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            write_error: Mutex::default(),
            half_full: Notify::new(),
        }))
    }

    /// Adds a refusal. Waits only for another refusal that is being added.
    pub(crate) fn record(&self, request: &Descriptor<'_>, answer: &Answer) {
        let Some(binding) = answer.binding_limit() else { return };
        let queue = &*self.0;
        let KeyHash(bucket) = match answer.status() {
            // A `deny` rule has no bucket, so its row has no hash.
            Status::Denied => key_seeds().hash(answer.rules().rule(binding.rule).key(request)),
            _ => binding.hash,
        };
        let (caller, facts) = queue.hashes(request);
        let second = second(answer.at());
        let shard = &mut *queue.shard(bucket).lock();
        shard.produced += 1;
        let mut place = Place { bucket, within: Within::Kind(facts), second };
        if let Some(tally) = shard.table.get_mut(&place) {
            return tally.add(request, facts);
        }
        let kinds = shard.kinds.get(&(bucket, second)).copied().unwrap_or(0);
        if kinds >= MAX_KINDS {
            place.within = Within::Lane(caller % LANES);
            if let Some(tally) = shard.table.get_mut(&place) {
                return tally.add(request, facts);
            }
        }
        if shard.table.len() >= queue.room {
            shard.dropped += 1;
            return;
        }
        if kinds < MAX_KINDS {
            shard.kinds.insert((bucket, second), kinds + 1);
        }
        let violation = Box::new(Violation::new(request, answer));
        shard.table.insert(place, Tally { violation, count: 1, facts });
        if shard.table.len() == queue.room.div_ceil(2) {
            queue.half_full.notify_one();
        }
    }

    /// Takes out the records whose second is over at `now`. Those of the second that runs stay, so that each kind
    /// has one record for each second, unless there are more of them than there is room.
    pub fn drain(&self, now: Timestamp) -> Vec<Violation> {
        self.0.drain(second(now))
    }

    /// Takes out every record.
    pub fn drain_all(&self) -> Vec<Violation> {
        self.0.drain(i64::MAX)
    }

    /// Reports the outcome of a number of refusals that were drained.
    pub fn settle(&self, refusals: u64, fate: WriteOutcome) {
        let counter = match fate {
            WriteOutcome::Written => &self.0.written,
            WriteOutcome::Dropped => &self.0.dropped,
        };
        counter.fetch_add(refusals, Ordering::Relaxed);
    }

    /// How many refusals there were, and what became of them.
    pub fn stats(&self) -> ViolationStats {
        // What is settled is read before what is produced: the difference is never negative.
        let written = self.0.written.load(Ordering::Acquire);
        let mut dropped = self.0.dropped.load(Ordering::Acquire);
        let mut produced = 0;
        for Padded(shard) in &self.0.shards {
            let shard = shard.lock();
            dropped += shard.dropped;
            produced += shard.produced;
        }
        ViolationStats { produced, written, dropped, pending: produced.saturating_sub(written + dropped) }
    }

    /// Why the last access of the writer to its database failed, without a password; `None` after one that succeeded.
    pub fn write_error(&self) -> Option<String> {
        self.0.write_error.lock().clone()
    }

    #[cfg(feature = "sql")]
    pub(super) fn set_write_error(&self, error: Option<&crate::sql::DatabaseError>) {
        let text = error.map(|error| match error.reason() {
            Some(reason) => format!("{error}: {reason}"),
            None => error.to_string(),
        });
        *self.0.write_error.lock() = text;
    }

    /// Whether every table is less than half full.
    #[cfg(feature = "sql")]
    pub(super) fn is_half_empty(&self) -> bool {
        self.0.shards.iter().all(|Padded(shard)| shard.lock().table.len() < self.0.room.div_ceil(2))
    }

    /// Waits until a table is half full.
    #[cfg(feature = "sql")]
    pub(super) async fn half_full(&self) {
        self.0.half_full.notified().await;
    }
}

impl Queue {
    fn shard(&self, hash: u128) -> &Mutex<Shard> {
        &self.shards[(hash >> 96) as usize % SHARDS].0
    }

    /// Hashes of who asks, and of everything that is recorded about the request.
    fn hashes(&self, request: &Descriptor<'_>) -> (u64, u64) {
        let mut hasher = key_seeds().hasher();
        for name in ["user_id", "ip"] {
            feed(request.get(name), &mut hasher);
        }
        let caller = hasher.finish();
        feed(request.get("endpoint"), &mut hasher);
        (caller, hasher.finish())
    }

    fn drain(&self, running: i64) -> Vec<Violation> {
        let mut carried = self.carried.lock();
        let (carried, empty) = &mut *carried;
        for Padded(shard) in &self.shards {
            shard.lock().take(empty);
            for (place, tally) in empty.drain() {
                match carried.get_mut(&place) {
                    Some(known) => known.merge(tally),
                    None => drop(carried.insert(place, tally)),
                }
            }
        }
        let crowded = carried.len() >= self.room * SHARDS;
        let over = carried.extract_if(|place, _| place.second < running || crowded);
        over.map(|(_, tally)| Violation { count: tally.count, ..*tally.violation }).collect()
    }
}

impl Shard {
    /// Exchanges the table for an empty one, in which each bucket may have [`MAX_KINDS`] kinds again: those that return
    /// in the same second join their records in what is carried.
    fn take(&mut self, empty: &mut Table) {
        mem::swap(&mut self.table, empty);
        self.kinds.clear();
    }
}

impl Tally {
    fn add(&mut self, request: &Descriptor<'_>, facts: u64) {
        self.count += 1;
        if self.facts != facts {
            self.facts = facts;
            self.violation.keep_common(request);
        }
    }

    /// Adds the refusals of another part of the same second.
    fn merge(&mut self, other: Tally) {
        self.count += other.count;
        self.violation.merge(*other.violation);
    }
}

/// The numbers only: callers are personal data.
impl fmt::Debug for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Violations").field(&self.stats()).finish()
    }
}

fn feed(value: Option<&Value<'_>>, hasher: &mut impl Hasher) {
    match value {
        None => hasher.write_u8(0),
        Some(Value::Borrowed(text)) => text.hash(hasher),
        Some(Value::Owned(text)) => text.hash(hasher),
        Some(Value::Ip(address)) => address.hash(hasher),
    }
}

fn second(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(1_000_000)
}

#[cfg(test)]
mod tests;
