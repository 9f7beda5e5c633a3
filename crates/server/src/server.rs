//! Listeners: open them, say where they are, serve, stop cleanly.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::http::App;
use crate::listen::{Listener, Patience, TlsError, TlsFiles};
use crate::telemetry::Observe;

/// Where and how to listen.
#[derive(Debug, Clone)]
pub struct Config {
    /// The HTTP API; port 0 takes a free one.
    pub http: SocketAddr,
    /// TLS on every listener.
    pub tls: Option<TlsFiles>,
    /// How much a listener bears.
    pub patience: Patience,
    /// Which requests are looked at.
    pub observe: Observe,
    /// Written when every listener is up: `{"http": "127.0.0.1:41234"}`.
    pub ready_file: Option<PathBuf>,
}

impl Config {
    /// The HTTP API there, and nothing else.
    pub fn new(http: SocketAddr) -> Self {
        Config {
            http,
            tls: None,
            patience: Patience::default(),
            observe: Observe::nothing(),
            ready_file: None,
        }
    }
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
    /// The certificate or its key are of no use.
    #[error("TLS cannot be served; look at --tls-cert, --tls-key and --tls-client-ca")]
    Tls {
        /// Why.
        source: TlsError,
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
    http: Listener,
    app: App,
}

impl Server {
    /// Opens the listeners and writes the ready file.
    ///
    /// # Errors
    ///
    /// An address cannot be listened on, the certificate is of no use, or the ready file cannot be written.
    pub async fn bind(config: &Config, app: App) -> Result<Self, ServerError> {
        let tls = config.tls.clone().map(TlsFiles::keep).transpose();
        let tls = tls.map_err(|source| ServerError::Tls { source })?;
        let refused = |source| ServerError::Listen { what: "http", address: config.http, source };
        let traffic = Arc::clone(app.traffic());
        let http = Listener::bind(config, tls, traffic).await.map_err(refused)?;
        if let Some(path) = &config.ready_file {
            write_ready_file(path, http.address())
                .map_err(|source| ServerError::ReadyFile { path: path.clone(), source })?;
        }
        Ok(Server { http, app })
    }

    /// Where the HTTP API listens.
    pub const fn http(&self) -> SocketAddr {
        self.http.address()
    }

    /// Serves until `stop` is done, then finishes what is in flight.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let events = Arc::clone(&self.app.events);
        let stop = async move {
            stop.await;
            events.close(); // who only listens would keep us waiting
        };
        self.http.serve(self.app, stop).await;
    }
}

/// Written beside and moved into place, so that whoever waits for the file never reads half of it.
fn write_ready_file(path: &Path, http: SocketAddr) -> io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    std::fs::write(&unfinished, serde_json::json!({ "http": http }).to_string())?;
    std::fs::rename(unfinished, path)
}
