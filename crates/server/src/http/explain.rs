//! `POST /v1/explain`: which rules apply to a request, which do not, and why.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};
use tollgate::core::RuleIndex;
use tollgate::core::rule::{Action, Mismatch};
use tollgate::{Answer, Descriptor, Limiter, Micros, Rule, RuleSet, Status, Store, Tier};

use super::App;
use super::ask::{Asked, CheckBody, Place, Sent};
use super::problem::{Problem, Problems};
use crate::api::{Decision, Explanation, Level, RuleExplanation};

/// Say which rules a request meets, what each says, and why. Nothing is charged.
#[utoipa::path(post, path = "/v1/explain", tag = "operating", request_body = CheckBody,
    responses(
        (status = 200, description = "what every rule has to do with it", body = Explanation),
        Problems,
    ))]
pub(super) async fn explain(State(app): State<App>, Sent(bytes): Sent) -> Result<Response, Problem> {
    let asked = Asked::parse(&bytes, Place::AdHoc, &app.ad_hoc)?;
    let answer = app.peeked(&asked).await;
    let request = answer.request(&asked.request);
    // While the store is unavailable, the levels are unknown.
    let previews = app.limiter.preview(&answer, &request, asked.cost).await.unwrap_or_default();
    let levels = |tier: &Tier| {
        let preview = previews.iter().find(|preview| preview.rule == tier.rule)?;
        Some((Level::from(&preview.before), Level::from(&preview.after)))
    };
    let explanation = Explanation {
        attributes: attributes(&request),
        cost: asked.cost,
        decision: Decision::new(&answer, &request, None),
        rules: rules(&app.limiter, &answer, &request, asked.cost, levels),
    };
    Ok(Json(explanation).into_response())
}

/// The attributes of a request, as text.
pub(super) fn attributes(request: &Descriptor<'_>) -> Map<String, Value> {
    request.attributes().map(|(name, value)| (name.to_owned(), value.to_string().into())).collect()
}

/// What every rule of an answer has to do with its request, given as it was decided. `levels` are those of a bucket before
/// and after it.
pub(super) fn rules<S: Store>(
    limiter: &Limiter<S>,
    answer: &Answer,
    request: &Descriptor<'_>,
    cost: u64,
    levels: impl Fn(&Tier) -> Option<(Level, Level)>,
) -> Vec<RuleExplanation> {
    let rules = answer.rules();
    let explained = limiter.explain(rules, request);
    let explain = |one: &tollgate::Explanation<'_>| {
        let rule = rules.rule(one.rule);
        let applies = one.mismatch.is_none() && !one.replaced;
        let tier = answer.tiers().iter().find(|tier| tier.rule == one.rule);
        let reason = match (&one.mismatch, tier) {
            (Some(mismatch), _) => Some(reason(mismatch, request)),
            (None, _) if one.replaced => Some(replaced_by(rules, one.rule, &explained)),
            (None, None) => Some(unasked(rule, answer.status())),
            (None, Some(tier)) if tier.enforces() => answer.invalid_cost().map(ToString::to_string),
            (None, Some(_)) => rule.cost(request, cost).err().map(|error| error.to_string()),
        };
        let (before, after) = tier.and_then(&levels).unzip();
        RuleExplanation {
            rule: rule.label_in(Some(request)).to_owned(),
            applies,
            reason,
            key: applies.then(|| rule.key(request).to_string()),
            speaks: answer.binding_limit().is_some_and(|binding| binding.rule == one.rule),
            limit: rule.limit().map(ToString::to_string),
            algorithm: rule.limit().map(|limit| limit.algorithm_name().as_str().to_owned()),
            mode: rule.mode().as_str().into(),
            before,
            after,
            retry_after_ms: tier.and_then(|tier| tier.verdict().retry_after).map(Micros::ceil_millis),
        }
    };
    explained.iter().map(explain).collect()
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

fn replaced_by(rules: &RuleSet, index: RuleIndex, all: &[tollgate::Explanation<'_>]) -> String {
    let label = rules.rule(index).label();
    let replaces = |one: &&tollgate::Explanation<'_>| {
        let names = rules.rule(one.rule).replaces();
        one.mismatch.is_none() && !one.replaced && names.iter().any(|name| name == label)
    };
    match all.iter().find(replaces) {
        Some(one) => format!("replaced by {}", rules.rule(one.rule).label()),
        None => "replaced by another rule".to_owned(),
    }
}

/// Why a rule that applies has no numbers.
fn unasked(rule: &Rule, status: Status) -> String {
    match (rule.action(), status) {
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
