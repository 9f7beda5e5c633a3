//! `consistency: local`: limit / nodes, whoever they are.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tollgate::{Descriptor, LeasedStore, Limiter, RedisStore, rules};
use tollgate_tests::fault_proxy::{FaultProxy, Mode};
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;

use crate::{UNHURRIED, calls, check, node, node_with};

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
    let mut shares = Vec::new();
    for node in &nodes {
        shares.push(spend(node).await);
    }
    shares.sort_unstable();
    assert_eq!(shares, [25, 26, 26, 26]);
    // By the nodes' own count: their heartbeats call the script too.
    assert_eq!(nodes.iter().map(|node| calls(node)).sum::<u64>(), 0);
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

#[tokio::test]
async fn a_node_that_dies_without_a_word_is_missed_and_its_share_given_to_the_others() {
    let server = RedisServer::start().await;
    let (first, second) = (node(&server.url(), LOCAL).await, node(&server.url(), LOCAL).await);
    fleet_of(&[Arc::clone(&first), Arc::clone(&second)], 2).await;
    assert!(check(&first).await.limit() < Some(103));
    drop(second); // its heart stops
    fleet_of(std::slice::from_ref(&first), 1).await;
    assert_eq!(check(&first).await.limit(), Some(103));
}

#[tokio::test]
async fn there_are_at_least_as_many_nodes_as_was_said() {
    let server = RedisServer::start().await;
    let redis = RedisStore::builder(&server.url()).deadline(UNHURRIED).connect().await.unwrap();
    let store = LeasedStore::among(redis, NonZeroU32::new(4).unwrap());
    let node = Limiter::new(rules::parse("rules.yaml", LOCAL).unwrap(), store);
    let limit = check(&node).await.limit().unwrap();
    assert!((25..=26).contains(&limit), "{limit} of 103 for one of four, though it is alone");
}

#[tokio::test]
async fn the_last_known_fleet_counts_while_redis_is_away_and_when_it_has_forgotten_everybody() {
    let server = RedisServer::start().await;
    let rules = "rules:
      - { name: share, key: global, limit: 1/d burst 100, consistency: local }
      - { name: fallback, key: 'user:{user_id}', limit: 1/d burst 100, on_store_failure: local }";
    let mut proxies = Vec::new();
    let mut nodes = Vec::new();
    for _ in 0..4 {
        proxies.push(FaultProxy::start(server.port()).await);
        nodes.push(node_with(&proxies[proxies.len() - 1].url(), rules, Duration::from_millis(300)).await);
    }
    fleet_of(&nodes, 4).await;
    for proxy in &proxies {
        proxy.set(Mode::Refuse).await;
    }
    for node in &nodes {
        poll::until("Redis to be missed", async || (!node.store().redis().stats().up).then_some(())).await;
        let answer = node.check(&Descriptor::new().with("user_id", "1")).await;
        let limits: Vec<u64> = answer.tiers().iter().map(|tier| tier.verdict().limit).collect();
        assert_eq!(limits, [25, 25], "a quarter for each of four, also of what falls back to shares");
    }
    // Nobody is on the roll any more; each hears only of those who called before.
    server.command(&["FLUSHALL"]).await;
    let before = server.calls("evalsha").await;
    for proxy in &proxies {
        proxy.set(Mode::Pass).await;
    }
    poll::until("the roll to be called some times", async || {
        for node in &nodes {
            let share = node.request(&Descriptor::new()).peek().await.limit();
            assert_eq!(share, Some(25), "nobody takes the share of another");
        }
        (server.calls("evalsha").await >= before + 12).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_share_is_put_back_when_redis_refuses_another_tier_and_the_other_way_round() {
    let server = RedisServer::start().await;
    let rules = "rules:
      - { name: share, key: global, limit: 1/d burst 100, consistency: local }
      - { name: hot, key: 'global:hot', limit: 1000 every 1d, consistency: auto }
      - { name: lent, key: 'global:lent', limit: 300 every 1d, consistency: leased }
      - { name: user, key: 'user:{user_id}', limit: 1/d burst 40 }";
    let node = node(&server.url(), rules).await;
    fleet_of(std::slice::from_ref(&node), 1).await;
    let left = async |user: &str| {
        let answer = node.request(&Descriptor::new().with("user_id", user)).peek().await;
        answer.tiers().iter().map(|tier| tier.verdict().remaining).collect::<Vec<u64>>()
    };
    let ask = async |user: &str, times: u64| {
        let mut admitted = 0;
        for _ in 0..times {
            admitted += u64::from(node.check(&Descriptor::new().with("user_id", user)).await.allowed());
        }
        admitted
    };
    assert_eq!(ask("greedy", 200).await, 40, "as the exact tier says");
    assert_eq!(left("greedy").await[0], 60, "the share has lost nothing to those who were refused");
    // The share refuses now, and nothing is taken elsewhere.
    assert_eq!(ask("second", 40).await + ask("third", 200).await, 60);
    node.store().close().await;
    let [share, hot, lent, user] = left("third").await[..] else { panic!("four tiers") };
    assert_eq!((share, user), (0, 20));
    // What a lease still had when it ended is lost.
    assert!((700..=900).contains(&hot) && (100..=200).contains(&lent), "{hot} and {lent} are left");
}
