//! Connecting to a server: at an address, or through a Unix socket.

use std::error::Error;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tower_service::Service;

/// Opens the connections of a client.
#[derive(Debug, Clone)]
pub(super) enum Connector {
    /// To the host of each request.
    Tcp(HttpConnector),
    /// To this socket, whatever the host.
    Unix(PathBuf),
}

type BoxError = Box<dyn Error + Send + Sync>;

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Connector::Tcp(connector) => connector.poll_ready(cx).map_err(Into::into),
            Connector::Unix(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        match self {
            Connector::Tcp(connector) => {
                let connecting = connector.call(uri);
                Box::pin(async move { Ok(connecting.await?) })
            }
            Connector::Unix(path) => {
                let path = path.clone();
                Box::pin(async move {
                    let stream = UnixStream::connect(path).await?.into_std()?;
                    // Both kinds of stream are read and written with the same calls, so that a client needs only one type.
                    let stream = std::net::TcpStream::from(OwnedFd::from(stream));
                    Ok(TokioIo::new(TcpStream::from_std(stream)?))
                })
            }
        }
    }
}
