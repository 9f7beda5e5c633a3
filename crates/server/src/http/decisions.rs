//! `GET /v1/decisions` and `GET /v1/decisions/{id}`: what was decided a moment ago, and why.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tollgate::audit::instant_text;
use tollgate::core::Enforcement;
use tollgate::{Limiter, Micros, RuleSet, Status, Store, Timestamp};
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::body::{DecisionBody, DegradedBody, counted};
use super::problem::Problem;
use super::query::Query;
use crate::explain::{Level, Line, beside};
use crate::record::{Recorded, RecordedTier};

/// Decisions on a page, and the most there may be.
const USUAL: i64 = 100;
const MOST: i64 = 1_000;

/// Which decisions to list.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) struct DecisionsQuery {
    /// How many at most.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<i64>,
    /// `allowed`, `refused`, `denied` or `unavailable`.
    #[param(pattern = "^(allowed|refused|denied|unavailable)$")]
    outcome: Option<String>,
    /// By the rule that spoke.
    rule: Option<String>,
    /// By the key of the rule that spoke.
    key: Option<String>,
}

/// The last decisions, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DecisionList {
    decisions: Vec<DecisionLine>,
    /// How many are kept.
    capacity: usize,
    /// How many there were.
    recorded: u64,
}

/// A decision in a list.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DecisionLine {
    decision_id: String,
    at: String,
    at_ms: i64,
    /// `allowed`, `refused`, `denied` or `unavailable`.
    outcome: &'static str,
    /// The rule that spoke.
    #[schema(required)]
    rule: Option<String>,
    #[schema(required)]
    key: Option<String>,
    cost: u64,
    #[schema(value_type = BTreeMap<String, String>)]
    attributes: serde_json::Map<String, serde_json::Value>,
    #[schema(required)]
    remaining: Option<u64>,
    #[schema(required)]
    retry_after_ms: Option<u64>,
    #[schema(required)]
    degraded: Option<DegradedBody>,
    /// Whether something of it was too long to be kept.
    cut: bool,
}

/// A decision of a moment ago, explained.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DecisionDetail<'a> {
    decision_id: &'a str,
    at: String,
    at_ms: i64,
    outcome: &'static str,
    #[schema(value_type = BTreeMap<String, String>)]
    attributes: serde_json::Map<String, serde_json::Value>,
    cost: u64,
    /// As it was answered.
    decision: DecisionBody<'a>,
    rules: Vec<Line>,
    /// Whether other rules are in effect by now; those that did not match are explained by them.
    rules_changed: bool,
    /// Whether something of it was too long to be kept.
    cut: bool,
}

/// List what was decided a moment ago.
#[utoipa::path(get, operation_id = "list_decisions", path = "/v1/decisions", tag = "operating", params(DecisionsQuery),
    responses((status = 200, description = "newest first", body = DecisionList),
        (status = 400, description = "a parameter that does not fit", body = super::problem::ProblemBody,
            content_type = "application/problem+json")))]
pub(super) async fn list(State(app): State<App>, uri: Uri) -> Result<Json<DecisionList>, Problem> {
    let query = Query::parse(&uri, &["limit", "outcome", "rule", "key"])?;
    let limit = query.number("limit", 1..=MOST)?.unwrap_or(USUAL);
    let limit = usize::try_from(limit).unwrap_or_default();
    let outcome = query.text("outcome").map(outcome_of).transpose()?;
    // Ten thousand slots take a while to read: not on a thread that decides.
    let listed = tokio::task::spawn_blocking(move || {
        let is_wanted = |recorded: &Recorded| {
            let speaker = recorded.binding_limit();
            let fits = |name, text: fn(&RecordedTier) -> &String| match query.text(name) {
                None => true,
                Some(wanted) => speaker.is_some_and(|speaker| text(speaker) == wanted),
            };
            fits("rule", |tier| &tier.rule) && fits("key", |tier| &tier.key)
        };
        let newest = app.recorder.newest(|known| outcome.is_none_or(|outcome| outcome == known));
        DecisionList {
            decisions: newest.filter(is_wanted).take(limit).map(DecisionLine::from).collect(),
            capacity: app.recorder.capacity(),
            recorded: app.recorder.recorded(),
        }
    });
    listed.await.map(Json).map_err(|_| Problem::interrupted())
}

/// Look at one decision: what was answered, and what every rule had to do with it.
#[utoipa::path(get, operation_id = "get_decision", path = "/v1/decisions/{id}", tag = "operating",
    params(("id" = String, Path, description = "the `decision_id` of an answer")),
    responses((status = 200, description = "the decision", body = DecisionDetail),
        (status = 404, description = "no such decision, or no longer", body = super::problem::ProblemBody,
            content_type = "application/problem+json")))]
pub(super) async fn get(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let Path(id) = id.map_err(|error| Problem::missing(error.body_text()))?;
    let Some(recorded) = app.recorder.find(&id) else {
        let detail = match app.recorder.capacity() {
            0 => "no decisions are kept; start with --decisions 10000".to_owned(),
            kept => {
                format!("there is no decision `{id}` among the last {kept}; GET /v1/decisions lists them")
            }
        };
        return Err(Problem::missing(detail));
    };
    let current = app.limiter.rules();
    let detail = DecisionDetail {
        decision_id: &recorded.id,
        at: instant_text(recorded.at),
        at_ms: millis(recorded.at),
        outcome: Status::as_str(recorded.status),
        attributes: attributes(&recorded),
        cost: recorded.cost,
        decision: DecisionBody::recorded(&recorded),
        rules: lines(&app.limiter, &current, &recorded),
        rules_changed: app.recorder.rules_changed(&recorded, &current),
        cut: recorded.cut,
    };
    Ok(Json(detail).into_response())
}

impl From<Recorded> for DecisionLine {
    fn from(recorded: Recorded) -> Self {
        let speaker = recorded.binding_limit();
        let verdict = speaker.map(|speaker| speaker.verdict);
        let wait = verdict.map_or(Some(Micros::ZERO), |verdict| verdict.retry_after);
        DecisionLine {
            at: instant_text(recorded.at),
            at_ms: millis(recorded.at),
            outcome: Status::as_str(recorded.status),
            rule: speaker.map(|speaker| speaker.rule.clone()),
            key: speaker.map(|speaker| speaker.key.clone()),
            cost: recorded.cost,
            attributes: attributes(&recorded),
            remaining: speaker.and_then(|speaker| counted(&speaker.verdict, speaker.instead)),
            retry_after_ms: wait.map(Micros::ceil_millis),
            degraded: recorded.degraded.map(DegradedBody::from),
            cut: recorded.cut,
            decision_id: recorded.id,
        }
    }
}

/// What every rule had to do with it: those that had a say as recorded, the others by the present rules.
fn lines<S: Store>(limiter: &Limiter<S>, rules: &RuleSet, recorded: &Recorded) -> Vec<Line> {
    let mut said: Vec<Option<&RecordedTier>> = recorded.tiers.iter().map(Some).collect();
    let mut take = |label: &str| {
        said.iter_mut().find(|tier| tier.is_some_and(|tier| tier.rule == label)).and_then(Option::take)
    };
    let request = recorded.request();
    let mut lines = Vec::new();
    if !recorded.is_ad_hoc() {
        let explained = limiter.explain(rules, &request);
        for one in &explained {
            let line = Line::of(rules, one, &explained, &request);
            let beside = || beside(rules.rule(one.rule), recorded.status);
            lines.push(match take(&line.rule) {
                Some(tier) => recall(line, tier, recorded),
                None if line.applies => Line { reason: Some(beside()), ..line },
                None => line,
            });
        }
    }
    // Rules that are not there any more, and limits that came with their request.
    lines.extend(said.into_iter().flatten().map(|tier| recall(Line::gone(tier), tier, recorded)));
    lines
}

/// A line with what was recorded in place of what is.
fn recall(line: Line, tier: &RecordedTier, recorded: &Recorded) -> Line {
    let speaks = recorded.binding_limit().is_some_and(|speaker| speaker.rule == tier.rule);
    // A policy that stood in for the store, or a rule that denies, knows no level.
    let after = (tier.instead.is_none() && tier.verdict.limit > 0).then(|| Level::from(&tier.verdict));
    Line {
        applies: true,
        reason: None,
        key: Some(tier.key.clone()),
        speaks,
        mode: tier.enforcement.as_str().into(),
        before: after.map(|after| before(after, tier, recorded)),
        after,
        retry_after_ms: tier.verdict.retry_after.map(Micros::ceil_millis),
        ..line
    }
}

/// What a charge took is exactly what was there before it; only when that would be full again is not known any more.
fn before(after: Level, tier: &RecordedTier, recorded: &Recorded) -> Level {
    let asked = recorded.status == Status::Allowed || tier.enforcement == Enforcement::Shadow;
    if !asked || !tier.verdict.allowed || tier.cost == 0 {
        return after;
    }
    let remaining = after.remaining.saturating_add(tier.cost).min(tier.verdict.limit);
    Level { remaining, reset_after_ms: (remaining == tier.verdict.limit).then_some(0) }
}

impl Line {
    /// A rule that nobody knows but the decision itself.
    fn gone(tier: &RecordedTier) -> Self {
        Line {
            rule: tier.rule.clone(),
            applies: true,
            reason: None,
            key: None,
            speaks: false,
            limit: tier.limit.clone(),
            algorithm: tier.algorithm.clone(),
            mode: tier.enforcement.as_str().into(),
            before: None,
            after: None,
            retry_after_ms: None,
            tier: None,
        }
    }
}

fn attributes(recorded: &Recorded) -> serde_json::Map<String, serde_json::Value> {
    recorded.attributes.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect()
}

fn outcome_of(word: &str) -> Result<Status, Problem> {
    let all = [Status::Allowed, Status::Refused, Status::Denied, Status::Unavailable];
    all.into_iter().find(|outcome| outcome.as_str() == word).ok_or_else(|| {
        let words = "`allowed`, `refused`, `denied` or `unavailable`";
        Problem::bad_query("outcome", format!("`outcome` is {words}, not `{word}`"))
    })
}

/// Whole milliseconds since the Unix epoch.
pub(super) const fn millis(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(1_000)
}
