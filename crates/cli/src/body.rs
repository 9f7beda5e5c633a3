//! A decision as JSON: the body of `POST /v1/check`, but for the id that only a server gives.

use serde::Serialize;
use tollgate::core::Enforcement;
use tollgate::{Answer, Descriptor, Micros, Tier};

#[derive(Debug, Serialize)]
pub(crate) struct Decision<'a> {
    allowed: bool,
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    delay_ms: u64,
    violated_tier: Option<&'static str>,
    violated_rule: Option<&'a str>,
    degraded: Option<&'static str>,
    limits: Vec<Limit<'a>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Limit<'a> {
    rule: &'a str,
    key: String,
    scope: &'static str,
    plan: Option<&'a str>,
    allowed: bool,
    limit: u64,
    remaining: u64,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    mode: &'static str,
}

impl<'a> Decision<'a> {
    pub(crate) fn new(answer: &'a Answer, request: &Descriptor<'_>) -> Self {
        let violated = answer.speaker().filter(|_| !answer.allowed());
        Decision {
            allowed: answer.allowed(),
            limit: answer.limit(),
            remaining: answer.remaining(),
            retry_after_ms: answer.retry_after().map(Micros::ceil_millis),
            reset_after_ms: answer.reset_after().ceil_millis(),
            delay_ms: answer.delay().ceil_millis(),
            violated_tier: violated.map(|tier| answer.rules().rule(tier.rule).scope().as_str()),
            violated_rule: violated.map(|tier| answer.rules().rule(tier.rule).label()),
            degraded: None,
            limits: answer.tiers().iter().map(|tier| Limit::new(answer, tier, request)).collect(),
        }
    }
}

impl<'a> Limit<'a> {
    fn new(answer: &'a Answer, tier: &Tier, request: &Descriptor<'_>) -> Self {
        let (rule, verdict) = (answer.rules().rule(tier.rule), &tier.verdict);
        Limit {
            rule: rule.label(),
            key: rule.key(request).to_string(),
            scope: rule.scope().as_str(),
            plan: rule.plan(),
            allowed: verdict.allowed,
            limit: verdict.limit,
            remaining: verdict.remaining,
            retry_after_ms: verdict.retry_after.map(Micros::ceil_millis),
            reset_after_ms: verdict.reset_after.ceil_millis(),
            mode: mode(tier.enforcement),
        }
    }
}

/// The word for whether a tier counts.
pub(crate) const fn mode(enforcement: Enforcement) -> &'static str {
    match enforcement {
        Enforcement::Enforce => "enforce",
        Enforcement::Shadow => "shadow",
    }
}
