//! Leases of recently used keys.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foldhash::quality::RandomState;
use parking_lot::{Mutex, MutexGuard};
use tollgate_core::lease::{Called, Heat, LeaseCall, NodeBucket, lease_time};
use tollgate_core::limit::AlgorithmName;
use tollgate_core::rule::Consistency;
use tollgate_core::{Descriptor, KeyHash, Limit, Micros, Rule, Tier, Timestamp};

use super::{Held, Shared};
use crate::store::Call;
use crate::store::redis::Place;

/// A power of two.
const SHARDS: usize = 64;
/// Maximum keys tracked per shard; further keys are decided at Redis.
const MAX_KEYS: usize = 2_048;

/// The entries, by key.
#[derive(Debug)]
pub(super) struct Table(Box<[Mutex<Shard>]>);

pub(super) type Shard = HashMap<KeyHash, Entry, RandomState>;

/// One key on this node.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) bucket: NodeBucket,
    /// Of the limit that its lease is of.
    digest: u64,
    /// Of the rule.
    space: [u64; 2],
    heat: Heat,
    /// Where to call; known once a call was made.
    place: Option<Arc<Place>>,
    /// Tokens that were admitted while Redis was unavailable and are not charged yet, at most the capacity.
    unpaid: u64,
    /// Whether a debit for them is under way.
    is_charging: bool,
}

/// A row of a rule that is leased.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) hash: KeyHash,
    pub(super) rule: &'a Rule,
    pub(super) limit: &'a Limit,
    request: &'a Descriptor<'a>,
    pub(super) cost: u64,
    heat: Heat,
}

/// A call that is to be sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) hash: KeyHash,
    pub(super) place: Arc<Place>,
    pub(super) call: LeaseCall,
    pub(super) called: Called,
}

/// Totals over all entries.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Sum {
    pub(super) tokens: u64,
    pub(super) leases: usize,
    /// Calls under way.
    pub(super) calls: u64,
}

impl<'a> Row<'a> {
    /// `None` for a rule that is not leased.
    #[inline]
    pub(super) fn of(call: &Call<'a>, tier: &Tier) -> Option<Self> {
        let rule = call.rule(tier);
        let (limit, heat) = (rule.limit()?, heat(rule)?);
        Some(Row { hash: tier.hash, rule, limit, request: call.request, cost: tier.cost, heat })
    }
}

/// From which demand the keys of a rule are leased; `None` for rules that are not.
#[inline]
pub(super) fn heat(rule: &Rule) -> Option<Heat> {
    let heat = match rule.consistency() {
        Consistency::Leased => Heat::LEASED,
        Consistency::Auto => Heat::AUTO,
        Consistency::Exact | Consistency::Local => return None,
    };
    // Queues are always decided at the store.
    rule.limit().is_some_and(|limit| limit.algorithm_name() != AlgorithmName::LeakyBucket).then_some(heat)
}

impl Table {
    pub(super) fn new() -> Self {
        Table((0..SHARDS).map(|_| Mutex::default()).collect())
    }

    #[inline]
    pub(super) fn shard(&self, hash: KeyHash) -> MutexGuard<'_, Shard> {
        self.0[(hash.0 >> 96) as usize & (SHARDS - 1)].lock()
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.0.iter().map(|shard| shard.lock())
    }

    /// Applies `change` to the lease of a key, if there is one under this limit.
    pub(super) fn change<T>(
        &self,
        hash: KeyHash,
        limit: &Limit,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> Option<T> {
        let mut shard = self.shard(hash);
        shard.get_mut(&hash).filter(|entry| entry.is_under(limit)).map(change)
    }

    pub(super) fn held(&self, hash: KeyHash, limit: &Limit, now: Timestamp) -> Option<Held> {
        self.change(hash, limit, |entry| {
            let tokens = entry.bucket.tokens(now);
            let is_leased = entry.bucket.is_leased();
            Held { in_force: if is_leased { Consistency::Leased } else { Consistency::Exact }, tokens }
        })
    }

    pub(super) fn leases(&self) -> HashMap<[u64; 2], usize> {
        let mut leases = HashMap::new();
        for shard in self.shards() {
            for entry in shard.values().filter(|entry| entry.bucket.is_leased()) {
                *leases.entry(entry.space).or_insert(0) += 1;
            }
        }
        leases
    }

    /// Up to `count` debits that can be sent. Each ends with [`charged`](Self::charged).
    pub(super) fn start_charging(&self, count: usize, shared: &Shared) -> Vec<(KeyHash, Arc<Place>, u64)> {
        let mut debits = Vec::new();
        for mut shard in self.shards() {
            let unpaid = shard.iter_mut().filter_map(|(hash, entry)| {
                let (place, cost) = entry.start_charging(shared)?;
                Some((*hash, place, cost))
            });
            debits.extend(unpaid.take(count - debits.len()));
        }
        debits
    }

    /// A debit has ended, and so much of it is settled.
    pub(super) fn charged(&self, hash: KeyHash, cost: u64) {
        if let Some(entry) = self.shard(hash).get_mut(&hash) {
            entry.unpaid = entry.unpaid.saturating_sub(cost);
            entry.is_charging = false;
        }
    }

    /// Keys of which something is unpaid.
    pub(super) fn unpaid(&self) -> usize {
        self.shards().map(|shard| shard.values().filter(|entry| entry.is_unpaid()).count()).sum()
    }

    pub(super) fn sum(&self, shared: &Shared) -> Sum {
        let (mut sum, now) = (Sum::default(), shared.now());
        for mut shard in self.shards() {
            for entry in shard.values_mut() {
                sum.tokens += entry.bucket.tokens(now);
                sum.leases += usize::from(entry.bucket.is_leased());
                sum.calls += u64::from(entry.bucket.is_calling());
                entry.count_stranded(shared);
            }
        }
        sum
    }
}

impl Entry {
    fn new(row: &Row<'_>, shared: &Shared) -> Self {
        Entry {
            bucket: NodeBucket::new(row.limit, shared.first_epoch()),
            digest: row.limit.digest(),
            space: row.rule.space().digest(),
            heat: row.heat,
            place: None,
            unpaid: 0,
            is_charging: false,
        }
    }

    /// The entry of a row's key; `None` when the shard is full.
    ///
    /// If the rule's limit has changed since it was made, the lease of the old one is returned, and the entry starts anew.
    #[inline]
    pub(super) fn of<'s>(shard: &'s mut Shard, row: &Row<'_>, shared: &Arc<Shared>) -> Option<&'s mut Entry> {
        if !shard.contains_key(&row.hash) {
            if shard.len() >= MAX_KEYS {
                return None;
            }
            shard.insert(row.hash, Entry::new(row, shared));
        }
        let entry = shard.get_mut(&row.hash)?;
        if !entry.is_under(row.limit) {
            let mut before = std::mem::replace(entry, Entry::new(row, shared));
            if let Some(returned) = before.give_back(row.hash, true, shared) {
                shared.send_in_background(returned);
            }
            before.count_stranded(shared);
            if before.unpaid > 0 {
                entry.unpaid = before.unpaid.min(row.limit.capacity());
                entry.is_charging = before.is_charging;
                entry.place(row, shared);
            }
        }
        entry.heat = row.heat;
        Some(entry)
    }

    /// Whether the lease is of this limit.
    #[inline]
    pub(super) const fn is_under(&self, limit: &Limit) -> bool {
        self.digest == limit.digest()
    }

    /// The call that a request sends: for a first lease, or when a renewal was missed and the lease ends soon.
    #[inline]
    pub(super) fn call(&mut self, row: &Row<'_>, shared: &Shared, now: Timestamp) -> Option<Outgoing> {
        let round_trip = shared.round_trip();
        let lead = Micros::new(lease_time(round_trip).get() / 8 + round_trip.get());
        let (call, called) = self.bucket.call(shared.heat(self.heat), lead, round_trip, now)?;
        Some(Outgoing { hash: row.hash, place: self.place(row, shared), call, called })
    }

    /// The call of maintenance, if the lease ends before the next one: it is renewed, or returned if the key is cold.
    pub(super) fn renewal(&mut self, hash: KeyHash, lead: Micros, shared: &Shared) -> Option<Outgoing> {
        let (round_trip, heat, now) = (shared.round_trip(), shared.heat(self.heat), shared.now());
        if !self.bucket.is_leased() {
            return None;
        }
        let returned = self.bucket.give_back(heat, false, round_trip, now);
        let (call, called) = returned.or_else(|| self.bucket.call(heat, lead, round_trip, now))?;
        Some(Outgoing { hash, place: Arc::clone(self.place.as_ref()?), call, called })
    }

    /// The call that returns the lease.
    pub(super) fn give_back(&mut self, hash: KeyHash, stops: bool, shared: &Shared) -> Option<Outgoing> {
        let (call, called) = self.bucket.give_back(self.heat, stops, shared.round_trip(), shared.now())?;
        Some(Outgoing { hash, place: Arc::clone(self.place.as_ref()?), call, called })
    }

    pub(super) fn count_stranded(&mut self, shared: &Shared) {
        shared.count_stranded(self.bucket.take_stranded());
    }

    /// Notes a cost that a failure policy admitted instead of Redis.
    pub(super) fn add_unpaid(&mut self, row: &Row<'_>, shared: &Shared) {
        self.place(row, shared);
        self.unpaid = self.unpaid.saturating_add(row.cost).min(row.limit.capacity());
        shared.has_unpaid.store(true, Ordering::Relaxed);
    }

    pub(super) const fn is_unpaid(&self) -> bool {
        self.unpaid > 0
    }

    /// What is to be charged and where, if that can be reached and is not under way.
    fn start_charging(&mut self, shared: &Shared) -> Option<(Arc<Place>, u64)> {
        let is_due = self.unpaid > 0 && !self.is_charging;
        let place = self.place.as_ref().filter(|place| is_due && shared.redis.reaches(place))?;
        self.is_charging = true;
        Some((Arc::clone(place), self.unpaid))
    }

    fn place(&mut self, row: &Row<'_>, shared: &Shared) -> Arc<Place> {
        let place = || Arc::new(shared.redis.place(row.rule, row.rule.key(row.request)));
        Arc::clone(self.place.get_or_insert_with(place))
    }
}
