//! HTTP/2 clients that close their side of a connection while they wait for answers.
//!
//! hyper answers such clients of HTTP/1. Its HTTP/2 drops every stream at the end of its input, so on the data plane that
//! end is reported only when all requests are answered. On the admin plane the client has gone, and what it asked for is
//! cancelled.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::slow_reader::Unread;

/// How often requests in progress are looked for after the end of the input.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// A stream whose input ends when the client has closed its side and is answered.
#[derive(Debug)]
pub(super) struct HalfClose<S> {
    stream: S,
    /// What is answered before the end is reported; without it, the end is reported immediately.
    unread: Option<Unread>,
    /// Runs once the client has closed its side.
    check: Option<Pin<Box<Sleep>>>,
    /// Whether the last check found no request. The frames of the last answer may be queued then; they are written before the
    /// next one.
    is_idle: bool,
}

impl<S> HalfClose<S> {
    pub(super) const fn new(stream: S, unread: Option<Unread>) -> Self {
        HalfClose { stream, unread, check: None, is_idle: false }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HalfClose<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let HalfClose { stream, unread, check, is_idle } = self.get_mut();
        let check = match check {
            Some(check) => check,
            None => {
                let before = room.remaining();
                ready!(Pin::new(stream).poll_read(context, room))?;
                if unread.is_none() || room.remaining() < before || before == 0 {
                    return Poll::Ready(Ok(()));
                }
                check.insert(Box::pin(sleep(CHECK_INTERVAL)))
            }
        };
        loop {
            ready!(check.as_mut().poll(context));
            let was_idle = std::mem::replace(is_idle, !unread.as_ref().is_some_and(Unread::has_requests));
            if was_idle && *is_idle {
                return Poll::Ready(Ok(()));
            }
            check.as_mut().reset(Instant::now() + CHECK_INTERVAL);
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HalfClose<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
