//! `consistency: local`: this node's share of a limit, in buckets of its own.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tollgate_core::algorithm::State;
use tollgate_core::limit::Rank;
use tollgate_core::{Enforcement, Hit, Hits, Limit, Micros, Timestamp, Verdict, Verdicts};

use super::charge::put_back;
use super::{ALIVE, HEARTBEAT};
use crate::clock::Clock;
use crate::reserve::ReservationId;
use crate::store::{Bounds, Due, MemoryStore, Store, StoreError};

/// The shares, and how many there are to share with.
#[derive(Debug)]
pub(super) struct Shares {
    buckets: MemoryStore,
    /// There are at least so many nodes, whatever the roll says.
    least: NonZeroU32,
    /// How many nodes there are, and in the lower half how many come before this one. Zero until that was heard.
    rank: AtomicU64,
    /// Since when every roll has told of fewer nodes than there are by `rank`.
    fewer_since: Mutex<Option<Timestamp>>,
    /// What came of the last roll call; nothing before the first.
    roll: watch::Sender<Option<Result<(), StoreError>>>,
}

impl Shares {
    pub(super) fn new(clock: Clock, nodes: NonZeroU32, bounds: Bounds) -> Self {
        Shares {
            buckets: MemoryStore::with(clock, bounds),
            least: nodes,
            rank: AtomicU64::new(0),
            fewer_since: Mutex::new(None),
            roll: watch::Sender::new(None),
        }
    }

    /// Whether it is known what the share of this node is.
    #[inline]
    pub(super) fn are_counted(&self) -> bool {
        self.rank.load(Ordering::Relaxed) != 0
    }

    /// Waits until it is.
    ///
    /// A node that has just started must not take the whole limit for its share.
    pub(super) async fn counted(&self, deadline: Instant) -> Result<(), StoreError> {
        let mut roll = self.roll.subscribe();
        match timeout_at(deadline, roll.wait_for(Option::is_some)).await {
            Ok(Ok(outcome)) => outcome.clone().unwrap_or(Ok(())),
            Ok(Err(_)) | Err(_) => Err(StoreError::Timeout.unsent()),
        }
    }

    /// This node's place, as last heard, or the first of as many as there are at least.
    pub(super) fn rank(&self) -> Rank {
        let [place, nodes] = halves(self.rank.load(Ordering::Relaxed));
        Rank { place, nodes: NonZeroU32::new(nodes).unwrap_or(self.least) }
    }

    /// The roll was called: so many nodes, of which so many come before this one.
    ///
    /// More nodes are believed at once, fewer only when that was heard for as long as a node counts as alive: after an
    /// outage, or when the store has forgotten the roll, everybody hears at first only of those who called before.
    pub(super) fn heard(&self, nodes: u32, place: u32, now: Timestamp) {
        let nodes = nodes.max(self.least.get());
        let mut fewer_since = self.fewer_since.lock();
        let fewer = self.are_counted() && nodes < self.rank().nodes.get();
        if fewer && fewer_since.get_or_insert(now).after(ALIVE) > now {
            return;
        }
        *fewer_since = None;
        self.rank.store(u64::from(nodes) << 32 | u64::from(place), Ordering::Relaxed);
        self.roll.send_replace(Some(Ok(())));
    }

    /// The roll could not be called. What was heard before still holds.
    pub(super) fn unheard(&self, error: StoreError) {
        *self.fewer_since.lock() = None;
        if !self.are_counted() {
            self.roll.send_replace(Some(Err(error)));
        }
    }

    pub(super) async fn charge(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        let shares = self.limits(hits);
        // Where one has nothing to give, nothing is taken from the others.
        let enforced = |(hit, share): (&Hit<'_>, &Option<Limit>)| {
            hit.enforcement == Enforcement::Enforce && share.is_none()
        };
        if !hits.iter().zip(&shares).any(enforced) {
            return self.ask(hits, &shares, verdicts, Verb::Charge).await;
        }
        let on_trial = |(hit, share): &(&Hit<'_>, &Option<Limit>)| {
            hit.enforcement == Enforcement::Shadow && share.is_some()
        };
        let trial: Hits<'_> = hits.iter().zip(&shares).filter(on_trial).map(|(hit, _)| hit.clone()).collect();
        let mut charged = Verdicts::new();
        self.ask(&trial, &self.limits(&trial), &mut charged, Verb::Charge).await?;
        let before = verdicts.len();
        let at = self.ask(hits, &shares, verdicts, Verb::Peek).await?;
        let said = hits.iter().zip(&shares).zip(&mut verdicts[before..]);
        let on_trial = said.filter(|(pair, _)| on_trial(pair)).map(|(_, verdict)| verdict);
        on_trial.zip(charged).for_each(|(verdict, charged)| *verdict = charged);
        Ok(at)
    }

    pub(super) async fn peek(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        self.ask(hits, &self.limits(hits), verdicts, Verb::Peek).await
    }

    pub(super) async fn refund(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        self.ask(hits, &self.limits(hits), verdicts, Verb::Refund).await
    }

    /// Gives back charges that are known, to those that still have a share.
    pub(super) async fn undo(
        &self,
        hits: &[Hit<'_>],
        charged: &[Verdict],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        let shares = self.limits(hits);
        let with_share = hits.iter().zip(&shares).zip(charged);
        let own = with_share
            .filter_map(|((hit, share), then)| share.as_ref().map(|limit| (under(limit, hit), *then)));
        let (own, then): (Hits<'_>, Verdicts) = own.unzip();
        self.buckets.undo(&own, &then, &mut Verdicts::new()).await?;
        self.ask(hits, &shares, verdicts, Verb::Peek).await
    }

    /// Settles with those that still have a share.
    pub(super) async fn settle(
        &self,
        reservation: ReservationId,
        due: &[Due<'_>],
        ttl: Micros,
    ) -> Result<Vec<u64>, StoreError> {
        let share = |due: &Due<'_>| due.hit.limit.share_of(self.rank());
        let shares: SmallVec<[Option<Limit>; 4]> = due.iter().map(share).collect();
        let with_share = due.iter().zip(&shares).filter_map(|(due, share)| Some((due, share.as_ref()?)));
        let own: Vec<Due<'_>> = with_share
            .map(|(due, limit)| Due { hit: under(limit, &due.hit), difference: due.difference })
            .collect();
        let moved =
            if own.is_empty() { Vec::new() } else { self.buckets.settle(reservation, &own, ttl).await? };
        let mut moved = moved.into_iter();
        Ok(shares.iter().map(|share| share.as_ref().and_then(|_| moved.next()).unwrap_or(0)).collect())
    }

    pub(super) async fn reset(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        self.ask(hits, &self.limits(hits), verdicts, Verb::Reset).await
    }

    /// Gives back what enforcing hits of a request took that another refused.
    pub(super) async fn put_back(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) {
        if hits.is_empty() || hits.iter().zip(verdicts.iter()).any(is_refused) {
            return; // one of them refused, so none was charged
        }
        let taken = |hit: &Hit<'_>| hit.enforcement == Enforcement::Enforce;
        let charged = hits.iter().zip(verdicts.iter()).filter(|(hit, _)| taken(hit));
        let (charged, then): (Hits<'_>, Verdicts) =
            charged.map(|(hit, verdict)| (hit.clone(), *verdict)).unzip();
        if self.undo(&charged, &then, &mut Verdicts::new()).await.is_ok() {
            for (hit, verdict) in hits.iter().zip(verdicts).filter(|(hit, _)| taken(hit)) {
                *verdict = put_back(*verdict, hit);
            }
        }
    }

    pub(super) async fn inspect(&self, hit: &Hit<'_>) -> Result<Option<State>, StoreError> {
        match hit.limit.share_of(self.rank()) {
            Some(limit) => self.buckets.inspect(&under(&limit, hit)).await,
            None => Ok(None),
        }
    }

    fn limits(&self, hits: &[Hit<'_>]) -> SmallVec<[Option<Limit>; 4]> {
        hits.iter().map(|hit| hit.limit.share_of(self.rank())).collect()
    }

    /// Asks the buckets of those that have a share, and refuses the others until the fleet changes.
    async fn ask(
        &self,
        hits: &[Hit<'_>],
        shares: &[Option<Limit>],
        verdicts: &mut Verdicts,
        verb: Verb,
    ) -> Result<Timestamp, StoreError> {
        let with_share = hits.iter().zip(shares);
        let own: Hits<'_> =
            with_share.filter_map(|(hit, share)| share.as_ref().map(|limit| under(limit, hit))).collect();
        let mut said = Verdicts::new();
        let at = match verb {
            Verb::Charge => self.buckets.charge(&own, &mut said).await?,
            Verb::Peek => self.buckets.peek(&own, &mut said).await?,
            Verb::Refund => self.buckets.refund(&own, &mut said).await?,
            Verb::Reset => self.buckets.reset(&own, &mut said).await?,
        };
        let mut said = said.into_iter();
        verdicts.extend(hits.iter().zip(shares).map(|(hit, share)| {
            let nothing = || Verdict::closed(hit.limit.capacity(), HEARTBEAT);
            share.as_ref().and_then(|_| said.next()).unwrap_or_else(nothing)
        }));
        Ok(at)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Charge,
    Peek,
    Refund,
    Reset,
}

/// A hit under this node's share of its limit.
fn under<'h>(limit: &'h Limit, hit: &'h Hit<'_>) -> Hit<'h> {
    Hit { key: hit.key.borrowed(), limit, demand: hit.demand, enforcement: hit.enforcement }
}

fn is_refused((hit, verdict): (&Hit<'_>, &Verdict)) -> bool {
    hit.enforcement == Enforcement::Enforce && !verdict.allowed
}

#[expect(clippy::cast_possible_truncation, reason = "each half has 32 bits")]
const fn halves(both: u64) -> [u32; 2] {
    [both as u32, (both >> 32) as u32]
}
