//! What a limit promises about any interval, checked over all pairs of admissions, and about any window of the clock.

use std::collections::BTreeMap;

use tollgate_core::Limit;
use tollgate_core::lease::TERM;
use tollgate_core::limit::Algorithm;

/// An admission: when, and what it cost.
pub(crate) type Admission = (i64, u64);

/// When the store lost writes, in order. Each may show for as long as leases of before are spent.
pub(crate) type Losses = [i64];

fn losses_in(losses: &Losses, from: i64, to: i64) -> u64 {
    let before = |end: i64| losses.partition_point(|at| *at < end) as u64;
    before(to + 1) - before(from - TERM.get().cast_signed())
}

/// Panics when any interval has more than the larger of two limits promises, with one capacity more for each loss in it.
pub(crate) fn check(limits: &[Limit; 2], mut admitted: Vec<Admission>, losses: &Losses) {
    let [limit, other] = limits;
    admitted.sort_unstable();
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
            let Some(promised) = promise_of_both(limits, time) else { break };
            let cost = sums[last] - before;
            let allowance = losses_in(losses, admitted[first].0, admitted[last].0)
                * limit.capacity().max(other.capacity());
            assert!(
                cost <= promised + allowance,
                "{limit} and {other}: {cost} within {time} us from {}, and {promised} + {allowance} are promised",
                admitted[first].0
            );
        }
    }
}

/// Panics when any window of the clock has more than its limit promises, with one capacity more for each loss in it. Only
/// for a store whose clock was never set: its windows are those of everybody.
pub(crate) fn check_windows(limits: &[Limit; 2], admitted: &[Admission], losses: &Losses) {
    let limit = if limits[0].capacity() >= limits[1].capacity() { &limits[0] } else { &limits[1] };
    let (Algorithm::FixedWindow { limit: promised, window, .. }
    | Algorithm::SlidingWindowCounter { limit: promised, window, .. }) = limit.algorithm()
    else {
        return;
    };
    let mut windows: BTreeMap<i64, u64> = BTreeMap::new();
    for (at, cost) in admitted {
        *windows.entry(at.div_euclid(window.get().cast_signed())).or_default() += cost;
    }
    for (number, cost) in windows {
        let from = number * window.get().cast_signed();
        let promised = promised * (1 + losses_in(losses, from, from + window.get().cast_signed()));
        assert!(cost <= promised, "{limit}: {cost} in window {number}, and {promised} are promised");
    }
}

/// The same where nodes know one of two versions of a limit: the largest capacity and the largest rate.
fn promise_of_both(limits: &[Limit; 2], time: u64) -> Option<u64> {
    if limits[0] == limits[1] {
        return promise(&limits[0], time);
    }
    let refilled = |limit: &Limit| match limit.algorithm() {
        Algorithm::TokenBucket(refill) | Algorithm::LeakyBucket { refill, .. } => {
            Some((time.saturating_mul(refill.rate()) / refill.units(), 0))
        }
        Algorithm::TokenBucketInterval(refill) => {
            Some((time.saturating_mul(refill.count()) / refill.interval().get(), refill.count()))
        }
        _ => None,
    };
    let capacity = limits.iter().map(Limit::capacity).max()?;
    match limits.each_ref().map(refilled) {
        [Some(a), Some(b)] => Some(capacity + a.0.max(b.0) + a.1.max(b.1)),
        _ => limits.iter().filter_map(|limit| promise(limit, time)).max(),
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

#[cfg(test)]
fn twice(limit: &str) -> [Limit; 2] {
    [limit.parse().unwrap(), limit.parse().unwrap()]
}

#[test]
#[should_panic(expected = "11 within 99999 us")]
fn one_too_many_is_seen() {
    let admitted: Vec<Admission> = (0..10).map(|_| (0, 1)).chain([(99_999, 1), (100_000, 1)]).collect();
    check(&twice("10/s"), admitted, &[]);
}

#[test]
#[should_panic(expected = "21 within")]
fn a_loss_excuses_nothing_that_was_over_when_it_came() {
    let admitted = |at: i64| (0..21).map(|_| (at, 1)).collect::<Vec<Admission>>();
    check(&twice("10/d burst 20"), admitted(0), &[0]);
    check(&twice("10/d burst 20"), admitted(-1_000_000), &[0]);
}
