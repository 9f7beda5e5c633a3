//! Redis lost and found.

use std::time::Duration;

use tollgate::{Descriptor, LeasedStore, Limiter, Outcome};
use tollgate_tests::fault_proxy::{FaultProxy, Mode};
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;

use crate::{check, node, node_with, warm};

const USUAL: Duration = Duration::from_millis(50);

/// A node whose way to Redis can be cut.
async fn behind_a_proxy(rules: &str) -> (RedisServer, FaultProxy, std::sync::Arc<Limiter<LeasedStore>>) {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let node = node_with(&proxy.url(), rules, USUAL).await;
    (server, proxy, node)
}

#[tokio::test]
async fn a_lease_is_spent_to_its_end_without_redis_and_then_the_policy_speaks() {
    let rules = "rules: [{ name: all, key: global, limit: 1/d burst 100000, consistency: leased,
                           on_store_failure: closed }]";
    let (_server, proxy, node) = behind_a_proxy(rules).await;
    warm(&node).await;
    poll::until("some tokens", async || {
        check(&node).await;
        (node.store().stats().tokens_held > 20).then_some(())
    })
    .await;
    proxy.set(Mode::Refuse).await;
    let answer = check(&node).await;
    assert!(answer.allowed() && answer.degraded().is_none(), "tokens are held, and nobody needs Redis");
    poll::until("the lease to end", async || {
        let answer = check(&node).await;
        (answer.outcome() == Outcome::Unavailable).then_some(())
    })
    .await;
    proxy.set(Mode::Pass).await;
    poll::until("Redis to lend again", async || check(&node).await.allowed().then_some(())).await;
}

#[tokio::test]
async fn what_was_admitted_in_an_outage_is_charged_afterwards_at_most_one_capacity() {
    let rules = "rules:
      - { name: few, key: global:few, limit: 1/d burst 1000, on_store_failure: open }
      - { name: many, key: 'user:{user_id}', limit: 1/d burst 50, on_store_failure: open }";
    let (server, proxy, degraded) = behind_a_proxy(rules).await;
    let other = node(&server.url(), rules).await;
    assert!(check(&degraded).await.degraded().is_none());
    proxy.set(Mode::Refuse).await;
    let mut admitted = 0;
    while admitted < 200 {
        let answer = check(&degraded).await;
        admitted += u64::from(answer.degraded().is_some() && answer.allowed());
    }
    proxy.set(Mode::Pass).await;
    poll::until("the debt to be paid", async || {
        let answer = other.peek(&Descriptor::new().with("user_id", "1"), 1).await;
        let left: Vec<u64> = answer.tiers().iter().map(|tier| tier.verdict.remaining).collect();
        (left == [1_000 - 1 - admitted, 0]).then_some(())
    })
    .await;
    assert!(degraded.store().stats().tokens_debited > 0);
}
