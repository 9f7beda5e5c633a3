//! Clients that do not read their answers. They keep neither a place nor memory for longer than a given time.
//!
//! ```text
//! the socket takes no more bytes      Flowing   HTTP/1 and HTTP/2
//! the client's window is closed       Unread    HTTP/2, which has a window for each stream
//! ```
//!
//! A connection is closed in two steps, so that the client can read its answer to the end ([`Flowing`]).

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::response::{IntoResponse as _, Response};
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::budget::{ConnectionBudget, Reservation, SHORT_WAIT};
use crate::http::Problem;

/// Answers are written in pieces of this size, so that progress is seen while a client reads slowly.
const PIECE: usize = 64 << 10;

/// Unsent bytes that the kernel keeps for a client beyond its window. By default these are megabytes, and a client that
/// does not read would be noticed only when they are full.
const UNSENT_BYTES: u32 = 64 << 10;
/// How long a connection that we have closed is read until its client closes it too.
const LINGER: Duration = Duration::from_secs(1);

/// Bounds what the kernel keeps unsent, for every connection that is accepted here.
pub(super) fn bound_unsent_bytes(socket: &TcpListener) {
    #[cfg(target_os = "linux")]
    if let Err(error) = socket2::SockRef::from(socket).set_tcp_notsent_lowat(UNSENT_BYTES) {
        tracing::debug!(%error, "no TCP_NOTSENT_LOWAT");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, UNSENT_BYTES);
}

/// A stream on which no write stands still for longer than `max_wait`, or [`SHORT_WAIT`] while memory is short.
///
/// Its shutdown ends our side of the connection and then discards what still arrives, until the client ends its side or
/// [`LINGER`] is over. Dropped with unread bytes, the socket would send a reset, and the client's kernel would discard
/// what it has of our answer.
#[derive(Debug)]
pub(super) struct Flowing {
    stream: TcpStream,
    max_wait: Duration,
    budget: Arc<ConnectionBudget>,
    /// Set while the socket takes nothing.
    stalled: Option<Stalled>,
    /// Runs once our side is closed.
    linger: Option<Pin<Box<Sleep>>>,
}

/// A write that waits for the client.
#[derive(Debug)]
struct Stalled {
    since: Instant,
    next_look: Pin<Box<Sleep>>,
}

impl Flowing {
    pub(super) const fn new(stream: TcpStream, max_wait: Duration, budget: Arc<ConnectionBudget>) -> Self {
        Flowing { stream, max_wait, budget, stalled: None, linger: None }
    }

    fn bounded<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let wait = self.max_wait.min(SHORT_WAIT);
        let stalled = self
            .stalled
            .get_or_insert_with(|| Stalled { since: Instant::now(), next_look: Box::pin(sleep(wait)) });
        loop {
            ready!(stalled.next_look.as_mut().poll(context));
            if stalled.since.elapsed() >= self.max_wait || self.budget.is_evicted() {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")));
            }
            let next = (Instant::now() + wait).min(stalled.since + self.max_wait);
            stalled.next_look.as_mut().reset(next);
        }
    }
}

impl AsyncRead for Flowing {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Flowing {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.bounded(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Flowing { stream, linger, .. } = self.get_mut();
        let mut stream = Pin::new(stream);
        let linger = match linger {
            Some(linger) => linger,
            None => {
                ready!(stream.as_mut().poll_shutdown(context))?;
                linger.insert(Box::pin(sleep(LINGER)))
            }
        };
        // The timer first: a client that sends on and on is not read on and on.
        while linger.as_mut().poll(context).is_pending() {
            let mut discarded = [0; 4 << 10];
            let mut buffer = ReadBuf::new(&mut discarded);
            match ready!(stream.as_mut().poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The pieces of answers on a connection that its client has not taken.
#[derive(Debug, Clone, Default)]
pub(super) struct Unread(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    /// Since when each piece waits; the oldest has the smallest number.
    since: BTreeMap<u64, Instant>,
    next: u64,
}

impl Unread {
    /// Done when a piece has waited for longer than this.
    pub(super) async fn for_longer_than(&self, max_wait: Duration) {
        loop {
            let oldest = self.0.lock().since.first_key_value().map(|(_, since)| *since);
            match oldest.map(|since| since + max_wait) {
                None => sleep(max_wait).await,
                Some(end) if end <= Instant::now() => return,
                Some(end) => sleep_until(end).await,
            }
        }
    }

    /// Whether a request is in progress, or something of its answer waits. Each has a clone of this, beside the two of the
    /// connection.
    pub(super) fn has_requests(&self) -> bool {
        Arc::strong_count(&self.0) > 2
    }

    fn piece(&self) -> Piece {
        let mut waiting = self.0.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.since.insert(number, Instant::now());
        drop(waiting);
        Piece { number, unread: self.clone() }
    }
}

/// Something that waits, until it is dropped.
#[derive(Debug)]
struct Piece {
    number: u64,
    unread: Unread,
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.unread.0.lock().since.remove(&self.number);
    }
}

/// The answer to a request that charges nothing: a 503 if it does not fit into memory.
pub(super) fn fitting(answer: Response, reservation: &Reservation) -> Response {
    match size(&answer) {
        Some(bytes) if !reservation.try_set(bytes) => Problem::no_memory().into_response(),
        _ => answer,
    }
}

/// Counts an answer until its connection has taken it, and watches it if `unread` is given. What may have been charged is
/// answered even if it does not fit into memory. A body of unknown size counts for itself.
pub(super) fn hold(answer: Response, reservation: Arc<Reservation>, unread: Option<Unread>) -> Response {
    if let Some(bytes) = size(&answer) {
        reservation.set(bytes);
    }
    answer.map(|body| {
        let waiting = unread.map(|unread| (unread.piece(), unread));
        Body::new(Held { body, rest: Bytes::new(), waiting, reservation })
    })
}

fn size(answer: &Response) -> Option<usize> {
    answer.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok())
}

/// An answer that is counted, and of which every piece is known to wait, here or where it waits to be sent.
#[derive(Debug)]
struct Held {
    body: Body,
    /// The part of a frame that was not asked for yet.
    rest: Bytes,
    /// The next piece.
    waiting: Option<(Piece, Unread)>,
    reservation: Arc<Reservation>,
}

/// Bytes that are counted, and wait, until they are sent.
struct HeldBytes {
    bytes: Bytes,
    _waiting: Option<Piece>,
    _reservation: Arc<Reservation>,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context))
                .map(|frame| frame.map(Frame::into_data))
            {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let length = self.rest.len().min(PIECE);
        let bytes = self.rest.split_to(length);
        let waiting = self.waiting.as_mut().map(|(next, unread)| {
            *next = unread.piece();
            unread.piece()
        });
        let held = HeldBytes { bytes, _waiting: waiting, _reservation: Arc::clone(&self.reservation) };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(held)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::super::budget::Budget;
    use super::*;

    const MAX_WAIT: Duration = Duration::from_secs(30);

    fn budget() -> Arc<ConnectionBudget> {
        ConnectionBudget::new(&Budget::new(64 << 20))
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_kernel_keeps_few_unsent_bytes_for_an_accepted_connection() {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        bound_unsent_bytes(&socket);
        let _client = TcpStream::connect(socket.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = socket.accept().await.unwrap();
        assert_eq!(socket2::SockRef::from(&accepted).tcp_notsent_lowat().unwrap(), UNSENT_BYTES);
    }

    #[tokio::test]
    async fn a_shutdown_reads_what_the_client_still_sends_and_ends_when_the_client_does() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(socket.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = socket.accept().await.unwrap();
        let mut flowing = Flowing::new(accepted, MAX_WAIT, budget());
        flowing.write_all(b"answer").await.unwrap();
        client.write_all(&[7; 100_000]).await.unwrap();
        let closed = tokio::spawn(async move { flowing.shutdown().await });
        client.write_all(b"more").await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("no reset");
        assert_eq!(answer, "answer");
        client.shutdown().await.unwrap();
        closed.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_counted_and_waits_until_it_is_taken() {
        let (unread, budget) = (Unread::default(), budget());
        let answer = Response::new(Body::from(vec![7; 2 * PIECE + 1]));
        let answer = hold(answer, budget.request(), Some(unread.clone()));
        let mut body = answer.into_body();
        assert_eq!(body.size_hint().exact(), Some(2 * PIECE as u64 + 1));
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first.len(), PIECE);
        let begin = Instant::now();
        unread.for_longer_than(MAX_WAIT).await;
        assert_eq!(begin.elapsed(), MAX_WAIT, "a piece that was handed out and not sent waits too");
        drop(first);
        let rest = body.collect().await.unwrap().to_bytes();
        assert_eq!((rest.len(), budget.requests()), (PIECE + 1, 0));
        drop(rest);
        assert!(unread.0.lock().since.is_empty());
        let waited = tokio::time::timeout(100 * MAX_WAIT, unread.for_longer_than(MAX_WAIT));
        assert!(waited.await.is_err(), "nothing waits");
    }

    #[tokio::test]
    async fn an_answer_that_does_not_fit_is_503_unless_it_may_have_been_charged() {
        let connection = ConnectionBudget::new(&Budget::new(100 << 10));
        let answer = || Response::new(Body::from(vec![7; 200 << 10]));
        let request = connection.request();
        assert_eq!(fitting(answer(), &request).status(), 503);
        let charged = hold(answer(), request, None);
        assert_eq!((charged.status().as_u16(), connection.is_evicted()), (200, true));
        drop(charged);
        assert!(!connection.is_evicted());
    }
}
