//! Operations at Redis on keys that are leased here: what Redis has to know before them, and the table after them.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_core::lease::{Parting, ROUNDS, is_lent};
use tollgate_core::{KeyHash, Micros, Op, Outcome, Rule, StoreError};

use super::table::Row;
use super::take::Look;
use super::{Shared, is_local};
use crate::reserve::ReservationId;
use crate::store::{About, Call, Deadline, Due, NoteName, Store as _};

impl Shared {
    /// Before an undo Redis has to know what was spent, and before a reset what is held is returned. A row for which that
    /// fails is lost, and nothing was done to it.
    pub(super) async fn report(self: &Arc<Self>, call: &mut Call<'_>) {
        for at in 0..call.tiers.len() {
            let Some(row) = Row::of(call, &call.tiers[at]).filter(|_| call.tiers[at].is_pending()) else {
                continue;
            };
            let deadline = self.deadline(call);
            let reported = match call.op {
                Op::Reset => self.return_lease(&row, deadline).await,
                _ => self.report_spent(&row, deadline).await,
            };
            if let Err(error) = reported {
                call.tiers[at].outcome = Outcome::Lost(error.unsent());
            }
        }
    }

    /// The pending rows whose keys may be in the table.
    pub(super) fn pending(&self, call: &Call<'_>) -> SmallVec<[usize; 4]> {
        let is_leased =
            |at: &usize| call.tiers[*at].is_pending() && Row::of(call, &call.tiers[*at]).is_some();
        (0..call.tiers.len()).filter(is_leased).collect()
    }

    /// Redis has answered for a row: caches a refusal, adds to a peek what is held here, and drops the cached refusal after
    /// any other operation.
    pub(super) fn answered_by_redis(&self, call: &mut Call<'_>, at: usize) {
        let Some(Row { hash, limit, demand, .. }) = Row::of(call, &call.tiers[at]) else { return };
        let outcome = &mut call.tiers[at].outcome;
        match (call.op, outcome) {
            (Op::Charge, Outcome::Decided(verdict)) if !verdict.allowed => {
                self.table.change(hash, limit, |entry| entry.purse.refused(demand, *verdict, self.now()));
            }
            (Op::Peek, Outcome::Decided(verdict)) if is_lent(limit) => {
                let tokens = self.table.held(hash, limit, self.now()).map_or(0, |held| held.tokens);
                if tokens > 0 {
                    *verdict = verdict.resolved(Some(limit)).given_back(tokens, None);
                    if demand.cost <= verdict.remaining {
                        (verdict.allowed, verdict.retry_after) = (true, Some(Micros::ZERO));
                    }
                }
            }
            (Op::Refund | Op::Reset | Op::Undo, _) => self.drop_refusal(hash),
            (Op::Charge | Op::Peek, _) => {}
        }
    }

    fn drop_refusal(&self, hash: KeyHash) {
        if let Some(entry) = self.table.shard(hash).get_mut(&hash) {
            entry.purse.forget_refusal();
        }
    }

    /// Reports to Redis what was spent of the lease of a row's key.
    async fn report_spent(self: &Arc<Self>, row: &Row<'_>, deadline: Instant) -> Result<(), StoreError> {
        for _ in 0..ROUNDS {
            match self.unreported(row) {
                Some(Look::Wait(over)) => self.wait_for(over, deadline).await?,
                Some(Look::Call(outgoing)) => return self.call(outgoing, deadline).await,
                _ => break,
            }
        }
        Ok(())
    }

    /// The next step until Redis knows what was spent; `None` where nothing is borrowed.
    fn unreported(&self, row: &Row<'_>) -> Option<Look> {
        let unreported = self.table.change(row.hash, row.limit, |entry| {
            (entry.purse.is_hot() && is_lent(row.limit)).then(|| match entry.purse.is_calling() {
                true => Look::Wait(Arc::clone(&entry.call_over).notified_owned()),
                false => Look::Call(entry.call(row, 0, self, self.now())),
            })
        });
        unreported.flatten()
    }

    async fn return_lease(self: &Arc<Self>, row: &Row<'_>, deadline: Instant) -> Result<(), StoreError> {
        let held = self
            .table
            .shard(row.hash)
            .get_mut(&row.hash)
            .and_then(|entry| entry.return_lease(row.hash, self, Parting::Final));
        match held {
            Some(outgoing) => self.call(outgoing, deadline).await,
            None => Ok(()),
        }
    }

    /// Settles each bucket where it is, after reporting what this node has spent.
    pub(super) async fn settle(
        self: &Arc<Self>,
        reservation: ReservationId,
        due: &[Due<'_>],
        ttl: Micros,
    ) -> Result<Vec<u64>, StoreError> {
        let deadline = Deadline::default().within(self.redis.timeout());
        for row in due.iter().filter_map(Row::of_due) {
            self.report_spent(&row, deadline).await?;
        }
        let mut moved = vec![0; due.len()];
        let (local, remote): (Vec<usize>, Vec<usize>) =
            (0..due.len()).partition(|at| is_local(due[*at].rule));
        let at_redis: Vec<Due<'_>> = remote.iter().map(|at| due[*at]).collect();
        let settled = self.redis.settle(reservation, &at_redis, ttl).await?;
        remote.into_iter().zip(settled).for_each(|(at, tokens)| moved[at] = tokens);
        if !local.is_empty() {
            self.settle_shares(reservation, due, &local, ttl, &mut moved).await?;
        }
        due.iter().filter_map(Row::of_due).for_each(|row| self.drop_refusal(row.hash));
        Ok(moved)
    }

    /// Settles this node's shares, unless another node has settled its own: a reservation is settled once.
    async fn settle_shares(
        &self,
        reservation: ReservationId,
        due: &[Due<'_>],
        local: &[usize],
        ttl: Micros,
        moved: &mut [u64],
    ) -> Result<(), StoreError> {
        let (name, node) = (NoteName { reservation, about: About::Receipt }, self.node.0.to_le_bytes());
        let first = self.redis.keep(name, &node, ttl).await?;
        if first.is_some_and(|first| first != node) {
            local.iter().for_each(|at| moved[*at] = due[*at].cost);
            return Ok(());
        }
        let rank = self.shares.rank();
        let rules: Vec<(usize, Rule)> = local
            .iter()
            .map(|at| (*at, due[*at].rule.divided(rank)))
            .filter(|(_, rule)| rule.limit().is_some())
            .collect();
        let shares: Vec<Due<'_>> = rules.iter().map(|(at, rule)| Due { rule, ..due[*at] }).collect();
        if !shares.is_empty() {
            let settled = self.shares.buckets().settle(reservation, &shares, ttl).await?;
            rules.iter().zip(settled).for_each(|((at, _), tokens)| moved[*at] = tokens);
        }
        Ok(())
    }
}
