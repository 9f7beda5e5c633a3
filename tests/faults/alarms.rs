//! What is wrong must show: with callers who do not wait, with refusals in between, and while nobody asks.

use std::time::Duration;

use tollgate::{Limit, Micros, Op, RedisStore};
use tollgate_tests::fault_proxy::Mode;
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;
use tollgate_tests::rows::{OneBucket, Stored as _};

use crate::node::{CAPACITY, Node, USUAL};

#[tokio::test]
async fn callers_who_give_up_early_open_the_breaker_too() {
    let node = Node::with_deadline(USUAL).await;
    node.proxy.set(Mode::Blackhole).await;
    poll::until("the breaker to open", async || {
        let patience = Duration::from_millis(20);
        let _ = tokio::time::timeout(patience, node.gate.allow("impatient")).await;
        (!node.gate.store().stats().up).then_some(())
    })
    .await;
    assert!(node.logged().iter().any(|line| line.contains(" WARN ")), "{:?}", node.logged());
}

#[tokio::test]
async fn a_full_redis_is_an_alarm_also_while_refusals_still_work() {
    let node = Node::start().await;
    node.gate.allow_cost("spent", CAPACITY).await.stored().unwrap();
    node.server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    node.server.command(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
    poll::until("the breaker to open", async || {
        // The refusal writes nothing, so it works even now; the other cannot.
        let _ = node.gate.allow("spent").await;
        let _ = node.gate.allow("fresh").await;
        (!node.gate.store().stats().up).then_some(())
    })
    .await;
    let warnings = node.logged().iter().filter(|line| line.contains(" WARN ")).count();
    assert_eq!(warnings, 1, "{:?}", node.logged());
}

#[tokio::test]
async fn a_connection_that_ends_while_nobody_asks_costs_no_decision() {
    let node = Node::start().await;
    for _ in 0..3 {
        let connections = node.gate.store().stats().connections;
        node.server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        poll::until("another connection", async || {
            (node.gate.store().stats().connections > connections).then_some(())
        })
        .await;
        assert!(node.spend("after").await.is_ok());
    }
}

#[tokio::test]
async fn every_key_lives_until_its_bucket_is_as_good_as_new_and_looking_makes_none() {
    let server = RedisServer::start().await;
    let store = RedisStore::builder(&server.url()).deadline(Duration::from_secs(5)).connect().await.unwrap();
    store.ready().await.unwrap();
    server.command(&["FLUSHALL"]).await;
    let hour = Micros::new(3_600_000_000);
    for limit in [
        Limit::new(10, hour),
        Limit::interval(10, hour, 10, tollgate::Ticks::FromFirstTake),
        Limit::leaky_bucket(10, hour, 9, 0),
        Limit::fixed_window(10, hour, tollgate::core::limit::Phase::First),
        Limit::sliding_window_log(10, hour),
        Limit::sliding_window_counter(10, hour, tollgate::core::limit::Opening::First),
    ] {
        let limit = limit.unwrap();
        let bucket = OneBucket::new(&limit, "a");
        for (op, cost) in [(Op::Peek, 1), (Op::Charge, 11), (Op::Refund, 1), (Op::Charge, 0)] {
            bucket.run(&store, op, cost).await.unwrap();
        }
        assert!(server.contents().await.is_empty(), "{limit}: looking, refusing and refunding make no key");

        let charged = bucket.run(&store, Op::Charge, 3).await.unwrap();
        let [(key, _)] = &server.contents().await[..] else { panic!("{limit}: one key") };
        let redis::Value::Int(ttl_ms) = server.command(&["PTTL", key]).await else {
            panic!("{limit}: a number")
        };
        let reset_ms = i64::try_from(charged.verdict().reset_after.ceil_millis()).unwrap();
        assert!((reset_ms - 5_000..=reset_ms).contains(&ttl_ms), "{limit}: {ttl_ms} for {reset_ms}");
        bucket.run(&store, Op::Reset, 1).await.unwrap();
        assert!(server.contents().await.is_empty(), "{limit}: a reset forgets");
    }
}
