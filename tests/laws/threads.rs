//! Law 11: real threads on one key, and on several tiers of which one is short.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::core::algorithm::Demand;
use tollgate::core::{Enforcement, Hit, KeyPattern, Space, Verdicts};
use tollgate::{Bounds, Clock, Descriptor, Gate, Limit, MemoryStore, Micros, Store, Timestamp};
use tollgate_tests::trace::now;

const THREADS: u64 = 8;
const EACH: u64 = 2_000;

fn still() -> MemoryStore {
    MemoryStore::with(Clock::manual(Timestamp::from_micros(0)), Bounds::default())
}

#[test]
fn k_threads_on_one_key_at_one_instant_admit_exactly_the_capacity() {
    for text in ["1000/s", "1000 every 1s", "1000/s queue 999"] {
        let gate = Arc::new(Gate::new(text.parse().unwrap(), still()));
        let admitted = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let allowed = (0..EACH).filter(|_| now(gate.allow("key")).unwrap().allowed).count();
                    admitted.fetch_add(u64::try_from(allowed).unwrap(), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(admitted.load(Ordering::Relaxed), 1_000, "{text}");
    }
}

/// Threads charge overlapping sets of tiers in different orders: nobody deadlocks, the short tier admits exactly
/// its capacity, and the others were charged exactly as often.
#[test]
fn tiers_charged_from_many_threads_are_all_charged_or_none() {
    let store = still();
    let limits: Vec<Limit> =
        ["100000/h", "1000/h", "100000/h", "100000/h"].iter().map(|text| text.parse().unwrap()).collect();
    let spaces: Vec<Space> = (0..limits.len())
        .map(|tier| Space::new(&[&format!("tier {tier}")], KeyPattern::parse("global").unwrap(), 64))
        .collect();
    let request = Descriptor::new();
    let hit = |tier: usize| Hit {
        key: spaces[tier].key(&request),
        limit: &limits[tier],
        demand: Demand { cost: 1, patience: Micros::MAX },
        enforcement: Enforcement::Enforce,
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, hit) = (&store, &hit);
            scope.spawn(move || {
                for _ in 0..EACH {
                    let mut hits: Vec<Hit<'_>> = (0..4).map(hit).collect();
                    hits.rotate_left(thread);
                    let mut verdicts = Verdicts::new();
                    now(store.charge(&hits, &mut verdicts)).unwrap();
                }
            });
        }
    });
    let mut verdicts = Verdicts::new();
    let hits: Vec<Hit<'_>> = (0..4).map(hit).collect();
    now(store.peek(&hits, &mut verdicts)).unwrap();
    let left: Vec<u64> = verdicts.iter().map(|verdict| verdict.remaining).collect();
    assert_eq!(left, [99_000, 0, 99_000, 99_000]);
}
