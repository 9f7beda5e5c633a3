//! `POST /v1/check`, `/v1/peek`, `/v1/refund`, `/v1/check/batch` and `/v1/playground`.

use std::borrow::Cow;
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use tollgate::{Answer, Descriptor, Status, StoreError};

use super::App;
use super::ask::{Asked, CheckBody, Place, Sent};
use super::problem::{Problem, Problems};
use super::render::Reply;
use crate::api::Decision;

const PREFER: HeaderName = HeaderName::from_static("prefer");
/// The preference for the status 200 whatever the decision.
pub(super) const STATUS_200: &str = "status=200";

/// Decide a request and charge it if it may pass.
#[utoipa::path(post, path = "/v1/check", tag = "decisions", request_body = CheckBody,
    params(("Prefer" = Option<String>, Header, description = "`status=200` answers 200 whatever the decision")),
    responses(
        (status = 200, description = "it may pass", body = Decision),
        (status = 403, description = "a rule denies it", body = Decision),
        (status = 429, description = "a limit is used up", body = Decision),
        (status = 503, description = "the store is unavailable, and a rule fails closed", body = Decision),
        Problems,
    ))]
pub(super) async fn check(
    State(app): State<App>,
    prefer: Prefer,
    Sent(bytes): Sent,
) -> Result<Response, Problem> {
    let asked = Asked::parse(&bytes, Place::AdHoc, &app.ad_hoc)?;
    Ok(app.decided(&asked).await?.respond(&app, prefer))
}

/// Answer what a check would, and charge nothing.
#[utoipa::path(post, path = "/v1/peek", tag = "decisions", request_body = CheckBody,
    params(("Prefer" = Option<String>, Header, description = "`status=200` answers 200 whatever the decision")),
    responses(
        (status = 200, description = "it would pass", body = Decision),
        (status = 403, description = "a rule denies it", body = Decision),
        (status = 429, description = "a limit is used up", body = Decision),
        (status = 503, description = "the store is unavailable, and a rule fails closed", body = Decision),
        Problems,
    ))]
pub(super) async fn peek(
    State(app): State<App>,
    prefer: Prefer,
    Sent(bytes): Sent,
) -> Result<Response, Problem> {
    let asked = Asked::parse(&bytes, Place::AdHoc, &app.ad_hoc)?;
    let answer = app.peeked(&asked).await;
    Ok(Decided::new(&app, answer, &asked.request)?.respond(&app, prefer))
}

/// Give the cost of a request back to every limit that it meets.
#[utoipa::path(post, path = "/v1/refund", tag = "decisions", request_body = CheckBody,
    responses(
        (status = 200, description = "given back; the numbers are those afterwards", body = Decision),
        (status = 403, description = "a rule denies the request: there is nothing to give back", body = Decision),
        (status = 503, description = "the store gave no answer"),
        Problems,
    ))]
pub(super) async fn refund(
    State(app): State<App>,
    prefer: Prefer,
    Sent(bytes): Sent,
) -> Result<Response, Problem> {
    let asked = Asked::parse(&bytes, Place::AdHoc, &app.ad_hoc)?;
    let answer = asked.to(&app.limiter).refund().await.map_err(|error| away(&error))?;
    Ok(Decided::new(&app, answer, &asked.request)?.respond(&app, prefer))
}

/// Try a limit out, in a bucket that no other request can reach. Nothing of it is recorded.
#[utoipa::path(post, path = "/v1/playground", tag = "operating", request_body = CheckBody,
    params(("Prefer" = Option<String>, Header, description = "`status=200` answers 200 whatever the decision")),
    responses(
        (status = 200, description = "it may pass", body = Decision),
        (status = 429, description = "the limit is used up", body = Decision),
        Problems,
    ))]
pub(super) async fn playground(
    State(app): State<App>,
    prefer: Prefer,
    Sent(bytes): Sent,
) -> Result<Response, Problem> {
    let asked = Asked::parse(&bytes, Place::Playground, &app.ad_hoc)?;
    let answer = app.checked(&asked).await;
    Ok(Decided::new(&app, answer, &asked.request)?.respond(&app, prefer))
}

/// The store gave no answer, where only it can give one.
pub(super) fn away(error: &StoreError) -> Problem {
    let detail = format!("{error}; try again when it is well");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the store gave no answer", detail).retry_after(1)
}

/// A decision with its name, ready to be answered.
#[derive(Debug)]
pub(super) struct Decided<'r, 'a> {
    answer: Answer,
    /// The request as it was decided.
    request: Cow<'r, Descriptor<'a>>,
    id: String,
}

impl App {
    /// Writes the whole answer that [`check`] gives, as HTTP/1.1 has it. None is written to a body that is wrong: what
    /// is, says [`check`].
    pub(crate) async fn write_check(&self, body: &[u8], prefer: Prefer, out: &mut Vec<u8>) -> bool {
        let Ok(asked) = Asked::parse(body, Place::AdHoc, &self.ad_hoc) else { return false };
        let Ok(decided) = self.decided(&asked).await else { return false };
        decided.reply(self, prefer, &decided.body()).write(self.limiter.clock().now(), out);
        true
    }

    /// Decides a request, charges it if it may pass, and remembers that. A request whose cost attribute is invalid is a
    /// problem: nothing was charged, and nothing is remembered.
    pub(super) async fn decided<'r, 'a>(&self, asked: &'r Asked<'a>) -> Result<Decided<'r, 'a>, Problem> {
        let started = self.limiter.clock().stopwatch_nanos();
        let answer = self.checked(asked).await;
        self.remembered(asked, answer, started)
    }

    /// Gives a decision its name, and remembers it and how long it took.
    pub(super) fn remembered<'r, 'a>(
        &self,
        asked: &'r Asked<'a>,
        answer: Answer,
        started: u64,
    ) -> Result<Decided<'r, 'a>, Problem> {
        let took = self.limiter.clock().stopwatch_nanos().saturating_sub(started);
        let took = Duration::from_nanos(took);
        let decided = Decided::new(self, answer, &asked.request)?;
        self.record(&decided.request, &decided.answer, &decided.id, asked.cost, took);
        Ok(decided)
    }

    /// Asks and charges, by the limiter's rules or by those that came along.
    async fn checked(&self, asked: &Asked<'_>) -> Answer {
        asked.to(&self.limiter).check().await
    }

    /// The same without charging.
    pub(super) async fn peeked(&self, asked: &Asked<'_>) -> Answer {
        asked.to(&self.limiter).peek().await
    }
}

impl<'r, 'a> Decided<'r, 'a> {
    fn new(app: &App, answer: Answer, request: &'r Descriptor<'a>) -> Result<Self, Problem> {
        if let Some(error) = answer.invalid_cost() {
            return Err(Problem::invalid_cost(error));
        }
        let request = answer.request(request);
        Ok(Decided { answer, request, id: app.ids.next() })
    }

    pub(super) fn body(&self) -> Decision<'_> {
        Decision::new(&self.answer, &self.request, Some(&self.id))
    }

    /// Status, headers and body.
    fn respond(&self, app: &App, prefer: Prefer) -> Response {
        self.reply(app, prefer, &self.body()).into_response()
    }

    /// Status and headers of the decision, with a body that may say more.
    pub(super) fn reply(&self, app: &App, prefer: Prefer, body: &impl Serialize) -> Reply {
        let answer = &self.answer;
        Reply {
            status: self.status(prefer),
            limits: app.headers.headers(answer, answer.rules(), Some(&self.request), answer.at()),
            is_preferred: prefer == Prefer::Always200,
            ..Reply::json(to_json(body, answer.tiers().len()))
        }
    }

    fn status(&self, prefer: Prefer) -> StatusCode {
        match self.answer.status() {
            _ if prefer == Prefer::Always200 => StatusCode::OK,
            Status::Allowed => StatusCode::OK,
            Status::Refused => StatusCode::TOO_MANY_REQUESTS,
            Status::Denied => StatusCode::FORBIDDEN,
            Status::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Status::Invalid => StatusCode::BAD_REQUEST,
        }
    }
}

/// A decision in one piece of memory of about its size.
pub(super) fn to_json(body: &impl Serialize, limits: usize) -> Vec<u8> {
    let mut json = Vec::with_capacity(256 + 256 * limits);
    // Text and numbers are always JSON, and writing to memory does not fail.
    let _ = serde_json::to_writer(&mut json, body);
    json
}

/// Whether the client asks for 200 whatever the decision (`Prefer: status=200`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefer {
    Nothing,
    Always200,
}

impl Prefer {
    /// The same, having read one more header.
    pub(crate) fn and(self, preferences: &str) -> Self {
        let always = preferences.split(',').any(|preference| preference.trim() == STATUS_200);
        if always { Prefer::Always200 } else { self }
    }
}

impl<S: Sync> FromRequestParts<S> for Prefer {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let preferences = parts.headers.get_all(PREFER).into_iter().filter_map(|value| value.to_str().ok());
        Ok(preferences.fold(Prefer::Nothing, Prefer::and))
    }
}
