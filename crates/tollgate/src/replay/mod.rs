//! Replay: a trace of requests through a rule set, in virtual time.
//!
//! ```text
//! {"t_us": 0, "attributes": {"user_id": "a"}}   --Event::parse-->  Event
//! Event      --Replay::step-->       Step       --Step::write_json-->
//! {"t_us":0,"op":"check","allowed":true,"limit":1,"remaining":0, …}
//! ```
//!
//! Time is what the trace says, microseconds since the epoch; where it goes back, the clock was set back. The same
//! rules and the same trace give the same bytes on every machine.

mod event;
mod line;
mod output;

use std::future::Future;
use std::io::{self, BufRead, Read as _};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tollgate_core::{RuleSet, StoreError, Timestamp};

use crate::clock::Clock;
use crate::limiter::{Answer, Limiter, Snapshot};
use crate::rules::{self, RulesError};
use crate::store::{Bounds, MemoryStats, MemoryStore, Store};

pub use event::{Event, EventError, MAX_LINE, MAX_RULES_LINE, Op};

/// How much of a line is read: all that is allowed and its end.
const LONGEST: u64 = MAX_RULES_LINE as u64 + 1;

/// Decides the requests of a trace.
///
/// ```
/// use tollgate::{replay::Replay, rules};
///
/// let rules = rules::parse("rules.yaml", "rules: [{ key: 'user:{user_id}', limit: 1/s }]")?;
/// let trace = r#"
/// {"t_us": 0, "attributes": {"user_id": "a"}}
/// {"t_us": 400000, "attributes": {"user_id": "a"}}
/// "#;
/// let mut waits = Vec::new();
/// Replay::new(rules).run(trace.as_bytes(), |step| {
///     waits.extend(step.answer.as_ref().map(|answer| answer.retry_after()));
///     Ok(())
/// })?;
/// assert_eq!(waits.last().unwrap().unwrap().get(), 600_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Another store than the one in memory ([`over`](Replay::over)) gives the same answers and needs a runtime
/// ([`run_async`](Replay::run_async)).
#[derive(Debug)]
pub struct Replay<S = MemoryStore> {
    limiter: Limiter<S>,
}

/// One event and what became of it.
#[derive(Debug)]
pub struct Step<'e, 'a> {
    /// What happened.
    pub event: &'e Event<'a>,
    /// The answer; none to a change of rules.
    pub answer: Option<Answer>,
}

/// Why a replay stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// An invalid line. What came before it was replayed.
    #[error("line {line}: {error}")]
    Line {
        /// The number of the line, from 1.
        line: u64,
        /// What is wrong with it.
        error: EventError,
    },
    /// The store could not be asked. What came before was replayed.
    #[error("line {line}: {error}; a replay needs a store that answers every request")]
    Store {
        /// The number of the line, from 1.
        line: u64,
        /// Why not.
        error: StoreError,
    },
    /// The trace could not be read.
    #[error("the trace cannot be read")]
    Read(#[source] io::Error),
    /// `each` returned an error.
    #[error("the output cannot be written")]
    Write(#[source] io::Error),
}

impl Replay {
    /// A replay that begins with these rules and no buckets.
    pub fn new(rules: impl Into<Arc<RuleSet>>) -> Self {
        Self::with_bounds(rules, Bounds::default())
    }

    /// The same with room for more buckets, or fewer. Nothing is forgotten in virtual time, so a trace needs room
    /// for every key it mentions; see [`MemoryStats::overflowed`].
    pub fn with_bounds(rules: impl Into<Arc<RuleSet>>, bounds: Bounds) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(0));
        Replay { limiter: Limiter::new(rules, MemoryStore::with(clock, bounds)) }
    }

    /// Replays a trace, one JSON object per line, and tells `each` of every step; answers the number of lines.
    /// Empty lines are passed over.
    ///
    /// # Errors
    ///
    /// The first invalid line, or an error of the reader or of `each`.
    pub fn run(
        &self,
        input: impl BufRead,
        each: impl FnMut(&Step<'_, '_>) -> io::Result<()>,
    ) -> Result<u64, TraceError> {
        at_once(self.run_async(input, each))
    }

    /// Turns the clock to the event and lets it happen.
    ///
    /// # Errors
    ///
    /// Rules that make no set, or a request whose cost attribute is invalid.
    #[inline]
    pub fn step<'e, 'a>(&self, event: &'e Event<'a>) -> Result<Step<'e, 'a>, EventError> {
        at_once(self.happen(event)).map_err(|trouble| match trouble {
            Trouble::Event(error) => error,
            Trouble::Store(error) => unreachable!("a store in memory always answers: {error}"),
        })
    }

    /// What the buckets occupy and have seen.
    pub fn stats(&self) -> MemoryStats {
        self.limiter.store().stats()
    }
}

/// Why an event could not happen.
enum Trouble {
    Event(EventError),
    Store(StoreError),
}

impl<S: Store> Replay<S> {
    /// A replay that begins with these rules and the buckets of a store, whose clock must be a manual one: it is turned
    /// to each event.
    pub fn over(rules: impl Into<Arc<RuleSet>>, store: S) -> Self {
        Replay { limiter: Limiter::new(rules, store) }
    }

    /// The store.
    pub const fn store(&self) -> &S {
        self.limiter.store()
    }

    /// The rules in effect.
    pub fn rules(&self) -> Snapshot {
        self.limiter.rules()
    }

    /// As [`run`](Replay::run), over any store.
    ///
    /// # Errors
    ///
    /// As [`run`](Replay::run), or a request that the store did not answer.
    pub async fn run_async(
        &self,
        mut input: impl BufRead,
        mut each: impl FnMut(&Step<'_, '_>) -> io::Result<()>,
    ) -> Result<u64, TraceError> {
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let read = input.by_ref().take(LONGEST).read_until(b'\n', &mut line).map_err(TraceError::Read)?;
            let blame = |error| TraceError::Line { line: number, error };
            if read == 0 {
                return Ok(number - 1);
            }
            if read > MAX_RULES_LINE && !line.ends_with(b"\n") {
                return Err(blame(EventError::TooLong { length: read }));
            }
            let text = line.trim_ascii_end();
            if !text.is_empty() {
                let event = Event::parse(text).map_err(blame)?;
                let step = self.happen(&event).await.map_err(|trouble| match trouble {
                    Trouble::Event(error) => blame(error),
                    Trouble::Store(error) => TraceError::Store { line: number, error },
                })?;
                each(&step).map_err(TraceError::Write)?;
            }
        }
        unreachable!("a trace has fewer than 2^64 lines")
    }

    /// Turns the clock to the event and lets it happen.
    #[inline]
    async fn happen<'e, 'a>(&self, event: &'e Event<'a>) -> Result<Step<'e, 'a>, Trouble> {
        self.limiter.clock().set(event.at);
        let Event { op, request, cost, .. } = event;
        let request = self.limiter.request(request).cost(*cost);
        let answer = match op {
            Op::Check => by_the_store(request.check().await),
            Op::Peek => by_the_store(request.peek().await),
            Op::Refund => request.refund().await,
            Op::Reset => request.reset().await,
            Op::Rules(list) => {
                self.limiter.set_rules(parse_rules(list).map_err(Trouble::Event)?);
                return Ok(Step { event, answer: None });
            }
        };
        let answer = answer.map_err(Trouble::Store)?;
        match answer.invalid_cost() {
            Some(error) => Err(Trouble::Event(EventError::Cost(Box::new(error.clone())))),
            None => Ok(Step { event, answer: Some(answer) }),
        }
    }
}

impl Step<'_, '_> {
    /// Whether the request may pass. A refund and a reset always do.
    pub fn allowed(&self) -> bool {
        self.event.op.always_passes() || self.answer.as_ref().is_none_or(|answer| answer.allowed())
    }
}

/// A replay shows what the store decides, not what a failure policy does.
fn by_the_store(answer: Answer) -> Result<Answer, StoreError> {
    answer.store_error().map_or(Ok(answer), Err)
}

fn parse_rules(list: &str) -> Result<RuleSet, EventError> {
    rules::parse_list("rules", list).map_err(|error: RulesError| EventError::Rules(Box::new(error)))
}

/// The result of a future that never waits.
#[inline]
fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("a store in memory never waits"),
    }
}

#[cfg(test)]
mod tests;
