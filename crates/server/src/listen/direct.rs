//! Checks over HTTP/1.1, straight from the bytes of a connection.
//!
//! Most of what a check over HTTP costs is HTTP. So every connection begins here: a `POST /v1/check` that is plain and
//! whole is answered from the bytes that were read. With the first that is anything else (another route, HTTP/2, a body
//! in chunks, a mistake, a client that lets us wait), or when the server is about to stop, the connection goes to hyper
//! with all that was read of it, for good. Nothing is refused here: what is wrong or too much is said in one place.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep, timeout_at};
use tollgate::Timestamp;

use super::{MAX_HEAD_BYTES, Phase, Traffic, panicked};
use crate::http::{App, MAX_BODY_BYTES, Prefer};

/// How a check begins.
const CHECK: &[u8] = b"POST /v1/check HTTP/1.1\r\n";
/// How HTTP/2 begins; no request of HTTP/1 does.
pub(super) const HTTP2: &[u8] = b"PRI ";
/// Whoever has begun a request ends it within this time, or is waited for by hyper.
const HASTE: Duration = Duration::from_millis(100);
/// Room for what is read at once.
const ROOM: usize = 4 << 10;
/// Heads with more fields are not plain.
const MOST_FIELDS: usize = 32;
/// Answers to requests that came at once are sent at once, but not more than this.
const MOST_UNSENT: usize = 64 << 10;

/// What answers the checks of a connection.
pub(super) struct Direct<'c> {
    /// None where checks are not answered here.
    pub(super) app: Option<&'c App>,
    pub(super) traffic: &'c Traffic,
    /// So long a connection may say nothing.
    pub(super) silence: Duration,
}

/// What the bytes of a connection begin with.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// A check: where its body begins, where it ends, and how it likes to be answered.
    Check { body: usize, end: usize, prefer: Prefer },
    /// What may become one.
    Part,
    /// What is hyper's.
    Other,
}

/// What came of waiting for more.
enum Came {
    More,
    Nothing,
    /// The client has gone, or is gone as far as we know, or the server stops.
    End,
}

impl Direct<'_> {
    /// Answers checks until something else comes: what was read of it. Nothing when the connection is over.
    pub(super) async fn serve(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        phase: watch::Receiver<Phase>,
    ) -> Option<BytesMut> {
        let (mut read, mut answers) = (BytesMut::new(), Vec::new());
        let mut hurry = None;
        let mut silence = pin!(sleep(self.silence));
        let mut closing = pin!(Phase::Closing.reached(phase));
        loop {
            // Those who ask on are told by hyper to ask elsewhere; and callers who need a token are let in there.
            let stopping = self.traffic.stopping.load(Ordering::Relaxed);
            let app = self.app.filter(|app| !stopping && app.auth.checks_are_open());
            match (look(&read), app) {
                (Seen::Check { body, end, prefer }, Some(app)) => {
                    if !self.answer(app, &read[body..end], prefer, &mut answers).await {
                        break;
                    }
                    read.advance(end);
                    hurry = None;
                    if read.is_empty() && end > ROOM {
                        read = BytesMut::new(); // what one request needed is not kept for the next
                    }
                }
                (Seen::Part, app) if app.is_some() || read.len() < HTTP2.len() => {
                    send(stream, &mut answers).await?;
                    let came = match read.is_empty() {
                        true => self.begin(stream, &mut read, silence.as_mut(), closing.as_mut()).await,
                        false => {
                            let end = *hurry.get_or_insert_with(|| Instant::now() + HASTE);
                            go_on(stream, &mut read, end).await
                        }
                    };
                    match came {
                        Came::More => {}
                        Came::Nothing => break,
                        Came::End => return None,
                    }
                }
                _ => break,
            }
            if answers.len() >= MOST_UNSENT {
                send(stream, &mut answers).await?;
            }
        }
        send(stream, &mut answers).await?;
        Some(read)
    }

    /// Answers a check, but for one that is wrong.
    async fn answer(&self, app: &App, body: &[u8], prefer: Prefer, answers: &mut Vec<u8>) -> bool {
        let before = answers.len();
        // On the heap only while it lasts: most connections wait.
        let answered =
            AssertUnwindSafe(Box::pin(app.write_check(body, prefer, answers))).catch_unwind().await;
        answered.unwrap_or_else(|_| self.own_up(app.limiter().clock().now(), before, answers))
    }

    /// Puts what is said of a panic in the place of what it left of an answer.
    fn own_up(&self, now: Timestamp, before: usize, answers: &mut Vec<u8>) -> bool {
        answers.truncate(before);
        panicked(self.traffic).write(now, answers);
        true
    }

    /// Waits for the next request, as long as one may be silent.
    async fn begin(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        read: &mut BytesMut,
        mut silence: Pin<&mut Sleep>,
        closing: Pin<&mut impl Future<Output = ()>>,
    ) -> Came {
        // One timer for the whole connection, moved only when it goes off.
        let ends = Instant::now() + self.silence;
        read.reserve(ROOM);
        let more = async {
            match stream.read_buf(read).await {
                Ok(1..) => Came::More,
                _ => Came::End,
            }
        };
        tokio::select! {
            biased;
            came = more => came,
            () = closing => Came::End,
            () = async {
                while silence.deadline() < ends {
                    silence.as_mut().await;
                    silence.as_mut().reset(ends);
                }
                silence.await;
            } => Came::End,
        }
    }
}

/// Sends what was answered; none where the client has gone, or does not take it.
async fn send(stream: &mut (impl AsyncWrite + Unpin), answers: &mut Vec<u8>) -> Option<()> {
    if answers.is_empty() {
        return Some(());
    }
    stream.write_all(answers).await.ok()?;
    answers.clear();
    answers.shrink_to(ROOM);
    stream.flush().await.ok()
}

/// Reads on in a request that has begun.
async fn go_on(stream: &mut (impl AsyncRead + Unpin), read: &mut BytesMut, end: Instant) -> Came {
    read.reserve(ROOM);
    match timeout_at(end, stream.read_buf(read)).await {
        Ok(Ok(1..)) => Came::More,
        Ok(Ok(0)) | Err(_) => Came::Nothing,
        Ok(Err(_)) => Came::End,
    }
}

fn look(read: &[u8]) -> Seen {
    let Some(rest) = read.strip_prefix(CHECK) else {
        let is_begun = CHECK.starts_with(read) || HTTP2.starts_with(read);
        return if is_begun { Seen::Part } else { Seen::Other };
    };
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let (head, fields) = match httparse::parse_headers(rest, &mut fields) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) if read.len() < MAX_HEAD_BYTES => return Seen::Part,
        _ => return Seen::Other,
    };
    let Some((length, prefer)) = plain(fields) else { return Seen::Other };
    let body = CHECK.len() + head;
    let end = body + length;
    match read.len() < end {
        true => Seen::Part,
        false => Seen::Check { body, end, prefer },
    }
}

/// The length of the body and how to answer, if a head says nothing out of the ordinary.
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

    fn seen(head: &str, body: &str) -> Seen {
        look(format!("POST /v1/check HTTP/1.1\r\n{head}\r\n{body}").as_bytes())
    }

    #[test]
    fn a_plain_check_is_seen_when_it_is_whole_and_not_before() {
        let text =
            "POST /v1/check HTTP/1.1\r\nhost: a\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\n{}POST";
        let whole = text.len() - "POST".len();
        for end in 0..whole {
            assert_eq!(look(&text.as_bytes()[..end]), Seen::Part, "{end}");
        }
        let check = Seen::Check { body: whole - 2, end: whole, prefer: Prefer::Nothing };
        assert_eq!(look(&text.as_bytes()[..whole]), check);
        assert_eq!(look(text.as_bytes()), check, "what follows is the next request");
    }

    #[test]
    fn whatever_is_out_of_the_ordinary_is_not_ours() {
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
            assert_eq!(seen(head, "{}"), Seen::Other, "{head:?}");
        }
        let many = "x: y\r\n".repeat(MOST_FIELDS);
        assert_eq!(seen(&format!("content-length: 2\r\n{many}"), "{}"), Seen::Other);
        let long = "x".repeat(MAX_HEAD_BYTES);
        assert_eq!(look(format!("POST /v1/check HTTP/1.1\r\nx: {long}").as_bytes()), Seen::Other);
        for other in [
            "GET / HTTP/1.1",
            "POST /v1/check HTTP/1.0",
            "POST /v1/check?a HTTP/1.1",
            "PRI * HTTP/2.0",
            "\r\n",
        ] {
            assert_eq!(look(other.as_bytes()), Seen::Other, "{other:?}");
        }
    }

    #[test]
    fn a_panic_takes_the_place_of_its_own_answer_only() {
        let traffic = Traffic::default();
        let direct = Direct { app: None, traffic: &traffic, silence: HASTE };
        let mut answers = b"whole|half".to_vec();
        assert!(direct.own_up(Timestamp::from_micros(0), "whole|".len(), &mut answers));
        let text = String::from_utf8(answers).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("whole|HTTP/1.1 500 Internal Server Error\r\n"), "{head}");
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
        assert!(head.ends_with("date: Thu, 01 Jan 1970 00:00:00 GMT"), "{head}");
        assert!(body.contains("something went wrong here"), "{body}");
        assert_eq!(traffic.panics.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_preference_is_heard() {
        let head = "content-length: 0\r\nPrefer: wait=1, status=200\r\n";
        assert!(matches!(seen(head, ""), Seen::Check { prefer: Prefer::Always200, .. }));
    }
}
