//! Problems for requests that hyper rejects before they reach the router.
//!
//! hyper answers a head that it cannot parse with a bare 400, 414 or 431. Every other error has a body that says what is
//! wrong, and forward-auth can choose the status of refusals, so the head that hyper writes is replaced by a whole
//! answer. A client may still be sending then: what it sends is read for a moment before the connection is closed,
//! because a connection that is closed with unread data is reset, and the answer may be lost.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::head::head_too_large;
use crate::http::{Problem, refusal_status};

/// What is remembered of a request: enough for the request line of forward-auth.
const REQUEST_LINE_BYTES: usize = 128;
/// How long, and how much, is read from a client whose request was rejected.
const LINGER_TIME: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 256 << 10;

/// A stream on which hyper's own answers to malformed heads are problems.
#[derive(Debug)]
pub(super) struct Rejections<S> {
    stream: S,
    /// The beginning of what was read since the last answer.
    request_line: Vec<u8>,
    /// Whether an answer was written since.
    is_answered: bool,
    /// The answer that replaces hyper's, until it is written.
    answer: Option<Answer>,
    linger: Option<Linger>,
    /// Whether hyper waits to read, and does not wait to write or flush.
    is_reading: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Answer {
    bytes: Vec<u8>,
    written: usize,
    /// How many bytes of hyper's it stands for.
    replaced: usize,
}

#[derive(Debug)]
struct Linger {
    end: Pin<Box<Sleep>>,
    bytes: usize,
}

impl<S> Rejections<S> {
    /// `is_reading` tells from now on whether hyper waits to read, and does not wait to write or flush.
    pub(super) const fn new(stream: S, is_reading: Arc<AtomicBool>) -> Self {
        Rejections {
            stream,
            request_line: Vec::new(),
            is_answered: false,
            answer: None,
            linger: None,
            is_reading,
        }
    }

    pub(super) fn into_inner(self) -> S {
        self.stream
    }

    fn note_request(&mut self, read: &[u8]) {
        if self.is_answered {
            self.request_line.clear();
            self.is_answered = false;
        }
        let room = REQUEST_LINE_BYTES - self.request_line.len();
        self.request_line.extend_from_slice(&read[..read.len().min(room)]);
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Rejections<S> {
    /// Writes the answer that takes the place of hyper's.
    fn poll_answer(&mut self, mut answer: Answer, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        while answer.written < answer.bytes.len() {
            match Pin::new(&mut self.stream).poll_write(context, &answer.bytes[answer.written..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => answer.written += written,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.answer = Some(answer);
                    return Poll::Pending;
                }
            }
        }
        self.linger = Some(Linger { end: Box::pin(sleep(LINGER_TIME)), bytes: 0 });
        Poll::Ready(Ok(answer.replaced))
    }

    /// Reads what a rejected client still sends.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(linger) = &mut self.linger else { return Poll::Ready(()) };
        let mut space = [0; 4 << 10];
        while linger.bytes < LINGER_BYTES && linger.end.as_mut().poll(context).is_pending() {
            let mut room = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut self.stream).poll_read(context, &mut room)) {
                Ok(()) if !room.filled().is_empty() => linger.bytes += room.filled().len(),
                _ => break,
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rejections<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = room.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, room);
        self.is_reading.store(read.is_pending(), Ordering::Relaxed);
        ready!(read)?;
        self.note_request(&room.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Rejections<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.is_answered = true;
        self.is_reading.store(false, Ordering::Relaxed);
        if let Some(answer) = self.answer.take() {
            return self.poll_answer(answer, context);
        }
        match rejection(bytes) {
            None => Pin::new(&mut self.stream).poll_write(context, bytes),
            Some(rejection) => {
                let answer = rejection.answer(&self.request_line);
                self.poll_answer(Answer { bytes: answer, written: 0, replaced: bytes.len() }, context)
            }
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut pieces = slices.iter().filter(|slice| !slice.is_empty());
        if let (Some(only), None) = (pieces.next(), pieces.next()) {
            return self.poll_write(context, only);
        }
        self.is_answered = true;
        self.is_reading.store(false, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        // TLS takes an answer before the socket does, and hyper reads on meanwhile.
        if flushed.is_pending() {
            self.is_reading.store(false, Ordering::Relaxed);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        self.poll_linger(context).map(Ok)
    }
}

/// An answer that hyper wrote by itself.
#[derive(Debug, PartialEq, Eq)]
struct Rejection<'a> {
    status: StatusCode,
    /// The fields after the status line, without the length.
    fields: Vec<&'a str>,
}

/// Recognises hyper's own answers: a status of theirs, no body and no type. Errors of the router have both.
fn rejection(bytes: &[u8]) -> Option<Rejection<'_>> {
    let rest = bytes.strip_prefix(b"HTTP/1.1 4")?;
    let status = match rest.get(..2)? {
        b"00" => StatusCode::BAD_REQUEST,
        b"14" => StatusCode::URI_TOO_LONG,
        b"31" => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        _ => return None,
    };
    let head = str::from_utf8(rest.strip_suffix(b"\r\n\r\n")?).ok()?;
    let mut fields: Vec<&str> = head.split("\r\n").skip(1).collect();
    let length = fields.iter().position(|field| *field == "content-length: 0")?;
    fields.remove(length);
    let is_bare = fields.iter().all(|field| field.starts_with("connection: ") || field.starts_with("date: "));
    is_bare.then_some(Rejection { status, fields })
}

impl Rejection<'_> {
    /// The whole answer to a request that began like this.
    fn answer(&self, request_line: &[u8]) -> Vec<u8> {
        let problem = match self.status {
            StatusCode::URI_TOO_LONG => Problem::new(
                self.status,
                "the request target is too long",
                "a request target has at most 64 KiB",
            ),
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => head_too_large(),
            status => Problem::new(
                status,
                "the request is malformed",
                "the request line or a header field is not valid HTTP; control characters, for one, are not",
            ),
        };
        let body = problem.to_json();
        let at_forward_auth = refusal_status(request_line, self.status);
        let shown = at_forward_auth.unwrap_or(self.status);
        let mut head =
            format!("HTTP/1.1 {} {}\r\n", shown.as_str(), shown.canonical_reason().unwrap_or_default());
        head.push_str("content-type: application/problem+json\r\n");
        if at_forward_auth.is_some() {
            head.push_str(&format!("tollgate-status: {}\r\n", self.status.as_str()));
        }
        head.push_str(&format!("content-length: {}\r\n", body.len()));
        for field in &self.fields {
            head.push_str(field);
            head.push_str("\r\n");
        }
        [head.as_bytes(), b"\r\n", &body].concat()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufWriter, duplex};

    use super::*;

    const BARE: &[u8] =
        b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";

    /// What a client gets that sent this and for which hyper wrote that.
    async fn answered(request: &[u8], wrote: &[u8]) -> String {
        // Narrow: an answer takes several writes.
        let (mut client, server) = duplex(64);
        let mut stream = Rejections::new(server, Arc::default());
        let written = async {
            let mut read = vec![0; request.len()];
            stream.read_exact(&mut read).await.unwrap();
            stream.write_all(wrote).await.unwrap();
            stream.shutdown().await.unwrap();
        };
        let asked = async {
            client.write_all(request).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            drop(client);
            answer
        };
        tokio::join!(asked, written).0
    }

    #[tokio::test]
    async fn a_bare_rejection_becomes_a_problem() {
        let answer = answered(b"GET / HTTP/1.1\r\n", BARE).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{head}");
        assert!(head.ends_with("\r\nconnection: close\r\ndate: x"), "{head}");
        assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", body.len())), "{head}");
        assert!(head.contains("\r\ncontent-type: application/problem+json\r\n"), "{head}");
        let problem: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(problem["status"], 431);
    }

    #[tokio::test]
    async fn a_rejection_at_forward_auth_has_the_status_that_the_proxy_chose() {
        let answer = answered(b"GET /v1/authz?deny_status=403 HTTP/1.0\r\nx: ", BARE).await;
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
        assert!(answer.contains("\r\ntollgate-status: 431\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn an_answer_that_waits_to_be_flushed_is_not_sent_yet() {
        let (mut client, server) = duplex(4);
        let is_reading = Arc::new(AtomicBool::new(false));
        // Takes the whole answer at once, as TLS does, and flushes it piece by piece.
        let mut stream = Rejections::new(BufWriter::new(server), Arc::clone(&is_reading));
        stream.write_all(b"answer").await.unwrap();
        let mut context = Context::from_waker(Waker::noop());
        // The order in which hyper polls.
        let mut is_sent = || {
            let mut space = [0; 8];
            let read = Pin::new(&mut stream).poll_read(&mut context, &mut ReadBuf::new(&mut space));
            assert!(read.is_pending());
            let is_flushed = Pin::new(&mut stream).poll_flush(&mut context).is_ready();
            assert_eq!(is_reading.load(Ordering::Relaxed), is_flushed);
            is_flushed
        };
        assert!(!is_sent());
        client.read_exact(&mut [0; 4]).await.unwrap();
        assert!(is_sent());
    }

    #[tokio::test]
    async fn every_other_answer_stays_as_it_is() {
        for wrote in [
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        ] {
            assert_eq!(answered(b"GET / HTTP/1.1\r\n", wrote.as_bytes()).await, wrote);
        }
    }
}
