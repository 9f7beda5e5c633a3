//! Counts of decisions: in all, by the second, and how long they took. All of it atomics: nobody waits for a count.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::core::Enforcement;
use tollgate::{Answer, Status, Timestamp};

use crate::api::Totals;

/// Seconds that are looked back on.
pub(crate) const SECONDS: u64 = 900;
/// Seconds there is room for: a power of two, and more than are looked at.
const ROOM: usize = 1_024;
/// A cell has the last 24 bits of its second above a count of 40.
const COUNT_BITS: u32 = 40;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// What became of decisions.
#[derive(Debug)]
pub(super) struct Stats {
    totals: [AtomicU64; 6],
    allowed: Series,
    refused: Series,
    degraded: Series,
}

/// The counts of one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Second {
    pub(crate) allowed: u64,
    pub(crate) refused: u64,
    pub(crate) degraded: u64,
}

impl Stats {
    pub(super) fn new() -> Self {
        let series = Series::new;
        Stats { totals: Default::default(), allowed: series(), refused: series(), degraded: series() }
    }

    pub(super) fn note(&self, answer: &Answer, now: Timestamp) {
        let second = second_of(now);
        let (total, series) = match answer.status() {
            Status::Allowed => (0, &self.allowed),
            Status::Refused => (1, &self.refused),
            Status::Denied => (2, &self.refused),
            Status::Unavailable => (3, &self.refused),
            Status::Invalid => return, // not a decision
        };
        self.totals[total].fetch_add(1, Ordering::Relaxed);
        series.count(second);
        let on_trial = answer.tiers().iter().filter(|tier| tier.enforcement == Enforcement::Shadow);
        if on_trial.into_iter().any(|tier| !tier.verdict().allowed) {
            self.totals[4].fetch_add(1, Ordering::Relaxed);
        }
        if answer.degraded().is_some() {
            self.totals[5].fetch_add(1, Ordering::Relaxed);
            self.degraded.count(second);
        }
    }

    pub(super) fn totals(&self) -> Totals {
        let [allowed, refused, denied, unavailable, shadow_refused, degraded] =
            self.totals.each_ref().map(|total| total.load(Ordering::Relaxed));
        Totals { allowed, refused, denied, unavailable, shadow_refused, degraded }
    }

    /// The counts of a second, of those that are looked back on.
    pub(super) fn second(&self, second: u64) -> Second {
        Second {
            allowed: self.allowed.at(second),
            refused: self.refused.at(second),
            degraded: self.degraded.at(second),
        }
    }
}

/// A count for each of the last seconds.
#[derive(Debug)]
struct Series(Box<[AtomicU64]>);

impl Series {
    fn new() -> Self {
        Series((0..ROOM).map(|_| AtomicU64::new(0)).collect())
    }

    fn cell(&self, second: u64) -> (&AtomicU64, u64) {
        #[expect(clippy::cast_possible_truncation, reason = "the remainder is below the room")]
        let place = (second % ROOM as u64) as usize;
        (&self.0[place], second << COUNT_BITS)
    }

    /// Counts one; the first of a second begins its cell anew.
    fn count(&self, second: u64) {
        let (cell, tag) = self.cell(second);
        let mut known = cell.load(Ordering::Relaxed);
        while known & !COUNT != tag {
            match cell.compare_exchange_weak(known, tag | 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(newer) => known = newer,
            }
        }
        cell.fetch_add(1, Ordering::Relaxed);
    }

    fn at(&self, second: u64) -> u64 {
        let (cell, tag) = self.cell(second);
        let known = cell.load(Ordering::Relaxed);
        if known & !COUNT == tag { known & COUNT } else { 0 }
    }
}

/// The Unix second of an instant.
pub(crate) fn second_of(at: Timestamp) -> u64 {
    u64::try_from(at.as_micros().div_euclid(1_000_000)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_has_its_own_count_and_a_round_later_begins_anew() {
        let series = Series::new();
        let now = 1_800_000_000;
        for _ in 0..3 {
            series.count(now);
        }
        series.count(now + 1);
        assert_eq!((series.at(now), series.at(now + 1), series.at(now + 2)), (3, 1, 0));
        series.count(now + ROOM as u64);
        assert_eq!((series.at(now), series.at(now + ROOM as u64)), (0, 1));
    }

    #[test]
    fn no_count_is_lost_between_threads_that_begin_a_second_together() {
        let series = Series::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|n| series.count(1_800_000_000 + n / 100)));
            }
        });
        assert!((0..100).all(|second| series.at(1_800_000_000 + second) == 400));
    }
}
