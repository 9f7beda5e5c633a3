//! What happens to a request while the store is unavailable: the only place that decides it.
//!
//! Each rule has its policy. `open` admits the request and reports an unused limit. `closed` admits nothing: the answer
//! is 503, never 429. `local` counts against this node's share of the limit, in buckets of this process. A request that
//! matches several rules passes when all of them admit it; if one refuses, nothing is charged to the others.
//!
//! Where only a part of the store is unavailable, as when a Cluster has lost a shard, only the rows of that part fall
//! back.

use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use tollgate_core::rule::FailurePolicy;
use tollgate_core::{Decision, Limit, Micros, Outcome, RuleIndex, StoreError, Verdict};

use crate::shares::Shares;
use crate::store::{Bounds, Call, Store};

/// The `retry_after` of a rule that fails closed.
const CLOSED_RETRY_AFTER: Micros = Micros::new(1_000_000);
const POLICIES: [FailurePolicy; 3] = [FailurePolicy::Open, FailurePolicy::Closed, FailurePolicy::Local];
const REASONS: [&str; 4] = StoreError::REASONS;

/// Answers for rows that the store lost.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) nodes: NonZeroU32,
    /// How much the shares may take.
    pub(crate) bounds: Bounds,
    /// The shares of a store that does not count nodes; made when first needed.
    shares: OnceLock<Shares>,
    counts: [[AtomicU64; REASONS.len()]; POLICIES.len()],
}

/// How often one policy decided for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DegradedCount {
    /// What decided instead of the store.
    pub policy: FailurePolicy,
    /// Why the store did not.
    pub reason: &'static str,
    /// How often.
    pub decisions: u64,
}

impl Failure {
    pub(crate) fn new(nodes: NonZeroU32, bounds: Bounds) -> Self {
        Failure { nodes, bounds, shares: OnceLock::new(), counts: Default::default() }
    }

    /// Gives every lost row the answer of its rule's policy: open and closed first, shares last, which charge nothing if
    /// the request is refused already.
    #[inline]
    pub(crate) fn apply<S: Store>(&self, store: &S, call: &mut Call<'_>) {
        if call.tiers.iter().any(|tier| matches!(tier.outcome, Outcome::Lost(_))) {
            self.answer_lost(store, call);
        }
    }

    #[cold]
    fn answer_lost<S: Store>(&self, store: &S, call: &mut Call<'_>) {
        let mut local: SmallVec<[(RuleIndex, StoreError); 4]> = SmallVec::new();
        for tier in call.tiers.iter_mut() {
            let Outcome::Lost(error) = tier.outcome else { continue };
            let rule = call.rules.rule(tier.rule);
            let capacity = rule.limit().map_or(0, Limit::capacity);
            let instead = |policy, verdict| Outcome::Instead { policy, verdict, error };
            tier.outcome = match rule.without_store() {
                FailurePolicy::Open => instead(FailurePolicy::Open, Verdict::open(capacity)),
                FailurePolicy::Closed => {
                    instead(FailurePolicy::Closed, Verdict::closed(capacity, CLOSED_RETRY_AFTER))
                }
                FailurePolicy::Local => {
                    local.push((tier.rule, error));
                    Outcome::Pending
                }
            };
        }
        if local.is_empty() {
            return;
        }
        let new = || Shares::new(store.clock().clone(), self.nodes, self.bounds);
        let shares = store.shares().unwrap_or_else(|| self.shares.get_or_init(new));
        // What a policy admits is not settled.
        let reservation = call.reservation.take();
        shares.run(call, |tier| local.iter().any(|(rule, _)| *rule == tier.rule));
        call.reservation = reservation;
        for (rule, error) in local {
            let Some(tier) = call.tiers.iter_mut().find(|tier| tier.rule == rule) else { continue };
            if let Some(verdict) = tier.answer().copied() {
                tier.outcome = Outcome::Instead { policy: FailurePolicy::Local, verdict, error };
            }
        }
    }

    /// Counts a decision that was made without the store.
    #[inline]
    pub(crate) fn count(&self, decision: &Decision) {
        let Some(degraded) = decision.degraded() else { return };
        let policy = POLICIES.iter().position(|policy| *policy == degraded.policy);
        let reason = REASONS.iter().position(|reason| *reason == degraded.reason);
        if let (Some(policy), Some(reason)) = (policy, reason) {
            self.counts[policy][reason].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn counts(&self) -> Vec<DegradedCount> {
        let of = |policy: usize, reason: usize| DegradedCount {
            policy: POLICIES[policy],
            reason: REASONS[reason],
            decisions: self.counts[policy][reason].load(Ordering::Relaxed),
        };
        (0..POLICIES.len())
            .flat_map(|policy| (0..REASONS.len()).map(move |reason| of(policy, reason)))
            .collect()
    }
}

#[cfg(test)]
mod tests;
