//! What a limit promises about any interval, checked over all admissions.

use std::collections::BTreeMap;

use tollgate_core::Limit;
use tollgate_core::limit::Algorithm;

/// An admission: when, and what it cost.
pub(crate) type Admission = (i64, u64);

/// When the store lost writes, and for how long leases of before may be spent.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    pub(crate) at: Vec<i64>,
    pub(crate) shows_for: i64,
}

impl Losses {
    fn within(&self, from: i64, to: i64) -> u64 {
        self.at.iter().filter(|at| **at <= to && **at >= from - self.shows_for).count() as u64
    }
}

/// Panics when an interval has more than the larger of two limits promises. Each loss costs at most one capacity and the
/// refill of the leases that were out.
pub(crate) fn check(limits: [&Limit; 2], mut admitted: Vec<Admission>, losses: &Losses) {
    admitted.sort_unstable();
    let refilled = |time: u64| refill_of_both(limits, time);
    let capacity = limits.map(Limit::capacity).into_iter().max().unwrap();
    let per_loss = capacity + refilled(losses.shows_for.unsigned_abs()).unwrap_or(capacity);
    let mut sums = vec![0_u64];
    sums.extend(admitted.iter().scan(0, |sum, (_, cost)| {
        *sum += cost;
        Some(*sum)
    }));
    for first in 0..admitted.len() {
        for last in first..admitted.len() {
            let time = admitted[last].0.abs_diff(admitted[first].0);
            let Some(promised) = promise_of_both(limits, time) else { break };
            let cost = sums[last + 1] - sums[first];
            if cost <= promised {
                continue;
            }
            let allowance = per_loss * losses.within(admitted[first].0, admitted[last].0);
            assert!(
                cost <= promised + allowance,
                "{} and {}: {cost} within {time} us from {}, and {promised} + {allowance} are promised",
                limits[0],
                limits[1],
                admitted[first].0
            );
        }
    }
}

/// Panics when a window of the clock has more than its limit. Only for a store that lost nothing and whose clock was right.
pub(crate) fn check_windows(limits: [&Limit; 2], admitted: &[Admission]) {
    let limit = limits.into_iter().max_by_key(|limit| limit.capacity()).unwrap();
    let (Algorithm::FixedWindow { window, .. } | Algorithm::SlidingWindowCounter { window, .. }) =
        limit.algorithm()
    else {
        return;
    };
    let mut windows: BTreeMap<i64, u64> = BTreeMap::new();
    for (at, cost) in admitted {
        *windows.entry(at.div_euclid(window.get().cast_signed())).or_default() += cost;
    }
    for (number, cost) in windows {
        assert!(cost <= limit.capacity(), "{limit}: {cost} in window {number}");
    }
}

/// The same for one token bucket in one pass: a bucket that is charged with every admission never overflows.
pub(crate) fn check_token_bucket(limit: &Limit, admitted: &mut [Admission]) {
    let Algorithm::TokenBucket(refill) = limit.algorithm() else { panic!("{limit} is no token bucket") };
    admitted.sort_unstable();
    let (mut debt, mut last) = (0_u128, i64::MIN);
    for (at, cost) in admitted {
        let elapsed = u128::from(at.abs_diff(last));
        debt = debt.saturating_sub(elapsed * u128::from(refill.rate()));
        debt += u128::from(*cost) * u128::from(refill.units());
        last = *at;
        let most = u128::from(refill.capacity()) * u128::from(refill.units());
        assert!(debt <= most, "{limit}: {} units too many at {at}", debt - most);
    }
}

/// The most in an interval of so many microseconds, both ends included; `None` where nothing is promised for that long.
fn promise_of_both(limits: [&Limit; 2], time: u64) -> Option<u64> {
    let capacity = limits.map(Limit::capacity).into_iter().max()?;
    match refill_of_both(limits, time) {
        Some(refilled) => Some(capacity + refilled),
        None => limits.into_iter().map(|limit| window_promise(limit, time)).max()?,
    }
}

/// What the faster of two buckets refills; `None` for windows and logs.
fn refill_of_both(limits: [&Limit; 2], time: u64) -> Option<u64> {
    let mut most = [0, 0];
    for limit in limits {
        let (refilled, extra) = match limit.algorithm() {
            Algorithm::TokenBucket(refill) | Algorithm::LeakyBucket { refill, .. } => {
                (time.saturating_mul(refill.rate()) / refill.units(), 0)
            }
            Algorithm::TokenBucketInterval(refill) if limits[0] == limits[1] => {
                (refill.count() * (time / refill.interval().get()), refill.count())
            }
            Algorithm::TokenBucketInterval(refill) => {
                (time.saturating_mul(refill.count()) / refill.interval().get(), refill.count())
            }
            _ => return None,
        };
        most = [most[0].max(refilled), most[1].max(extra)];
    }
    Some(most[0] + most[1])
}

fn window_promise(limit: &Limit, time: u64) -> Option<u64> {
    let promised = match limit.algorithm() {
        Algorithm::SlidingWindowLog { limit, .. } => *limit,
        _ => 2 * limit.capacity(),
    };
    (time < limit.period().get()).then_some(promised)
}

#[test]
#[should_panic(expected = "11 within 99999 us")]
fn one_too_many_is_seen() {
    let limit: Limit = "10/s".parse().unwrap();
    let admitted = (0..10).map(|_| (0, 1)).chain([(99_999, 1), (100_000, 1)]).collect();
    check([&limit, &limit], admitted, &Losses::default());
}

#[test]
#[should_panic(expected = "units too many")]
fn one_too_many_is_seen_in_one_pass() {
    let limit: Limit = "10/s".parse().unwrap();
    let mut admitted: Vec<Admission> = (0..10).map(|_| (0, 1)).chain([(99_999, 1)]).collect();
    check_token_bucket(&limit, &mut admitted);
}
