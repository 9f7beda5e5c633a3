//! Durations and failures, counted without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{StoreError, Timestamp};

/// Upper ends of a histogram's classes, in microseconds; beyond the last is a class of its own.
pub const CLASSES_US: [u64; 18] = [
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    1_000_000,
];

/// Counts durations by class.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; CLASSES_US.len() + 1],
    sum_ns: AtomicU64,
}

/// What a [`Histogram`] has counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistogramCounts {
    /// How many fell into each class of [`CLASSES_US`], and last how many took longer than all of them.
    pub counts: [u64; CLASSES_US.len() + 1],
    /// All of them together.
    pub sum_ns: u64,
}

impl Histogram {
    /// Counts a duration.
    #[inline]
    pub fn note(&self, nanos: u64) {
        let class = CLASSES_US.partition_point(|end| end * 1_000 < nanos);
        self.counts[class].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(nanos, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn counts(&self) -> HistogramCounts {
        HistogramCounts {
            counts: self.counts.each_ref().map(|count| count.load(Ordering::Relaxed)),
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
        }
    }
}

/// Calls to a store that one has to wait for.
#[derive(Debug, Default)]
pub(crate) struct StoreMeter {
    took: Histogram,
    errors: [AtomicU64; StoreError::REASONS.len()],
}

/// How calls to the store went. A store in memory is not waited for, and not counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreCalls {
    /// How long they took, those that failed included.
    pub took: HistogramCounts,
    /// How many failed, by [`StoreError::reason`].
    pub errors: Vec<(&'static str, u64)>,
}

impl StoreMeter {
    /// Counts a call, and why the store gave no answer.
    pub(crate) fn record(&self, began: Timestamp, ended: Timestamp, error: Option<StoreError>) {
        self.took.note(ended.since(began).get().saturating_mul(1_000));
        if let Some(error) = error
            && let Some(place) = StoreError::REASONS.iter().position(|reason| *reason == error.reason())
        {
            self.errors[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn calls(&self) -> StoreCalls {
        let counts = self.errors.iter().map(|count| count.load(Ordering::Relaxed));
        StoreCalls { took: self.took.counts(), errors: StoreError::REASONS.into_iter().zip(counts).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_belongs_to_the_first_class_that_it_does_not_exceed() {
        let histogram = Histogram::default();
        for nanos in [0, 1_000, 1_001, 2_000, 1_000_000_000, 1_000_000_001, u64::MAX / 2] {
            histogram.note(nanos);
        }
        let HistogramCounts { counts, .. } = histogram.counts();
        assert_eq!((counts[0], counts[1], counts[17], counts[18]), (2, 2, 1, 2));
        assert_eq!(counts.iter().sum::<u64>(), 7);
    }

    #[test]
    fn calls_are_counted_by_how_long_they_took_and_why_they_failed() {
        let (meter, at) = (StoreMeter::default(), Timestamp::from_micros);
        meter.record(at(0), at(700), None);
        meter.record(at(0), at(50_000), Some(StoreError::Timeout));
        meter.record(at(9), at(0), Some(StoreError::Overloaded)); // the clock was set back meanwhile
        let calls = meter.calls();
        assert_eq!(calls.took.sum_ns, 50_700_000);
        assert_eq!(calls.errors, [("timeout", 1), ("unreachable", 0), ("overloaded", 1), ("rejected", 0)]);
    }
}
