//! Every request is remembered until it is one window old.

use super::Bucket;

/// The requests of the last window, oldest first.
#[derive(Debug, Clone)]
pub(super) struct SlidingLog {
    limit: i128,
    length: i128,
    entries: Vec<Entry>,
    last: i128,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    at: i128,
    cost: i128,
}

impl SlidingLog {
    pub(super) fn open(limit: u64, window_us: u64, at: i128) -> Self {
        Self { limit: limit.into(), length: window_us.into(), entries: Vec::new(), last: at }
    }

    /// The entries stay; how long they live is the new window's business.
    pub(super) fn adopt(&self, new: Self) -> Self {
        Self { entries: self.entries.clone(), last: self.last, ..new }
    }

    fn used(&self) -> i128 {
        self.entries.iter().map(|entry| entry.cost).sum()
    }

    /// How long until the entry is one window old.
    fn time_to_leave(&self, entry: &Entry) -> i128 {
        entry.at + self.length - self.last
    }
}

impl Bucket for SlidingLog {
    fn last(&self) -> i128 {
        self.last
    }

    fn step_back(&mut self, now: i128) {
        for entry in &mut self.entries {
            entry.at += now - self.last;
        }
        self.last = now;
    }

    fn advance(&mut self, at: i128) {
        self.entries.retain(|entry| entry.at > at - self.length);
        self.last = at;
    }

    fn is_new(&self) -> bool {
        self.entries.is_empty()
    }

    fn limit(&self) -> i128 {
        self.limit
    }

    fn remaining(&self) -> i128 {
        self.limit - self.used()
    }

    /// Lets the oldest leave one by one until there is room.
    fn wait_for(&self, cost: i128) -> i128 {
        let mut used = self.used();
        for entry in &self.entries {
            used -= entry.cost;
            if used + cost <= self.limit {
                return self.time_to_leave(entry);
            }
        }
        unreachable!("an empty log has room for any cost within the limit")
    }

    fn reset_after(&self) -> i128 {
        self.entries.last().map_or(0, |newest| self.time_to_leave(newest))
    }

    fn take(&mut self, cost: i128) {
        match self.entries.last_mut() {
            Some(newest) if newest.at == self.last => newest.cost += cost,
            _ => self.entries.push(Entry { at: self.last, cost }),
        }
    }

    fn take_out(&mut self, unused: i128, _: i128, since: i128) -> bool {
        let mut counts = false;
        for entry in self.entries.iter_mut().filter(|entry| entry.at == since) {
            entry.cost = (entry.cost - unused).max(0);
            counts = true;
        }
        self.entries.retain(|entry| entry.cost > 0);
        counts
    }

    fn give_back(&mut self, cost: i128) {
        let mut left = cost;
        for entry in self.entries.iter_mut().rev() {
            let given = left.min(entry.cost);
            entry.cost -= given;
            left -= given;
        }
        self.entries.retain(|entry| entry.cost > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Key, allowed, never, refused};
    use super::super::{Algorithm, Spec};

    const S: u64 = 1_000_000;

    fn log(limit: u64, window_us: u64) -> Spec {
        Spec { algorithm: Algorithm::SlidingLog { limit, window_us } }
    }

    #[test]
    fn entries_leave_when_they_are_one_window_old() {
        let mut key = Key::new(log(5, 100));
        assert_eq!(key.peek(1_000, 5), allowed(5, 5, 0));
        assert_eq!(key.check(1_000, 2), allowed(5, 3, 100));
        assert_eq!(key.check(1_010, 1), allowed(5, 2, 100));
        assert_eq!(key.check(1_030, 2), allowed(5, 0, 100));
        assert_eq!(key.check(1_040, 1), refused(5, 0, 60, 90));
        assert_eq!(key.check(1_040, 3), refused(5, 0, 70, 90));
        assert_eq!(key.check(1_040, 4), refused(5, 0, 90, 90));
        assert_eq!(key.check(1_040, 6), never(5, 0, 90));
        assert_eq!(key.peek(1_099, 1), refused(5, 0, 1, 31));
        assert_eq!(key.check(1_100, 1), allowed(5, 1, 100)); // 1, 2 and 1
        assert_eq!(key.peek(1_200, 5), allowed(5, 5, 0));
    }

    #[test]
    fn a_refund_takes_from_the_newest_first() {
        let mut key = Key::new(log(5, 100));
        key.check(1_000, 2);
        key.check(1_050, 2);
        assert_eq!(key.refund(1_060, 3), allowed(5, 4, 40)); // one of 1000 is left
        assert_eq!(key.refund(1_100, 1), allowed(5, 5, 0)); // it left by itself
        assert!(!key.is_stored());
    }

    #[test]
    fn steps_back() {
        let mut key = Key::new(log(5, 10 * S));
        key.check(100 * S, 2);
        key.check(104 * S, 3);
        assert_eq!(key.check(103 * S, 1), refused(5, 0, 7 * S, 11 * S));
        assert_eq!(key.refund(103 * S, 1), allowed(5, 1, 11 * S));
        assert_eq!(key.check(103 * S, 1), allowed(5, 0, 11 * S)); // merges with the entry of 104 s
        assert_eq!(key.peek(104 * S, 3), refused(5, 0, 10 * S, 10 * S));
        assert_eq!(key.check(90 * S, 1), refused(5, 0, 6 * S, 10 * S)); // 86 s and 90 s
        assert_eq!(key.clock_steps(), 1);
        assert_eq!(key.check(96 * S, 2), allowed(5, 0, 10 * S));
    }

    #[test]
    fn entries_survive_new_numbers() {
        let mut key = Key::new(log(5, 100));
        key.check(1_000, 2);
        key.check(1_050, 2);
        key.spec = log(3, 200);
        assert_eq!(key.peek(1_060, 1), refused(3, 0, 140, 190)); // 4 of 3
        assert_eq!(key.peek(1_060, 2), refused(3, 0, 190, 190));
        key.spec = log(3, 50);
        assert_eq!(key.peek(1_060, 1), allowed(3, 1, 40));
    }

    #[test]
    fn a_write_drops_what_is_dead() {
        let mut key = Key::new(log(5, 100));
        key.check(1_000, 2);
        key.check(1_150, 1);
        key.spec = log(5, 1_000);
        assert_eq!(key.peek(1_150, 1), allowed(5, 4, 1_000));
    }
}
