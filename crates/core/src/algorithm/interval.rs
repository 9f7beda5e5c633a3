//! Interval buckets: tokens arrive together, once per tick.
//!
//! `anchor` is the tick from which the next ones are counted. A full bucket has none: its ticks begin with the
//! take that brings it below full, or lie on the clock when aligned.

use super::{Answer, signed, until, window_start};
use crate::limit::{IntervalRefill, Ticks};
use crate::time::{Micros, Timestamp};

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

#[derive(Debug)]
pub(super) struct Account<'l> {
    refill: &'l IntervalRefill,
    used: u64,
    anchor: i64,
    at: i64,
    /// What was used, and since which tick, before ticks were credited.
    stored: (u64, i64),
}

impl<'l> Account<'l> {
    pub(super) fn open(refill: &'l IntervalRefill, state: Option<Spent>, at: i64, stepped: bool) -> Self {
        let mut account = Account { refill, used: 0, anchor: at, at, stored: (0, at) };
        let Some(state) = state else { return account };
        account.used = state.used.min(refill.capacity);
        account.anchor = match refill.ticks {
            Ticks::FromFirstTake => state.anchor.as_micros(),
            Ticks::Aligned if stepped => account.tick_at_or_before(at),
            Ticks::Aligned => account.tick_at_or_before(state.anchor.as_micros()),
        };
        account.stored = (account.used, account.anchor);
        account.credit_ticks();
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
            self.anchor = match self.refill.ticks {
                Ticks::FromFirstTake => self.at,
                Ticks::Aligned => self.tick_at_or_before(self.at),
            };
        }
        self.used += cost;
    }

    fn refund(&mut self, cost: u64) {
        self.used = self.used.saturating_sub(cost);
    }

    fn undo(&mut self, cost: u64, charged_at: i64) -> bool {
        let IntervalRefill { count, capacity, interval, .. } = *self.refill;
        let counts = until(self.at, charged_at) < capacity.div_ceil(count) * interval.get();
        if counts {
            self.refund(cost);
        }
        counts
    }

    fn at(&self) -> i64 {
        self.at
    }

    fn remaining(&self) -> u64 {
        self.refill.capacity - self.used
    }

    fn reset_after(&self) -> u64 {
        if self.used == 0 { 0 } else { self.wait_for(self.used) }
    }
}
