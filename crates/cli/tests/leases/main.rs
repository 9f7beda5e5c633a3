//! Four `tollgate` processes on one Redis that decide on leases and never without it, while they are stopped, killed and
//! cut off, and Redis forgets: what they admit together, by the merged log of those who asked them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![expect(clippy::print_stdout, reason = "it reports what was admitted")]

mod fleet;
mod log;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::time::Duration;

use fleet::{Crowd, Fleet};
use serde_json::Value;
use support::{Served, body, status};
use tollgate_tests::fault_proxy::{FaultProxy, Mode};
use tollgate_tests::poll;
use tollgate_tests::random::Random;
use tollgate_tests::redis_server::RedisServer;
use tollgate_tests::scratch::Scratch;
use tollgate_tests::sentinels::Sentinels;
use tollgate_tests::signals::Signal;

const NODES: usize = 4;
const LIMIT: &str = "400/s burst 150";
/// So much that leases are large, and soon earned back.
const ROOMY: &str = "300/s burst 1500";
/// A loss shows: its capacity takes 80 s to refill.
const SLOW: &str = "50/s burst 4000";
/// Tokens that have come back by then.
const FEW: u64 = 5;
/// Longer than the leases of this period and the next.
const LEASE: Duration = Duration::from_millis(500);
/// How often a test is tried that a busy machine may spoil.
const ATTEMPTS: usize = 4;
const BLACKHOLE: Duration = Duration::from_secs(5);
const KILLS: usize = 4;
/// Whom it hits, and about when.
const SEED: u64 = 9;

/// Nodes on one Redis, each behind a proxy of its own.
async fn behind_proxies(
    server: &RedisServer,
    limit: &'static str,
    nodes: usize,
    crowd: Crowd,
) -> (Vec<FaultProxy>, Fleet) {
    let mut proxies = Vec::new();
    for _ in 0..nodes {
        proxies.push(FaultProxy::start(server.port()).await);
    }
    let urls = proxies.iter().map(FaultProxy::url).collect();
    (proxies, Fleet::start(limit, urls, crowd).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_stay_within_the_bound_though_they_are_stopped_killed_and_cut_off() {
    let server = RedisServer::start().await;
    let (proxies, mut fleet) = behind_proxies(&server, LIMIT, NODES, Crowd::FEW).await;
    let mut random = Random::new(SEED);
    fleet.go_on_for(LEASE).await;
    // Stopped for longer than a lease lasts, with what it holds.
    fleet.signal(0, Signal::Stop);
    fleet.go_on_for(2 * LEASE).await;
    fleet.signal(0, Signal::Continue);
    fleet.until_all_admit().await;
    // Killed at any instant, and replaced.
    for _ in 0..KILLS {
        fleet.go_on_for(Duration::from_micros(random.next() % 300_000)).await;
        fleet.replace(random.below(NODES)).await;
    }
    // Cut off, while one of the others is stopped and dies, and another is stopped and goes on.
    proxies[2].set(Mode::Blackhole).await;
    fleet.signal(1, Signal::Stop);
    fleet.signal(3, Signal::Stop);
    fleet.go_on_for(2 * LEASE).await;
    fleet.replace(1).await;
    fleet.go_on_for(LEASE).await;
    fleet.signal(3, Signal::Continue);
    fleet.go_on_for(BLACKHOLE).await;
    proxies[2].set(Mode::Pass).await;
    fleet.until_all_admit().await;
    // No answer reaches anybody, until everybody has given up and connects anew.
    for proxy in &proxies {
        proxy.set(Mode::DropReplies).await;
    }
    for proxy in &proxies {
        let before = proxy.accepted();
        poll::until("a new connection", async || (proxy.accepted() >= before + 2).then_some(())).await;
    }
    for proxy in &proxies {
        proxy.set(Mode::Pass).await;
    }
    fleet.until_all_admit().await;
    fleet.go_on_for(LEASE).await;
    fleet.end().await.check(LIMIT);
}

/// How a node is kept from giving back what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Stopped,
    CutOff,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_process_held_is_not_spent_when_its_lease_is_over() {
    for kept in [Kept::Stopped, Kept::CutOff] {
        let server = RedisServer::start().await;
        let (proxies, fleet) = behind_proxies(&server, ROOMY, 2, Crowd::MANY).await;
        fleet.ask_only(&[0]);
        // It is asked so often that it has a good many in its hand when that happens, and is not asked any more.
        poll::until("tokens to be held", async || {
            (fleet.bucket(0)["held"].as_u64() > Some(10) && fleet.admitted() > 100).then_some(())
        })
        .await;
        match kept {
            Kept::Stopped => fleet.signal(0, Signal::Stop),
            Kept::CutOff => proxies[0].set(Mode::Blackhole).await,
        }
        fleet.ask_only(&[]);
        // Its lease is over and was earned back: everything is there for the other.
        let capacity = log::promised(ROOMY, 0);
        poll::until("a full bucket", async || (fleet.bucket(1)["remaining"] == capacity).then_some(())).await;
        if kept == Kept::Stopped {
            fleet.signal(0, Signal::Continue);
        }
        // Now everything is spent, and what comes back: one token more would show.
        let before = fleet.admitted();
        fleet.ask_only(&[0, 1]);
        fleet.until_admitted(before + log::promised(ROOMY, 3_000_000)).await;
        fleet.end().await.check(ROOMY);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_forgets_costs_at_most_one_capacity_each_time() {
    let mut server = RedisServer::start().await;
    let (_proxies, fleet) = behind_proxies(&server, LIMIT, NODES, Crowd::FEW).await;
    fleet.go_on_for(LEASE).await;
    fleet.losing(async { _ = server.command(&["FLUSHALL"]).await }).await;
    fleet.go_on_for(2 * LEASE).await;
    // It comes back with nothing, and later with what was on its disk.
    fleet.losing(server.restart()).await;
    fleet.until_all_admit().await;
    server.command(&["SAVE"]).await;
    fleet.go_on_for(2 * LEASE).await;
    fleet.losing(server.restart()).await;
    fleet.until_all_admit().await;
    fleet.go_on_for(2 * LEASE).await;
    fleet.end().await.check(LIMIT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_that_was_behind_and_a_flush_cost_one_capacity_each() {
    let capacity = log::promised(SLOW, 0);
    let mut sentinels = Sentinels::start().await;
    sentinels.leave_the_replica_behind().await;
    let fleet = Fleet::start(SLOW, vec![sentinels.url(); NODES], Crowd::FEW).await;
    fleet.until_admitted(capacity).await;
    let [primary, replica] = [0, 1];
    fleet
        .losing(async {
            sentinels.servers[primary].server.kill();
            sentinels.until_role(replica, "master").await;
        })
        .await;
    // It has heard of nothing, so all nodes find everything there once more. A few tokens later it is seen to be all.
    fleet.until_all_admit().await;
    fleet.until_admitted(2 * capacity + FEW).await;
    fleet.losing(async { _ = sentinels.servers[replica].server.command(&["FLUSHALL"]).await }).await;
    fleet.until_admitted(3 * capacity + 2 * FEW).await;
    let log = fleet.end().await;
    log.check(SLOW);
    let (total, exact) = (log.admitted(), log::promised(SLOW, log.micros()));
    assert!(total > exact + capacity, "two losses show: {total}, where {exact} would be without");
}

/// A rules file, and the arguments that name it and a Redis.
fn serve(server: &RedisServer, rules: &str, scratch: &Scratch) -> Served {
    let file = scratch.path().join("rules.yaml");
    fs::write(&file, rules).unwrap();
    // A busy machine is no reason to decide without Redis.
    let unhurried = ["--store-deadline-ms", "5000"];
    Served::start(&[&["--rules", file.to_str().unwrap(), "--store", &server.url()][..], &unhurried].concat())
}

/// What `GET /v1/keys/{key}` says of the first bucket.
fn bucket(served: &Served, key: &str) -> Value {
    let answer: Value = serde_json::from_str(&body(&served.get(&format!("/v1/keys/{key}")))).unwrap();
    answer["buckets"][0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_told_to_stop_gives_back_what_it_holds() {
    // On a busy machine a lease may end before it is renewed, and what it had is lost. Then it is tried again.
    for _ in 0..ATTEMPTS {
        let (server, scratch) = (RedisServer::start().await, Scratch::new("stop"));
        let rules = "rules: [{ name: all, key: global, limit: 100000 every 1d, consistency: leased }]";
        let (served, other) = (serve(&server, rules, &scratch), serve(&server, rules, &scratch));
        let (mut connection, mut admitted, mut told) = (served.keep_alive(), 0, false);
        // It is asked until it answers no more, so that it is told to stop with tokens in its lease.
        while let Ok(answer) = connection.ask("POST", "/v1/check", r#"{"attributes": {}}"#) {
            assert_eq!(status(&answer), 200);
            admitted += 1;
            if !told && admitted % 500 == 0 && bucket(&served, "global")["held"].as_u64() > Some(0) {
                Signal::Terminate.send(served.pid());
                told = true;
            }
        }
        assert!(told, "it ended by itself, after {admitted}");
        assert_eq!(served.wait(), Some(0));
        let left = bucket(&other, "global")["remaining"].as_u64().unwrap();
        assert!(left <= 100_000 - admitted, "{left} are left after {admitted}");
        if left == 100_000 - admitted {
            return;
        }
    }
    panic!("tokens were lost in each of {ATTEMPTS} attempts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_decisions_are_made_is_told_of_every_key_and_rule() {
    let (server, scratch) = (RedisServer::start().await, Scratch::new("keys"));
    let rules = "rules:
      - { name: hot, key: global, limit: 100000 every 1d, consistency: leased }
      - { name: warm, key: 'endpoint:{endpoint}', limit: 100000 every 1d, consistency: auto }
      - { name: cold, key: 'user:{user_id}', limit: 100000 every 1d, consistency: auto }
      - { name: mine, key: 'ip:{ip}', limit: 1/d burst 100, consistency: local }
      - { name: plain, key: 'tenant:{tenant}', limit: 1/d burst 100 }";
    let served = serve(&server, rules, &scratch);
    let in_force = |key: &str| {
        let bucket = bucket(&served, key);
        let word = |field: &str| bucket[field].as_str().unwrap().to_owned();
        (word("consistency"), word("in_force"))
    };
    let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
    assert_eq!(in_force("global"), pair("leased", "exact"), "nobody asks");
    let once = r#"{"attributes": {"user_id": "1", "ip": "10.0.0.1", "tenant": "a"}, "cost": 10}"#;
    assert_eq!(status(&served.post("/v1/check", once)), 200);
    let often = r#"{"attributes": {"endpoint": "/a"}, "cost": 20}"#;
    let mut connection = served.keep_alive();
    poll::until("a lease", async || {
        for _ in 0..20 {
            assert_eq!(status(&connection.ask("POST", "/v1/check", often).unwrap()), 200);
        }
        (in_force("endpoint:%2Fa").1 == "leased" && in_force("global").1 == "leased").then_some(())
    })
    .await;
    assert_eq!(in_force("user:1"), pair("auto", "exact"));
    assert_eq!(in_force("ip:10.0.0.1"), pair("local", "local"));
    assert_eq!(in_force("tenant:a"), pair("exact", "exact"));
    assert_eq!(bucket(&served, "ip:10.0.0.1")["remaining"], 90);
    for _ in 0..20 {
        assert_eq!(status(&connection.ask("POST", "/v1/check", often).unwrap()), 200);
    }
    let metrics = body(&served.get("/metrics"));
    let value = |name: &str| {
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name}: {metrics}")).parse::<u64>().unwrap()
    };
    assert_eq!(value(r#"tollgate_leases{rule="hot"}"#), 1);
    assert_eq!(value(r#"tollgate_leases{rule="warm"}"#), 1);
    assert_eq!(value(r#"tollgate_leases{rule="cold"}"#), 0);
    assert_eq!(value(r#"tollgate_lease_decisions_total{by="share"}"#), 1);
    assert!(value(r#"tollgate_lease_decisions_total{by="held"}"#) > 0);
    assert_eq!(value("tollgate_fleet_nodes"), 1);
}
