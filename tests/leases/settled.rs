//! Reservations of rules that are leased or local.

use tollgate::{Clock, Descriptor, Micros, ReservationLimit, ReserveError, SettleError, Timestamp};
use tollgate_tests::redis_server::RedisServer;

use crate::shares::fleet_of;
use crate::{calls_answered, node, node_at, stranded, warm};

#[tokio::test]
async fn a_reservation_of_a_leased_rule_that_is_settled_for_less_gives_the_rest_back() {
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
async fn a_reservation_on_a_share_is_settled_by_the_node_that_has_the_share() {
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
    for other in &nodes[1..] {
        assert_eq!(other.settle(reservation, 10).await, Err(SettleError::Gone));
    }
    let settled = nodes[0].settle(reservation, 10).await.unwrap();
    assert_eq!((settled.refunded, settled.already_settled), (40, false));
    assert!(nodes[0].settle(reservation, 0).await.unwrap().already_settled);
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

#[tokio::test]
async fn reservations_on_shares_are_bounded_for_each_caller_and_those_at_redis_need_no_place() {
    let server = RedisServer::start().await;
    let rules = "rules:
      - { name: local, key: 'team:{team}', limit: 1000000 every 1d, consistency: local }
      - { name: exact, key: 'user:{user_id}', limit: 1000000 every 1d }";
    let node = node(&server.url(), rules).await;
    fleet_of(std::slice::from_ref(&node), 1).await;
    let reserve = async |attribute: &'static str| {
        let request = Descriptor::new().with(attribute, "1");
        let reserved = node.request(&request).caller("greedy").reserve(Micros::new(60_000_000)).await;
        reserved.map(|reserved| reserved.reservation)
    };
    let mut kept = 0;
    let full = loop {
        match reserve("team").await {
            Ok(id) => kept += usize::from(id.is_some()),
            Err(error) => break error,
        }
    };
    assert_eq!((kept, full), (6_250, ReserveError::Full(ReservationLimit::Caller { max: 6_250 })));
    let left = node.request(&Descriptor::new().with("team", "1")).peek().await.remaining();
    assert_eq!(left, Some(1_000_000 - 6_250), "the last one was charged nothing");
}

#[tokio::test]
async fn a_reservation_on_a_share_and_at_redis_is_settled_in_both() {
    let server = RedisServer::start().await;
    let rules = "rules:
      - { name: local, key: global, limit: 300 every 1d, consistency: local }
      - { name: exact, key: global, limit: 200 every 1d }";
    let nodes = [node(&server.url(), rules).await, node(&server.url(), rules).await];
    fleet_of(&nodes, 2).await;
    let request = Descriptor::new();
    let left = async || {
        let answer = nodes[0].request(&request).peek().await;
        answer.tiers().iter().map(|tier| tier.verdict().remaining).collect::<Vec<u64>>()
    };
    let reserve = async || {
        let reserved = nodes[0].request(&request).cost(50).reserve(Micros::new(60_000_000)).await.unwrap();
        reserved.reservation.unwrap()
    };
    let id = reserve().await;
    assert_eq!(left().await, [100, 150]);
    nodes[0].settle(id, 10).await.unwrap();
    assert_eq!(left().await, [140, 190]);
    assert!(nodes[1].settle(id, 0).await.unwrap().already_settled);
    // Another node settles what is at Redis, and the first its share when it is asked.
    let id = reserve().await;
    nodes[1].settle(id, 10).await.unwrap();
    assert_eq!(left().await, [90, 180]);
    assert!(nodes[0].settle(id, 0).await.unwrap().already_settled);
    assert_eq!(left().await, [130, 180]);
    // What one refuses leaves both as they were.
    let refused = nodes[0].request(&request).cost(131).reserve(Micros::new(60_000_000)).await.unwrap();
    assert!(!refused.answer.allowed() && refused.reservation.is_none());
    let refused = nodes[0].request(&request).cost(181).reserve(Micros::new(60_000_000)).await.unwrap();
    assert!(!refused.answer.allowed() && refused.reservation.is_none());
    assert_eq!(left().await, [130, 180]);
}
