//! A refusal as gRPC has it: headers that are trailers too, no body, and `google.rpc.RetryInfo` for clients that
//! wait by themselves.
//!
//! The messages are a few bytes long and written by hand:
//!
//! ```text
//! google.rpc.Status    code = 1, message = 2, details = 3 (google.protobuf.Any)
//! google.protobuf.Any  type_url = 1, value = 2
//! google.rpc.RetryInfo retry_delay = 1 (google.protobuf.Duration: seconds = 1, nanos = 2)
//! ```

use base64::prelude::{BASE64_STANDARD_NO_PAD, Engine as _};
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tollgate::Micros;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// What `grpc-message` cannot hold as it is, beside what is not ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// The codes a refusal has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    InvalidArgument = 3,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unavailable = 14,
}

/// A status with what helps.
#[derive(Debug)]
pub(crate) struct Status<'a> {
    pub(crate) code: Code,
    pub(crate) message: &'a str,
    pub(crate) retry_after: Option<Micros>,
}

impl Status<'_> {
    /// The answer that is only trailers.
    pub(crate) fn into_response(self, content_type: &'static str) -> Response<Vec<u8>> {
        let mut response = Response::new(Vec::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(STATUS, (self.code as u16).into());
        let message = utf8_percent_encode(self.message, ENCODED).to_string();
        // Both are printable ASCII by now.
        if let (Ok(message), Ok(details)) =
            (message.try_into(), BASE64_STANDARD_NO_PAD.encode(self.encode()).try_into())
        {
            headers.insert(MESSAGE, message);
            headers.insert(DETAILS, details);
        }
        response
    }

    /// `google.rpc.Status`
    fn encode(&self) -> Vec<u8> {
        let mut status = Vec::new();
        push_number(&mut status, 1, self.code as u64);
        push_bytes(&mut status, 2, self.message.as_bytes());
        if let Some(wait) = self.retry_after {
            let mut duration = Vec::new();
            push_number(&mut duration, 1, wait.get() / 1_000_000);
            push_number(&mut duration, 2, wait.get() % 1_000_000 * 1_000);
            let mut retry_info = Vec::new();
            push_bytes(&mut retry_info, 1, &duration);
            let mut any = Vec::new();
            push_bytes(&mut any, 1, b"type.googleapis.com/google.rpc.RetryInfo");
            push_bytes(&mut any, 2, &retry_info);
            push_bytes(&mut status, 3, &any);
        }
        status
    }
}

fn push_number(out: &mut Vec<u8>, field: u8, number: u64) {
    if number > 0 {
        out.push(field << 3);
        push_varint(out, number);
    }
}

fn push_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    push_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Seven bits at a time, the lowest first; the eighth says that more follow.
fn push_varint(out: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = number.to_le_bytes()[0] & 0x7f;
        number >>= 7;
        if number == 0 {
            return out.push(low);
        }
        out.push(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_told_in_seconds_and_nanoseconds() {
        let status = Status {
            code: Code::ResourceExhausted,
            message: "m",
            retry_after: Some(Micros::new(300_000_001)),
        };
        let wire = status.encode();
        let start = [8, 8, 0x12, 1, b'm', 0x1a];
        assert_eq!(wire[..start.len()], start);
        // RetryInfo { retry_delay: { seconds: 300, nanos: 1000 } }
        assert!(wire.ends_with(&[0x12, 8, 0x0a, 6, 8, 0xac, 2, 0x10, 0xe8, 7]), "{wire:x?}");
    }

    #[test]
    fn any_message_is_a_header() {
        let message = "100 % \r\nx: näme\0";
        let response =
            Status { code: Code::Unavailable, message, retry_after: None }.into_response("application/grpc");
        assert_eq!(response.headers()["grpc-message"], "100 %25 %0D%0Ax: n%C3%A4me%00");
        assert_eq!(response.headers()["grpc-status"], "14");
    }
}
