//! What was admitted while Redis was unavailable, to be charged when it has recovered.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use parking_lot::Mutex;
use tollgate_core::{KeyHash, Limit};

use crate::store::redis::Place;

/// Maximum keys tracked; what is admitted on further keys is not charged.
const MAX_KEYS: usize = 10_000;

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
    pub(super) fn add(&self, hash: KeyHash, limit: &Limit, cost: u64, place: impl FnOnce() -> Place) {
        let mut owed = self.0.lock();
        if cost == 0 || owed.len() >= MAX_KEYS && !owed.contains_key(&hash) {
            return;
        }
        let new = |cost| Debit { place: place(), cost, capacity: limit.capacity() };
        let debit = match owed.entry(hash) {
            Entry::Vacant(entry) => entry.insert(new(0)),
            // The rule was changed: charged under the old limit, the bucket would be cut down to that.
            Entry::Occupied(entry) if entry.get().place.limit != *limit => {
                let debit = entry.into_mut();
                *debit = new(debit.cost);
                debit
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        debit.cost = debit.cost.saturating_add(cost).min(debit.capacity);
    }

    /// The number of keys that are owed something.
    pub(super) fn keys(&self) -> usize {
        self.0.lock().len()
    }

    /// Removes up to `count` debits whose place can be reached.
    pub(super) fn take(&self, count: usize, reaches: impl Fn(&Place) -> bool) -> Vec<(KeyHash, Debit)> {
        let mut owed = self.0.lock();
        let reachable = owed.iter().filter(|(_, debit)| reaches(&debit.place));
        let keys: Vec<KeyHash> = reachable.take(count).map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| owed.remove(&key).map(|debit| (key, debit))).collect()
    }

    /// Redis had not recovered: the debit stays owed.
    pub(super) fn restore(&self, hash: KeyHash, debit: Debit) {
        let mut owed = self.0.lock();
        match owed.entry(hash) {
            Entry::Vacant(entry) => _ = entry.insert(debit),
            // A debit that was added since has the current limit.
            Entry::Occupied(mut entry) => {
                let known = entry.get_mut();
                known.cost = known.cost.saturating_add(debit.cost).min(known.capacity);
            }
        }
    }
}
