//! A queue that drains at a steady pace: a token bucket that also tells how long to wait.

use super::{Bucket, TokenBucket};

/// A token bucket with room for the queue and the one that is being served.
#[derive(Debug, Clone)]
pub(super) struct Leaky {
    bucket: TokenBucket,
    /// How many may leave at once before the others have to wait.
    free: i128,
}

impl Leaky {
    pub(super) fn open(rate: u64, period_us: u64, queue: u64, free: u64, at: i128) -> Self {
        Self { bucket: TokenBucket::open(rate, period_us, queue + 1, at), free: free.into() }
    }

    pub(super) fn adopt(&self, new: Self) -> Self {
        Self { bucket: self.bucket.adopt(new.bucket), free: new.free }
    }
}

impl Bucket for Leaky {
    fn last(&self) -> i128 {
        self.bucket.last()
    }

    fn step_back(&mut self, now: i128) {
        self.bucket.step_back(now);
    }

    fn advance(&mut self, at: i128) {
        self.bucket.advance(at);
    }

    fn is_new(&self) -> bool {
        self.bucket.is_new()
    }

    fn limit(&self) -> i128 {
        self.bucket.limit()
    }

    fn remaining(&self) -> i128 {
        self.bucket.remaining()
    }

    fn wait_for(&self, cost: i128) -> i128 {
        self.bucket.wait_for(cost)
    }

    fn reset_after(&self) -> i128 {
        self.bucket.reset_after()
    }

    fn delay(&self) -> i128 {
        let ahead = self.bucket.debt() - self.free;
        self.bucket.time_for(ahead.max(0.into()))
    }

    fn take(&mut self, cost: i128) {
        self.bucket.take(cost);
    }

    fn take_out(&mut self, unused: i128, price: i128, since: i128) -> bool {
        self.bucket.take_out(unused, price, since)
    }

    fn repaid_from(&self) -> i128 {
        self.bucket.repaid_from()
    }

    fn give_back(&mut self, cost: i128) {
        self.bucket.give_back(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Key, allowed, never, refused};
    use super::super::{Algorithm, Spec, Verdict};

    const S: u64 = 1_000_000;

    fn queue(rate: u64, queue: u64, free: u64) -> Spec {
        Spec { algorithm: Algorithm::Leaky { rate, period_us: S, queue, free } }
    }

    fn delayed(verdict: Verdict, delay: u64) -> Verdict {
        Verdict { delay, ..verdict }
    }

    #[test]
    fn the_first_leaves_at_once_and_the_others_in_turn() {
        let mut key = Key::new(queue(2, 2, 0));
        assert_eq!(key.check(0, 1), allowed(3, 2, S / 2));
        assert_eq!(key.check(0, 1), delayed(allowed(3, 1, S), S / 2));
        assert_eq!(key.peek(0, 1), delayed(allowed(3, 1, S), S));
        assert_eq!(key.check(0, 1), delayed(allowed(3, 0, 3 * S / 2), S));
        assert_eq!(key.check(0, 1), refused(3, 0, S / 2, 3 * S / 2));
        assert_eq!(key.check(0, 4), never(3, 0, 3 * S / 2));
        assert_eq!(key.check(0, 0), delayed(allowed(3, 0, 3 * S / 2), 3 * S / 2));
        assert_eq!(key.refund(0, 1), allowed(3, 1, S));
    }

    #[test]
    fn a_free_burst_does_not_wait() {
        let mut key = Key::new(queue(1, 4, 2));
        assert_eq!(key.check(0, 1).delay, 0);
        assert_eq!(key.check(0, 1).delay, 0);
        assert_eq!(key.check(0, 1).delay, 0); // 2 before it, both free
        assert_eq!(key.check(0, 1).delay, S);
        assert_eq!(key.check(S / 4, 1).delay, 7 * S / 4); // 3¾ before it
    }

    #[test]
    fn steps_back_and_new_numbers_are_those_of_the_bucket() {
        let mut key = Key::new(queue(1, 2, 0));
        key.check(10 * S, 2);
        // Jitter is added to the waits of the limit, not to the turn in the queue.
        assert_eq!(key.peek(9 * S, 1), delayed(allowed(3, 1, 3 * S), 2 * S));
        assert_eq!(key.peek(9 * S, 2), refused(3, 1, 2 * S, 3 * S));
        assert_eq!(key.check(9 * S - 1, 1), delayed(allowed(3, 0, 3 * S), 2 * S));
        assert_eq!(key.clock_steps(), 1);
        key.spec = queue(2, 1, 0); // 3 missing become 2
        assert_eq!(key.peek(9 * S - 1, 1), refused(2, 0, S / 2, S));
    }

    #[test]
    fn the_second_hit_on_a_key_stands_behind_the_first() {
        let mut key = Key::new(queue(1, 2, 0));
        let verdicts = key.check_all(0, &[1, 1]);
        assert_eq!(verdicts, [allowed(3, 2, S), delayed(allowed(3, 1, 2 * S), S)]);
    }
}
