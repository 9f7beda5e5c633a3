//! Clients that do not read their answers. Nobody keeps a place, or our memory, by leaving it to us what to do with them.
//!
//! ```text
//! the socket takes no more bytes          Flowing   HTTP/1 and HTTP/2
//! the client gives no leave to send       Unread    HTTP/2, where it says so for each stream, and may read all others
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
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// Answers are handed out in pieces of this: a client that reads slowly is not one that does not read.
const PIECE: usize = 64 << 10;

/// How many bytes the kernel keeps for a client beyond what the client has room for. By default these are megabytes, and
/// a client that does not read would be noticed only when they are full.
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

/// A stream on which writing does not stand still for longer than a given time.
///
/// Its shutdown ends our side of the connection and then discards what still arrives, until the client ends its side or
/// [`LINGER`] is over. Dropped with unread bytes, the socket would send a reset, and the client's kernel would discard
/// what it has of our answer.
#[derive(Debug)]
pub(super) struct Flowing {
    stream: TcpStream,
    patience: Duration,
    /// Runs while the socket takes nothing.
    still: Option<Pin<Box<Sleep>>>,
    /// Runs once our side is closed.
    linger: Option<Pin<Box<Sleep>>>,
}

impl Flowing {
    pub(super) const fn new(stream: TcpStream, patience: Duration) -> Self {
        Flowing { stream, patience, still: None, linger: None }
    }

    fn moved<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.still = None;
            return written;
        }
        let still = self.still.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        ready!(still.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
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
        self.moved(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.moved(context, written)
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

/// What a connection was answered and has not taken.
#[derive(Debug, Clone, Default)]
pub(super) struct Unread(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    /// Since when each piece waits; the oldest has the least number.
    since: BTreeMap<u64, Instant>,
    next: u64,
}

impl Unread {
    /// An answer that is watched until the last piece of it was sent.
    pub(super) fn watch(&self, body: Body) -> Body {
        let next = self.piece();
        Body::new(Watched { body, rest: Bytes::new(), unread: self.clone(), next })
    }

    /// Done when something has waited for so long.
    pub(super) async fn for_longer_than(&self, patience: Duration) {
        loop {
            let oldest = self.0.lock().since.first_key_value().map(|(_, since)| *since);
            match oldest.map(|since| since + patience) {
                None => sleep(patience).await,
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

/// Bytes that wait until they are sent.
struct Held {
    bytes: Bytes,
    _piece: Piece,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// An answer of which every piece is known to wait, here or where it waits to be sent.
#[derive(Debug)]
struct Watched {
    body: Body,
    /// Of what the body gave, what was not asked for yet.
    rest: Bytes,
    unread: Unread,
    next: Piece,
}

impl HttpBody for Watched {
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
        self.next = self.unread.piece();
        let held = Held { bytes, _piece: self.unread.piece() };
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

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

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
        let mut flowing = Flowing::new(accepted, PATIENCE);
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
    async fn an_answer_that_nobody_takes_is_noticed_and_one_that_was_taken_is_forgotten() {
        let unread = Unread::default();
        let mut body = unread.watch(Body::from(vec![7; 2 * PIECE + 1]));
        assert_eq!(body.size_hint().exact(), Some(2 * PIECE as u64 + 1));
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first.len(), PIECE);
        let begin = Instant::now();
        unread.for_longer_than(PATIENCE).await;
        assert_eq!(begin.elapsed(), PATIENCE, "what was handed out and not sent waits too");
        drop(first);
        let rest = body.collect().await.unwrap().to_bytes();
        assert_eq!(rest.len(), PIECE + 1);
        drop(rest);
        assert!(unread.0.lock().since.is_empty());
        let patience = tokio::time::timeout(100 * PATIENCE, unread.for_longer_than(PATIENCE));
        assert!(patience.await.is_err(), "nothing waits");
    }
}
