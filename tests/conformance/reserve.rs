//! Reserve and settle over every store: what one node reserved another settles, once.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tokio::runtime::Runtime;
use tollgate::{
    AnyStore, Clock, Descriptor, Limiter, MemoryStore, Micros, RedisStore, ReservationId, SettleError,
    Settled, StoreError, Tier, Timestamp, Verdict, rules,
};
use tollgate_tests::poll;
use tollgate_tests::redis_cluster::{RedisCluster, Replicas};
use tollgate_tests::redis_server::{RedisServer, text};

use super::config;

const DAY: Micros = Micros::new(86_400_000_000);

/// Every algorithm.
const RULES: &str = r#"rules:
  - { name: bucket, key: "user:{user_id}", limit: 10/min burst 20 }
  - { name: interval, key: "user:{user_id}", limit: 5 every 20s burst 20, aligned: true }
  - { name: leaky, key: "user:{user_id}", limit: 10/min queue 19 }
  - { name: fixed, key: global, limit: 20/min, algorithm: fixed_window }
  - { name: calendar, key: "user:{user_id}", limit: 100/d, algorithm: fixed_window, window: calendar }
  - { name: log, key: "user:{user_id}", limit: 20/min, algorithm: sliding_window_log }
  - { name: counter, key: "user:{user_id}", limit: 20/min, algorithm: sliding_window_counter }
  - { name: dear, key: "user:{user_id}", limit: 60/min, cost: 3 }
  - { name: trial, key: "user:{user_id}", limit: 15/min, mode: shadow }"#;

const ONE: &str = r#"rules: [{ name: user, key: "user:{user_id}", limit: 1000/d }]"#;

fn user() -> Descriptor<'static> {
    Descriptor::new().with("user_id", "42")
}

fn limiter(rules: &str, store: impl Into<AnyStore>) -> Limiter {
    Limiter::new(rules::parse("rules.yaml", rules).expect("rules"), store.into())
}

async fn node(url: &str) -> Limiter {
    let store = RedisStore::builder(url).deadline(Duration::from_secs(20)).connect().await.expect("a URL");
    limiter(ONE, store)
}

async fn remaining(limiter: &Limiter) -> Option<u64> {
    limiter.request(&user()).cost(0).peek().await.remaining()
}

/// One of several: wait, take, reserve, or settle with some of what was reserved or more.
#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Take(u64),
    Reserve(u64),
    Settle(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..30_000_000_u64).prop_map(Step::Wait),
        (0..6_u64).prop_map(Step::Take),
        (1..12_u64).prop_map(Step::Reserve),
        (0..20_u64).prop_map(Step::Settle),
    ]
}

/// What a limiter says to every step: all verdicts afterwards, and what was settled.
async fn walk(limiter: &Limiter, clock: &Clock, steps: &[Step]) -> Vec<(Vec<Verdict>, Option<Settled>)> {
    let mut open = Vec::new();
    let mut seen = Vec::new();
    for step in steps {
        let mut settled = None;
        match step {
            Step::Wait(wait) => clock.advance(Micros::new(*wait)),
            Step::Take(cost) => drop(limiter.request(&user()).cost(*cost).check().await),
            Step::Reserve(cost) => {
                open.extend(
                    limiter.request(&user()).cost(*cost).reserve(DAY).await.expect("kept").reservation,
                );
            }
            Step::Settle(actual) => {
                if let Some(id) = open.pop() {
                    settled = Some(limiter.settle(id, *actual).await.expect("settled"));
                }
            }
        }
        let answer = limiter.request(&user()).peek().await;
        let verdict = |tier: &Tier| tier.verdict().resolved(answer.rules().rule(tier.rule).limit());
        seen.push((answer.tiers().iter().map(verdict).collect(), settled));
    }
    seen
}

#[test]
fn redis_settles_as_memory_does() {
    let runtime = Runtime::new().expect("a runtime");
    let server = runtime.block_on(RedisServer::start());
    let traces = std::cell::Cell::new(0);
    let steps = prop::collection::vec(any_step(), 1..25);
    let outcome = TestRunner::new(config(60)).run(&steps, |steps| {
        traces.set(traces.get() + 1);
        runtime.block_on(async {
            let start = Timestamp::from_micros(1_800_000_000_500_000);
            let (here, there) = (Clock::manual(start), Clock::manual(start));
            let memory = limiter(RULES, MemoryStore::with(here.clone(), tollgate::Bounds::default()));
            let redis = RedisStore::builder(&server.url())
                .key_prefix(format!("t{}", traces.get()))
                .clock(there.clone())
                .deadline(Duration::from_secs(20));
            let redis = limiter(RULES, redis.connect().await.expect("a URL"));
            let (expected, seen) = (walk(&memory, &here, &steps).await, walk(&redis, &there, &steps).await);
            prop_assert_eq!(seen, expected);
            Ok(())
        })
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_settle_at_once_on_two_nodes_one_is_the_first() {
    let server = RedisServer::start().await;
    let nodes = [Arc::new(node(&server.url()).await), Arc::new(node(&server.url()).await)];
    for round in 0..10 {
        nodes[0].request(&user()).reset().await.expect("Redis answers");
        let id = nodes[0]
            .request(&user())
            .cost(300)
            .reserve(DAY)
            .await
            .expect("kept")
            .reservation
            .expect("charged");
        let settle = |number: u64| {
            let node = Arc::clone(&nodes[usize::from(number.is_multiple_of(2))]);
            tokio::spawn(async move { node.settle(id, 10 * number).await.expect("settled") })
        };
        let settling: Vec<_> = (0..16).map(settle).collect();
        let mut settled = Vec::new();
        for one in settling {
            settled.push(one.await.expect("no panic"));
        }
        let first: Vec<&Settled> = settled.iter().filter(|settled| !settled.already_settled).collect();
        let [first] = &first[..] else { panic!("round {round}: {} were the first", first.len()) };
        for other in &settled {
            assert_eq!((other.actual, other.refunded), (first.actual, first.refunded), "round {round}");
        }
        assert_eq!(remaining(&nodes[1]).await, Some(1_000 - first.actual), "round {round}");
    }
}

/// The record of a reservation: its tag, then its digits.
fn record_key(id: ReservationId) -> String {
    let id = id.to_string();
    let (digits, tag) = id.split_at(32);
    format!("tg:reserved:{{{tag}}}{digits}")
}

#[tokio::test]
async fn every_record_expires_and_then_the_reservation_is_spent() {
    let server = RedisServer::start().await;
    let node = node(&server.url()).await;
    let settled =
        node.request(&user()).cost(100).reserve(DAY).await.expect("kept").reservation.expect("charged");
    assert_eq!(node.settle(settled, 2_000).await.expect("settled").unpaid, 1_000);
    node.request(&user()).reset().await.expect("Redis answers");
    let short = Micros::new(20_000);
    let id =
        node.request(&user()).cost(100).reserve(short).await.expect("kept").reservation.expect("charged");
    for (key, _) in server.contents().await {
        let left = text(&server.command(&["PTTL", &key]).await);
        assert_ne!(left, "-1", "{key} never expires");
    }
    let key = record_key(id);
    assert_eq!(text(&server.command(&["EXISTS", &key]).await), "1");
    poll::until("the record to expire", async || {
        (text(&server.command(&["EXISTS", &key]).await) == "0").then_some(())
    })
    .await;
    assert_eq!(node.settle(id, 0).await, Err(SettleError::Gone));
    assert_eq!(remaining(&node).await, Some(900));
}

#[tokio::test]
async fn in_a_cluster_another_node_settles_wherever_the_record_is() {
    let cluster = RedisCluster::start(Replicas::None).await;
    let (here, there) = (node(&cluster.url()).await, node(&cluster.url()).await);
    for _ in 0..30 {
        let id =
            here.request(&user()).cost(30).reserve(DAY).await.expect("kept").reservation.expect("charged");
        assert_eq!(there.settle(id, 10).await.expect("settled").refunded, 20);
        assert!(here.settle(id, 0).await.expect("settled").already_settled);
    }
    assert_eq!(remaining(&there).await, Some(700));
    let id = here.request(&user()).cost(30).reserve(DAY).await.expect("kept").reservation.expect("charged");
    let first = there.settle(id, 900).await.expect("settled");
    assert_eq!((first.charged, first.unpaid), (670, 200));
    assert_eq!(here.settle(id, 0).await.expect("settled"), Settled { already_settled: true, ..first });
    assert_eq!(remaining(&there).await, Some(0));
}

/// Four buckets in several slots, one of them in shadow mode.
const APART: &str = r#"rules:
  - { name: all, key: global, limit: 10 every 1d burst 500, cost: 2 }
  - { name: user, key: "user:{user_id}", limit: 1000/d }
  - { name: log, key: "team:{team}", limit: 100/d, algorithm: sliding_window_log }
  - { name: window, key: "pool:{pool}", limit: 200/d, algorithm: fixed_window, window: first }
  - { name: trial, key: "area:{area}", limit: 50/d, mode: shadow }"#;

#[tokio::test]
async fn in_a_cluster_a_reservation_over_several_slots_is_settled_in_all_of_them() {
    let cluster = RedisCluster::start(Replicas::None).await;
    let (here, there) = (node(&cluster.url()).await, node(&cluster.url()).await);
    for node in [&here, &there] {
        node.set_rules(rules::parse("rules.yaml", APART).expect("rules"));
    }
    let request = user().with("team", "t").with("pool", "p").with("area", "a");
    let used = async || {
        let answer = there.request(&request).cost(0).peek().await;
        let used = |tier: &Tier| tier.verdict().limit - tier.verdict().remaining;
        answer.tiers().iter().map(used).collect::<Vec<u64>>()
    };
    let reserve = async |cost| {
        here.request(&request).reset().await.expect("Redis answers");
        let reserved = here.request(&request).cost(cost).reserve(DAY).await.expect("kept");
        reserved.reservation.expect("charged")
    };
    for (cost, actual, after) in [
        (40, 15, vec![30, 15, 15, 15, 15]),
        (40, 40, vec![80, 40, 40, 40, 40]),
        (40, 90, vec![180, 90, 90, 90, 50]),
        (40, 130, vec![260, 130, 100, 130, 50]),
    ] {
        let id = reserve(cost).await;
        assert_eq!(used().await, [2 * cost, cost, cost, cost, cost], "{cost} reserved");
        // The record that describes it is beside the caller's bucket.
        let of_user = here.store().redis().expect("Redis").key(here.rules().rule(1), &request);
        let tag = id.to_string().split_off(32);
        assert!(String::from_utf8_lossy(&of_user).contains(&format!("{{{tag}}}")), "{id}");
        let settled = there.settle(id, actual).await.expect("settled");
        let unpaid = actual.saturating_sub(100);
        assert_eq!((settled.reserved, settled.actual, settled.unpaid), (cost, actual, unpaid));
        assert_eq!(used().await, after, "{cost} settled with {actual}");
        let again = here.settle(id, 0).await.expect("settled");
        assert_eq!(again, Settled { already_settled: true, ..settled });
        assert_eq!(used().await, after, "{cost} settled with {actual} twice");
    }
    // What one slot refuses leaves no record and no charge in the others.
    here.request(&request).reset().await.expect("Redis answers");
    let refused = here.request(&request).cost(101).reserve(DAY).await.expect("decided");
    assert!(!refused.answer.allowed() && refused.reservation.is_none());
    assert_eq!(used().await, [0, 0, 0, 0, 0]);
    poll::until("the records to be removed", async || {
        let mut records = 0;
        for node in &cluster.nodes {
            let keys = node.server.contents().await.into_iter().map(|(key, _)| key);
            records += keys.filter(|key| key.starts_with("tg:reserved:")).count();
        }
        // Those of the four that were settled are kept, one each.
        (records == 4).then_some(())
    })
    .await;
}

/// The rights that the guide to `doctor` names are enough for reservations. A user without those for records reserves
/// nothing, and nothing stays charged.
#[tokio::test]
async fn a_record_that_redis_does_not_take_leaves_nothing_charged() {
    let server = RedisServer::start().await;
    let rights = "+evalsha +script|load +time +mget +get +set +del +pexpire +lindex +lrange +lset +lpop +rpop +lpush +rpush \
        +zadd +zrem +zcard +zrank +zrangebyscore +pttl +type \
        +@connection";
    for (name, keys) in [("whole", "~tg:*"), ("buckets", "~tg:{*")] {
        let words: Vec<&str> = ["ACL", "SETUSER", name, "on", ">secret", keys]
            .into_iter()
            .chain(rights.split_whitespace())
            .collect();
        server.command(&words).await;
    }
    let url = |name: &str| server.url().replace("redis://", &format!("redis://{name}:secret@"));
    let whole = node(&url("whole")).await;
    let id = whole.request(&user()).cost(100).reserve(DAY).await.expect("kept").reservation.expect("charged");
    whole.settle(id, 40).await.expect("settled");
    assert_eq!(remaining(&whole).await, Some(960));

    let buckets = node(&url("buckets")).await;
    let unkept = buckets.request(&user()).cost(100).reserve(DAY).await.expect("decided by the policy");
    assert_eq!(unkept.answer.store_error(), Some(StoreError::Rejected { code: "NOPERM" }));
    assert_eq!(unkept.reservation, None);
    assert_eq!(remaining(&whole).await, Some(960));
}
