//! Decisions on leases that are taken back.

use tollgate::{Clock, Descriptor, Micros, Timestamp};
use tollgate_tests::redis_server::RedisServer;

use crate::shares::fleet_of;
use crate::{calls_answered, node, node_at, stranded, warm};

#[tokio::test]
async fn a_reservation_on_a_lease_that_is_settled_for_less_gives_the_rest_back() {
    let server = RedisServer::start().await;
    for limit in [
        "limit: 1000 every 1d",
        "limit: 1000/week, algorithm: fixed_window, window: first",
        "limit: 1000/week, algorithm: sliding_window_counter, window: first",
        "limit: 1000/week, algorithm: sliding_window_log",
    ] {
        server.command(&["FLUSHALL"]).await;
        let rules = format!("rules: [{{ name: all, key: global, {limit}, consistency: leased }}]");
        let node = node(&server.url(), &rules).await;
        let request = Descriptor::new();
        let admitted = warm(&node).await;
        let reserved = node.request(&request).cost(300).reserve(Micros::new(60_000_000)).await.unwrap();
        let settled = node.settle(reserved.reservation.unwrap(), 100).await.unwrap();
        assert_eq!(settled.refunded, 200, "{limit}");
        node.store().close().await;
        let left = node.request(&request).peek().await.remaining().unwrap();
        assert_eq!(left, 900 - admitted - stranded(&node), "{limit}");
    }
}

#[tokio::test]
async fn a_reservation_on_shares_is_settled_by_one_node_of_a_fleet() {
    let server = RedisServer::start().await;
    let rules = "rules: [{ name: all, key: global, limit: 300 every 1d, consistency: local }]";
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(node(&server.url(), rules).await);
    }
    fleet_of(&nodes, 3).await;
    let request = Descriptor::new();
    for other in &nodes[1..] {
        other.request(&request).cost(60).check().await;
    }
    let reserved = nodes[0].request(&request).cost(50).reserve(Micros::new(60_000_000)).await.unwrap();
    let reservation = reserved.reservation.unwrap();
    for node in nodes.iter().chain(&nodes) {
        assert_eq!(node.settle(reservation, 10).await.unwrap().refunded, 40);
    }
    let mut left = Vec::new();
    for node in &nodes {
        left.push(node.request(&request).peek().await.remaining().unwrap());
    }
    assert_eq!(left, [90, 40, 40]);
}

#[tokio::test]
async fn what_time_has_paid_back_already_is_not_given_back_again() {
    const SECOND: i64 = 1_000_000;
    let server = RedisServer::start().await;
    for (limit, later) in [
        ("limit: 100/s", 25),
        ("limit: 100 every 1s, aligned: true", 16),
        ("limit: 100 every 1s", 25),
        ("limit: 100/s, algorithm: fixed_window", 16),
        ("limit: 100/s, algorithm: sliding_window_counter", 35),
        ("limit: 100/s, algorithm: sliding_window_log", 25),
    ] {
        server.command(&["FLUSHALL"]).await;
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000 * SECOND));
        let rules = format!("rules: [{{ name: all, key: global, {limit}, consistency: leased }}]");
        let (first, second) =
            (node_at(&server.url(), &rules, &clock).await, node_at(&server.url(), &rules, &clock).await);
        let request = Descriptor::new();
        let turn_to = |tenths: i64| {
            clock.set(Timestamp::from_micros(1_700_000_000 * SECOND + tenths * SECOND / 10));
        };
        for _ in 0..40 {
            clock.advance(Micros::new(10_000));
            assert!(first.check(&request).await.allowed(), "{limit}");
            calls_answered(&first).await;
        }
        turn_to(9);
        let reserved = first.request(&request).cost(30).reserve(Micros::new(60_000_000)).await.unwrap();
        first.store().close().await;
        turn_to(later);
        assert!(
            second.request(&request).cost(100).check().await.allowed(),
            "{limit}: all of it has come back"
        );
        first.settle(reserved.reservation.unwrap(), 0).await.unwrap();
        assert_eq!(second.request(&request).peek().await.remaining(), Some(0), "{limit}");
    }
}
