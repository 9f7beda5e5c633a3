//! Rules that change while something is leased, unpaid or under way.

use std::sync::Arc;
use std::time::Duration;

use tollgate::core::RuleSet;
use tollgate::{Descriptor, rules};
use tollgate_tests::fault_proxy::{FaultProxy, Mode};
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;

use crate::outages::PATIENT;
use crate::{check, node, node_with, warm};

const THOUSAND: &str = "rules: [{ name: all, key: global, limit: 1000 every 1d, consistency: leased }]";

fn with_burst(burst: u64) -> RuleSet {
    rules::parse("rules.yaml", &THOUSAND.replace("1000 every", &format!("{burst} every"))).unwrap()
}

#[tokio::test]
async fn a_refusal_under_the_old_limit_is_not_remembered_under_the_new_one() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let few = "rules: [{ name: all, key: global, limit: 100 every 1d, consistency: leased }]";
    let node = node(&proxy.url(), few).await;
    warm(&node).await;
    proxy.set(Mode::Delay(Duration::from_millis(300))).await;
    let under_the_old = tokio::spawn({
        let node = Arc::clone(&node);
        async move { node.request(&Descriptor::new()).cost(100).check().await }
    });
    let calls = node.store().stats().exact_decisions;
    poll::until("the request to be sent", async || {
        (node.store().stats().exact_decisions > calls).then_some(())
    })
    .await;
    under_the_old.abort(); // nobody waits for it, and its answer comes all the same
    node.set_rules(with_burst(1_000));
    assert!(check(&node).await.allowed());
    proxy.set(Mode::Pass).await;
    assert!(node.request(&Descriptor::new()).cost(100).check().await.allowed(), "a thousand is enough");
}

#[tokio::test]
async fn what_was_used_beyond_the_old_limit_stays_used_when_an_old_lease_comes_back() {
    let server = RedisServer::start().await;
    let (first, second) = (node(&server.url(), THOUSAND).await, node(&server.url(), THOUSAND).await);
    warm(&first).await;
    first.set_rules(with_burst(10_000));
    second.set_rules(with_burst(10_000));
    assert!(second.request(&Descriptor::new()).cost(5_000).check().await.allowed());
    check(&first).await; // finds the new limit, and gives back what it has under the old one
    first.store().close().await;
    let left = second.request(&Descriptor::new()).peek().await.remaining().unwrap();
    assert!(left < 5_000, "{left} are left of 10,000 of which 5,000 were taken at once");
}

#[tokio::test]
async fn what_is_owed_is_charged_under_the_limit_of_now() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    let away = node_with(&proxy.url(), THOUSAND, PATIENT).await;
    away.set_rules(with_burst(50));
    proxy.set(Mode::Refuse).await;
    let admit = async |count: u64| {
        let mut admitted = 0;
        while admitted < count {
            let answer = check(&away).await;
            admitted += u64::from(answer.degraded().is_some() && answer.allowed());
        }
    };
    admit(60).await;
    away.set_rules(with_burst(1_000));
    admit(100).await;
    proxy.set(Mode::Pass).await;
    let other = node(&server.url(), THOUSAND).await;
    poll::until("more than the old capacity to be charged", async || {
        let left = other.request(&Descriptor::new()).peek().await.remaining().unwrap();
        (left <= 900).then_some(())
    })
    .await;
}
