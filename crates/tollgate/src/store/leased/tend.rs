//! What is done now and then: idle leases go back, the fleet is counted, what is owed is charged.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_core::lease::Parting;
use tollgate_core::{Micros, Timestamp};

use super::desk::{Desk, KeyHash};
use super::owed::Debit;
use super::{ALIVE, HEARTBEAT, Shared};

/// How often it looks.
const EVERY: Duration = Duration::from_millis(50);
/// How often a store that closes looks for what is still out, and the pause in between.
const LAST_LOOKS: usize = 40;
const PAUSE: Duration = Duration::from_millis(5);
/// So many calls are under way at once.
const AT_ONCE: usize = 64;
/// A store that closes pays what it owes for no longer than this.
const PAID_WITHIN: Duration = Duration::from_secs(5);

/// Tends the leases for as long as somebody has the store and has not closed it.
pub(super) async fn run(shared: Weak<Shared>) {
    let mut heartbeat_at = None;
    let is_open = |shared: &Arc<Shared>| !shared.closed.load(Ordering::Relaxed);
    while let Some(shared) = shared.upgrade().filter(is_open) {
        let now = shared.now();
        if heartbeat_at.is_none_or(|at| now >= at) {
            heartbeat_at = Some(now.after(HEARTBEAT));
            shared.call_the_roll(ALIVE).await;
        }
        shared.give_back(Parting::Idle).await;
        shared.pay_some_of_what_is_owed().await;
        drop(shared);
        tokio::time::sleep(EVERY).await;
    }
}

/// Gives everything back, pays what is owed and leaves the fleet. A lease that is just being renewed is given back when
/// that is done.
pub(super) async fn close(shared: &Arc<Shared>) {
    for _ in 0..LAST_LOOKS {
        shared.give_back(Parting::Final).await;
        let sum = shared.desks.sum(shared.now());
        if sum.tokens == 0 && sum.calls == 0 {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    let paid =
        tokio::time::timeout(PAID_WITHIN, async { while shared.pay_some_of_what_is_owed().await > 0 {} });
    let paid = paid.await.is_ok();
    let owed = shared.owed.keys();
    if owed > 0 || !paid {
        tracing::warn!(keys = owed, "what was admitted while the store was away stays uncharged");
    }
    shared.call_the_roll(Micros::ZERO).await;
}

impl Shared {
    /// Gives back what nobody uses, or all, and forgets keys that nobody asks for.
    async fn give_back(self: &Arc<Self>, parting: Parting) {
        let now = self.now();
        let mut held: Vec<KeyHash> = Vec::new();
        for mut shard in self.desks.shards() {
            shard.values_mut().for_each(|desk| self.note_stranded(desk, now));
            shard.retain(|_, desk| !desk.purse.is_idle(now));
            held.extend(
                shard.iter().filter(|(_, desk)| desk.purse.parts(parting, now)).map(|(hash, _)| *hash),
            );
        }
        let mut calls = JoinSet::new();
        for hash in held {
            if calls.len() >= AT_ONCE {
                calls.join_next().await;
            }
            // Only now: whoever wants the key meanwhile does not wait for a call that is not sent yet.
            let parted =
                self.desks.shard(hash).get_mut(&hash).and_then(|desk| desk.farewell(hash, self, parting));
            if let Some(call) = parted {
                calls.spawn(Arc::clone(self).send(call));
            }
        }
        while calls.join_next().await.is_some() {}
    }

    /// Says that this node is there, or leaves, and counts who else is. While Redis is away, the last count holds.
    async fn call_the_roll(&self, term: Micros) {
        match self.redis.roll_call(self.node, term).await {
            Ok(_) if term == Micros::ZERO => {} // without this node, which keeps the share it had
            Ok((nodes, place)) => self.shares.heard(nodes, place, self.now()),
            Err(error) => self.shares.unheard(error),
        }
    }

    /// Charges some of what was admitted while Redis was away, all at once: whoever tends the leases has other things to
    /// do as well. A debit of which nobody knows whether it was taken is not taken again. Answers how many are settled.
    async fn pay_some_of_what_is_owed(self: &Arc<Self>) -> usize {
        let mut debits = JoinSet::new();
        for (hash, debit) in self.owed.some(AT_ONCE, |place| self.redis.reaches(place)) {
            debits.spawn(Arc::clone(self).pay(hash, debit));
        }
        let mut settled = 0;
        while let Some(paid) = debits.join_next().await {
            settled += usize::from(paid.unwrap_or(false));
        }
        settled
    }

    /// Whether nothing is owed any more. What a bucket does not have is forgiven: it is full of what others charged.
    async fn pay(self: Arc<Self>, hash: KeyHash, debit: Debit) -> bool {
        match self.redis.debit(&debit.place, debit.cost).await {
            Ok(paid) => _ = self.counters.debited.fetch_add(paid, Ordering::Relaxed),
            Err(error) if error.is_in_doubt() => {}
            Err(_) => {
                self.owed.again(hash, debit);
                return false;
            }
        }
        true
    }

    /// Counts what went to waste on a desk.
    pub(super) fn note_stranded(&self, desk: &mut Desk, now: Timestamp) {
        self.strand(desk.purse.stranded(now));
    }

    pub(super) fn strand(&self, tokens: u64) {
        self.counters.stranded.fetch_add(tokens, Ordering::Relaxed);
    }
}
