//! What is borrowed, spent, put back and returned while nothing goes wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::core::lease::{LeaseCall, Wants};
use tollgate::core::rule::Consistency;
use tollgate::{Clock, Descriptor, Limit, Micros, RedisStore, Timestamp};
use tollgate_tests::fault_proxy::{FaultProxy, Mode};
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;
use tollgate_tests::rows::OneBucket;

use crate::{calls, calls_answered, check, node, node_at, stranded, warm};

/// A thousand tokens, and next to nothing comes back.
const THOUSAND: &str = "rules: [{ name: all, key: global, limit: 1000 every 1d, consistency: leased }]";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_that_hammer_one_key_admit_exactly_its_capacity() {
    let server = RedisServer::start().await;
    let nodes = [node(&server.url(), THOUSAND).await, node(&server.url(), THOUSAND).await];
    let admitted = Arc::new(AtomicU64::new(0));
    let askers: Vec<_> = (0..8)
        .map(|asker| {
            let (node, admitted) = (Arc::clone(&nodes[asker % 2]), Arc::clone(&admitted));
            tokio::spawn(async move {
                loop {
                    let answer = check(&node).await;
                    assert!(answer.degraded().is_none(), "{:?}", answer.degraded());
                    admitted.fetch_add(u64::from(answer.allowed()), Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let all = || admitted.load(Ordering::Relaxed);
    let lost = || nodes.iter().map(|node| stranded(node)).sum::<u64>();
    poll::until("everything to be spent", async || (all() + lost() >= 1_000).then_some(())).await;
    for asker in askers {
        assert!(!asker.is_finished(), "an asker stopped");
        asker.abort();
        let _ = asker.await;
    }
    assert_eq!(all() + lost(), 1_000);
    assert!(nodes.iter().any(|node| node.store().stats().local_decisions > 0), "no lease was used");
}

#[tokio::test]
async fn a_cold_key_is_decided_at_redis_and_a_hot_one_here() {
    let server = RedisServer::start().await;
    let node = node(&server.url(), THOUSAND).await;
    let request = Descriptor::new();
    let rules = node.rules();
    let held = || node.store().held(rules.rule(0), &request);
    check(&node).await;
    assert_eq!(held().in_force, Consistency::Exact);
    assert_eq!(node.store().stats().lease_calls, 0);
    warm(&node).await;
    // A key cools down while a busy machine does something else.
    poll::until("a lease in force", async || {
        check(&node).await;
        (held().in_force == Consistency::Leased).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_nobody_uses_goes_back_and_so_does_everything_when_a_node_stops() {
    let server = RedisServer::start().await;
    let (first, second) = (node(&server.url(), THOUSAND).await, node(&server.url(), THOUSAND).await);
    let admitted = warm(&first).await;
    let left = || async { second.request(&Descriptor::new()).peek().await.remaining().unwrap() };
    poll::until("an idle lease to come back", async || {
        (left().await == 1_000 - admitted - stranded(&first)).then_some(())
    })
    .await;
    let admitted = admitted + warm(&first).await;
    first.store().close().await;
    assert_eq!(left().await, 1_000 - admitted - stranded(&first));
    assert_eq!(first.store().stats().tokens_held, 0);
}

#[tokio::test]
async fn a_lease_that_ends_before_its_node_stops_is_counted_as_stranded() {
    let server = RedisServer::start().await;
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let node = node_at(&server.url(), THOUSAND, &clock).await;
    let mut admitted = 0;
    while node.store().stats().tokens_held == 0 {
        admitted += u64::from(check(&node).await.allowed());
        calls_answered(&node).await;
    }
    let held = node.store().stats().tokens_held;
    clock.advance(Micros::new(1_000_000));
    node.store().close().await;
    let left = node.request(&Descriptor::new()).peek().await.remaining();
    assert_eq!((stranded(&node), left), (held, Some(1_000 - admitted - held)));
}

#[tokio::test]
async fn a_lease_that_is_returned_after_its_end_is_counted_as_stranded() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let node = node(&proxy.url(), THOUSAND).await;
    let mut admitted = warm(&node).await;
    poll::until("tokens to be held", async || {
        admitted += u64::from(check(&node).await.allowed());
        (node.store().stats().tokens_held > 0).then_some(())
    })
    .await;
    proxy.set(Mode::Blackhole).await;
    let (clock, began) = (Clock::system(), Clock::system().now());
    let heal = async {
        poll::until("the lease to have ended", async || {
            (clock.now().since(began) > Micros::new(300_000)).then_some(())
        })
        .await;
        proxy.set(Mode::Pass).await;
    };
    tokio::join!(node.store().close(), heal);
    let lost = stranded(&node);
    assert!(lost > 0, "the return came in time");
    let left = node.request(&Descriptor::new()).peek().await.remaining();
    assert_eq!(left, Some(1_000 - admitted - lost));
}

#[tokio::test]
async fn a_tier_that_redis_refuses_puts_back_what_was_taken_here() {
    let server = RedisServer::start().await;
    let rules = "rules:
      - { name: all, key: global, limit: 1000 every 1d, consistency: leased }
      - { name: user, key: 'user:{user_id}', limit: 60 every 1d }
      - { name: trial, key: 'global:trial', limit: 5000 every 1d, consistency: leased, mode: shadow }";
    let node = node(&server.url(), rules).await;
    let mut admitted = 0;
    for _ in 0..400 {
        let answer = check(&node).await;
        assert!(answer.degraded().is_none());
        admitted += u64::from(answer.allowed());
        assert_eq!(answer.tiers().len(), 3);
    }
    assert_eq!(admitted, 60);
    assert!(node.store().stats().local_decisions > 0);
    node.store().close().await;
    let tiers = node.request(&Descriptor::new().with("user_id", "1")).peek().await;
    let remaining: Vec<u64> = tiers.tiers().iter().map(|tier| tier.verdict().remaining).collect();
    assert_eq!(remaining[1], 0);
    let lost = stranded(&node);
    let trial = 5_000 - 400;
    assert!(
        (trial - lost..=trial).contains(&remaining[2]),
        "rules on trial are charged whatever others say: {remaining:?}"
    );
    assert!((940 - lost..=940).contains(&remaining[0]), "{remaining:?}, {:?}", node.store().stats());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_hot_key_reaches_redis_a_few_times_for_each_token() {
    let server = RedisServer::start().await;
    let rules = "rules: [{ name: all, key: global, limit: 10/s burst 10, consistency: leased }]";
    let node = node(&server.url(), rules).await;
    warm(&node).await;
    poll::until("a refusal", async || (!check(&node).await.allowed()).then_some(())).await;
    let before = calls(&node);
    let admitted = Arc::new(AtomicU64::new(0));
    let askers: Vec<_> = (0..64)
        .map(|_| {
            let (node, admitted) = (Arc::clone(&node), Arc::clone(&admitted));
            tokio::spawn(async move {
                loop {
                    admitted.fetch_add(u64::from(check(&node).await.allowed()), Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let tokens = || admitted.load(Ordering::Relaxed);
    poll::until("some tokens", async || (tokens() >= 20).then_some(())).await;
    askers.iter().for_each(|asker| asker.abort());
    // A renewal for each token; where the machine is slow, a lease that ends before it is renewed, and calls of its own.
    let (calls, tokens) = (calls(&node) - before, tokens());
    let stats = node.store().stats();
    assert!(calls <= 5 * tokens + 10, "{calls} calls for {tokens} tokens: {stats:?}");
    assert!(stats.remembered_refusals > 10 * calls, "{stats:?}");
}

#[tokio::test]
async fn a_crowd_at_a_dry_lease_is_refused_without_a_call() {
    const CROWD: usize = 500;
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    // A refusal is over before the last of the crowd has read it.
    let rules = "rules: [{ name: all, key: global, limit: 1000/s burst 1, consistency: leased }]";
    let node = node(&proxy.url(), rules).await;
    warm(&node).await;
    proxy.set(Mode::Delay(Duration::from_millis(50))).await;
    let before = calls(&node);
    let crowd: Vec<_> = (0..CROWD)
        .map(|_| {
            let node = Arc::clone(&node);
            tokio::spawn(async move { check(&node).await })
        })
        .collect();
    for one in crowd {
        assert!(one.await.unwrap().degraded().is_none());
    }
    let calls = calls(&node) - before;
    assert!(calls <= 20, "{calls} calls for one crowd");
}

#[tokio::test]
async fn a_refund_and_a_reset_end_a_remembered_refusal_at_once() {
    let server = RedisServer::start().await;
    let rules = "rules: [{ name: all, key: global, limit: 100 every 1d, consistency: leased }]";
    let node = node(&server.url(), rules).await;
    let request = Descriptor::new();
    poll::until("a refusal", async || (!check(&node).await.allowed()).then_some(())).await;
    assert!(!check(&node).await.allowed());
    node.request(&request).refund().await.unwrap();
    assert!(check(&node).await.allowed());
    assert!(!check(&node).await.allowed());
    node.request(&request).reset().await.unwrap();
    assert!(check(&node).await.allowed());
}

#[tokio::test]
async fn every_algorithm_admits_its_capacity_on_leases() {
    let server = RedisServer::start().await;
    for limit in [
        "limit: 300 every 1d",
        "limit: 300/week, algorithm: fixed_window, window: first",
        "limit: 300/month, algorithm: fixed_window, window: calendar",
        "limit: 300/week, algorithm: sliding_window_counter, window: first",
        "limit: 300/week, algorithm: sliding_window_log",
    ] {
        server.command(&["FLUSHALL"]).await;
        let rules = format!("rules: [{{ name: all, key: global, {limit}, consistency: leased }}]");
        let node = node(&server.url(), &rules).await;
        let mut admitted = 0;
        poll::until("everything to be spent", async || {
            let answer = check(&node).await;
            assert!(answer.degraded().is_none(), "{limit}");
            admitted += u64::from(answer.allowed());
            (admitted + stranded(&node) >= 300).then_some(())
        })
        .await;
        assert!(!check(&node).await.allowed(), "{limit}");
        assert_eq!(admitted + stranded(&node), 300, "{limit}");
        assert!(node.store().stats().local_decisions > 0, "{limit}");
    }
}

#[tokio::test]
async fn what_is_lent_first_is_remembered_until_it_would_be_earned_back() {
    let server = RedisServer::start().await;
    let store = RedisStore::builder(&server.url()).deadline(crate::UNHURRIED).connect().await.unwrap();
    for limit in ["100 every 1h burst 1000"] {
        let limit: Limit = limit.parse().unwrap();
        let bucket = OneBucket::new(&limit, "a");
        let call = LeaseCall {
            boundary: None,
            returned: 0,
            rate: 0,
            has: 0,
            demand: 200,
            own_demand: 200,
            wants: Wants::Lease,
            lease_time: Micros::new(100_000),
        };
        let grant = store.lend(bucket.rule(), bucket.request(), &call).await.unwrap();
        assert_eq!(grant.lease.map(|lease| lease.content), Some(400));
        let key = String::from_utf8(store.key(bucket.rule(), bucket.request())).unwrap();
        let left = server.command(&["PTTL", &key]).await;
        let left: i64 = redis::from_redis_value(left).unwrap();
        const SLACK_MS: i64 = 20_000; // a busy machine may take its time to look
        assert!(
            left >= 4 * 3_600_000 - SLACK_MS,
            "400 tokens take four hours to come back; {limit} is kept for {left} ms"
        );
    }
}

#[tokio::test]
async fn a_node_that_returns_both_its_leases_leaves_nothing_out_after_the_boundary() {
    let server = RedisServer::start().await;
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = RedisStore::builder(&server.url()).clock(clock.clone()).deadline(crate::UNHURRIED);
    let store = store.connect().await.unwrap();
    let limit: Limit = "1000 every 1d".parse().unwrap();
    let bucket = OneBucket::new(&limit, "a");
    let call = |boundary, returned, has, wants| LeaseCall {
        boundary,
        returned,
        rate: 0,
        has,
        demand: 100,
        own_demand: 100,
        wants,
        lease_time: Micros::new(100_000),
    };
    let lend = async |call| store.lend(bucket.rule(), bucket.request(), &call).await.unwrap();
    let this = lend(call(None, 0, 0, Wants::Lease)).await.lease.unwrap();
    let kept = this.content / 2;
    let next = lend(call(Some(this.ends), 0, kept, Wants::Lease)).await.lease.unwrap();
    assert!(next.capacity >= kept && next.starts == Some(this.ends), "{next:?}");
    lend(call(Some(next.ends), next.content, 0, Wants::Nothing)).await;
    let before = lend(call(Some(this.ends), this.content, 0, Wants::Nothing)).await;
    assert_eq!(before.remaining, 1_000);
    clock.set(this.ends.after(Micros::new(1)));
    let after = lend(call(None, 0, 0, Wants::Nothing)).await;
    assert_eq!(after.remaining, 1_000, "what was kept is returned too");
}
