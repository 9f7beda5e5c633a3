//! Periodic maintenance: renews and returns leases, sends heartbeats, charges what is unpaid.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tollgate_core::lease::lease_time;
use tollgate_core::{KeyHash, Micros, StoreError};

use super::Shared;
use super::table::Outgoing;
use crate::shares::{HEARTBEAT_INTERVAL, MEMBERSHIP_TTL};
use crate::store::redis::Place;

const UPKEEP_INTERVAL: Duration = Duration::from_millis(50);
/// How often a store that is being closed tries to return what is still leased, and the pause in between.
const CLOSE_ATTEMPTS: usize = 40;
const CLOSE_RETRY_DELAY: Duration = Duration::from_millis(5);
/// Lease calls that are sent together.
const CALLS_AT_ONCE: usize = 1_024;
const DEBITS_AT_ONCE: usize = 64;
/// How long a store that is being closed charges what is unpaid.
const DEBIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs until the store is closed or dropped.
pub(super) async fn run(shared: Weak<Shared>) {
    tokio::join!(upkeep(shared.clone()), renewals(shared));
}

async fn upkeep(shared: Weak<Shared>) {
    let mut heartbeat_at = None;
    while let Some(shared) = open(&shared) {
        let now = shared.now();
        if heartbeat_at.is_none_or(|at| now >= at) {
            heartbeat_at = Some(now.after(HEARTBEAT_INTERVAL));
            shared.send_heartbeat(MEMBERSHIP_TTL).await;
        }
        shared.charge_unpaid().await;
        drop(shared);
        tokio::time::sleep(UPKEEP_INTERVAL).await;
    }
}

/// Renews all leases once in a lease time: their calls travel together.
async fn renewals(weak: Weak<Shared>) {
    while let Some(shared) = open(&weak) {
        let ((interval, wait), closing) = (shared.until_renewals(), Arc::clone(&shared.closing));
        drop(shared);
        _ = tokio::time::timeout(wait, closing.notified()).await;
        let Some(shared) = open(&weak) else { return };
        shared.renew_leases(interval).await;
    }
}

fn open(shared: &Weak<Shared>) -> Option<Arc<Shared>> {
    shared.upgrade().filter(|shared| !shared.is_closed())
}

/// Returns all leases, charges what is unpaid and ends this node's membership. A lease that is being renewed is returned when
/// that is done.
pub(super) async fn close(shared: &Arc<Shared>) {
    for _ in 0..CLOSE_ATTEMPTS {
        let held: Vec<KeyHash> =
            shared.table.shards().flat_map(|shard| shard.keys().copied().collect::<Vec<_>>()).collect();
        shared
            .send_all(held, |shared, hash| {
                shared.table.shard(hash).get_mut(&hash).and_then(|entry| entry.give_back(hash, true, shared))
            })
            .await;
        let sum = shared.table.sum(shared);
        if sum.leases == 0 && sum.calls == 0 {
            break;
        }
        tokio::time::sleep(CLOSE_RETRY_DELAY).await;
    }
    let charged = async { while shared.charge_unpaid().await > 0 {} };
    let in_time = tokio::time::timeout(DEBIT_TIMEOUT, charged).await.is_ok();
    let unpaid = shared.table.unpaid();
    if unpaid > 0 || !in_time {
        tracing::warn!(keys = unpaid, "requests admitted while the store was unavailable stay uncharged");
    }
    shared.send_heartbeat(Micros::ZERO).await;
}

impl Shared {
    /// The time between two renewals, and the wait until the next. Boundaries are multiples of the lease time on Redis' clock.
    /// Each node has an instant of its own between them, which leaves a quarter of the lease time for the call.
    fn until_renewals(&self) -> (Micros, Duration) {
        let interval = lease_time(self.round_trip());
        let time = interval.get();
        let own = (time / 8 + (self.node % 1_024) * (time * 5 / 8) / 1_024).cast_signed();
        let into = (self.redis.redis_time().as_micros() - own).rem_euclid(time.cast_signed()).unsigned_abs();
        (interval, Duration::from_micros(time - into))
    }

    /// Renews the leases that end before the next renewals, returns those of cold keys and evicts idle keys.
    async fn renew_leases(self: &Arc<Self>, interval: Micros) {
        let now = self.now();
        let mut leased: Vec<KeyHash> = Vec::new();
        for mut shard in self.table.shards() {
            shard.retain(|_, entry| {
                let is_idle = entry.bucket.is_idle(now);
                entry.count_stranded(self);
                !is_idle || entry.is_unpaid()
            });
            let leases = shard.iter().filter(|(_, entry)| entry.bucket.is_leased());
            leased.extend(leases.map(|(hash, _)| *hash));
        }
        let lead = Micros::new(interval.get() + interval.get() / 2);
        self.send_all(leased, |shared, hash| {
            shared.table.shard(hash).get_mut(&hash).and_then(|entry| entry.renewal(hash, lead, shared))
        })
        .await;
    }

    /// Sends a call for each of these keys, as many at once as travel together.
    async fn send_all(
        self: &Arc<Self>,
        keys: Vec<KeyHash>,
        call: impl Fn(&Arc<Self>, KeyHash) -> Option<Outgoing>,
    ) {
        let mut calls = JoinSet::new();
        for hash in keys {
            if calls.len() >= CALLS_AT_ONCE {
                calls.join_next().await;
            }
            if let Some(outgoing) = call(self, hash) {
                calls.spawn(Arc::clone(self).send(outgoing));
            }
        }
        while calls.join_next().await.is_some() {}
    }

    /// Renews this node's membership, or ends it with a TTL of zero, and counts the nodes. While Redis is unavailable, the
    /// last count holds.
    async fn send_heartbeat(&self, ttl: Micros) {
        match self.redis.heartbeat(self.node, ttl).await {
            Ok(_) if ttl == Micros::ZERO => {} // counted without this node, which keeps the share it had
            Ok((nodes, before)) => {
                self.shares.update_membership(nodes, before, self.now());
                self.membership.send_replace(Some(Ok(())));
            }
            Err(error) => {
                self.shares.membership_lost();
                if !self.shares.is_counted() {
                    self.membership.send_replace(Some(Err(error.unsent())));
                }
            }
        }
    }

    /// Waits until the nodes have been counted: a node that has just started must not use the whole limit as its share.
    pub(super) async fn membership_known(&self, deadline: Instant) -> Result<(), StoreError> {
        let mut membership = self.membership.subscribe();
        match timeout_at(deadline, membership.wait_for(Option::is_some)).await {
            Ok(Ok(counted)) => counted.unwrap_or(Ok(())),
            Ok(Err(_)) | Err(_) => Err(StoreError::Timeout.unsent()),
        }
    }

    /// Charges some of what was admitted while Redis was unavailable, concurrently, and returns how many debits are settled.
    async fn charge_unpaid(self: &Arc<Self>) -> usize {
        if !self.has_unpaid.swap(false, Ordering::Relaxed) {
            return 0;
        }
        let mut debits = JoinSet::new();
        for (hash, place, cost) in self.table.start_charging(DEBITS_AT_ONCE, self) {
            debits.spawn(Arc::clone(self).charge_debit(hash, place, cost));
        }
        let mut settled = 0;
        while let Some(charged) = debits.join_next().await {
            settled += usize::from(charged.unwrap_or(false));
        }
        if self.table.unpaid() > 0 {
            self.has_unpaid.store(true, Ordering::Relaxed);
        }
        settled
    }

    /// Whether the debit is settled. One that may have been charged is not sent again, and what the bucket does not have is
    /// not charged: other requests have used it.
    async fn charge_debit(self: Arc<Self>, hash: KeyHash, place: Arc<Place>, cost: u64) -> bool {
        let debited = self.redis.debit(&place, cost).await;
        if let Ok(charged) = debited {
            self.counters.debited.fetch_add(charged, Ordering::Relaxed);
        }
        let is_settled = debited.map_or_else(|error| error.is_in_doubt(), |_| true);
        self.table.charged(hash, if is_settled { cost } else { 0 });
        is_settled
    }

    pub(super) fn count_stranded(&self, tokens: u64) {
        self.counters.stranded.fetch_add(tokens, Ordering::Relaxed);
    }
}
