//! `/v1/rules/history`: who changed which rule when, and how to take that back.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use serde::Serialize;
use tollgate::core::Draft;
use tollgate::rules::{Change, RuleRow};
use utoipa::ToSchema;

use super::super::App;
use super::super::problem::{Problem, ProblemBody};
use super::super::query::Query;
use super::entry::{Entry, in_utc};
use super::{RuleBody, actor, number, refused};

/// Changes on a page, and the most there may be.
const USUAL: i64 = 100;
const MOST: i64 = 1_000;

/// A page of changes, the newest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RuleHistory)]
pub(crate) struct HistoryBody {
    history: Vec<ChangeBody>,
    /// What to give as `before` for the next page.
    #[schema(required)]
    next: Option<i64>,
}

/// One change.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RuleChange)]
struct ChangeBody {
    id: i64,
    rule_id: i64,
    at: String,
    who: String,
    action: &'static str,
    #[schema(required, value_type = Option<RuleBody>)]
    before: Option<Draft>,
    #[schema(required, value_type = Option<RuleBody>)]
    after: Option<Draft>,
    /// What of the row before or after is not a rule, and so is missing above.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The rule as it is after an undo; none if it is gone.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RuleUndone)]
pub(crate) struct UndoneBody {
    #[schema(required)]
    entry: Option<Entry>,
}

/// List changes of rules, the newest first.
#[utoipa::path(get, operation_id = "list_rule_changes", path = "/v1/rules/history", tag = "rules",
    params(
        ("rule_id" = Option<i64>, Query, minimum = 1, description = "one rule's"),
        ("limit" = Option<i64>, Query, minimum = 1, maximum = 1000, description = "how many at most; 100 without it"),
        ("before" = Option<i64>, Query, minimum = 1, description = "`next` of the page before")),
    responses(
        (status = 200, description = "a page", body = HistoryBody),
        (status = 400, description = "a parameter that does not fit", body = ProblemBody,
            content_type = "application/problem+json"),
        (status = 404, description = "rules without a history", body = ProblemBody,
            content_type = "application/problem+json"),
        (status = 503, description = "the database gave no answer", body = ProblemBody,
            content_type = "application/problem+json"),
    ))]
pub(crate) async fn history(State(app): State<App>, uri: Uri) -> Result<Json<HistoryBody>, Problem> {
    let query = Query::parse(&uri, &["rule_id", "limit", "before"])?;
    let rule_id = query.number("rule_id", 1..=i64::MAX)?;
    let before = query.number("before", 1..=i64::MAX)?.unwrap_or(i64::MAX);
    let limit = query.number("limit", 1..=MOST)?.unwrap_or(USUAL);
    let limit = usize::try_from(limit).unwrap_or_default();
    // One more tells whether there is another page.
    let asked = u32::try_from(limit + 1).unwrap_or(u32::MAX);
    let book = app.rules.numbered()?;
    let mut changes = book.history_before(before, rule_id, asked).await.map_err(refused)?;
    let more = changes.len() > limit;
    changes.truncate(limit);
    let next = changes.last().filter(|_| more).map(|last| last.history_id);
    Ok(Json(HistoryBody { history: changes.into_iter().map(ChangeBody::from).collect(), next }))
}

/// Take a change back, if it is the last of its rule.
#[utoipa::path(post, operation_id = "undo_rule_change", path = "/v1/rules/history/{id}/undo", tag = "rules",
    params(("id" = i64, Path, description = "the number of a change"),
        ("Tollgate-Actor" = Option<String>, Header, description = "who the history says it was")),
    responses(
        (status = 200, description = "the rule as it is then", body = UndoneBody),
        (status = 400, description = "a header that does not fit", body = ProblemBody,
            content_type = "application/problem+json"),
        (status = 422, description = "a rule that makes no sense, or not beside the others", body = ProblemBody,
            content_type = "application/problem+json"),
        (status = 404, description = "no such change", body = ProblemBody,
            content_type = "application/problem+json"),
        (status = 409, description = "the rules cannot be changed here", body = ProblemBody,
            content_type = "application/problem+json"),
        (status = 412, description = "the rule was changed since", body = ProblemBody,
            content_type = "application/problem+json"),
        (status = 503, description = "the database gave no answer", body = ProblemBody,
            content_type = "application/problem+json"),
    ))]
pub(crate) async fn undo(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Json<UndoneBody>, Problem> {
    let book = app.rules.writable()?;
    let row = book.undo(actor(&headers)?, number(id)?).await.map_err(refused)?;
    app.rules.refresh().await;
    let enforced = app.limiter.rules();
    Ok(Json(UndoneBody { entry: row.as_ref().map(|row| Entry::of_row(row, &enforced)) }))
}

impl From<Change> for ChangeBody {
    fn from(change: Change) -> Self {
        ChangeBody {
            error: unreadable(&change),
            id: change.history_id,
            rule_id: change.rule_id,
            action: action(change.before.as_ref(), change.after.as_ref()),
            at: in_utc(&change.changed_at),
            who: change.changed_by,
            before: change.before.as_ref().map(RuleRow::draft),
            after: change.after.as_ref().map(RuleRow::draft),
        }
    }
}

/// The columns of the row before and after that are not in its draft.
fn unreadable(change: &Change) -> Option<String> {
    let sides = [("before", &change.before), ("after", &change.after)];
    let columns = sides.into_iter().flat_map(|(side, row)| {
        let columns = row.iter().flat_map(|row| &row.unreadable);
        columns.map(move |column| format!("{side}: {column}"))
    });
    let columns: Vec<String> = columns.collect();
    (!columns.is_empty()).then(|| columns.join("; "))
}

/// What was done to the rule, in a word. To turn it on or off and nothing else has words of its own.
fn action(before: Option<&RuleRow>, after: Option<&RuleRow>) -> &'static str {
    let (Some(before), Some(after)) = (before, after) else {
        return if before.is_none() { "add" } else { "remove" };
    };
    let without_mode = |row: &RuleRow| Draft { mode: None, ..row.draft() };
    match (before.is_active, after.is_active) {
        _ if without_mode(before) != without_mode(after) => "edit",
        (false, true) => "enable",
        (true, false) => "disable",
        _ => "edit",
    }
}
