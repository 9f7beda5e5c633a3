//! Who waits for whom, and for how long.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{Clock, Descriptor, LeasedStore, Limiter, RedisStore, rules};
use tollgate_tests::fault_proxy::{FaultProxy, Mode};
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;

use crate::outages::PATIENT;
use crate::{check, node, node_with, warm};

const THOUSAND: &str = "rules: [{ name: all, key: global, limit: 1000 every 1d, consistency: leased }]";

#[tokio::test]
async fn a_reset_that_is_given_up_does_not_stop_its_key() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let node = node_with(&proxy.url(), THOUSAND, Duration::from_secs(1)).await;
    warm(&node).await;
    poll::until("some tokens", async || {
        check(&node).await;
        (node.store().stats().tokens_held > 0).then_some(())
    })
    .await;
    proxy.set(Mode::Blackhole).await;
    let request = Descriptor::new();
    tokio::select! {
        biased;
        _ = node.request(&request).reset() => panic!("nothing gets through"),
        () = std::future::ready(()) => {} // it was looked at once, and what it had begun is dropped
    }
    proxy.set(Mode::Pass).await;
    let answered = tokio::time::timeout(poll::PATIENCE, async {
        poll::until("Redis to decide", async || check(&node).await.degraded().is_none().then_some(())).await;
    });
    assert!(answered.await.is_ok(), "the key waits for a call that nobody makes");
}

#[tokio::test]
async fn a_decision_has_one_deadline_whomever_it_waits_for() {
    const DEADLINE: Duration = Duration::from_secs(2);
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let node = node_with(&proxy.url(), THOUSAND, DEADLINE).await;
    warm(&node).await;
    proxy.set(Mode::Blackhole).await;
    let clock = Clock::system();
    let began = clock.now();
    // More than is held: one borrows, the others wait for that, and none is helped.
    let askers: Vec<_> = (0..3)
        .map(|_| {
            let node = Arc::clone(&node);
            tokio::spawn(async move { node.request(&Descriptor::new()).cost(500).check().await })
        })
        .collect();
    for asker in askers {
        assert!(asker.await.unwrap().degraded().is_some());
    }
    let took = clock.now().as_micros().abs_diff(began.as_micros());
    let one_and_a_half = u64::try_from(DEADLINE.as_micros()).unwrap() * 3 / 2;
    assert!(took < one_and_a_half, "{took} us");
}

#[tokio::test]
async fn a_node_that_starts_waits_until_it_knows_its_share() {
    let server = RedisServer::start().await;
    let local = "rules: [{ name: all, key: global, limit: 100 every 1d, consistency: local }]";
    let first = node(&server.url(), local).await;
    poll::until("the first to be counted", async || (check(&first).await.limit() == Some(100)).then_some(()))
        .await;
    let second = node(&server.url(), local).await;
    assert_eq!(check(&second).await.limit(), Some(50), "its very first decision");
}

#[tokio::test]
async fn a_node_that_cannot_learn_its_share_says_so_and_uses_it_once_it_can() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let local = "rules: [{ name: all, key: global, limit: 100 every 1d, consistency: local,
                           on_store_failure: closed }]";
    let redis = RedisStore::builder(&proxy.url()).deadline(PATIENT).connect().await.unwrap();
    poll::until("a store that is ready", async || redis.ready().await.ok()).await;
    proxy.set(Mode::Blackhole).await;
    let node = Limiter::new(rules::parse("rules.yaml", local).unwrap(), LeasedStore::new(redis));
    let answer = check(&node).await;
    assert!(answer.degraded().is_some());
    assert_eq!(
        (answer.allowed(), answer.limit()),
        (true, Some(100)),
        "a share needs no store, whatever is closed"
    );
    proxy.set(Mode::Pass).await;
    poll::until("the roll to be called", async || check(&node).await.degraded().is_none().then_some(()))
        .await;
}

#[tokio::test]
async fn no_decision_waits_for_a_lease_to_be_renewed() {
    const SLOW: Duration = Duration::from_secs(2);
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let rules = "rules: [{ name: all, key: global, limit: 1000000/s burst 1000000, consistency: leased }]";
    let node = node(&proxy.url(), rules).await;
    // A busy machine may not get to use a lease before it ends; then another is tried.
    poll::until("decisions on a lease while its renewal is under way", async || {
        proxy.set(Mode::Pass).await;
        warm(&node).await;
        proxy.set(Mode::Delay(SLOW)).await;
        let mut meanwhile = 0;
        let looked = tokio::time::timeout(SLOW / 2, async {
            while meanwhile < 100 && node.store().stats().tokens_held > 0 {
                let before = node.store().stats();
                check(&node).await;
                let after = node.store().stats();
                let is_local = after.local_decisions > before.local_decisions;
                meanwhile += u64::from(is_local && before.calls_under_way > 0);
                tokio::task::yield_now().await;
            }
        });
        _ = looked.await;
        (meanwhile >= 100).then_some(())
    })
    .await;
}
