//! `consistency: local`: limit / nodes, whoever they are.

use std::sync::Arc;

use tollgate::{LeasedStore, Limiter};
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;

use crate::{check, node};

const LOCAL: &str = "rules: [{ name: all, key: global, limit: 1/d burst 103, consistency: local }]";

pub(crate) async fn fleet_of(nodes: &[Arc<Limiter<LeasedStore>>], count: u32) {
    poll::until("the fleet to be counted", async || {
        nodes.iter().all(|node| node.store().stats().nodes == count).then_some(())
    })
    .await;
}

async fn spend(node: &Limiter<LeasedStore>) -> u64 {
    let mut admitted = 0;
    while check(node).await.allowed() {
        admitted += 1;
    }
    admitted
}

#[tokio::test]
async fn shares_add_up_to_the_limit_and_no_decision_asks_redis() {
    let server = RedisServer::start().await;
    let mut nodes = Vec::new();
    for _ in 0..4 {
        nodes.push(node(&server.url(), LOCAL).await);
    }
    fleet_of(&nodes, 4).await;
    let before = server.calls("evalsha").await;
    let mut shares = Vec::new();
    for node in &nodes {
        shares.push(spend(node).await);
    }
    shares.sort_unstable();
    assert_eq!(shares, [25, 26, 26, 26]);
    assert_eq!(server.calls("evalsha").await, before);
}

#[tokio::test]
async fn a_limit_is_divided_again_when_nodes_come_and_go() {
    let server = RedisServer::start().await;
    let first = node(&server.url(), LOCAL).await;
    fleet_of(std::slice::from_ref(&first), 1).await;
    assert_eq!(check(&first).await.limit(), Some(103));
    let second = node(&server.url(), LOCAL).await;
    fleet_of(&[Arc::clone(&first), Arc::clone(&second)], 2).await;
    let limits = [check(&first).await.limit().unwrap(), check(&second).await.limit().unwrap()];
    assert_eq!(limits.iter().sum::<u64>(), 103, "{limits:?}");
    second.store().close().await;
    fleet_of(std::slice::from_ref(&first), 1).await;
    assert_eq!(check(&first).await.limit(), Some(103));
}

#[tokio::test]
async fn a_node_without_a_share_refuses_and_the_others_give_what_there_is() {
    let server = RedisServer::start().await;
    let rules = "rules: [{ name: all, key: global, limit: 2/d, consistency: local }]";
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(node(&server.url(), rules).await);
    }
    fleet_of(&nodes, 3).await;
    let mut admitted = 0;
    for node in &nodes {
        admitted += spend(node).await;
    }
    assert_eq!(admitted, 2);
}
