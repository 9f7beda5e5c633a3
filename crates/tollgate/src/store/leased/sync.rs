//! Operations at Redis on keys that are leased here, and what they change in the table.

use smallvec::SmallVec;
use tollgate_core::{KeyHash, Micros, Op, Outcome};

use super::Shared;
use super::table::Row;
use crate::reserve::{ReservationId, SettleError, Settled};
use crate::store::{Call, Store as _};

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
            (Op::Charge, Outcome::Lost(_)) | (Op::Refund | Op::Reset, _) => self.drop_refusal(hash),
            (Op::Charge | Op::Peek, _) => {}
        }
    }

    fn drop_refusal(&self, hash: KeyHash) {
        if let Some(entry) = self.table.shard(hash).get_mut(&hash) {
            entry.bucket.forget_refusal();
        }
    }

    /// Settles a reservation at Redis, and what it was charged of this node's shares. Those of another node stay charged.
    pub(super) async fn settle(&self, id: ReservationId, actual: u64) -> Result<Settled, SettleError> {
        match self.redis.settle(id, actual).await {
            Ok(settled) => {
                // Also if it was settled before: the answer to that may have been lost.
                let shares = self.shares.buckets().settle(id, settled.actual).await;
                Ok(settled.with_unpaid(settled.unpaid.max(shares.map_or(0, |shares| shares.unpaid))))
            }
            Err(SettleError::Gone) => self.shares.buckets().settle(id, actual).await,
            Err(error) => Err(error),
        }
    }
}
