//! A store for tests that answers as a script says.

use std::fmt;
use std::future::{Future, pending};

use parking_lot::Mutex;
use tollgate_core::algorithm::State;
use tollgate_core::{Key, Outcome, Rule, StoreError, Timestamp};

use super::{Bounds, Call, MemoryStore, Store};
use crate::clock::Clock;
use crate::reserve::{ReservationId, SettleError, Settled};

type Script = dyn Fn(&MemoryStore, &mut Call<'_>) -> Reply + Send + Sync;

/// What a call does after its script has set the outcomes of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It returns.
    Now,
    /// It never returns.
    Never,
}

/// How a call was finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) passes: bool,
    /// How many rows were held.
    pub(crate) held: usize,
}

/// A store that a script answers for; reservations are settled in memory.
pub(crate) struct Scripted {
    memory: MemoryStore,
    script: Box<Script>,
    finished: Mutex<Vec<Finished>>,
}

impl Scripted {
    pub(crate) fn new(
        clock: Clock,
        script: impl Fn(&MemoryStore, &mut Call<'_>) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let memory = MemoryStore::with(clock, Bounds::default());
        Scripted { memory, script: Box::new(script), finished: Mutex::default() }
    }

    /// A store that is never reached in time.
    pub(crate) fn unavailable() -> Self {
        Self::new(Clock::manual(Timestamp::from_micros(0)), |_, call| {
            call.lose(StoreError::Timeout);
            Reply::Now
        })
    }

    /// How calls were finished since this was last asked.
    pub(crate) fn finished(&self) -> Vec<Finished> {
        std::mem::take(&mut *self.finished.lock())
    }
}

impl Store for Scripted {
    async fn run(&self, call: &mut Call<'_>) -> Timestamp {
        if (self.script)(&self.memory, call) == Reply::Never {
            pending::<()>().await;
        }
        self.clock().now()
    }

    fn finish(&self, call: &mut Call<'_>, passes: bool) {
        let held = call.tiers.iter().filter(|tier| matches!(tier.outcome, Outcome::Held { .. })).count();
        self.finished.lock().push(Finished { passes, held });
        call.decide_held(passes);
    }

    fn clock(&self) -> &Clock {
        self.memory.clock()
    }

    fn inspect(
        &self,
        rule: &Rule,
        key: Key<'_>,
    ) -> impl Future<Output = Result<Option<State>, StoreError>> + Send {
        self.memory.inspect(rule, key)
    }

    async fn settle(&self, id: ReservationId, actual: u64) -> Result<Settled, SettleError> {
        self.memory.settle(id, actual).await
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted").field("memory", &self.memory).finish_non_exhaustive()
    }
}
