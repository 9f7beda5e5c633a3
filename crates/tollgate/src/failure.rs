//! What happens to a request when the store cannot be asked: the one place where that is decided.
//!
//! Each rule says it for itself. `open` lets the request pass and reports an unused limit. `closed` lets nothing pass: the
//! answer is not a refusal but that nobody knows (503, never 429). `local` counts against this node's share of the
//! limit, in buckets of this process that nobody else sees. A request that meets several rules passes when all of them
//! let it; if one is closed, nothing is charged to the others.
//!
//! Where only a part of the store is away, as when a Cluster has lost a shard, only the rules whose buckets live there
//! fall back; the others are decided where their buckets are, and all of them have to let the request pass.

use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use tollgate_core::rule::FailurePolicy;
use tollgate_core::{
    Decision, Descriptor, Enforcement, Hit, Limit, Limited, Loss, Micros, Rule, RuleSet, Verdict, Verdicts,
};

use crate::limiter::Verb;
use crate::store::{Bounds, MemoryStore, Store, StoreError};

/// So often the rest of a store is asked: each time without what was missed before.
const TRIES: usize = 2;
/// When to ask again whether a closed rule's store is back.
const ASK_AGAIN: Micros = Micros::new(1_000_000);
const POLICIES: [FailurePolicy; 3] = [FailurePolicy::Open, FailurePolicy::Closed, FailurePolicy::Local];
const REASONS: [&str; 4] = StoreError::REASONS;

/// Decides without the store.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) nodes: NonZeroU32,
    /// How much the shares may take.
    pub(crate) bounds: Bounds,
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
    pub(crate) fn new(nodes: NonZeroU32, bounds: Bounds) -> Self {
        Failure { nodes, bounds, local: OnceLock::new(), counts: Default::default() }
    }

    /// Every rule's policy speaks. Where a part of the store is left, that decides for what lives there.
    #[cold]
    pub(crate) async fn decide<S: Store>(
        &self,
        store: &S,
        rules: &RuleSet,
        request: &Descriptor<'_>,
        limited: &Limited<'_>,
        verb: Verb,
        error: &StoreError,
    ) -> Decision {
        let policy = |place: usize| rules.rule(limited.rules[place]).without_store();
        let enforces = |place: usize| limited.hits[place].enforcement == Enforcement::Enforce;
        let mut error = error.clone();
        let mut in_doubt = error.is_in_doubt();
        let mut lost = lost(&error, limited.hits.len());
        let closed = |lost: &[bool]| {
            (0..lost.len()).any(|at| lost[at] && enforces(at) && policy(at) == FailurePolicy::Closed)
        };
        // What a closed rule refuses is charged to nobody, neither there nor to a share.
        let if_open = |lost: &[bool], verb| if closed(lost) { Verb::Peek } else { verb };
        let (mut said, mut rest) = (decided(&error).to_vec(), Rest::default());
        for tries in 1..=TRIES {
            match Rest::ask(store, limited, &lost, &said, if_open(&lost, verb)).await {
                Ok(left) => {
                    rest = left;
                    break;
                }
                Err(missed) => {
                    in_doubt |= missed.is_in_doubt();
                    said.extend_from_slice(decided(&missed));
                    // Asked on and on, a caller would wait for ever.
                    let too = if tries < TRIES { self::lost(&missed, lost.len()) } else { all(lost.len()) };
                    lost.iter_mut().zip(too).for_each(|(lost, too)| *lost |= too);
                    error = missed;
                }
            }
        }
        let verb = if rest.passes() { if_open(&lost, verb) } else { Verb::Peek };
        let shares = self.shares(store, rules, request, (limited, &lost), verb).await;
        let refuses = |(place, verdict): (usize, &Verdict)| enforces(place) && !verdict.allowed;
        let local = (0..lost.len()).filter(|at| lost[*at] && policy(*at) == FailurePolicy::Local);
        if local.zip(&shares).any(refuses) && verb == Verb::Check {
            rest.undo(store).await;
        }
        let (mut shares, mut rest) = (shares.into_iter(), rest.verdicts.into_iter());
        let verdict = |place: usize| match policy(place) {
            _ if !lost[place] => rest.next().expect("a verdict on what is not lost"),
            FailurePolicy::Open => Verdict::open(limited.hits[place].limit.capacity()),
            FailurePolicy::Closed => Verdict::closed(limited.hits[place].limit.capacity(), ASK_AGAIN),
            FailurePolicy::Local => shares.next().expect("a verdict on every share"),
        };
        let verdicts: Verdicts = (0..lost.len()).map(verdict).collect();
        let loss = Loss { reason: error.reason(), lost: &lost };
        let decision = Decision::without_store(rules, limited, &verdicts, loss);
        self.count(&decision);
        // What may have been charged is not charged again.
        if verb == Verb::Check && decision.allowed() && !in_doubt {
            let admitted = limited.hits.iter().zip(&lost).filter(|(_, lost)| **lost);
            let admitted: SmallVec<[Hit<'_>; 4]> = admitted.map(|(hit, _)| hit.clone()).collect();
            store.owe(&admitted); // to be charged when the store is back
        }
        decision
    }

    /// The verdicts on the hits whose rules fall back to this node's share, in their order.
    async fn shares(
        &self,
        asked: &impl Store,
        rules: &RuleSet,
        request: &Descriptor<'_>,
        (limited, lost): (&Limited<'_>, &[bool]),
        verb: Verb,
    ) -> Verdicts {
        let local = || {
            let hits = limited.rules.iter().map(|rule| rules.rule(*rule)).zip(&limited.hits).zip(lost);
            let hits = hits.filter_map(|(hit, lost)| lost.then_some(hit));
            hits.filter(|(rule, _)| rule.without_store() == FailurePolicy::Local)
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
            let store = self.local.get_or_init(|| MemoryStore::with(clock(), self.bounds));
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

/// Which of so many hits had no answer.
fn lost(error: &StoreError, hits: usize) -> SmallVec<[bool; 4]> {
    match error {
        StoreError::Part { lost, .. } => (0..hits).map(|place| lost.contains(&place)).collect(),
        _ => all(hits),
    }
}

fn all(hits: usize) -> SmallVec<[bool; 4]> {
    SmallVec::from_elem(true, hits)
}

/// The hits on trial that were decided before a part was missed, and what was said to them.
fn decided(error: &StoreError) -> &[(usize, Verdict)] {
    match error {
        StoreError::Part { decided, .. } => decided,
        _ => &[],
    }
}

/// What of a request lives in the part of the store that is left.
#[derive(Debug, Default)]
struct Rest<'h> {
    hits: SmallVec<[Hit<'h>; 4]>,
    verdicts: Verdicts,
}

impl<'h> Rest<'h> {
    /// What the store says to it, or has said. Where nothing is left to ask, nobody is asked.
    async fn ask<S: Store>(
        store: &S,
        limited: &Limited<'h>,
        lost: &[bool],
        decided: &[(usize, Verdict)],
        verb: Verb,
    ) -> Result<Self, StoreError> {
        let said = |at: usize| decided.iter().find(|(place, _)| *place == at).map(|(_, verdict)| *verdict);
        let left: SmallVec<[usize; 4]> = (0..lost.len()).filter(|at| !lost[*at]).collect();
        let unsaid = left.iter().filter(|at| said(**at).is_none());
        let asked: SmallVec<[usize; 4]> = unsaid.copied().collect();
        let hits: SmallVec<[Hit<'h>; 4]> = asked.iter().map(|at| limited.hits[*at].clone()).collect();
        let mut verdicts = Verdicts::new();
        if !hits.is_empty() {
            let answer = match verb {
                Verb::Check => store.charge(&hits, &mut verdicts).await,
                Verb::Peek => store.peek(&hits, &mut verdicts).await,
                Verb::Refund => store.refund(&hits, &mut verdicts).await,
            };
            answer.map_err(|error| error.at(&asked, lost.len()))?;
        }
        let mut verdicts = verdicts.into_iter();
        let verdict = |at: &usize| said(*at).or_else(|| verdicts.next());
        let verdicts = left.iter().filter_map(verdict).collect();
        Ok(Rest { hits: left.iter().map(|at| limited.hits[*at].clone()).collect(), verdicts })
    }

    fn passes(&self) -> bool {
        let mut both = self.hits.iter().zip(&self.verdicts);
        both.all(|(hit, verdict)| hit.enforcement == Enforcement::Shadow || verdict.allowed)
    }

    /// A share refuses what the store let pass. If this fails, the charge stays; the store counts that.
    async fn undo<S: Store>(&self, store: &S) {
        let both = self.hits.iter().zip(&self.verdicts);
        let enforcing = both.filter(|(hit, _)| hit.enforcement == Enforcement::Enforce);
        let (hits, charged): (SmallVec<[Hit<'_>; 4]>, Verdicts) =
            enforcing.map(|(hit, verdict)| (hit.clone(), *verdict)).unzip();
        if !hits.is_empty() {
            let _ = store.undo(&hits, &charged, &mut Verdicts::new()).await;
        }
    }
}

#[cfg(test)]
mod tests;
