//! Listeners: open them, say where they are, serve, stop cleanly.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt as _;

use crate::http::{App, EVENTS, Peer, router};
use crate::record::events::{Hangup, Hub};

/// Request heads beyond this are answered 431.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// A client that has not sent its request's head by then is gone or hostile.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// What is in flight when the server is told to stop may take so long.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Where to listen.
#[derive(Debug, Clone)]
pub struct Config {
    /// The HTTP API; port 0 takes a free one.
    pub http: SocketAddr,
    /// Written when every listener is up: `{"http": "127.0.0.1:41234"}`.
    pub ready_file: Option<PathBuf>,
}

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The address is taken or not ours.
    #[error("cannot listen on {address} for {what}; is another program there? choose another with --{what}")]
    Listen {
        /// Which listener.
        what: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The ready file could not be written.
    #[error("cannot write the ready file {}", path.display())]
    ReadyFile {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Open listeners, not yet serving.
#[derive(Debug)]
pub struct Server {
    http: TcpListener,
    address: SocketAddr,
    router: Router,
    events: Arc<Hub>,
}

impl Server {
    /// Opens the listeners and writes the ready file.
    ///
    /// # Errors
    ///
    /// An address cannot be listened on, or the ready file not be written.
    pub async fn bind(config: &Config, app: App) -> Result<Self, ServerError> {
        let refused = |source| ServerError::Listen { what: "http", address: config.http, source };
        let http = TcpListener::bind(config.http).await.map_err(refused)?;
        let address = http.local_addr().map_err(refused)?;
        if let Some(path) = &config.ready_file {
            write_ready_file(path, address)
                .map_err(|source| ServerError::ReadyFile { path: path.clone(), source })?;
        }
        let events = Arc::clone(&app.events);
        Ok(Server { http, address, router: router(app), events })
    }

    /// Where the HTTP API listens.
    pub const fn http(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is done, then finishes what is in flight.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let connections = GracefulShutdown::new();
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                accepted = self.http.accept() => match accepted {
                    Ok((stream, peer)) => serve(stream, Peer(peer), self.router.clone(), &connections),
                    Err(error) => pause_after(&error).await,
                },
                () = &mut stop => break,
            }
        }
        drop(self.http);
        self.events.close(); // who only listens would keep us waiting
        let open = connections.count();
        tracing::info!(open, "stopping: finishing what is in flight");
        if tokio::time::timeout(DRAIN_TIMEOUT, connections.shutdown()).await.is_err() {
            tracing::warn!("some connections did not finish in time and were closed");
        }
    }
}

fn serve(stream: TcpStream, peer: Peer, router: Router, connections: &GracefulShutdown) {
    // Answers are small and written at once; waiting to fill a packet only delays them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let hangup = Hangup::default();
    let asked = hangup.clone();
    let service = router.map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        // Only listeners are ever hung up on, and every other request is better off without one more allocation.
        if request.uri().path() == EVENTS {
            request.extensions_mut().insert(asked.clone());
        }
        request
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let connection = connections.watch(connection);
    tokio::spawn(async move {
        let ended = tokio::select! {
            ended = connection => ended,
            () = hangup.asked() => return tracing::info!("hung up on a client that does not read"),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
    });
}

/// Out of descriptors, say: trying again at once would only burn the processor.
async fn pause_after(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// Written beside and moved into place, so that whoever waits for the file never reads half of it.
fn write_ready_file(path: &Path, http: SocketAddr) -> io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    std::fs::write(&unfinished, serde_json::json!({ "http": http }).to_string())?;
    std::fs::rename(unfinished, path)
}
