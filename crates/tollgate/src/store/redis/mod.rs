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
//! [`link`] keeps the connection and knows when to give up on it. What happens to a request that Redis did not answer
//! is its rules' business ([`Limiter`](crate::Limiter)).

mod config;
mod lease;
mod link;
mod script;
mod state;
mod stream;

use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use redis::{Cmd, FromRedisValue, Value};
use smallvec::SmallVec;
use tokio::sync::Semaphore;
use tollgate_core::algorithm::{Demand, State};
use tollgate_core::limit::{AlgorithmName, MAX_LOG_ENTRIES};
use tollgate_core::{Enforcement, Hit, Limit, Micros, Space, Timestamp, Verdicts};

use self::link::Link;
use self::script::{Reply, Verb};
use self::stream::Dial;
use super::{Store, StoreError, window};
use crate::clock::Clock;
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
    link: Link,
    sha: String,
    prefix: String,
    clock: Clock,
    permits: Semaphore,
    max_in_flight: usize,
    /// How far Redis' clock is ahead of this process'.
    ahead: AtomicI64,
    clock_steps: AtomicU64,
    foreign: AtomicU64,
    overloaded: AtomicU64,
}

/// What a [`RedisStore`] has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedisStats {
    /// Whether decisions are made at Redis; if not, the breaker is open.
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
}

impl RedisStore {
    /// A store at a URL: `redis://[user:password@]host:port/db`, `rediss://…` with TLS, `unix:///path?db=0`.
    pub fn builder(url: &str) -> RedisBuilder {
        RedisBuilder::new(url)
    }

    async fn start(config: RedisBuilder, dial: Dial) -> Self {
        let sha = redis::Script::new(script::CODE).get_hash().to_owned();
        let link = Link::start(&config, dial, probe(&sha, &config.key_prefix));
        // Whatever came of it was logged; decisions ask again.
        let _ = link.settled().await;
        RedisStore {
            link,
            sha,
            prefix: config.key_prefix,
            clock: config.clock,
            permits: Semaphore::new(config.max_in_flight),
            max_in_flight: config.max_in_flight,
            ahead: AtomicI64::new(0),
            clock_steps: AtomicU64::new(0),
            foreign: AtomicU64::new(0),
            overloaded: AtomicU64::new(0),
        }
    }

    /// Whether Redis can be reached and makes decisions.
    ///
    /// # Errors
    ///
    /// Why not, as of the last attempt.
    pub async fn ready(&self) -> Result<(), StoreError> {
        self.link.settled().await
    }

    /// What it has seen.
    pub fn stats(&self) -> RedisStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let link = self.link.counters();
        RedisStats {
            up: self.link.is_up(),
            in_flight: self.max_in_flight - self.permits.available_permits(),
            connections: read(&link.connections),
            outages: read(&link.outages),
            uploads: read(&link.uploads),
            overloaded: read(&self.overloaded),
            clock_steps: read(&self.clock_steps),
            foreign: read(&self.foreign),
        }
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
        let keys = Keys::of(hits, &self.prefix);
        let call = command(&self.sha, Verb::Charge, None, hits, &keys, self.redis_time());
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
        let mut cursor = "0".to_owned();
        loop {
            let deadline = self.link.deadline();
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(format!("{}:*", escaped(&self.prefix))).arg("COUNT").arg(500);
            let (next, keys): (String, Vec<Vec<u8>>) = self.link.call(&scan, deadline, read).await?;
            if !keys.is_empty() {
                let _: u64 = self.link.call(redis::cmd("UNLINK").arg(keys), deadline, read).await?;
            }
            if next == "0" {
                return Ok(());
            }
            cursor = next;
        }
    }

    async fn run(
        &self,
        verb: Verb,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        if hits.is_empty() {
            return Ok(self.clock.now());
        }
        if hits.len() > MOST_HITS {
            return Err(StoreError::rejected("ERR"));
        }
        let Ok(_permit) = self.permits.try_acquire() else {
            self.overloaded.fetch_add(1, Ordering::Relaxed);
            return Err(StoreError::Overloaded);
        };
        let keys = Keys::of(hits, &self.prefix);
        let done = self.ask(verb, hits, &keys).await?;
        self.clock_steps.fetch_add(done.clock_steps, Ordering::Relaxed);
        self.foreign.fetch_add(done.foreign, Ordering::Relaxed);
        done.verdicts(verb, hits, |index| keys.same(index), verdicts).ok_or(StoreError::Unreachable)?;
        Ok(done.now)
    }

    /// Calls the script; a second time when the calendar windows that were sent are not those of Redis' clock.
    async fn ask(&self, verb: Verb, hits: &[Hit<'_>], keys: &Keys) -> Result<script::Done, StoreError> {
        let injected = self.clock.injected();
        let mut around = injected.unwrap_or_else(|| self.redis_time());
        let deadline = self.link.deadline();
        // A reset tells of no bucket.
        let told = if verb == Verb::Reset { 0 } else { hits.len() };
        for _ in 0..2 {
            let call = command(&self.sha, verb, injected, hits, keys, around);
            match self.link.call(&call, deadline, |value| Reply::read(value, told)).await? {
                Reply::Done(done) => {
                    self.note_time(done.now);
                    if verb == Verb::Charge && done.passes && hits.iter().any(|hit| hit.demand.cost > 0) {
                        self.link.wrote();
                    }
                    return Ok(done);
                }
                Reply::OtherTime(now) => {
                    self.note_time(now);
                    around = now;
                }
            }
        }
        Err(StoreError::Unreachable)
    }

    /// What Redis' clock says, as far as this process knows.
    pub(crate) fn redis_time(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.now().as_micros() + self.ahead.load(Ordering::Relaxed))
    }

    fn note_time(&self, now: Timestamp) {
        self.ahead.store(now.as_micros() - self.clock.now().as_micros(), Ordering::Relaxed);
    }
}

/// The keys of a request, one after the other.
#[derive(Debug)]
struct Keys {
    bytes: Vec<u8>,
    places: SmallVec<[Range<usize>; 4]>,
}

impl Keys {
    fn of(hits: &[Hit<'_>], prefix: &str) -> Self {
        let mut keys = Keys { bytes: Vec::with_capacity(64 * hits.len()), places: SmallVec::new() };
        for hit in hits {
            let from = keys.bytes.len();
            hit.key.encode(prefix, &mut keys.bytes);
            keys.places.push(from..keys.bytes.len());
        }
        keys
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.places.iter().map(|place| &self.bytes[place.clone()])
    }

    /// The first hit before this one that has the same key.
    fn same(&self, index: usize) -> Option<usize> {
        let key = &self.bytes[self.places[index].clone()];
        self.iter().take(index).position(|earlier| earlier == key)
    }
}

/// The script's call.
fn command(
    sha: &str,
    verb: Verb,
    injected: Option<Timestamp>,
    hits: &[Hit<'_>],
    keys: &Keys,
    around: Timestamp,
) -> Cmd {
    let mut call = Cmd::with_capacity(5 + 2 * hits.len(), 96 + 128 * hits.len());
    call.arg("EVALSHA").arg(sha).arg(hits.len());
    keys.iter().for_each(|key| {
        call.arg(key);
    });
    call.arg(verb.as_str());
    match injected {
        Some(now) => call.arg(now.as_micros()),
        None => call.arg(""),
    };
    let mut packed = Vec::with_capacity(64);
    for hit in hits {
        packed.clear();
        script::pack(hit, around, &mut packed);
        call.arg(packed.as_slice());
    }
    call
}

/// A charge of buckets of our own, which proves that Redis takes charges. It is never refused, so it always writes, and
/// a log is among them: that uses every kind of command.
fn probe(sha: &str, prefix: &str) -> Cmd {
    let second = Micros::new(1_000_000);
    let limits = [Limit::new(1_000_000, second), Limit::sliding_window_log(MAX_LOG_ENTRIES, second)]
        .map(|limit| limit.expect("both are in range"));
    let spaces = limits.each_ref().map(|limit| Space::ad_hoc(limit.algorithm_name()));
    let demand = Demand { cost: 1, patience: Micros::MAX };
    let hit = |(limit, space)| {
        let space: &Space = space;
        Hit { key: space.named("tollgate probe"), limit, demand, enforcement: Enforcement::Enforce }
    };
    let hits: Vec<Hit<'_>> = limits.iter().zip(&spaces).map(hit).collect();
    command(sha, Verb::Charge, None, &hits, &Keys::of(&hits, prefix), Timestamp::default())
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
        self.run(Verb::Charge, hits, verdicts).await
    }

    async fn peek(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.run(Verb::Peek, hits, verdicts).await
    }

    async fn refund(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.run(Verb::Refund, hits, verdicts).await
    }

    async fn reset(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.run(Verb::Reset, hits, verdicts).await
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    async fn inspect(&self, hit: &Hit<'_>) -> Result<Option<State>, StoreError> {
        let key = self.key(hit);
        let (algorithm, deadline) = (hit.limit.algorithm_name(), self.link.deadline());
        // What is of another kind was written by another algorithm, or by somebody else: there is no bucket.
        let kind = redis::cmd("TYPE").arg(&key).take();
        let kind: String = self.link.call(&kind, deadline, read).await?;
        let state = match (algorithm, kind.as_str()) {
            (AlgorithmName::SlidingWindowLog, "list") => {
                let list = redis::cmd("LRANGE").arg(key).arg(0).arg(-1).take();
                let elements: Vec<Vec<u8>> = self.link.call(&list, deadline, read).await?;
                state::decode_log(&elements)
            }
            (_, "string") => {
                let get = redis::cmd("GET").arg(key).take();
                let bytes: Option<Vec<u8>> = self.link.call(&get, deadline, read).await?;
                bytes.and_then(|bytes| state::decode_leased(algorithm, &bytes)).map(|(state, _)| state)
            }
            _ => None,
        };
        let now = self.clock.injected().unwrap_or_else(|| self.redis_time());
        Ok(state.filter(|state| !state.is_as_good_as_new(hit.limit, now, window(hit, hit.limit))))
    }
}
