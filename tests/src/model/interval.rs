//! Tokens that come back several at a time, on ticks counted from an anchor.

use super::{Bucket, EXCESS_LIFETIME_US, floor_to};

/// A bucket of which `used` tokens are missing; `refill` of them come back at every tick after `anchor`.
#[derive(Debug, Clone)]
pub(super) struct Interval {
    refill: i128,
    interval: i128,
    capacity: i128,
    aligned: bool,
    used: i128,
    /// Tokens used beyond the capacity, under a larger limit.
    excess: i128,
    anchor: i128,
    last: i128,
}

impl Interval {
    pub(super) fn open(refill: u64, interval_us: u64, capacity: u64, aligned: bool, at: i128) -> Self {
        let interval = i128::from(interval_us);
        let anchor = if aligned { floor_to(at, interval) } else { at };
        Self {
            refill: refill.into(),
            interval,
            capacity: capacity.into(),
            aligned,
            used: 0,
            excess: 0,
            anchor,
            last: at,
        }
    }

    /// What was used stays used: what the new capacity does not cover becomes excess. The anchor moves forward to within
    /// one new interval of the last write, or to a tick of the clock, and never back.
    pub(super) fn adopt(&self, new: Self) -> Self {
        let same = (self.refill, self.interval, self.capacity) == (new.refill, new.interval, new.capacity);
        let usage = self.used + self.excess;
        let used = if same { self.used } else { usage.min(new.capacity) };
        let mut anchor = self.anchor;
        if new.aligned {
            let next_tick = -floor_to(-self.anchor, new.interval);
            anchor = floor_to(self.last, new.interval).max(next_tick);
        } else if self.interval != new.interval {
            let whole_intervals = ((self.last - anchor).max(0)) / new.interval;
            anchor += whole_intervals * new.interval;
        }
        Self { used, excess: usage - used, anchor, last: self.last, ..new }
    }

    /// The time until the tick that brings the last of `tokens`.
    fn time_for(&self, tokens: i128) -> i128 {
        let whole_refills = tokens / self.refill;
        let ticks = if whole_refills * self.refill == tokens { whole_refills } else { whole_refills + 1 };
        self.anchor + ticks * self.interval - self.last
    }
}

impl Bucket for Interval {
    fn last(&self) -> i128 {
        self.last
    }

    fn step_back(&mut self, now: i128) {
        self.anchor =
            if self.aligned { floor_to(now, self.interval) } else { self.anchor + (now - self.last) };
        self.last = now;
    }

    fn advance(&mut self, at: i128) {
        let ticks = (at - self.anchor).div_euclid(self.interval).max(0);
        let came_back = ticks * self.refill;
        self.excess = (self.excess - (came_back - self.used).max(0)).max(0);
        if at - self.last >= EXCESS_LIFETIME_US {
            self.excess = 0;
        }
        self.used = (self.used - came_back).max(0);
        self.anchor += ticks * self.interval;
        self.last = at;
    }

    fn is_new(&self) -> bool {
        self.used == 0 && self.excess == 0
    }

    fn limit(&self) -> i128 {
        self.capacity
    }

    fn remaining(&self) -> i128 {
        self.capacity - self.used
    }

    fn wait_for(&self, cost: i128) -> i128 {
        self.time_for(cost - self.remaining())
    }

    fn reset_after(&self) -> i128 {
        if self.used == 0 { 0 } else { self.time_for(self.used) }
    }

    fn take(&mut self, cost: i128) {
        if self.used == 0 && cost > 0 {
            // A full bucket has no phase, whatever its excess.
            self.anchor = if self.aligned { floor_to(self.last, self.interval) } else { self.last };
        }
        self.used += cost;
    }

    fn take_out(&mut self, unused: i128, price: i128, since: i128) -> bool {
        let repaid = (self.anchor - since).max(0) * self.refill / self.interval;
        let given = (price.min(self.capacity) - repaid).max(0).min(unused).min(self.used);
        self.used -= given;
        given > 0
    }

    fn repaid_from(&self) -> i128 {
        let idle = if self.aligned { floor_to(self.last, self.interval) } else { self.last };
        let anchor = if self.used == 0 { idle } else { self.anchor };
        anchor + self.used * self.interval / self.refill
    }

    fn give_back(&mut self, cost: i128) {
        self.excess = (self.excess - (cost - self.used).max(0)).max(0);
        self.used = (self.used - cost).max(0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Key, allowed, never, refused};
    use super::super::{Algorithm, Spec};

    fn interval(refill: u64, interval_us: u64, capacity: u64, aligned: bool) -> Spec {
        Spec { algorithm: Algorithm::Interval { refill, interval_us, capacity, aligned } }
    }

    #[test]
    fn ticks_are_counted_from_the_take_that_broke_a_full_bucket() {
        let mut key = Key::new(interval(2, 100, 5, false));
        assert_eq!(key.peek(1_030, 5), allowed(5, 5, 0));
        assert_eq!(key.check(1_030, 3), allowed(5, 2, 200)); // 2 refills for 3
        assert_eq!(key.check(1_050, 2), allowed(5, 0, 280)); // 3 refills for 5, from 1030
        assert_eq!(key.check(1_050, 1), refused(5, 0, 80, 280));
        assert_eq!(key.check(1_050, 3), refused(5, 0, 180, 280));
        assert_eq!(key.check(1_050, 6), never(5, 0, 280));
        assert_eq!(key.peek(1_129, 1), refused(5, 0, 1, 201));
        assert_eq!(key.check(1_130, 1), allowed(5, 1, 200)); // 4 used
        assert_eq!(key.peek(1_329, 5), refused(5, 3, 1, 1));
        assert_eq!(key.check(1_355, 1), allowed(5, 4, 100)); // full since 1330: a new anchor
    }

    #[test]
    fn aligned_ticks_are_the_epochs() {
        let mut key = Key::new(interval(2, 100, 5, true));
        assert_eq!(key.check(1_030, 3), allowed(5, 2, 170));
        assert_eq!(key.check(1_099, 3), refused(5, 2, 1, 101));
        assert_eq!(key.check(1_100, 3), allowed(5, 1, 200)); // 3 - 2 + 3 = 4 used
    }

    #[test]
    fn a_refund_keeps_the_anchor_until_the_bucket_is_full() {
        let mut key = Key::new(interval(2, 100, 5, false));
        key.check(1_030, 4);
        assert_eq!(key.refund(1_060, 1), allowed(5, 2, 170));
        assert_eq!(key.refund(1_060, 4), allowed(5, 5, 0));
        assert!(!key.is_stored());
        assert_eq!(key.check(1_070, 1), allowed(5, 4, 100));
    }

    #[test]
    fn steps_back() {
        let s = 1_000_000;
        let mut key = Key::new(interval(1, 4 * s, 2, false));
        key.check(20 * s, 2);
        key.refund(23 * s, 1); // last at 23 s, anchor at 20 s
        assert_eq!(key.peek(22 * s, 2), refused(2, 1, 2 * s, 2 * s));
        assert_eq!(key.check(21 * s, 2), refused(2, 1, s, s)); // anchor now at 18 s
        assert_eq!(key.clock_steps(), 1);
        assert_eq!(key.check(22 * s, 2), allowed(2, 0, 8 * s));

        let mut key = Key::new(interval(1, 4 * s, 2, true));
        key.check(23 * s, 2); // anchor at 20 s
        assert_eq!(key.peek(22 * s, 1), refused(2, 0, 2 * s, 6 * s));
        assert_eq!(key.check(19 * s, 1), refused(2, 0, s, 5 * s)); // anchor at 16 s
        assert_eq!(key.check(20 * s, 1), allowed(2, 0, 8 * s));
    }

    #[test]
    fn used_tokens_and_the_anchor_survive_new_numbers() {
        let mut key = Key::new(interval(2, 100, 10, false));
        key.check(1_030, 8);
        key.spec = interval(3, 50, 6, false); // 6 used, ticks at 1080, 1130
        assert_eq!(key.peek(1_030, 1), refused(6, 0, 50, 100));
        assert_eq!(key.peek(1_090, 1), allowed(6, 3, 40));
        key.spec = interval(3, 50, 6, true); // anchor at 1050, the first tick after the old anchor
        assert_eq!(key.peek(1_030, 1), refused(6, 0, 70, 120));
        assert_eq!(key.peek(1_090, 1), refused(6, 0, 10, 60));
        key.spec = interval(3, 50, 20, false);
        assert_eq!(key.peek(1_030, 12), allowed(20, 12, 150));
    }
}
