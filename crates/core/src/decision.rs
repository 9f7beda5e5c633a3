//! The answer to a request: every tier's verdict, and the one that speaks.

use std::cmp::Reverse;

use smallvec::SmallVec;

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
}

impl Decision {
    /// The decision of a `deny` rule.
    pub fn denied(rule: RuleIndex) -> Self {
        let tier = Tier { rule, verdict: Verdict::DENIED, enforcement: Enforcement::Enforce };
        Decision {
            outcome: Outcome::Denied,
            tiers: SmallVec::from_iter([tier]),
            speaker: Some(0),
            delay: Micros::ZERO,
        }
    }

    /// The decision where no limit applies.
    pub fn unlimited() -> Self {
        Decision { outcome: Outcome::Allowed, tiers: SmallVec::new(), speaker: None, delay: Micros::ZERO }
    }

    /// The decision of the buckets.
    #[inline]
    pub fn strictest(rules: &RuleSet, limited: &Limited<'_>, verdicts: &[Verdict]) -> Self {
        let hits = limited.rules.iter().zip(&limited.hits).zip(verdicts);
        let mut tiers: SmallVec<[Tier; 4]> = hits
            .map(|((rule, hit), verdict)| Tier {
                rule: *rule,
                verdict: *verdict,
                enforcement: hit.enforcement,
            })
            .collect();
        if !limited.shadow_denials.is_empty() {
            let denial = |rule: &RuleIndex| Tier {
                rule: *rule,
                verdict: Verdict::DENIED,
                enforcement: Enforcement::Shadow,
            };
            tiers.extend(limited.shadow_denials.iter().map(denial));
            tiers.sort_by_key(|tier| tier.rule);
        }
        let speaker = speaker(rules, &tiers);
        let refused = speaker.is_some_and(|speaker| !tiers[speaker].verdict.allowed);
        let outcome = if refused { Outcome::Refused } else { Outcome::Allowed };
        let delay = if refused { Micros::ZERO } else { longest_delay(&tiers) };
        Decision { outcome, tiers, speaker, delay }
    }

    /// Whether the request may pass.
    pub fn allowed(&self) -> bool {
        self.outcome == Outcome::Allowed
    }

    /// Which way it went.
    pub const fn outcome(&self) -> Outcome {
        self.outcome
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
    enforcing(tiers).map(|(_, tier)| tier.verdict.delay).max().unwrap_or(Micros::ZERO)
}

fn enforcing(tiers: &[Tier]) -> impl Iterator<Item = (usize, &Tier)> {
    tiers.iter().enumerate().filter(|(_, tier)| tier.enforcement == Enforcement::Enforce)
}

/// Refused: the longest wait, then the name. Allowed: least remaining, then longest reset, then the name.
#[inline]
fn speaker(rules: &RuleSet, tiers: &[Tier]) -> Option<usize> {
    if let [Tier { enforcement: Enforcement::Enforce, .. }] = tiers {
        return Some(0);
    }
    let label = |tier: &Tier| rules.rule(tier.rule).label();
    let refusing = enforcing(tiers).filter(|(_, tier)| !tier.verdict.allowed);
    let loudest = refusing.min_by(|(_, a), (_, b)| {
        let wait = |tier: &Tier| Reverse(tier.verdict.retry_after.unwrap_or(Micros::MAX));
        wait(a).cmp(&wait(b)).then_with(|| label(a).cmp(label(b)))
    });
    let tightest = || {
        enforcing(tiers).min_by(|(_, a), (_, b)| {
            let left = |tier: &Tier| (tier.verdict.remaining, Reverse(tier.verdict.reset_after));
            left(a).cmp(&left(b)).then_with(|| label(a).cmp(label(b)))
        })
    };
    loudest.or_else(tightest).map(|(place, _)| place)
}
