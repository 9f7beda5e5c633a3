//! Operations at Redis on keys that are leased here, and what they change in the table.

use smallvec::SmallVec;
use tollgate_core::{KeyHash, Micros, Op, Outcome, Rule, StoreError};

use super::table::Row;
use super::{Shared, is_local};
use crate::reserve::ReservationId;
use crate::store::{About, Call, Due, NoteName, Store as _};

impl Shared {
    /// The pending rows whose keys may be in the table.
    pub(super) fn pending(&self, call: &Call<'_>) -> SmallVec<[usize; 4]> {
        let is_leased =
            |at: &usize| call.tiers[*at].is_pending() && Row::of(call, &call.tiers[*at]).is_some();
        (0..call.tiers.len()).filter(is_leased).collect()
    }

    /// Redis has answered for a row: caches a refusal, adds to a peek what is held here, and drops the cached refusal after
    /// any other operation.
    pub(super) fn answered_by_redis(&self, call: &mut Call<'_>, at: usize) {
        let Some(Row { hash, limit, cost, .. }) = Row::of(call, &call.tiers[at]) else { return };
        let outcome = &mut call.tiers[at].outcome;
        match (call.op, outcome) {
            (Op::Charge, Outcome::Decided(verdict)) if verdict.allowed => {
                self.table.change(hash, limit, |entry| entry.bucket.admitted(self.now()));
            }
            (Op::Charge, Outcome::Decided(verdict)) => {
                self.table.change(hash, limit, |entry| entry.bucket.refused(cost, *verdict, self.now()));
            }
            (Op::Peek, Outcome::Decided(verdict)) => {
                let tokens = self.table.held(hash, limit, self.now()).map_or(0, |held| held.tokens);
                if tokens > 0 {
                    *verdict = verdict.resolved(Some(limit)).given_back(tokens, None);
                    if cost <= verdict.remaining {
                        (verdict.allowed, verdict.retry_after) = (true, Some(Micros::ZERO));
                    }
                }
            }
            // The failure policy answers from now on, not a refusal of before.
            (Op::Charge, Outcome::Lost(_)) | (Op::Refund | Op::Reset | Op::Undo, _) => {
                self.drop_refusal(hash)
            }
            (Op::Charge | Op::Peek, _) => {}
        }
    }

    fn drop_refusal(&self, hash: KeyHash) {
        if let Some(entry) = self.table.shard(hash).get_mut(&hash) {
            entry.bucket.forget_refusal();
        }
    }

    /// Settles each bucket where it is.
    pub(super) async fn settle(
        &self,
        reservation: ReservationId,
        due: &[Due<'_>],
        ttl: Micros,
    ) -> Result<Vec<u64>, StoreError> {
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
        let (name, node) = (NoteName { reservation, about: About::Receipt }, self.node.to_le_bytes());
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
