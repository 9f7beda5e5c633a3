//! The limiter: rules and a store, and the whole flow of a decision.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use tollgate_core::algorithm::{Bucket, Demand, State};
use tollgate_core::rule::{Consistency, Mismatch};
use tollgate_core::{
    Decision, Descriptor, Enforcement, Hit, Limited, Micros, Outcome, RuleIndex, RuleSet, Ruling, Timestamp,
    Verdict, Verdicts,
};

use crate::audit::Violations;
use crate::clock::Clock;
use crate::failure::{DegradedCount, Failure};
use crate::meter::{StoreCalls, StoreMeter};
use crate::plans::Plans;
use crate::store::{AnyStore, Bounds, Store, StoreError, window};

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
/// assert!(limiter.check(&request, 1).await.allowed());
/// assert!(limiter.check(&request, 1).await.allowed());
/// let refused = limiter.check(&request, 1).await;
/// assert!(!refused.allowed());
/// assert_eq!(refused.rule(), Some("per-user"));
/// assert!(refused.retry_after().is_some_and(|wait| wait.get() <= 100_000));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Limiter<S = AnyStore> {
    rules: ArcSwap<RuleSet>,
    store: S,
    failure: Failure,
    meter: StoreMeter,
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

/// What one bucket of a request has, and would have once the request was charged, for [`Limiter::outlook`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    /// The rule it belongs to.
    pub rule: RuleIndex,
    /// What is remembered of it; none of a bucket that is as good as new.
    pub state: Option<State>,
    /// What it says, as it is.
    pub before: Verdict,
    /// The same with the request charged, if it would pass.
    pub after: Verdict,
}

/// What is done to the buckets of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Check,
    Peek,
    Refund,
}

impl<S: Store> Limiter<S> {
    /// A limiter over a store, on the store's clock.
    pub fn new(rules: impl Into<Arc<RuleSet>>, store: S) -> Self {
        Limiter {
            rules: ArcSwap::new(rules.into()),
            store,
            failure: Failure::new(NonZeroU32::MIN, Bounds::default()),
            meter: StoreMeter::default(),
            violations: None,
            plans: None,
        }
    }

    /// The same as one of so many nodes: while the store is away, rules with `on_store_failure: local` count against
    /// this node's share of their limit.
    #[must_use]
    pub fn with_nodes(self, nodes: NonZeroU32) -> Self {
        Limiter { failure: Failure::new(nodes, self.failure.bounds), ..self }
    }

    /// The same with so much room for these shares, while the store is away.
    #[must_use]
    pub fn with_local_bounds(self, bounds: Bounds) -> Self {
        Limiter { failure: Failure::new(self.failure.nodes, bounds), ..self }
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
    /// While the store cannot be asked, each rule's `on_store_failure` decides, and the answer says so
    /// ([`Decision::degraded`]). A request whose cost attribute is invalid is refused, and the answer says why
    /// ([`Decision::invalid_cost`]).
    #[inline]
    pub async fn check(&self, request: &Descriptor<'_>, cost: u64) -> Answer {
        self.check_within(request, cost, Micros::MAX).await
    }

    /// As [`check`](Self::check), but a request that would be held for longer than `patience` is refused and
    /// charged nothing.
    pub async fn check_within(&self, request: &Descriptor<'_>, cost: u64, patience: Micros) -> Answer {
        let answer = self.decide(request, cost, patience, Verb::Check).await;
        self.record(request, &answer);
        answer
    }

    /// As [`check`](Self::check), by other rules than the limiter's, over the same buckets. A refusal is no violation:
    /// nobody but the caller asked for the limit.
    pub async fn check_by(&self, rules: impl Into<Snapshot>, request: &Descriptor<'_>, cost: u64) -> Answer {
        self.decide_by(rules.into(), None, request, cost, Micros::MAX, Verb::Check).await
    }

    /// As [`peek`](Self::peek), by other rules than the limiter's.
    pub async fn peek_by(&self, rules: impl Into<Snapshot>, request: &Descriptor<'_>, cost: u64) -> Answer {
        self.decide_by(rules.into(), None, request, cost, Micros::MAX, Verb::Peek).await
    }

    /// As [`refund`](Self::refund), by other rules than the limiter's.
    ///
    /// # Errors
    ///
    /// The store gave no answer. It may have given the cost back all the same.
    pub async fn refund_by(
        &self,
        rules: impl Into<Snapshot>,
        request: &Descriptor<'_>,
        cost: u64,
    ) -> Result<Answer, StoreError> {
        self.at_store_by(rules.into(), None, request, cost, Verb::Refund).await
    }

    /// Answers what [`check`](Self::check) would, and charges nothing.
    pub async fn peek(&self, request: &Descriptor<'_>, cost: u64) -> Answer {
        self.decide(request, cost, Micros::MAX, Verb::Peek).await
    }

    /// Gives the cost of a request back to every limit that matches it. Nothing is given back where the cost is invalid
    /// ([`Decision::invalid_cost`]).
    ///
    /// # Errors
    ///
    /// The store gave no answer. It may have given the cost back all the same.
    pub async fn refund(&self, request: &Descriptor<'_>, cost: u64) -> Result<Answer, StoreError> {
        self.at_store(request, cost, Verb::Refund).await
    }

    /// As [`check`](Self::check), where only the store may decide.
    ///
    /// # Errors
    ///
    /// The store gave no answer. It may have charged the request all the same.
    pub async fn try_check(&self, request: &Descriptor<'_>, cost: u64) -> Result<Answer, StoreError> {
        self.at_store(request, cost, Verb::Check).await
    }

    /// As [`peek`](Self::peek), where only the store may decide.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn try_peek(&self, request: &Descriptor<'_>, cost: u64) -> Result<Answer, StoreError> {
        self.at_store(request, cost, Verb::Peek).await
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
        let rules = self.rules();
        let limited = rules.limited(request, 1, Micros::MAX);
        let mut verdicts = Verdicts::new();
        let at = self.store.reset(&limited.hits, &mut verdicts).await?;
        let decision = Decision::strictest(&rules, &limited, &verdicts);
        drop(limited);
        Ok(Answer { decision, rules, at, plan })
    }

    /// The whole flow: match, decide at the store or without it, answer.
    #[inline]
    async fn decide(&self, request: &Descriptor<'_>, cost: u64, patience: Micros, verb: Verb) -> Answer {
        let plan = self.plan(request).await;
        let named = plan.as_deref().map(|plan| on_plan(request, plan));
        let request = named.as_ref().unwrap_or(request);
        self.decide_by(self.rules(), plan, request, cost, patience, verb).await
    }

    /// The flow under one snapshot of rules: a reload never splits a request.
    #[inline]
    async fn decide_by(
        &self,
        rules: Snapshot,
        plan: Option<Arc<str>>,
        request: &Descriptor<'_>,
        cost: u64,
        patience: Micros,
        verb: Verb,
    ) -> Answer {
        let ruling = rules.ruling(request, cost, patience);
        let (decision, at) = match self.ask(&rules, &ruling, verb).await {
            Ok(decided) => decided,
            // Each rule's policy speaks here.
            Err((limited, error)) => {
                let decision = self.failure.decide(&self.store, &rules, request, limited, verb, &error).await;
                (decision, self.clock().now())
            }
        };
        drop(ruling);
        Answer { decision, rules, at, plan }
    }

    /// The same where only the store may decide.
    #[inline]
    async fn at_store(&self, request: &Descriptor<'_>, cost: u64, verb: Verb) -> Result<Answer, StoreError> {
        let plan = self.plan(request).await;
        let named = plan.as_deref().map(|plan| on_plan(request, plan));
        let request = named.as_ref().unwrap_or(request);
        self.at_store_by(self.rules(), plan, request, cost, verb).await
    }

    #[inline]
    async fn at_store_by(
        &self,
        rules: Snapshot,
        plan: Option<Arc<str>>,
        request: &Descriptor<'_>,
        cost: u64,
        verb: Verb,
    ) -> Result<Answer, StoreError> {
        let ruling = rules.ruling(request, cost, Micros::MAX);
        let (decision, at) = self.ask(&rules, &ruling, verb).await.map_err(|(_, error)| error)?;
        drop(ruling);
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
            // Only a limit or a `deny` rule is violated: not where the store was unavailable or the request is invalid.
            _ if !matches!(answer.outcome(), Outcome::Refused | Outcome::Denied) => {}
            None => violations.note(request, answer),
            Some(plan) => violations.note(&on_plan(request, plan), answer),
        }
    }

    /// What the rules say, and where buckets decide, what the store says.
    #[inline]
    async fn ask<'l, 'r>(
        &self,
        rules: &RuleSet,
        ruling: &'l Ruling<'r>,
        verb: Verb,
    ) -> Result<(Decision, Timestamp), (&'l Limited<'r>, StoreError)> {
        let limited = match ruling {
            Ruling::Denied(rule) => return Ok((Decision::denied(*rule), self.clock().now())),
            Ruling::Exempt => return Ok((Decision::unlimited(), self.clock().now())),
            Ruling::Invalid(rule, error) => {
                return Ok((Decision::invalid(*rule, error.clone()), self.clock().now()));
            }
            Ruling::Limited(limited) => limited,
        };
        let mut verdicts = Verdicts::new();
        // Nobody waits for a store in memory: its calls are not worth two looks at the clock.
        let began = (!self.store.answers_at_once()).then(|| self.clock().now());
        let asked = match verb {
            Verb::Check => self.store.charge(&limited.hits, &mut verdicts).await,
            Verb::Peek => self.store.peek(&limited.hits, &mut verdicts).await,
            Verb::Refund => self.store.refund(&limited.hits, &mut verdicts).await,
        };
        if let Some(began) = began {
            self.meter.note(began, self.clock().now(), &asked);
        }
        match asked {
            Ok(at) => Ok((Decision::strictest(rules, limited, &verdicts), at)),
            Err(error) => Err((limited, error)),
        }
    }

    /// Waits until a request may pass, charges it and holds it for its delay; for background jobs and batches.
    ///
    /// Gives up, charging nothing, as soon as it is clear that the turn would come after `deadline`. Whoever
    /// drops this future while it waits for a leaky bucket's delay has spent the place in the queue.
    pub async fn until_allowed(&self, request: &Descriptor<'_>, cost: u64, deadline: Timestamp) -> Answer {
        let until = |instant: Timestamp| {
            let left = instant.as_micros().saturating_sub(self.clock().now().as_micros());
            Micros::new(u64::try_from(left).unwrap_or(0))
        };
        loop {
            let left = until(deadline);
            // A refusal on the way is no violation: whoever waits its turn has done nothing wrong.
            let answer = self.decide(request, cost, left, Verb::Check).await;
            if answer.allowed() {
                self.clock().sleep(answer.delay()).await;
                return answer;
            }
            match answer.retry_after() {
                Some(wait) if wait <= left => {
                    let turn = self.clock().now().after(wait);
                    // Only the deadline stands in the way: the queue brings the turn no earlier by waiting outside.
                    let peeked = self.peek(request, cost).await;
                    if peeked.allowed() && peeked.delay() > until(deadline) {
                        self.record(request, &answer);
                        return answer;
                    }
                    self.clock().sleep(until(turn)).await;
                }
                _ => {
                    self.record(request, &answer);
                    return answer;
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

    /// What every bucket that an answer was about has, and would have if the request were charged.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn outlook(
        &self,
        answer: &Answer,
        request: &Descriptor<'_>,
        cost: u64,
    ) -> Result<Vec<Outlook>, StoreError> {
        let mut outlooks = Vec::with_capacity(answer.tiers().len());
        for tier in answer.tiers() {
            let rule = answer.rules().rule(tier.rule);
            let Ok(cost) = rule.cost(request, cost) else { continue };
            let demand = Demand { cost, patience: Micros::MAX };
            let Some(hit) = rule.hit(request, demand) else { continue };
            let charged = answer.allowed() || tier.enforcement == Enforcement::Shadow;
            outlooks.push(self.look_ahead(tier.rule, &hit, answer.at(), charged).await?);
        }
        Ok(outlooks)
    }

    /// What a bucket of one rule has now.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn inspect(&self, rule: RuleIndex, hit: &Hit<'_>) -> Result<Outlook, StoreError> {
        let mut verdicts = Verdicts::new();
        let at = self.store.peek(std::slice::from_ref(hit), &mut verdicts).await?;
        self.look_ahead(rule, hit, at, true).await
    }

    async fn look_ahead(
        &self,
        rule: RuleIndex,
        hit: &Hit<'_>,
        at: Timestamp,
        charged: bool,
    ) -> Result<Outlook, StoreError> {
        let state = self.store.inspect(hit).await?;
        if hit.key.space().consistency() != Consistency::Exact && self.store.rank().is_some() {
            // What is out on lease, or this node's share, is not in the state.
            let mut said = Verdicts::new();
            self.store.peek(std::slice::from_ref(hit), &mut said).await?;
            let before = said[0];
            let cost = if charged && before.allowed { hit.demand.cost } else { 0 };
            let after = Verdict { remaining: before.remaining.saturating_sub(cost), ..before };
            return Ok(Outlook { rule, state, before, after });
        }
        let mut bucket = Bucket::open(hit.limit, state.clone(), at, window(hit, hit.limit));
        let asked = bucket.ask(hit.demand);
        let before = bucket.verdict(asked);
        if charged && asked.allowed() {
            bucket.take(hit.demand.cost);
        }
        Ok(Outlook { rule, state, before, after: bucket.verdict(asked) })
    }

    /// Forgets one bucket.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn forget(&self, hit: &Hit<'_>) -> Result<(), StoreError> {
        self.store.reset(std::slice::from_ref(hit), &mut Verdicts::new()).await.map(drop)
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

    /// How many decisions were made without the store, by policy and reason.
    pub fn degraded_decisions(&self) -> Vec<DegradedCount> {
        self.failure.counts()
    }

    /// How calls to the store went.
    pub fn store_calls(&self) -> StoreCalls {
        self.meter.calls()
    }

    /// Where refusals are put on record, if they are.
    pub const fn violations(&self) -> Option<&Violations> {
        self.violations.as_ref()
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

    /// The request as it was decided: with the plan that was looked up, where it named none.
    pub fn request<'r, 'a>(&self, request: &'r Descriptor<'a>) -> Cow<'r, Descriptor<'a>> {
        match self.plan() {
            None => Cow::Borrowed(request),
            Some(plan) => Cow::Owned(on_plan(request, plan)),
        }
    }

    /// When the decision was made, on the store's clock.
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

impl Snapshot {
    /// The set, for somebody who keeps it.
    pub fn to_arc(&self) -> Arc<RuleSet> {
        Arc::clone(&self.0)
    }
}

impl From<Arc<RuleSet>> for Snapshot {
    fn from(rules: Arc<RuleSet>) -> Self {
        Snapshot(Guard::from_inner(rules))
    }
}

impl From<RuleSet> for Snapshot {
    fn from(rules: RuleSet) -> Self {
        Arc::new(rules).into()
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
