//! Leases and local shares over a real Redis: several nodes, faults between them, and what they admit together.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod auto;
mod changes;
mod cluster;
mod held;
mod outages;
mod settled;
mod shares;
mod waits;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tollgate::{Answer, Clock, Descriptor, LeasedStore, Limiter, RedisStore, rules};
use tollgate_tests::poll;

/// A busy machine is no reason to decide without the store.
const UNHURRIED: Duration = Duration::from_secs(5);

/// A node of a fleet, in this process.
async fn node(url: &str, rules: &str) -> Arc<Limiter<LeasedStore>> {
    node_with(url, rules, UNHURRIED).await
}

async fn node_with(url: &str, rules: &str, deadline: Duration) -> Arc<Limiter<LeasedStore>> {
    let redis = RedisStore::builder(url).deadline(deadline).connect().await.unwrap();
    poll::until("a store that is ready", async || redis.ready().await.ok()).await;
    let store = LeasedStore::among(redis, NonZeroU32::MIN);
    Arc::new(Limiter::new(rules::parse("rules.yaml", rules).unwrap(), store))
}

/// A node in virtual time.
async fn node_at(url: &str, rules: &str, clock: &Clock) -> Arc<Limiter<LeasedStore>> {
    let redis = RedisStore::builder(url).clock(clock.clone()).deadline(UNHURRIED);
    let store = LeasedStore::among(redis.connect().await.unwrap(), NonZeroU32::MIN);
    Arc::new(Limiter::new(rules::parse("rules.yaml", rules).unwrap(), store))
}

async fn check(node: &Limiter<LeasedStore>) -> Answer {
    node.check(&Descriptor::new().with("user_id", "1")).await
}

/// Tokens that leases lost, which a busy machine does not renew in time.
fn stranded(node: &Limiter<LeasedStore>) -> u64 {
    node.store().stats().tokens_stranded
}

/// Waits for lease calls: virtual time must not pass while one is under way in real time.
async fn calls_answered(node: &Limiter<LeasedStore>) {
    poll::until("the lease calls to be answered", async || {
        (node.store().stats().calls_under_way == 0).then_some(())
    })
    .await;
}

/// What was asked of Redis for the sake of decisions.
fn calls(node: &Limiter<LeasedStore>) -> u64 {
    let stats = node.store().stats();
    stats.lease_calls + stats.exact_decisions
}

/// Asks until the key is hot, and answers how many were admitted on the way.
async fn warm(node: &Limiter<LeasedStore>) -> u64 {
    warm_with(node, &Descriptor::new().with("user_id", "1")).await
}

/// The same with a request of one's own.
async fn warm_with(node: &Limiter<LeasedStore>, request: &Descriptor<'_>) -> u64 {
    let mut admitted = 0;
    poll::until("a lease", async || {
        for _ in 0..20 {
            admitted += u64::from(node.check(request).await.allowed());
        }
        (node.store().stats().local_decisions > 0).then_some(())
    })
    .await;
    admitted
}
