//! A bounded cache in two generations.
//!
//! Users are added to the young generation. When that is full it becomes the old one, and the rest of the old one is
//! evicted; a user who is looked up in the old generation moves to the young one. So active users stay, and making
//! room is one exchange.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::mem;
use std::sync::Arc;

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

const SHARDS: usize = 16;

/// What is known about one user.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// What the last look-up said; `None` before the first one ends.
    pub(super) known: Option<Known>,
    /// The look-up under way.
    pub(super) flight: Option<Flight>,
}

/// What a look-up said.
#[derive(Debug)]
pub(super) struct Known {
    /// The plan; the default one for an unknown user.
    pub(super) plan: Arc<str>,
    /// From then on it is stale.
    pub(super) good_until: Instant,
}

/// A look-up under way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) since: Instant,
    /// Gets the plan, when it is there.
    pub(super) landing: watch::Receiver<Option<Arc<str>>>,
}

impl Flight {
    /// Whether the look-up has not ended.
    pub(super) fn is_under_way(&self) -> bool {
        self.landing.has_changed().is_ok()
    }
}

pub(super) struct Cache {
    seed: RandomState,
    shards: [Mutex<Shard>; SHARDS],
    /// The most users in a generation of a shard.
    room: usize,
}

#[derive(Default)]
struct Shard {
    young: Generation,
    old: Generation,
}

type Generation = HashMap<Box<str>, Entry, RandomState>;

impl Cache {
    pub(super) fn with_room(users: usize) -> Self {
        let room = (users / SHARDS / 2).max(1);
        Cache { seed: RandomState::default(), shards: std::array::from_fn(|_| Mutex::default()), room }
    }

    /// Does something with a user's entry, making it if there is none and keeping it if there is something in it.
    pub(super) fn with<T>(&self, user_id: &str, act: impl FnOnce(&mut Entry) -> T) -> T {
        let hash = self.seed.hash_one(user_id);
        let mut shard = self.shards[(hash >> 32) as usize % SHARDS].lock();
        if let Some(entry) = shard.young.get_mut(user_id) {
            return act(entry);
        }
        let old = shard.old.remove_entry(user_id);
        let (name, mut entry) = old.unwrap_or_else(|| (user_id.into(), Entry::default()));
        let result = act(&mut entry);
        if entry.known.is_none() && entry.flight.is_none() {
            return result; // nothing to keep, so nothing is evicted for it
        }
        let evicted = if shard.young.len() < self.room { None } else { Some(shard.turn()) };
        shard.young.insert(name, entry);
        drop(shard);
        drop(evicted); // which takes a while, and is done without the lock
        result
    }

    /// Users in the cache.
    pub(super) fn len(&self) -> usize {
        let users = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            shard.young.len() + shard.old.len()
        };
        self.shards.iter().map(users).sum()
    }
}

impl Shard {
    /// The young become the old; answers those who were old before.
    fn turn(&mut self) -> Generation {
        let young = mem::take(&mut self.young);
        mem::replace(&mut self.old, young)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_bounded_and_keeps_whom_it_is_asked_for() {
        let cache = Cache::with_room(320);
        let plan = |user_id: &str| {
            cache.with(user_id, |entry| entry.known.as_ref().map(|known| Arc::clone(&known.plan)))
        };
        let good_until = Instant::now();
        let put = |user_id: &str, plan: &str| {
            cache.with(user_id, |entry| entry.known = Some(Known { plan: plan.into(), good_until }));
        };
        put("loyal", "pro");
        for user in 0..10_000 {
            put(&user.to_string(), "free");
            assert_eq!(plan("loyal").as_deref(), Some("pro"), "after {user} others");
        }
        assert!((160..=320).contains(&cache.len()), "{} users", cache.len());
        plan("somebody of whom nothing is known");
        assert_eq!(plan("9999").as_deref(), Some("free"));
    }
}
