//! Errors as `application/problem+json`: what is wrong, where, and what was expected.

use std::collections::BTreeMap;

use axum::Json;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

/// An answer that is no decision.
#[derive(Debug)]
pub(crate) struct Problem(Box<Body>);

#[derive(Debug, Serialize)]
struct Body {
    #[serde(flatten)]
    problem: tollgate_tower::Problem,
    /// What this kind of problem says beyond others.
    #[serde(flatten)]
    more: BTreeMap<&'static str, Box<RawValue>>,
}

/// One thing that is wrong with a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Mistake {
    /// The name of the rule, or its key if it has no name.
    pub(crate) rule: Option<String>,
    /// The field, as in `limit` or `when.ip`; none where the whole rule is meant.
    pub(crate) field: Option<String>,
    /// What is wrong, and what to write instead.
    pub(crate) message: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        let problem = tollgate_tower::Problem::new(status, title, detail);
        Problem(Box::new(Body { problem, more: BTreeMap::new() }))
    }

    /// The same with where in the request it is; the whole of it has no path.
    pub(crate) fn at(self, path: &str) -> Self {
        let Problem(body) = self;
        match path {
            "" | "." | "?" => Problem(body),
            path => Problem(Box::new(Body { problem: body.problem.at(path), more: body.more })),
        }
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

    pub(crate) fn not_found(uri: &Uri) -> Self {
        let detail = format!("there is nothing at {}; POST /v1/check decides a request", uri.path());
        Self::new(StatusCode::NOT_FOUND, "no such resource", detail)
    }

    pub(crate) fn missing(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "no such resource", detail)
    }

    pub(crate) fn method(method: &Method, uri: &Uri) -> Self {
        let detail = format!("{} does not take {method}", uri.path());
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed", detail)
    }

    /// The database gave no answer. Why is for the log; who asks learns that trying again may help.
    pub(crate) fn database(error: &tollgate::sql::DatabaseError) -> Self {
        let cause: &(dyn std::error::Error + 'static) = error;
        tracing::warn!(error = cause, "a request could not be answered");
        let detail = format!("{error}; try again when it is well");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the database gave no answer", detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = HeaderValue::from_static("application/problem+json");
        let status = self.0.problem.status();
        (status, [(CONTENT_TYPE, kind)], Json(self.0)).into_response()
    }
}
