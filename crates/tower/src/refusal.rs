//! From a decision that lets nobody pass to the answer in the caller's protocol.

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{Response, StatusCode};
use tollgate::core::RateLimitHeaders;
use tollgate::{Answer, Micros, ReserveError};

use crate::grpc;
use crate::headers::{write_headers, write_retry_after};
use crate::problem::Problem;

/// When a reservation that could not be kept may find room.
const TRY_AGAIN: Micros = Micros::new(1_000_000);

/// Why a request goes no further, ready to be answered.
#[derive(Debug, Clone)]
pub struct Refusal {
    problem: Problem,
    headers: Option<RateLimitHeaders>,
    /// The wait that helps, where one does.
    retry_after: Option<Micros>,
}

/// What the caller speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Status, headers and `application/problem+json`.
    Http,
    /// 200 without a body; the status is in `grpc-status`.
    Grpc,
    /// The same for browsers.
    GrpcWeb,
}

impl Protocol {
    /// What a request speaks, by its content type.
    pub fn of(request: &Parts) -> Self {
        let kind = request.headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
        let is =
            |prefix: &[u8]| kind.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
        match () {
            () if is(b"application/grpc-web") => Protocol::GrpcWeb,
            () if is(b"application/grpc") => Protocol::Grpc,
            () => Protocol::Http,
        }
    }
}

impl Refusal {
    /// A decision that lets nobody pass, what its headers say, and its name.
    pub fn of(answer: &Answer, headers: Option<RateLimitHeaders>, decision_id: String) -> Self {
        Refusal { problem: Problem::refusal(answer, decision_id), headers, retry_after: answer.retry_after() }
    }

    /// A request that could have passed, but not be settled, and the name of the decision.
    pub(crate) fn unkept(error: &ReserveError, decision_id: String) -> Self {
        let problem = Problem::unkept(error, TRY_AGAIN, decision_id);
        Refusal { problem, headers: None, retry_after: Some(TRY_AGAIN) }
    }

    /// The answer in the caller's protocol.
    pub fn into_response(self, protocol: Protocol) -> Response<Vec<u8>> {
        let mut response = match protocol {
            Protocol::Http => self.problem.into_response(),
            Protocol::Grpc => self.status().into_response("application/grpc"),
            Protocol::GrpcWeb => self.status().into_response("application/grpc-web+proto"),
        };
        match (self.headers, self.retry_after) {
            (Some(values), _) => write_headers(values, response.headers_mut()),
            // A reservation that could not be kept has no limit to report.
            (None, Some(wait)) => write_retry_after(wait, response.headers_mut()),
            (None, None) => {}
        }
        response
    }

    fn status(&self) -> grpc::Status<'_> {
        let code = match self.problem.status() {
            StatusCode::TOO_MANY_REQUESTS => grpc::Code::ResourceExhausted,
            StatusCode::FORBIDDEN => grpc::Code::PermissionDenied,
            StatusCode::BAD_REQUEST => grpc::Code::InvalidArgument,
            _ => grpc::Code::Unavailable,
        };
        grpc::Status { code, message: self.problem.detail(), retry_after: self.retry_after }
    }
}
