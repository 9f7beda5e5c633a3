//! Time that jumps, on Redis and on the nodes.

use std::time::Duration;

use tollgate::{Clock, Gate, Micros, RedisStore, Timestamp};
use tollgate_tests::redis_server::RedisServer;
use tollgate_tests::rows::Stored as _;

use crate::node::{UNHURRIED, slow_limit};

const HOUR: i64 = 3_600_000_000;
/// Any day will do.
const START: i64 = 1_700_000_000_000_000;

/// A gate on a Redis whose clock the test turns.
async fn turned(server: &RedisServer, limit: &str) -> (Gate<RedisStore>, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(START));
    let redis = RedisStore::builder(&server.url()).deadline(UNHURRIED).clock(clock.clone());
    (Gate::new(limit.parse().unwrap(), redis.connect().await.unwrap()), clock)
}

/// Spends until nothing is left; how much that was.
async fn spend_all(gate: &Gate<RedisStore>) -> u64 {
    let mut spent = 0;
    while gate.allow("k").await.stored().unwrap().allowed {
        spent += 1;
    }
    spent
}

#[tokio::test]
async fn a_clock_that_steps_back_never_credits_twice() {
    let server = RedisServer::start().await;
    let (gate, clock) = turned(&server, "10/h").await;
    assert_eq!(spend_all(&gate).await, 10);
    clock.set(Timestamp::from_micros(START - HOUR));
    assert_eq!(spend_all(&gate).await, 0);
    assert_eq!(gate.store().stats().clock_steps, 1);
    // Half an hour on is half an hour's refill, wherever the clock stands.
    clock.advance(Duration::from_secs(1_800));
    assert_eq!(spend_all(&gate).await, 5);
}

#[tokio::test]
async fn a_clock_that_is_late_by_less_than_a_second_is_no_step() {
    let server = RedisServer::start().await;
    let (gate, clock) = turned(&server, "10/h").await;
    assert_eq!(spend_all(&gate).await, 10);
    clock.set(Timestamp::from_micros(START - 1_000_000));
    let refused = gate.allow("k").await.stored().unwrap();
    assert!(!refused.allowed);
    assert_eq!(
        refused.retry_after,
        Some(Micros::new(361_000_000)),
        "the wait, and what the clock is late by"
    );
    assert_eq!(gate.store().stats().clock_steps, 0);
}

#[tokio::test]
async fn each_step_forward_is_worth_one_burst_at_most() {
    let server = RedisServer::start().await;
    let (gate, clock) = turned(&server, "10/h").await;
    assert_eq!(spend_all(&gate).await, 10);
    for _ in 0..3 {
        clock.advance(Micros::new(1_000 * HOUR.unsigned_abs()));
        assert_eq!(spend_all(&gate).await, 10);
    }
}

#[tokio::test]
async fn to_and_fro_is_worth_one_burst_for_each_step_forward() {
    let server = RedisServer::start().await;
    let (gate, clock) = turned(&server, "10/h").await;
    let mut spent = spend_all(&gate).await;
    for _ in 0..5 {
        clock.set(Timestamp::from_micros(START - HOUR));
        spent += spend_all(&gate).await;
        clock.set(Timestamp::from_micros(START));
        spent += spend_all(&gate).await;
    }
    assert_eq!(spent, 60, "the first burst, and one for each of five steps forward");
}

#[tokio::test]
async fn nodes_hours_apart_give_the_same_answers() {
    let server = RedisServer::start().await;
    let mut nodes = Vec::new();
    for off_us in [0, 5 * HOUR, -5 * HOUR, 24 * 365 * HOUR] {
        let redis =
            RedisStore::builder(&server.url()).deadline(UNHURRIED).clock(Clock::system_off_by(off_us));
        nodes.push(Gate::new(slow_limit(), redis.connect().await.unwrap()));
    }
    for round in 0..10 {
        for (turn, node) in (1..).zip(&nodes) {
            let verdict = node.allow("shared").await.stored().unwrap();
            assert_eq!(verdict.remaining, 1_000 - 4 * round - turn);
            assert!(verdict.reset_after <= Micros::from(Duration::from_secs(41 * 86_400)));
        }
    }
    assert!(nodes.iter().all(|node| node.store().stats().clock_steps == 0));
}
