//! The bound on the head of a request: 16 KiB and 100 fields.
//!
//! hyper enforces it for HTTP/1. For HTTP/2 the h2 crate would, but it answers with a bare 431. So h2 accepts more, and
//! the bound is enforced here, with a problem like every other error. Beyond [`MAX_HTTP2_HEAD_BYTES`] a client still gets
//! the bare answer: what h2 keeps of a head must have a bound too.

use axum::body::Body;
use axum::http::header::{HeaderName, HeaderValue};
use axum::http::{Request, StatusCode, Version};
use axum::response::Response;

use crate::http::{Problem, rejected};

/// Request heads from this size on are answered 431.
pub(super) const MAX_HEAD_BYTES: usize = 16 << 10;
/// The number of fields that hyper accepts over HTTP/1.
pub(super) const MAX_FIELDS: usize = 100;
/// What h2 reads of a head, as HTTP/2 counts it: 32 bytes for every field beside its name and value. It is announced as
/// `SETTINGS_MAX_HEADER_LIST_SIZE`.
pub(super) const MAX_HTTP2_HEAD_BYTES: u32 = 64 << 10;

/// The answer to a request over HTTP/2 whose head is too large.
pub(super) fn reject_large_head(request: &Request<Body>) -> Option<Response> {
    let is_large = || request.headers().len() > MAX_FIELDS || head_bytes(request) >= MAX_HEAD_BYTES;
    let is_rejected = request.version() == Version::HTTP_2 && is_large();
    is_rejected.then(|| rejected(request.uri(), head_too_large()))
}

pub(super) fn head_too_large() -> Problem {
    Problem::new(
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        "the request head is too large",
        "a request head has at most 16 KiB and 100 fields",
    )
}

/// The size of a head, as HTTP/1 would write it.
pub(super) fn head_bytes(request: &Request<Body>) -> usize {
    let field =
        |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + ": \r\n".len();
    let fields: usize = request.headers().iter().map(field).sum();
    let uri = request.uri();
    let target = uri.path_and_query().map_or(0, |target| target.as_str().len());
    let host = uri.authority().map_or(0, |host| "host: \r\n".len() + host.as_str().len());
    let line = request.method().as_str().len() + target + "  HTTP/1.1\r\n".len();
    line + host + fields + "\r\n".len()
}
