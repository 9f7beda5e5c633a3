//! Errors as `application/problem+json`: what is wrong, where, and what was expected.

use axum::body::Body;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};

/// An answer that is no decision.
#[derive(Debug)]
pub(crate) struct Problem(tollgate_tower::Problem);

impl Problem {
    fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        Problem(tollgate_tower::Problem::new(status, title, detail))
    }

    pub(crate) fn bad_body(path: &str, detail: impl Into<String>) -> Self {
        let Problem(problem) = Self::new(StatusCode::BAD_REQUEST, "the body does not fit", detail);
        match path {
            "." | "?" => Problem(problem), // the whole, or nowhere
            path => Problem(problem.at(path)),
        }
    }

    pub(crate) fn too_large(largest: usize) -> Self {
        let detail = format!("a request body has at most {largest} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large", detail)
    }

    pub(crate) fn unreadable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "the body could not be read", detail)
    }

    pub(crate) fn not_found(uri: &Uri) -> Self {
        let detail = format!("there is nothing at {}; POST /v1/check decides a request", uri.path());
        Self::new(StatusCode::NOT_FOUND, "no such resource", detail)
    }

    pub(crate) fn method(method: &Method, uri: &Uri) -> Self {
        let detail = format!("{} does not take {method}", uri.path());
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed", detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.0.into_response().map(Body::from)
    }
}
