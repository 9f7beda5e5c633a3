//! `/v1/rules/history`: who changed which rule when, and how to take that back.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::{Extension, Json};
use tollgate::core::Draft;
use tollgate::rules::{Change, RuleRow};

use super::super::App;
use super::super::auth::Caller;
use super::super::problem::Problem;
use super::super::query::Query;
use super::entry::in_utc;
use super::{number, refused};
use crate::api::{RuleChange, RuleHistory, RuleUndone};

/// Changes on a page, and the most there may be.
const USUAL: i64 = 100;
const MOST: i64 = 1_000;

/// List changes of rules, the newest first.
#[utoipa::path(get, operation_id = "list_rule_changes", path = "/v1/rules/history", tag = "rules",
    params(
        ("rule_id" = Option<i64>, Query, minimum = 1, description = "one rule's"),
        ("limit" = Option<i64>, Query, minimum = 1, maximum = 1000, description = "how many at most; 100 without it"),
        ("before" = Option<i64>, Query, minimum = 1, description = "`next` of the page before")),
    responses(
        (status = 200, description = "a page", body = RuleHistory),
        (status = 400, description = "a parameter that does not fit"),
        (status = 404, description = "rules without a history"),
        (status = 503, description = "the database gave no answer"),
    ))]
pub(crate) async fn history(State(app): State<App>, uri: Uri) -> Result<Json<RuleHistory>, Problem> {
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
    Ok(Json(RuleHistory { history: changes.into_iter().map(RuleChange::from).collect(), next }))
}

/// Take a change back, if it is the last of its rule.
#[utoipa::path(post, operation_id = "undo_rule_change", path = "/v1/rules/history/{id}/undo", tag = "rules",
    params(("id" = i64, Path, description = "the number of a change")),
    responses(
        (status = 200, description = "the rule as it is then", body = RuleUndone),
        (status = 400, description = "a header that does not fit"),
        (status = 422, description = "a rule that makes no sense, or not beside the others"),
        (status = 404, description = "no such change"),
        (status = 409, description = "the rules cannot be changed here"),
        (status = 412, description = "the rule was changed since"),
        (status = 503, description = "the database gave no answer"),
    ))]
pub(crate) async fn undo(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<RuleUndone>, Problem> {
    let book = app.rules.writable()?;
    let row = book.undo(&caller.name, number(id)?).await.map_err(refused)?;
    app.rules.refresh().await;
    let enforced = app.limiter.rules();
    Ok(Json(RuleUndone { entry: row.as_ref().map(|row| app.rules.entry(row, &enforced)) }))
}

impl From<Change> for RuleChange {
    fn from(change: Change) -> Self {
        RuleChange {
            error: unreadable(&change),
            id: change.history_id,
            rule_id: change.rule_id,
            action: action(change.before.as_ref(), change.after.as_ref()).into(),
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
