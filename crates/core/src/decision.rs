//! The answer to a request: every tier's verdict, and the one that speaks.

use std::cmp::Reverse;

use smallvec::SmallVec;

use crate::rule::{FailurePolicy, InvalidCost};
use crate::ruleset::{Enforcement, Limited, RuleIndex, RuleSet};
use crate::time::Micros;
use crate::verdict::Verdict;

/// The verdicts of the hits of one request, in their order; the usual handful lives inline.
pub type Verdicts = SmallVec<[Verdict; 4]>;

/// The answer to one request.
///
/// Of several limits one speaks: of those that refuse the one with the longest wait, otherwise the one with
/// the least left. Its numbers are the decision's numbers. Where no limit applies nobody speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    outcome: Outcome,
    tiers: SmallVec<[Tier; 4]>,
    speaker: Option<usize>,
    delay: Micros,
    degraded: Option<Degraded>,
    invalid: Option<Box<InvalidCost>>,
}

/// Which way a request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It may pass.
    Allowed,
    /// A limit is used up.
    Refused,
    /// A rule blocks it outright.
    Denied,
    /// Nobody knows: the store was away, and a rule lets nothing pass then.
    Unavailable,
    /// It is invalid: the attribute that has its cost is not a cost ([`Decision::invalid_cost`]). No limit decided, and
    /// nothing was charged.
    Invalid,
}

impl Outcome {
    /// One word, for records and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::Allowed => "allowed",
            Outcome::Refused => "refused",
            Outcome::Denied => "denied",
            Outcome::Unavailable => "unavailable",
            Outcome::Invalid => "invalid",
        }
    }
}

/// That a decision was made without the store, why and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Degraded {
    /// Why, in a word of the store.
    pub reason: &'static str,
    /// What decided instead; of several rules the strictest.
    pub policy: FailurePolicy,
}

/// One rule's part in a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tier {
    /// The rule.
    pub rule: RuleIndex,
    /// What its bucket said.
    pub verdict: Verdict,
    /// Whether that counted.
    pub enforcement: Enforcement,
    /// What answered instead of the store, where it was unavailable. The numbers of `Open` are those of an unused bucket.
    pub instead: Option<FailurePolicy>,
}

/// What the store did not answer.
#[derive(Debug, Clone, Copy)]
pub struct Loss<'l> {
    /// Why not.
    pub reason: &'static str,
    /// Whether each hit is one of those.
    pub lost: &'l [bool],
}

impl Decision {
    /// The decision of a `deny` rule.
    pub fn denied(rule: RuleIndex) -> Self {
        Self::blocked(Outcome::Denied, rule)
    }

    /// The answer to a request whose cost under a rule is invalid.
    #[cold]
    pub fn invalid(rule: RuleIndex, error: Box<InvalidCost>) -> Self {
        Decision { invalid: Some(error), ..Self::blocked(Outcome::Invalid, rule) }
    }

    /// One rule lets nothing pass, whatever was counted.
    fn blocked(outcome: Outcome, rule: RuleIndex) -> Self {
        let tier = Tier { rule, verdict: Verdict::DENIED, enforcement: Enforcement::Enforce, instead: None };
        Decision {
            outcome,
            tiers: SmallVec::from_iter([tier]),
            speaker: Some(0),
            delay: Micros::ZERO,
            degraded: None,
            invalid: None,
        }
    }

    /// The decision where no limit applies.
    pub fn unlimited() -> Self {
        Decision {
            outcome: Outcome::Allowed,
            tiers: SmallVec::new(),
            speaker: None,
            delay: Micros::ZERO,
            degraded: None,
            invalid: None,
        }
    }

    /// The decision of the buckets.
    #[inline]
    pub fn strictest(rules: &RuleSet, limited: &Limited<'_>, verdicts: &[Verdict]) -> Self {
        Self::of(rules, limited, verdicts, None)
    }

    /// The decision without the store, or a part of it: where a hit is lost, its rule's policy has answered instead.
    #[cold]
    pub fn without_store(
        rules: &RuleSet,
        limited: &Limited<'_>,
        verdicts: &[Verdict],
        loss: Loss<'_>,
    ) -> Self {
        Self::of(rules, limited, verdicts, Some(loss))
    }

    #[inline]
    fn of(rules: &RuleSet, limited: &Limited<'_>, verdicts: &[Verdict], loss: Option<Loss<'_>>) -> Self {
        let hits = limited.rules.iter().zip(&limited.hits).zip(verdicts);
        let lost = |place| loss.is_some_and(|loss| loss.lost.get(place) == Some(&true));
        let mut tiers: SmallVec<[Tier; 4]> = hits
            .enumerate()
            .map(|(place, ((rule, hit), verdict))| Tier {
                rule: *rule,
                verdict: *verdict,
                enforcement: hit.enforcement,
                instead: lost(place).then(|| rules.rule(*rule).without_store()),
            })
            .collect();
        if !limited.shadow_denials.is_empty() {
            let denial = |rule: &RuleIndex| Tier {
                rule: *rule,
                verdict: Verdict::DENIED,
                enforcement: Enforcement::Shadow,
                instead: None,
            };
            tiers.extend(limited.shadow_denials.iter().map(denial));
            tiers.sort_by_key(|tier| tier.rule);
        }
        let closed = loss.is_some() && strictest_policy(&tiers) == FailurePolicy::Closed;
        let speaker =
            if closed { speaker(rules, &tiers, Tier::closes) } else { speaker(rules, &tiers, Tier::speaks) };
        let refused = speaker.is_some_and(|speaker| !tiers[speaker].verdict.allowed);
        let degraded = loss.map(|loss| Degraded { reason: loss.reason, policy: strictest_policy(&tiers) });
        let outcome = match degraded {
            Some(Degraded { policy: FailurePolicy::Closed, .. }) => Outcome::Unavailable,
            _ if refused => Outcome::Refused,
            _ => Outcome::Allowed,
        };
        let delay = if outcome == Outcome::Allowed { longest_delay(&tiers) } else { Micros::ZERO };
        Decision { outcome, tiers, speaker, delay, degraded, invalid: None }
    }

    /// Whether the request may pass.
    pub fn allowed(&self) -> bool {
        self.outcome == Outcome::Allowed
    }

    /// Which way it went.
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Whether it was made without the store, and how.
    pub const fn degraded(&self) -> Option<Degraded> {
        self.degraded
    }

    /// Why the request is invalid, where it is ([`Outcome::Invalid`]).
    pub fn invalid_cost(&self) -> Option<&InvalidCost> {
        self.invalid.as_deref()
    }

    /// Every rule that had a say, in the order of the set.
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// The tier whose numbers are the decision's.
    #[inline]
    pub fn speaker(&self) -> Option<&Tier> {
        self.speaker.map(|speaker| &self.tiers[speaker])
    }

    /// The speaking limit's capacity.
    pub fn limit(&self) -> Option<u64> {
        self.speaker().map(|tier| tier.verdict.limit)
    }

    /// What the speaking limit would still admit.
    pub fn remaining(&self) -> Option<u64> {
        self.speaker().map(|tier| tier.verdict.remaining)
    }

    /// The wait after which the same request would pass; zero when it passed, `None` when no wait helps.
    pub fn retry_after(&self) -> Option<Micros> {
        self.speaker().map_or(Some(Micros::ZERO), |tier| tier.verdict.retry_after)
    }

    /// The wait until the speaking limit is as good as new.
    pub fn reset_after(&self) -> Micros {
        self.speaker().map_or(Micros::ZERO, |tier| tier.verdict.reset_after)
    }

    /// How long the request must be held: the longest of all its limits.
    pub const fn delay(&self) -> Micros {
        self.delay
    }
}

fn longest_delay(tiers: &[Tier]) -> Micros {
    let speaking = tiers.iter().filter(|tier| tier.speaks());
    speaking.map(|tier| tier.verdict.delay).max().unwrap_or(Micros::ZERO)
}

impl Tier {
    /// Whether its numbers mean something to the caller.
    #[inline]
    pub fn speaks(&self) -> bool {
        self.enforcement == Enforcement::Enforce
    }

    /// Whether it lets nothing pass because the store is away.
    fn closes(&self) -> bool {
        self.enforcement == Enforcement::Enforce && self.instead == Some(FailurePolicy::Closed)
    }
}

/// Closed beats local beats open. Rules on trial close nothing.
fn strictest_policy(tiers: &[Tier]) -> FailurePolicy {
    let strictness = |policy: &FailurePolicy| match policy {
        FailurePolicy::Open => 0,
        FailurePolicy::Local => 1,
        FailurePolicy::Closed => 2,
    };
    let enforcing = tiers.iter().filter(|tier| tier.enforcement == Enforcement::Enforce);
    enforcing.filter_map(|tier| tier.instead).max_by_key(strictness).unwrap_or(FailurePolicy::Open)
}

/// Refused: the longest wait, then the name. Allowed: least remaining, then longest reset, then the name.
#[inline]
fn speaker(rules: &RuleSet, tiers: &[Tier], may_speak: fn(&Tier) -> bool) -> Option<usize> {
    if let [Tier { enforcement: Enforcement::Enforce, .. }] = tiers {
        return Some(0);
    }
    let label = |tier: &Tier| rules.rule(tier.rule).label();
    let enforcing = || tiers.iter().enumerate().filter(|(_, tier)| may_speak(tier));
    let refusing = enforcing().filter(|(_, tier)| !tier.verdict.allowed);
    let loudest = refusing.min_by(|(_, a), (_, b)| {
        let wait = |tier: &Tier| Reverse(tier.verdict.retry_after.unwrap_or(Micros::MAX));
        wait(a).cmp(&wait(b)).then_with(|| label(a).cmp(label(b)))
    });
    let tightest = || {
        enforcing().min_by(|(_, a), (_, b)| {
            let left = |tier: &Tier| (tier.verdict.remaining, Reverse(tier.verdict.reset_after));
            left(a).cmp(&left(b)).then_with(|| label(a).cmp(label(b)))
        })
    };
    loudest.or_else(tightest).map(|(place, _)| place)
}
