//! `/v1/rules`: the rules to look at and, where they are in a database, to change.
//!
//! ```text
//! body --read--> draft --RuleBook--> the database --Follower--> the limiter, before the change is answered
//! ```

pub(super) mod edits;
mod entry;
pub(super) mod history;
mod if_match;
pub(super) mod preview;
mod read;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{ETAG, LOCATION};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use tollgate::RuleSet;
use tollgate::rules::{BookError, Refresher, RuleBook, RuleRow, RulesStatus};

pub(super) use read::set_of as read_set;

use super::App;
use super::ask::Sent;
use super::auth::Caller;
use super::problem::{Problem, Problems};
use crate::api::{Mistake, Rule, RuleEntry, RuleList};
use if_match::IfMatch;

/// A change is answered by then, also if it has not taken effect yet.
const IN_EFFECT_WITHIN: Duration = Duration::from_secs(5);

/// Where the rules are kept, and so whether they can be changed.
#[derive(Debug, Clone)]
pub enum RulesHome {
    /// A file by its name: to be changed there.
    File(String),
    /// Something that was read once, and what to call it.
    Fixed(String),
    /// A database that is changed here, and takes effect wherever it is followed.
    Book(RuleBook),
    /// A database: changed here, and in effect when that is answered.
    Database {
        /// The rules there.
        book: RuleBook,
        /// Which of them are in effect.
        status: RulesStatus,
        /// What brings a change into effect.
        refresher: Refresher,
    },
}

impl RulesHome {
    /// What to call them, without a password.
    pub(super) fn shown(&self) -> &str {
        match self {
            RulesHome::File(shown) | RulesHome::Fixed(shown) => shown,
            RulesHome::Book(book) | RulesHome::Database { book, .. } => book.database().shown(),
        }
    }

    /// Which of them are in effect, where somebody follows them.
    pub(super) fn status(&self) -> Option<&RulesStatus> {
        match self {
            RulesHome::Database { status, .. } => Some(status),
            RulesHome::File(_) | RulesHome::Fixed(_) | RulesHome::Book(_) => None,
        }
    }

    /// A row as it is listed, while these rules are in effect.
    fn entry(&self, row: &RuleRow, enforced: &RuleSet) -> RuleEntry {
        match self {
            RulesHome::Database { .. } => RuleEntry::of_row(row, enforced),
            _ => RuleEntry::of_row_alone(row),
        }
    }

    /// The rules to change, if they can be.
    fn writable(&self) -> Result<&RuleBook, Problem> {
        let detail = match self {
            RulesHome::Book(book) | RulesHome::Database { book, .. } => return Ok(book),
            RulesHome::File(name) => {
                format!(
                    "the rules are those of the file {name}; edit it, and they are in effect within a second"
                )
            }
            RulesHome::Fixed(shown) => {
                format!(
                    "the rules were read from {shown}; to change them here, start with --rules sqlite://path"
                )
            }
        };
        Err(Problem::new(StatusCode::CONFLICT, "the rules cannot be changed here", detail))
    }

    /// The rules with numbers and a past, if they have these.
    fn numbered(&self) -> Result<&RuleBook, Problem> {
        match self {
            RulesHome::Book(book) | RulesHome::Database { book, .. } => Ok(book),
            RulesHome::File(shown) | RulesHome::Fixed(shown) => Err(Problem::missing(format!(
                "rules from {shown} have no numbers and no history: a file keeps no history, a database does"
            ))),
        }
    }

    /// Brings a change into effect.
    async fn refresh(&self) {
        let RulesHome::Database { refresher, .. } = self else { return };
        if tokio::time::timeout(IN_EFFECT_WITHIN, refresher.refresh()).await.is_err() {
            tracing::warn!("a change of rules was answered before it took effect");
        }
    }
}

/// List the rules.
#[utoipa::path(get, operation_id = "list_rules", path = "/v1/rules", tag = "rules",
    responses(
        (status = 200, description = "every rule, also those that are off", body = RuleList),
        (status = 503, description = "the database gave no answer"),
    ))]
pub(super) async fn list(State(app): State<App>) -> Result<Response, Problem> {
    let home = &*app.rules;
    let mut body = RuleList {
        source: home.shown().to_owned(),
        version: None,
        writable: false,
        error: None,
        rules: Vec::new(),
    };
    match home {
        RulesHome::Database { book, status, .. } => {
            let rows = Arc::new(book.list().await.map_err(refused)?);
            body.rules = entries(&app, book, &rows).await?;
            if body.rules.iter().any(RuleEntry::is_not_in_effect) {
                // Perhaps a change that this node has not read yet.
                home.refresh().await;
                body.rules = entries(&app, book, &rows).await?;
            }
            let report = status.report();
            (body.version, body.error, body.writable) = (report.version.parse().ok(), report.error, true);
        }
        RulesHome::Book(book) => {
            let rows = book.list().await.map_err(refused)?;
            body.rules = RuleEntry::of_rows(book, &rows, None);
            body.writable = true;
        }
        RulesHome::File(_) | RulesHome::Fixed(_) => {
            body.rules = app.limiter.rules().rules().iter().map(RuleEntry::of_rule).collect();
            body.error = app.report().and_then(|report| report.error);
        }
    }
    Ok(Json(body).into_response())
}

/// Rows as they are listed. There may be many, so they are not compared on a thread that decides.
async fn entries(app: &App, book: &RuleBook, rows: &Arc<Vec<RuleRow>>) -> Result<Vec<RuleEntry>, Problem> {
    let (book, rows, enforced) = (book.clone(), Arc::clone(rows), app.limiter.rules().to_arc());
    let compared = tokio::task::spawn_blocking(move || RuleEntry::of_rows(&book, &rows, Some(&enforced)));
    compared.await.map_err(|_| Problem::interrupted())
}

/// Add a rule, which is in effect when this is answered.
#[utoipa::path(post, operation_id = "add_rule", path = "/v1/rules", tag = "rules",
    request_body = Rule,
    responses(
        (status = 201, description = "added", body = RuleEntry),
        (status = 422, description = "a rule that makes no sense, or not beside the others"),
        (status = 409, description = "the rules cannot be changed here"),
        (status = 503, description = "the database gave no answer"),
        Problems,
    ))]
pub(super) async fn add(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Sent(body): Sent,
) -> Result<Response, Problem> {
    let book = app.rules.writable()?;
    let draft = read::rule(&body)?;
    let row = book.add(&caller.name, draft).await.map_err(refused)?;
    app.rules.refresh().await;
    let place = HeaderValue::try_from(format!("/v1/rules/{}", row.rule_id)).ok();
    let mut response = entry(StatusCode::CREATED, &row, &app);
    response.headers_mut().extend(place.map(|place| (LOCATION, place)));
    Ok(response)
}

/// Look at a rule.
#[utoipa::path(get, operation_id = "get_rule", path = "/v1/rules/{id}", tag = "rules",
    params(("id" = i64, Path, description = "the number of a rule")),
    responses(
        (status = 200, description = "the rule", body = RuleEntry),
        (status = 404, description = "no such rule, or rules without numbers"),
        (status = 503, description = "the database gave no answer"),
    ))]
pub(super) async fn get(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let row = app.rules.numbered()?.get(number(id)?).await.map_err(refused)?;
    Ok(entry(StatusCode::OK, &row, &app))
}

/// Replace a rule.
#[utoipa::path(put, operation_id = "replace_rule", path = "/v1/rules/{id}", tag = "rules",
    params(("id" = i64, Path, description = "the number of a rule"),
        ("If-Match" = Option<String>, Header, description = "the ETag of the rule as it was seen, or `*`")),
    request_body = Rule,
    responses(
        (status = 200, description = "replaced", body = RuleEntry),
        (status = 422, description = "a rule that makes no sense, or not beside the others"),
        (status = 404, description = "no such rule"),
        (status = 409, description = "the rules cannot be changed here"),
        (status = 412, description = "the rule was changed meanwhile"),
        (status = 428, description = "If-Match is missing"),
        (status = 503, description = "the database gave no answer"),
        Problems,
    ))]
pub(super) async fn put(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    Extension(caller): Extension<Caller>,
    Sent(body): Sent,
) -> Result<Response, Problem> {
    let change = Change::of(&app, id, &headers, &caller).await?;
    let draft = read::rule(&body)?;
    read::gives_what_is_unreadable(&change.seen, read::Change::Replace, &body)?;
    change.update(&app, draft).await
}

/// Change fields of a rule (a JSON merge patch).
#[utoipa::path(patch, operation_id = "patch_rule", path = "/v1/rules/{id}", tag = "rules",
    params(("id" = i64, Path, description = "the number of a rule"),
        ("If-Match" = Option<String>, Header, description = "the ETag of the rule as it was seen, or `*`")),
    request_body = Rule,
    responses(
        (status = 200, description = "changed", body = RuleEntry),
        (status = 422, description = "a rule that makes no sense, or not beside the others"),
        (status = 404, description = "no such rule"),
        (status = 409, description = "the rules cannot be changed here"),
        (status = 412, description = "the rule was changed meanwhile"),
        (status = 428, description = "If-Match is missing"),
        (status = 503, description = "the database gave no answer"),
        Problems,
    ))]
pub(super) async fn patch(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    Extension(caller): Extension<Caller>,
    Sent(body): Sent,
) -> Result<Response, Problem> {
    let change = Change::of(&app, id, &headers, &caller).await?;
    read::gives_what_is_unreadable(&change.seen, read::Change::Patch, &body)?;
    let draft = read::patched(&change.seen.draft(), &body)?;
    change.update(&app, draft).await
}

/// Remove a rule.
#[utoipa::path(delete, operation_id = "remove_rule", path = "/v1/rules/{id}", tag = "rules",
    params(("id" = i64, Path, description = "the number of a rule"),
        ("If-Match" = Option<String>, Header, description = "the ETag of the rule as it was seen, or `*`")),
    responses(
        (status = 204, description = "removed"),
        (status = 400, description = "a header that does not fit"),
        (status = 404, description = "no such rule"),
        (status = 409, description = "the rules cannot be changed here"),
        (status = 412, description = "the rule was changed meanwhile"),
        (status = 428, description = "If-Match is missing"),
        (status = 503, description = "the database gave no answer"),
    ))]
pub(super) async fn remove(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    let Change { book, who, seen } = Change::of(&app, id, &headers, &caller).await?;
    book.remove(who, seen.rule_id, seen.version).await.map_err(refused)?;
    app.rules.refresh().await;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// A change to a rule that whoever asks for it has seen as it is.
struct Change<'a> {
    book: &'a RuleBook,
    who: &'a str,
    seen: RuleRow,
}

impl<'a> Change<'a> {
    async fn of(
        app: &'a App,
        id: Result<Path<String>, PathRejection>,
        headers: &HeaderMap,
        caller: &'a Caller,
    ) -> Result<Self, Problem> {
        let book = app.rules.writable()?;
        let wanted = IfMatch::of(headers)?;
        let seen = book.get(number(id)?).await.map_err(refused)?;
        if !wanted.fits(seen.version) {
            let detail = format!(
                "rule {} is version {} by now; look at `current`, and send If-Match: \"{}\" to change that",
                seen.rule_id, seen.version, seen.version
            );
            return Err(changed_meanwhile(detail, Some(&seen)));
        }
        Ok(Change { book, who: &caller.name, seen })
    }

    async fn update(self, app: &App, draft: tollgate::core::Draft) -> Result<Response, Problem> {
        let RuleRow { rule_id, version, .. } = self.seen;
        let row = self.book.update(self.who, rule_id, version, draft).await.map_err(refused)?;
        app.rules.refresh().await;
        Ok(entry(StatusCode::OK, &row, app))
    }
}

/// A rule, and its version to be given back with a change.
fn entry(status: StatusCode, row: &RuleRow, app: &App) -> Response {
    let mut response = (status, Json(RuleEntry::of_row(row, &app.limiter.rules()))).into_response();
    let tag = HeaderValue::try_from(format!("\"{}\"", row.version)).ok();
    response.headers_mut().extend(tag.map(|tag| (ETAG, tag)));
    response
}

fn number(id: Result<Path<String>, PathRejection>) -> Result<i64, Problem> {
    let Path(text) = id.map_err(|error| Problem::missing(error.body_text()))?;
    text.parse()
        .map_err(|_| Problem::missing(format!("`{text}` is no number; GET /v1/rules lists the rules")))
}

/// A rule is not what the client saw.
fn changed_meanwhile(detail: String, current: Option<&RuleRow>) -> Problem {
    let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "the rule was changed meanwhile", detail);
    problem.with("current", current.map(RuleEntry::of_row_alone))
}

/// Why a book was not opened or not changed.
fn refused(error: BookError) -> Problem {
    let told = error.to_string();
    match error {
        BookError::Database(error) => match error.violated_constraint() {
            Some(said) => Problem::invalid(&[Mistake { rule: None, field: None, message: said.to_owned() }]),
            None => Problem::database(&error),
        },
        BookError::Invalid(error) => {
            let mistake = |problem: &tollgate::rules::RowProblem| Mistake {
                rule: Some(problem.rule.clone()),
                field: None,
                message: problem.message.clone(),
            };
            Problem::invalid(&error.problems().map(mistake).collect::<Vec<_>>())
        }
        BookError::NoRule { rule_id } => {
            Problem::missing(format!("there is no rule {rule_id}; GET /v1/rules lists those there are"))
        }
        BookError::NoChange { history_id } => {
            let way_out = "GET /v1/rules/history lists those there are";
            Problem::missing(format!("there is no change {history_id}; {way_out}"))
        }
        BookError::Conflict { theirs, .. } => changed_meanwhile(told, theirs.as_deref()),
        _ => Problem::invalid(&[Mistake { rule: None, field: None, message: told }]),
    }
}
