//! Four `tollgate` processes on one Redis that decide on leases and never without it, while they are stopped, killed and
//! cut off, and Redis forgets: what they admit together, by the merged log of those who asked them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod fleet;
mod log;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use fleet::Fleet;
use tollgate_tests::fault_proxy::{FaultProxy, Mode};
use tollgate_tests::poll;
use tollgate_tests::random::Random;
use tollgate_tests::redis_server::RedisServer;
use tollgate_tests::sentinels::Sentinels;
use tollgate_tests::signals::Signal;

const NODES: usize = 4;
const LIMIT: &str = "400/s burst 150";
/// What was lost is not earned back while a test runs.
const SLOW: &str = "10/s burst 300";
/// Tokens that have come back by then.
const FEW: u64 = 5;
/// A lease lasts half a second.
const LEASE: Duration = Duration::from_millis(500);
const BLACKHOLE: Duration = Duration::from_secs(5);
const KILLS: usize = 4;
/// Whom it hits, and about when.
const SEED: u64 = 9;

/// Four nodes on one Redis, each behind a proxy of its own.
async fn four_behind_proxies(server: &RedisServer) -> (Vec<FaultProxy>, Fleet) {
    let mut proxies = Vec::new();
    for _ in 0..NODES {
        proxies.push(FaultProxy::start(server.port()).await);
    }
    let urls = proxies.iter().map(FaultProxy::url).collect();
    (proxies, Fleet::start(LIMIT, urls).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_stay_within_the_bound_though_they_are_stopped_killed_and_cut_off() {
    let server = RedisServer::start().await;
    let (proxies, mut fleet) = four_behind_proxies(&server).await;
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
    fleet.end().await.check(LIMIT, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_forgets_costs_at_most_one_capacity_each_time() {
    let mut server = RedisServer::start().await;
    let (_proxies, fleet) = four_behind_proxies(&server).await;
    fleet.go_on_for(LEASE).await;
    server.command(&["FLUSHALL"]).await;
    fleet.go_on_for(LEASE).await;
    // It comes back with what was on its disk.
    server.command(&["SAVE"]).await;
    fleet.go_on_for(LEASE).await;
    server.restart().await;
    fleet.until_all_admit().await;
    fleet.go_on_for(LEASE).await;
    server.command(&["FLUSHALL"]).await;
    fleet.go_on_for(LEASE).await;
    fleet.end().await.check(LIMIT, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_that_was_behind_and_a_flush_cost_one_capacity_each() {
    let capacity = log::promised(SLOW, 0);
    let mut sentinels = Sentinels::start().await;
    sentinels.leave_the_replica_behind().await;
    let fleet = Fleet::start(SLOW, vec![sentinels.url(); NODES]).await;
    fleet.until_admitted(capacity).await;
    sentinels.servers[0].server.kill();
    sentinels.until_role(1, "master").await;
    // It has heard of nothing, so all nodes find everything there once more. A few tokens later it is seen to be all.
    fleet.until_all_admit().await;
    fleet.until_admitted(2 * capacity + FEW).await;
    sentinels.servers[1].server.command(&["FLUSHALL"]).await;
    fleet.until_admitted(3 * capacity + 2 * FEW).await;
    let log = fleet.end().await;
    log.check(SLOW, 2);
    let (total, exact) = (log.admitted(), log::promised(SLOW, log.micros()));
    assert!(total > exact + capacity, "two losses show: {total}, where {exact} would be without");
}
