//! Tokens that come back continuously: used tokens are a fraction that shrinks with time.

use num_rational::Ratio;

use super::{Bucket, EXCESS_LIFETIME_US};

/// A bucket of `capacity` tokens, `debt` of which are missing.
#[derive(Debug, Clone)]
pub(super) struct TokenBucket {
    /// Tokens per microsecond.
    rate: Ratio<i128>,
    capacity: i128,
    /// Tokens used and not yet come back.
    debt: Ratio<i128>,
    /// Tokens used beyond the capacity, under a larger limit.
    excess: i128,
    last: i128,
}

impl TokenBucket {
    pub(super) fn open(rate: u64, period_us: u64, capacity: u64, at: i128) -> Self {
        let rate = Ratio::new(i128::from(rate), i128::from(period_us));
        Self { rate, capacity: capacity.into(), debt: 0.into(), excess: 0, last: at }
    }

    /// What was used stays used, in whole tokens when the unit of debt changes. What the new capacity does not cover
    /// becomes excess, in whole tokens, and excess that it covers becomes debt.
    ///
    /// A state knows its `p`, here the denominator of the rate: with the same `p` nothing is rounded. Numbers that did not
    /// change convert nothing.
    pub(super) fn adopt(&self, new: Self) -> Self {
        if (self.rate, self.capacity) == (new.rate, new.capacity) {
            return self.clone();
        }
        let same_unit = self.rate.denom() == new.rate.denom();
        let debt = if same_unit { self.debt } else { self.debt.ceil() };
        let excess = (debt + self.excess - new.capacity).ceil().to_integer().max(0);
        let debt = if debt > new.capacity.into() { new.capacity.into() } else { debt + self.excess - excess };
        Self { debt, excess, last: self.last, ..new }
    }

    /// The time in which `tokens` come back, rounded up.
    pub(super) fn time_for(&self, tokens: Ratio<i128>) -> i128 {
        (tokens / self.rate).ceil().to_integer()
    }

    pub(super) fn debt(&self) -> Ratio<i128> {
        self.debt
    }
}

impl Bucket for TokenBucket {
    fn last(&self) -> i128 {
        self.last
    }

    fn step_back(&mut self, now: i128) {
        self.last = now;
    }

    fn advance(&mut self, at: i128) {
        let came_back = self.rate * (at - self.last);
        let beyond_debt = (came_back - self.debt).floor().to_integer().max(0);
        self.excess = (self.excess - beyond_debt).max(0);
        if at - self.last >= EXCESS_LIFETIME_US {
            self.excess = 0;
        }
        self.debt = (self.debt - came_back).max(0.into());
        self.last = at;
    }

    fn is_new(&self) -> bool {
        self.debt == 0.into() && self.excess == 0
    }

    fn limit(&self) -> i128 {
        self.capacity
    }

    fn remaining(&self) -> i128 {
        (-self.debt + self.capacity).floor().to_integer()
    }

    fn wait_for(&self, cost: i128) -> i128 {
        self.time_for(self.debt + cost - self.capacity)
    }

    fn reset_after(&self) -> i128 {
        self.time_for(self.debt)
    }

    fn take(&mut self, cost: i128) {
        self.debt += cost;
    }

    fn take_out(&mut self, unused: i128, price: i128, since: i128) -> bool {
        let repaid = self.rate * (self.last - since).max(0);
        let left = (-repaid + price.min(self.capacity)).max(0.into());
        let given = left.min(unused.min(self.capacity).into()).min(self.debt);
        self.debt -= given;
        given > 0.into()
    }

    fn repaid_from(&self) -> i128 {
        self.last + (self.debt / self.rate).floor().to_integer()
    }

    fn give_back(&mut self, cost: i128) {
        let beyond_debt = (-self.debt + cost).floor().to_integer().max(0);
        self.excess = (self.excess - beyond_debt).max(0);
        self.debt = (self.debt - cost).max(0.into());
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Key, allowed, never, refused};
    use super::super::{Algorithm, Spec};

    const S: u64 = 1_000_000;

    fn bucket(rate: u64, period_us: u64, capacity: u64) -> Spec {
        Spec { algorithm: Algorithm::TokenBucket { rate, period_us, capacity } }
    }

    #[test]
    fn a_burst_passes_and_the_next_waits_for_one_token() {
        let mut key = Key::new(bucket(3, S, 5)); // a token every 333,333⅓ µs
        assert_eq!(key.peek(10 * S, 1), allowed(5, 5, 0));
        assert_eq!(key.check(10 * S, 4), allowed(5, 1, 1_333_334));
        assert_eq!(key.check(10 * S, 1), allowed(5, 0, 1_666_667));
        assert_eq!(key.check(10 * S, 1), refused(5, 0, 333_334, 1_666_667));
        assert_eq!(key.check(10 * S, 6), never(5, 0, 1_666_667));
        assert_eq!(key.check(10 * S + 333_333, 1), refused(5, 0, 1, 1_333_334));
        // 333,334 µs bring 1.000002 tokens, so 4.999998 are missing after this one.
        assert_eq!(key.check(10 * S + 333_334, 1), allowed(5, 0, 1_666_666));
        // Waiting that long makes it new: full, and no more than full.
        assert_eq!(key.peek(12 * S, 5), allowed(5, 5, 0));
        assert_eq!(key.peek(12 * S - 1, 5), refused(5, 4, 1, 1));
    }

    #[test]
    fn a_refund_never_goes_above_full_and_removes_a_full_bucket() {
        let mut key = Key::new(bucket(1, S, 5));
        assert_eq!(key.refund(S, 3), allowed(5, 5, 0));
        assert!(!key.is_stored());
        key.check(S, 4);
        assert_eq!(key.refund(S + S / 2, 2), allowed(5, 3, S + S / 2)); // 4 - ½ - 2 = 1½ missing
        assert_eq!(key.refund(S + S / 2, 9), allowed(5, 5, 0));
        assert!(!key.is_stored());
    }

    #[test]
    fn a_second_back_is_jitter_and_waits_count_from_now() {
        let mut key = Key::new(bucket(1, S, 2));
        key.check(10 * S, 2);
        assert_eq!(key.check(9 * S, 1), refused(2, 0, 2 * S, 3 * S));
        assert_eq!(key.refund(9 * S, 1), allowed(2, 1, 2 * S));
        assert_eq!(key.check(9 * S, 1), allowed(2, 0, 3 * S));
        assert_eq!(key.peek(10 * S, 1), refused(2, 0, S, 2 * S)); // the last write is still at 10 s
        assert_eq!(key.clock_steps(), 0);
    }

    #[test]
    fn more_than_a_second_back_moves_the_last_write() {
        let mut key = Key::new(bucket(1, S, 2));
        key.check(10 * S, 2);
        assert_eq!(key.peek(5 * S, 1), refused(2, 0, S, 2 * S));
        assert_eq!(key.check(5 * S, 0), allowed(2, 0, 2 * S));
        assert_eq!(key.clock_steps(), 0); // neither of these writes
        assert_eq!(key.peek(10 * S, 1), refused(2, 0, S, 2 * S));
        assert_eq!(key.check(5 * S, 1), refused(2, 0, S, 2 * S));
        assert_eq!(key.clock_steps(), 1); // this refusal does
        assert_eq!(key.check(6 * S, 1), allowed(2, 0, 2 * S));
    }

    #[test]
    fn used_tokens_survive_new_numbers() {
        let mut key = Key::new(bucket(1, S, 10));
        key.check(0, 8);
        // After 2.5 s 5.5 are missing. Refusing or peeking does not write that.
        assert_eq!(key.peek(5 * S / 2, 5), refused(10, 4, S / 2, 5_500_000));
        // Of the debt of the last write (8), 2 are excess; 2.5 s at 2/s bring 5 back.
        key.spec = bucket(2, S, 6);
        assert_eq!(key.peek(5 * S / 2, 1), allowed(6, 5, S / 2));
        // Written with 1½ missing, then read in another unit: 2 whole tokens and the excess, a minute each.
        assert_eq!(key.check(11 * S / 4, 1), allowed(6, 4, 3 * S / 4)); // 8→6, −5.5, +1 = 1.5
        key.spec = bucket(1, 60 * S, 6);
        assert_eq!(key.peek(11 * S / 4, 1), allowed(6, 2, 240 * S));
    }

    #[test]
    fn the_same_unit_of_debt_is_not_rounded() {
        let mut key = Key::new(bucket(3, S, 5));
        key.check(0, 2);
        key.check(S / 2, 1); // 2 - 1.5 + 1 = 1.5
        key.spec = bucket(7, S, 3);
        assert_eq!(key.peek(S / 2, 1), allowed(3, 1, 214_286)); // 1.5 / 7 s
        key.spec = bucket(7, S, 1);
        assert_eq!(key.peek(S / 2, 1), refused(1, 0, 142_858, 142_858)); // capped at 1
    }
}
