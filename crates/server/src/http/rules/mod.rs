//! `/v1/rules`: the rules to look at and, where they are in a database, to change.
//!
//! ```text
//! body --read--> draft --RuleBook--> the database --Follower--> the limiter, before the change is answered
//! ```

mod entry;
mod history;
mod if_match;
mod preview;
mod read;
#[cfg(test)]
mod tests;

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::header::{ETAG, LOCATION};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tollgate::rules::{BookError, Refresher, RuleBook, RuleRow, RulesStatus};

pub(super) use history::{history, undo};
pub(super) use preview::{MAX_SET_BYTES, preview};

use super::App;
use super::body::{MAX_BODY_BYTES, read as bytes};
use super::problem::{Mistake, Problem};
use entry::Entry;
use if_match::IfMatch;

/// Who changes something, for the history.
const ACTOR: HeaderName = HeaderName::from_static("tollgate-actor");
/// The most characters of it.
const LONGEST_ACTOR: usize = 100;
/// Who changes something without saying so.
const NOBODY: &str = "api";
/// A change is answered by then, also if it has not taken effect yet.
const IN_EFFECT_WITHIN: Duration = Duration::from_secs(5);

/// Where the rules are kept, and so whether they can be changed.
#[derive(Debug, Clone)]
pub enum RulesHome {
    /// A file by its name: to be changed there.
    File(String),
    /// Something that was read once, and what to call it.
    Fixed(String),
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

/// The rules of a server.
#[derive(Debug, Serialize)]
struct ListBody<'a> {
    source: &'a str,
    /// Which rules are in effect.
    version: Option<i64>,
    writable: bool,
    /// Why those in effect are not the newest.
    error: Option<String>,
    rules: Vec<Entry>,
}

impl RulesHome {
    fn shown(&self) -> &str {
        match self {
            RulesHome::File(shown) | RulesHome::Fixed(shown) => shown,
            RulesHome::Database { book, .. } => book.database().shown(),
        }
    }

    /// The rules to change, if they can be.
    fn writable(&self) -> Result<&RuleBook, Problem> {
        let detail = match self {
            RulesHome::Database { book, .. } => return Ok(book),
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
            RulesHome::Database { book, .. } => Ok(book),
            RulesHome::File(shown) | RulesHome::Fixed(shown) => Err(Problem::missing(format!(
                "rules from {shown} have no numbers and no history; GET /v1/rules lists them"
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

/// `GET /v1/rules`
pub(super) async fn list(State(app): State<App>) -> Result<Response, Problem> {
    let home = &*app.rules;
    let mut body =
        ListBody { source: home.shown(), version: None, writable: false, error: None, rules: Vec::new() };
    match home {
        RulesHome::Database { book, status, .. } => {
            let report = status.report();
            let rows = book.list().await.map_err(refused)?;
            body.rules = rows.iter().map(Entry::of_row).collect();
            (body.version, body.error, body.writable) = (report.version.parse().ok(), report.error, true);
        }
        _ => body.rules = app.limiter.rules().rules().iter().map(Entry::of_rule).collect(),
    }
    Ok(Json(body).into_response())
}

/// `POST /v1/rules`
pub(super) async fn add(
    State(app): State<App>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let book = app.rules.writable()?;
    let who = actor(&headers)?;
    let draft = read::rule(&bytes(body, MAX_BODY_BYTES)?)?;
    let row = book.add(who, draft).await.map_err(refused)?;
    app.rules.refresh().await;
    let place = HeaderValue::try_from(format!("/v1/rules/{}", row.rule_id)).ok();
    let mut response = entry(StatusCode::CREATED, &row);
    response.headers_mut().extend(place.map(|place| (LOCATION, place)));
    Ok(response)
}

/// `GET /v1/rules/{id}`
pub(super) async fn get(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let row = app.rules.numbered()?.get(number(id)?).await.map_err(refused)?;
    Ok(entry(StatusCode::OK, &row))
}

/// `PUT /v1/rules/{id}`
pub(super) async fn put(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let change = Change::of(&app, id, &headers).await?;
    let draft = read::rule(&bytes(body, MAX_BODY_BYTES)?)?;
    change.update(&app, draft).await
}

/// `PATCH /v1/rules/{id}`
pub(super) async fn patch(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let change = Change::of(&app, id, &headers).await?;
    let draft = read::patched(&change.seen.draft(), &bytes(body, MAX_BODY_BYTES)?)?;
    change.update(&app, draft).await
}

/// `DELETE /v1/rules/{id}`
pub(super) async fn remove(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Change { book, who, seen } = Change::of(&app, id, &headers).await?;
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
        headers: &'a HeaderMap,
    ) -> Result<Self, Problem> {
        let book = app.rules.writable()?;
        let (who, wanted) = (actor(headers)?, IfMatch::of(headers)?);
        let seen = book.get(number(id)?).await.map_err(refused)?;
        if !wanted.fits(seen.version) {
            return Err(outdated(Some(&seen)));
        }
        Ok(Change { book, who, seen })
    }

    async fn update(self, app: &App, draft: tollgate::core::Draft) -> Result<Response, Problem> {
        let RuleRow { rule_id, version, .. } = self.seen;
        let row = self.book.update(self.who, rule_id, version, draft).await.map_err(refused)?;
        app.rules.refresh().await;
        Ok(entry(StatusCode::OK, &row))
    }
}

/// A rule, and its version to be given back with a change.
fn entry(status: StatusCode, row: &RuleRow) -> Response {
    let mut response = (status, Json(Entry::of_row(row))).into_response();
    let tag = HeaderValue::try_from(format!("\"{}\"", row.version)).ok();
    response.headers_mut().extend(tag.map(|tag| (ETAG, tag)));
    response
}

fn number(id: Result<Path<String>, PathRejection>) -> Result<i64, Problem> {
    let Path(text) = id.map_err(|error| Problem::missing(error.body_text()))?;
    text.parse()
        .map_err(|_| Problem::missing(format!("`{text}` is no number; GET /v1/rules lists the rules")))
}

fn actor(headers: &HeaderMap) -> Result<&str, Problem> {
    let Some(value) = headers.get(ACTOR) else { return Ok(NOBODY) };
    let name = str::from_utf8(value.as_bytes()).unwrap_or_default().trim();
    let fits =
        !name.is_empty() && name.chars().count() <= LONGEST_ACTOR && !name.chars().any(char::is_control);
    fits.then_some(name).ok_or_else(|| {
        Problem::bad_header(format!("`{ACTOR}` is a name of 1 to {LONGEST_ACTOR} printable characters"))
    })
}

/// Somebody else was faster.
fn outdated(current: Option<&RuleRow>) -> Problem {
    let detail = match current {
        Some(row) => format!(
            "rule {} is version {} by now; look at `current`, and send If-Match: \"{}\" to change that",
            row.rule_id, row.version, row.version
        ),
        None => "the rule is gone by now".to_owned(),
    };
    let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "the rule was changed meanwhile", detail);
    problem.with("current", current.map(Entry::of_row))
}

/// Why a book was not opened or not changed.
fn refused(error: BookError) -> Problem {
    match error {
        BookError::Database(error) => Problem::database(&error),
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
        BookError::Conflict { theirs, .. } => outdated(theirs.as_deref()),
        error => {
            let way_out = "mend that row in the database";
            let title = "a row is no rule";
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, title, format!("{error}; {way_out}"))
        }
    }
}
