//! A bucket's place: found or made when a decision opens it, written back when the decision is made.

use tollgate_core::algorithm::{Answer, Bucket, Demand, State, Window, start_on_the_clock};
use tollgate_core::limit::{Algorithm, Phase};
use tollgate_core::{Hit, Limit, Micros, Timestamp};

use super::packed::{Content, Packed};
use super::shard::{KeyHash, NewState, Shard, Wide};
use super::{MemoryStore, Operation, Overflow};
use crate::store::window;
use crate::sync::{MutexGuard, Ordering};

/// A hit's bucket while a decision is being made.
#[derive(Debug)]
pub(super) struct Place<'h> {
    pub(super) bucket: Bucket<'h>,
    home: Home,
    /// Whether the key itself was there, rather than its overflow bucket or nothing.
    pub(super) known: bool,
    /// What earlier hits of the same request asked of the same key.
    pub(super) asked_before: u64,
    pub(super) write: Write,
}

/// What of a bucket is to be written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Write {
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
    pub(super) fn of(cost: u64) -> Self {
        if cost == 0 { Write::Nothing } else { Write::Change }
    }

    pub(super) fn of_step(cost: u64) -> Self {
        if cost == 0 { Write::Nothing } else { Write::Step }
    }
}

impl Place<'_> {
    /// Whether it is a rule's overflow bucket rather than the key's own.
    pub(super) fn is_overflow(&self) -> bool {
        matches!(self.home, Home::Overflow)
    }

    #[inline]
    pub(super) fn ask(&self, operation: Operation, demand: Demand) -> Answer {
        if matches!(operation, Operation::Refund | Operation::Undo(_)) {
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

impl MemoryStore {
    /// Makes room for a key that is not there, before any place of the request is opened: sweeping moves slots and
    /// forgets buckets.
    #[inline]
    pub(super) fn prepare(&self, shard: &mut Shard, hash: KeyHash, now: Timestamp) {
        if shard.find(hash).is_none() {
            shard.make_room(|packed, wide| self.as_good_as_new(packed, wide, now));
        }
    }

    /// Finds a hit's bucket and brings it to now.
    ///
    /// `pending` buckets of the same request may still need a place of their own.
    #[inline]
    pub(super) fn open<'h, 's>(
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
    pub(super) fn unpacked(&self, packed: Packed, hit: &Hit<'_>) -> Option<State> {
        let Content::Narrow(id) = packed.content() else { return None };
        let limit = self.limits.get(id);
        // Where the clock's windows begin is only asked when the rule's windows changed.
        let start_of = |last| {
            if limit == hit.limit { last } else { start_on_the_clock(limit, window(hit, limit), last) }
        };
        Some(packed.state(limit, start_of))
    }

    /// The same for whoever wants to see all of it.
    pub(super) fn inspected(&self, packed: Packed, hit: &Hit<'_>) -> Option<State> {
        let Content::Narrow(id) = packed.content() else { return None };
        let limit = self.limits.get(id);
        Some(packed.state(limit, |last| start_on_the_clock(limit, window(hit, limit), last)))
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
        let has_room = shard.has_room(pending + 1, widest(hit.limit));
        if has_room && !self.overflowing.load(Ordering::Acquire) {
            return (None, Home::New);
        }
        let overflow = overflow.get_or_insert_with(|| self.overflow.lock());
        if has_room {
            // Those of all rules: the rule of one may have been renamed or removed.
            overflow.buckets.retain(|_, bucket| !self.as_good_as_new(Packed::EMPTY, Some(bucket), now));
        } else {
            overflow.log_full(now);
        }
        self.overflowing.store(!has_room || !overflow.buckets.is_empty(), Ordering::Release);
        let state = overflow.buckets.get(&self.overflow_hash(hit)).map(|bucket| bucket.state.clone());
        // A key with room that is refused for what the overflow bucket has used is refused because the store was full.
        shard.overflowed += u64::from(!has_room || state.is_some());
        // Excess is kept wide, which the look above did not count.
        let is_wide = state.as_ref().is_some_and(State::has_excess);
        let fits = has_room && (!is_wide || shard.has_room(pending + 1, Wide::SMALLEST));
        (state, if fits { Home::New } else { Home::Overflow })
    }

    /// Writes a bucket back, if it changed, and returns what was borrowed.
    #[inline]
    pub(super) fn close<'s>(
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
                let state = original.unwrap_or_else(|| bucket.into_state());
                shard.restore_wide(place, Wide { state, limit });
            }
            return;
        }
        shard.clock_steps += u64::from(bucket.stepped());
        let state = if write == Write::Step { Some(bucket.close_shifted()) } else { bucket.close() };
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
                let overflow = overflow.get_or_insert_with(|| self.overflow.lock());
                overflow.buckets.insert(self.overflow_hash(hit), Wide::new(state, hit.limit));
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
}

/// What a bucket of this limit may need beside its slot.
fn widest(limit: &Limit) -> usize {
    if Packed::always_fits(limit) { 0 } else { Wide::SMALLEST }
}
