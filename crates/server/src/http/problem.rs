//! Errors as `application/problem+json`: what is wrong, where, and what was expected.

use axum::Json;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// An answer that is no decision.
#[derive(Debug, Serialize)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "code")]
    status: StatusCode,
    detail: String,
    /// Where in the body, as in `attributes.user_id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

fn code<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl Problem {
    fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        Problem { kind: "about:blank", title, status, detail: detail.into(), path: None }
    }

    pub(crate) fn bad_body(path: &str, detail: impl Into<String>) -> Self {
        let path = (path != "." && path != "?").then(|| path.to_owned()); // `.` is the whole, `?` is nowhere
        Problem { path, ..Self::new(StatusCode::BAD_REQUEST, "the body does not fit", detail) }
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
        let mut response = (self.status, Json(&self)).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}
