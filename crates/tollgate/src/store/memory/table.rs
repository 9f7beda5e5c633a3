//! The table of one shard: flat, with 32-byte slots and linear probing.
//!
//! A slot is the 128-bit hash of a key and 16 bytes of state; the key itself is not stored. Beside the slots lies
//! one byte of each hash. The search runs over those bytes, which stay cached, and looks at a slot only when its
//! byte matches: a decision on a key that is not cached costs about one miss. The table grows by an eighth at a time, in
//! chunks of one size, so that the allocator is never left with outgrown tables. Every insertion looks at a few slots in
//! turn and evicts the idle ones, so a table that is full again has been swept once.
//!
//! A key that is used twice in a row is the table's *hot* key: its state moves next to the lock, so that threads that
//! contend for it exchange one cache line instead of three. It moves back when another key becomes hot, or before slots
//! are moved.

use tollgate_core::algorithm::State;
use tollgate_core::{KeyHash, Limit};

use super::packed::{Content, Packed};

/// Where in a table of `slots` the search begins.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the low half, then a number below `slots`")]
const fn home(hash: KeyHash, slots: usize) -> usize {
    (((hash.0 as u32) as u64 * slots as u64) >> 32) as usize
}

/// The byte of the hash that is kept beside the slots; never 0, which marks an empty slot.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "one byte is wanted")]
const fn tag(hash: KeyHash) -> u8 {
    (hash.0 >> 32) as u8 | 1
}

#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
struct Slot {
    hash: KeyHash,
    state: Packed,
}

const FREE: Slot = Slot { hash: KeyHash(0), state: Packed::EMPTY };
/// Slots are allocated in chunks of this many.
const CHUNK: usize = 64;
/// A slot and its tag.
const SLOT_BYTES: usize = size_of::<Slot>() + 1;
/// Slots looked at by each insertion.
const SWEPT_PER_INSERT: usize = 8;
/// Slots looked at by an insertion into a table that may not grow.
const SWEPT_WHEN_FULL: usize = 32;

/// Boxed one by one: a longer list of chunks moves none of them, and leaves no outgrown table behind.
type Chunk = Box<[Slot; CHUNK]>;

/// What one shard may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableBounds {
    pub(super) buckets: usize,
    pub(super) bytes: usize,
}

/// What one shard holds. The order of the fields is that in memory: the hot key shares a cache line with the lock around
/// the table, and what every other decision reads is on the next line.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Table {
    /// The hot key and its state; an empty state where no key is hot. The key's slot is stale meanwhile.
    hot: Slot,
    /// The slot of the hot key.
    hot_at: usize,
    /// The slot of the key that was used last.
    last_at: usize,
    /// One byte of the hash in each slot, 0 where it is empty.
    tags: Box<[u8]>,
    chunks: Vec<Chunk>,
    len: usize,
    rest: Box<Rest>,
}

/// What few decisions need.
#[derive(Debug)]
struct Rest {
    wide: Vec<WidePlace>,
    free_places: Vec<u32>,
    wide_bytes: usize,
    cursor: usize,
    bounds: TableBounds,
    counts: Counts,
}

/// What a table has counted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Idle states that were evicted.
    pub(super) evicted: u64,
    /// States that were shifted because the clock went back.
    pub(super) clock_steps: u64,
    /// Decisions that an overflow bucket made for a new key.
    pub(super) overflowed: u64,
}

/// Where the state of a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Hot,
    Slot(usize),
}

/// A state that does not fit into a slot. It is gone for the moment while a decision looks at it.
#[derive(Debug)]
pub(super) struct Wide {
    pub(super) state: State,
    pub(super) limit: Box<Limit>,
}

#[derive(Debug, Default)]
struct WidePlace(Option<Box<Wide>>);

impl Table {
    pub(super) fn new(bounds: TableBounds) -> Self {
        let rest = Rest {
            wide: Vec::new(),
            free_places: Vec::new(),
            wide_bytes: 0,
            cursor: 0,
            bounds,
            counts: Counts::default(),
        };
        let (tags, chunks) = (Box::default(), Vec::new());
        Table { hot: FREE, hot_at: 0, last_at: usize::MAX, tags, chunks, len: 0, rest: Box::new(rest) }
    }

    /// What it has counted.
    pub(super) fn counts(&self) -> Counts {
        self.rest.counts
    }

    pub(super) fn count_clock_step(&mut self, steps: u64) {
        self.rest.counts.clock_steps += steps;
    }

    pub(super) fn count_overflowed(&mut self, decisions: u64) {
        self.rest.counts.overflowed += decisions;
    }

    /// The state of a key, and where it is.
    #[inline]
    pub(super) fn look(&self, hash: KeyHash) -> Option<(Place, Packed)> {
        if self.hot.hash == hash && !self.hot.state.is_empty() {
            return Some((Place::Hot, self.hot.state));
        }
        let at = self.search(hash)?;
        Some((Place::Slot(at), self.slot(at).state))
    }

    /// Writes the state of a key that [`look`](Self::look) found at this place; an insertion may have moved it since. A key
    /// that is used twice in a row becomes hot.
    #[inline(always)]
    pub(super) fn write(&mut self, place: Place, hash: KeyHash, state: Packed) {
        match place {
            Place::Hot if self.hot.hash == hash => self.hot.state = state,
            Place::Slot(at) if self.holds(at, hash) && at == self.last_at => {
                self.cool();
                self.hot = Slot { hash, state };
                self.hot_at = at;
            }
            Place::Slot(at) if self.holds(at, hash) => {
                self.last_at = at;
                self.slot_mut(at).state = state;
            }
            Place::Hot | Place::Slot(_) => self.write_moved(hash, state),
        }
    }

    #[cold]
    fn write_moved(&mut self, hash: KeyHash, state: Packed) {
        let at = self.find(hash).expect("it was found under this lock");
        self.slot_mut(at).state = state;
    }

    /// Starts to fetch what a search for a key reads first.
    #[inline]
    pub(super) fn prefetch(&self, hash: KeyHash) {
        if !self.tags.is_empty() {
            let at = home(hash, self.tags.len());
            prefetch(&raw const self.tags[at]);
            prefetch(&raw const *self.slot(at));
        }
    }

    /// Moves the hot key's state back to its slot.
    #[inline]
    fn cool(&mut self) {
        if !self.hot.state.is_empty() {
            let (at, state) = (self.hot_at, self.hot.state);
            self.slot_mut(at).state = state;
            self.hot = FREE;
        }
    }

    /// Calls `each` with every state.
    pub(super) fn for_each_state(&mut self, each: impl FnMut(Packed)) {
        self.cool();
        self.chunks.iter().flat_map(|chunk| chunk.iter()).map(|slot| slot.state).for_each(each);
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// What the shard occupies.
    pub(super) fn bytes(&self) -> usize {
        self.tags.len() * SLOT_BYTES + self.rest.wide_bytes
    }

    /// Where a key's slot is. No key is hot afterwards, so slots may be read, written and moved.
    #[inline]
    pub(super) fn find(&mut self, hash: KeyHash) -> Option<usize> {
        self.cool();
        self.last_at = usize::MAX;
        self.search(hash)
    }

    #[inline(never)]
    fn search(&self, hash: KeyHash) -> Option<usize> {
        if self.tags.is_empty() {
            return None;
        }
        let tag = tag(hash);
        let mut at = home(hash, self.tags.len());
        loop {
            let found = self.tags[at];
            if found == 0 {
                return None;
            }
            if found == tag && self.slot(at).hash == hash {
                return Some(at);
            }
            at = self.next(at);
        }
    }

    /// Whether a slot is still this key's.
    #[inline]
    fn holds(&self, at: usize, hash: KeyHash) -> bool {
        at < self.tags.len() && self.tags[at] != 0 && self.slot(at).hash == hash
    }

    #[inline]
    pub(super) fn content(&self, at: usize) -> Packed {
        self.slot(at).state
    }

    /// Takes a wide state out, to be put back when the decision is made.
    pub(super) fn borrow_wide(&mut self, place: u32) -> Wide {
        let wide = self.rest.wide[place as usize].0.take().expect("one decision at a time holds the shard");
        self.rest.wide_bytes -= wide.bytes();
        *wide
    }

    /// Puts a wide state back that has changed.
    pub(super) fn return_wide(&mut self, place: u32, mut wide: Wide) {
        let others = self.tags.len() * SLOT_BYTES + self.rest.wide_bytes;
        wide.shorten_to(self.rest.bounds.bytes.saturating_sub(others));
        self.restore_wide(place, wide);
    }

    /// Puts a wide state back as it was.
    pub(super) fn restore_wide(&mut self, place: u32, wide: Wide) {
        self.rest.wide_bytes += wide.bytes();
        self.rest.wide[place as usize].0 = Some(Box::new(wide));
    }

    /// Turns a narrow slot wide.
    pub(super) fn widen(&mut self, at: usize, wide: Wide) {
        let place = self.new_wide_place();
        self.return_wide(place, wide);
        self.slot_mut(at).state = Packed::wide(place);
    }

    /// Turns a wide slot, whose state was taken out, narrow.
    pub(super) fn narrow(&mut self, at: usize, place: u32, state: Packed) {
        self.rest.free_places.push(place);
        self.slot_mut(at).state = state;
    }

    /// What is kept in a wide place.
    pub(super) fn wide_state(&self, place: u32) -> Option<&State> {
        self.rest.wide[place as usize].0.as_ref().map(|wide| &wide.state)
    }

    /// Sweeps a little, and more when the table may not grow.
    pub(super) fn make_room(&mut self, is_idle: impl Fn(Packed, Option<&Wide>) -> bool) {
        self.sweep(SWEPT_PER_INSERT, &is_idle);
        if !self.has_room(1, Wide::SMALLEST) {
            self.sweep(SWEPT_WHEN_FULL, &is_idle);
        }
    }

    /// Whether so many new keys, each with so much on the heap, are within bounds.
    pub(super) fn has_room(&self, keys: usize, wide_bytes: usize) -> bool {
        let len = self.len + keys;
        let slots = if len * 8 > self.tags.len() * 7 { grown(self.tags.len()) } else { self.tags.len() };
        len <= self.rest.bounds.buckets
            && slots * SLOT_BYTES + self.rest.wide_bytes + keys * wide_bytes <= self.rest.bounds.bytes
    }

    /// Adds a key that is not there, for which [`has_room`](Self::has_room).
    pub(super) fn insert(&mut self, hash: KeyHash, state: NewState) {
        self.cool();
        if (self.len + 1) * 8 > self.tags.len() * 7 {
            self.resize(grown(self.tags.len()));
        }
        let state = match state {
            NewState::Narrow(packed) => packed,
            NewState::Wide(wide) => {
                let place = self.new_wide_place();
                self.return_wide(place, wide);
                Packed::wide(place)
            }
        };
        self.place(Slot { hash, state });
        self.len += 1;
    }

    fn new_wide_place(&mut self) -> u32 {
        self.rest.free_places.pop().unwrap_or_else(|| {
            self.rest.wide.push(WidePlace::default());
            u32::try_from(self.rest.wide.len() - 1).expect("a shard has fewer than 2^32 buckets")
        })
    }

    /// Removes the bucket in a slot, and its wide state if it has one.
    pub(super) fn remove(&mut self, at: usize) {
        self.cool();
        if let Content::Wide(place) = self.slot(at).state.content() {
            if let Some(wide) = self.rest.wide[place as usize].0.take() {
                self.rest.wide_bytes -= wide.bytes();
            }
            self.rest.free_places.push(place);
        }
        self.len -= 1;
        // Close the gap: whatever was pushed past it moves back, so that no tombstones are needed.
        let mut gap = at;
        let mut next = self.next(at);
        while self.tags[next] != 0 {
            let home = home(self.slot(next).hash, self.tags.len());
            if self.distance(home, next) >= self.distance(gap, next) {
                *self.slot_mut(gap) = *self.slot(next);
                self.tags[gap] = self.tags[next];
                gap = next;
            }
            next = self.next(next);
        }
        *self.slot_mut(gap) = FREE;
        self.tags[gap] = 0;
    }

    /// Looks at the next few slots in turn and evicts what is idle.
    pub(super) fn sweep(&mut self, steps: usize, is_idle: impl Fn(Packed, Option<&Wide>) -> bool) {
        self.cool();
        for _ in 0..steps.min(self.tags.len()) {
            if self.rest.cursor >= self.tags.len() {
                self.rest.cursor = 0;
                self.shrink();
            }
            let at = self.rest.cursor;
            let state = self.slot(at).state;
            let droppable = match state.content() {
                Content::Empty => false,
                Content::Narrow(_) => is_idle(state, None),
                // A wide state that a decision holds right now is in use.
                Content::Wide(place) => {
                    self.rest.wide[place as usize].0.as_ref().is_some_and(|wide| is_idle(state, Some(wide)))
                }
            };
            if droppable {
                // The gap may be filled from behind: look at this slot again.
                self.remove(at);
                self.rest.counts.evicted += 1;
            } else {
                self.rest.cursor += 1;
            }
        }
    }

    /// Gives memory back after a flood has drained away.
    fn shrink(&mut self) {
        if self.tags.len() > CHUNK && self.len * 4 < self.tags.len() {
            self.resize((self.len * 3 / 2).next_multiple_of(CHUNK).max(CHUNK));
        }
        if self.rest.free_places.len() == self.rest.wide.len() {
            (self.rest.wide, self.rest.free_places) = (Vec::new(), Vec::new());
        }
    }

    /// Empties the table into a list, makes it longer or shorter, and puts everything back.
    #[cold]
    fn resize(&mut self, slots: usize) {
        self.cool();
        let all = self.chunks.iter().flat_map(|chunk| chunk.iter());
        let kept: Vec<Slot> = all.filter(|slot| !slot.state.is_empty()).copied().collect();
        self.chunks.truncate(slots / CHUNK);
        self.chunks.iter_mut().for_each(|chunk| chunk.fill(FREE));
        self.chunks.resize_with(slots / CHUNK, || Box::new([FREE; CHUNK]));
        self.tags = vec![0; slots].into_boxed_slice();
        kept.into_iter().for_each(|slot| self.place(slot));
        self.rest.cursor = 0;
    }

    #[inline]
    fn slot(&self, at: usize) -> &Slot {
        &self.chunks[at / CHUNK][at % CHUNK]
    }

    #[inline]
    fn slot_mut(&mut self, at: usize) -> &mut Slot {
        &mut self.chunks[at / CHUNK][at % CHUNK]
    }

    fn place(&mut self, slot: Slot) {
        let mut at = home(slot.hash, self.tags.len());
        while self.tags[at] != 0 {
            at = self.next(at);
        }
        self.tags[at] = tag(slot.hash);
        *self.slot_mut(at) = slot;
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 == self.tags.len() { 0 } else { at + 1 }
    }

    /// Steps from one slot forward to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.tags.len() - from }
    }
}

/// A state on its way into the table.
#[derive(Debug)]
pub(super) enum NewState {
    Narrow(Packed),
    Wide(Wide),
}

/// Asks the processor to fetch a cache line. A read would wait for it; the lock around each table would then make many
/// fetches wait for each other.
#[inline]
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "a hint that reads no memory, whatever the address")
)]
fn prefetch<T>(line: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction never faults and has no effect but on the cache.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

fn grown(slots: usize) -> usize {
    (slots + slots / 8 + 1).next_multiple_of(CHUNK)
}

impl Wide {
    /// What the smallest one occupies.
    pub(super) const SMALLEST: usize = size_of::<Wide>() + size_of::<Limit>() + size_of::<WidePlace>();

    pub(super) fn new(state: State, limit: &Limit) -> Self {
        Wide { state, limit: Box::new(limit.clone()) }
    }

    fn bytes(&self) -> usize {
        let entries = match &self.state {
            State::SlidingWindowLog(log) => {
                log.entries.capacity() * size_of::<tollgate_core::algorithm::Entry>()
            }
            _ => 0,
        };
        Self::SMALLEST + entries
    }

    /// Makes a log fit into what is left: its newest entries are counted as one, at the later instant. That
    /// refuses a little early and never late.
    fn shorten_to(&mut self, bytes: usize) {
        if self.bytes() > bytes
            && let State::SlidingWindowLog(log) = &mut self.state
        {
            log.merge_newest();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::Timestamp;
    use tollgate_core::algorithm::Debt;

    fn hash(n: u64) -> KeyHash {
        KeyHash(u128::from(n).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_0C5B_0A1D_3E55))
    }

    fn state(n: u64) -> Packed {
        let limit = "1/s".parse().unwrap();
        let debt =
            State::TokenBucket(Debt { debt: n + 1, p: 1, last: Timestamp::from_micros(0), excess: None });
        Packed::narrow(&debt, 0, &limit).unwrap()
    }

    fn filled(keys: u64, bounds: usize) -> Table {
        let mut table = Table::new(TableBounds { buckets: bounds, bytes: usize::MAX });
        for n in 0..keys {
            table.make_room(|_, _| false);
            assert!(table.has_room(1, 0));
            table.insert(hash(n), NewState::Narrow(state(n)));
        }
        table
    }

    #[test]
    fn what_was_inserted_is_found_and_what_was_removed_is_not() {
        let mut table = filled(2_000, usize::MAX);
        for n in (0..2_000).step_by(3) {
            let at = table.find(hash(n)).unwrap();
            table.remove(at);
        }
        for n in 0..2_000 {
            let found = table.find(hash(n)).map(|at| table.content(at));
            assert_eq!(found, (n % 3 != 0).then(|| state(n)), "{n}");
        }
        assert_eq!(table.len(), 2_000 - 667);
    }

    #[test]
    fn a_full_table_has_room_again_once_a_bucket_is_idle() {
        let mut table = filled(100, 100);
        table.make_room(|_, _| false);
        assert!(!table.has_room(1, 0));
        let droppable = |packed: Packed, _: Option<&Wide>| packed == state(3);
        (0..10).for_each(|_| table.make_room(droppable)); // a few attempts look at every slot
        assert!(table.has_room(1, 0));
        assert_eq!((table.len(), table.counts().evicted), (99, 1));
        assert_eq!(table.find(hash(3)), None);
    }

    #[test]
    fn an_emptied_table_gives_its_memory_back() {
        let mut table = filled(10_000, usize::MAX);
        let flooded = table.bytes();
        for _ in 0..5_000 {
            table.sweep(8, |packed, _| packed != state(7));
        }
        assert_eq!(table.len(), 1);
        assert!(table.bytes() * 100 < flooded);
        assert!(table.find(hash(7)).is_some());
    }

    #[test]
    fn the_table_is_at_least_three_quarters_full_while_it_grows() {
        for keys in [1_000, 1_100, 1_200, 5_000, 6_000, 20_000] {
            let table = filled(keys, usize::MAX);
            assert!(table.bytes() <= table.len() * 46, "{keys} keys in {} bytes", table.bytes());
        }
    }

    /// Writes the state of a key, as a decision on a known key does; a new key is inserted.
    fn set(table: &mut Table, n: u64, value: u64) {
        if let Some((place, _)) = table.look(hash(n)) {
            table.write(place, hash(n), state(value));
            return;
        }
        assert_eq!(table.find(hash(n)), None);
        table.make_room(|_, _| false);
        table.insert(hash(n), NewState::Narrow(state(value)));
    }

    fn looked(table: &Table, n: u64) -> Option<Packed> {
        table.look(hash(n)).map(|(_, state)| state)
    }

    fn is_hot(table: &Table, n: u64) -> bool {
        matches!(table.look(hash(n)), Some((Place::Hot, _)))
    }

    fn states(table: &mut Table) -> Vec<Packed> {
        let mut states = Vec::new();
        table.for_each_state(|state| states.extend((!state.is_empty()).then_some(state)));
        states
    }

    #[test]
    fn a_key_that_is_written_twice_in_a_row_is_hot_until_another_one_is() {
        let mut table = filled(3, usize::MAX);
        set(&mut table, 1, 10);
        assert!(!is_hot(&table, 1));
        set(&mut table, 1, 11);
        assert!(is_hot(&table, 1));
        set(&mut table, 2, 20);
        assert!(is_hot(&table, 1), "one use of another key changes nothing");
        set(&mut table, 1, 12);
        set(&mut table, 2, 21);
        assert!(is_hot(&table, 2) && !is_hot(&table, 1), "its last use was of this key's slot");
        assert_eq!([0, 1, 2].map(|n| looked(&table, n)), [0, 12, 21].map(|n| Some(state(n))));
        assert_eq!(states(&mut table).len(), 3);
        assert!(!is_hot(&table, 2), "slots are up to date");
        assert_eq!(looked(&table, 2), Some(state(21)));
    }

    #[test]
    fn a_search_by_slot_finds_the_state_of_the_hot_key() {
        let mut table = filled(3, usize::MAX);
        set(&mut table, 1, 10);
        set(&mut table, 1, 11);
        let at = table.find(hash(1)).unwrap();
        assert_eq!(table.content(at), state(11));
        table.write(Place::Slot(at), hash(1), state(12));
        assert_eq!(looked(&table, 1), Some(state(12)), "there is no stale copy");
        assert_eq!(table.find(hash(1)), Some(at));
        set(&mut table, 1, 13);
        assert!(!is_hot(&table, 1), "a search ends the run");
    }

    #[test]
    fn a_removed_hot_key_is_gone_and_its_slot_serves_another_key() {
        let mut table = filled(3, usize::MAX);
        set(&mut table, 1, 10);
        set(&mut table, 1, 11);
        let at = table.find(hash(1)).unwrap();
        table.remove(at);
        assert_eq!((looked(&table, 1), table.len()), (None, 2));
        set(&mut table, 1, 30);
        assert_eq!((looked(&table, 1), table.len()), (Some(state(30)), 3));
        assert!(!is_hot(&table, 1));
    }

    #[test]
    fn the_table_grows_and_shrinks_while_a_key_is_hot() {
        let mut table = filled(3, usize::MAX);
        for n in 3..5_000 {
            set(&mut table, 1, n);
            set(&mut table, 1, n + 1);
            assert!(is_hot(&table, 1));
            set(&mut table, n, n);
            assert_eq!(looked(&table, 1), Some(state(n + 1)), "{n} keys");
        }
        set(&mut table, 1, 7);
        set(&mut table, 1, 8);
        assert_eq!(table.find(hash(5_000)), None);
        for _ in 0..3_000 {
            table.sweep(8, |packed, _| packed != state(8));
        }
        assert_eq!((looked(&table, 1), looked(&table, 8)), (Some(state(8)), Some(state(8))));
        assert_eq!(table.len(), 2);
    }

    /// Any sequence of operations leaves what a map would hold.
    #[test]
    fn no_state_is_lost_or_stale_whichever_key_is_hot() {
        let mut table = filled(0, usize::MAX);
        let mut model = std::collections::HashMap::new();
        let mut random = 18_u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        let (mut hot, mut key) = (0, 0);
        for turn in 0..60_000_u64 {
            // The keys become more, so that the table grows; half of the time the last key is used again.
            if below(2) == 0 {
                key = below(8 + turn / 60);
            }
            match below(40) {
                0 => {
                    if let Some(at) = table.find(hash(key)) {
                        table.remove(at);
                    }
                    model.remove(&key);
                }
                1 => {
                    let found = table.find(hash(key)).map(|at| table.content(at));
                    assert_eq!(found, model.get(&key).map(|value| state(*value)), "turn {turn}");
                }
                2 => assert_eq!(states(&mut table).len(), model.len(), "turn {turn}"),
                _ => {
                    assert_eq!(
                        looked(&table, key),
                        model.get(&key).map(|value| state(*value)),
                        "turn {turn}"
                    );
                    hot += u32::from(is_hot(&table, key));
                    set(&mut table, key, turn);
                    model.insert(key, turn);
                }
            }
            assert_eq!(table.len(), model.len());
        }
        assert!(hot > 10_000 && model.len() > 500, "{hot} uses of a hot key, {} keys", model.len());
        for key in 0..1_100 {
            assert_eq!(looked(&table, key), model.get(&key).map(|value| state(*value)), "{key}");
        }
    }
}
