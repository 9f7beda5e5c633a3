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

mod limits;
mod packed;
mod shard;

use std::collections::HashMap;
use std::future::{Future, ready};
use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::quality::{FoldHasher, RandomState};
use smallvec::SmallVec;
use tollgate_core::algorithm::{Answer, Bucket, Demand, State, TokenBucket, Window, start_on_the_clock};
use tollgate_core::limit::{Algorithm, Phase, Refill};
use tollgate_core::{Enforcement, Hit, Limit, Micros, Timestamp, Verdict, Verdicts};

use self::limits::{LimitId, Limits};
use self::packed::{Content, Packed};
use self::shard::{KeyHash, NewState, Shard, ShardBounds, Wide};
use super::{Store, StoreError};
use crate::clock::Clock;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

/// Buckets a shard is meant for; fewer buckets, fewer shards.
const BUCKETS_PER_SHARD: usize = 4_096;
const MOST_SHARDS: usize = 1_024;
/// The longest pause between two tries at a lock before the thread goes to sleep on it; what the lock guards
/// takes tens of nanoseconds.
const MOST_PAUSES: u32 = 64;

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
    /// Charges counted in an overflow bucket for want of room.
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
    seeds: [RandomState; 2],
    shards: Box<[Padded]>,
    limits: Limits,
    overflow: Mutex<Overflow>,
    /// Whether any overflow bucket is in use; spares the usual insertion that lock.
    overflowing: AtomicBool,
}

/// Two independently keyed hashes of the same bytes, in one go.
struct Both(FoldHasher<'static>, FoldHasher<'static>);

impl Hasher for Both {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
        self.1.write(bytes);
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.0.write_u64(number);
        self.1.write_u64(number);
    }

    fn finish(&self) -> u64 {
        self.0.finish() ^ self.1.finish()
    }
}

/// A shard and its lock, on a cache line of their own.
#[derive(Debug)]
#[repr(align(64))]
struct Padded(Mutex<Shard>);

/// The overflow bucket of each rule that has one, by the hash of the rule's part of the key.
type Overflow = HashMap<u128, State, RandomState>;

/// What is done to the buckets of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Charge,
    Peek,
    Refund,
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
            seeds: [RandomState::default(), RandomState::default()],
            shards: (0..shards).map(|_| Padded(Mutex::new(Shard::new(each)))).collect(),
            limits: Limits::new(),
            overflow: Mutex::default(),
            overflowing: AtomicBool::new(false),
        }
    }

    /// The clock it decides by.
    pub const fn clock(&self) -> &Clock {
        &self.clock
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
    fn run(&self, hits: &[Hit<'_>], operation: Operation, verdicts: &mut Verdicts) {
        let now = self.clock.now();
        match hits {
            [] => {}
            [hit] => {
                let hash = self.hash(&hit.key);
                let verdict = match hit.limit.algorithm() {
                    Algorithm::TokenBucket(refill) if operation == Operation::Charge => {
                        self.charge_token_bucket(refill, hash, hit, now)
                    }
                    _ => None,
                };
                let verdict = verdict.unwrap_or_else(|| {
                    let mut shard = self.lock(self.shard_of(hash));
                    self.one(&mut shard, hash, hit, operation, now)
                });
                verdicts.push(verdict);
            }
            hits => self.many(hits, operation, now, verdicts),
        }
    }

    /// The commonest decision by the shortest way: a token bucket that is there and whose limit has not changed.
    /// Only reading and writing its 16 bytes is done under the lock. `None` where [`one`](Self::one) has to look.
    #[inline]
    fn charge_token_bucket(
        &self,
        refill: &Refill,
        hash: KeyHash,
        hit: &Hit<'_>,
        now: Timestamp,
    ) -> Option<Verdict> {
        let id = self.limits.id(hit.limit)?;
        let mut shard = self.lock(self.shard_of(hash));
        let at = shard.find(hash)?;
        let mut bucket = TokenBucket::open(refill, shard.content(at).debt(id, refill)?, now)?;
        let answer = bucket.ask(hit.demand);
        if answer.allowed() && hit.demand.cost > 0 {
            bucket.take(hit.demand.cost);
            let packed = bucket.close().and_then(|debt| Packed::of_debt(debt, id))?;
            shard.overwrite(at, packed);
        }
        drop(shard);
        Some(bucket.verdict(answer))
    }

    /// One bucket of any kind under its shard's lock.
    fn one(
        &self,
        shard: &mut Shard,
        hash: KeyHash,
        hit: &Hit<'_>,
        operation: Operation,
        now: Timestamp,
    ) -> Verdict {
        let cost = hit.demand.cost;
        let mut overflow = None;
        let mut place = self.open(shard, &mut overflow, hash, hit, now, 0);
        let answer = place.ask(operation, hit.demand);
        match operation {
            Operation::Charge if answer.allowed() => {
                place.bucket.take(cost);
                place.write = Write::of(cost);
            }
            Operation::Charge if place.bucket.stepped() => place.write = Write::of_step(cost),
            Operation::Refund if place.known => {
                place.bucket.refund(cost);
                place.write = Write::of(cost);
            }
            _ => {}
        }
        let verdict = place.bucket.verdict(answer);
        self.close(shard, &mut overflow, hash, hit, place);
        verdict
    }

    /// Several buckets: all their shards are locked, in order, until the last one is written.
    fn many(&self, hits: &[Hit<'_>], operation: Operation, now: Timestamp, verdicts: &mut Verdicts) {
        let hashes: SmallVec<[KeyHash; 4]> = hits.iter().map(|hit| self.hash(&hit.key)).collect();
        let mut numbers: SmallVec<[usize; 4]> = hashes.iter().map(|hash| self.shard_of(*hash)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        // Fetch every slot into the cache first, so that nobody waits for memory while all locks are held.
        for hash in &hashes {
            std::hint::black_box(self.lock(self.shard_of(*hash)).find(*hash));
        }
        let mut guards: SmallVec<[MutexGuard<'_, Shard>; 4]> =
            numbers.iter().map(|number| self.lock(*number)).collect();
        let guard_of = |hash: KeyHash| {
            numbers.binary_search(&self.shard_of(hash)).expect("every hit's shard was locked")
        };
        if operation == Operation::Refund {
            let each = |(hit, hash): (&Hit<'_>, &KeyHash)| {
                self.one(&mut guards[guard_of(*hash)], *hash, hit, operation, now)
            };
            return verdicts.extend(hits.iter().zip(&hashes).map(each));
        }

        if operation == Operation::Charge {
            let shards = hashes.iter().map(|hash| guard_of(*hash)).collect();
            if self.charge_token_buckets(&mut guards, shards, &hashes, hits, now, verdicts).is_some() {
                return;
            }
        }

        // Ask everybody first. A key that comes twice is asked for the sum: its second hit shares the place.
        let mut overflow = None;
        let mut places: SmallVec<[Place<'_>; 4]> = SmallVec::new();
        let mut asked: SmallVec<[(usize, Answer); 4]> = SmallVec::new();
        for (index, (hit, hash)) in hits.iter().zip(&hashes).enumerate() {
            let place = match hashes[..index].iter().position(|earlier| earlier == hash) {
                Some(earlier) => asked[earlier].0,
                None => {
                    let shard = &mut guards[guard_of(*hash)];
                    places.push(self.open(shard, &mut overflow, *hash, hit, now, places.len()));
                    places.len() - 1
                }
            };
            let answer = places[place].ask(operation, hit.demand);
            if answer.allowed() || hit.enforcement == Enforcement::Enforce {
                places[place].asked_before += hit.demand.cost;
            }
            asked.push((place, answer));
        }
        let refuses = |(hit, (_, answer)): (&Hit<'_>, &(usize, Answer))| {
            hit.enforcement == Enforcement::Enforce && !answer.allowed()
        };
        let passes = !hits.iter().zip(&asked).any(refuses);

        for (hit, (place, answer)) in hits.iter().zip(&asked) {
            let place = &mut places[*place];
            let charged = answer.allowed() && (passes || hit.enforcement == Enforcement::Shadow);
            if operation == Operation::Charge && charged {
                place.bucket.take(hit.demand.cost);
                place.write = place.write.max(Write::of(hit.demand.cost));
            } else if operation == Operation::Charge && place.bucket.stepped() {
                place.write = place.write.max(Write::of_step(hit.demand.cost));
            }
            verdicts.push(place.bucket.verdict(*answer));
        }
        for (number, place) in places.into_iter().enumerate() {
            let opened_by = asked.iter().position(|(place, _)| *place == number).expect("opened by a hit");
            let hash = hashes[opened_by];
            self.close(&mut guards[guard_of(hash)], &mut overflow, hash, &hits[opened_by], place);
        }
    }

    /// The commonest request of several tiers by the shortest way: token buckets that are all there, and whose
    /// limits have not changed. `None`, and nothing done, where [`many`](Self::many) has to look.
    #[inline]
    fn charge_token_buckets(
        &self,
        guards: &mut [MutexGuard<'_, Shard>],
        shards: SmallVec<[usize; 4]>,
        hashes: &[KeyHash],
        hits: &[Hit<'_>],
        now: Timestamp,
        verdicts: &mut Verdicts,
    ) -> Option<()> {
        let mut opened: SmallVec<[(usize, LimitId, TokenBucket<'_>, Answer); 4]> = SmallVec::new();
        let mut passes = true;
        for (index, (hit, hash)) in hits.iter().zip(hashes).enumerate() {
            let Algorithm::TokenBucket(refill) = hit.limit.algorithm() else { return None };
            if hashes[..index].contains(hash) {
                return None;
            }
            let (id, shard) = (self.limits.id(hit.limit)?, &guards[shards[index]]);
            let at = shard.find(*hash)?;
            let bucket = TokenBucket::open(refill, shard.content(at).debt(id, refill)?, now)?;
            let answer = bucket.ask(hit.demand);
            passes &= answer.allowed() || hit.enforcement == Enforcement::Shadow;
            opened.push((at, id, bucket, answer));
        }
        let mut written: SmallVec<[Option<Packed>; 4]> = SmallVec::new();
        for (hit, (_, id, bucket, answer)) in hits.iter().zip(&mut opened) {
            let charged =
                answer.allowed() && hit.demand.cost > 0 && (passes || hit.enforcement == Enforcement::Shadow);
            written.push(if charged {
                bucket.take(hit.demand.cost);
                Some(bucket.close().and_then(|debt| Packed::of_debt(debt, *id))?)
            } else {
                None
            });
        }
        for ((shard, packed), (at, ..)) in shards.iter().zip(written).zip(&opened) {
            if let Some(packed) = packed {
                guards[*shard].overwrite(*at, packed);
            }
        }
        verdicts.extend(opened.iter().map(|(.., bucket, answer)| bucket.verdict(*answer)));
        Some(())
    }

    /// Finds a hit's bucket and brings it to now.
    ///
    /// `pending` buckets of the same request may still need a place of their own.
    #[inline]
    fn open<'h, 's>(
        &'s self,
        shard: &mut Shard,
        overflow: &mut Option<MutexGuard<'s, Overflow>>,
        hash: KeyHash,
        hit: &Hit<'h>,
        now: Timestamp,
        pending: usize,
    ) -> Place<'h> {
        let window = window(hit, hit.limit);
        let (state, home) = match shard.find(hash) {
            None => self.open_new(shard, overflow, hit, now, pending),
            Some(at) => {
                let packed = shard.content(at);
                match packed.content() {
                    Content::Wide(place) => open_wide(shard, place, hit.limit, now),
                    Content::Empty | Content::Narrow(_) => (self.unpacked(packed, hit), Home::Narrow { at }),
                }
            }
        };
        let known = !matches!(home, Home::New | Home::Overflow)
            && state.as_ref().is_some_and(|state| state.is_of(hit.limit));
        let bucket = Bucket::open(hit.limit, state, now, window);
        Place { bucket, home, known, asked_before: 0, write: Write::Nothing }
    }

    #[inline]
    fn unpacked(&self, packed: Packed, hit: &Hit<'_>) -> Option<State> {
        let Content::Narrow(id) = packed.content() else { return None };
        let limit = self.limits.get(id);
        // Where the clock's windows begin is only asked when the rule's windows changed.
        let start_of = |last| {
            if limit == hit.limit { last } else { start_on_the_clock(limit, self::window(hit, limit), last) }
        };
        Some(packed.state(limit, start_of))
    }

    /// A key that is not there begins with what its rule's overflow bucket has used, and stays in that bucket
    /// when there is no room.
    #[cold]
    fn open_new<'s>(
        &'s self,
        shard: &mut Shard,
        overflow: &mut Option<MutexGuard<'s, Overflow>>,
        hit: &Hit<'_>,
        now: Timestamp,
        pending: usize,
    ) -> (Option<State>, Home) {
        let is_new = |packed: Packed, wide: Option<&Wide>| self.as_good_as_new(packed, wide, now);
        let has_room = shard.make_room(pending + 1, is_new);
        if has_room && !self.overflowing.load(Ordering::Acquire) {
            return (None, Home::New);
        }
        let overflow = overflow.get_or_insert_with(|| self.overflow.lock());
        let name = self.overflow_hash(hit);
        if self.clock.lets_forget()
            && let Some(state) = overflow.get(&name)
            && state.is_as_good_as_new(hit.limit, now, window(hit, hit.limit))
        {
            overflow.remove(&name);
        }
        self.overflowing.store(!has_room || !overflow.is_empty(), Ordering::Release);
        (overflow.get(&name).cloned(), if has_room { Home::New } else { Home::Overflow })
    }

    /// Writes a bucket back, if it changed, and returns what was borrowed.
    #[inline]
    fn close<'s>(
        &'s self,
        shard: &mut Shard,
        overflow: &mut Option<MutexGuard<'s, Overflow>>,
        hash: KeyHash,
        hit: &Hit<'_>,
        place: Place<'_>,
    ) {
        let Place { bucket, home, write, .. } = place;
        if write == Write::Nothing {
            if let Home::Wide { place, limit, original } = home {
                shard.return_wide(
                    place,
                    Wide { state: original.unwrap_or_else(|| bucket.into_state()), limit },
                );
            }
            return;
        }
        shard.clock_steps += u64::from(bucket.stepped());
        let state = if write == Write::Step { Some(bucket.into_state()) } else { bucket.close() };
        let Some(state) = state else {
            if let Some(at) = shard.find(hash) {
                shard.remove(at);
            }
            return;
        };
        let narrow = self.limits.id(hit.limit).and_then(|id| Packed::narrow(&state, id, hit.limit));
        let at = |shard: &Shard| shard.find(hash).expect("it was found under this lock");
        match (home, narrow) {
            (Home::Narrow { at }, Some(packed)) if shard.holds(at, hash) => shard.overwrite(at, packed),
            (Home::Narrow { .. }, Some(packed)) => shard.overwrite(at(shard), packed),
            (Home::Narrow { .. }, None) => shard.widen(at(shard), Wide::new(state, hit.limit)),
            (Home::Wide { place, .. }, Some(packed)) => shard.narrow(at(shard), place, packed),
            (Home::Wide { place, .. }, None) => shard.return_wide(place, Wide::new(state, hit.limit)),
            (Home::New, Some(packed)) => shard.insert(hash, NewState::Narrow(packed)),
            (Home::New, None) => shard.insert(hash, NewState::Wide(Wide::new(state, hit.limit))),
            (Home::Overflow, _) => {
                shard.overflowed += 1;
                let overflow = overflow.get_or_insert_with(|| self.overflow.lock());
                overflow.insert(self.overflow_hash(hit), state);
            }
        }
    }

    /// Whether a state may be forgotten. With injected time none may: the clock may go back to it.
    fn as_good_as_new(&self, packed: Packed, wide: Option<&Wide>, now: Timestamp) -> bool {
        if !self.clock.lets_forget() {
            return false;
        }
        let narrow;
        let (state, limit) = match (packed.content(), wide) {
            (_, Some(wide)) => (&wide.state, &*wide.limit),
            (Content::Narrow(id), None) => {
                let limit = self.limits.get(id);
                narrow = packed.state(limit, |last| last);
                (&narrow, limit)
            }
            _ => return false,
        };
        if let Algorithm::FixedWindow { phase: Phase::Spread, window, .. } = limit.algorithm() {
            // Without the key nobody knows where its windows begin, but none outlives its last write by more.
            return state.last().after(*window) <= now;
        }
        state.is_as_good_as_new(limit, now, Window::Own)
    }

    #[inline]
    fn hash(&self, key: &impl Hash) -> KeyHash {
        let [first, second] = &self.seeds;
        let mut both = Both(first.build_hasher(), second.build_hasher());
        key.hash(&mut both);
        KeyHash(u128::from(both.0.finish()) << 64 | u128::from(both.1.finish()))
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

/// A hit's bucket while a decision is being made.
#[derive(Debug)]
struct Place<'h> {
    bucket: Bucket<'h>,
    home: Home,
    /// Whether the key itself was there, rather than its overflow bucket or nothing.
    known: bool,
    /// What earlier hits of the same request asked of the same key.
    asked_before: u64,
    write: Write,
}

/// What of a bucket is to be written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Write {
    Nothing,
    /// Only that the clock went back.
    Step,
    Change,
}

/// Where the state came from, and where it goes.
#[derive(Debug)]
enum Home {
    /// A slot.
    Narrow { at: usize },
    /// The heap. `original` is what goes back there if nothing changes, where the bucket itself cannot tell.
    Wide { place: u32, limit: Box<Limit>, original: Option<State> },
    /// Nowhere yet; there is room.
    New,
    /// The rule's overflow bucket.
    Overflow,
}

impl Write {
    fn of(cost: u64) -> Self {
        if cost == 0 { Write::Nothing } else { Write::Change }
    }

    fn of_step(cost: u64) -> Self {
        if cost == 0 { Write::Nothing } else { Write::Step }
    }
}

impl Place<'_> {
    #[inline]
    fn ask(&self, operation: Operation, demand: Demand) -> Answer {
        if operation == Operation::Refund {
            return Answer::Pass { delay: Micros::ZERO };
        }
        let cost = if demand.cost == 0 { 0 } else { demand.cost.saturating_add(self.asked_before) };
        self.bucket.ask(Demand { cost, ..demand })
    }
}

/// Takes a wide state out. A log is moved, not copied, unless opening it would change it.
#[cold]
fn open_wide(shard: &mut Shard, place: u32, limit: &Limit, now: Timestamp) -> (Option<State>, Home) {
    let wide = shard.borrow_wide(place);
    let comes_back_as_it_was = matches!(wide.state, State::SlidingWindowLog(_))
        && wide.state.is_of(limit)
        && wide.state.last() <= now;
    let original = (!comes_back_as_it_was).then(|| wide.state.clone());
    (Some(wide.state), Home::Wide { place, limit: wide.limit, original })
}

#[inline]
fn window(hit: &Hit<'_>, limit: &Limit) -> Window {
    match limit.algorithm() {
        Algorithm::FixedWindow { phase: Phase::Spread, window, .. } => {
            Window::Spread(hit.key.spread(*window))
        }
        _ => Window::Own,
    }
}

/// Every call is done when it returns; what it returns is a future that is ready.
impl Store for MemoryStore {
    #[inline]
    fn charge(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.run(hits, Operation::Charge, verdicts);
        ready(Ok(()))
    }

    fn peek(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.run(hits, Operation::Peek, verdicts);
        ready(Ok(()))
    }

    fn refund(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.run(hits, Operation::Refund, verdicts);
        ready(Ok(()))
    }

    async fn reset(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<(), StoreError> {
        for hit in hits {
            let hash = self.hash(&hit.key);
            let mut shard = self.lock(self.shard_of(hash));
            if let Some(at) = shard.find(hash) {
                shard.remove(at);
            }
        }
        let fresh = |hit: &Hit<'_>| {
            let bucket = Bucket::open(hit.limit, None, self.clock.now(), window(hit, hit.limit));
            bucket.verdict(Answer::Pass { delay: Micros::ZERO })
        };
        verdicts.extend(hits.iter().map(fresh));
        Ok(())
    }

    async fn inspect(&self, hit: &Hit<'_>) -> Result<Option<State>, StoreError> {
        let hash = self.hash(&hit.key);
        let shard = self.lock(self.shard_of(hash));
        let state = shard.find(hash).and_then(|at| {
            let packed = shard.content(at);
            match packed.content() {
                Content::Wide(place) => shard.wide_state(place).cloned(),
                Content::Empty | Content::Narrow(_) => self.unpacked(packed, hit),
            }
        });
        let now = self.clock.now();
        let is_new = |state: &State| {
            !state.is_of(hit.limit) || state.is_as_good_as_new(hit.limit, now, window(hit, hit.limit))
        };
        let state = state.filter(|state| !is_new(state));
        Ok(state)
    }
}

#[cfg(test)]
mod tests;
