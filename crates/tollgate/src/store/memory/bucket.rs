//! A bucket while a decision is being made: found or made when it is opened, written back when it is closed.

use tollgate_core::algorithm::{Answer, Bucket, Demand, State, TokenBucket, Window, start_on_the_clock};
use tollgate_core::limit::{Algorithm, Phase};
use tollgate_core::{Key, KeyHash, Limit, Mark, Micros, Op, Rule, Timestamp, Verdict};

use super::packed::{Content, Packed};
use super::table::{NewState, Table, Wide};
use super::{MemoryStore, Overflow};
use crate::store::window;
use crate::sync::{MutexGuard, Ordering};

/// A bucket that was opened, and where its state came from.
#[derive(Debug)]
pub(super) enum Opened<'l> {
    /// A token bucket that is present and whose limit has not changed.
    Token { at: usize, bucket: TokenBucket<'l> },
    /// Any other.
    Any { bucket: Bucket<'l>, home: Home, is_known: bool },
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
    Narrow { at: usize },
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

/// Calls the same method of either bucket.
macro_rules! each {
    ($opened:expr, $bucket:ident => $call:expr) => {
        match $opened {
            Opened::Token { bucket: $bucket, .. } => $call,
            Opened::Any { bucket: $bucket, .. } => $call,
        }
    };
}

impl Opened<'_> {
    #[inline]
    pub(super) fn ask(&self, op: Op, demand: Demand) -> Answer {
        if op.decides() {
            each!(self, bucket => bucket.ask(demand))
        } else {
            Answer::Pass { delay: Micros::ZERO }
        }
    }

    #[inline]
    pub(super) fn take(&mut self, cost: u64) {
        each!(self, bucket => bucket.take(cost));
    }

    pub(super) fn refund(&mut self, cost: u64) {
        each!(self, bucket => bucket.refund(cost));
    }

    pub(super) fn undo(&mut self, cost: u64, mark: Mark) -> bool {
        each!(self, bucket => bucket.undo(cost, mark))
    }

    pub(super) fn mark(&self, cost: u64) -> Mark {
        each!(self, bucket => bucket.mark(cost))
    }

    #[inline]
    pub(super) fn verdict(&self, answer: Answer) -> Verdict {
        each!(self, bucket => bucket.verdict(answer))
    }

    pub(super) fn remaining(&self) -> u64 {
        each!(self, bucket => bucket.remaining())
    }

    /// Whether the clock went back so far that the state was shifted.
    pub(super) fn stepped(&self) -> bool {
        match self {
            Opened::Token { .. } => false,
            Opened::Any { bucket, .. } => bucket.stepped(),
        }
    }

    /// Whether the key itself has a state, rather than its overflow bucket or nothing.
    pub(super) fn is_known(&self) -> bool {
        match self {
            Opened::Token { .. } => true,
            Opened::Any { is_known, .. } => *is_known,
        }
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
    #[inline]
    pub(super) fn make_room(&self, table: &mut Table, hash: KeyHash, now: Timestamp) {
        if table.find(hash).is_none() {
            table.make_room(|packed, wide| self.is_idle(packed, wide, now));
        }
    }

    /// Finds the bucket of a key and brings it to now. `pending` buckets of the same request may still need a new slot.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "a bucket is named by hash, rule and key")]
    pub(super) fn open<'l, 's>(
        &'s self,
        table: &mut Table,
        overflow: &mut Option<MutexGuard<'s, Overflow>>,
        hash: KeyHash,
        rule: &'l Rule,
        key: Key<'_>,
        now: Timestamp,
        pending: usize,
    ) -> Opened<'l> {
        let limit = rule.limit().expect("rows are made for rules with a limit");
        let (state, home) = match table.find(hash) {
            None => self.open_new(table, overflow, rule, limit, now, pending),
            Some(at) => {
                let packed = table.content(at);
                if let Algorithm::TokenBucket(refill) = limit.algorithm()
                    && let Some(id) = self.limits.known(rule)
                    && let Some(debt) = packed.debt(id, refill)
                    && let Some(bucket) = TokenBucket::open(refill, debt, now)
                {
                    return Opened::Token { at, bucket };
                }
                match packed.content() {
                    Content::Wide(place) => open_wide(table, place, limit, now),
                    Content::Empty | Content::Narrow(_) => {
                        (self.unpacked(packed, limit, key), Home::Narrow { at })
                    }
                }
            }
        };
        let is_known = !matches!(home, Home::New | Home::Overflow)
            && state.as_ref().is_some_and(|state| state.is_of(limit));
        let bucket = Bucket::open(limit, state, now, window(key, limit));
        Opened::Any { bucket, home, is_known }
    }

    /// The state in a slot.
    #[inline]
    fn unpacked(&self, packed: Packed, limit: &Limit, key: Key<'_>) -> Option<State> {
        let Content::Narrow(id) = packed.content() else { return None };
        let written_under = self.limits.get(id);
        let written_under = written_under.as_ref()?;
        // The start of a window on the clock is computed only when the rule's windows have changed.
        let start_of = |last| {
            if **written_under == *limit {
                last
            } else {
                start_on_the_clock(written_under, window(key, written_under), last)
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
        rule: &Rule,
        limit: &Limit,
        now: Timestamp,
        pending: usize,
    ) -> (Option<State>, Home) {
        let has_room = table.has_room(pending + 1, widest(limit));
        if has_room && !self.overflowing.load(Ordering::Acquire) {
            return (None, Home::New);
        }
        let overflow = overflow.get_or_insert_with(|| self.overflow.lock());
        if has_room {
            // Those of all rules: the rule of one may have been renamed or removed.
            overflow.buckets.retain(|_, bucket| !self.is_idle(Packed::EMPTY, Some(bucket), now));
        } else {
            overflow.log_full(now);
        }
        self.overflowing.store(!has_room || !overflow.buckets.is_empty(), Ordering::Release);
        let state = overflow.buckets.get(&rule.space().digest()).map(|bucket| bucket.state.clone());
        // A key with room that is refused for what the overflow bucket has used is refused because the store was full.
        table.count_overflowed(u64::from(!has_room || state.is_some()));
        // Excess is kept wide, which the check above did not count.
        let is_wide = state.as_ref().is_some_and(State::has_excess);
        let fits = has_room && (!is_wide || table.has_room(pending + 1, Wide::SMALLEST));
        (state, if fits { Home::New } else { Home::Overflow })
    }

    /// Writes a bucket back, if it changed, and returns what was borrowed.
    #[inline]
    pub(super) fn close<'s>(
        &'s self,
        table: &mut Table,
        overflow: &mut Option<MutexGuard<'s, Overflow>>,
        hash: KeyHash,
        rule: &Rule,
        opened: Opened<'_>,
        write: Write,
    ) {
        let (state, home) = match (opened, write) {
            (Opened::Token { .. }, Write::Nothing) => return,
            (Opened::Token { at, bucket }, _) => {
                (bucket.close().map(State::TokenBucket), Home::Narrow { at })
            }
            (Opened::Any { bucket, home, .. }, Write::Nothing) => {
                if let Home::Wide { place, limit, original } = home {
                    let state = original.unwrap_or_else(|| bucket.into_state());
                    table.restore_wide(place, Wide { state, limit });
                }
                return;
            }
            (Opened::Any { bucket, home, .. }, write) => {
                table.count_clock_step(u64::from(bucket.stepped()));
                let state = if write == Write::Step { Some(bucket.close_shifted()) } else { bucket.close() };
                (state, home)
            }
        };
        let Some(state) = state else {
            if let Some(at) = table.find(hash) {
                table.remove(at);
            }
            return;
        };
        let limit = rule.limit().expect("rows are made for rules with a limit");
        let narrow = self.limits.number(rule, limit).and_then(|id| Packed::narrow(&state, id, limit));
        let at = |table: &mut Table| table.find(hash).expect("it was found under this lock");
        match (home, narrow) {
            (Home::Narrow { at }, Some(packed)) if table.holds(at, hash) => table.overwrite(at, packed),
            (Home::Narrow { .. }, Some(packed)) => {
                let at = at(table);
                table.overwrite(at, packed);
            }
            (Home::Narrow { .. }, None) => {
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
                let overflow = overflow.get_or_insert_with(|| self.overflow.lock());
                overflow.buckets.insert(rule.space().digest(), Wide::new(state, limit));
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
