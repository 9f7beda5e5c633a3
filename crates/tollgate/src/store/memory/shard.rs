//! One shard: a flat table of 32-byte slots, probed in a line.
//!
//! A slot is the 128-bit hash of a key and 16 bytes of state; the key itself is not stored. Beside the slots lies
//! one byte of each hash. The search runs over those bytes, which stay cached, and looks at a slot only when its
//! byte fits: a decision on a key that is not cached costs about one miss. The table grows by an eighth at a time, in
//! chunks of one size, so that the allocator is never left with tables that were outgrown; and every insertion looks at a few slots in turn and drops those that are as good as new, so by the time the
//! table is full again it has been swept once.

use tollgate_core::Limit;
use tollgate_core::algorithm::State;

use super::packed::{Content, Packed};

/// The 128-bit keyed hash of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyHash(pub(super) u128);

impl KeyHash {
    /// Where in a table of `slots` the search begins.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the low half, then a number below `slots`")]
    const fn home(self, slots: usize) -> usize {
        (((self.0 as u32) as u64 * slots as u64) >> 32) as usize
    }

    /// The byte of the hash that is kept beside the slots; never 0, which marks an empty slot.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "one byte is wanted")]
    const fn tag(self) -> u8 {
        (self.0 >> 32) as u8 | 1
    }
}

#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
struct Slot {
    hash: KeyHash,
    state: Packed,
}

const FREE: Slot = Slot { hash: KeyHash(0), state: Packed::EMPTY };
/// Slots are allocated so many at a time.
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
pub(super) struct ShardBounds {
    pub(super) buckets: usize,
    pub(super) bytes: usize,
}

/// The part every decision reads fits into a cache line together with the lock around it.
#[derive(Debug)]
pub(super) struct Shard {
    /// One byte of the hash in each slot, 0 where it is empty.
    tags: Box<[u8]>,
    chunks: Vec<Chunk>,
    len: usize,
    rest: Box<Rest>,
}

#[derive(Debug)]
pub(super) struct Rest {
    wide: Vec<WidePlace>,
    free_places: Vec<u32>,
    wide_bytes: usize,
    cursor: usize,
    bounds: ShardBounds,
    /// States that were as good as new and were dropped.
    pub(super) dropped: u64,
    pub(super) clock_steps: u64,
    /// Decisions that an overflow bucket made for a new key.
    pub(super) overflowed: u64,
}

impl std::ops::Deref for Shard {
    type Target = Rest;

    fn deref(&self) -> &Rest {
        &self.rest
    }
}

impl std::ops::DerefMut for Shard {
    fn deref_mut(&mut self) -> &mut Rest {
        &mut self.rest
    }
}

/// A state that does not fit into a slot. It is gone for the moment while a decision looks at it.
#[derive(Debug)]
pub(super) struct Wide {
    pub(super) state: State,
    pub(super) limit: Box<Limit>,
}

#[derive(Debug, Default)]
struct WidePlace(Option<Box<Wide>>);

impl Shard {
    pub(super) fn new(bounds: ShardBounds) -> Self {
        let rest = Rest {
            wide: Vec::new(),
            free_places: Vec::new(),
            wide_bytes: 0,
            cursor: 0,
            bounds,
            dropped: 0,
            clock_steps: 0,
            overflowed: 0,
        };
        Shard { tags: Box::default(), chunks: Vec::new(), len: 0, rest: Box::new(rest) }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// What the shard occupies.
    pub(super) fn bytes(&self) -> usize {
        self.tags.len() * SLOT_BYTES + self.wide_bytes
    }

    /// Where a key's slot is.
    #[inline]
    pub(super) fn find(&self, hash: KeyHash) -> Option<usize> {
        if self.tags.is_empty() {
            return None;
        }
        let tag = hash.tag();
        let mut at = hash.home(self.tags.len());
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

    /// Whether a slot is still this key's: an insertion for another hit may have moved it.
    #[inline]
    pub(super) fn holds(&self, at: usize, hash: KeyHash) -> bool {
        at < self.tags.len() && self.tags[at] != 0 && self.slot(at).hash == hash
    }

    #[inline]
    pub(super) fn content(&self, at: usize) -> Packed {
        self.slot(at).state
    }

    /// Takes a wide state out, to be put back when the decision is made.
    pub(super) fn borrow_wide(&mut self, place: u32) -> Wide {
        let wide = self.wide[place as usize].0.take().expect("one decision at a time holds the shard");
        self.wide_bytes -= wide.bytes();
        *wide
    }

    /// Puts a wide state back that has changed.
    pub(super) fn return_wide(&mut self, place: u32, mut wide: Wide) {
        let others = self.tags.len() * SLOT_BYTES + self.wide_bytes;
        wide.shorten_to(self.bounds.bytes.saturating_sub(others));
        self.restore_wide(place, wide);
    }

    /// Puts a wide state back as it was.
    pub(super) fn restore_wide(&mut self, place: u32, wide: Wide) {
        self.wide_bytes += wide.bytes();
        self.wide[place as usize].0 = Some(Box::new(wide));
    }

    /// Overwrites the state of a slot that stays narrow.
    #[inline]
    pub(super) fn overwrite(&mut self, at: usize, state: Packed) {
        self.slot_mut(at).state = state;
    }

    /// Turns a narrow slot wide.
    pub(super) fn widen(&mut self, at: usize, wide: Wide) {
        let place = self.new_wide_place();
        self.return_wide(place, wide);
        self.slot_mut(at).state = Packed::wide(place);
    }

    /// Turns a wide slot, whose state was taken out, narrow.
    pub(super) fn narrow(&mut self, at: usize, place: u32, state: Packed) {
        self.free_places.push(place);
        self.slot_mut(at).state = state;
    }

    /// What is kept in a wide place.
    pub(super) fn wide_state(&self, place: u32) -> Option<&State> {
        self.wide[place as usize].0.as_ref().map(|wide| &wide.state)
    }

    /// Sweeps a little, and more when the table may not grow.
    pub(super) fn make_room(&mut self, is_new: impl Fn(Packed, Option<&Wide>) -> bool) {
        self.sweep(SWEPT_PER_INSERT, &is_new);
        if !self.has_room(1, Wide::SMALLEST) {
            self.sweep(SWEPT_WHEN_FULL, &is_new);
        }
    }

    /// Whether so many new keys, each with so much on the heap, are within bounds.
    pub(super) fn has_room(&self, keys: usize, wide_bytes: usize) -> bool {
        let len = self.len + keys;
        let slots = if len * 8 > self.tags.len() * 7 { grown(self.tags.len()) } else { self.tags.len() };
        len <= self.bounds.buckets
            && slots * SLOT_BYTES + self.wide_bytes + keys * wide_bytes <= self.bounds.bytes
    }

    /// Adds a key that is not there, for which [`has_room`](Self::has_room).
    pub(super) fn insert(&mut self, hash: KeyHash, state: NewState) {
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
        self.free_places.pop().unwrap_or_else(|| {
            self.wide.push(WidePlace::default());
            u32::try_from(self.wide.len() - 1).expect("a shard has fewer than 2^32 buckets")
        })
    }

    /// Forgets the bucket in a slot. Its wide state, if it had one, goes too.
    pub(super) fn remove(&mut self, at: usize) {
        if let Content::Wide(place) = self.slot(at).state.content() {
            if let Some(wide) = self.wide[place as usize].0.take() {
                self.wide_bytes -= wide.bytes();
            }
            self.free_places.push(place);
        }
        self.len -= 1;
        // Close the gap: whatever was pushed past it moves back, so that no tombstones are needed.
        let mut gap = at;
        let mut next = self.next(at);
        while self.tags[next] != 0 {
            let home = self.slot(next).hash.home(self.tags.len());
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

    /// Looks at the next few slots in turn and drops what is as good as new.
    pub(super) fn sweep(&mut self, steps: usize, is_new: impl Fn(Packed, Option<&Wide>) -> bool) {
        for _ in 0..steps.min(self.tags.len()) {
            if self.cursor >= self.tags.len() {
                self.cursor = 0;
                self.shrink();
            }
            let at = self.cursor;
            let state = self.slot(at).state;
            let droppable = match state.content() {
                Content::Empty => false,
                Content::Narrow(_) => is_new(state, None),
                // A wide state that a decision holds right now is in use.
                Content::Wide(place) => {
                    self.wide[place as usize].0.as_ref().is_some_and(|wide| is_new(state, Some(wide)))
                }
            };
            if droppable {
                // The gap may be filled from behind: look at this slot again.
                self.remove(at);
                self.dropped += 1;
            } else {
                self.cursor += 1;
            }
        }
    }

    /// Gives memory back after a flood has drained away.
    fn shrink(&mut self) {
        if self.tags.len() > CHUNK && self.len * 4 < self.tags.len() {
            self.resize((self.len * 3 / 2).next_multiple_of(CHUNK).max(CHUNK));
        }
        if self.free_places.len() == self.wide.len() {
            (self.rest.wide, self.rest.free_places) = (Vec::new(), Vec::new());
        }
    }

    /// Empties the table into a list, makes it longer or shorter, and puts everything back.
    #[cold]
    fn resize(&mut self, slots: usize) {
        let all = self.chunks.iter().flat_map(|chunk| chunk.iter());
        let kept: Vec<Slot> = all.filter(|slot| !slot.state.is_empty()).copied().collect();
        self.chunks.truncate(slots / CHUNK);
        self.chunks.iter_mut().for_each(|chunk| chunk.fill(FREE));
        self.chunks.resize_with(slots / CHUNK, || Box::new([FREE; CHUNK]));
        self.tags = vec![0; slots].into_boxed_slice();
        kept.into_iter().for_each(|slot| self.place(slot));
        self.cursor = 0;
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
        let mut at = slot.hash.home(self.tags.len());
        while self.tags[at] != 0 {
            at = self.next(at);
        }
        self.tags[at] = slot.hash.tag();
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

    fn filled(keys: u64, bounds: usize) -> Shard {
        let mut shard = Shard::new(ShardBounds { buckets: bounds, bytes: usize::MAX });
        for n in 0..keys {
            shard.make_room(|_, _| false);
            assert!(shard.has_room(1, 0));
            shard.insert(hash(n), NewState::Narrow(state(n)));
        }
        shard
    }

    #[test]
    fn what_was_inserted_is_found_and_what_was_removed_is_not() {
        let mut shard = filled(2_000, usize::MAX);
        for n in (0..2_000).step_by(3) {
            let at = shard.find(hash(n)).unwrap();
            shard.remove(at);
        }
        for n in 0..2_000 {
            let found = shard.find(hash(n)).map(|at| shard.content(at));
            assert_eq!(found, (n % 3 != 0).then(|| state(n)), "{n}");
        }
        assert_eq!(shard.len(), 2_000 - 667);
    }

    #[test]
    fn a_full_shard_has_room_again_once_something_is_as_good_as_new() {
        let mut shard = filled(100, 100);
        shard.make_room(|_, _| false);
        assert!(!shard.has_room(1, 0));
        let droppable = |packed: Packed, _: Option<&Wide>| packed == state(3);
        (0..10).for_each(|_| shard.make_room(droppable)); // a few attempts look at every slot
        assert!(shard.has_room(1, 0));
        assert_eq!((shard.len(), shard.dropped), (99, 1));
        assert_eq!(shard.find(hash(3)), None);
    }

    #[test]
    fn a_drained_flood_gives_its_memory_back() {
        let mut shard = filled(10_000, usize::MAX);
        let flooded = shard.bytes();
        for _ in 0..5_000 {
            shard.sweep(8, |packed, _| packed != state(7));
        }
        assert_eq!(shard.len(), 1);
        assert!(shard.bytes() * 100 < flooded);
        assert!(shard.find(hash(7)).is_some());
    }

    #[test]
    fn the_table_is_at_least_three_quarters_full_while_it_grows() {
        for keys in [1_000, 1_100, 1_200, 5_000, 6_000, 20_000] {
            let shard = filled(keys, usize::MAX);
            assert!(shard.bytes() <= shard.len() * 46, "{keys} keys in {} bytes", shard.bytes());
        }
    }
}
