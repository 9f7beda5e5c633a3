//! Decisions and explanations as JSON has them, whoever made them.

use std::cmp::Reverse;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tollgate::{Descriptor, Status};

/// A decision.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Decided {
    pub(crate) allowed: bool,
    limit: Option<u64>,
    remaining: Option<u64>,
    pub(crate) retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    pub(crate) delay_ms: u64,
    violated_rule: Option<String>,
    degraded: Option<Degraded>,
    pub(crate) limits: Vec<Limit>,
}

/// One rule's part in it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Limit {
    pub(crate) rule: String,
    pub(crate) key: String,
    pub(crate) allowed: bool,
    pub(crate) limit: u64,
    /// `None` where the rule failed open: nothing was counted.
    pub(crate) remaining: Option<u64>,
    pub(crate) retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    mode: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Degraded {
    policy: String,
}

/// What every rule has to do with a request.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Explained {
    pub(crate) attributes: Map<String, Value>,
    pub(crate) decision: Decided,
    pub(crate) rules: Vec<Line>,
    /// Of a past decision: its name, its instant, and whether the rules are others now.
    pub(crate) decision_id: Option<String>,
    pub(crate) at: Option<String>,
    #[serde(default)]
    pub(crate) rules_changed: bool,
}

/// What one rule has to do with it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Line {
    pub(crate) rule: String,
    pub(crate) applies: bool,
    pub(crate) reason: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) speaks: bool,
}

impl Decided {
    /// Which way the request went.
    pub(crate) fn outcome(&self) -> Status {
        let closed = self.degraded.as_ref().is_some_and(|degraded| degraded.policy == "closed");
        match self.limit {
            _ if self.allowed => Status::Allowed,
            // Only a rule that denies has nothing to give at all.
            Some(0) => Status::Denied,
            _ if closed => Status::Unavailable,
            _ => Status::Refused,
        }
    }

    /// Whether it passed because the store was unavailable.
    pub(crate) fn failed_open(&self) -> bool {
        self.allowed && self.degraded.as_ref().is_some_and(|degraded| degraded.policy == "open")
    }

    /// The rule whose numbers are the decision's.
    pub(crate) fn speaker(&self) -> Option<&Limit> {
        let said = |limit: &&Limit| match &self.violated_rule {
            Some(rule) => limit.rule == *rule,
            None => {
                let numbers = (Some(limit.limit), limit.remaining, limit.reset_after_ms);
                numbers == (self.limit, self.remaining, self.reset_after_ms)
            }
        };
        let speaking = self.limits.iter().filter(|limit| !limit.is_on_trial()).filter(said);
        speaking.min_by_key(|limit| (limit.remaining, Reverse(limit.reset_after_ms), &limit.rule))
    }
}

impl Limit {
    /// Whether it only counts.
    pub(crate) fn is_on_trial(&self) -> bool {
        self.mode == "shadow"
    }
}

/// What a server is sent about a request.
pub(crate) fn body(request: &Descriptor<'_>, cost: u64) -> String {
    let facts: Map<String, Value> =
        request.attributes().map(|(name, value)| (name.to_owned(), value.to_string().into())).collect();
    json!({ "attributes": facts, "cost": cost }).to_string()
}
