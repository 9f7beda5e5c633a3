//! The JSON of the HTTP API. Each type is here once: handlers serialize it, the command line reads it back.
//!
//! Waits are whole milliseconds, rounded up. Types whose strings come from a request or a rule set borrow them, so that an
//! answer is written without copying; read back, they own them.

#![expect(
    missing_docs,
    reason = "docs/reference/http.md documents the fields; what is special is said here too"
)]

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tollgate::core::rule::FailurePolicy;
use tollgate::core::{self, Draft, Key, Tier};
use tollgate::{Answer, Descriptor, Micros, Status, Verdict};
use utoipa::ToSchema;

/// The answer to a check.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Decision<'a> {
    pub allowed: bool,
    #[schema(required)]
    pub limit: Option<u64>,
    #[schema(required)]
    pub remaining: Option<u64>,
    /// 0 when allowed, null when no wait helps.
    #[schema(required)]
    pub retry_after_ms: Option<u64>,
    pub reset_after_ms: u64,
    /// How long to hold the request (leaky buckets).
    pub delay_ms: u64,
    /// What the rule that refused counts by.
    #[schema(required)]
    pub violated_tier: Option<Cow<'a, str>>,
    /// The rule that refused.
    #[schema(required)]
    pub violated_rule: Option<Cow<'a, str>>,
    /// Absent from explanations: only checks have an id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision_id: Option<Cow<'a, str>>,
    #[schema(required)]
    pub degraded: Option<Degraded>,
    /// Every rule that applied.
    pub limits: Vec<DecisionLimit<'a>>,
}

/// A decision without the store: why, and what decided instead.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Degraded {
    /// `timeout`, `unreachable`, `overloaded` or `rejected`.
    pub reason: Cow<'static, str>,
    /// `open`, `closed` or `local`.
    pub policy: Cow<'static, str>,
}

/// One rule's part in a decision.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DecisionLimit<'a> {
    pub rule: Cow<'a, str>,
    /// The key pattern of the rule, such as `user:{user_id}`.
    pub pattern: Cow<'a, str>,
    #[schema(value_type = String)]
    pub key: KeyText<'a>,
    /// `user`, `endpoint`, `ip`, `global` or `custom`.
    pub scope: Cow<'a, str>,
    #[schema(required)]
    pub plan: Option<Cow<'a, str>>,
    pub allowed: bool,
    pub limit: u64,
    /// Null where the store was unavailable and the rule failed open: nothing was counted.
    #[schema(required)]
    pub remaining: Option<u64>,
    #[schema(required)]
    pub retry_after_ms: Option<u64>,
    pub reset_after_ms: u64,
    /// `enforce` or `shadow`.
    pub mode: Cow<'static, str>,
}

/// A key as text. It is formatted straight into the answer.
#[derive(Debug, Clone)]
pub enum KeyText<'a> {
    Key(Key<'a>),
    Text(String),
}

impl fmt::Display for KeyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyText::Key(key) => key.fmt(f),
            KeyText::Text(text) => f.write_str(text),
        }
    }
}

impl Serialize for KeyText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KeyText<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(KeyText::Text)
    }
}

impl<'a> Decision<'a> {
    /// The answer to a request, given as it was decided ([`Answer::request`]).
    pub fn new(answer: &'a Answer, request: &'a Descriptor<'_>, decision_id: Option<&'a str>) -> Self {
        let violated = answer.binding_limit().filter(|_| !answer.allowed());
        let rule = |tier: &Tier| answer.rules().rule(tier.rule);
        Decision {
            allowed: answer.allowed(),
            limit: answer.limit(),
            remaining: answer.binding_limit().and_then(counted),
            retry_after_ms: answer.retry_after().map(Micros::ceil_millis),
            reset_after_ms: answer.reset_after().ceil_millis(),
            delay_ms: answer.delay().ceil_millis(),
            violated_tier: violated.map(|tier| rule(tier).scope().as_str().into()),
            violated_rule: violated.map(|tier| rule(tier).label_in(Some(request)).into()),
            decision_id: decision_id.map(Cow::from),
            degraded: answer.degraded().map(Degraded::from),
            limits: answer.tiers().iter().map(|tier| DecisionLimit::new(answer, tier, request)).collect(),
        }
    }

    /// What was decided.
    pub fn status(&self) -> Status {
        match self.limit {
            _ if self.allowed => Status::Allowed,
            // Only a `deny` rule has a limit of 0.
            Some(0) => Status::Denied,
            _ if self.policy() == Some("closed") => Status::Unavailable,
            _ => Status::Refused,
        }
    }

    /// Whether it was allowed because the store was unavailable.
    pub fn failed_open(&self) -> bool {
        self.allowed && self.policy() == Some("open")
    }

    fn policy(&self) -> Option<&str> {
        self.degraded.as_ref().map(|degraded| &*degraded.policy)
    }

    /// The limit whose numbers are those of the decision.
    pub fn binding_limit(&self) -> Option<&DecisionLimit<'a>> {
        let is_binding = |limit: &&DecisionLimit<'_>| match &self.violated_rule {
            Some(rule) => limit.rule == *rule,
            None => {
                let numbers = (Some(limit.limit), limit.remaining, limit.reset_after_ms);
                numbers == (self.limit, self.remaining, self.reset_after_ms)
            }
        };
        let enforced = self.limits.iter().filter(|limit| !limit.is_shadow());
        let order = |limit: &&DecisionLimit<'_>| {
            (limit.remaining, Reverse(limit.reset_after_ms), limit.rule.clone().into_owned())
        };
        enforced.filter(is_binding).min_by_key(order)
    }
}

impl<'a> DecisionLimit<'a> {
    fn new(answer: &'a Answer, tier: &Tier, request: &'a Descriptor<'_>) -> Self {
        let (rule, verdict) = (answer.rules().rule(tier.rule), tier.verdict());
        DecisionLimit {
            rule: rule.label_in(Some(request)).into(),
            pattern: rule.pattern().as_str().into(),
            key: KeyText::Key(rule.key(request)),
            scope: rule.scope().as_str().into(),
            plan: rule.plan().map(Cow::from),
            allowed: verdict.allowed,
            limit: verdict.limit,
            remaining: counted(tier),
            retry_after_ms: verdict.retry_after.map(Micros::ceil_millis),
            reset_after_ms: verdict.reset_after.ceil_millis(),
            mode: tier.enforcement.as_str().into(),
        }
    }

    /// Whether it only counts.
    pub fn is_shadow(&self) -> bool {
        self.mode == "shadow"
    }
}

/// What is left in a bucket. A rule that failed open did not count.
pub(crate) fn counted(tier: &Tier) -> Option<u64> {
    (tier.instead() != Some(FailurePolicy::Open)).then_some(tier.verdict().remaining)
}

impl From<core::Degraded> for Degraded {
    fn from(core::Degraded { reason, policy }: core::Degraded) -> Self {
        Degraded { reason: reason.into(), policy: policy.as_str().into() }
    }
}

/// A decision that can be settled.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Reserved<'a> {
    /// 32 hexadecimal digits, and with Redis four letters more: a secret, with which the request is settled. Null where there
    /// is nothing to settle: the request may not pass, no limit applies, or the store is unavailable.
    #[schema(required)]
    pub reservation_id: Option<String>,
    /// How long there is to settle; null where there is nothing to.
    #[schema(required)]
    pub expires_in_ms: Option<u64>,
    #[serde(flatten)]
    pub decision: Decision<'a>,
}

/// A settled reservation, in the cost of the request.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Settled {
    pub reservation_id: String,
    pub reserved: u64,
    pub actual: u64,
    /// Given back.
    pub refunded: u64,
    /// Charged on top.
    pub charged: u64,
    /// Not charged, because a limit had no more to give.
    pub unpaid: u64,
    /// It was settled before, and these are the numbers of that time.
    pub already_settled: bool,
}

/// Which rules apply to a request, which do not, and why.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Explanation<'a> {
    #[schema(value_type = BTreeMap<String, String>)]
    pub attributes: Map<String, Value>,
    pub cost: u64,
    /// What a check would answer.
    pub decision: Decision<'a>,
    /// Every rule, in the order of the set.
    pub rules: Vec<RuleExplanation>,
}

/// Whether one rule applies to a request, and what its bucket has.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RuleExplanation {
    pub rule: String,
    pub applies: bool,
    /// Why it does not apply, or why it has no numbers although it does.
    #[schema(required)]
    pub reason: Option<String>,
    #[schema(required)]
    pub key: Option<String>,
    /// Whether it is the binding limit.
    pub speaks: bool,
    /// Null for a rule that denies or allows.
    #[schema(required)]
    pub limit: Option<String>,
    #[schema(required)]
    pub algorithm: Option<String>,
    #[schema(value_type = String, pattern = "^(enforce|shadow|off)$")]
    pub mode: Cow<'static, str>,
    #[schema(required)]
    pub before: Option<Level>,
    /// The level after this request; the same as before where the request is refused.
    #[schema(required)]
    pub after: Option<Level>,
    /// 0 where the request passes, null where no wait helps or the bucket was not asked.
    #[schema(required)]
    pub retry_after_ms: Option<u64>,
}

/// How full a bucket is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Level {
    /// The largest cost that would pass.
    pub remaining: u64,
    /// The wait until it is full; null where that is no longer known.
    #[schema(required)]
    pub reset_after_ms: Option<u64>,
}

impl From<&Verdict> for Level {
    fn from(verdict: &Verdict) -> Self {
        Level { remaining: verdict.remaining, reset_after_ms: Some(verdict.reset_after.ceil_millis()) }
    }
}

/// Recent decisions, newest first.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DecisionList {
    pub decisions: Vec<DecisionLine>,
    /// How many are kept.
    pub capacity: usize,
    /// How many there were since the start.
    pub recorded: u64,
}

/// A decision in a list.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DecisionLine {
    pub decision_id: String,
    pub at: String,
    pub at_ms: i64,
    /// `allowed`, `refused`, `denied` or `unavailable`.
    pub outcome: Cow<'static, str>,
    /// The rule of the binding limit.
    #[schema(required)]
    pub rule: Option<String>,
    #[schema(required)]
    pub key: Option<String>,
    pub cost: u64,
    #[schema(value_type = BTreeMap<String, String>)]
    pub attributes: Map<String, Value>,
    #[schema(required)]
    pub remaining: Option<u64>,
    #[schema(required)]
    pub retry_after_ms: Option<u64>,
    #[schema(required)]
    pub degraded: Option<Degraded>,
    /// Whether attributes were too long to be kept whole.
    pub cut: bool,
}

/// A recent decision, explained.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DecisionDetail<'a> {
    pub decision_id: Cow<'a, str>,
    pub at: String,
    pub at_ms: i64,
    pub outcome: Cow<'static, str>,
    #[schema(value_type = BTreeMap<String, String>)]
    pub attributes: Map<String, Value>,
    pub cost: u64,
    /// As it was answered.
    pub decision: Decision<'a>,
    pub rules: Vec<RuleExplanation>,
    /// Whether other rules are in effect by now.
    pub rules_changed: bool,
    /// Whether attributes were too long to be kept whole.
    pub cut: bool,
}

/// Every bucket that is shown as a key.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct KeyBuckets {
    pub key: String,
    pub buckets: Vec<Bucket>,
}

/// One bucket of a key.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Bucket {
    pub rule: String,
    /// `user`, `endpoint`, `ip`, `global` or `custom`.
    pub scope: Cow<'static, str>,
    #[schema(required)]
    pub plan: Option<String>,
    /// The conditions of the rule.
    pub when: BTreeMap<String, Vec<String>>,
    pub algorithm: Cow<'static, str>,
    pub limit: String,
    pub consistency: Cow<'static, str>,
    /// Where its decisions are made at present: `exact`, `leased` or `local`.
    pub in_force: Cow<'static, str>,
    /// Its tokens in a lease of this node.
    pub held: u64,
    pub mode: Cow<'static, str>,
    /// Whether it has a state.
    pub known: bool,
    pub remaining: u64,
    pub reset_after_ms: u64,
    /// The fields of its state; instants are microseconds since the Unix epoch.
    #[schema(required, value_type = Option<Object>)]
    pub state: Option<Value>,
}

/// What the server has done since it started, and how it is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    pub version: Cow<'static, str>,
    /// The address at which checks are answered; null for a server without listeners.
    #[schema(required)]
    pub checks_at: Option<String>,
    pub view: View,
    pub started_at: String,
    pub uptime_s: u64,
    pub now_ms: i64,
    pub totals: Totals,
    pub per_second: PerSecond,
    pub latency_us: Latency,
    /// The most refusals first.
    pub rules: Vec<RuleStats>,
    /// The most refusals first; their number is between `at_least` and `refused`.
    pub top_refused: Vec<TopRefused>,
    pub store: StoreStats,
    pub rule_set: RuleSetStats,
    #[schema(required)]
    pub violations: Option<ViolationStats>,
    /// Decisions made without the store.
    pub degraded: Vec<DegradedStats>,
}

/// Whose numbers these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum View {
    /// Those of the node that answers, since it started. Other nodes of a fleet count their own.
    Node,
}

/// Decisions since the start; the last two are among the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Totals {
    pub allowed: u64,
    pub refused: u64,
    pub denied: u64,
    pub unavailable: u64,
    /// Those that a rule in shadow mode would have refused.
    pub shadow_refused: u64,
    /// Those made without the store.
    pub degraded: u64,
}

/// The last seconds and the present one, oldest first. Every decision that is not allowed counts as refused.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PerSecond {
    pub start_s: u64,
    #[schema(max_items = 900)]
    pub allowed: Vec<u64>,
    #[schema(max_items = 900)]
    pub refused: Vec<u64>,
    /// Those of both that were decided without the store.
    #[schema(max_items = 900)]
    pub degraded: Vec<u64>,
}

/// How long decisions took, in microseconds, over the last one to two minutes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Latency {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
    pub count: u64,
}

/// The answers of one rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleStats {
    pub rule: String,
    pub allowed: u64,
    pub refused: u64,
    pub shadow_refused: u64,
}

/// The refusals of one bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopRefused {
    pub key: String,
    pub rule: String,
    pub refused: u64,
    pub at_least: u64,
}

/// The store. Fields that it does not count are absent.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct StoreStats {
    /// `memory` or `redis`.
    pub kind: Cow<'static, str>,
    /// Its address, without a password.
    pub shown: String,
    pub up: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buckets: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Buckets that were full and evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evictions: Option<u64>,
    /// Decisions that found no room for a bucket of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_steps: Option<u64>,
}

/// The rules in effect.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RuleSetStats {
    pub source: String,
    #[schema(required)]
    pub version: Option<String>,
    pub count: u64,
    /// How long ago they took effect.
    #[schema(required)]
    pub age_s: Option<u64>,
    /// Why they are not the newest.
    #[schema(required)]
    pub error: Option<String>,
    /// The enforced limits by failure policy; policies without rules are left out.
    pub on_store_failure: Vec<FailurePolicyRules>,
}

/// The enforced limits with one failure policy.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FailurePolicyRules {
    /// `open`, `closed` or `local`.
    pub policy: Cow<'static, str>,
    pub count: u64,
    /// Their names, at most 50.
    #[schema(max_items = 50)]
    pub rules: Vec<String>,
}

/// Recorded refusals.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ViolationStats {
    pub written: u64,
    pub dropped: u64,
    pub waiting: u64,
    /// Why the database cannot be written to.
    #[schema(required)]
    pub error: Option<String>,
}

/// Decisions made without the store, for one policy and reason.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DegradedStats {
    pub policy: Cow<'static, str>,
    pub reason: Cow<'static, str>,
    pub decisions: u64,
}

/// The rules of a server.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RuleList {
    pub source: String,
    /// Which rules are in effect.
    #[schema(required)]
    pub version: Option<i64>,
    pub writable: bool,
    /// Why those in effect are not the newest.
    #[schema(required)]
    pub error: Option<String>,
    pub rules: Vec<RuleEntry>,
}

/// A rule and its row in the database. Rules from elsewhere have no row.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RuleEntry {
    #[schema(required)]
    pub rule_id: Option<i64>,
    #[schema(required)]
    pub version: Option<i64>,
    #[schema(required)]
    pub created_at: Option<String>,
    #[schema(required)]
    pub updated_at: Option<String>,
    pub label: String,
    pub active: bool,
    #[serde(deserialize_with = "draft")]
    #[schema(value_type = Rule)]
    pub rule: Draft,
    /// Why the rule as listed here is not in effect. Absent for a rule that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The error of a rule that is valid, but part of a set that is not, or that was changed a moment ago.
pub(crate) const NOT_IN_EFFECT: &str = "not in effect: the last valid rules are, until every rule is valid";

impl RuleEntry {
    /// Why it is not a rule.
    pub fn problem(&self) -> Option<&str> {
        self.error.as_deref().filter(|error| *error != NOT_IN_EFFECT)
    }
}

/// The fields of a rule, as in a rules file.
#[derive(ToSchema)]
#[schema(example = json!({"key": "user:{user_id}", "limit": "10/s burst 50"}))]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct Rule(Map<String, Value>);

/// Changes of rules that are made together, or none of them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleEdits {
    pub edits: Vec<RuleEdit>,
}

/// One of them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RuleEdit {
    Add {
        #[schema(value_type = Rule)]
        rule: Box<RawValue>,
    },
    /// Unless the rule was changed since `version`.
    Update {
        rule_id: i64,
        version: i64,
        #[schema(value_type = Rule)]
        rule: Box<RawValue>,
    },
    /// Unless the rule was changed since `version`.
    Remove {
        rule_id: i64,
        version: i64,
    },
    /// In the mode that the rule had.
    Enable {
        rule_id: i64,
    },
    Disable {
        rule_id: i64,
    },
}

/// The rules that were added or changed, in the order of the edits.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RulesEdited {
    pub rules: Vec<RuleEntry>,
}

/// A page of changes, the newest first.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RuleHistory {
    pub history: Vec<RuleChange>,
    /// What to give as `before` for the next page.
    #[schema(required)]
    pub next: Option<i64>,
}

/// One change of a rule.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RuleChange {
    pub id: i64,
    pub rule_id: i64,
    pub at: String,
    pub who: String,
    /// `add`, `edit`, `enable`, `disable` or `remove`.
    pub action: Cow<'static, str>,
    #[serde(default, deserialize_with = "optional_draft")]
    #[schema(required, value_type = Option<Rule>)]
    pub before: Option<Draft>,
    #[serde(default, deserialize_with = "optional_draft")]
    #[schema(required, value_type = Option<Rule>)]
    pub after: Option<Draft>,
    /// The columns of the row before or after that cannot be read, and so are missing above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The rule as it is after an undo; null if it is gone.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RuleUndone {
    #[schema(required)]
    pub entry: Option<RuleEntry>,
}

/// How another set of rules differs from those in effect, by label.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Preview {
    pub valid: bool,
    pub added: Vec<String>,
    pub changed: Vec<String>,
    pub removed: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recent: Option<PreviewRecent>,
}

/// Recent requests decided by both sets, each from empty buckets.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PreviewRecent {
    /// Only requests that this node decided are replayed.
    pub view: View,
    pub requests: u64,
    /// Allowed by the rules in effect and refused by the others, the most frequent first.
    pub newly_refused: Vec<PreviewTurned>,
    /// Refused by the rules in effect and allowed by the others.
    pub newly_allowed: Vec<PreviewTurned>,
    pub refused_before: u64,
    pub refused_after: u64,
}

/// Requests that would be decided differently.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PreviewTurned {
    /// The bucket that refuses them.
    pub key: String,
    /// The rule that refuses them.
    pub rule: String,
    pub count: u64,
}

/// An answer that is not a success, as `application/problem+json`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct Problem {
    #[schema(required)]
    pub r#type: String,
    #[schema(required)]
    pub title: String,
    #[schema(required)]
    pub status: u16,
    /// What is wrong, and what to do about it.
    #[schema(required)]
    pub detail: String,
    /// Where in the body, or which parameter.
    pub path: Option<String>,
    /// Everything that is wrong with a rule or a set.
    pub errors: Option<Vec<Mistake>>,
    /// The rule as it is by now, where it was changed meanwhile.
    pub current: Option<RuleEntry>,
}

/// One thing that is wrong with a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Mistake {
    /// The name of the rule, or its key if it has no name.
    pub rule: Option<String>,
    /// The field, as in `limit` or `when.ip`; none where the whole rule is meant.
    #[serde(default)]
    pub field: Option<String>,
    /// What is wrong, and what to write instead.
    pub message: String,
}

/// Reads a rule as a rules file has it.
fn draft<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Draft, D::Error> {
    optional_draft(deserializer)?.ok_or_else(|| D::Error::custom("expected a rule"))
}

fn optional_draft<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Draft>, D::Error> {
    let Some(json) = Option::<Box<RawValue>>::deserialize(deserializer)? else { return Ok(None) };
    let drafts = tollgate::rules::parse_drafts("the rule", &format!("{{\"rules\": [{json}]}}"));
    drafts.map(|mut drafts| drafts.pop()).map_err(D::Error::custom)
}
