//! Listeners: open them, say where they are, serve, stop cleanly.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::OptionFuture;

use crate::http::{App, Plane};
use crate::listen::{Listener, ListenerLimits, TlsError, TlsFiles};
use crate::telemetry::Observe;

/// Where and how to listen.
#[derive(Debug, Clone)]
pub struct Config {
    /// Decisions; port 0 takes a free one.
    pub http: SocketAddr,
    /// The admin API and the dashboard.
    pub admin: SocketAddr,
    /// `/metrics` alone, without a credential.
    pub metrics: Option<SocketAddr>,
    /// TLS on every listener but that of the metrics.
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
            admin,
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
        let open = async |what, plane, address, tls| {
            let listener = Listener::bind(plane, address, config, tls, Arc::clone(app.traffic())).await;
            listener.map_err(|source| ServerError::Listen { what, address, source })
        };
        let http = open("http", Plane::Data, config.http, tls.clone()).await?;
        let admin = open("admin", Plane::Admin, config.admin, tls).await?;
        let metrics = match config.metrics {
            Some(address) => Some(open("metrics", Plane::Metrics, address, None).await?),
            None => None,
        };
        app.set_checks_at(http.address());
        Ok(Server { http, admin, metrics, app })
    }

    /// Where decisions are answered.
    pub const fn http(&self) -> SocketAddr {
        self.http.address()
    }

    /// Where the admin API and the dashboard are.
    pub const fn admin(&self) -> SocketAddr {
        self.admin.address()
    }

    /// Where `/metrics` is alone.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Listener::address)
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
        let mut addresses = serde_json::json!({ "http": self.http(), "admin": self.admin() });
        if let Some(metrics) = self.metrics() {
            addresses["metrics"] = metrics.to_string().into();
        }
        std::fs::write(&unfinished, addresses.to_string())?;
        std::fs::rename(unfinished, path)
    }
}
