//! What is held of every key that was asked for lately.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use foldhash::quality::RandomState;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tollgate_core::lease::{Call, Parting, Purse};
use tollgate_core::rule::Consistency;
use tollgate_core::{Hit, Timestamp};

use super::{Held, Shared};
use crate::key_hash::KeySeeds;
use crate::store::redis::Place;

/// A power of two.
const SHARDS: usize = 64;
/// So many keys are watched in each shard; those beyond are decided at Redis.
const MOST_KEYS: usize = 2_048;

/// 128 bits of a key, under seeds of this process: the same hash is the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct KeyHash(u128);

/// The desks, by key.
#[derive(Debug)]
pub(super) struct Desks {
    seeds: KeySeeds,
    shards: Box<[Mutex<Shard>]>,
}

pub(super) type Shard = HashMap<KeyHash, Desk, RandomState>;

/// What is held of one key.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) purse: Purse,
    /// Of the limit that it was borrowed under.
    digest: u64,
    /// Of the rule.
    space: [u64; 2],
    /// Where to call; known once a call was made.
    place: Option<Arc<Place>>,
    /// Tells whoever waits that a call is over.
    pub(super) over: Arc<Notify>,
}

/// A call that is to be sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) hash: KeyHash,
    pub(super) place: Arc<Place>,
    pub(super) call: Call,
}

/// What all desks hold.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Sum {
    pub(super) tokens: u64,
    /// Calls under way.
    pub(super) calls: usize,
}

impl Desks {
    pub(super) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Desks { seeds: KeySeeds::random(), shards }
    }

    #[inline]
    pub(super) fn hash(&self, key: &impl Hash) -> KeyHash {
        KeyHash(self.seeds.hash(key))
    }

    #[inline]
    pub(super) fn shard(&self, hash: KeyHash) -> MutexGuard<'_, Shard> {
        self.shards[(hash.0 >> 96) as usize & (SHARDS - 1)].lock()
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.shards.iter().map(|shard| shard.lock())
    }

    pub(super) fn held(&self, hit: &Hit<'_>, now: Timestamp) -> Option<Held> {
        let hash = self.hash(&hit.key);
        let shard = self.shard(hash);
        let purse = &shard.get(&hash).filter(|desk| desk.is_under(hit))?.purse;
        let tokens = purse.held_at(now);
        let leased = purse.is_hot() || tokens > 0;
        Some(Held { in_force: if leased { Consistency::Leased } else { Consistency::Exact }, tokens })
    }

    pub(super) fn leases(&self) -> HashMap<[u64; 2], usize> {
        let mut leases = HashMap::new();
        for shard in self.shards() {
            for desk in shard.values().filter(|desk| desk.purse.is_hot()) {
                *leases.entry(desk.space).or_insert(0) += 1;
            }
        }
        leases
    }

    pub(super) fn sum(&self, now: Timestamp) -> Sum {
        let mut sum = Sum::default();
        for shard in self.shards() {
            sum.calls += shard.values().filter(|desk| desk.purse.is_calling()).count();
            sum.tokens += shard.values().map(|desk| desk.purse.held_at(now)).sum::<u64>();
        }
        sum
    }
}

impl Desk {
    fn new(hit: &Hit<'_>) -> Self {
        Desk {
            purse: Purse::new(hit.limit.clone()),
            digest: hit.limit.digest(),
            space: hit.key.space().digest(),
            place: None,
            over: Arc::new(Notify::new()),
        }
    }

    /// The desk of a hit's key; `None` when there are too many already.
    ///
    /// One under another limit, because the rule was changed, gives back what it holds and begins anew.
    #[inline]
    pub(super) fn of<'s>(
        shard: &'s mut Shard,
        hash: KeyHash,
        hit: &Hit<'_>,
        shared: &Arc<Shared>,
    ) -> Option<&'s mut Desk> {
        if !shard.contains_key(&hash) {
            if shard.len() >= MOST_KEYS {
                return None;
            }
            shard.insert(hash, Desk::new(hit));
        }
        let desk = shard.get_mut(&hash)?;
        if !desk.is_under(hit) {
            let mut before = std::mem::replace(desk, Desk::new(hit));
            before.over.notify_waiters();
            before.place = before.place.map(|place| match place.limit.algorithm_name() {
                // Under the old limit the bucket would be cut down to that.
                same if same == hit.limit.algorithm_name() => desk.place(hit, shared),
                _ => place,
            });
            match before.farewell(hash, shared, Parting::Final) {
                Some(outgoing) => shared.send_in_background(outgoing),
                None => shared.strand(before.purse.held_at(shared.now())), // a call is under way
            }
        }
        Some(desk)
    }

    /// Whether what it holds was borrowed under a hit's limit.
    pub(super) fn is_under(&self, hit: &Hit<'_>) -> bool {
        self.digest == hit.limit.digest()
    }

    /// The call that a request of this cost waits for.
    pub(super) fn call(&mut self, hash: KeyHash, hit: &Hit<'_>, shared: &Shared, now: Timestamp) -> Outgoing {
        let call = self.purse.call(shared.node, shared.next_sequence(), hit.demand.cost, now);
        Outgoing { hash, place: self.place(hit, shared), call }
    }

    /// The call that keeps the lease from running dry, when it is time.
    #[inline]
    pub(super) fn renewal(
        &mut self,
        hash: KeyHash,
        hit: &Hit<'_>,
        shared: &Shared,
        now: Timestamp,
    ) -> Option<Outgoing> {
        let call = self.purse.renewal(shared.node, || shared.next_sequence(), now)?;
        Some(Outgoing { hash, place: self.place(hit, shared), call })
    }

    /// The call that tells what was spent, and keeps the rest.
    pub(super) fn tell(&mut self, hash: KeyHash, hit: &Hit<'_>, shared: &Shared) -> Outgoing {
        let call = self.purse.call(shared.node, shared.next_sequence(), 0, shared.now());
        Outgoing { hash, place: self.place(hit, shared), call }
    }

    /// The call that gives back what is held, when it is time.
    pub(super) fn farewell(&mut self, hash: KeyHash, shared: &Shared, parting: Parting) -> Option<Outgoing> {
        let place = Arc::clone(self.place.as_ref()?);
        let now = shared.now();
        let call = self.purse.farewell(shared.node, || shared.next_sequence(), parting, now);
        shared.note_stranded(self, now);
        Some(Outgoing { hash, place, call: call? })
    }

    fn place(&mut self, hit: &Hit<'_>, shared: &Shared) -> Arc<Place> {
        Arc::clone(self.place.get_or_insert_with(|| Arc::new(shared.redis.place(hit))))
    }
}
