//! The same body over a Cluster of three primaries and behind sentinels, with injected time.

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tokio::runtime::Runtime;
use tollgate::core::limit::{Phase, Ticks};
use tollgate::{Clock, Limit, Micros, RedisStore, Timestamp};
use tollgate_tests::redis_cluster::{RedisCluster, Replicas};
use tollgate_tests::sentinels::Sentinels;
use tollgate_tests::trace::{Slots, Step, TierSpec, Verb, any_trace, compare_in};

use super::config;

type Trace = (Vec<TierSpec>, Vec<Step>);

/// Runs traces through what is at a URL, each with buckets of its own.
fn agrees_with_the_model(runtime: &Runtime, url: &str, slots: Slots, traces: &BoxedStrategy<Trace>) {
    let number = Cell::new(0);
    let outcome = TestRunner::new(config(100)).run(traces, |(tiers, steps)| {
        number.set(number.get() + 1);
        let name = format!("{slots:?}{}", number.get());
        runtime.block_on(one_trace_agrees(url, slots, &name, &tiers, &steps))
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

async fn one_trace_agrees(
    url: &str,
    slots: Slots,
    name: &str,
    tiers: &[TierSpec],
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let clock = Clock::manual(Timestamp::from_micros(0));
    let store = RedisStore::builder(url)
        .key_prefix(name)
        .clock(clock.clone())
        .deadline(Duration::from_secs(20))
        .connect_timeout(Duration::from_secs(20))
        .connect()
        .await
        .expect("a URL");
    let clock_steps = compare_in(slots, name, &store, &clock, tiers, steps).await?;
    prop_assert_eq!(store.stats().clock_steps, clock_steps);
    prop_assert_eq!(store.stats().stranded, 0);
    Ok(())
}

#[test]
fn a_redis_that_sentinels_name_agrees_with_the_model() {
    let runtime = Runtime::new().expect("a runtime");
    let sentinels = runtime.block_on(Sentinels::start());
    agrees_with_the_model(&runtime, &sentinels.url(), Slots::Shared, &any_trace(4, 40));
}

#[test]
fn a_cluster_agrees_with_the_model_on_tiers_of_one_slot_and_of_several() {
    let runtime = Runtime::new().expect("a runtime");
    let cluster = runtime.block_on(RedisCluster::start(Replicas::None));
    agrees_with_the_model(&runtime, &cluster.url(), Slots::Shared, &any_trace(4, 40));
    agrees_with_the_model(&runtime, &cluster.url(), Slots::Apart, &any_trace(4, 40));
    let forward = any_trace(4, 40).prop_map(|(tiers, mut steps)| {
        steps.iter_mut().for_each(|step| (step.turn, step.config) = (step.turn.max(0), 0));
        (tiers, steps)
    });
    agrees_with_the_model(&runtime, &cluster.url(), Slots::Unnoticed, &forward.boxed());
    let (tiers, steps) = a_hold_returned_to_a_bucket_with_excess();
    let outcome = runtime.block_on(one_trace_agrees(&cluster.url(), Slots::Apart, "excess", &tiers, &steps));
    outcome.expect("a return leaves the ticks of an interval bucket where they are");
}

/// An interval bucket repays excess under a smaller limit when a hold is returned to it; then the larger limit is used.
fn a_hold_returned_to_a_bucket_with_excess() -> Trace {
    let second = Micros::new(1_000_000);
    let small = Limit::interval(1, Micros::new(682_637), 3, Ticks::FromFirstTake).expect("a limit");
    let large = Limit::interval(1, second, 164, Ticks::Aligned).expect("a limit");
    let used_up = Limit::fixed_window(1, Micros::new(3_600_000_000), Phase::Epoch).expect("a limit");
    let tiers = vec![
        TierSpec { limits: [small, large], shadow: false },
        TierSpec { limits: [used_up.clone(), used_up], shadow: false },
    ];
    let step = |turn, verb, tiers, cost, config| Step { turn, verb, user: 0, tiers, cost, config };
    let steps = vec![
        step(0, Verb::Check, 0b11, (0, 1), 1),
        step(2_365_280, Verb::Check, 0b01, (8, 1), 0),
        step(-2_365_275, Verb::Refund, 0b01, (0, 1), 1),
        step(1_045_658, Verb::Check, 0b11, (0, 1), 0),
        step(37_499_999, Verb::Check, 0b01, (0, 1), 1),
    ];
    (tiers, steps)
}
