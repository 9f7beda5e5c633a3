//! A bucket while a decision is being made: found or made when it is opened, written back when it is closed.

use tollgate_core::algorithm::{Bucket, State, TokenBucket, Window, start_on_the_clock};
use tollgate_core::limit::{Algorithm, Phase};
use tollgate_core::{Key, KeyHash, Limit, Micros, Rule, Timestamp};

use super::limits::LimitId;
use super::packed::{Content, Packed};
use super::reservations::ReservedBucket;
use super::table::{NewState, Place, Table, Wide};
use super::{MemoryStore, Overflow};
use crate::store::window;
use crate::sync::{MutexGuard, Ordering};

/// Which bucket: that of a rule and a request, or one that a reservation has charged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named<'a> {
    pub(super) hash: KeyHash,
    pub(super) limit: &'a Limit,
    /// The digest of its rule's keys.
    space: [u64; 2],
    by: NamedBy<'a>,
}

#[derive(Debug, Clone, Copy)]
enum NamedBy<'a> {
    Key(&'a Rule, Key<'a>),
    /// What spread windows are computed from.
    Seed(u64),
}

impl<'a> Named<'a> {
    #[inline]
    pub(super) fn new(hash: KeyHash, rule: &'a Rule, key: Key<'a>) -> Self {
        let limit = rule.limit().expect("rows are made for rules with a limit");
        Named { hash, limit, space: rule.space().digest(), by: NamedBy::Key(rule, key) }
    }

    /// Where the windows of a limit begin.
    #[inline]
    fn window(&self, limit: &Limit) -> Window {
        match (self.by, limit.algorithm()) {
            (NamedBy::Key(_, key), _) => window(key, limit),
            (NamedBy::Seed(seed), Algorithm::FixedWindow { phase: Phase::Spread, window, .. }) => {
                Window::Spread(Micros::new(seed % window.get().max(1)))
            }
            (NamedBy::Seed(_), _) => Window::Own,
        }
    }
}

impl<'a> From<&'a ReservedBucket> for Named<'a> {
    fn from(bucket: &'a ReservedBucket) -> Self {
        let ReservedBucket { hash, limit, space, spread_seed, .. } = bucket;
        Named { hash: *hash, limit, space: *space, by: NamedBy::Seed(*spread_seed) }
    }
}

/// A token bucket that is present and whose limit, of this number, has not changed.
#[derive(Debug)]
pub(super) struct TokenOpened<'l> {
    pub(super) bucket: TokenBucket<'l>,
    place: Place,
    id: LimitId,
}

/// Any bucket that was opened, and where its state came from.
#[derive(Debug)]
pub(super) struct Opened<'l> {
    pub(super) bucket: Bucket<'l>,
    home: Home,
    /// Whether the key itself has a state, rather than its overflow bucket or nothing.
    pub(super) is_known: bool,
}

/// What of a bucket has to be written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    Nothing,
    /// Only that the clock went back.
    Step,
    Change,
}

/// Where the state came from, and where it goes.
#[derive(Debug)]
pub(super) enum Home {
    /// A slot.
    Narrow(Place),
    /// The heap. `original` goes back there if nothing changes, where the bucket itself cannot tell.
    Wide { place: u32, limit: Box<Limit>, original: Option<State> },
    /// A new slot; there is room.
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

/// Takes a wide state out. A log is moved, not copied, unless opening it would change it.
#[cold]
fn open_wide(table: &mut Table, place: u32, limit: &Limit, now: Timestamp) -> (Option<State>, Home) {
    let wide = table.borrow_wide(place);
    let comes_back_unchanged = matches!(wide.state, State::SlidingWindowLog(_))
        && wide.state.is_of(limit)
        && wide.state.last() <= now;
    let original = (!comes_back_unchanged).then(|| wide.state.clone());
    (Some(wide.state), Home::Wide { place, limit: wide.limit, original })
}

impl MemoryStore {
    /// Makes room for a key that is not present, before any bucket of the request is opened: a sweep moves slots and
    /// evicts buckets.
    #[inline(never)]
    pub(super) fn make_room(&self, table: &mut Table, hash: KeyHash, now: Timestamp) {
        if table.look(hash).is_none() {
            table.make_room(|packed, wide| self.is_idle(packed, wide, now));
        }
    }

    /// Opens a token bucket that is present and whose limit has not changed, unless the clock went back: the most common
    /// bucket, which takes 16 bytes.
    #[inline]
    pub(super) fn open_token<'l>(
        &self,
        table: &Table,
        hash: KeyHash,
        rule: &'l Rule,
        now: Timestamp,
    ) -> Option<TokenOpened<'l>> {
        let Algorithm::TokenBucket(refill) = rule.limit()?.algorithm() else { return None };
        let id = self.limits.known(rule)?;
        let (place, packed) = table.look(hash)?;
        let bucket = TokenBucket::open(refill, packed.debt(id, refill)?, now)?;
        Some(TokenOpened { bucket, place, id })
    }

    /// Finds the bucket of a key and brings it to `now`, which is read again if it is too old. `pending` buckets of the same request may still need a new slot.
    /// `None`, and nothing done, where an overflow bucket is needed and another call has them locked.
    pub(super) fn open<'l, 's>(
        &'s self,
        table: &mut Table,
        overflow: &mut Option<MutexGuard<'s, Overflow>>,
        named: Named<'l>,
        now: &mut Timestamp,
        pending: usize,
    ) -> Option<Opened<'l>> {
        let limit = named.limit;
        let (state, home) = match table.find(named.hash) {
            None => self.open_new(table, overflow, &named, *now, pending)?,
            Some(at) => {
                let packed = table.content(at);
                match packed.content() {
                    Content::Wide(place) => open_wide(table, place, limit, *now),
                    Content::Empty | Content::Narrow(_) => {
                        (self.unpacked(packed, &named), Home::Narrow(Place::Slot(at)))
                    }
                }
            }
        };
        let is_known = !matches!(home, Home::New | Home::Overflow)
            && state.as_ref().is_some_and(|state| state.is_of(limit));
        // An instant from before the lock may be behind what others have written since, or evicted.
        if state.as_ref().is_none_or(|state| state.last() > *now) {
            *now = self.clock.now();
        }
        let bucket = Bucket::open(limit, state, *now, named.window(limit));
        Some(Opened { bucket, home, is_known })
    }

    /// The state in a slot.
    #[inline]
    fn unpacked(&self, packed: Packed, named: &Named<'_>) -> Option<State> {
        let Content::Narrow(id) = packed.content() else { return None };
        let written_under = self.limits.get(id);
        let written_under = written_under.as_ref()?;
        // The start of a window on the clock is computed only when the rule's windows have changed.
        let start_of = |last| {
            if **written_under == *named.limit {
                last
            } else {
                start_on_the_clock(written_under, named.window(written_under), last)
            }
        };
        Some(packed.state(written_under, start_of))
    }

    /// The state in a slot, with the start of its window.
    pub(super) fn inspected(&self, packed: Packed, key: Key<'_>) -> Option<State> {
        let Content::Narrow(id) = packed.content() else { return None };
        let limit = self.limits.get(id);
        let limit = limit.as_ref()?;
        Some(packed.state(limit, |last| start_on_the_clock(limit, window(key, limit), last)))
    }

    /// A key that is not present starts with what its rule's overflow bucket has used, and stays in that bucket when the
    /// table is full.
    #[cold]
    fn open_new<'s>(
        &'s self,
        table: &mut Table,
        overflow: &mut Option<MutexGuard<'s, Overflow>>,
        named: &Named<'_>,
        now: Timestamp,
        pending: usize,
    ) -> Option<(Option<State>, Home)> {
        let has_room = table.has_room(pending + 1, widest(named.limit));
        if has_room && !self.overflowing.load(Ordering::Acquire) {
            return Some((None, Home::New));
        }
        let overflow = match overflow {
            Some(held) => held,
            None => overflow.insert(self.overflow.try_lock()?),
        };
        if has_room {
            // Those of all rules: the rule of one may have been renamed or removed.
            overflow.buckets.retain(|_, bucket| !self.is_idle(Packed::EMPTY, Some(bucket), now));
        } else {
            overflow.log_full(now);
        }
        self.overflowing.store(!has_room || !overflow.buckets.is_empty(), Ordering::Release);
        let state = overflow.buckets.get(&named.space).map(|bucket| bucket.state.clone());
        // A key with room that is refused for what the overflow bucket has used is refused because the store was full.
        table.count_overflowed(u64::from(!has_room || state.is_some()));
        // Excess is kept wide, which the check above did not count.
        let is_wide = state.as_ref().is_some_and(State::has_excess);
        let fits = has_room && (!is_wide || table.has_room(pending + 1, Wide::SMALLEST));
        Some((state, if fits { Home::New } else { Home::Overflow }))
    }

    /// Writes a token bucket back that changed.
    #[inline]
    pub(super) fn close_token<'s, 'l>(
        &'s self,
        table: &mut Table,
        overflow: &mut Option<MutexGuard<'s, Overflow>>,
        hash: KeyHash,
        TokenOpened { bucket, place, id }: &TokenOpened<'_>,
        named: impl Fn() -> Named<'l>,
    ) {
        let debt = bucket.close();
        match debt.and_then(|debt| Packed::of_debt(debt, *id)) {
            Some(packed) => table.write(*place, hash, packed),
            None => {
                let state = debt.map(State::TokenBucket);
                self.write_state(table, overflow, named(), state, Home::Narrow(*place));
            }
        }
    }

    /// Writes a bucket back, if it changed, and returns what was borrowed.
    pub(super) fn close<'s>(
        &'s self,
        table: &mut Table,
        overflow: &mut Option<MutexGuard<'s, Overflow>>,
        named: Named<'_>,
        Opened { bucket, home, .. }: Opened<'_>,
        write: Write,
    ) {
        if write == Write::Nothing {
            if let Home::Wide { place, limit, original } = home {
                let state = original.unwrap_or_else(|| bucket.into_state());
                table.restore_wide(place, Wide { state, limit });
            }
            return;
        }
        table.count_clock_step(u64::from(bucket.stepped()));
        let state = if write == Write::Step { Some(bucket.close_shifted()) } else { bucket.close() };
        self.write_state(table, overflow, named, state, home);
    }

    /// Writes a state where it fits.
    fn write_state<'s>(
        &'s self,
        table: &mut Table,
        overflow: &mut Option<MutexGuard<'s, Overflow>>,
        named: Named<'_>,
        state: Option<State>,
        home: Home,
    ) {
        let Named { hash, limit, .. } = named;
        let Some(state) = state else {
            if let Some(at) = table.find(hash) {
                table.remove(at);
            }
            return;
        };
        let number = match named.by {
            NamedBy::Key(rule, _) => self.limits.number(rule, limit),
            NamedBy::Seed(_) => self.limits.intern(limit),
        };
        let narrow = number.and_then(|id| Packed::narrow(&state, id, limit));
        let at = |table: &mut Table| table.find(hash).expect("it was found under this lock");
        match (home, narrow) {
            (Home::Narrow(place), Some(packed)) => table.write(place, hash, packed),
            (Home::Narrow(_), None) => {
                let at = at(table);
                table.widen(at, Wide::new(state, limit));
            }
            (Home::Wide { place, .. }, Some(packed)) => {
                let at = at(table);
                table.narrow(at, place, packed);
            }
            (Home::Wide { place, .. }, None) => table.return_wide(place, Wide::new(state, limit)),
            (Home::New, Some(packed)) => table.insert(hash, NewState::Narrow(packed)),
            (Home::New, None) => table.insert(hash, NewState::Wide(Wide::new(state, limit))),
            (Home::Overflow, _) => {
                let overflow = overflow.as_mut().expect("it was locked when the bucket was opened");
                overflow.buckets.insert(named.space, Wide::new(state, limit));
            }
        }
    }

    /// Whether a state may be evicted. With injected time none may: the clock may go back to it.
    fn is_idle(&self, packed: Packed, wide: Option<&Wide>, now: Timestamp) -> bool {
        if !self.clock.allows_eviction() {
            return false;
        }
        if let Some(wide) = wide {
            return is_idle(&wide.state, &wide.limit, now);
        }
        let Content::Narrow(id) = packed.content() else { return false };
        let limit = self.limits.get(id);
        limit.as_ref().is_some_and(|limit| is_idle(&packed.state(limit, |last| last), limit, now))
    }
}

fn is_idle(state: &State, limit: &Limit, now: Timestamp) -> bool {
    if let Algorithm::FixedWindow { phase: Phase::Spread, window, .. } = limit.algorithm() {
        // Where its windows begin is unknown without the key, but none outlives its last write by more.
        return state.last().after(*window) <= now;
    }
    state.is_idle(limit, now, Window::Own)
}

/// What a bucket of this limit may need beside its slot.
fn widest(limit: &Limit) -> usize {
    if Packed::always_fits(limit) { 0 } else { Wide::SMALLEST }
}
