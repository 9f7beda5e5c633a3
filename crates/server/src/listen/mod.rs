//! One listener: accepts a bounded number of connections and serves HTTP/1.1 and HTTP/2 on them, with TLS if configured.
//!
//! ```text
//! accept -> place -> TLS -> direct   waits for a request; answers plain checks
//!                           hyper    every other request; returns an idle HTTP/1 connection to direct
//!                           preface  waits for HTTP/2 over TLS to begin, then hyper
//! ```
//!
//! Every wait for a client has an end ([`ListenerLimits`]), and what clients make the server keep in memory has a bound
//! ([`budget`]). Connections that are served do not notice those that are rejected.
//!
//! A stop loses no request that the kernel has accepted:
//!
//! ```text
//! farewell   every answer says `connection: close`; connections are accepted
//! backlog    no new handshakes; the connections that the kernel has completed are accepted, then the socket is closed
//! grace      HTTP/2 says GOAWAY; connections without a request may still send one, which is answered
//! drain      connections without a request are closed; requests in progress are answered
//! ```

mod backlog;
mod budget;
mod connection;
mod direct;
mod endpoint;
mod half_close;
mod head;
mod limits;
mod overflow;
mod places;
mod preface;
mod rejections;
mod rewind;
mod slow_reader;
mod tls;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::http::{App, Peer, Plane, Problem, router};
use crate::reload::Reloadable;
use crate::server::Config;
use crate::telemetry::Observe;
use budget::Budget;
pub(crate) use budget::Reservation;
use connection::{Connection, Doors};
pub use endpoint::Endpoint;
use endpoint::Socket;
pub use limits::ListenerLimits;
use places::{Admission, Places};
use slow_reader::Flowing;
pub use tls::{TlsError, TlsFiles};

/// How far a stop has come. Every connection watches it, and the stop is complete when none does any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Connections are accepted.
    Serving,
    /// No more connections are accepted. Those there are may still send a request.
    Grace,
    /// Only requests in progress are answered.
    Closing,
}

impl Phase {
    /// Done when a stop has come so far, or the listener is gone.
    async fn reached(self, mut phase: watch::Receiver<Phase>) {
        while *phase.borrow_and_update() < self {
            if phase.changed().await.is_err() {
                return;
            }
        }
    }
}

/// What happened on the listeners.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Connections accepted.
    pub(crate) accepted: AtomicU64,
    /// Connections rejected because all places, or those of their address, were taken.
    pub(crate) rejected: AtomicU64,
    /// Handshakes that failed or took too long.
    pub(crate) handshakes_failed: AtomicU64,
    /// Requests that panicked.
    pub(crate) panics: AtomicU64,
    /// Whether the server is about to stop.
    pub(crate) stopping: AtomicBool,
}

/// An open listener.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    endpoint: Endpoint,
    plane: Plane,
    tls: Option<Arc<Reloadable<ServerConfig>>>,
    limits: ListenerLimits,
    observe: Observe,
    traffic: Arc<Traffic>,
}

impl Listener {
    pub(crate) async fn bind(
        plane: Plane,
        endpoint: &Endpoint,
        config: &Config,
        tls: Option<Arc<Reloadable<ServerConfig>>>,
        traffic: Arc<Traffic>,
    ) -> io::Result<Self> {
        let socket = Socket::bind(endpoint).await?;
        let endpoint = socket.endpoint()?;
        let (limits, observe) = (config.limits.of(plane), config.observe.clone());
        Ok(Listener { socket, endpoint, plane, tls, limits, observe, traffic })
    }

    pub(crate) const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Serves until `stop` is done, then finishes what is in flight.
    pub(crate) async fn serve(self, app: App, stop: impl Future<Output = ()>) {
        let entrance = Entrance {
            doors: Doors { router: router(app.clone(), self.plane), app, plane: self.plane },
            places: Places::new(&self.limits),
            budget: Budget::new(self.limits.memory),
            phase: watch::Sender::new(Phase::Serving),
        };
        let farewell = async {
            stop.await;
            self.traffic.stopping.store(true, Ordering::Relaxed);
            tokio::time::sleep(self.limits.farewell).await;
        };
        self.accept_until(farewell, &entrance).await;
        self.drain_backlog(&entrance).await;
        drop(self.socket);
        let (phase, limits) = (entrance.phase, self.limits);
        phase.send_replace(Phase::Grace);
        let open = phase.receiver_count();
        tracing::info!(listener = %self.endpoint, open, "stopping: finishing what is in flight");
        if tokio::time::timeout(limits.grace, phase.closed()).await.is_ok() {
            return;
        }
        phase.send_replace(Phase::Closing);
        if tokio::time::timeout(limits.drain, phase.closed()).await.is_err() {
            tracing::warn!("some connections did not finish in time and were closed");
        }
    }

    async fn accept_until(&self, stop: impl Future<Output = ()>, entrance: &Entrance) {
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                accepted = self.socket.accept() => self.admit(accepted, entrance).await,
                () = &mut stop => return,
            }
        }
    }

    /// Accepts what is in the backlog: closing the socket would reset those connections.
    async fn drain_backlog(&self, entrance: &Entrance) {
        let ends = Instant::now() + backlog::DEADLINE;
        let quiet = self.socket.refuse_handshakes();
        while let Ok(accepted) = tokio::time::timeout(quiet, self.socket.accept()).await {
            self.admit(accepted, entrance).await;
            if Instant::now() >= ends {
                return;
            }
        }
    }

    async fn admit(&self, accepted: io::Result<(TcpStream, SocketAddr)>, entrance: &Entrance) {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => return pause_after(&error).await,
        };
        // Answers are small and written in one piece; waiting to fill a packet only delays them.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        let app = &entrance.doors.app;
        match entrance.places.admit(peer.ip(), |address| app.gate().trusts(address)) {
            Admission::Place(place) => {
                self.traffic.accepted.fetch_add(1, Ordering::Relaxed);
                let connection = self.connection(Peer(peer), entrance, place);
                let stream = Flowing::new(stream, self.limits.unread, Arc::clone(&connection.budget));
                match self.tls.as_ref().map(|tls| Arc::clone(&tls.get())) {
                    None => drop(tokio::spawn(connection.serve(stream))),
                    Some(tls) => drop(tokio::spawn(connection.serve_tls(stream, tls))),
                }
            }
            Admission::Overflow(place) => {
                self.count_rejected();
                let tls = self.tls.as_ref().map(|tls| Arc::clone(&tls.get()));
                let (now, phase) = (app.limiter().clock().now(), entrance.phase.subscribe());
                tokio::spawn(async move {
                    overflow::answer(stream, tls, now).await;
                    drop((place, phase));
                });
            }
            Admission::Rejected => self.count_rejected(),
        }
    }

    fn count_rejected(&self) {
        if self.traffic.rejected.fetch_add(1, Ordering::Relaxed).is_power_of_two() {
            let max = self.limits.connections;
            tracing::warn!(max, "connections are rejected: all places, or those of their address, are taken");
        }
    }

    fn connection(&self, peer: Peer, entrance: &Entrance, place: places::Place) -> Connection {
        Connection {
            peer,
            doors: entrance.doors.clone(),
            phase: entrance.phase.subscribe(),
            limits: self.limits,
            budget: budget::ConnectionBudget::new(&entrance.budget),
            observe: self.observe.clone(),
            traffic: Arc::clone(&self.traffic),
            _place: place,
        }
    }
}

/// What a connection is given when it is accepted.
struct Entrance {
    doors: Doors,
    places: Places,
    budget: Arc<Budget>,
    phase: watch::Sender<Phase>,
}

/// A request that was not answered in time.
fn timed_out(within: Duration) -> Problem {
    let detail = format!("a request has {} s, its body included", within.as_secs());
    Problem::new(StatusCode::REQUEST_TIMEOUT, "the request took too long", detail)
}

/// The answer to a request that panicked.
pub(crate) fn panicked(traffic: &Traffic) -> Problem {
    traffic.panics.fetch_add(1, Ordering::Relaxed);
    let detail = "this is a bug in tollgate, and the log has its trace; other requests are not affected";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "something went wrong here", detail)
}

/// Out of descriptors, for example: trying again immediately would only use up the processor.
async fn pause_after(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(Duration::from_millis(50)).await;
}
