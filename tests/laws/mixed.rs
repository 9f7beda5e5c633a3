//! Law 13: several limits in use on one bucket, as during a reload, or when callers name different limits for one key.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tollgate::core::algorithm::EXCESS_LIFETIME;
use tollgate::core::limit::{Algorithm, Phase, Ticks};
use tollgate::{Limit, Micros};
use tollgate_tests::trace::{any_limit, any_steps, interval, leaky, token_bucket};

use crate::bounds::bound;
use crate::{World, config};

/// When, how much, and under which limit.
type Admitted = (u64, u64, usize);

/// Tokens per period.
fn count(limit: &Limit) -> u64 {
    limit.to_string().split(['/', ' ']).next().unwrap().parse().unwrap()
}

/// What may be admitted between two instants, both included, whatever the sequence of these limits. Excess expires, so
/// the law covers intervals that are shorter than its lifetime.
fn largest(limits: &[Limit], from: u64, to: u64) -> u128 {
    if to - from >= EXCESS_LIFETIME.get() {
        return u128::MAX;
    }
    let elapsed = u128::from(to - from);
    let is_bucket = |limit: &&Limit| {
        matches!(
            limit.algorithm(),
            Algorithm::TokenBucket(_) | Algorithm::LeakyBucket { .. } | Algorithm::TokenBucketInterval(_)
        )
    };
    let buckets = || limits.iter().filter(is_bucket);
    let refilled = |limit: &Limit| u128::from(count(limit)) * elapsed / u128::from(limit.period().get());
    let ticks = buckets().filter(|limit| matches!(limit.algorithm(), Algorithm::TokenBucketInterval(_)));
    let of_buckets = u128::from(buckets().map(Limit::capacity).max().unwrap_or(0))
        + buckets().map(refilled).max().unwrap_or(0)
        + u128::from(ticks.map(count).max().unwrap_or(0));
    let mut of_windows = BTreeMap::new();
    for limit in limits.iter().filter(|limit| !is_bucket(limit)) {
        let largest = of_windows.entry(limit.identity()).or_insert(0);
        *largest = bound(limit, from, to).max(*largest);
    }
    of_windows.into_values().fold(of_buckets, u128::saturating_add)
}

fn replay(limits: &[Limit], traffic: &[(u64, u64, usize)]) -> Vec<Admitted> {
    let mut world = World::new(&limits[0]);
    let mut admitted = Vec::new();
    for (wait, cost, which) in traffic {
        let which = which % limits.len();
        world.wait(*wait);
        world.change(&limits[which]);
        let cost = if *cost == 0 { world.peek(1).remaining } else { *cost };
        if cost > 0 && world.check(cost).allowed {
            admitted.push((u64::try_from(world.clock.now().as_micros()).unwrap(), cost, which));
        }
    }
    admitted
}

fn mixed(limits: BoxedStrategy<Limit>) -> impl Strategy<Value = (Vec<Limit>, Vec<(u64, u64, usize)>)> {
    prop::collection::vec(limits, 2..4).prop_flat_map(|limits| {
        let steps = any_steps(120, limits.iter().map(|limit| limit.period().get()).collect());
        let traffic = (steps, prop::collection::vec(0..3_usize, 120)).prop_map(|(steps, which)| {
            let wait = |turn: i64| u64::try_from(turn).unwrap_or(0);
            let cost = |cost: (u8, u8)| u64::from(cost.0) * 3 + u64::from(cost.1);
            steps.iter().zip(which).map(|(step, which)| (wait(step.turn), cost(step.cost), which)).collect()
        });
        (Just(limits), traffic)
    })
}

fn no_pair_exceeds_the_largest(limits: &[Limit], admitted: &[Admitted]) -> Result<(), TestCaseError> {
    for (first, (from, ..)) in admitted.iter().enumerate() {
        let mut sum = 0_u128;
        for (to, cost, _) in &admitted[first..] {
            sum += u128::from(*cost);
            let bound = largest(limits, *from, *to);
            prop_assert!(sum <= bound, "{limits:?}: {sum} from {from} to {to}, {bound} is the bound");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(2_000))]

    #[test]
    fn mixed_token_buckets_stay_within_the_largest(
        (limits, traffic) in mixed(prop_oneof![token_bucket(), token_bucket(), leaky()].boxed()),
    ) {
        // A leaky bucket is another bucket than a token bucket: each kind has a bound of its own.
        for kind in [0, 1] {
            let of_kind: Vec<Limit> = limits
                .iter()
                .filter(|limit| usize::from(matches!(limit.algorithm(), Algorithm::LeakyBucket { .. })) == kind)
                .cloned()
                .collect();
            if !of_kind.is_empty() {
                no_pair_exceeds_the_largest(&of_kind, &replay(&of_kind, &traffic))?;
            }
        }
    }

    #[test]
    fn mixed_intervals_stay_within_the_largest((limits, traffic) in mixed(interval())) {
        no_pair_exceeds_the_largest(&limits, &replay(&limits, &traffic))?;
    }

    #[test]
    fn mixed_windows_and_logs_stay_within_the_sum_of_their_lengths((limits, traffic) in mixed(any_limit())) {
        let windows: Vec<Limit> = limits
            .into_iter()
            .filter(|limit| {
                matches!(
                    limit.algorithm(),
                    Algorithm::FixedWindow { .. }
                        | Algorithm::SlidingWindowLog { .. }
                        | Algorithm::SlidingWindowCounter { .. }
                )
            })
            .collect();
        if !windows.is_empty() {
            no_pair_exceeds_the_largest(&windows, &replay(&windows, &traffic))?;
        }
    }
}

/// Greedy traffic that uses each limit in turn, every `step` microseconds.
fn alternating(limits: &[Limit], step: u64, steps: usize) -> Vec<Admitted> {
    let traffic: Vec<_> = (0..steps).map(|number| (step, 0, number)).collect();
    replay(limits, &traffic)
}

fn limits(texts: [&str; 2]) -> [Limit; 2] {
    texts.map(|text| text.parse().unwrap())
}

fn sum(admitted: &[Admitted]) -> u64 {
    admitted.iter().map(|(_, cost, _)| cost).sum()
}

#[test]
fn alternating_rates_admit_no_more_than_the_larger_one() {
    let limits = limits(["1000/s burst 1000", "100/s burst 100"]);
    let admitted = sum(&alternating(&limits, 10_000, 20));
    assert!((1_000..=1_192).contains(&admitted), "{admitted} in 0.19 s");
}

#[test]
fn a_smaller_limit_does_not_forgive_a_large_cost_under_the_larger_one() {
    let [hourly, small] = limits(["100/h burst 100", "100/s burst 5"]);
    let mut world = World::new(&hourly);
    assert!(world.check(95).allowed);
    for _ in 0..10 {
        world.change(&small);
        world.wait(50_000);
        assert!(world.check(5).allowed, "the smaller limit ignores what the larger one admitted");
        world.change(&hourly);
        assert!(!world.check(95).allowed, "and forgives nothing of it");
    }
}

#[test]
fn a_shorter_interval_does_not_credit_the_time_before_the_last_write() {
    let hour = Limit::interval(1_000, Micros::new(3_600_000_000), 1_000, Ticks::FromFirstTake);
    let second = Limit::interval(1_000, Micros::new(1_000_000), 3_600, Ticks::FromFirstTake);
    let (hour, second) = (hour.unwrap(), second.unwrap());
    let mut world = World::new(&hour);
    world.check(1);
    world.wait(3_599_000_000);
    assert!(world.check(999).allowed);
    let mut admitted = 999;
    for limit in [&second, &hour, &second, &hour] {
        world.change(limit);
        let left = world.peek(1).remaining;
        admitted += left;
        assert!(left == 0 || world.check(left).allowed);
    }
    assert!(admitted <= 4_600, "{admitted} at one instant");
}

#[test]
fn two_window_lengths_admit_at_most_the_sum_of_both() {
    let minute = Limit::fixed_window(1_000, Micros::new(60_000_000), Phase::Epoch).unwrap();
    let second = Limit::fixed_window(100, Micros::new(1_000_000), Phase::Epoch).unwrap();
    let admitted = sum(&alternating(&[minute, second], 100_000, 200));
    assert!(admitted <= 1_000 + 21 * 100, "{admitted} in 20 s");
}

#[test]
fn the_wait_under_a_lowered_limit_is_the_lowered_limits_own() {
    let [large, small] = limits(["10/s burst 1000", "10/s burst 10"]);
    let mut world = World::new(&large);
    assert!(world.check(1_000).allowed);
    world.change(&small);
    let refused = world.check(1);
    assert!(!refused.allowed);
    assert_eq!(refused.reset_after.get(), 1_000_000, "990 tokens of excess add nothing to the wait");
    world.wait(1_000_000);
    assert_eq!(world.check(10).remaining, 0);
    world.wait(100_000_000);
    world.change(&large);
    assert_eq!(world.peek(1).remaining, 1_000, "time repaid the debt and then the excess");
}

#[test]
fn a_refund_takes_from_the_debt_first_and_then_from_the_excess() {
    let [large, small] = limits(["1/s burst 100", "1/s burst 10"]);
    let mut world = World::new(&large);
    assert!(world.check(60).allowed);
    world.change(&small);
    assert_eq!(world.refund(25).remaining, 10);
    world.change(&large);
    assert_eq!(world.peek(1).remaining, 100 - 35);
}
