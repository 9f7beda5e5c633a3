//! Settlements whose answers are lost: whoever settles again pays neither twice nor too little.

use tollgate::{Descriptor, Limiter, Micros, RedisStore, ReservationId, Settled, rules};
use tollgate_tests::fault_proxy::{FaultProxy, Mode};
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;

use crate::node::UNHURRIED;

const DAY: Micros = Micros::new(86_400_000_000);
const RESERVED: u64 = 40;

/// Two buckets, a window and a log; nothing comes back while a test runs.
const RULES: &str = r#"rules:
  - { name: user, key: "user:{user_id}", limit: 1/d burst 100 }
  - { name: all, key: global, limit: 1/d burst 1000 }
  - { name: window, key: "user:{user_id}", limit: 100/d, algorithm: fixed_window, window: first }
  - { name: log, key: "user:{user_id}", limit: 100/d, algorithm: sliding_window_log }"#;

fn user() -> Descriptor<'static> {
    Descriptor::new().with("user_id", "42")
}

async fn node(url: &str) -> Limiter<RedisStore> {
    let store = RedisStore::builder(url).deadline(UNHURRIED).connect().await.unwrap();
    Limiter::new(rules::parse("rules.yaml", RULES).unwrap(), store)
}

async fn used(node: &Limiter<RedisStore>) -> Vec<u64> {
    let answer = node.request(&user()).cost(0).peek().await;
    answer.tiers().iter().map(|tier| tier.verdict().limit - tier.verdict().remaining).collect()
}

/// A reservation among buckets of which nothing else was taken.
async fn reserved(node: &Limiter<RedisStore>) -> ReservationId {
    node.request(&user()).reset().await.unwrap();
    node.request(&user()).cost(RESERVED).reserve(DAY).await.unwrap().reservation.unwrap()
}

/// Settles over a connection that breaks after so many bytes of answers; whether that was noticed.
async fn loses_answers(proxy: &FaultProxy, bytes: u64, settle: impl Future<Output = bool>) -> bool {
    proxy.set(Mode::CutAfter(bytes)).await;
    let failed = !settle.await;
    proxy.set(Mode::Pass).await;
    failed
}

#[tokio::test]
async fn a_settlement_whose_answer_is_lost_is_repeated_without_harm() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let (near, far) = (node(&server.url()).await, node(&proxy.url()).await);
    for actual in [15, 70, 250] {
        let id = reserved(&near).await;
        let before = proxy.to_client();
        let expected = far.settle(id, actual).await.unwrap();
        let (answers, spent) = (proxy.to_client() - before, used(&near).await);
        let mut lost = 0;
        // The answer to the last call is the shortest, and the one that matters.
        for bytes in (0..answers).filter(|bytes| bytes % 64 == 0 || answers - bytes < 250 && bytes % 16 == 0)
        {
            let id = reserved(&near).await;
            let settle = async || far.settle(id, actual).await.is_ok();
            lost += u32::from(loses_answers(&proxy, bytes, settle()).await);
            let settled = poll::until("the settlement", async || far.settle(id, actual).await.ok()).await;
            assert_eq!(Settled { already_settled: false, ..settled }, expected, "cut after {bytes}");
            assert_eq!(used(&near).await, spent, "cut after {bytes}");
            let told = near.settle(id, 1).await.unwrap();
            assert_eq!(told, Settled { already_settled: true, ..expected }, "cut after {bytes}");
            assert_eq!(used(&near).await, spent, "cut after {bytes}");
        }
        assert!(lost >= 8, "only {lost} settlements lost their answer");
    }
}
