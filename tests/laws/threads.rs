//! Law 11: real threads on one key, and on several tiers of which one is short.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Bounds, Clock, Descriptor, Gate, MemoryStore, Op, RuleSet, Tiers, Timestamp};
use tollgate_tests::rows::{row, rule, run};
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
                    let allowed = (0..EACH).filter(|_| now(gate.allow("key")).allowed()).count();
                    admitted.fetch_add(u64::try_from(allowed).unwrap(), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(admitted.load(Ordering::Relaxed), 1_000, "{text}");
    }
}

/// Threads charge overlapping sets of tiers in different orders: there is no deadlock, the short tier admits exactly
/// its capacity, and the others were charged exactly as often.
#[test]
fn tiers_charged_from_many_threads_are_all_charged_or_none() {
    let store = still();
    let limits = ["100000/h", "1000/h", "100000/h", "100000/h"];
    let rules = limits.iter().enumerate();
    let rules = rules.map(|(tier, text)| rule(&format!("tier {tier}"), "global", &text.parse().unwrap()));
    let rules = RuleSet::new(rules.collect()).unwrap();
    let request = Descriptor::new();
    let tiers = || (0..4).map(|rule| row(&rules, rule, &request, 1)).collect::<Tiers>();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, rules, request, tiers) = (&store, &rules, &request, &tiers);
            scope.spawn(move || {
                for _ in 0..EACH {
                    let mut tiers = tiers();
                    tiers.rotate_left(thread);
                    now(run(store, Op::Charge, rules, request, &mut tiers)).unwrap();
                }
            });
        }
    });
    let mut tiers = tiers();
    now(run(&store, Op::Peek, &rules, &request, &mut tiers)).unwrap();
    let left: Vec<u64> = tiers.iter().map(|tier| tier.verdict().remaining).collect();
    assert_eq!(left, [99_000, 0, 99_000, 99_000]);
}
