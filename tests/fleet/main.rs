//! One Redis and many processes: together they admit exactly what the limits say.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod fleet;
mod node;

use std::time::Duration;

use tokio::time::Instant;
use tollgate::{Descriptor, Limiter, RedisStore, rules};
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;

use fleet::{Fleet, Tally};

const HOUR_US: i64 = 3_600_000_000;

/// Capacity 1,000 and next to nothing comes back.
const ONE_TIER: &str = "rules: [{ key: 'user:{user_id}', limit: 1/d burst 1000 }]";

/// Four tiers, one of which is short.
const FOUR_TIERS: &str = r#"
rules:
  - { name: user, key: "user:{user_id}", limit: 1/d burst 1000 }
  - { name: endpoint, key: "endpoint:{endpoint}", limit: 10/d burst 50000 }
  - { name: ip, key: "ip:{ip}", limit: 30000/month, algorithm: sliding_window_counter }
  - { name: global, key: global, limit: 90000/month, algorithm: fixed_window }
"#;

/// Every algorithm with room for 1,000, all on one request.
const EVERY_ALGORITHM: &str = r#"
rules:
  - { name: tokens, key: global:a, limit: 1/month burst 1000 }
  - { name: interval, key: global:b, limit: 1000 every 30d }
  - { name: queue, key: global:c, limit: 1/month queue 999 }
  - { name: fixed, key: global:d, limit: 1000/month, algorithm: fixed_window, window: first }
  - { name: calendar, key: global:e, limit: 1000/month, algorithm: fixed_window, window: calendar }
  - { name: log, key: global:f, limit: 1000/month, algorithm: sliding_window_log }
  - { name: counter, key: global:g, limit: 1000/month, algorithm: sliding_window_counter, window: first }
"#;

const ALICE: [&str; 3] = ["user_id=alice", "endpoint=/api/search", "ip=192.0.2.7"];

#[tokio::test]
async fn eight_processes_of_1000_requests_admit_exactly_the_capacity_of_1000() {
    let server = RedisServer::start().await;
    let fleet = Fleet::start(&server, ONE_TIER, &[0; 8], 1_000, &ALICE).await;
    assert_eq!(fleet.run().await, Tally { admitted: 1_000, refused: 7_000, degraded: 0 });
}

#[tokio::test]
async fn a_tier_that_is_short_leaves_the_other_three_untouched_to_the_byte() {
    let server = RedisServer::start().await;
    let flood = async || Fleet::start(&server, FOUR_TIERS, &[0; 8], 1_000, &ALICE).await.run().await;
    assert_eq!(flood().await, Tally { admitted: 1_000, refused: 7_000, degraded: 0 });
    let before = buckets(&server).await;
    assert_eq!(before.len(), 4, "{before:?}");
    assert_eq!(flood().await, Tally { admitted: 0, refused: 8_000, degraded: 0 });
    assert_eq!(buckets(&server).await, before);

    // What the others hold is what the short one let through.
    let limiter = limiter(&server, FOUR_TIERS).await;
    let request = ALICE.iter().filter_map(|pair| pair.split_once('='));
    let request = request.fold(Descriptor::new(), |request, (name, value)| request.with(name, value));
    let answer = limiter.request(&request).peek().await;
    let remaining: Vec<u64> = answer.tiers().iter().map(|tier| tier.verdict().remaining).collect();
    assert_eq!(remaining, [0, 49_000, 29_000, 89_000]);
}

#[tokio::test]
async fn processes_whose_clocks_are_hours_apart_agree_under_every_algorithm() {
    let server = RedisServer::start().await;
    let off = [0, 5 * HOUR_US, -7 * HOUR_US, 24 * 365 * HOUR_US];
    let fleet = Fleet::start(&server, EVERY_ALGORITHM, &off, 1_000, &[]).await;
    assert_eq!(fleet.run().await, Tally { admitted: 1_000, refused: 3_000, degraded: 0 });
}

/// As during a reload: half of the nodes have the new, lower limit.
#[tokio::test]
async fn nodes_that_disagree_about_a_rule_admit_no_more_than_the_larger_limit() {
    let bucket = |limit: &str| format!("rules: [{{ name: r, key: global, limit: {limit} }}]");
    let window = |limit: &str| {
        format!("rules: [{{ name: r, key: global, limit: {limit}, algorithm: fixed_window, window: first }}]")
    };
    for (rules, admitted) in [
        ([bucket("1/d burst 200"), bucket("7/30d burst 20")], 200),
        ([bucket("200 every 30d"), bucket("20 every 1d")], 200),
        ([window("200/30d"), window("20/30d")], 200),
        // Two lengths are two buckets.
        ([window("200/30d"), window("20/20d")], 220),
    ] {
        let (tally, _) = disagree(&rules).await;
        assert_eq!(tally, Tally { admitted, refused: 2_000 - admitted, degraded: 0 }, "{rules:?}");
    }
    // The smaller limit refills quickly, so that each of its admissions is written under its own numbers.
    for rules in [
        [bucket("1/d burst 200"), bucket("1000/s burst 5")],
        [bucket("200 every 30d"), bucket("1 every 1ms burst 5")],
        [bucket("1/d queue 199"), bucket("1000/s queue 4")],
    ] {
        let (tally, took) = disagree(&rules).await;
        let bound = 200 + 2 + u64::try_from(took.as_millis()).unwrap();
        assert!((200..=bound).contains(&tally.admitted), "{rules:?}: {tally:?} of {bound} in {took:?}");
    }
}

/// Four nodes of 500 requests, every second one with the other rules, and how long they took together.
async fn disagree(rules: &[String; 2]) -> (Tally, Duration) {
    let server = RedisServer::start().await;
    let nodes: Vec<(&str, i64)> = (0..4).map(|node| (rules[node % 2].as_str(), 0)).collect();
    let fleet = Fleet::start_each(&server, &nodes, 500, &[]).await;
    let started = Instant::now();
    (fleet.run().await, started.elapsed())
}

/// What a killed node was let do is charged, whether or not it lived to hear of it; what it was not let do is not.
#[tokio::test]
async fn nodes_that_are_killed_at_any_instant_lead_to_no_request_too_many() {
    for spent in [1, 50, 400, 900] {
        let server = RedisServer::start().await;
        let limiter = limiter(&server, ONE_TIER).await;
        let fleet = Fleet::start(&server, ONE_TIER, &[0; 4], 1_000, &ALICE).await;
        let moment =
            poll::until("some to be spent", async || (left(&limiter).await <= 1_000 - spent).then_some(()));
        let survivors = fleet.run_and_kill(2, moment).await;
        assert_eq!((survivors.admitted + survivors.refused, survivors.degraded), (2_000, 0), "after {spent}");
        assert!(survivors.admitted <= 1_000, "after {spent}: {survivors:?}");
        assert_eq!(left(&limiter).await, 0, "after {spent}");
        let later = Fleet::start(&server, ONE_TIER, &[0; 2], 100, &ALICE).await;
        assert_eq!(later.run().await, Tally { admitted: 0, refused: 200, degraded: 0 }, "after {spent}");
    }
}

async fn limiter(server: &RedisServer, text: &str) -> Limiter<RedisStore> {
    let store = RedisStore::builder(&server.url()).deadline(poll::PATIENCE).connect().await.unwrap();
    Limiter::new(rules::parse("rules", text).unwrap(), store)
}

/// What Alice has left under the strictest rule.
async fn left(limiter: &Limiter<RedisStore>) -> u64 {
    let request = ALICE.iter().filter_map(|pair| pair.split_once('='));
    let request = request.fold(Descriptor::new(), |request, (name, value)| request.with(name, value));
    let answer = limiter.request(&request).peek().await;
    assert!(answer.degraded().is_none());
    answer.tiers().iter().map(|tier| tier.verdict().remaining).min().unwrap()
}

/// Everything the store keeps, but for the probe of a node that has just started.
async fn buckets(server: &RedisServer) -> Vec<(String, Vec<u8>)> {
    let mut contents = server.contents().await;
    contents.retain(|(key, _)| !key.contains("probe"));
    contents
}
