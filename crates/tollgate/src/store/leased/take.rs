//! Takes the cost of rows from leases. Rows that no lease covers stay pending: Redis decides them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;
use tollgate_core::lease::{Purse, ROUNDS, Step, Taken, is_lent};
use tollgate_core::limit::Algorithm;
use tollgate_core::{Holder, Limit, Mark, Outcome, StoreError, Tier, Timestamp, Verdict};

use super::table::{Entry, Outgoing, Row};
use super::{Shared, is_local};
use crate::store::Call;

/// What one look at a lease finds.
pub(super) enum Look {
    Answer(Answer),
    /// Send this call, then look again.
    Call(Outgoing),
    /// Wait for the call under way, then look again.
    Wait(OwnedNotified),
    /// Redis decides.
    Exact,
}

/// A row's outcome: held by the lease, or refused because Redis has just refused the same. With the mark of what was
/// taken, if it may be settled later.
pub(super) type Answer = (Outcome, Mark);

impl Shared {
    /// Takes the cost of pending rows from leases, borrowing for keys that are hot.
    ///
    /// Once an enforcing row refuses, nothing is taken for further enforcing rows. Once a lease call has failed, no other
    /// is waited for: the deadline is that of the whole decision.
    pub(super) async fn take(self: &Arc<Self>, call: &mut Call<'_>) {
        if self.is_closed() {
            return;
        }
        let mut failed = false;
        for at in 0..call.tiers.len() {
            let Some(row) = next_row(call, at) else { continue };
            let answer = match failed {
                false => self.take_row(&row, call).await,
                true => Ok(self.look_now(&row)),
            };
            match answer {
                Ok(Some(answer)) => self.answer(call, at, answer),
                Ok(None) => _ = self.counters.exact.fetch_add(1, Ordering::Relaxed),
                Err(error) => {
                    failed = true;
                    call.tiers[at].outcome = Outcome::Lost(error);
                }
            }
        }
    }

    /// The same without waiting. `false` means that leases do not answer for every row that is not local, and that nothing
    /// was taken.
    pub(super) fn take_now(self: &Arc<Self>, call: &mut Call<'_>) -> bool {
        for at in 0..call.tiers.len() {
            let Some(row) = next_row(call, at) else { continue };
            let Some(answer) = self.look_now(&row) else { break };
            self.answer(call, at, answer);
        }
        let rules = call.rules;
        let taken = !call.tiers.iter().any(|tier| tier.is_pending() && !is_local(rules.rule(tier.rule)));
        if !taken {
            for tier in call.tiers.iter_mut() {
                self.put_back(tier, rules.rule(tier.rule).limit());
                tier.outcome = Outcome::Pending;
            }
        }
        taken
    }

    /// Puts the cost of a row back into the lease that holds it.
    pub(super) fn put_back(&self, tier: &Tier, limit: Option<&Limit>) {
        if let Outcome::Held { holder: Holder::Lease(ticket), .. } = tier.outcome
            && let Some(limit) = limit
        {
            let taken = Taken::new(tier.cost, ticket);
            self.table.change(tier.hash, limit, |entry| entry.purse.put_back(taken));
        }
    }

    /// Gives a row its outcome. The only row of a call is final: no other can refuse the request.
    #[inline]
    fn answer(&self, call: &mut Call<'_>, at: usize, (outcome, mark): Answer) {
        let is_only = call.tiers.len() == 1;
        let (counter, outcome) = match outcome {
            Outcome::Held { if_passed, .. } if is_only => (&self.counters.local, Outcome::Decided(if_passed)),
            Outcome::Held { .. } => (&self.counters.local, outcome),
            _ => (&self.counters.remembered, outcome),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let tier = &mut call.tiers[at];
        (tier.outcome, tier.mark) = (outcome, mark);
    }

    /// Takes the cost of one row, borrowing more if the key is hot; `None` when Redis decides.
    #[inline]
    async fn take_row(
        self: &Arc<Self>,
        row: &Row<'_>,
        call: &mut Call<'_>,
    ) -> Result<Option<Answer>, StoreError> {
        let mut asked = None;
        for _ in 0..ROUNDS {
            let look = self.look(row, |purse, now| purse.ask(row.demand, row.temper, &mut asked, now));
            let outgoing = match look {
                Look::Answer(answer) => return Ok(Some(answer)),
                Look::Exact => break,
                Look::Wait(over) => {
                    self.wait_for(over, self.deadline(call)).await?;
                    continue;
                }
                Look::Call(outgoing) => outgoing,
            };
            let deadline = self.deadline(call);
            if is_lent(row.limit) {
                self.call(outgoing, deadline).await?;
            } else {
                // Where there is too little room for a block, there may be enough for one request.
                return self.call_for_places(outgoing, row, deadline).await;
            }
        }
        Ok(None)
    }

    fn look_now(self: &Arc<Self>, row: &Row<'_>) -> Option<Answer> {
        match self.look(row, |purse, now| purse.ask_now(row.demand, row.temper, now)) {
            Look::Answer(answer) => Some(answer),
            Look::Call(_) | Look::Wait(_) | Look::Exact => None,
        }
    }

    /// One look at the lease of a row's key.
    #[inline]
    fn look(self: &Arc<Self>, row: &Row<'_>, ask: impl FnOnce(&mut Purse, Timestamp) -> Step) -> Look {
        let mut shard = self.table.shard(row.hash);
        let Some(entry) = Entry::of(&mut shard, row, self) else { return Look::Exact };
        // Read under the lock: a thread that was suspended before it must not spend a lease that has ended since.
        let now = self.now();
        match ask(&mut entry.purse, now) {
            Step::Call => Look::Call(entry.call(row, row.demand.cost, self, now)),
            Step::Wait => Look::Wait(Arc::clone(&entry.call_over).notified_owned()),
            Step::Exact => Look::Exact,
            Step::Refuse(verdict) => Look::Answer((Outcome::Decided(verdict), Mark::default())),
            Step::Pass(taken, verdict) => {
                let answer = self.taken(row, taken, verdict, entry.purse.mark());
                let renewal = entry.renewal(row, self, now);
                drop(shard);
                if let Some(renewal) = renewal {
                    self.send_in_background(renewal);
                }
                Look::Answer(answer)
            }
        }
    }

    /// The answer to a row whose cost was taken from a lease with this mark.
    #[inline]
    pub(super) fn taken(&self, row: &Row<'_>, taken: Taken, if_passed: Verdict, mark: Mark) -> Answer {
        let mark = match row.is_reservation {
            true => mark_of(row.limit, &if_passed, mark, self.redis.redis_time()),
            false => Mark::default(),
        };
        (Outcome::Held { if_passed, holder: Holder::Lease(taken.ticket()) }, mark)
    }

    /// When the decision has to be made.
    pub(super) fn deadline(&self, call: &mut Call<'_>) -> Instant {
        call.deadline.within(self.redis.timeout())
    }
}

/// The row at this place, if its cost is to be taken from a lease.
#[inline]
fn next_row<'a>(call: &Call<'a>, at: usize) -> Option<Row<'a>> {
    let tier = &call.tiers[at];
    if !tier.is_pending() || tier.enforces() && call.refuses() {
        return None;
    }
    Row::of(call, tier)
}

/// The mark of a charge on a lease, no later than the one that the store will give it: behind everything that was used when
/// it lent. An undo by this mark gives back no more than time has not given back.
fn mark_of(limit: &Limit, verdict: &Verdict, lent: Mark, now: Timestamp) -> Mark {
    match limit.algorithm() {
        Algorithm::LeakyBucket { .. } => Mark::at(now.after(verdict.delay)),
        Algorithm::SlidingWindowLog { .. } => Mark::since(now),
        // Ticks pay from the one before a charge.
        Algorithm::TokenBucketInterval(_) => lent,
        _ if lent.at > now => lent,
        _ => Mark::at(now),
    }
}
