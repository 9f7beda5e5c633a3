//! Lease state of recently used keys.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::quality::RandomState;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tollgate_core::algorithm::Demand;
use tollgate_core::lease::{self, Parting, Purse, Temper};
use tollgate_core::rule::Consistency;
use tollgate_core::{Descriptor, KeyHash, Limit, Micros, Rule, Tier, Timestamp};

use super::{Held, Shared};
use crate::store::redis::Place;
use crate::store::{Call, Due};

/// A power of two.
const SHARDS: usize = 64;
/// Maximum keys tracked per shard; further keys are decided at Redis.
const MAX_KEYS: usize = 2_048;

/// The entries, by key.
#[derive(Debug)]
pub(super) struct Table(Box<[Mutex<Shard>]>);

pub(super) type Shard = HashMap<KeyHash, Entry, RandomState>;

/// The lease of one key.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) purse: Purse,
    /// Of the limit that it was borrowed under.
    digest: u64,
    /// Of the rule.
    space: [u64; 2],
    /// Where to call; known once a call was made.
    place: Option<Arc<Place>>,
    /// Notified when a call is over.
    pub(super) call_over: Arc<Notify>,
}

/// A row of a rule that is leased.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) hash: KeyHash,
    pub(super) rule: &'a Rule,
    pub(super) limit: &'a Limit,
    request: &'a Descriptor<'a>,
    pub(super) demand: Demand,
    pub(super) temper: Temper,
    pub(super) is_reservation: bool,
}

/// A call that is to be sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) hash: KeyHash,
    pub(super) place: Arc<Place>,
    pub(super) call: lease::Call,
}

/// Totals over all entries.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Sum {
    pub(super) tokens: u64,
    /// Calls under way.
    pub(super) calls: usize,
}

impl<'a> Row<'a> {
    /// `None` for a rule that is not leased.
    #[inline]
    pub(super) fn of(call: &Call<'a>, tier: &Tier) -> Option<Self> {
        let rule = call.rule(tier);
        Some(Row {
            hash: tier.hash,
            rule,
            limit: rule.limit()?,
            request: call.request,
            demand: call.demand(tier),
            temper: temper(rule)?,
            is_reservation: call.is_reservation,
        })
    }

    /// The same for what is to be settled.
    pub(super) fn of_due(due: &Due<'a>) -> Option<Self> {
        Some(Row {
            hash: crate::key_seeds().hash(due.key()),
            rule: due.rule,
            limit: due.limit(),
            request: due.request,
            demand: Demand { cost: due.cost, max_wait: Micros::MAX },
            temper: temper(due.rule)?,
            is_reservation: false,
        })
    }
}

/// When to borrow for the keys of a rule; `None` where nothing is borrowed.
#[inline]
pub(super) const fn temper(rule: &Rule) -> Option<Temper> {
    match rule.consistency() {
        Consistency::Leased => Some(Temper::LEASED),
        Consistency::Auto => Some(Temper::AUTO),
        Consistency::Exact | Consistency::Local => None,
    }
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
            let tokens = entry.purse.held_at(now);
            let leased = entry.purse.is_hot() || tokens > 0;
            Held { in_force: if leased { Consistency::Leased } else { Consistency::Exact }, tokens }
        })
    }

    pub(super) fn leases(&self) -> HashMap<[u64; 2], usize> {
        let mut leases = HashMap::new();
        for shard in self.shards() {
            for entry in shard.values().filter(|entry| entry.purse.is_hot()) {
                *leases.entry(entry.space).or_insert(0) += 1;
            }
        }
        leases
    }

    pub(super) fn sum(&self, now: Timestamp) -> Sum {
        let mut sum = Sum::default();
        for shard in self.shards() {
            sum.calls += shard.values().filter(|entry| entry.purse.is_calling()).count();
            sum.tokens += shard.values().map(|entry| entry.purse.held_at(now)).sum::<u64>();
        }
        sum
    }
}

impl Entry {
    fn new(row: &Row<'_>) -> Self {
        Entry {
            purse: Purse::new(row.limit.clone()),
            digest: row.limit.digest(),
            space: row.rule.space().digest(),
            place: None,
            call_over: Arc::new(Notify::new()),
        }
    }

    /// The entry of a row's key; `None` when the shard is full.
    ///
    /// If the rule's limit has changed since it was made, what was borrowed under the old one is returned, and the entry
    /// starts empty.
    #[inline]
    pub(super) fn of<'s>(shard: &'s mut Shard, row: &Row<'_>, shared: &Arc<Shared>) -> Option<&'s mut Entry> {
        if !shard.contains_key(&row.hash) {
            if shard.len() >= MAX_KEYS {
                return None;
            }
            shard.insert(row.hash, Entry::new(row));
        }
        let entry = shard.get_mut(&row.hash)?;
        if !entry.is_under(row.limit) {
            entry.replace(row, shared);
        }
        Some(entry)
    }

    fn replace(&mut self, row: &Row<'_>, shared: &Arc<Shared>) {
        let mut before = std::mem::replace(self, Entry::new(row));
        before.call_over.notify_waiters();
        before.place = before.place.map(|place| match place.limit.algorithm_name() {
            // Under the old limit the bucket would be cut down to that.
            same if same == row.limit.algorithm_name() => self.place(row, shared),
            _ => place,
        });
        match before.return_lease(row.hash, shared, Parting::Final) {
            Some(outgoing) => shared.send_in_background(outgoing),
            None => shared.count_stranded(before.purse.held_at(shared.now())), // a call is under way
        }
    }

    /// Whether the lease was borrowed under this limit.
    #[inline]
    pub(super) const fn is_under(&self, limit: &Limit) -> bool {
        self.digest == limit.digest()
    }

    /// The call that a request of this cost waits for; with no cost, the one that reports what was spent.
    pub(super) fn call(&mut self, row: &Row<'_>, cost: u64, shared: &Shared, now: Timestamp) -> Outgoing {
        let call = self.purse.call(shared.node, shared.next_sequence(), cost, now);
        Outgoing { hash: row.hash, place: self.place(row, shared), call }
    }

    /// The call that keeps the lease from running dry, when it is time.
    #[inline]
    pub(super) fn renewal(&mut self, row: &Row<'_>, shared: &Shared, now: Timestamp) -> Option<Outgoing> {
        let call = self.purse.renewal(shared.node, || shared.next_sequence(), now)?;
        Some(Outgoing { hash: row.hash, place: self.place(row, shared), call })
    }

    /// The call that returns the lease, when it is time.
    pub(super) fn return_lease(
        &mut self,
        hash: KeyHash,
        shared: &Shared,
        parting: Parting,
    ) -> Option<Outgoing> {
        let place = Arc::clone(self.place.as_ref()?);
        let now = shared.now();
        let call = self.purse.farewell(shared.node, || shared.next_sequence(), parting, now);
        shared.count_stranded(self.purse.stranded(now));
        Some(Outgoing { hash, place, call: call? })
    }

    fn place(&mut self, row: &Row<'_>, shared: &Shared) -> Arc<Place> {
        let place = || Arc::new(shared.redis.place(row.rule, row.rule.key(row.request)));
        Arc::clone(self.place.get_or_insert_with(place))
    }
}
