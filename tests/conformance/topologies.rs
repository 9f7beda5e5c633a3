//! The same body over a Cluster of three primaries and behind sentinels, with injected time.

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tokio::runtime::Runtime;
use tollgate::{Clock, RedisStore, Timestamp};
use tollgate_tests::redis_cluster::{RedisCluster, Replicas};
use tollgate_tests::sentinels::Sentinels;
use tollgate_tests::trace::{Slots, Step, TierSpec, any_trace, compare_in};

use super::config;

type Trace = (Vec<TierSpec>, Vec<Step>);

/// Runs traces through what is at a URL, each with buckets of its own.
fn agrees_with_the_model(runtime: &Runtime, url: &str, slots: Slots, traces: &BoxedStrategy<Trace>) {
    let number = Cell::new(0);
    let outcome = TestRunner::new(config(100)).run(traces, |(tiers, steps)| {
        number.set(number.get() + 1);
        let name = format!("{slots:?}{}", number.get());
        let clock = Clock::manual(Timestamp::from_micros(0));
        runtime.block_on(async {
            let store = RedisStore::builder(url)
                .key_prefix(&name)
                .clock(clock.clone())
                .deadline(Duration::from_secs(20))
                .connect_timeout(Duration::from_secs(20))
                .connect()
                .await
                .expect("a URL");
            let clock_steps = compare_in(slots, &name, &store, &clock, &tiers, &steps).await?;
            prop_assert_eq!(store.stats().clock_steps, clock_steps);
            prop_assert_eq!(store.stats().stranded, 0);
            Ok(())
        })
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
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
}
