//! Decisions made on this node, on leases of buckets in Redis.
//!
//! A rule's `consistency` says where its decisions are made. This store gives an outcome to the rows that it can decide and
//! leaves the others to a [`RedisStore`]:
//!
//! ```text
//! local     this node's share of the limit, in memory: limit / nodes                 crate::shares
//! leased    a hot key: a lease of its bucket; a cold one: Redis                       table, take, calls
//! auto      the same, for keys that are much hotter
//! exact     Redis, always
//! ```
//!
//! A lease is carved out of the bucket that `exact` uses, so the limit holds over the whole fleet, whichever node crashes or
//! is disconnected (`docs/decisions/0006-leases.md`). The arithmetic is [`tollgate_core::lease`]; here are the table of
//! leases, the calls, and maintenance: it renews leases once in a lease time, returns unused ones, sends heartbeats and
//! charges what was admitted while Redis was unavailable.

mod calls;
mod maintenance;
mod sync;
mod table;
mod take;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tollgate_core::algorithm::State;
use tollgate_core::lease::Heat;
use tollgate_core::rule::Consistency;
use tollgate_core::{Descriptor, Holder, Key, Micros, Op, Outcome, Rule, StoreError, Tier, Timestamp};

use self::table::{Entry, Row, Table, heat};
use super::redis::RedisStore;
use super::{Bounds, Call, Store, run_concurrently};
use crate::clock::Clock;
use crate::reserve::{Reservation, ReservationId, ReservationLimit, SettleError, Settled};
use crate::shares::Shares;

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
/// // … and when the program ends, return the leases:
/// limiter.store().close().await;
/// # Ok(()) }
/// ```
///
/// If the store is dropped without [`close`](Self::close), its leases count as spent when they end, usually within 200 ms.
#[derive(Debug)]
pub struct LeasedStore {
    shared: Arc<Shared>,
    maintenance: Mutex<JoinHandle<()>>,
}

/// What decisions and the maintenance task share.
#[derive(Debug)]
struct Shared {
    redis: RedisStore,
    /// The id of this node.
    node: u64,
    /// Entries that were ever made: their epochs differ.
    entries: AtomicU64,
    /// The round trip of lease calls in microseconds, smoothed; 0 before the first.
    round_trip: AtomicU64,
    table: Table,
    shares: Shares,
    /// The outcome of the last heartbeat, until membership is known; `None` before the first.
    membership: watch::Sender<Option<Result<(), StoreError>>>,
    /// Whether an entry may have something unpaid.
    has_unpaid: AtomicBool,
    /// No lease is asked for any more, and maintenance has stopped.
    closed: AtomicBool,
    /// Wakes maintenance when the store is closed.
    closing: Arc<Notify>,
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
    /// Decisions on leases.
    pub local_decisions: u64,
    /// Refusals from the cache: Redis had just refused the same.
    pub remembered_refusals: u64,
    /// Decisions on leased keys that were left to Redis, because the key was cold or its lease did not cover them.
    pub exact_decisions: u64,
    /// Decisions on this node's share of a limit.
    pub share_decisions: u64,
    /// Calls that get, renew and return leases.
    pub lease_calls: u64,
    /// Such calls that failed.
    pub failed_calls: u64,
    /// Such calls that wait for their answer.
    pub calls_under_way: u64,
    /// Tokens in leases now.
    pub tokens_held: u64,
    /// Tokens that were left in leases when they ended.
    pub tokens_stranded: u64,
    /// Tokens charged after an outage for requests admitted during it.
    pub tokens_debited: u64,
    /// Nodes of the fleet, this one included, as last counted.
    pub nodes: u32,
}

/// Where decisions on a key are made at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// `leased` while this node has a lease, `local` on this node's share, else `exact`.
    pub in_force: Consistency,
    /// Tokens in the lease.
    pub tokens: u64,
}

impl LeasedStore {
    /// A store in front of `redis`. Must be called within a tokio runtime, which runs its maintenance task.
    pub fn new(redis: RedisStore) -> Self {
        Self::among(redis, NonZeroU32::MIN)
    }

    /// The same for a fleet of at least this many nodes.
    pub fn among(redis: RedisStore, nodes: NonZeroU32) -> Self {
        Self::bounded(redis, nodes, Bounds::default())
    }

    /// The same with these bounds on the memory for shares of rules with `consistency: local`.
    pub fn bounded(redis: RedisStore, nodes: NonZeroU32, bounds: Bounds) -> Self {
        let clock = redis.clock().clone();
        let shared = Arc::new(Shared {
            redis,
            // Made of the system's randomness, so that no two nodes have the same.
            node: RandomState::new().build_hasher().finish(),
            entries: AtomicU64::new(0),
            round_trip: AtomicU64::new(0),
            table: Table::new(),
            shares: Shares::new(clock, nodes, bounds),
            membership: watch::Sender::new(None),
            has_unpaid: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            closing: Arc::new(Notify::new()),
            counters: Counters::default(),
        });
        let maintenance = tokio::spawn(maintenance::run(Arc::downgrade(&shared)));
        LeasedStore { shared, maintenance: Mutex::new(maintenance) }
    }

    /// Returns all leases, charges what was admitted while Redis was unavailable and ends this node's membership. Later
    /// decisions are made at Redis.
    pub async fn close(&self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        self.shared.closing.notify_one();
        let mut maintenance = self.maintenance.lock().await;
        if !maintenance.is_finished() {
            // It ends when the debits that it has sent are answered. A panic in it has been reported.
            let _ = (&mut *maintenance).await;
        }
        maintenance::close(&self.shared).await;
    }

    /// The store that has the buckets.
    pub fn redis(&self) -> &RedisStore {
        &self.shared.redis
    }

    /// Where decisions of a rule on a request's key are made at present.
    pub fn held(&self, rule: &Rule, request: &Descriptor<'_>) -> Held {
        let not_leased = |in_force| Held { in_force, tokens: 0 };
        match (rule.consistency(), rule.limit()) {
            (Consistency::Local, _) => not_leased(Consistency::Local),
            (Consistency::Leased | Consistency::Auto, Some(limit)) => {
                let hash = crate::key_seeds().hash(rule.key(request));
                let held = self.shared.table.held(hash, limit, self.shared.now());
                held.unwrap_or_else(|| not_leased(Consistency::Exact))
            }
            _ => not_leased(Consistency::Exact),
        }
    }

    /// The number of keys with a lease on this node, for each rule that has any, by
    /// [`Space::digest`](tollgate_core::Space::digest).
    pub fn leases(&self) -> HashMap<[u64; 2], usize> {
        self.shared.table.leases()
    }

    /// What it has done, and holds.
    pub fn stats(&self) -> LeaseStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (counters, sum) = (&self.shared.counters, self.shared.table.sum(&self.shared));
        LeaseStats {
            local_decisions: read(&counters.local),
            remembered_refusals: read(&counters.remembered),
            exact_decisions: read(&counters.exact),
            share_decisions: read(&counters.shares),
            lease_calls: read(&counters.calls),
            failed_calls: read(&counters.failed_calls),
            calls_under_way: sum.calls,
            tokens_held: sum.tokens,
            tokens_stranded: read(&counters.stranded),
            tokens_debited: read(&counters.debited),
            nodes: self.shared.shares.rank().nodes.get(),
        }
    }
}

impl Drop for LeasedStore {
    fn drop(&mut self) {
        self.maintenance.get_mut().abort();
    }
}

impl Shared {
    /// The clock that leases are timed by.
    #[inline]
    fn now(&self) -> Timestamp {
        self.redis.clock().since_boot()
    }

    #[inline]
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// The first epoch of a new entry: no other has the 2^32 that follow.
    fn first_epoch(&self) -> u64 {
        self.entries.fetch_add(1, Ordering::Relaxed) << 32
    }

    /// The round trip of lease calls.
    #[inline]
    fn round_trip(&self) -> Micros {
        Micros::new(self.round_trip.load(Ordering::Relaxed))
    }

    /// From which demand keys are leased. A store so far away that a decision takes much of its deadline is asked as rarely
    /// as possible.
    #[inline]
    fn heat(&self, heat: Heat) -> Heat {
        let is_far = self.round_trip().as_duration() * 2 > self.redis.timeout();
        if is_far { Heat::ANY } else { heat }
    }

    /// When the decision has to be made.
    fn deadline(&self, call: &mut Call<'_>) -> Instant {
        call.deadline.within(self.redis.timeout())
    }

    /// Decides the rows with `consistency: local`; `None` if there are none. A charge waits until membership is known.
    async fn run_shares(&self, call: &mut Call<'_>) -> Option<Timestamp> {
        let rules = call.rules;
        let is_local = |tier: &Tier| tier.is_pending() && is_local(rules.rule(tier.rule));
        if call.op == Op::Charge && !self.shares.is_counted() && call.tiers.iter().any(is_local) {
            let deadline = self.deadline(call);
            if let Err(error) = self.membership_known(deadline).await {
                let local = call.tiers.iter_mut().filter(|tier| is_local(tier));
                local.for_each(|tier| tier.outcome = Outcome::Lost(error));
            }
        }
        self.run_counted_shares(call)
    }

    /// The same once membership is known.
    fn run_counted_shares(&self, call: &mut Call<'_>) -> Option<Timestamp> {
        let rules = call.rules;
        let is_local = |tier: &Tier| is_local(rules.rule(tier.rule));
        let count = call.tiers.iter().filter(|tier| tier.is_pending() && is_local(tier)).count();
        if count == 0 {
            return None;
        }
        if call.op == Op::Charge {
            self.counters.shares.fetch_add(count as u64, Ordering::Relaxed);
        }
        Some(self.shares.run(call, is_local))
    }
}

#[inline]
fn is_local(rule: &Rule) -> bool {
    rule.consistency() == Consistency::Local
}

impl Store for LeasedStore {
    /// Rows that no lease covers are decided at Redis, and so are all operations but a charge. A reservation is charged at
    /// Redis, where it is settled later.
    async fn run(&self, call: &mut Call<'_>) -> Timestamp {
        let shared = &self.shared;
        let shares_at = shared.run_shares(call).await;
        // The place that was claimed is for shares.
        if let Some(reservation) = call.reservation.as_deref().filter(|reservation| !reservation.is_recorded)
        {
            self.drop_reservation(reservation.id);
        }
        if call.op == Op::Charge && call.reservation.is_none() {
            shared.take(call);
        }
        if !call.has_pending() {
            return shares_at.unwrap_or_else(|| shared.redis.redis_time());
        }
        let leased = shared.pending(call);
        let at = shared.redis.run(call).await;
        leased.into_iter().for_each(|row| shared.answered_by_redis(call, row));
        at
    }

    /// Decides a call whose rows are all local, or covered by leases.
    #[inline]
    fn run_now(&self, call: &mut Call<'_>) -> Option<Timestamp> {
        let (shared, rules) = (&self.shared, call.rules);
        if call.op != Op::Charge || call.reservation.is_some() {
            return None;
        }
        let is_counted = shared.shares.is_counted();
        let is_ready = |tier: &Tier| {
            let rule = rules.rule(tier.rule);
            tier.is_pending() && (is_local(rule) && is_counted || heat(rule).is_some())
        };
        if !call.tiers.iter().all(is_ready) || !shared.take_now(call) {
            return None;
        }
        Some(shared.run_counted_shares(call).unwrap_or_else(|| shared.redis.redis_time()))
    }

    async fn run_many(&self, calls: &mut [Call<'_>]) -> Vec<Timestamp> {
        run_concurrently(self, calls).await
    }

    /// Also notes what a failure policy admitted instead of Redis, to be charged when Redis has recovered.
    fn finish(&self, call: &mut Call<'_>, passes: bool) {
        let (shared, rules) = (&self.shared, call.rules);
        shared.shares.finish(call, passes);
        for at in 0..call.tiers.len() {
            match call.tiers[at].outcome {
                Outcome::Held { if_passed, holder: Holder::Lease(_) } => {
                    let tier = &mut call.tiers[at];
                    let is_kept = passes || !tier.enforces();
                    shared.decided(tier, rules.rule(tier.rule).limit(), is_kept);
                    let verdict = if is_kept { if_passed } else { if_passed.given_back(tier.cost, None) };
                    tier.outcome = Outcome::Decided(verdict);
                }
                // What may have been charged is not charged again.
                Outcome::Instead { verdict, error, .. }
                    if passes && verdict.allowed && !error.is_in_doubt() && call.op == Op::Charge =>
                {
                    if let Some(row) = Row::of(call, &call.tiers[at]).filter(|row| row.cost > 0) {
                        let mut shard = shared.table.shard(row.hash);
                        if let Some(entry) = Entry::of(&mut shard, &row, shared) {
                            entry.add_unpaid(&row, shared);
                        }
                    }
                }
                _ => {}
            }
        }
        shared.redis.finish(call, passes);
    }

    fn clock(&self) -> &Clock {
        self.shared.redis.clock()
    }

    fn shares(&self) -> Option<&Shares> {
        Some(&self.shared.shares)
    }

    async fn inspect(&self, rule: &Rule, key: Key<'_>) -> Result<Option<State>, StoreError> {
        if !is_local(rule) {
            return self.shared.redis.inspect(rule, key).await;
        }
        let share = rule.divided(self.shared.shares.rank());
        match share.limit() {
            Some(_) => self.shared.shares.buckets().inspect(&share, key).await,
            None => Ok(None),
        }
    }

    fn claim_reservation(&self, reservation: &Reservation) -> Result<(), ReservationLimit> {
        self.shared.shares.buckets().claim_reservation(reservation)
    }

    fn drop_reservation(&self, id: ReservationId) {
        self.shared.shares.buckets().drop_reservation(id);
    }

    async fn settle(&self, id: ReservationId, actual: u64) -> Result<Settled, SettleError> {
        self.shared.settle(id, actual).await
    }
}
