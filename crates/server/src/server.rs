//! Listeners: open them, say where they are, serve, stop cleanly.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::OptionFuture;

use crate::http::{App, Plane};
use crate::listen::{Endpoint, Listener, ListenerLimits, TlsError, TlsFiles};
use crate::telemetry::Observe;

/// Where and how to listen.
#[derive(Debug, Clone)]
pub struct Config {
    /// Decisions; port 0 takes a free one.
    pub http: SocketAddr,
    /// The admin API and the dashboard.
    pub admin: Endpoint,
    /// `/metrics` alone, without a credential.
    pub metrics: Option<SocketAddr>,
    /// TLS on every address but that of the metrics.
    pub tls: Option<TlsFiles>,
    /// The bounds of every listener.
    pub limits: ListenerLimits,
    /// Which requests are looked at.
    pub observe: Observe,
}

impl Config {
    /// These two listeners, and nothing else.
    pub fn new(http: SocketAddr, admin: SocketAddr) -> Self {
        Config {
            http,
            admin: admin.into(),
            metrics: None,
            tls: None,
            limits: ListenerLimits::default(),
            observe: Observe::nothing(),
        }
    }
}

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The address is taken or not ours.
    #[error("cannot listen on {endpoint} for {what}; {}; choose another with --{what}", hint(source))]
    Listen {
        /// Which listener.
        what: &'static str,
        /// Where.
        endpoint: Endpoint,
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

/// What to look at when a listener cannot be opened.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "does its directory exist?",
        io::ErrorKind::PermissionDenied => "may this user listen there?",
        _ => "is another program there?",
    }
}

/// Open listeners, not yet serving.
#[derive(Debug)]
pub struct Server {
    http: Listener,
    admin: Listener,
    metrics: Option<Listener>,
    app: App,
}

impl Server {
    /// Opens the listeners.
    ///
    /// # Errors
    ///
    /// An address cannot be listened on, or the certificate is of no use.
    pub async fn bind(config: &Config, app: App) -> Result<Self, ServerError> {
        let tls = config.tls.clone().map(TlsFiles::keep).transpose();
        let tls = tls.map_err(|source| ServerError::Tls { source })?;
        let open = async |what, plane, endpoint: Endpoint, tls| {
            let listener = Listener::bind(plane, &endpoint, config, tls, Arc::clone(app.traffic())).await;
            listener.map_err(|source| ServerError::Listen { what, endpoint, source })
        };
        let http = open("http", Plane::Data, config.http.into(), tls.clone()).await?;
        // Only processes of this user reach a Unix socket.
        let tls = tls.filter(|_| matches!(config.admin, Endpoint::Tcp(_)));
        let admin = open("admin", Plane::Admin, config.admin.clone(), tls).await?;
        let metrics = match config.metrics {
            Some(address) => Some(open("metrics", Plane::Metrics, address.into(), None).await?),
            None => None,
        };
        let server = Server { http, admin, metrics, app };
        server.app.set_checks_at(server.http());
        Ok(server)
    }

    /// Where decisions are answered.
    pub fn http(&self) -> SocketAddr {
        address(&self.http)
    }

    /// Where the admin API and the dashboard are.
    pub const fn admin(&self) -> &Endpoint {
        self.admin.endpoint()
    }

    /// Where `/metrics` is alone.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(address)
    }

    /// Serves until `stop` is done, then finishes what is in flight.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let events = Arc::clone(&self.app.events);
        let stop = async move {
            stop.await;
            events.close(); // who only listens would keep us waiting
        }
        .shared();
        let serve = |listener: Listener| listener.serve(self.app.clone(), stop.clone());
        let metrics = OptionFuture::from(self.metrics.map(serve));
        tokio::join!(serve(self.http), serve(self.admin), metrics);
    }

    /// Writes where the listeners are: `{"http": "127.0.0.1:41234", "admin": "127.0.0.1:41235"}`.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write_ready_file(&self, path: &Path) -> Result<(), ServerError> {
        self.write_addresses(path).map_err(|source| ServerError::ReadyFile { path: path.to_owned(), source })
    }

    /// Writes a temporary file and renames it, so that no reader sees half of it.
    fn write_addresses(&self, path: &Path) -> io::Result<()> {
        let unfinished = path.with_extension("unfinished");
        let mut addresses = serde_json::json!({ "http": self.http(), "admin": self.admin().to_string() });
        if let Some(metrics) = self.metrics() {
            addresses["metrics"] = metrics.to_string().into();
        }
        std::fs::write(&unfinished, addresses.to_string())?;
        std::fs::rename(unfinished, path)
    }
}

/// The address of a listener that is never a Unix socket.
fn address(listener: &Listener) -> SocketAddr {
    match listener.endpoint() {
        Endpoint::Tcp(address) => *address,
        Endpoint::Unix(_) => unreachable!("only --admin may be a Unix socket"),
    }
}
