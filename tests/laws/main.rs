//! The laws of the semantics, as property tests over the memory store on a clock the tests turn.
//!
//! The numbers are those of the semantics' list of laws; law 10 is the conformance suite. Failing cases are kept
//! in `laws/regressions`.

#![expect(clippy::unwrap_used, reason = "a law that cannot be tried is broken")]

mod bounds;
mod buckets;
mod mixed;
mod reserve;
mod threads;
mod tiers;

use proptest::prelude::ProptestConfig;
use proptest::test_runner::FileFailurePersistence;
use tollgate::core::algorithm::{Demand, State};
use tollgate::core::{Enforcement, Hit, KeyPattern, Space, Verdicts};
use tollgate::{Bounds, Clock, Descriptor, Limit, MemoryStore, Micros, Store, Timestamp, Verdict};
use tollgate_tests::trace::{self, now};

pub(crate) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases: trace::cases(cases),
        max_global_rejects: 100 * trace::cases(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("laws/regressions"))),
        ..ProptestConfig::default()
    }
}

/// The keys of one rule under a limit.
fn space(limit: &Limit) -> Space {
    Space::new(&["the rule", &limit.identity()], KeyPattern::parse("user:{user_id}").unwrap(), 64)
}

/// One bucket of one limit, and the clock it lives by.
pub(crate) struct World {
    pub(crate) store: MemoryStore,
    pub(crate) clock: Clock,
    pub(crate) limit: Limit,
    space: Space,
}

impl World {
    pub(crate) fn new(limit: &Limit) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(0));
        World {
            store: MemoryStore::with(clock.clone(), Bounds::default()),
            clock,
            limit: limit.clone(),
            space: space(limit),
        }
    }

    /// The same rule under another limit from now on.
    pub(crate) fn change(&mut self, limit: &Limit) {
        (self.limit, self.space) = (limit.clone(), space(limit));
    }

    /// A world with a past: costs charged at instants.
    pub(crate) fn with_past(limit: &Limit, past: &[(u64, u64)]) -> Self {
        let world = World::new(limit);
        for (wait, cost) in past {
            world.wait(*wait);
            world.check(cost % (limit.capacity() + 2));
        }
        world
    }

    pub(crate) fn wait(&self, micros: u64) {
        self.clock.advance(Micros::new(micros));
    }

    fn with_hit<T>(&self, cost: u64, run: impl FnOnce(&Hit<'_>) -> T) -> T {
        let request = Descriptor::new().with("user_id", "42");
        run(&Hit {
            key: self.space.key(&request),
            limit: &self.limit,
            demand: Demand { cost, patience: Micros::MAX },
            enforcement: Enforcement::Enforce,
        })
    }

    fn ask<T>(
        &self,
        cost: u64,
        run: impl AsyncFnOnce(&MemoryStore, &[Hit<'_>], &mut Verdicts) -> T,
    ) -> Verdict {
        self.with_hit(cost, |hit| {
            let mut verdicts = Verdicts::new();
            now(run(&self.store, std::slice::from_ref(hit), &mut verdicts));
            verdicts[0]
        })
    }

    pub(crate) fn check(&self, cost: u64) -> Verdict {
        self.ask(cost, async |store, hits, verdicts| store.charge(hits, verdicts).await.unwrap())
    }

    pub(crate) fn peek(&self, cost: u64) -> Verdict {
        self.ask(cost, async |store, hits, verdicts| store.peek(hits, verdicts).await.unwrap())
    }

    pub(crate) fn refund(&self, cost: u64) -> Verdict {
        self.ask(cost, async |store, hits, verdicts| store.refund(hits, verdicts).await.unwrap())
    }

    pub(crate) fn undo(&self, cost: u64, charged: Verdict) -> Verdict {
        let charged = [charged];
        self.ask(cost, async |store, hits, verdicts| store.undo(hits, &charged, verdicts).await.unwrap())
    }

    pub(crate) fn state(&self) -> Option<State> {
        self.with_hit(1, |hit| now(self.store.inspect(hit)).unwrap())
    }

    /// The numbers of the bucket: what is left, and when it is as good as new.
    pub(crate) fn numbers(&self) -> (u64, u64) {
        let verdict = self.peek(0);
        (verdict.remaining, verdict.reset_after.get())
    }
}
