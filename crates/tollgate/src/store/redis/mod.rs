//! Buckets in Redis or Valkey: the same limits for a whole fleet.
//!
//! One script call decides a request over all its buckets, so a decision is one round trip and all or nothing. The
//! script (`charge.lua`) is a translation of `core`: it decides and writes. The numbers that callers are told come from
//! `core` itself, run here on what the script found. Time is Redis' own: nodes need not agree on theirs.
//!
//! ```text
//! hits -> keys and packed limits -> EVALSHA -> what was stored -> core -> verdicts
//! ```
//!
//! [`topology`] knows which Redis to ask: the one there is, the one that sentinels name, or the nodes of a Cluster. In a
//! Cluster a request may have to be decided in several places ([`across`]). [`link`] keeps a connection and knows when
//! to give up on it. What happens to a request that Redis did not answer is its rules' business
//! ([`Limiter`](crate::Limiter)).

mod across;
mod address;
mod answer;
mod cluster;
mod config;
mod connection;
mod lease;
mod link;
mod notes;
mod part;
mod probe;
mod script;
mod sentinel;
mod settle;
pub(crate) mod slots;
mod state;
mod stream;
mod topology;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Value};
use rustls::ClientConfig;
use tokio::time::Instant;
use tollgate_core::algorithm::State;
use tollgate_core::limit::AlgorithmName;
use tollgate_core::{Hit, Micros, Timestamp, Verdict, Verdicts};

pub(crate) use self::address::{Address, at};
use self::link::Counters;
use self::part::Part;
use self::script::{Reply, Verb};
use self::topology::Topology;
use super::{Due, NoteName, Store, StoreError, window};
use crate::clock::Clock;
use crate::reserve::ReservationId;
pub use config::{RedisBuilder, RedisConfigError};
pub(crate) use lease::Place;

/// The most buckets of one request; Lua passes no more at once to a command than some thousand.
const MOST_HITS: usize = 1_000;

/// Keeps buckets in Redis or Valkey. A request has at most 1,000 of them.
///
/// ```no_run
/// use std::time::Duration;
/// use tollgate::{Gate, RedisStore};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::builder("redis://127.0.0.1:6379")
///     .deadline(Duration::from_millis(20))
///     .connect()
///     .await?;
/// let gate = Gate::new("10/s burst 50".parse()?, store);
/// assert!(gate.allow("user:123").await?.allowed);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct RedisStore {
    topology: Topology,
    sha: String,
    prefix: String,
    deadline: Duration,
    clock: Clock,
    /// How far Redis' clock is ahead of this process'.
    ahead: AtomicI64,
    clock_steps: AtomicU64,
    foreign: AtomicU64,
    stranded: Arc<AtomicU64>,
    counters: Arc<Counters>,
}

/// What a [`RedisStore`] has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedisStats {
    /// Whether decisions are made at Redis, in every part of a Cluster; if not, a breaker is open.
    pub up: bool,
    /// Decisions that wait for Redis.
    pub in_flight: usize,
    /// Connections made.
    pub connections: u64,
    /// Times that Redis was lost.
    pub outages: u64,
    /// Uploads of the script.
    pub uploads: u64,
    /// Decisions that were not sent because too many waited.
    pub overloaded: u64,
    /// States shifted because Redis' clock went back by more than a second.
    pub clock_steps: u64,
    /// Values found under our keys that were not ours, and replaced.
    pub foreign: u64,
    /// Parts of refused requests that stay charged in a Cluster, because they could not be undone.
    pub stranded: u64,
}

impl RedisStore {
    /// A store at a URL: `redis://[user:password@]host:port/db`, `rediss://…` with TLS, `unix:///path?db=0`,
    /// `redis-sentinel://host1,host2/name`, `redis-cluster://host1,host2`.
    pub fn builder(url: &str) -> RedisBuilder {
        RedisBuilder::new(url)
    }

    async fn start(config: RedisBuilder, address: Address, tls: Option<Arc<ClientConfig>>) -> Self {
        let sha = redis::Script::new(script::CODE).get_hash().to_owned();
        let counters = Arc::new(Counters::default());
        let topology = Topology::start(&config, address, tls, &sha, &counters).await;
        // Whatever came of it was logged; decisions ask again.
        let _ = topology.settled().await;
        RedisStore {
            topology,
            sha,
            prefix: config.key_prefix,
            deadline: config.deadline,
            clock: config.clock,
            ahead: AtomicI64::new(0),
            clock_steps: AtomicU64::new(0),
            foreign: AtomicU64::new(0),
            stranded: Arc::default(),
            counters,
        }
    }

    /// Whether Redis can be reached and makes decisions, in every part of a Cluster.
    ///
    /// # Errors
    ///
    /// Why not, as of the last attempt.
    pub async fn ready(&self) -> Result<(), StoreError> {
        self.topology.settled().await
    }

    /// What it has seen.
    pub fn stats(&self) -> RedisStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RedisStats {
            up: self.topology.is_up(),
            in_flight: self.topology.in_flight(),
            connections: read(&self.counters.connections),
            outages: read(&self.counters.outages),
            uploads: read(&self.counters.uploads),
            overloaded: read(&self.counters.overloaded),
            clock_steps: read(&self.clock_steps),
            foreign: read(&self.foreign),
            stranded: read(&self.stranded),
        }
    }

    /// Whether buckets may live on different nodes, of which one may be away while the others are well.
    pub(crate) fn spans_nodes(&self) -> bool {
        self.topology.spread() == part::Spread::Slots
    }

    /// The name of a hit's bucket in Redis.
    pub fn key(&self, hit: &Hit<'_>) -> Vec<u8> {
        let mut key = Vec::new();
        hit.key.encode(&self.prefix, &mut key);
        key
    }

    /// The script's call to charge these hits, word for word, for whoever wants to measure Redis itself.
    #[doc(hidden)]
    pub fn charge_call(&self, hits: &[Hit<'_>]) -> Vec<Vec<u8>> {
        let parts = Part::of(hits, &self.prefix, part::Spread::None);
        let Some(part) = parts.first() else { return Vec::new() };
        let call = part.command(&self.sha, Verb::Charge, None, self.redis_time());
        let simple = |word: redis::Arg<&[u8]>| match word {
            redis::Arg::Simple(word) => word.to_vec(),
            _ => Vec::new(),
        };
        call.args_iter().map(simple).collect()
    }

    /// Deletes every key under this store's prefix, a few hundred at a time; for tests and replays, which have a prefix
    /// of their own.
    ///
    /// # Errors
    ///
    /// Redis could not be asked.
    pub async fn forget_all(&self) -> Result<(), StoreError> {
        self.topology.forget(&format!("{}:*", escaped(&self.prefix)), self.deadline).await
    }

    /// As [`charge`](Store::charge), for a decision that began a while ago.
    pub(crate) async fn charge_by(
        &self,
        deadline: Instant,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        self.run(Verb::Charge, hits, verdicts, deadline).await
    }

    /// As [`peek`](Store::peek), for a decision that began a while ago.
    pub(crate) async fn peek_by(
        &self,
        deadline: Instant,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        self.run(Verb::Peek, hits, verdicts, deadline).await
    }

    async fn run(
        &self,
        verb: Verb<'_>,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
        deadline: Instant,
    ) -> Result<Timestamp, StoreError> {
        if hits.len() > MOST_HITS {
            return Err(StoreError::rejected("ERR"));
        }
        let parts = Part::of(hits, &self.prefix, self.topology.spread());
        match &parts[..] {
            [] => Ok(self.clock.now()),
            [part] => {
                let done = self.ask(verb, part, deadline).await?;
                self.read(&done, verb, part, done.passes, verdicts)?;
                Ok(done.now)
            }
            parts => self.run_across(verb, parts, verdicts, deadline).await,
        }
    }

    /// When a decision that begins now must be made.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// Calls the script; a second time when the calendar windows that were sent are not those of Redis' clock.
    async fn ask(
        &self,
        verb: Verb<'_>,
        part: &Part<'_, '_>,
        deadline: Instant,
    ) -> Result<script::Done, StoreError> {
        for _ in 0..2 {
            let call = self.call(verb, part);
            let told = told(verb, part);
            match self.topology.call(part.slot, &call, deadline, |value| Reply::read(value, told)).await? {
                Reply::Done(done) => {
                    self.note(&done);
                    if verb == Verb::Charge && done.passes && part.hits.iter().any(|hit| hit.demand.cost > 0)
                    {
                        self.topology.wrote(part.slot);
                    }
                    return Ok(done);
                }
                Reply::OtherTime(now) => self.note_time(now),
            }
        }
        Err(StoreError::Unreachable)
    }

    /// The script's call for a part of a request.
    fn call(&self, verb: Verb<'_>, part: &Part<'_, '_>) -> Cmd {
        let injected = self.clock.injected();
        let around = injected.unwrap_or_else(|| self.redis_time());
        let mut call = part.command(&self.sha, verb, injected, around);
        if let Verb::Undo(marks) = verb {
            part::add_marks(&mut call, marks);
        }
        call
    }

    /// The verdicts on a part of a request, given whether the whole stands.
    fn read(
        &self,
        done: &script::Done,
        verb: Verb<'_>,
        part: &Part<'_, '_>,
        stands: bool,
        verdicts: &mut Verdicts,
    ) -> Result<(), StoreError> {
        let read = done.verdicts(verb, &part.hits, |index| part.keys.same(index), stands, verdicts);
        read.ok_or(StoreError::Unreachable)
    }

    fn note(&self, done: &script::Done) {
        self.note_time(done.now);
        self.clock_steps.fetch_add(done.clock_steps, Ordering::Relaxed);
        self.foreign.fetch_add(done.foreign, Ordering::Relaxed);
    }

    /// What Redis' clock says, as far as this process knows.
    pub(crate) fn redis_time(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.now().as_micros() + self.ahead.load(Ordering::Relaxed))
    }

    fn note_time(&self, now: Timestamp) {
        self.ahead.store(now.as_micros() - self.clock.now().as_micros(), Ordering::Relaxed);
    }
}

/// Of how many buckets the script tells; a reset tells of none.
fn told(verb: Verb<'_>, part: &Part<'_, '_>) -> usize {
    if verb == Verb::Reset { 0 } else { part.hits.len() }
}

/// An answer of a type that is known.
fn read<T: FromRedisValue>(value: Value) -> Option<T> {
    redis::from_redis_value(value).ok()
}

/// A prefix in which nothing has a meaning to `MATCH`.
fn escaped(prefix: &str) -> String {
    let special = |c: char| matches!(c, '*' | '?' | '[' | ']' | '\\' | '^');
    prefix.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

impl Store for RedisStore {
    async fn charge(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.run(Verb::Charge, hits, verdicts, self.deadline()).await
    }

    async fn peek(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.run(Verb::Peek, hits, verdicts, self.deadline()).await
    }

    async fn refund(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.run(Verb::Refund, hits, verdicts, self.deadline()).await
    }

    async fn undo(
        &self,
        hits: &[Hit<'_>],
        charged: &[Verdict],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        self.undo_each(hits, charged, verdicts).await
    }

    async fn reset(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.run(Verb::Reset, hits, verdicts, self.deadline()).await
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    async fn inspect(&self, hit: &Hit<'_>) -> Result<Option<State>, StoreError> {
        let key = self.key(hit);
        let (algorithm, deadline) = (hit.limit.algorithm_name(), self.deadline());
        let (topology, slot) = (&self.topology, slots::slot(&key));
        // What is of another kind was written by another algorithm, or by somebody else: there is no bucket.
        let kind: String = topology.call(slot, redis::cmd("TYPE").arg(&key), deadline, read).await?;
        let state = match (algorithm, kind.as_str()) {
            (AlgorithmName::SlidingWindowLog, "list") => {
                let list = redis::cmd("LRANGE").arg(key).arg(0).arg(-1).take();
                let elements: Vec<Vec<u8>> = topology.call(slot, &list, deadline, read).await?;
                state::decode_log(&elements)
            }
            (_, "string") => {
                let get = redis::cmd("GET").arg(key).take();
                let bytes: Option<Vec<u8>> = topology.call(slot, &get, deadline, read).await?;
                bytes.and_then(|bytes| state::decode_leased(algorithm, &bytes)).map(|(state, _)| state)
            }
            _ => None,
        };
        let now = self.clock.injected().unwrap_or_else(|| self.redis_time());
        Ok(state.filter(|state| !state.is_as_good_as_new(hit.limit, now, window(hit, hit.limit))))
    }

    async fn keep(&self, name: NoteName, note: &[u8], ttl: Micros) -> Result<Option<Vec<u8>>, StoreError> {
        self.keep_note(name, note, ttl).await
    }

    async fn recall(&self, name: NoteName) -> Result<Option<Vec<u8>>, StoreError> {
        self.recall_note(name).await
    }

    async fn settle(
        &self,
        reservation: ReservationId,
        due: &[Due<'_>],
        ttl: Micros,
    ) -> Result<Vec<u64>, StoreError> {
        self.settle_each(reservation, due, ttl).await
    }
}
