//! Takes the cost of rows from leases. Rows that no lease covers stay pending: Redis decides them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate_core::lease::Step;
use tollgate_core::{Holder, Limit, Outcome, Tier};

use super::table::{Entry, Row};
use super::{Shared, is_local};
use crate::store::Call;

impl Shared {
    /// Takes the cost of pending rows from leases, and asks for leases of keys that are hot. No row waits for that.
    ///
    /// Once an enforcing row refuses, nothing is taken for further enforcing rows.
    pub(super) fn take(self: &Arc<Self>, call: &mut Call<'_>) {
        if self.is_closed() {
            return;
        }
        for at in 0..call.tiers.len() {
            let Some(row) = next_row(call, at) else {
                self.answer_refused(call, at);
                continue;
            };
            let mut shard = self.table.shard(row.hash);
            let Some(entry) = Entry::of(&mut shard, &row, self) else { continue };
            // Read under the lock: a thread that was suspended before it must not spend a lease that has ended since.
            let now = self.now();
            let step = entry.bucket.ask(row.cost, now);
            let (outcome, is_reported) = (entry.outcome(step, now), entry.bucket.is_leased());
            let due = entry.call(&row, self, now);
            drop(shard);
            if let Some(due) = due {
                self.send_in_background(due);
            }
            match outcome {
                Some(outcome) => self.answer(call, at, outcome),
                None => {
                    self.counters.exact.fetch_add(1, Ordering::Relaxed);
                    call.tiers[at].is_reported = is_reported;
                }
            }
        }
    }

    /// The same, if leases answer for every row that is not local. `false` means that nothing was taken.
    #[inline]
    pub(super) fn take_now(self: &Arc<Self>, call: &mut Call<'_>) -> bool {
        if self.is_closed() {
            return false;
        }
        let rules = call.rules;
        for at in 0..call.tiers.len() {
            let Some(row) = next_row(call, at) else {
                self.answer_refused(call, at);
                continue;
            };
            let mut shard = self.table.shard(row.hash);
            let Some(entry) = shard.get_mut(&row.hash).filter(|entry| entry.is_under(row.limit)) else {
                break;
            };
            let now = self.now();
            let Some(step) = entry.bucket.ask_now(row.cost, now) else { break };
            let outcome = entry.outcome(step, now);
            let due = entry.call(&row, self, now);
            drop(shard);
            if let Some(due) = due {
                self.send_in_background(due);
            }
            if let Some(outcome) = outcome {
                self.answer(call, at, outcome);
            }
        }
        let is_left = |tier: &Tier| tier.is_pending() && !is_local(rules.rule(tier.rule));
        let is_taken = !call.tiers.iter().any(is_left);
        if !is_taken {
            for tier in call.tiers.iter_mut().filter(|tier| !tier.is_pending()) {
                let limit = rules.rule(tier.rule).limit();
                self.decided(tier, limit, false);
                if let Some(limit) = limit.filter(|_| matches!(tier.outcome, Outcome::Held { .. })) {
                    self.table.change(tier.hash, limit, |entry| entry.bucket.uncount(tier.cost));
                    self.counters.local.fetch_sub(1, Ordering::Relaxed);
                }
                tier.outcome = Outcome::Pending;
            }
        }
        is_taken
    }

    /// A row of a request that another row refuses: its numbers are read from the lease, if there is one.
    fn answer_refused(&self, call: &mut Call<'_>, at: usize) {
        let tier = &call.tiers[at];
        let Some(row) = Row::of(call, tier).filter(|_| tier.is_pending()) else { return };
        let verdict = self.table.change(row.hash, row.limit, |entry| {
            let now = self.now();
            entry.bucket.is_leased().then(|| entry.bucket.peek(row.cost, now))
        });
        if let Some(verdict) = verdict.flatten() {
            call.tiers[at].outcome = Outcome::Decided(verdict);
        }
    }

    /// The request of a row whose cost a lease holds is decided: the tokens are spent, or back in the lease.
    pub(super) fn decided(&self, tier: &Tier, limit: Option<&Limit>, is_kept: bool) {
        if let Outcome::Held { holder: Holder::Lease(epoch), .. } = tier.outcome
            && let Some(limit) = limit
        {
            let now = self.now();
            let finished = self.table.change(tier.hash, limit, |entry| {
                let ticket = entry.bucket.ticket(tier.cost, epoch);
                entry.bucket.finish(ticket, is_kept, now);
            });
            if finished.is_none() && !is_kept {
                self.count_stranded(tier.cost);
            }
        }
    }

    /// Gives a row its outcome. The only row of a call is final: no other can refuse the request.
    #[inline]
    fn answer(&self, call: &mut Call<'_>, at: usize, outcome: Outcome) {
        let is_only = call.tiers.len() == 1;
        let tier = &mut call.tiers[at];
        tier.outcome = outcome;
        let counter = match outcome {
            Outcome::Held { if_passed, .. } => {
                if is_only {
                    self.decided(tier, call.rules.rule(tier.rule).limit(), true);
                    tier.outcome = Outcome::Decided(if_passed);
                }
                &self.counters.local
            }
            _ => &self.counters.remembered,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Entry {
    /// The outcome of a row, if it was decided here.
    #[inline]
    fn outcome(&self, step: Step, now: tollgate_core::Timestamp) -> Option<Outcome> {
        match step {
            Step::Pass(ticket) => {
                let holder = Holder::Lease(ticket.epoch());
                Some(Outcome::Held { if_passed: self.bucket.verdict(now), holder })
            }
            Step::Refuse(verdict) => Some(Outcome::Decided(verdict)),
            Step::Store => None,
        }
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
