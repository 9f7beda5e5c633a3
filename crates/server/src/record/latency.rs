//! How long decisions took, over the last one to two minutes.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::api::Latency;

/// Every doubling is cut into so many parts, so that a number is off by an eighth at most.
const PARTS: u64 = 8;
const PARTS_BITS: u32 = 3;
/// From a nanosecond to some eighteen minutes.
const BUCKETS: usize = 8 * 39;

/// Two minutes of times, each in its own counts.
#[derive(Debug)]
pub(super) struct RecentTimes([Minute; 2]);

#[derive(Debug)]
struct Minute {
    number: AtomicU64,
    longest: AtomicU64,
    counts: [AtomicU64; BUCKETS],
}

impl RecentTimes {
    pub(super) fn new() -> Self {
        let minute = || Minute {
            number: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            counts: [const { AtomicU64::new(0) }; BUCKETS],
        };
        RecentTimes([minute(), minute()])
    }

    pub(super) fn note(&self, nanos: u64, second: u64) {
        let number = second / 60;
        let minute = &self.0[usize::from(number % 2 == 1)];
        let known = minute.number.load(Ordering::Relaxed);
        // Whoever comes first clears it. What others count meanwhile may be lost: times are a sample, not a ledger.
        if known != number
            && minute.number.compare_exchange(known, number, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            minute.clear();
        }
        minute.counts[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
        if nanos > minute.longest.load(Ordering::Relaxed) {
            minute.longest.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// Over this minute and the one before.
    pub(super) fn quantiles(&self, second: u64) -> Latency {
        let number = second / 60;
        let is_recent = |minute: &&Minute| {
            let known = minute.number.load(Ordering::Relaxed);
            known == number || known + 1 == number
        };
        let recent = || self.0.iter().filter(is_recent);
        let mut counts = [0_u64; BUCKETS];
        for minute in recent() {
            for (sum, count) in counts.iter_mut().zip(&minute.counts) {
                *sum += count.load(Ordering::Relaxed);
            }
        }
        let count = counts.iter().sum();
        let max = recent().map(|minute| minute.longest.load(Ordering::Relaxed)).max().unwrap_or(0);
        let at = |per_mille: u64| in_micros(quantile(&counts, count, per_mille).min(max));
        Latency { p50: at(500), p90: at(900), p99: at(990), p999: at(999), max: in_micros(max), count }
    }
}

impl Minute {
    fn clear(&self) {
        self.longest.store(0, Ordering::Relaxed);
        self.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// Microseconds with one decimal: decisions in memory take less than one.
fn in_micros(nanos: u64) -> f64 {
    let tenths = u32::try_from(nanos.div_ceil(100)).unwrap_or(u32::MAX);
    f64::from(tenths) / 10.0
}

fn quantile(counts: &[u64], count: u64, per_mille: u64) -> u64 {
    let wanted = (count * per_mille).div_ceil(1_000);
    let mut seen = 0;
    let reaches = |count: &u64| {
        seen += count;
        seen >= wanted
    };
    counts.iter().position(reaches).map_or(0, largest)
}

/// The counts that a time belongs to.
fn bucket(nanos: u64) -> usize {
    let bits = nanos.max(1).ilog2();
    let place = match bits {
        0..PARTS_BITS => nanos,
        _ => u64::from(bits - PARTS_BITS + 1) * PARTS + ((nanos >> (bits - PARTS_BITS)) & (PARTS - 1)),
    };
    usize::try_from(place).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// The longest time that belongs to it.
fn largest(bucket: usize) -> u64 {
    let place = u64::try_from(bucket).unwrap_or(0);
    match place / PARTS {
        0 => place,
        doubling => ((PARTS + place % PARTS + 1) << (doubling - 1)) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_within_an_eighth_and_never_too_short() {
        for nanos in (0..4_096).chain([10_000, 123_456, 1 << 30, (1 << 40) + 5]) {
            let told = largest(bucket(nanos));
            assert!(told >= nanos && told - nanos <= nanos / 8, "{nanos} {told}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_those_of_the_last_two_minutes() {
        let times = RecentTimes::new();
        for nanos in 1..=1_000 {
            times.note(nanos * 1_000, 6_000);
        }
        let Latency { p50, p99, max, count, .. } = times.quantiles(6_059);
        assert_eq!((max, count), (1_000.0, 1_000));
        assert!((500.0..=562.5).contains(&p50) && (990.0..=1_000.0).contains(&p99), "{p50} {p99}");
        times.note(7, 6_060);
        assert_eq!(times.quantiles(6_060).count, 1_001);
        assert_eq!(times.quantiles(6_120).count, 1, "a minute later the first is forgotten");
        times.note(7, 6_120);
        assert_eq!(times.quantiles(6_120).max, 0.1);
    }
}
