//! The bodies of the HTTP API: what a check sends and what it gets.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate::core::{Degraded, Tier};
use tollgate::json::{Attributes, Whole};
use tollgate::{Answer, Descriptor, Micros};

use super::problem::Problem;

/// Request bodies beyond this are answered 413, unless they are a whole set of rules.
pub(crate) const MAX_BODY_BYTES: usize = 64 << 10;

/// The bytes of a body of at most so many.
pub(crate) fn read(body: Result<Bytes, BytesRejection>, largest: usize) -> Result<Bytes, Problem> {
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::too_large(largest),
        _ => Problem::unreadable(rejection.body_text()),
    })
}

/// `{"attributes": {"user_id": "42"}, "cost": 1}`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckBody<'a> {
    #[serde(borrow, default)]
    pub(crate) attributes: Attributes<'a>,
    #[serde(default = "one")]
    pub(crate) cost: Whole,
}

impl<'a> CheckBody<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Problem> {
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            return Err(Problem::bad_body(
                ".",
                "expected a JSON object such as {\"attributes\": {\"user_id\": \"42\"}}",
            ));
        }
        let mut json = serde_json::Deserializer::from_slice(bytes);
        let body = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| Problem::bad_body(&error.path().to_string(), error.inner().to_string()))?;
        json.end().map_err(|error| Problem::bad_body(".", error.to_string()))?;
        Ok(body)
    }
}

const fn one() -> Whole {
    Whole(1)
}

/// The answer of `/v1/check` and `/v1/peek`.
#[derive(Debug, Serialize)]
pub struct DecisionBody<'a> {
    allowed: bool,
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    delay_ms: u64,
    violated_tier: Option<&'static str>,
    violated_rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision_id: Option<String>,
    degraded: Option<DegradedBody>,
    limits: Vec<LimitBody<'a>>,
}

/// That the store was away.
#[derive(Debug, Serialize)]
struct DegradedBody {
    reason: &'static str,
    policy: &'static str,
}

/// One rule's part in it.
#[derive(Debug, Serialize)]
struct LimitBody<'a> {
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

impl<'a> DecisionBody<'a> {
    /// The answer to a request, as JSON has it: waits in milliseconds, rounded up. Only a server names its
    /// decisions.
    pub fn new(answer: &'a Answer, request: &Descriptor<'_>, decision_id: Option<String>) -> Self {
        let violated = answer.speaker().filter(|_| !answer.allowed());
        let rule = |tier: &Tier| answer.rules().rule(tier.rule);
        DecisionBody {
            allowed: answer.allowed(),
            limit: answer.limit(),
            remaining: answer.remaining(),
            retry_after_ms: answer.retry_after().map(Micros::ceil_millis),
            reset_after_ms: answer.reset_after().ceil_millis(),
            delay_ms: answer.delay().ceil_millis(),
            violated_tier: violated.map(|tier| rule(tier).scope().as_str()),
            violated_rule: violated.map(|tier| rule(tier).label()),
            decision_id,
            degraded: answer
                .degraded()
                .map(|Degraded { reason, policy }| DegradedBody { reason, policy: policy.as_str() }),
            limits: answer.tiers().iter().map(|tier| LimitBody::new(answer, tier, request)).collect(),
        }
    }
}

impl<'a> LimitBody<'a> {
    fn new(answer: &'a Answer, tier: &Tier, request: &Descriptor<'_>) -> Self {
        let (rule, verdict) = (answer.rules().rule(tier.rule), &tier.verdict);
        LimitBody {
            rule: rule.label(),
            key: rule.key(request).to_string(),
            scope: rule.scope().as_str(),
            plan: rule.plan(),
            allowed: verdict.allowed,
            limit: verdict.limit,
            remaining: verdict.remaining,
            retry_after_ms: verdict.retry_after.map(Micros::ceil_millis),
            reset_after_ms: verdict.reset_after.ceil_millis(),
            mode: tier.enforcement.as_str(),
        }
    }
}
