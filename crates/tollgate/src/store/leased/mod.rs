//! Decisions made here, on tokens borrowed from Redis.
//!
//! A rule's `consistency` says where its decisions are made. This store stands before a [`RedisStore`] and sends there
//! what must go there:
//!
//! ```text
//! exact     to Redis, always
//! leased    a hot key: tokens held here, borrowed for half a second; a cold one: to Redis      desk, charge, line
//! auto      the same, for keys that are much hotter
//! local     this node's share of the limit, in memory: limit / nodes                           share
//! ```
//!
//! What is borrowed was taken from the same bucket that `exact` uses, so the limit holds over the whole fleet, whatever
//! node dies or is cut off (`docs/decisions/0006-leases.md`). The arithmetic of lending is [`tollgate_core::lease`]; here
//! are the map of what is held, the calls, and one task that tends them: it gives back what nobody uses, says that this
//! node is alive, and charges what was admitted while Redis was away.

mod charge;
mod desk;
mod elsewhere;
mod line;
mod owed;
mod share;
mod tend;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tollgate_core::algorithm::State;
use tollgate_core::lease::{NodeId, Temper};
use tollgate_core::limit::Rank;
use tollgate_core::rule::Consistency;
use tollgate_core::{Hit, Micros, Timestamp, Verdict, Verdicts};

use self::desk::Desks;
use self::owed::Owed;
use self::share::Shares;
use super::redis::RedisStore;
use super::{Bounds, Due, NoteName, Store, StoreError};
use crate::clock::Clock;
use crate::reserve::ReservationId;

/// Decides locally where rules allow it, and at Redis elsewhere.
///
/// ```no_run
/// use tollgate::{LeasedStore, Limiter, RedisStore, rules};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = RedisStore::builder("redis://127.0.0.1:6379").connect().await?;
/// let rules = rules::parse("rules.yaml", r#"
/// rules:
///   - { name: all, key: global, limit: 50000/s burst 100000, consistency: leased }
/// "#)?;
/// let limiter = Limiter::new(rules, LeasedStore::new(redis));
/// // … and when the program ends, what is borrowed goes back:
/// limiter.store().close().await;
/// # Ok(()) }
/// ```
///
/// Dropped without [`close`](Self::close), what it holds counts as spent when the leases end, within half a second.
#[derive(Debug)]
pub struct LeasedStore {
    shared: Arc<Shared>,
    tending: Mutex<JoinHandle<()>>,
}

/// What callers and the tending task share.
#[derive(Debug)]
struct Shared {
    redis: RedisStore,
    node: NodeId,
    /// The last call that was sent, of any key.
    sequence: AtomicU64,
    desks: Desks,
    shares: Shares,
    owed: Owed,
    /// Nothing is borrowed any more, and nobody tends.
    closed: AtomicBool,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    local: AtomicU64,
    remembered: AtomicU64,
    exact: AtomicU64,
    shares: AtomicU64,
    calls: AtomicU64,
    failed_calls: AtomicU64,
    stranded: AtomicU64,
    debited: AtomicU64,
}

/// What a [`LeasedStore`] has done, and holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeaseStats {
    /// Decisions on tokens held here.
    pub local_decisions: u64,
    /// Refusals because Redis refused the same a moment ago.
    pub remembered_refusals: u64,
    /// Decisions on leased keys that were left to Redis, because the key was cold or nothing could be borrowed.
    pub exact_decisions: u64,
    /// Decisions on this node's share of a limit.
    pub share_decisions: u64,
    /// Calls to borrow, renew and give back.
    pub lease_calls: u64,
    /// Such calls that were not answered.
    pub failed_calls: u64,
    /// Tokens held now.
    pub tokens_held: u64,
    /// Tokens that ended unspent or were lent in answers that came too late, and places in queues that nobody took.
    pub tokens_stranded: u64,
    /// Tokens charged after an outage for what was admitted in it.
    pub tokens_debited: u64,
    /// Nodes of the fleet, this one included, as last heard.
    pub nodes: u32,
}

/// Where decisions on a key are made at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// `leased` while they are made here on borrowed tokens, `local` on this node's share, else `exact`.
    pub in_force: Consistency,
    /// Tokens held here.
    pub tokens: u64,
}

impl LeasedStore {
    /// A store before `redis`; must be made within a tokio runtime, where it tends its leases.
    pub fn new(redis: RedisStore) -> Self {
        Self::among(redis, NonZeroU32::MIN)
    }

    /// The same where there are known to be at least so many nodes.
    pub fn among(redis: RedisStore, nodes: NonZeroU32) -> Self {
        Self::bounded(redis, nodes, Bounds::default())
    }

    /// The same with so much room for the shares that rules with `consistency: local` count here.
    pub fn bounded(redis: RedisStore, nodes: NonZeroU32, bounds: Bounds) -> Self {
        let clock = redis.clock().clone();
        let shared = Arc::new(Shared {
            redis,
            // Keyed by the system's randomness: no other node has it.
            node: NodeId(RandomState::new().build_hasher().finish()),
            sequence: AtomicU64::new(0),
            desks: Desks::new(),
            shares: Shares::new(clock, nodes, bounds),
            owed: Owed::default(),
            closed: AtomicBool::new(false),
            counters: Counters::default(),
        });
        let tending = tokio::spawn(tend::run(Arc::downgrade(&shared)));
        LeasedStore { shared, tending: Mutex::new(tending) }
    }

    /// Gives back everything that is borrowed, charges what was admitted while Redis was away and leaves the fleet.
    /// Decisions after this are made at Redis.
    pub async fn close(&self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        let mut tending = self.tending.lock().await;
        if !tending.is_finished() {
            // It ends of itself, when what it has begun to charge is charged; a panic of it has been reported.
            let _ = (&mut *tending).await;
        }
        tend::close(&self.shared).await;
    }

    /// The store it borrows from.
    pub fn redis(&self) -> &RedisStore {
        &self.shared.redis
    }

    /// Where decisions on a hit's key are made at present.
    pub fn held(&self, hit: &Hit<'_>) -> Held {
        let consistency = hit.key.space().consistency();
        let exact = Held { in_force: Consistency::Exact, tokens: 0 };
        match consistency {
            Consistency::Local => Held { in_force: Consistency::Local, ..exact },
            _ => self.shared.desks.held(hit, self.shared.now()).unwrap_or(exact),
        }
    }

    /// For each rule of which keys are decided here on borrowed tokens, by
    /// [`Space::digest`](tollgate_core::Space::digest), how many keys those are.
    pub fn leases(&self) -> HashMap<[u64; 2], usize> {
        self.shared.desks.leases()
    }

    /// What it has done, and holds.
    pub fn stats(&self) -> LeaseStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.shared.counters;
        let sum = self.shared.desks.sum(self.shared.now());
        LeaseStats {
            local_decisions: read(&counters.local),
            remembered_refusals: read(&counters.remembered),
            exact_decisions: read(&counters.exact),
            share_decisions: read(&counters.shares),
            lease_calls: read(&counters.calls),
            failed_calls: read(&counters.failed_calls),
            tokens_held: sum.tokens,
            tokens_stranded: read(&counters.stranded),
            tokens_debited: read(&counters.debited),
            nodes: self.shared.shares.rank().nodes.get(),
        }
    }
}

impl Drop for LeasedStore {
    fn drop(&mut self) {
        self.tending.get_mut().abort();
    }
}

impl Shared {
    /// The time that leases are counted on.
    #[inline]
    fn now(&self) -> Timestamp {
        self.redis.clock().since_boot()
    }

    fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// When to borrow for a hit's key; `None` where nothing is borrowed.
#[inline]
fn temper(hit: &Hit<'_>) -> Option<Temper> {
    match hit.key.space().consistency() {
        Consistency::Leased => Some(Temper::LEASED),
        Consistency::Auto => Some(Temper::AUTO),
        Consistency::Exact | Consistency::Local => None,
    }
}

#[inline]
fn is_exact(hit: &Hit<'_>) -> bool {
    temper(hit).is_none() && !is_local(hit)
}

#[inline]
fn is_local(hit: &Hit<'_>) -> bool {
    hit.key.space().consistency() == Consistency::Local
}

impl Store for LeasedStore {
    async fn charge(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        match hits {
            hits if hits.iter().all(is_exact) => self.shared.redis.charge(hits, verdicts).await,
            [hit] => self.shared.charge_one(hit, verdicts).await,
            hits => self.shared.charge_all(hits, verdicts).await,
        }
    }

    async fn peek(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.shared.peek(hits, verdicts).await
    }

    async fn refund(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.shared.refund(hits, verdicts).await
    }

    /// At Redis and in this node's shares. What this node has spent of a lease is told first, so that in sum it is as if it
    /// had never been taken. What another node has spent and not told yet is given back only as far as there is something
    /// used: then too few are admitted, never too many.
    async fn undo(
        &self,
        hits: &[Hit<'_>],
        charged: &[Verdict],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        self.shared.undo(hits, charged, verdicts).await
    }

    /// What other nodes have borrowed stays borrowed; what this one has is given back first.
    async fn reset(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.shared.reset(hits, verdicts).await
    }

    fn clock(&self) -> &Clock {
        self.shared.redis.clock()
    }

    fn owe(&self, hits: &[Hit<'_>]) {
        for hit in hits.iter().filter(|hit| !is_local(hit)) {
            self.shared.owed.add(self.shared.desks.hash(&hit.key), hit, || self.shared.redis.place(hit));
        }
    }

    fn rank(&self) -> Option<Rank> {
        Some(self.shared.shares.rank())
    }

    async fn keep(&self, name: NoteName, note: &[u8], ttl: Micros) -> Result<Option<Vec<u8>>, StoreError> {
        self.shared.redis.keep(name, note, ttl).await
    }

    async fn recall(&self, name: NoteName) -> Result<Option<Vec<u8>>, StoreError> {
        self.shared.redis.recall(name).await
    }

    /// At Redis and in this node's shares; what is held here is left to decisions.
    async fn settle(
        &self,
        reservation: ReservationId,
        due: &[Due<'_>],
        ttl: Micros,
    ) -> Result<Vec<u64>, StoreError> {
        self.shared.settle(reservation, due, ttl).await
    }

    async fn inspect(&self, hit: &Hit<'_>) -> Result<Option<State>, StoreError> {
        match hit.key.space().consistency() {
            Consistency::Local => self.shared.shares.inspect(hit).await,
            _ => self.shared.redis.inspect(hit).await,
        }
    }
}

/// How long a node counts as alive after it was heard of, and how often it speaks.
const ALIVE: Micros = Micros::new(3_000_000);
const HEARTBEAT: Micros = Micros::new(1_000_000);
