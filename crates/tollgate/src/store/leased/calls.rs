//! Lease calls. Each runs in a task of its own, so that a dropped decision does not cancel it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, timeout_at};
use tollgate_core::algorithm::Demand;
use tollgate_core::lease::{self, Purse, Step};
use tollgate_core::{KeyHash, Mark, Outcome, StoreError, Timestamp};

use super::Shared;
use super::table::{Outgoing, Row};
use super::take::Answer;
use crate::store::Deadline;

impl Shared {
    /// Sends a call and waits until its answer is in the table.
    pub(super) async fn call(
        self: &Arc<Self>,
        outgoing: Outgoing,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let call = tokio::spawn(Arc::clone(self).send_by(outgoing, deadline));
        call.await.unwrap_or(Err(StoreError::Unreachable))
    }

    /// Waits until a call of another decision is over.
    pub(super) async fn wait_for(&self, over: OwnedNotified, deadline: Instant) -> Result<(), StoreError> {
        timeout_at(deadline, over).await.map_err(|_| StoreError::Timeout.unsent())
    }

    /// Charges a block of places in the queue of a leaky bucket, of which the first are the row's; `None` when there is no
    /// room for a block.
    pub(super) async fn call_for_places(
        self: &Arc<Self>,
        outgoing: Outgoing,
        row: &Row<'_>,
        deadline: Instant,
    ) -> Result<Option<Answer>, StoreError> {
        let block = Arc::clone(self).charge_block(outgoing, row.demand, deadline);
        let step = tokio::spawn(block).await.unwrap_or(Err(StoreError::Unreachable))?;
        Ok(match step {
            Some(Step::Pass(taken, verdict)) => Some(self.taken(row, taken, verdict, Mark::default())),
            Some(Step::Refuse(verdict)) => Some((Outcome::Decided(verdict), Mark::default())),
            Some(Step::Call | Step::Wait | Step::Exact) | None => None,
        })
    }

    async fn charge_block(
        self: Arc<Self>,
        Outgoing { hash, place, call }: Outgoing,
        Demand { max_wait, .. }: Demand,
        deadline: Instant,
    ) -> Result<Option<Step>, StoreError> {
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        let demand = Demand { cost: call.want, max_wait };
        let answer = self.redis.charge_place(&place, demand, deadline).await;
        let step = self.call_over(hash, &call, &answer, |purse, verdict, now| {
            purse.placed(&call, max_wait, verdict, now)
        });
        answer.map(|_| step.flatten())
    }

    /// Sends a call that no decision waits for. A failure is counted, and the next request calls again.
    pub(super) fn send_in_background(self: &Arc<Self>, outgoing: Outgoing) {
        drop(tokio::spawn(Arc::clone(self).send(outgoing)));
    }

    /// Sends a call with a deadline of its own.
    pub(super) async fn send(self: Arc<Self>, outgoing: Outgoing) -> Result<(), StoreError> {
        let deadline = Deadline::default().within(self.redis.timeout());
        self.send_by(outgoing, deadline).await
    }

    async fn send_by(
        self: Arc<Self>,
        Outgoing { hash, place, call }: Outgoing,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        let answer = self.redis.lease(&place, &call, deadline).await;
        self.call_over(hash, &call, &answer, |purse, lent, now| match lent {
            Some(lent) => purse.lent(&call, lent.loan, &lent.verdict, lent.mark, now),
            None => purse.gave_up(&call, now),
        });
        answer.map(drop)
    }

    /// Enters the answer to a call into the table and wakes the decisions that wait for it.
    fn call_over<T, U>(
        &self,
        hash: KeyHash,
        call: &lease::Call,
        answer: &Result<T, StoreError>,
        enter: impl FnOnce(&mut Purse, &T, Timestamp) -> U,
    ) -> Option<U> {
        let mut shard = self.table.shard(hash);
        let entry = shard.get_mut(&hash)?;
        let now = self.now();
        let entered = match answer {
            Ok(answer) => Some(enter(&mut entry.purse, answer, now)),
            Err(_) => {
                self.counters.failed_calls.fetch_add(1, Ordering::Relaxed);
                entry.purse.gave_up(call, now);
                None
            }
        };
        entry.call_over.notify_waiters();
        entered
    }
}
