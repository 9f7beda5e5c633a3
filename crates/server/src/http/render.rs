//! The answer to a request: status, headers and body, as a response of hyper's or as the bytes of HTTP/1.1.

use std::cell::RefCell;
use std::io::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use tollgate::Timestamp;
use tollgate::core::RateLimitHeaders;
use tollgate_tower::write_headers;

use super::check::STATUS_200;
use crate::record::second_of;

pub(super) const JSON: &str = "application/json";
pub(super) const PROBLEM: &str = "application/problem+json";
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// An answer that is ready to be sent.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) content_type: &'static str,
    /// The numbers of a decision.
    pub(super) limits: Option<RateLimitHeaders>,
    /// When to try again, in seconds, where no decision says so.
    pub(super) retry_after: Option<u64>,
    /// Whether the status is 200 because the client prefers that.
    pub(super) is_preferred: bool,
    /// Whether the connection is closed after it.
    pub(super) is_last: bool,
    pub(super) body: Vec<u8>,
}

impl Reply {
    /// An answer in JSON.
    pub(super) const fn json(body: Vec<u8>) -> Self {
        let status = StatusCode::OK;
        Reply {
            status,
            content_type: JSON,
            limits: None,
            retry_after: None,
            is_preferred: false,
            is_last: false,
            body,
        }
    }

    /// Writes the whole answer as HTTP/1.1 has it.
    pub(super) fn write(&self, now: Timestamp, out: &mut Vec<u8>) {
        let reason = self.status.canonical_reason().unwrap_or_default();
        for part in ["HTTP/1.1 ", self.status.as_str(), " ", reason, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        write_field(CONTENT_TYPE.as_str(), self.content_type, out);
        for (field, value) in self.limits.iter().flat_map(RateLimitHeaders::fields) {
            write_field(field.name(), value, out);
        }
        if let Some(seconds) =
            self.limits.as_ref().and_then(RateLimitHeaders::retry_after).or(self.retry_after)
        {
            write_number(RETRY_AFTER.as_str(), seconds, out);
        }
        if self.is_preferred {
            write_field(PREFERENCE_APPLIED.as_str(), STATUS_200, out);
        }
        if self.is_last {
            write_field(CONNECTION.as_str(), "close", out);
        }
        write_number("content-length", u64::try_from(self.body.len()).unwrap_or(u64::MAX), out);
        with_date(now, |date| write_field("date", date, out));
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.body);
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.extend(self.retry_after.map(|seconds| (RETRY_AFTER, seconds.into())));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(limits) = self.limits {
            write_headers(limits, headers);
        }
        if self.is_preferred {
            headers.insert(PREFERENCE_APPLIED, HeaderValue::from_static(STATUS_200));
        }
        if self.is_last {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// One field; the value is printable.
fn write_field(name: &str, value: &str, out: &mut Vec<u8>) {
    for part in [name, ": ", value, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

fn write_number(name: &str, value: u64, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _ = write!(out, "{name}: {value}\r\n");
}

/// The date as HTTP has it, formatted once a second.
fn with_date(now: Timestamp, use_it: impl FnOnce(&str)) {
    thread_local! {
        static DATE: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
    }
    let second = second_of(now);
    DATE.with_borrow_mut(|(known, date)| {
        if *known != second || date.is_empty() {
            (*known, *date) = (second, httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second)));
        }
        use_it(date);
    });
}
