//! Leaky buckets: a hot key takes its places in the queue by the block.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;
use tollgate_core::Micros;
use tollgate_core::algorithm::Demand;
use tollgate_core::lease::Step;

use super::Shared;
use super::charge::Part;
use super::desk::Outgoing;
use crate::store::StoreError;

impl Shared {
    /// Charges a block of places, of which the first are for the request that waits; none when there is no room for it.
    /// In a task of its own: whoever gives up the request does not give up the block.
    pub(super) async fn call_for_places(
        self: &Arc<Self>,
        outgoing: Outgoing,
        patience: Micros,
        deadline: Instant,
    ) -> Result<Option<Part>, StoreError> {
        let block = Arc::clone(self).take_block(outgoing, patience, deadline);
        tokio::spawn(block).await.unwrap_or(Err(StoreError::Unreachable))
    }

    async fn take_block(
        self: Arc<Self>,
        outgoing: Outgoing,
        patience: Micros,
        deadline: Instant,
    ) -> Result<Option<Part>, StoreError> {
        let Outgoing { hash, place, call } = outgoing;
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        let demand = Demand { cost: call.want, patience };
        let answer = self.redis.charge_place(&place, demand, deadline).await;
        let step = self
            .over(hash, &call, &answer, |purse, verdict, now| purse.placed(&call, patience, verdict, now));
        answer?;
        Ok(match step.flatten() {
            Some(Step::Pass(taken, verdict)) => Some(self.counted(Part::Taken { hash, taken, verdict })),
            Some(Step::Refuse(verdict)) => Some(self.counted(Part::Refused(verdict))),
            Some(Step::Call | Step::Wait | Step::Exact) | None => None,
        })
    }
}
