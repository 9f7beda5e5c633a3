//! The answer to a request: every tier's verdict, and the binding limit.

use std::cmp::Reverse;

use crate::rule::{FailurePolicy, InvalidCost};
use crate::ruleset::{RuleIndex, RuleSet, Ruling};
use crate::tier::{Enforcement, KeyHash, Outcome, Tier, Tiers, Verdict};
use crate::time::Micros;

/// The answer to one request.
///
/// One limit is binding: of those that refuse the one with the longest wait, otherwise the one with the least remaining.
/// Its numbers are the decision's numbers. Where no limit applies there is no binding limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    tiers: Tiers,
    status: Status,
    binding: Option<usize>,
    delay: Micros,
    degraded: Option<Degraded>,
    invalid: Option<Box<InvalidCost>>,
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// The request may pass.
    Allowed,
    /// A limit is used up.
    Refused,
    /// A rule blocks the request outright.
    Denied,
    /// The store was unavailable, and a rule fails closed.
    Unavailable,
    /// The request is invalid: the attribute that has its cost is not a cost ([`Decision::invalid_cost`]). No limit
    /// decided, and nothing was charged.
    Invalid,
}

impl Status {
    /// One word, for records and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Allowed => "allowed",
            Status::Refused => "refused",
            Status::Denied => "denied",
            Status::Unavailable => "unavailable",
            Status::Invalid => "invalid",
        }
    }
}

/// A decision was made without the store: why and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Degraded {
    /// Why: one of [`StoreError::REASONS`](crate::StoreError::REASONS).
    pub reason: &'static str,
    /// What decided instead; of several rules the strictest.
    pub policy: FailurePolicy,
}

impl Decision {
    /// The decision where no limit applies, and the start of every other one.
    #[inline]
    pub fn unlimited() -> Self {
        Decision {
            tiers: Tiers::new(),
            status: Status::Allowed,
            binding: None,
            delay: Micros::ZERO,
            degraded: None,
            invalid: None,
        }
    }

    /// The decision of rows that all have an answer.
    pub fn new(rules: &RuleSet, tiers: Tiers) -> Self {
        let mut decision = Decision { tiers, ..Self::unlimited() };
        decision.conclude(rules);
        decision
    }

    /// The decision of a `deny` rule.
    pub fn denied(rule: RuleIndex) -> Self {
        let mut decision = Self::unlimited();
        decision.block(Status::Denied, rule);
        decision
    }

    /// The rows, to be matched and decided in place: a decision is too large to be moved more often than needed.
    #[inline]
    pub const fn rows(&mut self) -> &mut Tiers {
        &mut self.tiers
    }

    /// Becomes what the rules say about a request before any bucket is asked. Whether buckets have to be asked.
    #[inline]
    pub fn rule(&mut self, ruling: Ruling) -> bool {
        if !matches!(ruling, Ruling::Limited) {
            self.rule_without_buckets(ruling);
            return false;
        }
        !self.tiers.is_empty()
    }

    #[cold]
    fn rule_without_buckets(&mut self, ruling: Ruling) {
        match ruling {
            Ruling::Limited | Ruling::Exempt => self.tiers.clear(),
            Ruling::Denied(rule) => self.block(Status::Denied, rule),
            Ruling::Invalid(rule, error) => {
                self.block(Status::Invalid, rule);
                self.invalid = Some(error);
            }
        }
    }

    /// One rule admits nothing, whatever was counted.
    fn block(&mut self, status: Status, rule: RuleIndex) {
        let outcome = Outcome::Decided(Verdict::DENIED);
        self.tiers.clear();
        self.tiers.push(Tier { outcome, ..Tier::new(rule, Enforcement::Enforce, 0, KeyHash(0)) });
        (self.status, self.binding) = (status, Some(0));
    }

    /// Derives the decision from its rows, which all have an answer.
    #[inline]
    pub fn conclude(&mut self, rules: &RuleSet) {
        match &self.tiers[..] {
            // The most common request: one limit, answered by the store.
            [Tier { enforcement: Enforcement::Enforce, outcome: Outcome::Decided(verdict), .. }] => {
                self.status = if verdict.allowed { Status::Allowed } else { Status::Refused };
                self.delay = if verdict.allowed { verdict.delay } else { Micros::ZERO };
                self.binding = Some(0);
            }
            _ => self.conclude_several(rules),
        }
    }

    /// Picks the binding limit among several, and derives status, delay and degraded state from the rows.
    fn conclude_several(&mut self, rules: &RuleSet) {
        if self.tiers.iter().any(|tier| tier.instead().is_some()) {
            self.degraded = degraded(&self.tiers);
        }
        let closed = self.degraded.is_some_and(|degraded| degraded.policy == FailurePolicy::Closed);
        let closes = |tier: &Tier| tier.enforces() && tier.instead() == Some(FailurePolicy::Closed);
        self.binding = if closed {
            binding(rules, &self.tiers, closes)
        } else {
            binding(rules, &self.tiers, Tier::enforces)
        };
        let refused = self.binding_limit().is_some_and(|tier| !tier.verdict().allowed);
        self.status = match (closed, refused) {
            (true, _) => Status::Unavailable,
            (false, true) => Status::Refused,
            (false, false) => Status::Allowed,
        };
        if self.status == Status::Allowed {
            let enforcing = self.tiers.iter().filter(|tier| tier.enforces());
            self.delay = enforcing.map(|tier| tier.verdict().delay).max().unwrap_or(Micros::ZERO);
        }
    }

    /// Whether the request may pass.
    pub fn allowed(&self) -> bool {
        self.status == Status::Allowed
    }

    /// What was decided.
    pub const fn status(&self) -> Status {
        self.status
    }

    /// Whether it was made without the store, and how.
    pub const fn degraded(&self) -> Option<Degraded> {
        self.degraded
    }

    /// Why the request is invalid, where it is ([`Status::Invalid`]).
    pub fn invalid_cost(&self) -> Option<&InvalidCost> {
        self.invalid.as_deref()
    }

    /// Every rule that took part, in the order of the set.
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// The tier whose numbers are the decision's.
    #[inline]
    pub fn binding_limit(&self) -> Option<&Tier> {
        self.binding.map(|binding| &self.tiers[binding])
    }

    /// The binding limit's capacity.
    pub fn limit(&self) -> Option<u64> {
        self.binding_limit().map(|tier| tier.verdict().limit)
    }

    /// What the binding limit would still admit.
    pub fn remaining(&self) -> Option<u64> {
        self.binding_limit().map(|tier| tier.verdict().remaining)
    }

    /// The wait after which the same request would pass; zero when it passed, `None` when waiting does not help.
    pub fn retry_after(&self) -> Option<Micros> {
        self.binding_limit().map_or(Some(Micros::ZERO), |tier| tier.verdict().retry_after)
    }

    /// The wait until the binding limit's bucket equals a fresh one.
    pub fn reset_after(&self) -> Micros {
        self.binding_limit().map_or(Micros::ZERO, |tier| tier.verdict().reset_after)
    }

    /// How long the request must be held: the longest of all its limits.
    pub const fn delay(&self) -> Micros {
        self.delay
    }
}

/// The strictest policy that answered instead of the store: closed, then local, then open. A row in shadow mode closes
/// nothing.
#[cold]
fn degraded(tiers: &[Tier]) -> Option<Degraded> {
    let strictness = |policy: FailurePolicy| match policy {
        FailurePolicy::Open => 0,
        FailurePolicy::Local => 1,
        FailurePolicy::Closed => 2,
    };
    let mut degraded: Option<Degraded> = None;
    for tier in tiers {
        let Outcome::Instead { policy, error, .. } = tier.outcome else { continue };
        let policy = if tier.enforces() { policy } else { FailurePolicy::Open };
        let known = degraded.get_or_insert(Degraded { reason: error.reason(), policy });
        if strictness(policy) > strictness(known.policy) {
            known.policy = policy;
        }
    }
    degraded
}

/// Refused: the longest wait, then the name. Allowed: least remaining, then longest reset, then the name.
fn binding(rules: &RuleSet, tiers: &[Tier], is_eligible: impl Fn(&Tier) -> bool) -> Option<usize> {
    let label = |place: usize| rules.rule(tiers[place].rule).label();
    let mut binding: Option<((u64, Reverse<Micros>), usize)> = None;
    for (place, tier) in tiers.iter().enumerate().filter(|(_, tier)| is_eligible(tier)) {
        let verdict = tier.verdict();
        let rank = if verdict.allowed {
            (1 + verdict.remaining, Reverse(verdict.reset_after))
        } else {
            (0, Reverse(verdict.retry_after.unwrap_or(Micros::MAX)))
        };
        if binding.is_none_or(|(known, other)| rank < known || rank == known && label(place) < label(other)) {
            binding = Some((rank, place));
        }
    }
    binding.map(|(_, place)| place)
}
