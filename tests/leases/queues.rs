//! Leaky buckets: places in a queue, by the block.

use std::sync::Arc;

use tollgate::{Descriptor, LeasedStore, Limiter, Micros, Store as _};
use tollgate_tests::redis_server::RedisServer;

use crate::{check, node};

const QUEUE: &str = "rules: [{ name: all, key: global, limit: 100/s queue 5000, consistency: leased }]";

/// How long each of some requests is held, in milliseconds.
async fn delays(node: Arc<Limiter<LeasedStore>>, count: usize) -> Vec<u64> {
    let mut delays = Vec::new();
    for _ in 0..count {
        let answer = check(&node).await;
        assert!(answer.allowed() && answer.degraded().is_none());
        delays.push(answer.delay().get());
    }
    delays
}

#[tokio::test]
async fn two_nodes_take_places_by_the_block_and_each_caller_stands_behind_the_last() {
    const EACH: usize = 500;
    let server = RedisServer::start().await;
    let nodes = [node(&server.url(), QUEUE).await, node(&server.url(), QUEUE).await];
    let began = nodes[0].store().clock().now();
    let tasks = nodes.clone().map(|node| tokio::spawn(delays(node, EACH)));
    let mut longest = 0;
    for task in tasks {
        longest = longest.max(task.await.unwrap().into_iter().max().unwrap());
    }
    let took = nodes[0].store().clock().now().as_micros() - began.as_micros();
    // A thousand places of 10 ms each: the last leaves ten seconds after the first, no earlier.
    let leaves = longest + took.unsigned_abs();
    assert!(leaves >= 2 * EACH as u64 * 10_000 - 10_000, "the last leaves after {leaves} us");
    for node in &nodes {
        let stats = node.store().stats();
        assert!(stats.local_decisions > EACH as u64 / 3, "{stats:?}");
        assert!(stats.lease_calls < EACH as u64 / 2, "{stats:?}");
    }
}

#[tokio::test]
async fn one_who_would_not_wait_takes_nothing_out_of_a_queue() {
    let server = RedisServer::start().await;
    let node = node(&server.url(), QUEUE).await;
    let long = delays(Arc::clone(&node), 1_000).await;
    assert!(long.last().is_some_and(|delay| *delay > 1_000_000), "the queue is seconds long");
    let left = async || node.request(&Descriptor::new()).peek().await.remaining().unwrap();
    let (calls, before) = (crate::calls(&node), left().await);
    for _ in 0..500 {
        let soon = node.store().clock().now().after(Micros::new(1_000));
        assert!(!node.request(&Descriptor::new()).until_allowed(soon).await.allowed());
    }
    assert!(left().await >= before, "nothing was charged");
    let calls = crate::calls(&node) - calls;
    assert!(calls < 50, "{calls} calls for 500 who would not wait");
}
