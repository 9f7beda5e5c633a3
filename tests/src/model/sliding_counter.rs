//! Two counts that stand for a sliding window: this one, and what still matters of the one before.

use super::windows::{clock_window, periodic};
use super::{Bucket, Phase};

/// The counts of the window that begins at `start` and of the one before it.
#[derive(Debug, Clone)]
pub(super) struct SlidingCounter {
    limit: i128,
    length: i128,
    phase: Phase,
    start: i128,
    previous: i128,
    current: i128,
    last: i128,
}

impl SlidingCounter {
    /// A window in which nothing is counted yet; with `first` it begins here.
    pub(super) fn open(limit: u64, window_us: u64, phase: &Phase, at: i128) -> Self {
        let length = i128::from(window_us);
        let start = clock_window(phase, length, at).map_or(at, |window| window.start);
        let phase = phase.clone();
        Self { limit: limit.into(), length, phase, start, previous: 0, current: 0, last: at }
    }

    /// The current count moves to the window that contains `last` and the other to the one before it; with
    /// `first`, windows are counted from the old start.
    pub(super) fn adopt(&self, new: Self) -> Self {
        let window = clock_window(&new.phase, new.length, self.last)
            .unwrap_or_else(|| periodic(self.start, new.length, self.last));
        Self { start: window.start, previous: self.previous, current: self.current, last: self.last, ..new }
    }

    /// Where the counts stand at `at`: the start of its window, the count before it and the count in it.
    fn counts(&self, at: i128) -> (i128, i128, i128) {
        let windows_later = (at - self.start).div_euclid(self.length);
        let start = self.start + windows_later * self.length;
        match windows_later {
            0 => (start, self.previous, self.current),
            1 => (start, self.current, 0),
            _ => (start, 0, 0),
        }
    }

    fn estimate(&self, at: i128) -> i128 {
        let (start, previous, current) = self.counts(at);
        let into_window = at - start;
        previous * (self.length - into_window) / self.length + current
    }

    /// The least wait after which no more than `most` is counted.
    ///
    /// The estimate only falls while nobody spends and is 0 two windows later, so halving finds it.
    fn wait_until_at_most(&self, most: i128) -> i128 {
        let (mut too_early, mut enough) = (-1, 2 * self.length);
        while enough - too_early > 1 {
            let middle = (too_early + enough).div_euclid(2);
            if self.estimate(self.last + middle) <= most {
                enough = middle;
            } else {
                too_early = middle;
            }
        }
        enough
    }
}

impl Bucket for SlidingCounter {
    fn last(&self) -> i128 {
        self.last
    }

    fn step_back(&mut self, now: i128) {
        let shifted = self.start + (now - self.last);
        self.start = clock_window(&self.phase, self.length, now).map_or(shifted, |window| window.start);
        self.last = now;
    }

    fn advance(&mut self, at: i128) {
        (self.start, self.previous, self.current) = self.counts(at);
        self.last = at;
    }

    fn is_new(&self) -> bool {
        self.estimate(self.last) == 0
    }

    fn limit(&self) -> i128 {
        self.limit
    }

    fn remaining(&self) -> i128 {
        self.limit - self.estimate(self.last)
    }

    fn wait_for(&self, cost: i128) -> i128 {
        self.wait_until_at_most(self.limit - cost)
    }

    fn reset_after(&self) -> i128 {
        self.wait_until_at_most(0)
    }

    fn take(&mut self, cost: i128) {
        self.current += cost;
    }

    fn take_out(&mut self, unused: i128, _: i128, since: i128) -> bool {
        if !(self.start - self.length..self.start + self.length).contains(&since) {
            return false;
        }
        let count = if since < self.start { &mut self.previous } else { &mut self.current };
        *count = (*count - unused).max(0);
        true
    }

    fn give_back(&mut self, cost: i128) {
        self.current = (self.current - cost).max(0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Key, allowed, never, refused};
    use super::super::{Algorithm, Spec};
    use super::*;

    const S: u64 = 1_000_000;

    fn counter(limit: u64, window_us: u64, phase: Phase) -> Spec {
        Spec { algorithm: Algorithm::SlidingCounter { limit, window_us, phase } }
    }

    #[test]
    fn the_window_before_fades() {
        let mut key = Key::new(counter(10, 100, Phase::Epoch));
        assert_eq!(key.peek(1_030, 10), allowed(10, 10, 0));
        // 8 × (100 - e)/100 is below 1 when e > 87.5, so 88 into the next window.
        assert_eq!(key.check(1_030, 8), allowed(10, 2, 70 + 88));
        assert_eq!(key.check(1_030, 4), refused(10, 2, 70 + 13, 158)); // 8 × 87/100 = 6.96
        assert_eq!(key.check(1_030, 11), never(10, 2, 158));
        assert_eq!(key.check(1_125, 5), refused(10, 4, 1, 63)); // 8 × 74/100 = 5.92
        assert_eq!(key.check(1_137, 5), allowed(10, 0, 63 + 81)); // 5 × 20/100 = 1, 5 × 19/100 < 1
        assert_eq!(key.peek(1_280, 1), allowed(10, 9, 1));
        assert_eq!(key.peek(1_281, 10), allowed(10, 10, 0));
    }

    #[test]
    fn first_windows_begin_with_a_take_and_keep_their_grid_until_new() {
        let mut key = Key::new(counter(10, 100, Phase::First));
        assert_eq!(key.check(1_030, 2), allowed(10, 8, 151)); // 2 × 49/100 < 1
        assert_eq!(key.check(1_140, 2), allowed(10, 7, 90 + 51)); // 2 × 90/100 = 1.8, floored
        assert_eq!(key.check(1_281, 2), allowed(10, 8, 151)); // new: 1230 + 51
    }

    #[test]
    fn a_refund_touches_the_current_window_only() {
        let mut key = Key::new(counter(10, 100, Phase::Epoch));
        key.check(1_050, 8);
        key.check(1_110, 1);
        assert_eq!(key.refund(1_120, 5), allowed(10, 4, 68)); // 8 × 80/100 = 6.4, 0 at e = 88
        assert!(key.is_stored());
        assert_eq!(key.refund(1_188, 1), allowed(10, 10, 0));
        assert!(!key.is_stored());
    }

    #[test]
    fn steps_back() {
        let mut key = Key::new(counter(4, 10 * S, Phase::Epoch));
        key.check(95 * S, 4);
        key.check(105 * S, 1); // 4 × ½ + 1
        assert_eq!(key.peek(105 * S, 1), allowed(4, 1, 5 * S + 1));
        assert_eq!(key.peek(104 * S, 2), refused(4, 1, S + 1, 6 * S + 1));
        // Both counts move: 4 in 80..90 and 1 in 90..100, at e = 2 s.
        assert_eq!(key.check(92 * S, 1), refused(4, 0, 500_001, 8 * S + 1)); // 4 × 7.5/10 = 3
        assert_eq!(key.clock_steps(), 1);
        assert_eq!(key.check(92 * S + 500_001, 1), allowed(4, 0, 7_499_999 + 5_000_001));

        let mut key = Key::new(counter(4, 10 * S, Phase::First));
        key.check(95 * S, 4);
        key.check(110 * S, 2); // window from 105 s, 4 × ½ + 2
        assert_eq!(key.check(92 * S, 1), refused(4, 0, 1, 10 * S + 1)); // still 5 s into it
        assert_eq!(key.peek(93 * S, 1), allowed(4, 1, 9 * S + 1));
    }

    #[test]
    fn counts_move_to_the_window_of_the_last_write() {
        let mut key = Key::new(counter(10, 100, Phase::Epoch));
        key.check(1_050, 8);
        key.check(1_130, 1); // 8 × 70/100 + 1 = 6.6
        key.spec = counter(5, 100, Phase::Epoch); // now 1 over
        assert_eq!(key.peek(1_130, 1), refused(5, 0, 21, 71)); // 8 × 49/100 = 3.92
        key.spec = counter(10, 40, Phase::Epoch); // 1 in 1120..1160, 8 before it
        assert_eq!(key.peek(1_130, 1), allowed(10, 3, 31)); // 8 × 30/40 = 6
        key.spec = counter(10, 20, Phase::First); // 1 in 1120..1140, from 1100
        assert_eq!(key.peek(1_130, 1), allowed(10, 5, 11)); // 8 × 10/20 = 4
    }

    #[test]
    fn looking_for_the_wait_agrees_with_the_formula() {
        let least = |x: i128, m: i128, w: i128| if x <= m { 0 } else { (x - m - 1) * w / x + 1 };
        let zero = |x: i128, w: i128| if x == 0 { 0 } else { w - (w - 1) / x };
        for (w, previous, current, e, limit) in every_state(&[1, 2, 7, 100], 6) {
            let state = SlidingCounter {
                limit,
                length: w,
                phase: Phase::Epoch,
                start: 0,
                previous,
                current,
                last: e,
            };
            for cost in 1..=limit {
                if state.remaining() < cost {
                    let formula = if current + cost <= limit {
                        least(previous, limit - current - cost, w) - e
                    } else {
                        w - e + least(current, limit - cost, w)
                    };
                    assert_eq!(state.wait_for(cost), formula, "{state:?} {cost}");
                }
            }
            let formula = if current > 0 { w - e + zero(current, w) } else { (zero(previous, w) - e).max(0) };
            assert_eq!(state.reset_after(), formula, "{state:?}");
        }
    }

    /// Every state with a window of one of the lengths and counts and limit up to `most`.
    fn every_state(lengths: &[i128], most: i128) -> Vec<(i128, i128, i128, i128, i128)> {
        let mut states = Vec::new();
        for &length in lengths {
            for into_window in 0..length {
                for previous in 0..=most {
                    for current in 0..=most {
                        for limit in 1..=most {
                            states.push((length, previous, current, into_window, limit));
                        }
                    }
                }
            }
        }
        states
    }
}
