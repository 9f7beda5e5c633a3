//! A Redis that answers, and will not: full, short of replicas, loading, busy, a replica.

use std::time::Duration;

use tollgate::{RedisStore, StoreError};
use tollgate_tests::poll;
use tollgate_tests::ports::free_port;
use tollgate_tests::redis_server::{Options, RedisServer, text};
use tollgate_tests::rows::Stored as _;

use crate::node::{CAPACITY, Node, RECOVERED_WITHIN, UNHURRIED, listen_to_logs, logged};

/// Waits until decisions fail with this word. No answer on the way is a refusal: that would be a 429.
async fn refuses_with(node: &Node, code: &str) {
    poll::until(code, async || match node.gate.allow("refused").await.stored() {
        Ok(verdict) => {
            assert!(verdict.allowed, "a store that will not decide is not a limit that is reached");
            None
        }
        Err(StoreError::Rejected { code: said }) if said == code => Some(()),
        Err(_) => None,
    })
    .await;
}

/// Redis is not overloaded with attempts: with the breaker open a thousand decisions are a few commands.
async fn is_not_hammered(node: &Node) {
    node.open_the_breaker().await;
    let before = node.server.calls("evalsha").await;
    for _ in 0..1_000 {
        assert!(node.gate.allow("refused").await.stored().is_err());
    }
    let asked = node.server.calls("evalsha").await - before;
    assert!(asked < 100, "{asked} commands for 1,000 decisions");

    // The first decision after each pause is the probe; one that is not made does not close the breaker.
    poll::until("a few probes", async || {
        assert!(node.gate.allow("refused").await.stored().is_err());
        assert!(!node.gate.store().stats().up, "the breaker closed, and the store will still not decide");
        (node.server.calls("evalsha").await >= before + asked + 4).then_some(())
    })
    .await;
}

async fn set(server: &RedisServer, name: &str, value: &str) {
    server.command(&["CONFIG", "SET", name, value]).await;
}

#[tokio::test]
async fn an_eviction_policy_that_drops_buckets_is_a_warning_at_start() {
    listen_to_logs();
    let args = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let server = RedisServer::with(Options { args: &args, ..Options::default() }).await;
    let store = RedisStore::builder(&server.url()).deadline(UNHURRIED).connect().await.unwrap();
    assert_eq!(store.ready().await, Ok(()), "it is no reason not to start");
    poll::within(RECOVERED_WITHIN, "a warning about allkeys-lru", async || {
        let lines = logged(&server.url());
        lines.iter().any(|line| line.contains(" WARN ") && line.contains("allkeys-lru")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_full_redis_is_an_error_and_never_a_429() {
    let node = Node::start().await;
    set(&node.server, "maxmemory", "1").await;
    refuses_with(&node, "OOM").await;
    is_not_hammered(&node).await;
    set(&node.server, "maxmemory", "0").await;
    node.recovered().await;
}

#[tokio::test]
async fn too_few_replicas_are_an_error_and_never_a_429() {
    let node = Node::start().await;
    set(&node.server, "min-replicas-to-write", "1").await;
    refuses_with(&node, "NOREPLICAS").await;
    is_not_hammered(&node).await;
    set(&node.server, "min-replicas-to-write", "0").await;
    node.recovered().await;
}

#[tokio::test]
async fn a_primary_that_became_a_replica_is_left_and_asked_again() {
    let node = Node::start().await;
    let before = node.gate.store().stats().connections;
    node.server.command(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]).await;
    refuses_with(&node, "READONLY").await;
    is_not_hammered(&node).await;
    node.server.command(&["REPLICAOF", "NO", "ONE"]).await;
    node.recovered().await;
    assert!(node.gate.store().stats().connections > before, "the address was resolved again");
}

#[tokio::test]
async fn a_busy_redis_is_an_error_until_the_script_is_killed() {
    let node = Node::with_deadline(Duration::from_millis(200)).await;
    set(&node.server, "busy-reply-threshold", "20").await;
    let server = &node.server;
    let endless = async { server.try_command(&["EVAL", "while true do end", "0"]).await };
    let meanwhile = async {
        refuses_with(&node, "BUSY").await;
        node.open_the_breaker().await;
        server.command(&["SCRIPT", "KILL"]).await;
    };
    let (killed, ()) = tokio::join!(endless, meanwhile);
    assert!(killed.is_err());
    node.recovered().await;
}

#[tokio::test]
async fn a_loading_redis_is_an_error_until_it_has_loaded() {
    let mut node = Node::start().await;
    node.server.command(&["DEBUG", "POPULATE", "1000", "ballast", "100"]).await;
    node.server.command(&["SAVE"]).await;
    // So slow, and so attentive to clients, that it can be met while it loads. A few long pauses: many short ones take a
    // busy machine too long.
    let slowly = ["--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024"];
    node.server.begin_restart(&slowly);
    refuses_with(&node, "LOADING").await;
    node.server.until_up().await;
    node.recovered().await;
    assert_eq!(text(&node.server.command(&["DBSIZE"]).await).parse::<u64>().unwrap() / 1_000, 1);
    assert_eq!(node.remaining("untouched").await, CAPACITY);
}
