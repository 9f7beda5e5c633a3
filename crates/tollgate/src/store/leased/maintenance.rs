//! Periodic maintenance: returns idle leases, sends heartbeats, charges what is owed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tollgate_core::lease::Parting;
use tollgate_core::{KeyHash, Micros, StoreError};

use super::Shared;
use super::owed::Debit;
use crate::shares::{HEARTBEAT_INTERVAL, MEMBERSHIP_TTL};

const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(50);
/// How often a store that is being closed tries to return what is still borrowed, and the pause in between.
const CLOSE_ATTEMPTS: usize = 40;
const CLOSE_RETRY_DELAY: Duration = Duration::from_millis(5);
const MAX_CONCURRENT_CALLS: usize = 64;
/// How long a store that is being closed charges what is owed.
const DEBIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs until the store is closed or dropped.
pub(super) async fn run(shared: Weak<Shared>) {
    let mut heartbeat_at = None;
    while let Some(shared) = shared.upgrade().filter(|shared| !shared.is_closed()) {
        let now = shared.now();
        if heartbeat_at.is_none_or(|at| now >= at) {
            heartbeat_at = Some(now.after(HEARTBEAT_INTERVAL));
            shared.send_heartbeat(MEMBERSHIP_TTL).await;
        }
        shared.return_leases(Parting::Idle).await;
        shared.charge_owed().await;
        drop(shared);
        tokio::time::sleep(MAINTENANCE_INTERVAL).await;
    }
}

/// Returns all leases, charges what is owed and ends this node's membership. A lease that is being renewed is returned when
/// that is done.
pub(super) async fn close(shared: &Arc<Shared>) {
    for _ in 0..CLOSE_ATTEMPTS {
        shared.return_leases(Parting::Final).await;
        let sum = shared.table.sum(shared.now());
        if sum.tokens == 0 && sum.calls == 0 {
            break;
        }
        tokio::time::sleep(CLOSE_RETRY_DELAY).await;
    }
    let charged = async { while shared.charge_owed().await > 0 {} };
    let in_time = tokio::time::timeout(DEBIT_TIMEOUT, charged).await.is_ok();
    let owed = shared.owed.keys();
    if owed > 0 || !in_time {
        tracing::warn!(keys = owed, "requests admitted while the store was unavailable stay uncharged");
    }
    shared.send_heartbeat(Micros::ZERO).await;
}

impl Shared {
    /// Returns unused leases, or all, and evicts idle keys.
    async fn return_leases(self: &Arc<Self>, parting: Parting) {
        let now = self.now();
        let mut held: Vec<KeyHash> = Vec::new();
        for mut shard in self.table.shards() {
            shard.values_mut().for_each(|entry| self.count_stranded(entry.purse.stranded(now)));
            shard.retain(|_, entry| !entry.purse.is_idle(now));
            let parting = shard.iter().filter(|(_, entry)| entry.purse.parts(parting, now));
            held.extend(parting.map(|(hash, _)| *hash));
        }
        let mut calls = JoinSet::new();
        for hash in held {
            if calls.len() >= MAX_CONCURRENT_CALLS {
                calls.join_next().await;
            }
            // Only now: until then, decisions on the key do not wait for a call that is not sent yet.
            let mut shard = self.table.shard(hash);
            let call = shard.get_mut(&hash).and_then(|entry| entry.return_lease(hash, self, parting));
            drop(shard);
            if let Some(call) = call {
                calls.spawn(Arc::clone(self).send(call));
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
    async fn charge_owed(self: &Arc<Self>) -> usize {
        let mut debits = JoinSet::new();
        for (hash, debit) in self.owed.take(MAX_CONCURRENT_CALLS, |place| self.redis.reaches(place)) {
            debits.spawn(Arc::clone(self).charge_debit(hash, debit));
        }
        let mut settled = 0;
        while let Some(charged) = debits.join_next().await {
            settled += usize::from(charged.unwrap_or(false));
        }
        settled
    }

    /// Whether the debit is settled. One that may have been charged is not sent again, and what the bucket does not have is
    /// not charged: other requests have used it.
    async fn charge_debit(self: Arc<Self>, hash: KeyHash, debit: Debit) -> bool {
        match self.redis.debit(&debit.place, debit.cost).await {
            Ok(charged) => _ = self.counters.debited.fetch_add(charged, Ordering::Relaxed),
            Err(error) if error.is_in_doubt() => {}
            Err(_) => {
                self.owed.restore(hash, debit);
                return false;
            }
        }
        true
    }

    pub(super) fn count_stranded(&self, tokens: u64) {
        self.counters.stranded.fetch_add(tokens, Ordering::Relaxed);
    }
}
