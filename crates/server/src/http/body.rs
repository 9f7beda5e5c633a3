//! A decision as JSON has it.

use std::fmt;

use serde::{Serialize, Serializer};
use tollgate::core::rule::FailurePolicy;
use tollgate::core::{Degraded, Key, Tier};
use tollgate::{Answer, Descriptor, Micros, Status, Verdict};
use utoipa::ToSchema;

use crate::record::{Recorded, RecordedTier};

/// A decision, as JSON has it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Decision)]
pub struct DecisionBody<'a> {
    allowed: bool,
    #[schema(required)]
    limit: Option<u64>,
    #[schema(required)]
    remaining: Option<u64>,
    /// 0 when allowed, null when no wait helps.
    #[schema(required)]
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    /// How long to hold the request (leaky buckets).
    delay_ms: u64,
    /// What the rule that refused counts by.
    #[schema(required)]
    violated_tier: Option<&'a str>,
    /// The rule that refused.
    #[schema(required)]
    violated_rule: Option<&'a str>,
    /// Only a server names its decisions.
    #[serde(skip_serializing_if = "Option::is_none")]
    decision_id: Option<&'a str>,
    #[schema(required)]
    degraded: Option<DegradedBody>,
    /// Every rule that had a say.
    limits: Vec<LimitBody<'a>>,
}

/// That the store was away, and what decided instead.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Degraded)]
pub(crate) struct DegradedBody {
    /// `timeout`, `unreachable`, `overloaded` or `rejected`.
    reason: &'static str,
    /// `open`, `closed` or `local`.
    policy: &'static str,
}

/// One rule's part in it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DecisionLimit)]
struct LimitBody<'a> {
    rule: &'a str,
    #[schema(value_type = String)]
    key: Shown<'a>,
    /// `user`, `endpoint`, `ip`, `global` or `custom`.
    scope: &'a str,
    #[schema(required)]
    plan: Option<&'a str>,
    allowed: bool,
    limit: u64,
    /// Null where the store was unavailable and the rule failed open: nothing was counted.
    #[schema(required)]
    remaining: Option<u64>,
    #[schema(required)]
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    /// `enforce` or `shadow`.
    mode: &'static str,
}

/// A key to be shown; written straight to where it goes.
#[derive(Debug)]
enum Shown<'a> {
    Key(Key<'a>),
    Text(&'a str),
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shown::Key(key) => key.fmt(f),
            Shown::Text(text) => f.write_str(text),
        }
    }
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'a> DecisionBody<'a> {
    /// The answer to a request, as JSON has it: waits in milliseconds, rounded up. Only a server names its
    /// decisions.
    pub fn new(answer: &'a Answer, request: &'a Descriptor<'_>, decision_id: Option<&'a str>) -> Self {
        let violated = answer.binding_limit().filter(|_| !answer.allowed());
        let rule = |tier: &Tier| answer.rules().rule(tier.rule);
        DecisionBody {
            allowed: answer.allowed(),
            limit: answer.limit(),
            remaining: answer.binding_limit().and_then(|tier| counted(tier.verdict(), tier.instead())),
            retry_after_ms: answer.retry_after().map(Micros::ceil_millis),
            reset_after_ms: answer.reset_after().ceil_millis(),
            delay_ms: answer.delay().ceil_millis(),
            violated_tier: violated.map(|tier| rule(tier).scope().as_str()),
            violated_rule: violated.map(|tier| rule(tier).label_in(Some(request))),
            decision_id,
            degraded: answer.degraded().map(DegradedBody::from),
            limits: answer.tiers().iter().map(|tier| LimitBody::new(answer, tier, request)).collect(),
        }
    }

    /// A decision as it was answered.
    pub(crate) fn recorded(recorded: &'a Recorded) -> Self {
        let binding = recorded.binding_limit();
        let verdict = binding.map(|binding| &binding.verdict);
        let violated = binding.filter(|_| recorded.status != Status::Allowed);
        let wait = verdict.map_or(Some(Micros::ZERO), |verdict| verdict.retry_after);
        DecisionBody {
            allowed: recorded.status == Status::Allowed,
            limit: verdict.map(|verdict| verdict.limit),
            remaining: binding.and_then(|tier| counted(&tier.verdict, tier.instead)),
            retry_after_ms: wait.map(Micros::ceil_millis),
            reset_after_ms: verdict.map_or(0, |verdict| verdict.reset_after.ceil_millis()),
            delay_ms: recorded.delay.ceil_millis(),
            violated_tier: violated.map(|tier| tier.scope.as_str()),
            violated_rule: violated.map(|tier| tier.rule.as_str()),
            decision_id: Some(&recorded.id),
            degraded: recorded.degraded.map(DegradedBody::from),
            limits: recorded.tiers.iter().map(LimitBody::recorded).collect(),
        }
    }

    /// The body, in one piece of memory of about its size.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut json = Vec::with_capacity(256 + 256 * self.limits.len());
        // Text and numbers: there is nothing in them that JSON cannot say.
        let _ = serde_json::to_writer(&mut json, self);
        json
    }
}

/// What is left in a bucket, where that was counted. A rule that failed open knows no number.
pub(super) fn counted(verdict: &Verdict, instead: Option<FailurePolicy>) -> Option<u64> {
    (instead != Some(FailurePolicy::Open)).then_some(verdict.remaining)
}

impl From<Degraded> for DegradedBody {
    fn from(Degraded { reason, policy }: Degraded) -> Self {
        DegradedBody { reason, policy: policy.as_str() }
    }
}

impl<'a> LimitBody<'a> {
    fn new(answer: &'a Answer, tier: &Tier, request: &'a Descriptor<'_>) -> Self {
        let (rule, verdict) = (answer.rules().rule(tier.rule), tier.verdict());
        LimitBody {
            rule: rule.label_in(Some(request)),
            key: Shown::Key(rule.key(request)),
            scope: rule.scope().as_str(),
            plan: rule.plan(),
            allowed: verdict.allowed,
            limit: verdict.limit,
            remaining: counted(verdict, tier.instead()),
            retry_after_ms: verdict.retry_after.map(Micros::ceil_millis),
            reset_after_ms: verdict.reset_after.ceil_millis(),
            mode: tier.enforcement.as_str(),
        }
    }

    fn recorded(tier: &'a RecordedTier) -> Self {
        let verdict = &tier.verdict;
        LimitBody {
            rule: &tier.rule,
            key: Shown::Text(&tier.key),
            scope: &tier.scope,
            plan: tier.plan.as_deref(),
            allowed: verdict.allowed,
            limit: verdict.limit,
            remaining: counted(verdict, tier.instead),
            retry_after_ms: verdict.retry_after.map(Micros::ceil_millis),
            reset_after_ms: verdict.reset_after.ceil_millis(),
            mode: tier.enforcement.as_str(),
        }
    }
}
