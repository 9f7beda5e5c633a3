//! The same body over Redis, with injected time.

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tokio::runtime::Runtime;
use tollgate::core::algorithm::Demand;
use tollgate::core::limit::{Opening, Phase, Ticks};
use tollgate::core::{Enforcement, Hit, KeyPattern, Space, Verdicts};
use tollgate::{Bounds, Clock, Descriptor, Limit, MemoryStore, Micros, RedisStore, Store as _, Timestamp};
use tollgate_tests::redis_server::RedisServer;
use tollgate_tests::trace::{any_trace, compare};

use super::config;

/// Runs traces through one server, each with buckets of its own.
fn redis_agrees_with_the_model(tiers: usize, length: usize) {
    let runtime = Runtime::new().expect("a runtime");
    let server = runtime.block_on(RedisServer::start());
    let traces = Cell::new(0);
    let outcome = TestRunner::new(config(300)).run(&any_trace(tiers, length), |(tiers, steps)| {
        traces.set(traces.get() + 1);
        let name = format!("t{}", traces.get());
        let clock = Clock::manual(Timestamp::from_micros(0));
        runtime.block_on(async {
            let store = RedisStore::builder(&server.url())
                .key_prefix(&name)
                .clock(clock.clone())
                .deadline(Duration::from_secs(20))
                .connect()
                .await
                .expect("a URL");
            let clock_steps = compare(&name, &store, &clock, &tiers, &steps).await?;
            prop_assert_eq!(store.stats().clock_steps, clock_steps);
            Ok(())
        })
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// A request may reach one bucket by two rules' worth of hits: it is asked for the sum, and charged it or nothing.
#[tokio::test]
async fn a_key_that_comes_twice_in_a_request_is_asked_for_the_sum_as_in_memory() {
    let server = RedisServer::start().await;
    let clock = Clock::manual(Timestamp::from_micros(1_000_000_000));
    let redis = RedisStore::builder(&server.url())
        .clock(clock.clone())
        .deadline(Duration::from_secs(20))
        .connect()
        .await
        .expect("a URL");
    let memory = MemoryStore::with(clock, Bounds::default());
    let request = Descriptor::new().with("user_id", "1");
    let second = Micros::new(1_000_000);
    for (number, limit) in [
        Limit::new(10, second),
        Limit::interval(10, second, 10, Ticks::Aligned),
        Limit::leaky_bucket(10, second, 9, 0),
        Limit::fixed_window(10, second, Phase::Epoch),
        Limit::sliding_window_log(10, second),
        Limit::sliding_window_counter(10, second, Opening::Epoch),
    ]
    .into_iter()
    .enumerate()
    {
        let limit = limit.expect("in range");
        let pattern = KeyPattern::parse("user:{user_id}").expect("a pattern");
        let space = Space::new(&[&number.to_string()], pattern, 64);
        let hit = |cost| Hit {
            key: space.key(&request),
            limit: &limit,
            demand: Demand { cost, patience: Micros::MAX },
            enforcement: Enforcement::Enforce,
        };
        for costs in [[3, 3], [3, 3], [0, 4], [2, 2], [1, 10], [2, 0]] {
            let hits = costs.map(hit);
            let (mut here, mut there) = (Verdicts::new(), Verdicts::new());
            memory.charge(&hits, &mut here).await.expect("memory answers");
            redis.charge(&hits, &mut there).await.expect("the server answers");
            assert_eq!(here, there, "{limit} with {costs:?}");
        }
    }
}

#[test]
fn redis_agrees_with_the_model_on_one_tier() {
    redis_agrees_with_the_model(1, 60);
}

#[test]
fn redis_agrees_with_the_model_on_several_tiers() {
    redis_agrees_with_the_model(4, 40);
}
