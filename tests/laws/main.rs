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
use tollgate::core::algorithm::State;
use tollgate::{
    Bounds, Clock, Limit, MemoryStore, Micros, Op, ReservationId, Store as _, Tier, Timestamp, Verdict,
};
use tollgate_tests::rows::OneBucket;
use tollgate_tests::trace::{self, now};

pub(crate) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases: trace::cases(cases),
        max_global_rejects: 100 * trace::cases(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("laws/regressions"))),
        ..ProptestConfig::default()
    }
}

/// One bucket of one limit, and the clock it lives by.
pub(crate) struct World {
    pub(crate) store: MemoryStore,
    pub(crate) clock: Clock,
    bucket: OneBucket,
}

impl World {
    pub(crate) fn new(limit: &Limit) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(0));
        World {
            store: MemoryStore::with(clock.clone(), Bounds::default()),
            clock,
            bucket: OneBucket::new(limit, "42"),
        }
    }

    /// The same rule under another limit from now on.
    pub(crate) fn change(&mut self, limit: &Limit) {
        self.bucket = OneBucket::new(limit, "42");
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

    fn run(&self, op: Op, cost: u64) -> Tier {
        now(self.bucket.run(&self.store, op, cost)).unwrap()
    }

    pub(crate) fn check(&self, cost: u64) -> Verdict {
        *self.run(Op::Charge, cost).verdict()
    }

    /// Charges a cost, to be settled later; nothing where it does not pass.
    pub(crate) fn reserve(&self, cost: u64) -> Option<ReservationId> {
        now(self.bucket.reserve(&self.store, cost)).unwrap().1
    }

    pub(crate) fn settle(&self, id: ReservationId, actual: u64) {
        now(self.store.settle(id, actual)).unwrap();
    }

    pub(crate) fn peek(&self, cost: u64) -> Verdict {
        *self.run(Op::Peek, cost).verdict()
    }

    pub(crate) fn refund(&self, cost: u64) -> Verdict {
        *self.run(Op::Refund, cost).verdict()
    }

    pub(crate) fn state(&self) -> Option<State> {
        let rule = self.bucket.rule();
        now(self.store.inspect(rule, rule.key(self.bucket.request()))).unwrap()
    }

    /// The numbers of the bucket: what is left, and when it is idle.
    pub(crate) fn numbers(&self) -> (u64, u64) {
        let verdict = self.peek(0);
        (verdict.remaining, verdict.reset_after.get())
    }
}
