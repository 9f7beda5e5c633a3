//! What was admitted while Redis was away, to be charged when it is back.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use parking_lot::Mutex;
use tollgate_core::Hit;

use super::desk::KeyHash;
use crate::store::redis::Place;

/// So many keys are remembered; what is admitted on others is forgiven.
const MOST_KEYS: usize = 10_000;

/// Costs by key, none above the key's capacity: a bucket is never charged more than it holds.
#[derive(Debug, Default)]
pub(super) struct Owed(Mutex<HashMap<KeyHash, Debit>>);

/// What one bucket is owed.
#[derive(Debug)]
pub(super) struct Debit {
    pub(super) place: Place,
    pub(super) cost: u64,
    capacity: u64,
}

impl Owed {
    pub(super) fn add(&self, hash: KeyHash, hit: &Hit<'_>, place: impl FnOnce() -> Place) {
        let mut owed = self.0.lock();
        if hit.demand.cost == 0 || owed.len() >= MOST_KEYS && !owed.contains_key(&hash) {
            return;
        }
        let capacity = hit.limit.capacity();
        let new = |cost| Debit { place: place(), cost, capacity };
        let debit = match owed.entry(hash) {
            Entry::Vacant(entry) => entry.insert(new(0)),
            // The rule was changed: charged under the old limit, the bucket would be cut down to that.
            Entry::Occupied(entry) if entry.get().place.limit != *hit.limit => {
                let debit = entry.into_mut();
                *debit = new(debit.cost);
                debit
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        debit.cost = debit.cost.saturating_add(hit.demand.cost).min(debit.capacity);
    }

    /// How many keys are owed something.
    pub(super) fn keys(&self) -> usize {
        self.0.lock().len()
    }

    /// Takes out a few that can be charged.
    pub(super) fn some(&self, count: usize, can_be: impl Fn(&Place) -> bool) -> Vec<(KeyHash, Debit)> {
        let mut owed = self.0.lock();
        let such = owed.iter().filter(|(_, debit)| can_be(&debit.place));
        let keys: Vec<KeyHash> = such.take(count).map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| owed.remove(&key).map(|debit| (key, debit))).collect()
    }

    /// Redis was not back: it stays owed.
    pub(super) fn again(&self, hash: KeyHash, debit: Debit) {
        let mut owed = self.0.lock();
        match owed.entry(hash) {
            Entry::Vacant(entry) => _ = entry.insert(debit),
            // What came since knows the limit of now.
            Entry::Occupied(mut entry) => {
                let known = entry.get_mut();
                known.cost = known.cost.saturating_add(debit.cost).min(known.capacity);
            }
        }
    }
}
