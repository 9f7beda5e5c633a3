//! Answers of HTTP/1.1 as bytes, for whom does not go through hyper.

use std::cell::RefCell;
use std::io::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use axum::http::StatusCode;
use tollgate::Timestamp;

use crate::record::second_of;

/// An answer that is being written: its head first, then its body.
pub(super) struct Written<'o>(&'o mut Vec<u8>);

impl<'o> Written<'o> {
    pub(super) fn new(status: StatusCode, out: &'o mut Vec<u8>) -> Self {
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(status.as_str().as_bytes());
        out.push(b' ');
        out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
        out.extend_from_slice(b"\r\n");
        Written(out)
    }

    /// One field; the value is printable.
    pub(super) fn field(&mut self, name: &str, value: &str) {
        for part in [name, ": ", value, "\r\n"] {
            self.0.extend_from_slice(part.as_bytes());
        }
    }

    pub(super) fn number(&mut self, name: &str, value: u64) {
        // Memory takes whatever is written to it.
        let _ = write!(self.0, "{name}: {value}\r\n");
    }

    pub(super) fn end(mut self, body: &[u8], now: Timestamp) {
        self.number("content-length", u64::try_from(body.len()).unwrap_or(u64::MAX));
        with_date(now, |date| self.field("date", date));
        self.0.extend_from_slice(b"\r\n");
        self.0.extend_from_slice(body);
    }
}

/// The date as HTTP has it, written once a second.
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
