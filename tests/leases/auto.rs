//! Which keys are leased, by how hot they are. In virtual time: a pace is a pace on every machine.

use std::sync::Arc;

use tollgate::core::rule::Consistency;
use tollgate::{Clock, Descriptor, LeasedStore, Limiter, Micros, Timestamp};
use tollgate_tests::redis_server::RedisServer;

use crate::{calls_answered, node_at};

struct Asked {
    node: Arc<Limiter<LeasedStore>>,
    clock: Clock,
}

impl Asked {
    async fn new(url: &str, consistency: &str) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let rules = format!(
            "rules: [{{ name: {consistency}, key: global, limit: 100000 every 1d, consistency: {consistency} }}]"
        );
        Asked { node: node_at(url, &rules, &clock).await, clock }
    }

    /// Where decisions are made after so many a second for a second.
    async fn at(&self, per_second: u64) -> Consistency {
        for _ in 0..per_second {
            self.clock.advance(Micros::new(1_000_000 / per_second));
            let answer = self.node.check(&Descriptor::new()).await;
            calls_answered(&self.node).await;
            assert!(answer.allowed() && answer.degraded().is_none());
        }
        let (rules, request) = (self.node.rules(), Descriptor::new());
        self.node.store().held(rules.rule(0), &request).in_force
    }
}

#[tokio::test]
async fn a_key_is_leased_once_it_is_hot_and_exact_once_it_is_cold_and_neither_flutters() {
    let server = RedisServer::start().await;
    let auto = Asked::new(&server.url(), "auto").await;
    for (per_second, in_force, why) in [
        (200, Consistency::Exact, "too cold to get hot"),
        (1_000, Consistency::Leased, "hot"),
        (200, Consistency::Leased, "still hot enough"),
        (25, Consistency::Exact, "cold"),
        (200, Consistency::Exact, "it is as cold as it was at first"),
    ] {
        assert_eq!(auto.at(per_second).await, in_force, "{per_second} a second: {why}");
    }
    let stats = auto.node.store().stats();
    assert!(stats.local_decisions > 500 && stats.exact_decisions > 200, "{stats:?}");
    let leased = Asked::new(&server.url(), "leased").await;
    assert_eq!(leased.at(20).await, Consistency::Exact);
    assert_eq!(leased.at(200).await, Consistency::Leased, "that is hot for who wants leases");
}
