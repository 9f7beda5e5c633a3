//! The limiter: rules and a store, and the whole flow of a decision.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use tollgate_core::rule::Mismatch;
use tollgate_core::{Decision, Descriptor, Micros, RuleIndex, RuleSet, Ruling, Timestamp, Verdicts};

use crate::audit::Violations;
use crate::clock::Clock;
use crate::plans::Plans;
use crate::store::{AnyStore, Store, StoreError};

/// Decides requests by rules.
///
/// ```
/// use tollgate::{Descriptor, Limiter, MemoryStore, rules};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rules = rules::parse("rules.yaml", r#"
/// rules:
///   - { name: per-user, key: "user:{user_id}", limit: 10/s burst 2 }
/// "#)?;
/// let limiter = Limiter::new(rules, MemoryStore::new());
///
/// let request = Descriptor::new().with("user_id", "42");
/// assert!(limiter.check(&request, 1).await?.allowed());
/// assert!(limiter.check(&request, 1).await?.allowed());
/// let refused = limiter.check(&request, 1).await?;
/// assert!(!refused.allowed());
/// assert_eq!(refused.rule(), Some("per-user"));
/// assert!(refused.retry_after().is_some_and(|wait| wait.get() <= 100_000));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Limiter<S = AnyStore> {
    rules: ArcSwap<RuleSet>,
    store: S,
    violations: Option<Violations>,
    plans: Option<Plans>,
}

/// A decision together with the rules that made it.
#[derive(Debug)]
pub struct Answer {
    decision: Decision,
    rules: Snapshot,
    at: Timestamp,
    plan: Option<Arc<str>>,
}

/// One rule set, held for as long as somebody needs it; taking it counts nothing and waits for nobody.
pub struct Snapshot(Guard<Arc<RuleSet>>);

/// How a rule met a request, for [`Limiter::explain`].
#[derive(Debug)]
pub struct Explanation<'r> {
    /// The rule.
    pub rule: RuleIndex,
    /// Why it does not apply, unless it does.
    pub mismatch: Option<Mismatch<'r>>,
    /// Another rule that stands in for it, where that is why it does not apply.
    pub replaced: bool,
}

/// What is done to the buckets of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Check,
    Peek,
    Refund,
}

impl<S: Store> Limiter<S> {
    /// A limiter over a store, on the store's clock.
    pub fn new(rules: impl Into<Arc<RuleSet>>, store: S) -> Self {
        Limiter { rules: ArcSwap::new(rules.into()), store, violations: None, plans: None }
    }

    /// The same limiter, with every refused check added to `violations`.
    #[must_use]
    pub fn with_violations(self, violations: Violations) -> Self {
        Limiter { violations: Some(violations), ..self }
    }

    /// The same limiter, with the plan of a user looked up where a request does not name it.
    #[must_use]
    pub fn with_plans(self, plans: Plans) -> Self {
        Limiter { plans: Some(plans), ..self }
    }

    /// Decides one request and charges its cost if it may pass.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    #[inline]
    pub async fn check(&self, request: &Descriptor<'_>, cost: u64) -> Result<Answer, StoreError> {
        self.check_within(request, cost, Micros::MAX).await
    }

    /// As [`check`](Self::check), but a request that would be held for longer than `patience` is refused and
    /// charged nothing.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn check_within(
        &self,
        request: &Descriptor<'_>,
        cost: u64,
        patience: Micros,
    ) -> Result<Answer, StoreError> {
        let answer = self.decide(request, cost, patience, Verb::Check).await?;
        self.record(request, &answer);
        Ok(answer)
    }

    /// Answers what [`check`](Self::check) would, and charges nothing.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn peek(&self, request: &Descriptor<'_>, cost: u64) -> Result<Answer, StoreError> {
        self.decide(request, cost, Micros::MAX, Verb::Peek).await
    }

    /// Gives the cost of a request back to every limit that matches it.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn refund(&self, request: &Descriptor<'_>, cost: u64) -> Result<Answer, StoreError> {
        self.decide(request, cost, Micros::MAX, Verb::Refund).await
    }

    /// Forgets every bucket of a request, also where a rule denies or exempts it.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn reset(&self, request: &Descriptor<'_>) -> Result<Answer, StoreError> {
        let plan = self.plan(request).await;
        let named = plan.as_deref().map(|plan| on_plan(request, plan));
        let request = named.as_ref().unwrap_or(request);
        let (at, rules) = (self.clock().now(), self.rules());
        let limited = rules.limited(request, 1, Micros::MAX);
        let mut verdicts = Verdicts::new();
        self.store.reset(&limited.hits, &mut verdicts).await?;
        let decision = Decision::strictest(&rules, &limited, &verdicts);
        drop(limited);
        Ok(Answer { decision, rules, at, plan })
    }

    /// The whole flow: match, decide at the store, answer.
    #[inline]
    async fn decide(
        &self,
        request: &Descriptor<'_>,
        cost: u64,
        patience: Micros,
        verb: Verb,
    ) -> Result<Answer, StoreError> {
        let plan = self.plan(request).await;
        let named = plan.as_deref().map(|plan| on_plan(request, plan));
        let request = named.as_ref().unwrap_or(request);
        let at = self.clock().now();
        let rules = self.rules(); // one snapshot: a reload never splits a request
        let decision = match rules.ruling(request, cost, patience) {
            Ruling::Denied(rule) => Decision::denied(rule),
            Ruling::Exempt => Decision::unlimited(),
            Ruling::Limited(limited) => {
                let mut verdicts = Verdicts::new();
                match verb {
                    Verb::Check => self.store.charge(&limited.hits, &mut verdicts).await?,
                    Verb::Peek => self.store.peek(&limited.hits, &mut verdicts).await?,
                    Verb::Refund => self.store.refund(&limited.hits, &mut verdicts).await?,
                }
                Decision::strictest(&rules, &limited, &verdicts)
            }
        };
        Ok(Answer { decision, rules, at, plan })
    }

    /// The plan of a request that has a user and names no plan.
    #[inline]
    async fn plan(&self, request: &Descriptor<'_>) -> Option<Arc<str>> {
        match &self.plans {
            None => None,
            Some(plans) => plans.of(request).await,
        }
    }

    /// Puts a refusal on record.
    #[inline]
    fn record(&self, request: &Descriptor<'_>, answer: &Answer) {
        let Some(violations) = &self.violations else { return };
        match &answer.plan {
            _ if answer.allowed() => {}
            None => violations.note(request, answer),
            Some(plan) => violations.note(&on_plan(request, plan), answer),
        }
    }

    /// Waits until a request may pass, charges it and holds it for its delay; for background jobs and batches.
    ///
    /// Gives up, charging nothing, as soon as it is clear that the turn would come after `deadline`. Whoever
    /// drops this future while it waits for a leaky bucket's delay has spent the place in the queue.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn until_allowed(
        &self,
        request: &Descriptor<'_>,
        cost: u64,
        deadline: Timestamp,
    ) -> Result<Answer, StoreError> {
        loop {
            let left = Micros::new(
                u64::try_from(deadline.as_micros().saturating_sub(self.clock().now().as_micros()))
                    .unwrap_or(0),
            );
            // A refusal on the way is no violation: whoever waits its turn has done nothing wrong.
            let answer = self.decide(request, cost, left, Verb::Check).await?;
            if answer.allowed() {
                self.clock().sleep(answer.delay()).await;
                return Ok(answer);
            }
            match answer.retry_after() {
                Some(wait) if wait <= left => {
                    // Only the deadline stands in the way: the queue brings the turn no earlier by waiting outside.
                    if self.peek(request, cost).await?.allowed() {
                        self.record(request, &answer);
                        return Ok(answer);
                    }
                    self.clock().sleep(wait).await;
                }
                _ => {
                    self.record(request, &answer);
                    return Ok(answer);
                }
            }
        }
    }

    /// How every rule met a request, in the order of the set.
    pub fn explain<'r>(&self, rules: &'r RuleSet, request: &Descriptor<'_>) -> Vec<Explanation<'r>> {
        let matched = rules.matching(request);
        let explain = |(rule, candidate): (RuleIndex, &'r tollgate_core::Rule)| {
            let mismatch = candidate.applies_to(request).err();
            Explanation { rule, replaced: mismatch.is_none() && !matched.contains(&rule), mismatch }
        };
        (0..).zip(rules.rules()).map(explain).collect()
    }

    /// The rules as they are now.
    #[inline]
    pub fn rules(&self) -> Snapshot {
        Snapshot(self.rules.load())
    }

    /// Replaces the rules, between two requests, and returns those before. What was used stays used.
    pub fn set_rules(&self, rules: impl Into<Arc<RuleSet>>) -> Arc<RuleSet> {
        self.rules.swap(rules.into())
    }

    /// The store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        self.store.clock()
    }
}

impl Answer {
    /// The rules that made the decision.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// When the store was asked. Read just before, so that a window that ends on a whole second is not said to end
    /// in the next one.
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// The plan that was looked up, where the request named none.
    pub fn plan(&self) -> Option<&str> {
        self.plan.as_deref()
    }

    /// The rule that speaks, by its label.
    pub fn rule(&self) -> Option<&str> {
        self.decision.speaker().map(|tier| self.rules.rule(tier.rule).label())
    }
}

impl Deref for Answer {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.decision
    }
}

impl Deref for Snapshot {
    type Target = RuleSet;

    fn deref(&self) -> &RuleSet {
        &self.0
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A request with the plan that was looked up for it.
fn on_plan<'a>(request: &Descriptor<'a>, plan: &str) -> Descriptor<'a> {
    request.clone().with("plan", plan.to_owned())
}

#[cfg(test)]
mod tests;
