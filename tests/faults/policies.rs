//! What callers are told while the store is lost: each rule's own word.

use std::num::NonZeroU32;

use tollgate::core::rule::FailurePolicy;
use tollgate::{Descriptor, Limiter, RedisStore, Status, rules};
use tollgate_tests::fault_proxy::Mode;
use tollgate_tests::poll;

use crate::node::{Node, USUAL};

const RULES: &str = r#"
rules:
  - { name: open, key: "user:{user_id}", limit: 1/d burst 4, on_store_failure: open, when: { plan: [open] } }
  - { name: closed, key: "user:{user_id}", limit: 1/d burst 4, on_store_failure: closed, when: { plan: [closed] } }
  - { name: local, key: "user:{user_id}", limit: 1/d burst 4, on_store_failure: local, when: { plan: [local] } }
"#;

fn request(plan: &'static str) -> Descriptor<'static> {
    Descriptor::new().with("user_id", "42").with("plan", plan)
}

/// A limiter on one of two nodes, whose Redis is a black hole already.
async fn lost() -> (Limiter<RedisStore>, Node) {
    let node = Node::start().await;
    let store = RedisStore::builder(&node.proxy.url()).deadline(USUAL).connect().await.unwrap();
    poll::until("a store that is ready", async || store.ready().await.ok()).await;
    let limiter = Limiter::new(rules::parse("rules.yaml", RULES).unwrap(), store);
    node.proxy.set(Mode::Blackhole).await;
    (limiter.with_nodes(NonZeroU32::new(2).unwrap()), node)
}

#[tokio::test]
async fn open_lets_everything_pass_and_says_so() {
    let (limiter, _node) = lost().await;
    for _ in 0..30 {
        let answer = limiter.check(&request("open")).await;
        assert_eq!(answer.status(), Status::Allowed);
        let degraded = answer.degraded().unwrap();
        assert_eq!(degraded.policy, FailurePolicy::Open);
        assert_eq!(degraded.reason, "timeout");
    }
}

#[tokio::test]
async fn closed_lets_nothing_pass_and_is_no_refusal() {
    let (limiter, _node) = lost().await;
    for _ in 0..30 {
        let answer = limiter.check(&request("closed")).await;
        assert_eq!(answer.status(), Status::Unavailable, "a 503, never a 429");
        assert_eq!(answer.degraded().unwrap().policy, FailurePolicy::Closed);
    }
}

#[tokio::test]
async fn local_lets_this_nodes_share_pass() {
    let (limiter, _node) = lost().await;
    let mut admitted = 0;
    for _ in 0..30 {
        let answer = limiter.check(&request("local")).await;
        assert_eq!(answer.degraded().unwrap().policy, FailurePolicy::Local);
        admitted += u32::from(answer.allowed());
    }
    assert_eq!(admitted, 2, "half of 4");
}

#[tokio::test]
async fn a_store_that_is_back_decides_again_and_nothing_is_degraded() {
    let (limiter, node) = lost().await;
    while limiter.store().stats().up {
        assert!(limiter.check(&request("open")).await.degraded().is_some());
    }
    node.proxy.set(Mode::Pass).await;
    // A decision that is late on a busy machine may be charged, so each attempt has a user of its own.
    let mut attempt = 0;
    let answer = poll::until("a decision of the store", async || {
        attempt += 1;
        let user = format!("attempt {attempt}");
        let request = Descriptor::new().with("user_id", &*user).with("plan", "closed");
        let answer = limiter.check(&request).await;
        answer.degraded().is_none().then_some(answer)
    })
    .await;
    assert_eq!(answer.remaining(), Some(3));
}
