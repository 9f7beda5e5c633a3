//! Answers that are cut, wrong, lost or late, and values under our keys that are not ours.

use tollgate::{Descriptor, Gate, Limiter, RedisStore, StoreError, rules};
use tollgate_tests::fault_proxy::Mode;
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;
use tollgate_tests::rows::Stored as _;

use crate::node::{CAPACITY, Node, UNHURRIED, USUAL};

/// A limit of each algorithm with room for ten.
const EVERY_ALGORITHM: [&str; 4] = ["1/d burst 10", "10 every 1d", "1/d queue 9", "10/d"];

/// In this mode a decision is an error, never a panic; the connection is left, and the next one decides.
async fn is_survived(node: &Node, mode: Mode) {
    let before = node.gate.store().stats().connections;
    node.proxy.set(mode).await;
    assert!(node.spend("broken").await.is_err(), "{mode:?}");
    node.proxy.set(Mode::Pass).await;
    node.recovered().await;
    assert!(node.gate.store().stats().connections > before, "{mode:?}: the same connection is used again");
}

#[tokio::test]
async fn a_truncated_reply_drops_the_connection_and_the_next_one_decides() {
    let node = Node::start().await;
    for bytes in [1, 3, 10] {
        is_survived(&node, Mode::CutAfter(bytes)).await;
    }
}

#[tokio::test]
async fn a_garbage_reply_drops_the_connection_and_the_next_one_decides() {
    let node = Node::start().await;
    is_survived(&node, Mode::GARBAGE).await;
    is_survived(&node, Mode::Answer(b"\0\x01\xff\xfe\r\n")).await;
    is_survived(&node, Mode::Answer(b"*-7\r\n")).await;
    is_survived(&node, Mode::Answer(b"$-99999999999999999999\r\n")).await;
}

#[tokio::test]
async fn a_reply_of_another_shape_drops_the_connection_and_the_next_one_decides() {
    let node = Node::start().await;
    for answer in [
        &b"+OK\r\n"[..],
        b":1\r\n",
        b"$-1\r\n",
        b"*0\r\n",
        b"*4\r\n:1\r\n:1\r\n:0\r\n:0\r\n",
        b"*5\r\n:-1\r\n:7\r\n:-1\r\n:-1\r\n$3\r\nabc\r\n",
        b"*5\r\n+a\r\n+b\r\n+c\r\n+d\r\n+e\r\n",
    ] {
        is_survived(&node, Mode::Answer(answer)).await;
    }
}

#[tokio::test]
async fn a_giant_reply_is_not_read_to_its_end() {
    const ENOUGH: u64 = 64 << 20;
    let node = Node::with_deadline(USUAL).await;
    node.proxy.set(Mode::Giant).await;
    let before = node.proxy.to_client();
    assert!(node.spend("flooded").await.is_err());
    // It has given up on that connection when no more is read from it, and before too much was.
    poll::until("the flood to end", async || {
        let read = node.proxy.to_client() - before;
        assert!(read < ENOUGH, "{read} bytes of one reply were read");
        (node.proxy.open() == 0 || node.gate.store().stats().connections > 1).then_some(())
    })
    .await;
    node.proxy.set(Mode::Pass).await;
    node.recovered().await;
}

#[tokio::test]
async fn a_deeply_nested_reply_is_no_panic() {
    static DEEP: [u8; 40_000] = {
        let mut bytes = [0; 40_000];
        let mut at = 0;
        while at < bytes.len() {
            bytes[at] = b"*1\r\n"[at % 4];
            at += 1;
        }
        bytes
    };
    let node = Node::start().await;
    is_survived(&node, Mode::Answer(&DEEP)).await;
}

#[tokio::test]
async fn a_reply_that_was_lost_after_execution_is_charged_once() {
    let node = Node::with_deadline(USUAL).await;
    node.proxy.set(Mode::DropReplies).await;
    assert_eq!(node.spend("silent").await, Err(StoreError::Timeout));
    node.proxy.set(Mode::Pass).await;
    // On a busy machine Redis may receive it only after the deadline.
    let charged = async || Some(node.remaining("silent").await).filter(|left| *left < CAPACITY);
    assert_eq!(poll::until("the charge", charged).await, CAPACITY - 1);

    let node = Node::start().await;
    node.proxy.set(Mode::CutAfter(0)).await;
    assert_eq!(node.spend("cut").await, Err(StoreError::Unreachable));
    node.proxy.set(Mode::Pass).await;
    assert_eq!(node.remaining("cut").await, CAPACITY - 1);
}

#[tokio::test]
async fn a_reply_that_comes_late_is_never_taken_for_another() {
    let node = Node::with_deadline(USUAL).await;
    for round in 0..10 {
        // This one's answer says that 500 remain, and arrives while the next decisions are made.
        node.proxy.set(Mode::Delay(2 * USUAL)).await;
        let late = node.gate.allow_cost(&format!("late {round}"), CAPACITY / 2).await.stored();
        assert!(late.is_err(), "{late:?}");
        node.proxy.set(Mode::Delay(USUAL / 10)).await;
        for key in ["a", "b", "c"] {
            let key = format!("{key} {round}");
            if let Ok(remaining) = node.spend(&key).await {
                assert_eq!(remaining, CAPACITY - 1, "{key}");
            }
        }
        node.recovered().await;
    }
}

#[tokio::test]
async fn many_at_once_each_get_their_own_answer() {
    let node = Node::start().await;
    let crowd = (1..=200_u64).map(|cost| {
        let gate = node.gate.clone();
        tokio::spawn(async move { (cost, gate.allow_cost(&format!("costs {cost}"), cost).await) })
    });
    for one in crowd.collect::<Vec<_>>() {
        let (cost, answer) = one.await.unwrap();
        assert_eq!(answer.stored().unwrap().remaining, CAPACITY - cost);
    }
}

/// Puts something else where a bucket is, three times over, and sees that the bucket starts anew each time.
async fn starts_anew(server: &RedisServer, limit: &str, window: &str) {
    let algorithm = format!("{limit} {window}");
    let store = RedisStore::builder(&server.url()).deadline(UNHURRIED).connect().await.unwrap();
    let limit = tollgate::rules::parse("r", &format!("rules: [{{ key: global, limit: {limit}{window} }}]"));
    let limiter = tollgate::Limiter::new(limit.unwrap(), store);
    let request = tollgate::Descriptor::new();
    assert_eq!(limiter.request(&request).cost(3).check().await.remaining(), Some(7), "{algorithm}");
    let key = our_key(server).await;
    for (count, foreign) in (1..).zip([
        &["SET", &key, "garbage"][..],
        &["SET", &key, ""],
        &["SET", &key, &"\u{1}".repeat(24)],
        &["RPUSH", &key, "a", "list"],
        &["HSET", &key, "a", "hash"],
        &["SADD", &key, "a", "set"],
        &["ZADD", &key, "1", "sorted"],
    ]) {
        server.command(&["DEL", &key]).await;
        server.command(foreign).await;
        let answer = limiter.request(&request).cost(2).check().await;
        assert_eq!(answer.degraded(), None, "{algorithm}: {foreign:?}");
        assert_eq!(answer.remaining(), Some(8), "{algorithm}: {foreign:?}");
        assert_eq!(limiter.store().stats().foreign, count, "{algorithm}: {foreign:?}");
        assert_eq!(limiter.check(&request).await.remaining(), Some(7), "{algorithm}: {foreign:?}");
        let ttl = tollgate_tests::redis_server::text(&server.command(&["PTTL", &key]).await);
        assert!(ttl.parse::<i64>().unwrap() > 0, "{algorithm}: {foreign:?}: no time to live");
    }
    limiter.request(&request).reset().await.unwrap();
}

/// The one key that is not the probe's.
async fn our_key(server: &RedisServer) -> String {
    let keys = server.contents().await.into_iter().map(|(key, _)| key);
    let mut keys = keys.filter(|key| !key.contains("probe"));
    let key = keys.next().expect("a key");
    assert_eq!(keys.next(), None);
    key
}

#[tokio::test]
async fn a_foreign_value_under_our_key_is_replaced_and_counted() {
    let server = RedisServer::start().await;
    for limit in EVERY_ALGORITHM.into_iter().take(3) {
        starts_anew(&server, limit, "").await;
    }
    for window in ["fixed_window", "sliding_window_log", "sliding_window_counter"] {
        starts_anew(&server, EVERY_ALGORITHM[3], &format!(", algorithm: {window}")).await;
    }
}

#[tokio::test]
async fn a_peek_at_a_foreign_value_answers_and_leaves_it() {
    let server = RedisServer::start().await;
    let store = RedisStore::builder(&server.url()).deadline(UNHURRIED).connect().await.unwrap();
    let gate = Gate::new("1/d burst 10".parse().unwrap(), store);
    gate.allow("k").await.stored().unwrap();
    let key = our_key(&server).await;
    server.command(&["DEL", &key]).await;
    server.command(&["RPUSH", &key, "a", "list"]).await;
    assert_eq!(gate.peek("k").await.stored().unwrap().remaining, 10);
    assert_eq!(tollgate_tests::redis_server::text(&server.command(&["TYPE", &key]).await), "list");
}

#[tokio::test]
async fn pauses_of_the_server_within_the_deadline_are_no_fault() {
    let node = Node::start().await;
    node.server.command(&["CLIENT", "PAUSE", "100", "ALL"]).await;
    assert_eq!(node.spend("paused").await, Ok(CAPACITY - 1));
    let server = &node.server;
    let sleep = server.command(&["DEBUG", "SLEEP", "0.1"]);
    let (_, spent) = tokio::join!(sleep, node.spend("asleep"));
    assert_eq!(spent, Ok(CAPACITY - 1));
    assert_eq!(node.gate.store().stats().outages, 0);
}

#[tokio::test]
async fn a_batch_does_not_take_the_places_of_other_decisions() {
    let server = RedisServer::start().await;

    let store =
        RedisStore::builder(&server.url()).deadline(UNHURRIED).max_in_flight(64).connect().await.unwrap();
    let rules =
        rules::parse("rules.yaml", "rules: [{ key: 'user:{user_id}', limit: 1/d burst 5000 }]").unwrap();
    let limiter = Limiter::new(rules, store);
    let request = Descriptor::new().with("user_id", "1");
    let batch: Vec<_> = (0..1_000).map(|_| limiter.request(&request)).collect();
    let answers = limiter.check_many(&batch).await;
    assert!(answers.iter().all(|answer| answer.allowed() && answer.degraded().is_none()));
    assert_eq!(limiter.request(&request).peek().await.remaining(), Some(4_000));
}
