//! Which rules a request meets, which not, what each says, and why.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use tollgate::core::rule::{Action, Mismatch};
use tollgate::core::{Enforcement, RuleIndex, Value};
use tollgate::{
    Answer, BucketPreview, Descriptor, Explanation, Limiter, Micros, Rule, RuleSet, Status, Store, Tier,
    Verdict,
};
use utoipa::ToSchema;

use crate::http::DecisionBody;

/// Everything there is to say about a request: what `tollgate explain --json` prints and `POST /v1/explain` answers.
///
/// The decision is a [`DecisionBody`] where it is written, and any JSON where it is read.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Report<D = serde_json::Value> {
    /// The facts about the request.
    #[schema(value_type = BTreeMap<String, String>)]
    pub attributes: serde_json::Map<String, serde_json::Value>,
    /// What it costs.
    pub cost: u64,
    /// What a check would answer.
    pub decision: D,
    /// What each rule has to do with it, in the order of the set.
    pub rules: Vec<Line>,
}

/// What one rule has to do with a request.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Line {
    /// The rule, by its label.
    pub rule: String,
    /// Whether it applies.
    pub applies: bool,
    /// Why it does not, or what it did where it has no numbers.
    #[schema(required)]
    pub reason: Option<String>,
    /// The bucket that the request falls into.
    #[schema(required)]
    pub key: Option<String>,
    /// Whether its numbers are the decision's.
    pub speaks: bool,
    /// Its limit, unless it denies or allows.
    #[schema(required)]
    pub limit: Option<String>,
    /// How that counts.
    #[schema(required)]
    pub algorithm: Option<String>,
    /// Whether it refuses, only counts, or sleeps.
    #[schema(value_type = String, pattern = "^(enforce|shadow|off)$")]
    pub mode: Cow<'static, str>,
    /// What its bucket has.
    #[schema(required)]
    pub before: Option<Level>,
    /// What it would have after this request; the same where that is refused.
    #[schema(required)]
    pub after: Option<Level>,
    /// When the request would pass; 0 where it does, null where no wait helps or nobody was asked.
    #[schema(required)]
    pub retry_after_ms: Option<u64>,
    /// What the bucket said, where it was asked just now.
    #[serde(skip)]
    #[schema(ignore)]
    pub tier: Option<Tier>,
}

/// How full a bucket is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Level {
    /// The largest cost that would pass.
    pub remaining: u64,
    /// When it is as good as new; null where nobody knows any more.
    #[schema(required)]
    pub reset_after_ms: Option<u64>,
}

impl From<&Verdict> for Level {
    fn from(verdict: &Verdict) -> Self {
        Level { remaining: verdict.remaining, reset_after_ms: Some(verdict.reset_after.ceil_millis()) }
    }
}

impl<'a> Report<DecisionBody<'a>> {
    /// Explains the answer to a [peek](tollgate::Request::peek); the request is given as it was decided
    /// ([`Answer::request`]).
    pub async fn of<S: Store>(
        limiter: &Limiter<S>,
        answer: &'a Answer,
        request: &'a Descriptor<'_>,
        cost: u64,
    ) -> Self {
        // Where the store is away, nobody knows what the buckets hold.
        let previews = limiter.preview(answer, request, cost).await.unwrap_or_default();
        Report {
            attributes: attributes(request),
            cost,
            decision: DecisionBody::new(answer, request, None),
            rules: lines(limiter, answer, request, cost, &previews),
        }
    }
}

/// The facts about a request, as text.
pub(crate) fn attributes(request: &Descriptor<'_>) -> serde_json::Map<String, serde_json::Value> {
    let text = |value: &Value<'_>| value.to_string().into();
    request.attributes().map(|(name, value)| (name.to_owned(), text(value))).collect()
}

fn lines<S: Store>(
    limiter: &Limiter<S>,
    answer: &Answer,
    request: &Descriptor<'_>,
    cost: u64,
    previews: &[BucketPreview],
) -> Vec<Line> {
    let rules = answer.rules();
    let explained = limiter.explain(rules, request);
    let line = |one: &Explanation<'_>| {
        let tier = answer.tiers().iter().find(|tier| tier.rule == one.rule).copied();
        let preview = previews.iter().find(|preview| preview.rule == one.rule);
        let mut line = Line::of(rules, one, &explained, request);
        if line.applies {
            let rule = rules.rule(one.rule);
            line.reason = match tier {
                None => Some(beside(rule, answer.status())),
                Some(Tier { enforcement: Enforcement::Enforce, .. }) => {
                    answer.invalid_cost().map(ToString::to_string)
                }
                Some(_) => rule.cost(request, cost).err().map(|error| error.to_string()),
            };
        }
        line.speaks = answer.binding_limit().is_some_and(|binding| binding.rule == one.rule);
        line.before = preview.map(|preview| Level::from(&preview.before));
        line.after = preview.map(|preview| Level::from(&preview.after));
        line.retry_after_ms = tier.and_then(|tier| tier.verdict().retry_after).map(Micros::ceil_millis);
        Line { tier, ..line }
    };
    explained.iter().map(line).collect()
}

impl Line {
    /// What can be said about a rule before any bucket is asked.
    pub(crate) fn of(
        rules: &RuleSet,
        one: &Explanation<'_>,
        all: &[Explanation<'_>],
        request: &Descriptor<'_>,
    ) -> Self {
        let rule = rules.rule(one.rule);
        let applies = one.mismatch.is_none() && !one.replaced;
        let reason = match &one.mismatch {
            Some(mismatch) => Some(reason(mismatch, request)),
            None if one.replaced => Some(replaced_by(rules, one.rule, all)),
            None => None,
        };
        Line {
            rule: rule.label_in(Some(request)).to_owned(),
            applies,
            reason,
            key: applies.then(|| rule.key(request).to_string()),
            speaks: false,
            limit: rule.limit().map(ToString::to_string),
            algorithm: rule.limit().map(|limit| limit.algorithm_name().as_str().to_owned()),
            mode: rule.mode().as_str().into(),
            before: None,
            after: None,
            retry_after_ms: None,
            tier: None,
        }
    }
}

fn reason(mismatch: &Mismatch<'_>, request: &Descriptor<'_>) -> String {
    match mismatch {
        Mismatch::Condition(condition) => {
            let attribute = condition.attribute();
            let here = match (request.text(attribute), request.encoded_endpoint()) {
                (Some(value), Some(encoded)) if attribute == "endpoint" => {
                    format!("here it is {value}, or {encoded} if its %2F is kept")
                }
                (Some(value), _) => format!("here it is {value}"),
                (None, _) => format!("the request has no {attribute}"),
            };
            format!("only where {}; {here}", condition.describe())
        }
        other => other.to_string(),
    }
}

fn replaced_by(rules: &RuleSet, index: RuleIndex, all: &[Explanation<'_>]) -> String {
    let label = rules.rule(index).label();
    let replaces = |one: &&Explanation<'_>| {
        let names = rules.rule(one.rule).replaces();
        one.mismatch.is_none() && !one.replaced && names.iter().any(|name| name == label)
    };
    match all.iter().find(replaces) {
        Some(one) => format!("replaced by {}", rules.rule(one.rule).label()),
        None => "replaced by another rule".to_owned(),
    }
}

/// Why a rule that applies has no numbers.
pub(crate) fn beside(rule: &Rule, outcome: Status) -> String {
    match (rule.action(), outcome) {
        (_, Status::Denied) => "not asked: another rule denies the request".to_owned(),
        (_, Status::Invalid) => "not asked: the cost is invalid".to_owned(),
        (Action::Allow, _) => "exempts the request from every limit".to_owned(),
        _ => "not asked: another rule exempts the request".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tollgate::core::Draft;

    use super::*;

    #[test]
    fn both_readings_of_a_path_are_shown_where_an_allow_needs_both() {
        let draft = Draft {
            key: "ip:{ip}".to_owned(),
            action: Some("allow".to_owned()),
            when: [("endpoint".to_owned(), vec!["/public/**".to_owned()])].into(),
            ..Draft::default()
        };
        let rule = draft.build().unwrap();
        let request = Descriptor::new().with("ip", "203.0.113.7").with("endpoint", "/x%2F../public/a");
        let said = reason(&rule.applies_to(&request).unwrap_err(), &request);
        assert!(said.ends_with("here it is /public/a, or /x%2F../public/a if its %2F is kept"), "{said}");
    }
}
