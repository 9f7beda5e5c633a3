//! A count that starts over with every window.

use std::ops::Range;

use super::windows::{clock_window, periodic};
use super::{Bucket, Phase};

/// What was counted in one window.
#[derive(Debug, Clone)]
pub(super) struct FixedWindow {
    limit: i128,
    length: i128,
    phase: Phase,
    window: Range<i128>,
    count: i128,
    last: i128,
}

impl FixedWindow {
    /// A window in which nothing is counted yet; with `first` it begins here.
    pub(super) fn open(limit: u64, window_us: u64, phase: &Phase, at: i128) -> Self {
        let length = i128::from(window_us);
        let window = clock_window(phase, length, at).unwrap_or(at..at + length);
        Self { limit: limit.into(), length, phase: phase.clone(), window, count: 0, last: at }
    }

    /// The count moves to the window that contains `last`; with `first`, the old start begins the grid.
    pub(super) fn adopt(&self, new: Self) -> Self {
        let window = clock_window(&new.phase, new.length, self.last)
            .unwrap_or_else(|| periodic(self.window.start, new.length, self.last));
        Self { window, count: self.count, last: self.last, ..new }
    }

    fn time_to_end(&self) -> i128 {
        self.window.end - self.last
    }
}

impl Bucket for FixedWindow {
    fn last(&self) -> i128 {
        self.last
    }

    fn step_back(&mut self, now: i128) {
        let shift = now - self.last;
        self.window = clock_window(&self.phase, self.length, now)
            .unwrap_or(self.window.start + shift..self.window.end + shift);
        self.last = now;
    }

    fn advance(&mut self, at: i128) {
        if at >= self.window.end {
            self.count = 0;
        }
        self.last = at;
    }

    fn is_new(&self) -> bool {
        self.count == 0
    }

    fn limit(&self) -> i128 {
        self.limit
    }

    fn remaining(&self) -> i128 {
        self.limit - self.count
    }

    fn wait_for(&self, _cost: i128) -> i128 {
        self.time_to_end()
    }

    fn reset_after(&self) -> i128 {
        if self.count == 0 { 0 } else { self.time_to_end() }
    }

    fn take(&mut self, cost: i128) {
        self.count += cost;
    }

    fn take_out(&mut self, unused: i128, _: i128, since: i128) -> bool {
        let counts = self.window.contains(&since);
        if counts {
            self.give_back(unused);
        }
        counts
    }

    fn give_back(&mut self, cost: i128) {
        self.count = (self.count - cost).max(0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Key, allowed, never, refused};
    use super::super::{Algorithm, CalendarUnit, Spec};
    use super::*;

    const S: u64 = 1_000_000;

    fn fixed(limit: u64, window_us: u64, phase: Phase) -> Spec {
        Spec { algorithm: Algorithm::FixedWindow { limit, window_us, phase } }
    }

    #[test]
    fn a_window_admits_its_limit_and_ends_on_the_clock() {
        let mut key = Key::new(fixed(5, 100, Phase::Epoch));
        assert_eq!(key.peek(1_030, 5), allowed(5, 5, 0));
        assert_eq!(key.check(1_030, 4), allowed(5, 1, 70));
        assert_eq!(key.check(1_099, 2), refused(5, 1, 1, 1));
        assert_eq!(key.check(1_099, 6), never(5, 1, 1));
        assert_eq!(key.check(1_099, 1), allowed(5, 0, 1));
        assert_eq!(key.peek(1_100, 5), allowed(5, 5, 0));

        let mut key = Key::new(fixed(5, 100, Phase::Spread { phase_us: 40 }));
        assert_eq!(key.check(1_030, 4), allowed(5, 1, 10));
        assert_eq!(key.check(1_040, 4), allowed(5, 1, 100));
    }

    #[test]
    fn a_window_that_begins_with_the_first_take_ends_for_good() {
        let mut key = Key::new(fixed(5, 100, Phase::First));
        assert_eq!(key.check(1_030, 4), allowed(5, 1, 100));
        assert_eq!(key.check(1_129, 2), refused(5, 1, 1, 1));
        assert_eq!(key.check(1_150, 2), allowed(5, 3, 100));
    }

    #[test]
    fn a_calendar_day_ends_at_midnight() {
        let phase = Phase::Calendar { unit: CalendarUnit::Day, time_zone: "Asia/Tokyo".into() };
        let mut key = Key::new(fixed(5, 1, phase));
        assert_eq!(key.check(14 * 3_600 * S, 4), allowed(5, 1, 3_600 * S)); // 23:00 there
        assert_eq!(key.peek(15 * 3_600 * S, 5), allowed(5, 5, 0));
    }

    #[test]
    fn a_window_emptied_by_refunds_is_new() {
        let mut key = Key::new(fixed(5, 100, Phase::First));
        key.check(1_030, 4);
        assert_eq!(key.refund(1_050, 1), allowed(5, 2, 80));
        assert_eq!(key.refund(1_050, 4), allowed(5, 5, 0));
        assert!(!key.is_stored());
        assert_eq!(key.check(1_060, 1), allowed(5, 4, 100));
        assert_eq!(key.refund(1_160, 1), allowed(5, 5, 0)); // that window is over
        assert!(!key.is_stored());
    }

    #[test]
    fn steps_back() {
        let mut key = Key::new(fixed(5, 10 * S, Phase::Epoch));
        key.check(100 * S, 5);
        assert_eq!(key.peek(99 * S, 1), refused(5, 0, 11 * S, 11 * S));
        assert_eq!(key.clock_steps(), 0);
        assert_eq!(key.check(98 * S, 1), refused(5, 0, 2 * S, 2 * S)); // counted in 90..100 now
        assert_eq!(key.clock_steps(), 1);
        assert_eq!(key.check(100 * S, 1), allowed(5, 4, 10 * S));

        let mut key = Key::new(fixed(5, 10 * S, Phase::First));
        key.check(100 * S, 4);
        key.check(104 * S, 1);
        assert_eq!(key.peek(103 * S, 1), refused(5, 0, 7 * S, 7 * S));
        assert_eq!(key.check(98 * S, 1), refused(5, 0, 6 * S, 6 * S)); // 94..104
        assert_eq!(key.check(99 * S, 0), allowed(5, 0, 5 * S));
    }

    #[test]
    fn a_step_back_may_meet_a_window_that_was_over() {
        let mut key = Key::new(fixed(5, 10 * S, Phase::First));
        key.check(100 * S, 4);
        assert_eq!(key.check(200 * S, 6), never(5, 5, 0));
        assert_eq!(key.peek(105 * S, 1), allowed(5, 1, 5 * S));
    }

    #[test]
    fn the_count_moves_to_the_window_of_the_last_write() {
        let mut key = Key::new(fixed(5, 100, Phase::Epoch));
        key.check(1_030, 1);
        key.check(1_070, 3); // counted in 1000..1100, last at 1070
        key.spec = fixed(3, 100, Phase::Epoch);
        assert_eq!(key.peek(1_080, 1), refused(3, 0, 20, 20)); // 4 of 3
        key.spec = fixed(5, 40, Phase::Epoch); // 1040..1080
        assert_eq!(key.peek(1_079, 2), refused(5, 1, 1, 1));
        assert_eq!(key.peek(1_080, 2), allowed(5, 5, 0));
        key.spec = fixed(5, 60, Phase::First); // 1060..1120, from 1000
        assert_eq!(key.peek(1_080, 2), refused(5, 1, 40, 40));
        key.spec = fixed(5, 100, Phase::First); // 1000..1100
        assert_eq!(key.check(1_090, 1), allowed(5, 0, 10));
        key.spec = fixed(5, 100, Phase::Spread { phase_us: 80 }); // 1080..1180
        assert_eq!(key.peek(1_100, 1), refused(5, 0, 80, 80));
    }
}
