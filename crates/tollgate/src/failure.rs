//! What happens to a request when the store cannot be asked: the one place where that is decided.
//!
//! Each rule says it for itself. `open` lets the request pass and knows no numbers. `closed` lets nothing pass: the
//! answer is not a refusal but that nobody knows (503, never 429). `local` counts against this node's share of the
//! limit, in buckets of this process that nobody else sees. A request that meets several rules passes when all of them
//! let it; if one is closed, nothing is charged to the others.

use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use tollgate_core::rule::{Consistency, FailurePolicy};
use tollgate_core::{
    Decision, Descriptor, Enforcement, Hit, Limit, Limited, Micros, Rule, RuleSet, Verdict, Verdicts,
};

use crate::limiter::Verb;
use crate::store::{Bounds, MemoryStore, Store, StoreError};

/// When to ask again whether a closed rule's store is back.
const ASK_AGAIN: Micros = Micros::new(1_000_000);
const POLICIES: [FailurePolicy; 3] = [FailurePolicy::Open, FailurePolicy::Closed, FailurePolicy::Local];
const REASONS: [&str; 4] = ["timeout", "unreachable", "overloaded", "rejected"];

/// Decides without the store.
#[derive(Debug)]
pub(crate) struct Failure {
    nodes: NonZeroU32,
    /// The shares; made when the first is needed.
    local: OnceLock<MemoryStore>,
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
    pub(crate) fn new(nodes: NonZeroU32) -> Self {
        Failure { nodes, local: OnceLock::new(), counts: Default::default() }
    }

    /// Every rule's policy speaks.
    #[cold]
    pub(crate) async fn decide(
        &self,
        store: &impl Store,
        rules: &RuleSet,
        request: &Descriptor<'_>,
        limited: &Limited<'_>,
        verb: Verb,
        error: &StoreError,
    ) -> Decision {
        let policies: SmallVec<[FailurePolicy; 4]> =
            limited.rules.iter().map(|rule| policy(rules.rule(*rule))).collect();
        let closes = |(hit, policy): (&Hit<'_>, &FailurePolicy)| {
            hit.enforcement == Enforcement::Enforce && *policy == FailurePolicy::Closed
        };
        let closed = limited.hits.iter().zip(&policies).any(closes);
        // What a closed rule refuses is charged to nobody's share.
        let verb = if closed { Verb::Peek } else { verb };
        let mut shares = self.shares(store, rules, request, limited, verb).await.into_iter();
        let verdict = |(hit, policy): (&Hit<'_>, &FailurePolicy)| match policy {
            FailurePolicy::Open => Verdict::open(hit.limit.capacity()),
            FailurePolicy::Closed => Verdict::closed(hit.limit.capacity(), ASK_AGAIN),
            FailurePolicy::Local => shares.next().expect("a verdict on every share"),
        };
        let verdicts: Verdicts = limited.hits.iter().zip(&policies).map(verdict).collect();
        let decision = Decision::without_store(rules, limited, &verdicts, error.reason());
        self.count(&decision);
        if verb == Verb::Check && decision.allowed() {
            store.owe(&limited.hits); // to be charged when the store is back
        }
        decision
    }

    /// The verdicts on the hits whose rules fall back to this node's share, in their order.
    async fn shares(
        &self,
        asked: &impl Store,
        rules: &RuleSet,
        request: &Descriptor<'_>,
        limited: &Limited<'_>,
        verb: Verb,
    ) -> Verdicts {
        let local = || {
            let hits = limited.rules.iter().map(|rule| rules.rule(*rule)).zip(&limited.hits);
            hits.filter(|(rule, _)| policy(rule) == FailurePolicy::Local)
        };
        // By the last known fleet, if that is larger than what was configured.
        let nodes = asked.rank().map_or(self.nodes, |rank| rank.nodes.max(self.nodes));
        let limits: SmallVec<[Limit; 4]> = local().map(|(_, hit)| hit.limit.share(nodes)).collect();
        let share = |((rule, hit), limit)| {
            let Hit { demand, enforcement, .. }: &Hit<'_> = hit;
            let rule: &Rule = rule;
            Hit { key: rule.key(request), limit, demand: *demand, enforcement: *enforcement }
        };
        let hits: SmallVec<[Hit<'_>; 4]> = local().zip(&limits).map(share).collect();
        let mut verdicts = Verdicts::new();
        if !hits.is_empty() {
            let clock = || asked.clock().clone();
            let store = self.local.get_or_init(|| MemoryStore::with(clock(), Bounds::default()));
            let asked = match verb {
                Verb::Check => store.charge(&hits, &mut verdicts).await,
                Verb::Peek => store.peek(&hits, &mut verdicts).await,
                Verb::Refund => store.refund(&hits, &mut verdicts).await,
            };
            asked.expect("a store in memory always answers");
        }
        verdicts
    }

    fn count(&self, decision: &Decision) {
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

/// What a rule says. One that counts against a share anyway does so whether or not the store is there.
fn policy(rule: &Rule) -> FailurePolicy {
    match rule.consistency() {
        Consistency::Local => FailurePolicy::Local,
        _ => rule.on_store_failure(),
    }
}

#[cfg(test)]
mod tests;
