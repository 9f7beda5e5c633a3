//! Interval buckets: tokens arrive together, once per tick.
//!
//! `anchor` is the tick from which the next ones are counted. A full bucket has none: its ticks begin with the
//! take that brings it below full, or lie on the clock when aligned.

use super::{Answer, signed, until, window_start};
use crate::limit::{IntervalRefill, Ticks};
use crate::time::{Micros, Timestamp};
use crate::verdict::Mark;

/// What an interval bucket remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spent {
    /// Tokens missing from a full bucket, as of `anchor`.
    pub used: u64,
    /// The last tick that was credited.
    pub anchor: Timestamp,
    /// The last write.
    pub last: Timestamp,
}

impl Spent {
    /// Uses so many tokens more; ticks of a bucket that was full begin now.
    pub(super) fn use_beyond(&mut self, refill: &IntervalRefill, tokens: u64) {
        if self.used == 0 {
            self.anchor = match refill.ticks {
                Ticks::FromFirstTake => self.last,
                Ticks::Aligned => {
                    let tick = window_start(self.last.as_micros(), signed(refill.interval), 0);
                    Timestamp::from_micros(tick)
                }
            };
        }
        self.used += tokens;
    }
}

#[derive(Debug, Clone)]
pub(super) struct Account<'l> {
    refill: &'l IntervalRefill,
    used: u64,
    /// What was used before anything was taken at this instant.
    owed: u64,
    anchor: i64,
    at: i64,
    /// What was used, and since which tick, before ticks were credited.
    stored: (u64, i64),
}

impl<'l> Account<'l> {
    pub(super) fn open(refill: &'l IntervalRefill, state: Option<Spent>, at: i64, stepped: bool) -> Self {
        let mut account = Account { refill, used: 0, owed: 0, anchor: at, at, stored: (0, at) };
        let Some(state) = state else { return account };
        account.used = state.used.min(refill.capacity);
        account.anchor = match refill.ticks {
            Ticks::FromFirstTake => state.anchor.as_micros(),
            Ticks::Aligned if stepped => account.tick_at_or_before(at),
            Ticks::Aligned => account.tick_at_or_before(state.anchor.as_micros()),
        };
        account.stored = (account.used, account.anchor);
        account.credit_ticks();
        account.owed = account.used;
        account
    }

    fn credit_ticks(&mut self) {
        let ticks = (self.at - self.anchor).div_euclid(signed(self.refill.interval));
        if ticks.unsigned_abs() >= self.used.div_ceil(self.refill.count) {
            self.used = 0;
        } else {
            self.used -= ticks.unsigned_abs() * self.refill.count;
            self.anchor += ticks * signed(self.refill.interval);
        }
    }

    pub(super) fn close(self) -> Spent {
        Spent {
            used: self.used,
            anchor: Timestamp::from_micros(self.anchor),
            last: Timestamp::from_micros(self.at),
        }
    }

    /// The state with nothing credited, as of now: all that a refusal writes after a clock step.
    pub(super) fn close_shifted(self) -> Spent {
        let (used, anchor) = self.stored;
        Account { used, anchor, ..self }.close()
    }

    /// The wait until so many tokens more have arrived.
    fn wait_for(&self, tokens: u64) -> u64 {
        let ticks = tokens.div_ceil(self.refill.count) * self.refill.interval.get();
        until(self.anchor.saturating_add_unsigned(ticks), self.at)
    }

    /// From where the ticks of a full bucket are counted that something is taken from now.
    fn first_anchor(&self) -> i64 {
        match self.refill.ticks {
            Ticks::FromFirstTake => self.at,
            Ticks::Aligned => self.tick_at_or_before(self.at),
        }
    }

    fn tick_at_or_before(&self, instant: i64) -> i64 {
        window_start(instant, signed(self.refill.interval), 0)
    }
}

impl super::Account for Account<'_> {
    #[inline]
    fn capacity(&self) -> u64 {
        self.refill.capacity
    }

    fn ask(&self, cost: u64) -> Answer {
        let tokens = self.remaining();
        if cost > self.refill.capacity {
            Answer::Never
        } else if cost <= tokens {
            Answer::Pass { delay: Micros::ZERO }
        } else {
            Answer::Wait(Micros::new(self.wait_for(cost - tokens)))
        }
    }

    fn take(&mut self, cost: u64) {
        if self.used == 0 {
            self.anchor = self.first_anchor();
        }
        self.used += cost;
    }

    fn refund(&mut self, cost: u64) {
        self.used = self.used.saturating_sub(cost);
    }

    fn undo(&mut self, cost: u64, mark: Mark) -> bool {
        let IntervalRefill { count, capacity, interval, .. } = *self.refill;
        let units = u128::from(until(self.anchor, mark.at.as_micros())) * u128::from(count);
        let came_back = units.saturating_sub(mark.rest.into()) / u128::from(interval.get());
        let came_back = u64::try_from(came_back).unwrap_or(u64::MAX);
        let left = cost.min(capacity).saturating_sub(came_back).min(self.used);
        self.used -= left;
        left > 0
    }

    /// As if tokens came one by one at the pace of the ticks, in parts of `1 / interval`: the oldest charge has them first.
    fn mark(&self) -> Mark {
        let IntervalRefill { count, interval, .. } = *self.refill;
        let from = if self.owed == 0 { self.first_anchor() } else { self.anchor };
        let units = u128::from(self.owed) * u128::from(interval.get());
        let (wait, rest) = (units / u128::from(count), units % u128::from(count));
        let [wait, rest] = [wait, rest].map(|number| u64::try_from(number).unwrap_or(u64::MAX));
        Mark { at: Timestamp::from_micros(from.saturating_add_unsigned(wait)), rest }
    }

    fn remaining(&self) -> u64 {
        self.refill.capacity - self.used
    }

    fn reset_after(&self) -> u64 {
        if self.used == 0 { 0 } else { self.wait_for(self.used) }
    }
}
