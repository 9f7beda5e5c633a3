//! Bytes to and from a Redis: over TCP, TLS or a socket, and never more of them than an answer may have.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, RedisResult};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;

use super::address::at;

/// More than all answers that can be waited for at once, and many times the longest log; whoever sends more is no Redis,
/// or mad.
const MOST_UNANSWERED: usize = 8 << 20;

/// Where to connect, and how.
#[derive(Debug, Clone)]
pub(super) struct Dial {
    pub(super) info: ConnectionInfo,
    pub(super) tls: Option<Arc<ClientConfig>>,
}

/// Bytes read since the last answer was complete.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter(Arc<AtomicUsize>);

impl Meter {
    /// An answer is complete.
    pub(super) fn answered(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Done when a connection has ended.
pub(super) type Ended = oneshot::Receiver<()>;

/// A connection that has said hello, the bytes read over it, and when it has ended.
pub(super) type Dialled = (MultiplexedConnection, Meter, Ended);

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Dial {
    /// The same at another address.
    pub(super) fn to(&self, host: &str, port: u16) -> Self {
        Dial { info: at(&self.info, host, port), tls: self.tls.clone() }
    }

    /// Its address as it may be shown and compared: `redis://host:port`.
    pub(super) fn shown(&self) -> String {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{}", self.info.addr())
    }

    /// The host, where there is one.
    pub(super) fn host(&self) -> &str {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
            _ => "",
        }
    }

    /// A connection for messages, and the bytes read over it.
    pub(super) async fn listen(&self) -> RedisResult<(PubSub, Meter)> {
        let (stream, meter) = self.metered().await?;
        Ok((PubSub::new(self.info.redis_settings(), stream).await?, meter))
    }

    /// A connection that has said hello: AUTH, SELECT.
    pub(super) async fn connect(&self) -> RedisResult<Dialled> {
        let (stream, meter) = self.metered().await?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(1024);
        let (connection, driver) =
            MultiplexedConnection::new_with_config(self.info.redis_settings(), stream, config).await?;
        let (ending, ended) = oneshot::channel::<()>();
        // It ends with the last clone of the connection, or when the other side hangs up.
        tokio::spawn(async move {
            driver.await;
            drop(ending);
        });
        Ok((connection, meter, ended))
    }

    async fn metered(&self) -> RedisResult<(Metered, Meter)> {
        let meter = Meter::default();
        Ok((Metered { stream: self.stream().await?, meter: meter.clone() }, meter))
    }

    async fn stream(&self) -> io::Result<Box<dyn Stream>> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => Ok(Box::new(tcp(host, *port).await?)),
            ConnectionAddr::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            ConnectionAddr::TcpTls { host, port, .. } => {
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let config = self.tls.clone().ok_or_else(|| io::Error::other("no TLS configured"))?;
                let stream = tcp(host, *port).await?;
                Ok(Box::new(TlsConnector::from(config).connect(name, stream).await?))
            }
            _ => Err(io::Error::other("an address of a kind that is not known")),
        }
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A stream that breaks when too much of an answer was read.
struct Metered {
    stream: Box<dyn Stream>,
    meter: Meter,
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let read = buffer.filled().len() - before;
        let unanswered = self.meter.0.fetch_add(read, Ordering::Relaxed) + read;
        if unanswered > MOST_UNANSWERED {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "an answer without an end")));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
