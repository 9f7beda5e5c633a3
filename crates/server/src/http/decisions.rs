//! `GET /v1/decisions` and `GET /v1/decisions/{id}`: what was decided a moment ago, and why.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use tollgate::audit::instant_text;
use tollgate::{Descriptor, Micros, Rule, Status, Tier, Timestamp};
use utoipa::IntoParams;

use super::App;
use super::explain::{attributes, rules};
use super::problem::Problem;
use super::query::Query;
use crate::api::{Decision, DecisionDetail, DecisionLine, DecisionList, Degraded, Level, counted};
use crate::record::Recorded;

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

/// List what was decided a moment ago.
#[utoipa::path(get, operation_id = "list_decisions", path = "/v1/decisions", tag = "operating", params(DecisionsQuery),
    responses((status = 200, description = "newest first", body = DecisionList),
        (status = 400, description = "a parameter that does not fit")))]
pub(super) async fn list(State(app): State<App>, uri: Uri) -> Result<Json<DecisionList>, Problem> {
    let query = Query::parse(&uri, &["limit", "outcome", "rule", "key"])?;
    let limit = query.number("limit", 1..=MOST)?.unwrap_or(USUAL);
    let limit = usize::try_from(limit).unwrap_or_default();
    let outcome = query.text("outcome").map(outcome_of).transpose()?;
    // Ten thousand slots take a while to read: not on a thread that decides.
    let listed = tokio::task::spawn_blocking(move || {
        let is_wanted = |recorded: &Recorded| {
            let request = recorded.request();
            let rule = recorded.binding_rule();
            let label = rule.map(|rule| rule.label_in(Some(&request)));
            let is_label = query.text("rule").is_none_or(|wanted| label == Some(wanted));
            let is_key = |wanted: &str| rule.is_some_and(|rule| rule.key(&request).to_string() == wanted);
            is_label && query.text("key").is_none_or(is_key)
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
        (status = 404, description = "no such decision, or no longer")))]
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
    let (answer, request) = (&recorded.answer, recorded.request());
    let detail = DecisionDetail {
        decision_id: recorded.id().into(),
        at: instant_text(answer.at()),
        at_ms: millis(answer.at()),
        outcome: answer.status().as_str().into(),
        attributes: attributes(&request),
        cost: recorded.cost,
        decision: Decision::new(answer, &request, Some(recorded.id())),
        rules: rules(&app.limiter, answer, &request, recorded.cost, |tier| levels(&recorded, &request, tier)),
        rules_changed: !recorded.is_ad_hoc() && !std::ptr::eq(answer.rules(), &*app.limiter.rules()),
        cut: recorded.is_cut,
    };
    Ok(Json(detail).into_response())
}

impl From<Recorded> for DecisionLine {
    fn from(recorded: Recorded) -> Self {
        let (answer, request) = (&recorded.answer, recorded.request());
        let rule = recorded.binding_rule();
        DecisionLine {
            decision_id: recorded.id().to_owned(),
            at: instant_text(answer.at()),
            at_ms: millis(answer.at()),
            outcome: answer.status().as_str().into(),
            rule: rule.map(|rule| rule.label_in(Some(&request)).to_owned()),
            key: rule.map(|rule| rule.key(&request).to_string()),
            cost: recorded.cost,
            attributes: attributes(&request),
            remaining: answer.binding_limit().and_then(counted),
            retry_after_ms: answer.retry_after().map(Micros::ceil_millis),
            degraded: answer.degraded().map(Degraded::from),
            cut: recorded.is_cut,
        }
    }
}

impl Recorded {
    /// The rule of the binding limit.
    pub(super) fn binding_rule(&self) -> Option<&Rule> {
        self.answer.binding_limit().map(|tier| self.answer.rules().rule(tier.rule))
    }
}

/// The levels of a bucket before and after a decision. They are unknown where a failure policy or a `deny` rule answered.
///
/// A charge took exactly its cost; only when the bucket would have been full before it is no longer known.
fn levels(recorded: &Recorded, request: &Descriptor<'_>, tier: &Tier) -> Option<(Level, Level)> {
    let verdict = tier.verdict();
    if tier.instead().is_some() || verdict.limit == 0 {
        return None;
    }
    let after = Level::from(verdict);
    let rule = recorded.answer.rules().rule(tier.rule);
    // A rule in shadow mode charges nothing where the cost is invalid.
    let cost = rule.cost(request, recorded.cost).unwrap_or(0);
    let is_charged = verdict.allowed && (recorded.answer.allowed() || !tier.enforces());
    if !is_charged || cost == 0 {
        return Some((after, after));
    }
    let remaining = after.remaining.saturating_add(cost).min(verdict.limit);
    Some((Level { remaining, reset_after_ms: (remaining == verdict.limit).then_some(0) }, after))
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
