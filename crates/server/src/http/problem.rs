//! Errors as `application/problem+json`: what is wrong, where, and what was expected.

use std::collections::BTreeMap;

use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tollgate::Timestamp;
use tollgate::core::rule::InvalidCost;
use utoipa::IntoResponses;

use super::Plane;
use super::json_path::{place_at, too_deep};
use super::render::{PROBLEM, Reply};
use crate::api::{self, Mistake};

/// An answer that is no decision.
#[derive(Debug)]
pub(crate) struct Problem(Box<Body>);

/// JSON that is nested deeper is refused.
pub(crate) const MAX_NESTING: usize = 32;

#[derive(Debug, Serialize)]
struct Body {
    #[serde(flatten)]
    problem: tollgate_tower::Problem,
    /// What this kind of problem says beyond others.
    #[serde(flatten)]
    more: BTreeMap<&'static str, Box<RawValue>>,
    #[serde(skip)]
    retry_after: Option<u64>,
}

/// What any request with a body may get.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum Problems {
    /// Not JSON, a field that there is not, a value that does not fit; `path` says where.
    #[response(status = 400, content_type = "application/problem+json")]
    Bad(api::Problem),
    /// The body is too large.
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(api::Problem),
}

impl Problem {
    pub(crate) fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        let problem = tollgate_tower::Problem::new(status, title, detail);
        Problem(Box::new(Body { problem, more: BTreeMap::new(), retry_after: None }))
    }

    /// The same with where in the request it is; the whole of it has no path.
    pub(crate) fn at(self, path: &str) -> Self {
        let Problem(body) = self;
        match path {
            "" | "." | "?" => Problem(body),
            path => Problem(Box::new(Body { problem: body.problem.at(path), ..*body })),
        }
    }

    /// The same, as part of a larger body.
    pub(crate) fn within(self, part: &str) -> Self {
        let path = match self.0.problem.path() {
            None => part.to_owned(),
            Some(path) => format!("{part}.{path}"),
        };
        self.at(&path)
    }

    /// The same with when to try again, in seconds.
    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.0.retry_after = Some(seconds);
        self
    }

    /// Reads a body of a known shape, or says where it has another.
    pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8], example: &str) -> Result<T, Self> {
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            return Err(Self::bad_body("", format!("expected a JSON object such as {example}")));
        }
        let text = str::from_utf8(bytes).map_err(|error| Self::bad_body("", error.to_string()))?;
        Self::shallow(text)?;
        let mut json = serde_json::Deserializer::from_str(text);
        let read = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| Self::bad_body(&error.path().to_string(), error.inner().to_string()))?;
        json.end().map_err(|error| Self::bad_body("", error.to_string()))?;
        Ok(read)
    }

    /// Refuses what is nested deeper than anything that means something here.
    pub(crate) fn shallow(text: &str) -> Result<(), Self> {
        match too_deep(text, MAX_NESTING) {
            None => Ok(()),
            Some(at) => {
                let detail = format!("objects and lists are nested at most {MAX_NESTING} deep");
                Err(Self::bad_body(&place_at(text, at).path, detail))
            }
        }
    }

    /// The body.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        // Text and numbers: there is nothing in them that JSON cannot say.
        serde_json::to_vec(&self.0).unwrap_or_default()
    }

    fn reply(&self) -> Reply {
        Reply {
            status: self.0.problem.status(),
            content_type: PROBLEM,
            retry_after: self.0.retry_after,
            ..Reply::json(self.to_json())
        }
    }

    /// Writes the whole answer as HTTP/1.1 has it.
    pub(crate) fn write(&self, now: Timestamp, out: &mut Vec<u8>) {
        self.reply().write(now, out);
    }

    /// The same as the last answer of its connection.
    pub(crate) fn write_last(&self, now: Timestamp, out: &mut Vec<u8>) {
        Reply { is_last: true, ..self.reply() }.write(now, out);
    }

    /// A request that does not fit beside those in progress.
    pub(crate) fn no_memory() -> Self {
        let detail =
            "the requests in progress and the unread answers use all memory that this listener has for them";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "too many requests in progress", detail).retry_after(1)
    }

    /// Work that was given up on.
    pub(crate) fn interrupted() -> Self {
        let detail = "this was interrupted; try again";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "interrupted", detail)
    }

    /// The same with one thing more to say.
    pub(crate) fn with(mut self, name: &'static str, value: impl Serialize) -> Self {
        // Text and numbers: there is nothing in them that JSON cannot say.
        self.0.more.extend(to_raw_value(&value).ok().map(|value| (name, value)));
        self
    }

    pub(crate) fn bad_body(path: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "the body does not fit", detail).at(path)
    }

    /// A request whose cost attribute is invalid.
    pub(crate) fn invalid_cost(error: &InvalidCost) -> Self {
        let problem = tollgate_tower::Problem::invalid_cost(error);
        Problem(Box::new(Body { problem, more: BTreeMap::new(), retry_after: None }))
            .at(&format!("attributes.{}", error.attribute))
    }

    pub(crate) fn bad_query(name: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "the query does not fit", detail).at(name)
    }

    pub(crate) fn bad_header(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "a header does not fit", detail)
    }

    pub(crate) fn too_large(largest: usize) -> Self {
        let detail = format!("a request body has at most {largest} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large", detail)
    }

    pub(crate) fn unreadable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "the body could not be read", detail)
    }

    /// A rule, or a set of them, that would not be valid.
    pub(crate) fn invalid(mistakes: &[Mistake]) -> Self {
        let detail = mistakes.first().map_or("", |first| &first.message);
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "the rules are not valid", detail)
            .with("errors", mistakes)
    }

    pub(crate) fn not_found(uri: &Uri, plane: Plane) -> Self {
        let path = uri.path();
        let detail = match plane {
            Plane::Data => format!(
                "there is nothing at {path}; POST /v1/check decides a request; the dashboard and the admin API are at the \
                 address of --admin, which the server prints when it starts"
            ),
            Plane::Admin => {
                format!("there is nothing at {path}; checks are answered at the address of --http")
            }
            Plane::Metrics => format!("there is nothing at {path}; GET /metrics reads the metrics"),
        };
        Self::new(StatusCode::NOT_FOUND, "no such resource", detail)
    }

    pub(crate) fn missing(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "no such resource", detail)
    }

    pub(crate) fn method(method: &Method, uri: &Uri) -> Self {
        let detail = format!("{} does not take {method}", uri.path());
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed", detail)
    }

    /// The database gave no answer, and why.
    pub(crate) fn database(error: &tollgate::sql::DatabaseError) -> Self {
        let cause: &(dyn std::error::Error + 'static) = error;
        tracing::warn!(error = cause, "a request could not be answered");
        let detail = match error {
            tollgate::sql::DatabaseError::Unusable { .. } => error.to_string(), // which says what to do
            error => {
                let reason = error.reason().map(|reason| format!(": {reason}")).unwrap_or_default();
                format!("{error}{reason}; try again when it is well")
            }
        };
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the database gave no answer", detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.reply().into_response()
    }
}
