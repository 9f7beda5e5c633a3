//! The limiter: rules and a store, and the whole flow of a decision.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::{ArcSwap, Guard};
use tollgate_core::algorithm::{Bucket, Demand, State};
use tollgate_core::rule::{Consistency, Mismatch};
use tollgate_core::{
    Decision, Descriptor, Micros, Op, Outcome, Rule, RuleIndex, RuleSet, Status, StoreError, Tier, Tiers,
    Timestamp, Verdict,
};

use crate::audit::Violations;
use crate::clock::Clock;
use crate::failure::{DegradedCount, Failure};
use crate::key_seeds::key_seeds;
use crate::meter::{StoreCalls, StoreMeter};
use crate::plans::Plans;
use crate::request::Request;
use crate::reserve::Reservation;
use crate::store::{AnyStore, Bounds, Call, Store, window};

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
/// assert!(limiter.check(&request).await.allowed());
/// assert!(limiter.check(&request).await.allowed());
/// let refused = limiter.check(&request).await;
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

/// One rule set, held until it is dropped. Taking it is cheap: it neither counts references nor waits.
pub struct Snapshot(Guard<Arc<RuleSet>>);

/// How a rule met a request, for [`Limiter::explain`].
#[derive(Debug)]
pub struct Explanation<'r> {
    /// The rule.
    pub rule: RuleIndex,
    /// Why it does not apply, unless it does.
    pub mismatch: Option<Mismatch<'r>>,
    /// Whether it does not apply because another rule replaces it.
    pub replaced: bool,
}

/// One bucket of a request, before and after a charge, for [`Limiter::preview`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPreview {
    /// The rule it belongs to.
    pub rule: RuleIndex,
    /// Its state; none where it equals a fresh one.
    pub state: Option<State>,
    /// Its answer as it is.
    pub before: Verdict,
    /// Its answer with the request charged, if it would pass.
    pub after: Verdict,
}

/// Whether a refusal is recorded as a violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recording {
    /// It is not.
    Nothing,
    /// It is.
    Refusals,
}

/// What is asked of a limiter.
struct Asked<'a, S> {
    request: Request<'a, S>,
    op: Op,
    recording: Recording,
    reservation: Option<&'a mut Reservation>,
}

/// A decision. What has to be waited for is boxed, so that the usual decision, which does not wait, is built where it is
/// returned and carries no room for more.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Deciding<'a, S> {
    asked: Option<Asked<'a, S>>,
    waiting: Option<Pin<Box<dyn Future<Output = Answer> + Send + 'a>>>,
}

impl<'a, S> Deciding<'a, S> {
    #[inline]
    pub(crate) const fn new(
        request: Request<'a, S>,
        op: Op,
        recording: Recording,
        reservation: Option<&'a mut Reservation>,
    ) -> Self {
        Deciding { asked: Some(Asked { request, op, recording, reservation }), waiting: None }
    }
}

impl<S: Store> Future for Deciding<'_, S> {
    type Output = Answer;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        if let Some(asked) = &mut self.asked {
            let limiter = asked.request.limiter;
            if limiter.plans.is_none() {
                let mut decided = Poll::Ready(limiter.start(&asked.request, None));
                if let Poll::Ready(answer) = &mut decided
                    && limiter.decide_now(asked, answer)
                {
                    self.asked = None;
                    return decided;
                }
                self.wait(decided);
            } else {
                self.wait(Poll::Pending);
            }
        }
        self.waiting.as_mut().expect("a decision is polled until it is ready").as_mut().poll(context)
    }
}

impl<S: Store> Deciding<'_, S> {
    /// Goes on with rules that are matched, or from the start.
    #[cold]
    fn wait(&mut self, matched: Poll<Answer>) {
        let Some(asked) = self.asked.take() else { return };
        let limiter = asked.request.limiter;
        self.waiting = Some(match matched {
            Poll::Ready(answer) => Box::pin(limiter.decide_waiting(asked, answer)),
            Poll::Pending => Box::pin(limiter.decide_with_plan(asked)),
        });
    }
}

/// A call that is under way. If the decision is dropped before it is finished, what the store holds is given back.
struct Unfinished<'s, 'c, S: Store> {
    limiter: &'s Limiter<S>,
    call: Call<'c>,
    is_finished: bool,
}

impl<'s, 'c, S: Store> Unfinished<'s, 'c, S> {
    #[inline]
    const fn new(limiter: &'s Limiter<S>, call: Call<'c>) -> Self {
        Unfinished { limiter, call, is_finished: false }
    }

    /// Ends the call.
    fn finish(mut self) {
        self.limiter.finish(&mut self.call);
        self.is_finished = true;
    }
}

impl<S: Store> Drop for Unfinished<'_, '_, S> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_finished {
            self.limiter.store.finish(&mut self.call, false);
        }
    }
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

    /// The same as one of at least this many nodes: while the store is unavailable, rules with `on_store_failure: local`
    /// count against this node's share of their limit.
    #[must_use]
    pub fn with_nodes(self, nodes: NonZeroU32) -> Self {
        Limiter { failure: Failure::new(nodes, self.failure.bounds), ..self }
    }

    /// The same with these bounds on the shares that are used while the store is unavailable.
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

    /// Decides one request of cost 1 and charges it if it is allowed. [`request`](Self::request) has the settings.
    #[inline]
    pub fn check<'a>(&'a self, request: &'a Descriptor<'a>) -> impl Future<Output = Answer> + use<'a, S> {
        self.request(request).check()
    }

    /// A request with settings: cost, longest wait, other rules; ended by what is done with it.
    #[inline]
    pub const fn request<'a>(&'a self, request: &'a Descriptor<'a>) -> Request<'a, S> {
        Request::new(self, request)
    }

    /// Decides many independent requests, each as [`Request::check`] does. The store fetches or sends all of them together.
    pub async fn check_many(&self, requests: &[Request<'_, S>]) -> Vec<Answer> {
        let mut matched: Vec<(Answer, Option<Descriptor<'_>>, bool)> = Vec::with_capacity(requests.len());
        for request in requests {
            let mut answer = self.start(request, self.plan(request.descriptor).await);
            let with_plan = answer.plan().map(|plan| on_plan(request.descriptor, plan));
            let asks =
                self.match_rules(&mut answer, with_plan.as_ref().unwrap_or(request.descriptor), request.cost);
            matched.push((answer, with_plan, asks));
        }
        let mut calls = Vec::with_capacity(requests.len());
        let mut instants = Vec::with_capacity(requests.len());
        for (request, (answer, with_plan, asks)) in requests.iter().zip(&mut matched) {
            let Answer { decision, rules, at, .. } = answer;
            if *asks {
                let descriptor = with_plan.as_ref().unwrap_or(request.descriptor);
                let mut call = Call::new(Op::Charge, rules, descriptor, decision.rows());
                call.max_wait = request.max_wait;
                calls.push(Unfinished::new(self, call));
                instants.push(at);
            }
        }
        let mut running: Vec<Call<'_>> =
            calls.iter_mut().map(|unfinished| unfinished.call.reborrow()).collect();
        let began = self.store.waits().then(|| self.clock().now());
        let ran = self.store.run_many(&mut running).await;
        if let Some(began) = began {
            let ended = self.clock().now();
            running.iter().for_each(|call| self.meter.record(began, ended, call.error()));
        }
        drop(running);
        instants.into_iter().zip(ran).for_each(|(at, ran)| *at = ran);
        calls.into_iter().for_each(Unfinished::finish);
        let answers = requests.iter().zip(matched).map(|(request, (mut answer, _, asks))| {
            if asks {
                self.conclude(&mut answer);
            }
            self.record(request, &answer);
            answer
        });
        answers.collect()
    }

    /// The whole flow: match, decide at the store or without it, answer. The answer has its snapshot and no rows yet. Whether
    /// it is decided: if not, the store has to be waited for, and nothing was done but matching.
    #[inline]
    fn decide_now(&self, asked: &mut Asked<'_, S>, answer: &mut Answer) -> bool {
        let request = &asked.request;
        let with_plan = answer.plan().map(|plan| on_plan(request.descriptor, plan));
        let descriptor = with_plan.as_ref().unwrap_or(request.descriptor);
        if self.match_rules(answer, descriptor, request.cost) {
            let mut call = Call::new(asked.op, &answer.rules, descriptor, answer.decision.rows());
            call.max_wait = request.max_wait;
            call.reservation = asked.reservation.as_deref_mut();
            let Some(at) = self.store.run_now(&mut call) else { return false };
            if call.tiers.iter().any(|tier| !matches!(tier.outcome, Outcome::Decided(_))) {
                self.finish(&mut call);
            }
            answer.at = at;
            self.conclude(answer);
        }
        if asked.recording == Recording::Refusals {
            self.record(request, answer);
        }
        true
    }

    /// The same with a plan that has to be looked up first.
    async fn decide_with_plan(&self, mut asked: Asked<'_, S>) -> Answer {
        let mut answer = self.start(&asked.request, self.plan(asked.request.descriptor).await);
        if self.decide_now(&mut asked, &mut answer) {
            answer
        } else {
            self.decide_waiting(asked, answer).await
        }
    }

    /// The rest of the flow where the store has to be waited for.
    async fn decide_waiting(&self, asked: Asked<'_, S>, mut answer: Answer) -> Answer {
        let request = &asked.request;
        let with_plan = answer.plan().map(|plan| on_plan(request.descriptor, plan));
        let descriptor = with_plan.as_ref().unwrap_or(request.descriptor);
        let mut call = Call::new(asked.op, &answer.rules, descriptor, answer.decision.rows());
        call.max_wait = request.max_wait;
        call.reservation = asked.reservation;
        let mut unfinished = Unfinished::new(self, call);
        answer.at = self.wait_for_store(&mut unfinished.call).await;
        unfinished.finish();
        self.conclude(&mut answer);
        if asked.recording == Recording::Refusals {
            self.record(request, &answer);
        }
        answer
    }

    /// Ends a call: rows that the store lost get the answer of their policy, and what is held is spent or given back.
    fn finish(&self, call: &mut Call<'_>) {
        self.failure.apply(&self.store, call);
        let passes = !call.refuses();
        self.store.finish(call, passes);
    }

    /// An answer without rows, by one snapshot of the rules: a reload never splits a request.
    #[inline]
    fn start(&self, request: &Request<'_, S>, plan: Option<Arc<str>>) -> Answer {
        let rules = match &request.rules {
            Some(rules) => Arc::clone(rules).into(),
            None => self.rules(),
        };
        Answer { decision: Decision::unlimited(), rules, at: Timestamp::from_micros(0), plan }
    }

    /// The plan of a request that has a user and names no plan.
    async fn plan(&self, request: &Descriptor<'_>) -> Option<Arc<str>> {
        match &self.plans {
            None => None,
            Some(plans) => plans.of(request).await,
        }
    }

    /// Adds the rows of a request, or what the rules say without asking any bucket. Whether buckets have to be asked.
    #[inline]
    fn match_rules(&self, answer: &mut Answer, request: &Descriptor<'_>, cost: u64) -> bool {
        let ruling = answer.rules.tiers(request, cost, key_seeds(), answer.decision.rows());
        let asks = answer.decision.rule(ruling);
        if !asks {
            answer.at = self.clock().now();
        }
        asks
    }

    /// Waits for the store, and measures how long that takes.
    async fn wait_for_store(&self, call: &mut Call<'_>) -> Timestamp {
        let began = self.clock().now();
        let at = self.store.run(call).await;
        self.meter.record(began, self.clock().now(), call.error());
        at
    }

    #[inline]
    fn conclude(&self, answer: &mut Answer) {
        answer.decision.conclude(&answer.rules);
        self.failure.count(&answer.decision);
    }

    /// Refunds or resets, which only the store can do.
    pub(crate) async fn change(&self, request: Request<'_, S>, op: Op) -> Result<Answer, StoreError> {
        let mut answer = self.start(&request, self.plan(request.descriptor).await);
        let with_plan = answer.plan().map(|plan| on_plan(request.descriptor, plan));
        let descriptor = with_plan.as_ref().unwrap_or(request.descriptor);
        let asks = match op {
            // A reset deletes every bucket, whether or not a rule denies or exempts the request.
            Op::Reset => {
                *answer.decision.rows() = answer.rules.buckets(descriptor, request.cost, key_seeds());
                true
            }
            _ => self.match_rules(&mut answer, descriptor, request.cost),
        };
        if asks {
            let mut call = Call::new(op, &answer.rules, descriptor, answer.decision.rows());
            answer.at = match self.store.run_now(&mut call) {
                Some(at) => at,
                None => self.wait_for_store(&mut call).await,
            };
            match call.error() {
                Some(error) => return Err(error),
                None => self.conclude(&mut answer),
            }
        }
        Ok(answer)
    }

    /// Does something to the bucket of one rule, whether or not the rule matches the request.
    pub(crate) async fn run_rule(
        &self,
        op: Op,
        rule: &Rule,
        request: &Descriptor<'_>,
        cost: u64,
    ) -> Result<(Verdict, Timestamp), StoreError> {
        let rules = RuleSet::of(rule.clone());
        let hash = key_seeds().hash(rule.key(request));
        let mut tiers = Tiers::from_iter([Tier::new(0, rule.enforcement(), cost, hash)]);
        let mut call = Call::new(op, &rules, request, &mut tiers);
        let at = self.store.run(&mut call).await;
        match call.error() {
            Some(error) => Err(error),
            None => {
                self.store.finish(&mut call, true);
                Ok((*tiers[0].verdict(), at))
            }
        }
    }

    /// Records a refusal by the limiter's own rules as a violation. A request that failed because the store was
    /// unavailable, or because it is invalid, is not a violation.
    #[inline]
    pub(crate) fn record(&self, request: &Request<'_, S>, answer: &Answer) {
        let Some(violations) = &self.violations else { return };
        if request.rules.is_none() && matches!(answer.status(), Status::Refused | Status::Denied) {
            violations.record(&answer.request(request.descriptor), answer);
        }
    }

    pub(crate) async fn until_allowed(&self, request: Request<'_, S>, deadline: Timestamp) -> Answer {
        let until = |instant: Timestamp| instant.since(self.clock().now());
        loop {
            let left = until(deadline);
            // A refusal on the way is not a violation: the caller waits as it should.
            let waiting = request.clone().max_wait(left);
            let answer = Deciding::new(waiting, Op::Charge, Recording::Nothing, None).await;
            if answer.allowed() {
                self.clock().sleep(answer.delay()).await;
                return answer;
            }
            match answer.retry_after() {
                Some(wait) if wait <= left => {
                    let turn = self.clock().now().after(wait);
                    // Only the deadline refuses it: waiting outside does not shorten the queue.
                    let peeked = Deciding::new(request.clone(), Op::Peek, Recording::Nothing, None).await;
                    if peeked.allowed() && peeked.delay() > until(deadline) {
                        self.record(&request, &answer);
                        return answer;
                    }
                    self.clock().sleep(until(turn)).await;
                }
                _ => {
                    self.record(&request, &answer);
                    return answer;
                }
            }
        }
    }

    /// How every rule met a request, in the order of the set.
    pub fn explain<'r>(&self, rules: &'r RuleSet, request: &Descriptor<'_>) -> Vec<Explanation<'r>> {
        let matched = rules.matching(request);
        let explain = |(rule, candidate): (RuleIndex, &'r Rule)| {
            let mismatch = candidate.applies_to(request).err();
            Explanation { rule, replaced: mismatch.is_none() && !matched.contains(&rule), mismatch }
        };
        (0..).zip(rules.rules()).map(explain).collect()
    }

    /// Every bucket of an answer, as it is and as it would be if the request were charged.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn preview(
        &self,
        answer: &Answer,
        request: &Descriptor<'_>,
        cost: u64,
    ) -> Result<Vec<BucketPreview>, StoreError> {
        let mut previews = Vec::with_capacity(answer.tiers().len());
        for tier in answer.tiers() {
            let rule = answer.rules().rule(tier.rule);
            let (Ok(cost), Some(_)) = (rule.cost(request, cost), rule.limit()) else { continue };
            let cost = if answer.allowed() || !tier.enforces() { cost } else { 0 };
            let preview = self.preview_bucket(rule, request, cost, answer.at()).await?;
            previews.push(BucketPreview { rule: tier.rule, ..preview });
        }
        Ok(previews)
    }

    /// The bucket of one rule, as it is now and with one more token taken. The index of the rule in the preview is 0.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn inspect(
        &self,
        rule: &Rule,
        request: &Descriptor<'_>,
        cost: u64,
    ) -> Result<BucketPreview, StoreError> {
        let (_, at) = self.run_rule(Op::Peek, rule, request, cost).await?;
        self.preview_bucket(rule, request, cost, at).await
    }

    async fn preview_bucket(
        &self,
        rule: &Rule,
        request: &Descriptor<'_>,
        cost: u64,
        at: Timestamp,
    ) -> Result<BucketPreview, StoreError> {
        let key = rule.key(request);
        let state = self.store.inspect(rule, key).await?;
        if rule.consistency() != Consistency::Exact && self.store.shares().is_some() {
            // Leased tokens, or this node's share, are not in the state.
            let (before, _) = self.run_rule(Op::Peek, rule, request, cost).await?;
            let taken = if before.allowed { cost } else { 0 };
            let after = Verdict { remaining: before.remaining.saturating_sub(taken), ..before };
            return Ok(BucketPreview { rule: 0, state, before, after });
        }
        let limit = rule.limit().expect("only buckets of limits are previewed");
        let mut bucket = Bucket::open(limit, state.clone(), at, window(key, limit));
        let asked = bucket.ask(Demand { cost, max_wait: Micros::MAX });
        let before = bucket.verdict(asked);
        if asked.allowed() {
            bucket.take(cost);
        }
        Ok(BucketPreview { rule: 0, state, before, after: bucket.verdict(asked) })
    }

    /// Deletes the bucket of one rule.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn reset_bucket(&self, rule: &Rule, request: &Descriptor<'_>) -> Result<(), StoreError> {
        self.run_rule(Op::Reset, rule, request, 1).await.map(drop)
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

    /// The recorder of refusals, if there is one.
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
    /// A decision that was made before.
    pub fn new(rules: Arc<RuleSet>, decision: Decision, at: Timestamp) -> Self {
        Answer { decision, rules: rules.into(), at, plan: None }
    }

    /// The rules that made the decision.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// The same rules, to be kept for longer.
    pub fn rules_to_arc(&self) -> Arc<RuleSet> {
        self.rules.to_arc()
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

    /// The binding limit's rule, by its label.
    pub fn rule(&self) -> Option<&str> {
        self.decision.binding_limit().map(|tier| self.rules.rule(tier.rule).label())
    }

    /// Why the store gave no answer, where a failure policy decided.
    pub fn store_error(&self) -> Option<StoreError> {
        self.decision.tiers().iter().find_map(|tier| match tier.outcome {
            Outcome::Instead { error, .. } => Some(error),
            _ => None,
        })
    }
}

impl Deref for Answer {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.decision
    }
}

impl Snapshot {
    /// The set, to be kept for longer.
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
