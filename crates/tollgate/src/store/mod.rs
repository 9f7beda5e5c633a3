//! Where buckets live.
//!
//! A store gives the rows of one request their outcomes, all at one instant, charging all enforcing rows or none.
//! [`MemoryStore`] keeps its buckets in this process, `RedisStore` (feature `redis`) in a Redis or Valkey that many
//! processes share, and `LeasedStore` decides locally on tokens borrowed from there. Which store a program uses is often
//! known only when it starts: [`AnyStore`] is the choice made then.

#[cfg(feature = "redis")]
pub(crate) mod leased;
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(test)]
pub(crate) mod scripted;

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;
use tollgate_core::algorithm::{Demand, State, Window};
use tollgate_core::limit::{Algorithm, Phase};
use tollgate_core::{
    Descriptor, Key, Limit, Micros, Op, Outcome, Rule, RuleSet, StoreError, Tier, Tiers, Timestamp,
};

#[cfg(feature = "redis")]
use self::leased::LeasedStore;
#[cfg(feature = "redis")]
use self::redis::RedisStore;
use crate::clock::Clock;
use crate::reserve::{Reservation, ReservationId, ReservationLimit, SettleError, Settled};
use crate::shares::Shares;
pub use memory::{Bounds, MemoryStats, MemoryStore};

/// Everything a store needs for one decision.
#[derive(Debug)]
pub struct Call<'a> {
    /// What is done to the buckets.
    pub op: Op,
    /// The snapshot that the rows belong to.
    pub rules: &'a RuleSet,
    /// The request that the keys are made from.
    pub request: &'a Descriptor<'a>,
    /// The rows.
    pub tiers: &'a mut Tiers,
    /// A request that would be delayed for longer is refused, with `retry_after` = delay - `max_wait`.
    pub max_wait: Micros,
    /// What the store records of the charge, if it is settled later.
    pub reservation: Option<&'a mut Reservation>,
    /// When the decision has to be made, retries and fallbacks included.
    pub deadline: Deadline,
}

/// When a decision has to be made, however many calls that takes. The time starts with the first call that waits: a
/// decision in memory does not read the clock for it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// The deadline, which a store that waits at most this long sets when it is asked first.
    pub fn within(&mut self, timeout: Duration) -> Instant {
        *self.0.get_or_insert_with(|| Instant::now() + timeout)
    }
}

impl<'a> Call<'a> {
    /// A call with the usual settings.
    #[inline]
    pub fn new(op: Op, rules: &'a RuleSet, request: &'a Descriptor<'a>, tiers: &'a mut Tiers) -> Self {
        let (max_wait, deadline) = (Micros::MAX, Deadline::default());
        Call { op, rules, request, tiers, max_wait, reservation: None, deadline }
    }

    /// The same call for a shorter time.
    pub(crate) fn reborrow(&mut self) -> Call<'_> {
        let Call { op, rules, request, max_wait, deadline, .. } = *self;
        let reservation = self.reservation.as_deref_mut();
        Call { op, rules, request, tiers: self.tiers, max_wait, reservation, deadline }
    }

    /// The rule of a row.
    #[inline]
    pub fn rule(&self, tier: &Tier) -> &'a Rule {
        self.rules.rule(tier.rule)
    }

    /// The limit of a row.
    ///
    /// # Panics
    ///
    /// The rule of the row has no limit: rows are only made for rules with one.
    #[inline]
    pub fn limit(&self, tier: &Tier) -> &'a Limit {
        self.rule(tier).limit().expect("rows are made for rules with a limit")
    }

    /// The key of a row's bucket.
    #[inline]
    pub fn key(&self, tier: &Tier) -> Key<'a> {
        self.rule(tier).key(self.request)
    }

    /// What a row asks of its bucket.
    #[inline]
    pub const fn demand(&self, tier: &Tier) -> Demand {
        Demand { cost: tier.cost, max_wait: self.max_wait }
    }

    /// Whether an enforcing row refuses the request.
    #[inline]
    pub fn refuses(&self) -> bool {
        self.tiers.iter().any(Tier::refuses)
    }

    /// Whether a row has no outcome yet.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.tiers.iter().any(Tier::is_pending)
    }

    /// The store gives no answer for the rows that are still pending.
    pub(crate) fn lose(&mut self, error: StoreError) {
        for tier in self.tiers.iter_mut().filter(|tier| tier.is_pending()) {
            tier.outcome = Outcome::Lost(error);
        }
    }

    /// Makes every held row final: its cost is spent, or was given back.
    pub(crate) fn decide_held(&mut self, passes: bool) {
        for tier in self.tiers.iter_mut() {
            if let Outcome::Held { if_passed, .. } = tier.outcome {
                let (kept, limit) = (passes || !tier.enforces(), self.rules.rule(tier.rule).limit());
                tier.outcome =
                    Outcome::Decided(if kept { if_passed } else { if_passed.given_back(tier.cost, limit) });
            }
        }
    }

    /// The first error of a row that the store lost.
    pub(crate) fn error(&self) -> Option<StoreError> {
        self.tiers.iter().find_map(|tier| match tier.outcome {
            Outcome::Lost(error) => Some(error),
            _ => None,
        })
    }
}

/// Keeps buckets and charges them.
pub trait Store: Send + Sync + 'static {
    /// Gives every pending row an outcome, all at one instant of the store's clock, which is returned.
    ///
    /// Enforcing rows are charged together or not at all: if any bucket refuses, no bucket is modified, so a caller
    /// refused by the tenant's limit does not also use up their own. Rows that already have an outcome count: if one of
    /// them refuses, nothing is charged. Rows in shadow mode are charged independently. Calls that share a key are
    /// serialized, even across processes. The rows of one call have different buckets.
    ///
    /// A row whose store was unreachable or late is [`Lost`](Outcome::Lost); it may have been charged, so it is never
    /// sent again. While a row is lost, or was lost before the call, enforcing rows that were charged are
    /// [`Held`](Outcome::Held).
    fn run(&self, call: &mut Call<'_>) -> impl Future<Output = Timestamp> + Send;

    /// The same without waiting; `None` means that nothing was done.
    fn run_now(&self, call: &mut Call<'_>) -> Option<Timestamp> {
        let _ = call;
        None
    }

    /// Whether a call may have to wait, so that [`run_now`](Self::run_now) may do nothing.
    fn waits(&self) -> bool {
        true
    }

    /// Runs many independent calls and returns their instants. A store in memory fetches all buckets first, Redis
    /// pipelines.
    fn run_many(&self, calls: &mut [Call<'_>]) -> impl Future<Output = Vec<Timestamp>> + Send {
        async {
            let mut instants = Vec::with_capacity(calls.len());
            for call in calls {
                instants.push(self.run(call).await);
            }
            instants
        }
    }

    /// Ends what is only held: every held row becomes decided, with the numbers after the spend or after the return. Never
    /// waits.
    fn finish(&self, call: &mut Call<'_>, passes: bool) {
        call.decide_held(passes);
    }

    /// The clock of this process on which waits for this store are counted.
    fn clock(&self) -> &Clock;

    /// This node's shares of limits, where the store counts nodes.
    fn shares(&self) -> Option<&Shares> {
        None
    }

    /// The state of a bucket; `None` when it equals a fresh one.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    fn inspect(
        &self,
        rule: &Rule,
        key: Key<'_>,
    ) -> impl Future<Output = Result<Option<State>, StoreError>> + Send;

    /// Claims room for the record of a reservation, before it is charged. A store without a bound of its own has room.
    ///
    /// # Errors
    ///
    /// There are too many unsettled reservations, of this caller or in all.
    fn claim_reservation(&self, reservation: &Reservation) -> Result<(), ReservationLimit> {
        let _ = reservation;
        Ok(())
    }

    /// Frees what [`claim_reservation`](Self::claim_reservation) claimed for a reservation that came to nothing.
    fn drop_reservation(&self, id: ReservationId) {
        let _ = id;
    }

    /// Settles a reservation with what the work took, once: another settlement is answered what the first did.
    ///
    /// # Errors
    ///
    /// There is no such reservation any more; or the store gave no answer, and may have settled it all the same.
    fn settle(
        &self,
        id: ReservationId,
        actual: u64,
    ) -> impl Future<Output = Result<Settled, SettleError>> + Send;
}

/// The most calls of one batch that wait for a store at the same time: the connection pipelines them, and a batch must not
/// take the places of all other decisions.
#[cfg(feature = "redis")]
const MAX_CONCURRENT_CALLS: usize = 64;

/// Runs calls of a store that waits, several concurrently.
#[cfg(feature = "redis")]
pub(crate) async fn run_concurrently<S: Store>(store: &S, calls: &mut [Call<'_>]) -> Vec<Timestamp> {
    use futures_util::stream::{StreamExt as _, iter};

    let runs: Vec<_> = calls.iter_mut().map(|call| store.run(call)).collect();
    iter(runs).buffered(MAX_CONCURRENT_CALLS).collect().await
}

/// Where the spread windows of a key begin.
#[inline]
pub(crate) fn window(key: Key<'_>, limit: &Limit) -> Window {
    match limit.algorithm() {
        Algorithm::FixedWindow { phase: Phase::Spread, window, .. } => Window::Spread(key.spread(*window)),
        _ => Window::Own,
    }
}

/// The store chosen when the program starts.
#[derive(Debug)]
#[non_exhaustive]
#[cfg_attr(
    feature = "redis",
    expect(
        clippy::large_enum_variant,
        reason = "there is one store in a process, and a box would be one more access"
    )
)]
pub enum AnyStore {
    /// Buckets in this process.
    Memory(MemoryStore),
    /// Buckets in a Redis or Valkey.
    #[cfg(feature = "redis")]
    Redis(RedisStore),
    /// Buckets in a Redis or Valkey, with decisions made here where rules want that.
    #[cfg(feature = "redis")]
    Leased(Box<LeasedStore>),
}

impl AnyStore {
    /// The Redis that has the buckets, if one has.
    #[cfg(feature = "redis")]
    pub fn redis(&self) -> Option<&RedisStore> {
        match self {
            AnyStore::Memory(_) => None,
            AnyStore::Redis(store) => Some(store),
            AnyStore::Leased(store) => Some(store.redis()),
        }
    }

    /// The store that decides on leases, if there is one.
    #[cfg(feature = "redis")]
    pub fn leased(&self) -> Option<&LeasedStore> {
        match self {
            AnyStore::Leased(store) => Some(store),
            _ => None,
        }
    }

    /// Returns all leases. Call it when no more decisions are made.
    pub async fn close(&self) {
        #[cfg(feature = "redis")]
        if let AnyStore::Leased(store) = self {
            store.close().await;
        }
    }
}

impl From<MemoryStore> for AnyStore {
    fn from(store: MemoryStore) -> Self {
        AnyStore::Memory(store)
    }
}

#[cfg(feature = "redis")]
impl From<RedisStore> for AnyStore {
    fn from(store: RedisStore) -> Self {
        AnyStore::Redis(store)
    }
}

#[cfg(feature = "redis")]
impl From<LeasedStore> for AnyStore {
    fn from(store: LeasedStore) -> Self {
        AnyStore::Leased(Box::new(store))
    }
}

/// Calls the same method of the store that was chosen.
macro_rules! each {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            AnyStore::Memory($store) => $call,
            #[cfg(feature = "redis")]
            AnyStore::Redis($store) => $call,
            #[cfg(feature = "redis")]
            AnyStore::Leased($store) => $call,
        }
    };
}

impl Store for AnyStore {
    #[inline]
    async fn run(&self, call: &mut Call<'_>) -> Timestamp {
        each!(self, store => store.run(call).await)
    }

    #[inline]
    fn run_now(&self, call: &mut Call<'_>) -> Option<Timestamp> {
        each!(self, store => store.run_now(call))
    }

    fn waits(&self) -> bool {
        each!(self, store => store.waits())
    }

    async fn run_many(&self, calls: &mut [Call<'_>]) -> Vec<Timestamp> {
        each!(self, store => store.run_many(calls).await)
    }

    #[inline]
    fn finish(&self, call: &mut Call<'_>, passes: bool) {
        each!(self, store => store.finish(call, passes));
    }

    fn clock(&self) -> &Clock {
        each!(self, store => store.clock())
    }

    fn shares(&self) -> Option<&Shares> {
        each!(self, store => store.shares())
    }

    async fn inspect(&self, rule: &Rule, key: Key<'_>) -> Result<Option<State>, StoreError> {
        each!(self, store => store.inspect(rule, key).await)
    }

    fn claim_reservation(&self, reservation: &Reservation) -> Result<(), ReservationLimit> {
        each!(self, store => store.claim_reservation(reservation))
    }

    fn drop_reservation(&self, id: ReservationId) {
        each!(self, store => store.drop_reservation(id));
    }

    async fn settle(&self, id: ReservationId, actual: u64) -> Result<Settled, SettleError> {
        each!(self, store => store.settle(id, actual).await)
    }
}
