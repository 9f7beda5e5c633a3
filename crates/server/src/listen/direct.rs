//! Waits for requests on a connection, and answers checks over HTTP/1.1 straight from its bytes.
//!
//! Most of what a check over HTTP costs is HTTP. So every connection begins here: a `POST /v1/check` that is plain and
//! whole is answered from the bytes that were read. Everything else (another route, HTTP/2, a chunked body, a mistake, any
//! request once the server is about to stop) goes to hyper, which returns the connection when it is idle. Requests are
//! rejected here only if they are late or do not fit into memory.
//!
//! hyper keeps 16 KiB of buffers for a connection. It is given whole heads and whole prefaces of HTTP/2 only, so a
//! client that is slow or silent takes no more memory than what it has sent.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::StatusCode;
use bytes::{Buf as _, BytesMut};
use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tollgate::Timestamp;

use super::budget::Reservation;
use super::head::{MAX_FIELDS, MAX_HEAD_BYTES};
use super::{ListenerLimits, Phase, Traffic, panicked, preface, timed_out};
use crate::http::{App, MAX_BODY_BYTES, Prefer, Problem};

/// How a check begins.
const CHECK: &[u8] = b"POST /v1/check HTTP/1.1\r\n";
/// Space for one read.
const READ_BYTES: usize = 4 << 10;
/// Checks with more fields are left to hyper.
const MAX_CHECK_FIELDS: usize = 32;
/// Answers to pipelined checks are sent together, until they are larger than this.
const MAX_UNSENT_BYTES: usize = 4 << 10;

/// The part of a connection between requests.
pub(super) struct Direct<'c> {
    pub(super) app: &'c App,
    /// Whether checks are answered here.
    pub(super) answers_checks: bool,
    pub(super) limits: &'c ListenerLimits,
    pub(super) traffic: &'c Traffic,
    /// What the bytes that were read, and the answers to them, take.
    pub(super) reservation: &'c Reservation,
}

/// What the bytes of a connection begin with.
#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    /// A check: where its body begins, where it ends, and how it is to be answered.
    Check { body: usize, end: usize, prefer: Prefer },
    /// A request that has not arrived completely.
    Incomplete(Part),
    /// The head of a request for hyper, or what only hyper rejects.
    Other,
}

/// What is missing of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Head,
    Body,
}

/// What came of reading.
enum ReadOutcome {
    Data,
    /// The client has closed its side in the middle of a request.
    Truncated,
    /// The connection is over.
    Closed,
    /// The request is not waited for any longer.
    Rejected(Problem),
}

impl Direct<'_> {
    /// Answers checks until a request for hyper arrives, and returns what was read of it; none when the connection is
    /// over.
    pub(super) async fn serve(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        mut read: BytesMut,
        phase: watch::Receiver<Phase>,
    ) -> Option<BytesMut> {
        let mut answers = Vec::new();
        let mut begun = None;
        let mut idle = pin!(sleep(self.limits.idle));
        let mut closing = pin!(Phase::Closing.reached(phase));
        loop {
            // When the server is about to stop, hyper says so in its answers; and tokens are checked behind hyper.
            let is_stopping = self.traffic.stopping.load(Ordering::Relaxed);
            let is_open = self.answers_checks && !is_stopping && self.app.auth.checks_are_open();
            match parse(&read, is_open) {
                Parsed::Check { body, end, prefer } => {
                    if !self.answer(&read[body..end], prefer, &mut answers).await {
                        break;
                    }
                    read.advance(end);
                    begun = None;
                    if read.is_empty() && end > READ_BYTES {
                        read = BytesMut::new(); // what one request needed is not kept for the next
                    }
                    if answers.len() >= MAX_UNSENT_BYTES {
                        self.send(stream, &mut answers, read.len()).await?;
                    }
                }
                Parsed::Incomplete(part) => {
                    self.send(stream, &mut answers, read.len()).await?;
                    let outcome = match read.is_empty() {
                        true => self.wait(stream, &mut read, idle.as_mut(), closing.as_mut()).await,
                        false => {
                            let end = self.deadline(&mut begun, part);
                            // On the heap only while it lasts: most connections wait between requests.
                            Box::pin(self.read_more(stream, &mut read, (part, end), closing.as_mut())).await
                        }
                    };
                    match outcome {
                        ReadOutcome::Data => {}
                        ReadOutcome::Truncated => break,
                        ReadOutcome::Closed => return None,
                        ReadOutcome::Rejected(_) if preface::is_certain(&read) => return None,
                        ReadOutcome::Rejected(problem) => {
                            problem.write_last(self.now(), &mut answers);
                            self.send(stream, &mut answers, 0).await?;
                            return None;
                        }
                    }
                }
                Parsed::Other => break,
            }
        }
        self.send(stream, &mut answers, read.len()).await?;
        Some(read)
    }

    /// Answers a check, unless it is invalid.
    async fn answer(&self, body: &[u8], prefer: Prefer, answers: &mut Vec<u8>) -> bool {
        let before = answers.len();
        // On the heap only while it lasts: most connections wait.
        let answered =
            AssertUnwindSafe(Box::pin(self.app.write_check(body, prefer, answers))).catch_unwind().await;
        answered.unwrap_or_else(|_| {
            write_panic_response(self.traffic, self.now(), before, answers);
            true
        })
    }

    /// Sends the answers; none where the client has gone, or does not read.
    async fn send(
        &self,
        stream: &mut (impl AsyncWrite + Unpin),
        answers: &mut Vec<u8>,
        unread: usize,
    ) -> Option<()> {
        if answers.is_empty() {
            return Some(());
        }
        if answers.len() > MAX_UNSENT_BYTES {
            self.reservation.set(unread + answers.len());
        }
        stream.write_all(answers).await.ok()?;
        answers.clear();
        answers.shrink_to(READ_BYTES);
        stream.flush().await.ok()
    }

    /// Until when the missing part of a request is waited for.
    fn deadline(&self, begun: &mut Option<(Part, Instant)>, part: Part) -> Instant {
        match *begun {
            Some((known, end)) if known == part => end,
            _ => {
                let time = if part == Part::Head { self.limits.head } else { self.limits.request };
                begun.insert((part, Instant::now() + time)).1
            }
        }
    }

    /// Waits for the next request.
    async fn wait(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        read: &mut BytesMut,
        mut idle: Pin<&mut Sleep>,
        closing: Pin<&mut impl Future<Output = ()>>,
    ) -> ReadOutcome {
        if self.reservation.bytes() > 0 {
            self.reservation.set(0);
        }
        // One timer for the whole connection, moved only when it goes off.
        let ends = Instant::now() + self.limits.idle;
        read.reserve(READ_BYTES);
        tokio::select! {
            biased;
            count = stream.read_buf(read) => match count {
                Ok(1..) => ReadOutcome::Data,
                _ => ReadOutcome::Closed,
            },
            () = closing => ReadOutcome::Closed,
            () = async {
                while idle.deadline() < ends {
                    idle.as_mut().await;
                    idle.as_mut().reset(ends);
                }
                idle.await;
            } => ReadOutcome::Closed,
        }
    }

    /// Reads on in a request that has begun, until its deadline.
    async fn read_more(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        read: &mut BytesMut,
        (part, end): (Part, Instant),
        closing: Pin<&mut impl Future<Output = ()>>,
    ) -> ReadOutcome {
        if !self.reservation.try_set(read.len()) {
            return ReadOutcome::Rejected(Problem::no_memory());
        }
        read.reserve(READ_BYTES);
        tokio::select! {
            biased;
            count = stream.read_buf(read) => match count {
                Ok(1..) => ReadOutcome::Data,
                Ok(0) => ReadOutcome::Truncated,
                Err(_) => ReadOutcome::Closed,
            },
            () = closing, if part == Part::Head => ReadOutcome::Closed,
            () = sleep_until(end) => ReadOutcome::Rejected(match part {
                Part::Head => late_head(self.limits.head),
                Part::Body => timed_out(self.limits.request),
            }),
            () = self.reservation.evicted() => ReadOutcome::Rejected(Problem::no_memory()),
        }
    }

    fn now(&self) -> Timestamp {
        self.app.limiter().clock().now()
    }
}

fn late_head(within: Duration) -> Problem {
    let detail = format!("the head of a request has {} s", within.as_secs());
    Problem::new(StatusCode::REQUEST_TIMEOUT, "the request took too long", detail)
}

/// Replaces what a panic left of an answer.
fn write_panic_response(traffic: &Traffic, now: Timestamp, before: usize, answers: &mut Vec<u8>) {
    answers.truncate(before);
    panicked(traffic).write(now, answers);
}

fn parse(read: &[u8], answers_checks: bool) -> Parsed {
    if read.is_empty() {
        return Parsed::Incomplete(Part::Head);
    }
    if answers_checks && let Some(check) = parse_check(read) {
        return check;
    }
    match preface::is_partial(read) || is_partial_head(read) {
        true => Parsed::Incomplete(Part::Head),
        false => Parsed::Other,
    }
}

/// Whether hyper would wait for more of this head.
fn is_partial_head(read: &[u8]) -> bool {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let parsed = httparse::Request::new(&mut fields).parse(read);
    read.len() < MAX_HEAD_BYTES && matches!(parsed, Ok(httparse::Status::Partial))
}

/// A check whose head is whole and plain.
fn parse_check(read: &[u8]) -> Option<Parsed> {
    let rest = read.strip_prefix(CHECK)?;
    let mut fields = [httparse::EMPTY_HEADER; MAX_CHECK_FIELDS];
    let Ok(httparse::Status::Complete((head, fields))) = httparse::parse_headers(rest, &mut fields) else {
        return None;
    };
    let (length, prefer) = plain(fields)?;
    let body = CHECK.len() + head;
    let end = body + length;
    Some(match read.len() < end {
        true => Parsed::Incomplete(Part::Body),
        false => Parsed::Check { body, end, prefer },
    })
}

/// The length of the body and how to answer, if hyper is not needed for this head.
fn plain(fields: &[httparse::Header<'_>]) -> Option<(usize, Prefer)> {
    let (mut length, mut prefer) = (None, Prefer::Nothing);
    for httparse::Header { name, value } in fields {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if is("content-length") {
            let is_plain = length.is_none() && !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            let text = str::from_utf8(value).ok().filter(|_| is_plain)?;
            length = Some(text.parse().ok().filter(|length| *length <= MAX_BODY_BYTES)?);
        } else if is("connection") && !value.eq_ignore_ascii_case(b"keep-alive")
            || is("transfer-encoding")
            || is("expect")
            || is("upgrade")
        {
            return None;
        } else if is("prefer") {
            prefer = str::from_utf8(value).map_or(prefer, |value| prefer.and(value));
        }
    }
    length.map(|length| (length, prefer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(head: &str, body: &str) -> Parsed {
        parse(format!("POST /v1/check HTTP/1.1\r\n{head}\r\n{body}").as_bytes(), true)
    }

    #[test]
    fn a_plain_check_is_parsed_when_it_is_whole_and_not_before() {
        let text =
            "POST /v1/check HTTP/1.1\r\nhost: a\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\n{}POST";
        let whole = text.len() - "POST".len();
        let parse = |end: usize| parse(&text.as_bytes()[..end], true);
        for end in 0..whole - 2 {
            assert_eq!(parse(end), Parsed::Incomplete(Part::Head), "{end}");
        }
        for end in whole - 2..whole {
            assert_eq!(parse(end), Parsed::Incomplete(Part::Body), "{end}");
        }
        let check = Parsed::Check { body: whole - 2, end: whole, prefer: Prefer::Nothing };
        assert_eq!(parse(whole), check);
        assert_eq!(parse(text.len()), check, "what follows is the next request");
    }

    #[test]
    fn every_other_request_goes_to_hyper_once_its_head_is_whole() {
        let check = "POST /v1/check HTTP/1.1\r\ncontent-length: 2\r\n\r\n";
        assert_eq!(parse(check.as_bytes(), false), Parsed::Other, "where checks are not answered");
        let text = "GET /livez HTTP/1.1\r\nhost: a\r\n\r\n";
        for end in 0..text.len() {
            assert_eq!(parse(&text.as_bytes()[..end], true), Parsed::Incomplete(Part::Head), "{end}");
        }
        let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        for end in 0..preface.len() {
            assert_eq!(parse(&preface.as_bytes()[..end], true), Parsed::Incomplete(Part::Head), "{end}");
        }
        for other in [
            text,
            preface,
            "PRI * HTTP/2.0\r\n\r\nSO",
            "*1000000000\r\n",
            "\u{16}\u{3}\u{1}",
            "GET / HTTP/1.0\n\n",
        ] {
            assert_eq!(parse(other.as_bytes(), true), Parsed::Other, "{other:?}");
        }
        let long = "x".repeat(MAX_HEAD_BYTES);
        assert_eq!(parse(format!("GET / HTTP/1.1\r\nx: {long}").as_bytes(), true), Parsed::Other);
    }

    #[test]
    fn checks_with_an_unusual_head_go_to_hyper() {
        for head in [
            "",
            "content-length: 2\r\ncontent-length: 2\r\n",
            "content-length: 2\r\ntransfer-encoding: chunked\r\n",
            "content-length: +2\r\n",
            "content-length: 2, 2\r\n",
            "content-length: \r\n",
            "content-length: 65537\r\n",
            "content-length: 18446744073709551616\r\n",
            "content-length: 2\r\nexpect: 100-continue\r\n",
            "content-length: 2\r\nconnection: close\r\n",
            "content-length: 2\r\nconnection: keep-alive, upgrade\r\n",
            "content-length: 2\r\nupgrade: h2c\r\n",
            "content-length : 2\r\n",
            " content-length: 2\r\n",
            "content-length: 2\r\nx: a\r\n b\r\n",
        ] {
            assert_eq!(parsed(head, "{}"), Parsed::Other, "{head:?}");
        }
        let many = "x: y\r\n".repeat(MAX_CHECK_FIELDS);
        assert_eq!(parsed(&format!("content-length: 2\r\n{many}"), "{}"), Parsed::Other);
    }

    #[test]
    fn a_panic_replaces_its_own_answer_only() {
        let traffic = Traffic::default();
        let mut answers = b"whole|half".to_vec();
        write_panic_response(&traffic, Timestamp::from_micros(0), "whole|".len(), &mut answers);
        let text = String::from_utf8(answers).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("whole|HTTP/1.1 500 Internal Server Error\r\n"), "{head}");
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
        assert!(head.ends_with("date: Thu, 01 Jan 1970 00:00:00 GMT"), "{head}");
        assert!(body.contains("something went wrong here"), "{body}");
        assert_eq!(traffic.panics.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_preference_is_parsed() {
        let head = "content-length: 0\r\nPrefer: wait=1, status=200\r\n";
        assert!(matches!(parsed(head, ""), Parsed::Check { prefer: Prefer::Always200, .. }));
    }
}
