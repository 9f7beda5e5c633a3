//! What a limit promises about any interval, checked over all pairs of admissions, and about any window of the clock.

use std::collections::BTreeMap;

use tollgate_core::Limit;
use tollgate_core::limit::Algorithm;

/// An admission: when, and what it cost.
pub(crate) type Admission = (i64, u64);

/// Panics when any interval has more than its limit promises, with so many capacities on top.
pub(crate) fn check(limit: &Limit, mut admitted: Vec<Admission>, losses: u64) {
    admitted.sort_unstable();
    let allowance = losses * limit.capacity();
    let sums: Vec<u64> = admitted
        .iter()
        .scan(0, |sum, (_, cost)| {
            *sum += cost;
            Some(*sum)
        })
        .collect();
    for first in 0..admitted.len() {
        let before = if first == 0 { 0 } else { sums[first - 1] };
        for last in first..admitted.len() {
            let time = admitted[last].0.abs_diff(admitted[first].0);
            let Some(promised) = promise(limit, time) else { break };
            let cost = sums[last] - before;
            assert!(
                cost <= promised + allowance,
                "{limit}: {cost} within {time} us from {}, and {promised} + {allowance} are promised",
                admitted[first].0
            );
        }
    }
}

/// Panics when any window of the clock has more than its limit promises, with so many capacities on top. Only for a store
/// whose clock was never set: its windows are those of everybody.
pub(crate) fn check_windows(limit: &Limit, admitted: &[Admission], losses: u64) {
    let (Algorithm::FixedWindow { limit: promised, window, .. }
    | Algorithm::SlidingWindowCounter { limit: promised, window, .. }) = limit.algorithm()
    else {
        return;
    };
    let mut windows: BTreeMap<i64, u64> = BTreeMap::new();
    for (at, cost) in admitted {
        *windows.entry(at.div_euclid(window.get().cast_signed())).or_default() += cost;
    }
    let promised = promised * (1 + losses);
    for (number, cost) in windows {
        assert!(cost <= promised, "{limit}: {cost} in window {number}, and {promised} are promised");
    }
}

/// The most in an interval of so many microseconds, both ends included; `None` where nothing is promised for that long.
fn promise(limit: &Limit, time: u64) -> Option<u64> {
    let within_a_window = |promised: u64| (time < limit.period().get()).then_some(promised);
    match limit.algorithm() {
        Algorithm::TokenBucket(refill) | Algorithm::LeakyBucket { refill, .. } => {
            Some(refill.capacity() + time.saturating_mul(refill.rate()) / refill.units())
        }
        Algorithm::TokenBucketInterval(refill) => {
            Some(refill.capacity() + refill.count() * (time / refill.interval().get() + 1))
        }
        Algorithm::FixedWindow { limit, .. } | Algorithm::SlidingWindowCounter { limit, .. } => {
            within_a_window(2 * limit)
        }
        Algorithm::SlidingWindowLog { limit, .. } => within_a_window(*limit),
    }
}
