//! Decisions on leases that are taken back.

use tollgate::{Descriptor, Micros};
use tollgate_tests::redis_server::RedisServer;

use crate::{node, warm};

#[tokio::test]
async fn a_reservation_on_a_lease_that_is_settled_for_less_gives_the_rest_back() {
    let server = RedisServer::start().await;
    for limit in [
        "limit: 1/d burst 1000",
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
        let reserved = node.reserve(&request, 300, Micros::new(60_000_000)).await.unwrap();
        let settled = node.settle(reserved.reservation.unwrap(), 100).await.unwrap();
        assert_eq!(settled.refunded, 200, "{limit}");
        node.store().close().await;
        let left = node.peek(&request, 1).await.remaining().unwrap();
        assert_eq!(left, 900 - admitted, "{limit}");
    }
}
