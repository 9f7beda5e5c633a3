//! A Redis that does not answer: slow, hung, blackholed, dead.

use std::time::Duration;

use tokio::time::Instant;
use tollgate::{Gate, RedisStore, StoreError};
use tollgate_tests::fault_proxy::Mode;
use tollgate_tests::poll;
use tollgate_tests::rows::Stored as _;

use crate::node::{CAPACITY, Node, UNHURRIED, USUAL, slow_limit};

/// How many requests may pay the deadline before the breaker opens: about 20.
const ABOUT_TWENTY: std::ops::RangeInclusive<usize> = 10..=30;

/// What a Redis that is silent must look like to a node, from the first request to the last.
async fn is_lost(node: &Node) {
    let outages = node.gate.store().stats().outages;
    let asked = Instant::now();
    let paid = node.open_the_breaker().await;
    assert!(ABOUT_TWENTY.contains(&paid), "{paid} requests paid the deadline");
    assert!(asked.elapsed() > USUAL * 5, "they waited for the store");

    // From now on nobody waits. If these paid the deadline, they would take 25 s.
    let asked = Instant::now();
    for _ in 0..500 {
        assert!(node.spend("by policy").await.is_err());
    }
    assert!(asked.elapsed() < USUAL * 100, "500 decisions took {:?}", asked.elapsed());
    one_probe_at_a_time(node).await;
    assert_eq!(node.gate.store().stats().in_flight, 0);
    assert_eq!(node.gate.store().stats().outages, outages + 1);
}

/// Sees several probes go by and never two at once.
async fn one_probe_at_a_time(node: &Node) {
    let before = node.proxy.accepted();
    let mut most = 0;
    poll::until("a few probes", async || {
        most = most.max(node.proxy.open());
        (node.proxy.accepted() >= before + 4).then_some(())
    })
    .await;
    // One that has been given up may still be on its way out.
    assert!(most <= 2, "{most} connections at once");
}

/// Decisions are made again, and what was logged is the loss and the return.
async fn is_back(node: &Node) {
    node.recovered().await;
    // A decision that is late on a busy machine may be charged, so each attempt has a key of its own.
    let mut attempt = 0;
    let left = poll::until("a decision in time", async || {
        attempt += 1;
        node.spend(&format!("afterwards {attempt}")).await.ok()
    });
    assert_eq!(left.await, CAPACITY - 1);
    let count = |lines: &[String], level| lines.iter().filter(|line| line.contains(level)).count();
    let lines = poll::until("the recovery to be logged", async || {
        Some(node.logged()).filter(|lines| count(lines, " INFO ") > 0)
    })
    .await;
    let changes = (count(&lines, " WARN "), count(&lines, " INFO "));
    assert_eq!(changes, (1, 1), "one line for each change: {lines:#?}");
}

#[tokio::test]
async fn a_slow_redis_costs_about_twenty_deadlines_and_recovers() {
    let node = Node::with_deadline(USUAL).await;
    node.proxy.set(Mode::Delay(Duration::from_secs(60))).await;
    is_lost(&node).await;
    node.proxy.set(Mode::Pass).await;
    is_back(&node).await;
}

#[tokio::test]
async fn a_hung_redis_costs_about_twenty_deadlines_and_recovers() {
    let node = Node::with_deadline(USUAL).await;
    node.server.stop();
    is_lost(&node).await;
    node.server.cont();
    is_back(&node).await;
}

#[tokio::test]
async fn a_blackholed_redis_costs_about_twenty_deadlines_and_recovers() {
    let node = Node::with_deadline(USUAL).await;
    node.proxy.set(Mode::Blackhole).await;
    is_lost(&node).await;
    node.proxy.set(Mode::Pass).await;
    is_back(&node).await;
}

#[tokio::test]
async fn connections_that_were_silently_forgotten_are_replaced() {
    let node = Node::with_deadline(USUAL).await;
    node.proxy.set(Mode::Forget).await;
    is_lost(&node).await;
    node.proxy.set(Mode::Pass).await;
    is_back(&node).await;
}

#[tokio::test]
async fn a_dead_redis_costs_nobody_a_deadline() {
    let mut node = Node::with_deadline(Duration::from_secs(10)).await;
    node.server.kill();
    node.proxy.set(Mode::Refuse).await;
    let asked = Instant::now();
    for _ in 0..100 {
        assert!(node.spend("by policy").await.is_err());
    }
    assert!(asked.elapsed() < Duration::from_secs(10), "100 decisions took {:?}", asked.elapsed());
    assert!(!node.gate.store().stats().up);
    node.server.restart().await;
    node.proxy.set(Mode::Pass).await;
    is_back(&node).await;
}

#[tokio::test]
async fn a_redis_that_resets_every_connection_costs_nobody_a_deadline() {
    let node = Node::with_deadline(Duration::from_secs(10)).await;
    node.proxy.set(Mode::Reset).await;
    let before = node.proxy.accepted();
    let asked = Instant::now();
    for _ in 0..100 {
        assert!(node.spend("by policy").await.is_err());
    }
    assert!(asked.elapsed() < Duration::from_secs(10), "100 decisions took {:?}", asked.elapsed());
    let knocked = node.proxy.accepted() - before;
    assert!(knocked < 50, "{knocked} connections for 100 decisions: hammering");
    node.proxy.set(Mode::Pass).await;
    is_back(&node).await;
}

#[tokio::test]
async fn a_node_that_starts_before_its_redis_decides_once_it_is_there() {
    let node = Node::start().await;
    node.proxy.set(Mode::Refuse).await;
    let store = RedisStore::builder(&node.proxy.url()).connect().await.unwrap();
    assert_eq!(store.ready().await, Err(StoreError::Unreachable));
    let gate = Gate::new(slow_limit(), store);
    assert_eq!(gate.allow("early").await.stored(), Err(StoreError::Unavailable { reason: "unreachable" }));
    node.proxy.set(Mode::Pass).await;
    poll::until("the first decision", async || gate.allow("late").await.stored().ok()).await;
    assert_eq!(gate.store().ready().await, Ok(()));
}

#[tokio::test]
async fn what_waits_for_a_silent_redis_is_bounded() {
    const MOST: usize = 64;
    let node = Node::start().await;
    // All of them are polled long before the first deadline is over.
    let builder = RedisStore::builder(&node.proxy.url()).deadline(UNHURRIED).max_in_flight(MOST);
    let gate = std::sync::Arc::new(Gate::new(slow_limit(), builder.connect().await.unwrap()));
    gate.store().ready().await.unwrap();
    node.proxy.set(Mode::Blackhole).await;
    let crowd: Vec<_> = (0..5_000)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move { gate.allow("crowded").await })
        })
        .collect();
    let mut overloaded = 0;
    for one in crowd {
        overloaded += usize::from(one.await.unwrap().store_error() == Some(StoreError::Overloaded));
        assert!(gate.store().stats().in_flight <= MOST);
    }
    assert!(overloaded >= 5_000 - 2 * MOST, "only {overloaded} were turned away at once");
    assert_eq!(gate.store().stats().overloaded, overloaded as u64);
    assert_eq!(gate.store().stats().in_flight, 0);
}
