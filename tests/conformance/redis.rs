//! The same body over Redis, with injected time.

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tokio::runtime::Runtime;
use tollgate::{Clock, RedisStore, Timestamp};
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

#[test]
fn redis_agrees_with_the_model_on_one_tier() {
    redis_agrees_with_the_model(1, 60);
}

#[test]
fn redis_agrees_with_the_model_on_several_tiers() {
    redis_agrees_with_the_model(4, 40);
}
