//! What is not decided here: peeks, refunds, undoing, resets and settlements go to Redis, and to this node's shares.

use std::sync::Arc;

use tollgate_core::lease::{Parting, ROUNDS, is_lent};
use tollgate_core::rule::Consistency;
use tollgate_core::{Hit, Hits, Micros, Timestamp, Verdict, Verdicts};

use super::charge::{Next, is_over, of, places};
use super::desk::KeyHash;
use super::{Shared, is_exact, is_local, temper};
use crate::reserve::ReservationId;
use crate::store::{About, Due, NoteName, Store as _, StoreError};

impl Shared {
    /// What Redis says, and what is held here.
    pub(super) async fn peek(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        let at = self.elsewhere(hits, verdicts, Elsewhere::Peek).await?;
        let now = self.now();
        let first = verdicts.len() - hits.len();
        for (hit, verdict) in hits.iter().zip(&mut verdicts[first..]) {
            let held = if is_exact(hit) { None } else { self.desks.held(hit, now) };
            let tokens = held.filter(|_| is_lent(hit.limit)).map_or(0, |held| held.tokens);
            verdict.remaining = verdict.remaining.saturating_add(tokens).min(verdict.limit);
            if tokens > 0 && hit.demand.cost <= verdict.remaining {
                (verdict.allowed, verdict.retry_after) = (true, Some(Micros::ZERO));
            }
        }
        Ok(at)
    }

    /// To Redis; what was refused may pass now.
    pub(super) async fn refund(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        let at = self.elsewhere(hits, verdicts, Elsewhere::Refund).await?;
        self.forget_refusals(hits);
        Ok(at)
    }

    /// The same for charges that are known. What this node has spent it tells first: else it is not in Redis' books.
    pub(super) async fn undo(
        self: &Arc<Self>,
        hits: &[Hit<'_>],
        charged: &[Verdict],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        self.tell(hits).await?;
        let such = |local: bool| -> (Hits<'_>, Verdicts) {
            let such = hits.iter().zip(charged).filter(|(hit, _)| is_local(hit) == local);
            such.map(|(hit, verdict)| (hit.clone(), *verdict)).unzip()
        };
        let ((shares, here_then), (others, there_then)) = (such(true), such(false));
        let (mut here, mut there) = (Verdicts::new(), Verdicts::new());
        let at = self.redis.undo(&others, &there_then, &mut there).await?;
        self.shares.undo(&shares, &here_then, &mut here).await?;
        self.forget_refusals(hits);
        let (mut here, mut there) = (here.into_iter(), there.into_iter());
        verdicts.extend(hits.iter().filter_map(|hit| if is_local(hit) { here.next() } else { there.next() }));
        Ok(at)
    }

    /// Each bucket where it is, with what this node has spent told first.
    pub(super) async fn settle(
        self: &Arc<Self>,
        reservation: ReservationId,
        due: &[Due<'_>],
        ttl: Micros,
    ) -> Result<Vec<u64>, StoreError> {
        let (local, others): (Vec<_>, Vec<_>) = due.iter().cloned().partition(|due| is_local(&due.hit));
        let hits: Hits<'_> = others.iter().map(|due| due.hit.clone()).collect();
        self.tell(&hits).await?;
        let mut there = self.redis.settle(reservation, &others, ttl).await?.into_iter();
        let mut here = self.settle_shares(reservation, &local, ttl).await?.into_iter();
        self.forget_refusals(&hits);
        let in_order =
            due.iter().filter_map(|due| if is_local(&due.hit) { here.next() } else { there.next() });
        Ok(in_order.collect())
    }

    /// This node's shares, if no other node has settled its own: a fleet does it once.
    async fn settle_shares(
        &self,
        reservation: ReservationId,
        due: &[Due<'_>],
        ttl: Micros,
    ) -> Result<Vec<u64>, StoreError> {
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let (name, mine) = (NoteName { reservation, about: About::Receipt }, self.node.0.to_le_bytes());
        match self.redis.keep(name, &mine, ttl).await? {
            Some(first) if first != mine => Ok(due.iter().map(|due| due.hit.demand.cost).collect()),
            _ => self.shares.settle(reservation, due, ttl).await,
        }
    }

    /// Tells Redis what was spent of these hits' leases.
    async fn tell(self: &Arc<Self>, hits: &[Hit<'_>]) -> Result<(), StoreError> {
        let deadline = self.redis.deadline();
        for hit in hits.iter().filter(|hit| temper(hit).is_some() && is_lent(hit.limit)) {
            let hash = self.desks.hash(&hit.key);
            for _ in 0..ROUNDS {
                match self.untold(hash, hit) {
                    Some(Next::Wait(over)) => is_over(over, deadline).await?,
                    Some(Next::Call(outgoing)) => {
                        self.call(outgoing, deadline).await?;
                        break;
                    }
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// What has to be done before Redis knows what was spent; nothing where nothing is borrowed.
    fn untold(&self, hash: KeyHash, hit: &Hit<'_>) -> Option<Next> {
        let mut shard = self.desks.shard(hash);
        let desk = shard.get_mut(&hash).filter(|desk| desk.is_under(hit) && desk.purse.is_hot())?;
        if desk.purse.is_calling() {
            return Some(Next::Wait(Arc::clone(&desk.over).notified_owned()));
        }
        Some(Next::Call(desk.tell(hash, hit, self)))
    }

    pub(super) async fn reset(
        self: &Arc<Self>,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        for hit in hits.iter().filter(|hit| temper(hit).is_some()) {
            let hash = self.desks.hash(&hit.key);
            let held = self
                .desks
                .shard(hash)
                .get_mut(&hash)
                .and_then(|desk| desk.farewell(hash, self, Parting::Final));
            if let Some(outgoing) = held {
                self.call(outgoing, self.redis.deadline()).await?;
            }
        }
        let at = self.elsewhere(hits, verdicts, Elsewhere::Reset).await?;
        self.forget_refusals(hits);
        Ok(at)
    }

    fn forget_refusals(&self, hits: &[Hit<'_>]) {
        for hit in hits.iter().filter(|hit| temper(hit).is_some()) {
            let hash = self.desks.hash(&hit.key);
            if let Some(desk) = self.desks.shard(hash).get_mut(&hash) {
                desk.purse.forget_refusal();
            }
        }
    }

    /// Shares in memory, everything else in Redis; the verdicts in the order of the hits.
    async fn elsewhere(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
        what: Elsewhere,
    ) -> Result<Timestamp, StoreError> {
        if !hits.iter().any(is_local) {
            return self.at_redis(hits, verdicts, what).await;
        }
        let local: Hits<'_> = of(hits, Consistency::Local);
        let places = places(hits, |hit| !is_local(hit));
        let others: Hits<'_> = places.iter().map(|place| hits[*place].clone()).collect();
        let (mut here, mut there) = (Verdicts::new(), Verdicts::new());
        let at = self.at_redis(&others, &mut there, what).await;
        let at = at.map_err(|error| error.at(&places, hits.len()))?;
        match what {
            Elsewhere::Peek => self.shares.peek(&local, &mut here).await?,
            Elsewhere::Refund => self.shares.refund(&local, &mut here).await?,
            Elsewhere::Reset => self.shares.reset(&local, &mut here).await?,
        };
        let (mut here, mut there) = (here.into_iter(), there.into_iter());
        verdicts.extend(hits.iter().filter_map(|hit| if is_local(hit) { here.next() } else { there.next() }));
        Ok(at)
    }

    async fn at_redis(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
        what: Elsewhere,
    ) -> Result<Timestamp, StoreError> {
        match what {
            Elsewhere::Peek => self.redis.peek(hits, verdicts).await,
            Elsewhere::Refund => self.redis.refund(hits, verdicts).await,
            Elsewhere::Reset => self.redis.reset(hits, verdicts).await,
        }
    }
}

/// What is not decided on leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Elsewhere {
    Peek,
    Refund,
    Reset,
}
