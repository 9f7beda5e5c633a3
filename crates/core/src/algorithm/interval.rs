//! Interval buckets: tokens arrive together, once per tick.
//!
//! `anchor` is the tick from which the next ones are counted. A full bucket has none: its ticks begin with the
//! take that brings it below full, or lie on the clock when aligned.
//!
//! Usage above the capacity of the limit in use is kept as [`Excess`]: ticks repay `used` first, then the excess.

use super::{Answer, EXCESS_LIFETIME, Excess, Usage, signed, until, window_start};
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
    /// Usage above the capacity of the limit this was written under.
    pub excess: Option<Excess>,
}

#[derive(Debug, Clone)]
pub(super) struct Account<'l> {
    refill: &'l IntervalRefill,
    used: u64,
    /// Tokens used above the capacity, under a larger limit.
    excess: u64,
    anchor: i64,
    at: i64,
    /// `used`, `excess` and `anchor` before ticks were credited.
    stored: (u64, u64, i64),
}

impl<'l> Account<'l> {
    pub(super) fn open(refill: &'l IntervalRefill, state: Option<Spent>, at: i64, stepped: bool) -> Self {
        let mut account = Account { refill, used: 0, excess: 0, anchor: at, at, stored: (0, 0, at) };
        let Some(state) = state else { return account };
        account.convert(&state);
        account.anchor = account.moved_anchor(state.anchor.as_micros(), state.last.as_micros(), stepped);
        account.stored = (account.used, account.excess, account.anchor);
        account.credit_ticks(state.last.as_micros());
        account
    }

    /// Usage is kept under changed numbers: what exceeds the capacity becomes excess, and excess that a larger capacity
    /// covers is used.
    fn convert(&mut self, state: &Spent) {
        let IntervalRefill { count, capacity, interval, .. } = *self.refill;
        let excess = state.excess.map_or(0, |excess| excess.tokens);
        let usage = if state.excess.is_some_and(|excess| excess.is_under(capacity, count, interval.get())) {
            Usage { used: state.used.min(capacity), excess }
        } else {
            Usage::split(state.used, excess, capacity)
        };
        (self.used, self.excess) = (usage.used, usage.excess);
    }

    /// The anchor under the interval in use: no tick of a shorter interval credits time before the last write, and none
    /// is credited twice. With an unchanged interval it stays where it is.
    fn moved_anchor(&self, anchor: i64, last: i64, stepped: bool) -> i64 {
        let interval = signed(self.refill.interval);
        match self.refill.ticks {
            Ticks::FromFirstTake if last <= anchor => anchor,
            Ticks::FromFirstTake => window_start(last, interval, anchor),
            Ticks::Aligned if stepped => self.tick_at_or_before(self.at),
            Ticks::Aligned => match self.tick_at_or_before(last) {
                tick if tick < anchor => self.tick_at_or_before(anchor + interval - 1),
                tick => tick,
            },
        }
    }

    fn credit_ticks(&mut self, last: i64) {
        let interval = signed(self.refill.interval);
        let ticks = (self.at - self.anchor).div_euclid(interval).max(0);
        let tokens = u128::from(ticks.unsigned_abs()) * u128::from(self.refill.count);
        let left_of =
            |usage: u64, paid: u128| u64::try_from(u128::from(usage).saturating_sub(paid)).unwrap_or(usage);
        let expired = self.at - last >= signed(EXCESS_LIFETIME);
        self.excess = if expired { 0 } else { left_of(self.excess, tokens.saturating_sub(self.used.into())) };
        self.used = left_of(self.used, tokens);
        self.anchor += ticks * interval;
    }

    /// Counts tokens that were spent on a lease, as far as the capacity goes; the rest is excess.
    pub(super) fn settle(&mut self, tokens: u64) {
        let fits = tokens.min(self.refill.capacity - self.used);
        if fits > 0 {
            super::Account::take(self, fits);
        }
        self.excess = self.excess.saturating_add(tokens - fits);
    }

    pub(super) fn close(self) -> Spent {
        let IntervalRefill { count, capacity, interval, .. } = *self.refill;
        Spent {
            used: self.used,
            anchor: Timestamp::from_micros(self.anchor),
            last: Timestamp::from_micros(self.at),
            excess: Excess::new(self.excess, capacity, count, interval.get()),
        }
    }

    /// The state with nothing credited, as of now: all that a refusal writes after a clock step.
    pub(super) fn close_shifted(self) -> Spent {
        let (used, excess, anchor) = self.stored;
        Account { used, excess, anchor, ..self }.close()
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
        self.excess = self.excess.saturating_sub(cost.saturating_sub(self.used));
        self.used = self.used.saturating_sub(cost);
    }

    fn give_back(&mut self, unused: u64, price: u64, since: Timestamp) -> bool {
        let IntervalRefill { count, capacity, interval, .. } = *self.refill;
        let units = u128::from(until(self.anchor, since.as_micros())) * u128::from(count);
        let repaid = u64::try_from(units / u128::from(interval.get())).unwrap_or(u64::MAX);
        let given = unused.min(price.min(capacity).saturating_sub(repaid)).min(self.used);
        self.used -= given;
        given > 0
    }

    /// As if tokens came one by one at the pace of the ticks: the oldest charge has them first.
    fn repaid_from(&self, cost: u64) -> Timestamp {
        let IntervalRefill { count, interval, .. } = *self.refill;
        let from = if self.used == 0 { self.first_anchor() } else { self.anchor };
        let wait =
            u128::from(self.used.saturating_sub(cost)) * u128::from(interval.get()) / u128::from(count);
        Timestamp::from_micros(from.saturating_add_unsigned(u64::try_from(wait).unwrap_or(u64::MAX)))
    }

    fn remaining(&self) -> u64 {
        self.refill.capacity - self.used
    }

    fn reset_after(&self) -> u64 {
        if self.used == 0 { 0 } else { self.wait_for(self.used) }
    }

    fn is_idle(&self) -> bool {
        self.used == 0 && self.excess == 0
    }
}
