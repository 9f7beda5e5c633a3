//! Redis lost and found.

use std::time::Duration;

use tollgate::{Descriptor, LeasedStore, Limiter, Status};
use tollgate_tests::fault_proxy::{FaultProxy, Mode};
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;

use crate::{check, node, node_with};

/// Long enough for a busy machine, and short enough to wait for.
pub(crate) const PATIENT: Duration = Duration::from_secs(2);

/// A node whose way to Redis can be cut.
async fn behind_a_proxy(rules: &str) -> (RedisServer, FaultProxy, std::sync::Arc<Limiter<LeasedStore>>) {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let node = node_with(&proxy.url(), rules, PATIENT).await;
    (server, proxy, node)
}

#[tokio::test]
async fn a_lease_is_spent_to_its_end_without_redis_and_then_the_failure_policy_applies() {
    let rules = "rules: [{ name: all, key: global, limit: 100000 every 1d, consistency: leased,
                           on_store_failure: closed }]";
    let (_server, proxy, node) = behind_a_proxy(rules).await;
    // On a busy machine a lease may end before it is asked for; then another is tried.
    poll::until("a decision on held tokens while Redis is unavailable", async || {
        proxy.set(Mode::Pass).await;
        poll::until("tokens to be held", async || {
            check(&node).await;
            (node.store().stats().tokens_held > 1).then_some(())
        })
        .await;
        proxy.set(Mode::Refuse).await;
        let answer = check(&node).await;
        (answer.allowed() && answer.degraded().is_none()).then_some(())
    })
    .await;
    poll::until("the lease to end", async || {
        let answer = check(&node).await;
        (answer.status() == Status::Unavailable).then_some(())
    })
    .await;
    proxy.set(Mode::Pass).await;
    poll::until("Redis to lend again", async || check(&node).await.allowed().then_some(())).await;
}

#[tokio::test]
async fn what_leased_rules_admitted_in_an_outage_is_charged_afterwards_at_most_one_capacity() {
    let rules = "rules:
      - { name: few, key: global:few, limit: 1000 every 1d, consistency: leased, on_store_failure: open }
      - { name: many, key: 'user:{user_id}', limit: 50 every 1d, consistency: leased, on_store_failure: open }
      - { name: exact, key: global:exact, limit: 1000 every 1d, on_store_failure: open }";
    let (server, proxy, degraded) = behind_a_proxy(rules).await;
    let other = node(&server.url(), rules).await;
    assert!(check(&other).await.degraded().is_none());
    cut(&proxy, &degraded).await;
    let mut admitted = 0;
    while admitted < 200 {
        let answer = check(&degraded).await;
        admitted += u64::from(answer.degraded().is_some() && answer.allowed());
    }
    proxy.set(Mode::Pass).await;
    poll::until("the debt to be paid", async || {
        let answer = other.request(&Descriptor::new().with("user_id", "1")).peek().await;
        let left: Vec<u64> = answer.tiers().iter().map(|tier| tier.verdict().remaining).collect();
        (left == [1_000 - 1 - admitted, 0, 1_000 - 1]).then_some(())
    })
    .await;
    // The node counts after Redis has answered it.
    poll::until("the debits to be counted", async || {
        (degraded.store().stats().tokens_debited > 0).then_some(())
    })
    .await;
}

/// Nobody answers any more, and the node knows it: what it decides from now on is never sent.
async fn cut(proxy: &FaultProxy, node: &Limiter<LeasedStore>) {
    proxy.set(Mode::Refuse).await;
    poll::until("the breaker to open", async || (!node.store().redis().stats().up).then_some(())).await;
}

/// Redis has recovered, and everything is charged.
async fn heal(proxy: &FaultProxy, node: &Limiter<LeasedStore>) {
    proxy.set(Mode::Pass).await;
    poll::until("Redis to recover", async || node.store().redis().stats().up.then_some(())).await;
    node.store().close().await;
}

async fn left(node: &Limiter<LeasedStore>) -> u64 {
    let answer = node.request(&Descriptor::new().with("user_id", "1")).peek().await;
    assert!(answer.degraded().is_none());
    answer.remaining().unwrap()
}

#[tokio::test]
async fn what_redis_ran_and_nobody_heard_of_is_charged_once() {
    for policy in ["open", "local"] {
        let rules = format!(
            "rules: [{{ key: global, limit: 1000 every 1d, consistency: leased, on_store_failure: {policy} }}]"
        );
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let degraded = node_with(&proxy.url(), &rules, PATIENT).await;
        let other = node(&server.url(), &rules).await;
        assert_eq!(left(&degraded).await, 1_000, "from now on Redis knows the script");
        proxy.set(Mode::DropReplies).await;
        let answer = check(&degraded).await;
        assert_eq!(answer.degraded().map(|degraded| degraded.reason), Some("timeout"));
        assert!(answer.allowed(), "it passes by {policy}");
        poll::until("Redis to have run it", async || (left(&other).await == 999).then_some(())).await;
        // This one is never sent: it shows that what is owed has been paid when all is over.
        cut(&proxy, &degraded).await;
        assert!(check(&degraded).await.allowed());
        heal(&proxy, &degraded).await;
        assert_eq!((left(&other).await, degraded.store().stats().tokens_debited), (998, 1), "{policy}");
    }
}

#[tokio::test]
async fn a_node_that_stops_pays_everything_it_owes() {
    const USERS: usize = 300;
    let rules =
        "rules: [{ key: 'user:{user_id}', limit: 10 every 1d, consistency: leased, on_store_failure: open }]";
    let (server, proxy, degraded) = behind_a_proxy(rules).await;
    let other = node(&server.url(), rules).await;
    cut(&proxy, &degraded).await;
    let users: Vec<String> = (0..USERS).map(|number| number.to_string()).collect();
    let request = |user| Descriptor::new().with("user_id", user);
    for user in &users {
        assert!(degraded.request(&request(&**user)).cost(3).check().await.degraded().is_some());
    }
    heal(&proxy, &degraded).await;
    assert_eq!(degraded.store().stats().tokens_debited, 3 * 300);
    for user in &users {
        assert_eq!(other.request(&request(&**user)).peek().await.remaining(), Some(7), "user {user}");
    }
}

#[tokio::test]
async fn what_a_node_holds_when_it_is_cut_off_is_told_as_stranded() {
    let rules = "rules: [{ name: all, key: global, limit: 100000 every 1d, consistency: leased,
                           on_store_failure: closed }]";
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let node = node_with(&proxy.url(), rules, PATIENT).await;
    poll::until("tokens to be held", async || {
        check(&node).await;
        (node.store().stats().tokens_held > 0).then_some(())
    })
    .await;
    proxy.set(Mode::Refuse).await;
    let stats = node.store().stats();
    let lost = stats.tokens_held + stats.tokens_stranded;
    assert!(lost > 0, "it was warmed");
    // Nobody asks any more, and nothing can be given back.
    poll::until("the lease to end", async || (node.store().stats().tokens_stranded >= lost).then_some(()))
        .await;
}
