//! One body, every store: random traces through the store and the model, every field of every verdict compared
//! (law 10). Failing traces are kept in `conformance/regressions`.

mod leases;
mod redis;
mod reserve;
mod topologies;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tollgate::{Bounds, Clock, MemoryStore, Timestamp};
use tollgate_tests::trace::{self, any_trace, compare, now};

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases: trace::cases(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("conformance/regressions"))),
        ..ProptestConfig::default()
    }
}

fn memory() -> (MemoryStore, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(0));
    (MemoryStore::with(clock.clone(), Bounds::default()), clock)
}

/// What is as good as new may be forgotten: while the clock only goes forward, nobody can tell.
fn forgetful() -> (MemoryStore, Clock) {
    let clock = Clock::manual_with_eviction(Timestamp::from_micros(0));
    (MemoryStore::with(clock.clone(), Bounds { buckets: 40, bytes: 1 << 20 }), clock)
}

proptest! {
    #![proptest_config(config(4_000))]

    #[test]
    fn a_memory_that_forgets_agrees_with_the_model((tiers, mut steps) in any_trace(4, 60)) {
        let (store, clock) = forgetful();
        steps.iter_mut().for_each(|step| {
            step.turn = step.turn.max(0);
            // A longer window would bring back what was rightly forgotten under the shorter one.
            step.config = 0;
        });
        now(compare("", &store, &clock, &tiers, &steps))?;
        prop_assert_eq!(store.stats().overflowed, 0);
    }

    #[test]
    fn memory_agrees_with_the_model_on_one_tier((tiers, steps) in any_trace(1, 60)) {
        let (store, clock) = memory();
        let clock_steps = now(compare("", &store, &clock, &tiers, &steps))?;
        prop_assert_eq!(store.stats().clock_steps, clock_steps);
    }

    #[test]
    fn memory_agrees_with_the_model_on_several_tiers((tiers, steps) in any_trace(4, 40)) {
        let (store, clock) = memory();
        let clock_steps = now(compare("", &store, &clock, &tiers, &steps))?;
        prop_assert_eq!(store.stats().clock_steps, clock_steps);
    }
}
