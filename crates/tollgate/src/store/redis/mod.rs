//! Buckets in Redis or Valkey: the same limits for a whole fleet.
//!
//! One script call decides all rows of a request that lie in one slot, so a decision is one round trip and all or
//! nothing. The scripts (`lua/`) are a translation of `core`: they decide and write. The numbers that callers receive are
//! read by `core` itself from the state after the operation. Time is Redis' own: the clocks of the nodes do not matter.
//!
//! ```text
//! rows -> keys and packed limits -> EVALSHA -> states -> core -> verdicts
//! ```
//!
//! [`topology`] knows which Redis to ask: the only one, the one that sentinels name, or the nodes of a Cluster. In a
//! Cluster the rows of a request may lie in several slots ([`hold`]). [`link`] has one connection and its breaker. A row
//! that Redis did not answer is lost; then its rule's failure policy applies ([`Limiter`](crate::Limiter)).

mod address;
mod answer;
mod cluster;
mod config;
mod connection;
mod hold;
mod lend;
mod link;
mod part;
mod reserve;
mod script;
mod sentinel;
pub(crate) mod slots;
mod state;
mod stream;
mod topology;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue, Value};
use rustls::ClientConfig;
use tokio::time::Instant;
use tollgate_core::algorithm::{State, start_on_the_clock};
use tollgate_core::lease::{LEASE_TIME, MAX_LEASE_TIME};
use tollgate_core::limit::AlgorithmName;
use tollgate_core::{
    Descriptor, Enforcement, Key, Limit, Micros, Op, Outcome, Rule, RuleSet, StoreError, Tier, Tiers,
    Timestamp,
};

pub(crate) use self::address::{Address, at};
use self::hold::is_lost;
use self::link::Counters;
use self::part::Part;
use self::script::{Done, HOLD, Header, Reply};
use self::topology::Topology;
use super::{Call, Store, run_concurrently};
use crate::clock::Clock;
use crate::reserve::{ReservationId, SettleError, Settled};
pub use config::{RedisBuilder, RedisConfigError};
pub(crate) use part::Place;

/// The most rows of one request: Lua passes only a few thousand arguments to one command.
const MAX_ROWS: usize = 1_000;

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
/// assert!(gate.allow("user:123").await.allowed());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct RedisStore {
    shared: Arc<Shared>,
    prefix: String,
    counters: Arc<Counters>,
    /// Whether a charge has shown that this user may make decisions.
    is_proven: AtomicBool,
}

/// What a decision shares with the tasks that end it.
#[derive(Debug)]
struct Shared {
    topology: Topology,
    /// How long a decision waits, all attempts included.
    timeout: Duration,
    clock: Clock,
    /// How far Redis' clock is ahead of this process'.
    ahead: AtomicI64,
    clock_steps: AtomicU64,
    foreign: AtomicU64,
    stranded: AtomicU64,
}

/// Counters of a [`RedisStore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedisStats {
    /// Whether decisions are made at Redis, in every part of a Cluster; if not, a breaker is open.
    pub up: bool,
    /// Decisions that wait for Redis.
    pub in_flight: usize,
    /// Connections made.
    pub connections: u64,
    /// Outages.
    pub outages: u64,
    /// Uploads of the scripts.
    pub uploads: u64,
    /// Decisions that were not sent because too many waited.
    pub overloaded: u64,
    /// States shifted because Redis' clock went back by more than a second.
    pub clock_steps: u64,
    /// Values found under our keys that were not ours, and replaced.
    pub foreign: u64,
    /// Parts of refused requests that stay charged in a Cluster, because they could not be returned.
    pub stranded: u64,
}

impl RedisStore {
    /// A store at a URL: `redis://[user:password@]host:port/db`, `rediss://…` with TLS, `unix:///path?db=0`,
    /// `redis-sentinel://host1,host2/name`, `redis-cluster://host1,host2`.
    pub fn builder(url: &str) -> RedisBuilder {
        RedisBuilder::new(url)
    }

    async fn start(config: RedisBuilder, address: Address, tls: Option<Arc<ClientConfig>>) -> Self {
        let counters = Arc::new(Counters::default());
        let topology = Topology::start(&config, address, tls, &counters).await;
        // A failure was logged; the links go on trying.
        let _ = topology.settled().await;
        let shared = Shared {
            topology,
            timeout: config.deadline,
            clock: config.clock,
            ahead: AtomicI64::new(0),
            clock_steps: AtomicU64::new(0),
            foreign: AtomicU64::new(0),
            stranded: AtomicU64::new(0),
        };
        let is_proven = AtomicBool::new(false);
        RedisStore { shared: Arc::new(shared), prefix: config.key_prefix, counters, is_proven }
    }

    /// Whether Redis is connected, in every part of a Cluster, and makes decisions: until one charge has succeeded, this makes
    /// one of its own, so that a missing right shows before the first request. Its key expires within milliseconds.
    ///
    /// # Errors
    ///
    /// Why not, as of the last attempt.
    pub async fn ready(&self) -> Result<(), StoreError> {
        self.shared.topology.settled().await?;
        // With injected time keys live for an hour, and tests and replays count them.
        if self.is_proven.load(Ordering::Relaxed) || self.shared.clock.injected().is_some() {
            return Ok(());
        }
        let limit = Limit::new(1_000_000, Micros::new(1_000_000)).expect("the limit is in range");
        let rules = RuleSet::of(Rule::ad_hoc(limit));
        let request = Rule::naming("tollgate ready");
        let hash = crate::key_seeds().hash(rules.rule(0).key(&request));
        let mut tiers = Tiers::from_iter([Tier::new(0, Enforcement::Enforce, 1, hash)]);
        let mut call = Call::new(Op::Charge, &rules, &request, &mut tiers);
        self.run(&mut call).await;
        if let Some(error) = call.error() {
            return Err(error);
        }
        self.is_proven.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Its counters.
    pub fn stats(&self) -> RedisStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RedisStats {
            up: self.shared.topology.is_up(),
            in_flight: self.shared.topology.in_flight(),
            connections: read(&self.counters.connections),
            outages: read(&self.counters.outages),
            uploads: read(&self.counters.uploads),
            overloaded: read(&self.counters.overloaded),
            clock_steps: read(&self.shared.clock_steps),
            foreign: read(&self.shared.foreign),
            stranded: read(&self.shared.stranded),
        }
    }

    /// The name of a bucket in Redis.
    pub fn key(&self, rule: &Rule, request: &Descriptor<'_>) -> Vec<u8> {
        let mut key = Vec::new();
        rule.key(request).encode(&self.prefix, &mut key);
        key
    }

    /// The script's call for the pending rows, word for word, to measure Redis itself.
    #[doc(hidden)]
    pub fn charge_call(&self, call: &mut Call<'_>) -> Vec<Vec<u8>> {
        let Some(part) = self.pending(call).pop() else { return Vec::new() };
        let command = part.call(&self.header(call.op, call.max_wait, call.refuses()));
        let simple = |word: redis::Arg<&[u8]>| match word {
            redis::Arg::Simple(word) => word.to_vec(),
            _ => Vec::new(),
        };
        command.args_iter().map(simple).collect()
    }

    /// The code of the script that [`charge_call`](Self::charge_call) calls.
    #[doc(hidden)]
    pub const fn charge_script() -> &'static str {
        script::Script::Charge.code()
    }

    /// Deletes every key under this store's prefix, a few hundred at a time; for tests and replays, which have a prefix
    /// of their own.
    ///
    /// # Errors
    ///
    /// Redis gave no answer.
    pub async fn delete_all(&self) -> Result<(), StoreError> {
        self.shared.topology.delete(&format!("{}:*", escaped(&self.prefix)), self.timeout()).await
    }

    /// How long a decision waits for Redis, all attempts included.
    pub(crate) fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    /// What Redis' clock says, as far as this process knows.
    pub(crate) fn redis_time(&self) -> Timestamp {
        self.shared.redis_time()
    }

    fn header(&self, op: Op, max_wait: Micros, refused: bool) -> Header {
        self.shared.header(op as u8, max_wait, refused)
    }

    /// The rows without an outcome, by slot.
    fn pending(&self, call: &Call<'_>) -> Vec<Part> {
        self.parts(call, |index| call.tiers[index].is_pending())
    }

    /// Asks one script for every part, independently of each other. Answers the latest instant.
    async fn run_parts(
        &self,
        call: &mut Call<'_>,
        parts: Vec<Part>,
        header: Header,
        deadline: Instant,
    ) -> Timestamp {
        let replies = join_all(parts.iter().map(|part| self.shared.ask(part, header, deadline))).await;
        let mut latest = None;
        for (part, reply) in parts.iter().zip(replies) {
            match reply {
                Ok(done) => {
                    latest = latest.max(Some(done.ran.now));
                    self.conclude(call, part, &done, header);
                }
                Err(error) => part.lose(call, error),
            }
        }
        latest.unwrap_or_else(|| self.redis_time())
    }

    /// Gives the rows of a part their outcomes.
    fn conclude(&self, call: &mut Call<'_>, part: &Part, done: &Done, header: Header) {
        let charged = !header.refused && part.passes(done);
        if call.op == Op::Charge && charged && part.rows.iter().any(|row| row.cost > 0) {
            self.shared.topology.wrote(part.slot);
        }
        if let Some(reservation) = call.reservation.as_deref_mut() {
            reservation.is_recorded |= charged && part.record.is_some() && part.charges(done);
        }
        for (index, row) in part.rows.iter().enumerate() {
            let effect = part.effect(call.op, done, index, charged, charged);
            let verdict = part.verdict(call, done, index, effect);
            call.tiers[row.tier].outcome = Outcome::Decided(verdict);
        }
    }
}

impl Shared {
    /// Decides the rows of a part.
    async fn ask(&self, part: &Part, header: Header, deadline: Instant) -> Result<Done, StoreError> {
        let (rows, is_hold) = (part.rows.len(), header.op == HOLD);
        let read = |value| Done::read(value, rows, is_hold);
        self.run_script(part.slot, header, deadline, |header| part.call(header), read).await
    }

    /// Calls a script; a second time if the calendar windows that were sent are not those of Redis' clock.
    async fn run_script<T>(
        &self,
        slot: u16,
        mut header: Header,
        deadline: Instant,
        command: impl Fn(&Header) -> Cmd,
        read: impl Fn(Value) -> Option<Reply<T>>,
    ) -> Result<T, StoreError> {
        for _ in 0..2 {
            let command = command(&header);
            match self.topology.call(slot, &command, deadline, &read).await? {
                Reply::Done(ran, done) => {
                    self.note_time(ran.now);
                    self.clock_steps.fetch_add(ran.clock_steps, Ordering::Relaxed);
                    self.foreign.fetch_add(ran.foreign, Ordering::Relaxed);
                    return Ok(done);
                }
                Reply::OtherTime(now) => {
                    self.note_time(now);
                    header.around = now;
                }
            }
        }
        Err(StoreError::Unreachable)
    }

    fn header(&self, op: u8, max_wait: Micros, refused: bool) -> Header {
        let injected = self.clock.injected();
        let around = injected.unwrap_or_else(|| self.redis_time());
        let lease_time = Micros::from(self.timeout).clamp(LEASE_TIME, MAX_LEASE_TIME);
        Header { op, refused, injected, max_wait, around, lease_time }
    }

    fn note_time(&self, now: Timestamp) {
        self.ahead.store(now.as_micros() - self.clock.now().as_micros(), Ordering::Relaxed);
    }

    fn redis_time(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.now().as_micros() + self.ahead.load(Ordering::Relaxed))
    }
}

/// An answer of a known type.
fn read<T: FromRedisValue>(value: Value) -> Option<T> {
    redis::from_redis_value(value).ok()
}

/// A prefix in which no character has a meaning to `MATCH`.
fn escaped(prefix: &str) -> String {
    let special = |c: char| matches!(c, '*' | '?' | '[' | ']' | '\\' | '^');
    prefix.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

impl Store for RedisStore {
    async fn run(&self, call: &mut Call<'_>) -> Timestamp {
        let deadline = call.deadline.within(self.timeout());
        let mut parts = self.pending(call);
        if call.op == Op::Charge && call.reservation.is_some() && !parts.is_empty() {
            self.put_records(call, &mut parts);
        }
        if parts.iter().map(|part| part.rows.len()).sum::<usize>() > MAX_ROWS {
            call.lose(StoreError::rejected("ERR"));
        }
        let header = self.header(call.op, call.max_wait, call.refuses());
        match parts.len() {
            0 => self.redis_time(),
            _ if !call.has_pending() => self.redis_time(),
            // While a row is lost, the others are held.
            count if call.op == Op::Charge && (count > 1 || call.tiers.iter().any(is_lost)) => {
                self.hold_parts(call, parts, header, deadline).await
            }
            _ => self.run_parts(call, parts, header, deadline).await,
        }
    }

    async fn run_many(&self, calls: &mut [Call<'_>]) -> Vec<Timestamp> {
        run_concurrently(self, calls).await
    }

    fn finish(&self, call: &mut Call<'_>, passes: bool) {
        self.finish_held(call, passes);
    }

    fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    async fn inspect(&self, rule: &Rule, key: Key<'_>) -> Result<Option<State>, StoreError> {
        let Place { key, limit, window, slot } = self.place(rule, key);
        let (algorithm, deadline) = (limit.algorithm_name(), Instant::now() + self.timeout());
        let topology = &self.shared.topology;
        // A value of another type was written by another algorithm, or is foreign: there is no bucket.
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
        let now = self.shared.clock.injected().unwrap_or_else(|| self.redis_time());
        let state = state.filter(|state| !state.is_idle(&limit, now, window));
        // Where the clock opens windows, the start is not stored.
        Ok(state.map(|mut state| {
            match &mut state {
                State::FixedWindow(count) if count.start == count.last => {
                    count.start = start_on_the_clock(&limit, window, count.last);
                }
                State::SlidingWindowCounter(counts) if counts.start == counts.last => {
                    counts.start = start_on_the_clock(&limit, window, counts.last);
                }
                _ => {}
            }
            state
        }))
    }

    async fn settle(&self, id: ReservationId, actual: u64) -> Result<Settled, SettleError> {
        self.settle_reservation(id, actual).await
    }
}
