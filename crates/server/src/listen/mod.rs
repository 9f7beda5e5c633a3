//! One listener: accepts connections, so many and no more, and serves HTTP/1.1 and HTTP/2 on them, with TLS where it
//! is asked for.
//!
//! Nobody is waited for without an end. A client has so long for its handshake and for the head of a request, a request
//! has so long for its answer, the answer so long to be read, and whoever comes when all places are taken is turned away
//! at once: those who are being served do not notice.
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
mod direct;
mod half_close;
mod head;
mod rejections;
mod rewound;
mod stall;
mod tls;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, StatusCode, Version};
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;
use tracing::Instrument as _;

use crate::http::{App, EVENTS, Peer, Plane, Problem, router};
use crate::record::events::Hangup;
use crate::reload::Reloadable;
use crate::server::Config;
use crate::telemetry::{Observe, REQUEST_ID};
use direct::{Direct, HTTP2};
use half_close::HalfClose;
use head::{MAX_HEAD_BYTES, MAX_HTTP2_HEAD_BYTES, reject_large_head};
use rejections::Rejections;
use rewound::Rewound;
use stall::{Flowing, Unread};
pub use tls::{TlsError, TlsFiles};

/// Connections at once on the admin plane, and on that of the metrics.
const MAX_ADMIN_CONNECTIONS: usize = 1_024;
/// Requests at once on one connection of HTTP/2.
const MAX_STREAMS: u32 = 250;
/// Streams that a client may open and take back before its connection is closed.
const MAX_RESETS: usize = 100;

/// How much a listener bears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Connections at once on the data plane, and at most 1,024 of them on each other listener; further ones are turned away.
    pub connections: usize,
    /// For a TLS handshake.
    pub handshake: Duration,
    /// For the head of a request to arrive, also on a connection that was silent.
    pub head: Duration,
    /// For a request to be answered, its body included.
    pub request: Duration,
    /// For a client to read on, while there is an answer for it.
    pub unread: Duration,
    /// When the server is told to stop, every answer says so for so long before it stops accepting: clients who are
    /// about to ask are told where they stand, instead of meeting a closed door.
    pub farewell: Duration,
    /// Once it has stopped accepting, for a connection without a request to send one. Longer than it takes a client that
    /// has just connected to send its request.
    pub grace: Duration,
    /// For what is in flight then.
    pub drain: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            connections: 20_000,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(60),
            request: Duration::from_secs(30),
            unread: Duration::from_secs(30),
            farewell: Duration::from_millis(200),
            grace: Duration::from_secs(1),
            drain: Duration::from_secs(10),
        }
    }
}

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

    /// Has hyper answer only the requests that have arrived, once a stop has come so far. Done with its connection.
    async fn then(self, phase: watch::Receiver<Phase>, stop: GracefulShutdown) {
        self.reached(phase).await;
        stop.shutdown().await;
    }
}

/// What happened on the listeners.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Connections accepted.
    pub(crate) accepted: AtomicU64,
    /// Connections turned away because all places were taken.
    pub(crate) turned_away: AtomicU64,
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
    socket: TcpListener,
    address: SocketAddr,
    plane: Plane,
    tls: Option<Arc<Reloadable<ServerConfig>>>,
    patience: Patience,
    observe: Observe,
    traffic: Arc<Traffic>,
}

impl Listener {
    pub(crate) async fn bind(
        plane: Plane,
        address: SocketAddr,
        config: &Config,
        tls: Option<Arc<Reloadable<ServerConfig>>>,
        traffic: Arc<Traffic>,
    ) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        stall::bound_unsent_bytes(&socket);
        let address = socket.local_addr()?;
        let (patience, observe) = (config.patience, config.observe.clone());
        Ok(Listener { socket, address, plane, tls, patience, observe, traffic })
    }

    /// Connections at once.
    fn places(&self) -> usize {
        let most = self.patience.connections;
        if self.plane == Plane::Data { most } else { most.min(MAX_ADMIN_CONNECTIONS) }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is done, then finishes what is in flight.
    pub(crate) async fn serve(self, app: App, stop: impl Future<Output = ()>) {
        let entrance = Entrance {
            doors: Doors { router: router(app.clone(), self.plane), app, plane: self.plane },
            places: Arc::new(Semaphore::new(self.places())),
            phase: watch::Sender::new(Phase::Serving),
        };
        let farewell = async {
            stop.await;
            self.traffic.stopping.store(true, Ordering::Relaxed);
            tokio::time::sleep(self.patience.farewell).await;
        };
        self.accept_until(farewell, &entrance).await;
        self.drain_backlog(&entrance).await;
        drop(self.socket);
        let (phase, patience) = (entrance.phase, self.patience);
        phase.send_replace(Phase::Grace);
        tracing::info!(open = phase.receiver_count(), "stopping: finishing what is in flight");
        if tokio::time::timeout(patience.grace, phase.closed()).await.is_ok() {
            return;
        }
        phase.send_replace(Phase::Closing);
        if tokio::time::timeout(patience.drain, phase.closed()).await.is_err() {
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
        let quiet = backlog::refuse_handshakes(&self.socket);
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
        match Arc::clone(&entrance.places).try_acquire_owned() {
            Ok(place) => self.welcome(stream, self.connection(Peer(peer), entrance, place)),
            Err(_) => self.turn_away(),
        }
    }

    fn turn_away(&self) {
        if self.traffic.turned_away.fetch_add(1, Ordering::Relaxed).is_power_of_two() {
            let most = self.places();
            tracing::warn!(most, "all places are taken: connections are turned away");
        }
    }

    fn connection(&self, peer: Peer, entrance: &Entrance, place: OwnedSemaphorePermit) -> Connection {
        Connection {
            peer,
            doors: entrance.doors.clone(),
            phase: entrance.phase.subscribe(),
            patience: self.patience,
            observe: self.observe.clone(),
            traffic: Arc::clone(&self.traffic),
            _place: place,
        }
    }

    fn welcome(&self, stream: TcpStream, connection: Connection) {
        self.traffic.accepted.fetch_add(1, Ordering::Relaxed);
        // Answers are small and written at once; waiting to fill a packet only delays them.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        match &self.tls {
            None => {
                let stream = Flowing::new(stream, connection.patience.unread);
                drop(tokio::spawn(connection.serve_checks(stream)));
            }
            Some(tls) => {
                let tls = Arc::clone(&tls.get());
                drop(tokio::spawn(connection.serve_tls(stream, tls)));
            }
        }
    }
}

/// What is behind a listener.
#[derive(Debug, Clone)]
struct Doors {
    app: App,
    plane: Plane,
    router: Router,
}

/// What a connection is given when it is accepted.
struct Entrance {
    doors: Doors,
    places: Arc<Semaphore>,
    phase: watch::Sender<Phase>,
}

/// What a connection needs for as long as it lasts.
struct Connection {
    peer: Peer,
    doors: Doors,
    phase: watch::Receiver<Phase>,
    patience: Patience,
    observe: Observe,
    traffic: Arc<Traffic>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// Answers checks; whatever else there is to do is hyper's. Its futures are large, and most connections wait, so
    /// they are made when there is something to do.
    async fn serve_checks(self, mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let is_direct = self.doors.plane == Plane::Data && self.observe.is_off();
        let app = Some(&self.doors.app).filter(|_| is_direct);
        let direct = Direct { app, traffic: &self.traffic, silence: self.patience.head };
        let Some(read) = direct.serve(&mut stream, self.phase.clone()).await else {
            let _ = stream.shutdown().await; // an error is a client that has closed the connection
            return;
        };
        // Without TLS nobody says which version it is to be.
        let is_http2 = read.starts_with(HTTP2);
        let stream = Rewound::new(read.freeze(), stream);
        match is_http2 {
            true => Box::pin(self.serve_http2(stream)).await,
            false => Box::pin(self.serve_http1(stream)).await,
        }
    }

    async fn serve_tls(self, stream: TcpStream, tls: Arc<ServerConfig>) {
        let handshake = TlsAcceptor::from(tls).accept(Flowing::new(stream, self.patience.unread));
        // What a handshake needs is gone before the connection is served.
        match self.within(self.patience.handshake, Box::pin(handshake)).await {
            Some(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => {
                Box::pin(self.serve_http2(stream)).await;
            }
            Some(Ok(stream)) => self.serve_checks(stream).await,
            failed => {
                self.traffic.handshakes_failed.fetch_add(1, Ordering::Relaxed);
                if let Some(Err(error)) = failed {
                    tracing::debug!(%error, "no TLS");
                }
            }
        }
    }

    /// What a client does before it asks anything; none where it takes too long, or the server stops.
    async fn within<T>(&self, patience: Duration, begin: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = begin => Some(done),
            () = Phase::Closing.reached(self.phase.clone()) => None,
            () = tokio::time::sleep(patience) => None,
        }
    }

    async fn serve_http1(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let (hangup, phase) = (Hangup::default(), self.phase.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // A client may close its side once its request is sent, and is answered.
            .half_close(true)
            .header_read_timeout(self.patience.head)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(
                TokioIo::new(Rejections::new(stream)),
                service_fn(|request| self.answer(request, &hangup, None)),
            );
        let stop = GracefulShutdown::new();
        let connection = Box::pin(stop.watch(connection));
        until_hung_up(hangup.asked(), connection, Phase::Closing.then(phase, stop)).await;
    }

    async fn serve_http2(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let (hangup, unread, phase) = (Hangup::default(), Unread::default(), self.phase.clone());
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(self.patience.head)
            .max_concurrent_streams(MAX_STREAMS)
            .max_pending_accept_reset_streams(MAX_RESETS)
            .max_local_error_reset_streams(MAX_RESETS)
            .max_header_list_size(MAX_HTTP2_HEAD_BYTES)
            .serve_connection(
                TokioIo::new(HalfClose::new(stream, unread.clone())),
                service_fn(|request| self.answer(request, &hangup, Some(&unread))),
            );
        let does_not_read = async {
            tokio::select! {
                () = hangup.asked() => {}
                () = unread.for_longer_than(self.patience.unread) => {}
            }
        };
        let stop = GracefulShutdown::new();
        let connection = Box::pin(stop.watch(connection));
        until_hung_up(does_not_read, connection, Phase::Grace.then(phase, stop)).await;
    }

    /// What becomes of a request. On the heap: a connection that is silent has no place for one.
    fn answer(
        &self,
        mut request: Request<Incoming>,
        hangup: &Hangup,
        unread: Option<&Unread>,
    ) -> Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>> {
        let (peer, observe) = (self.peer, self.observe.clone());
        let (router, within, traffic) =
            (self.doors.router.clone(), self.patience.request, Arc::clone(&self.traffic));
        let is_http1 = request.version() < Version::HTTP_2;
        request.extensions_mut().insert(peer);
        let mut unread = unread.cloned();
        // Who listens to events is hung up on by whoever tells them, and every other request is better off without one
        // more allocation.
        if request.uri().path() == EVENTS {
            request.extensions_mut().insert(hangup.clone());
            unread = None;
        }
        let request = request.map(Body::new);
        Box::pin(async move {
            let answered = |request| answer(router, request, within, &traffic);
            let answer = match observe.is_off() {
                true => answered(request).await,
                false => looked_at(&observe, request, answered).await,
            };
            let answer = if is_http1 { and_close(answer, &traffic) } else { answer };
            Ok(match unread {
                None => answer,
                Some(unread) => answer.map(|body| unread.watch(body)),
            })
        })
    }
}

/// Asks a client to close the connection, once the server is about to stop.
fn and_close(mut response: Response, traffic: &Traffic) -> Response {
    if traffic.stopping.load(Ordering::Relaxed) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The same with a span, and a line in the log where it is this request's turn.
async fn looked_at<F: Future<Output = Response>>(
    observe: &Observe,
    request: Request<Body>,
    answer: impl FnOnce(Request<Body>) -> F,
) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let id = observe.request_id(request.headers());
    let span = observe.span(method.as_str(), &path, &id, request.headers());
    let began = Instant::now();
    let mut response = answer(request).instrument(span.clone()).await;
    let status = response.status().as_u16();
    span.record("http.response.status_code", status);
    if observe.logs_this() {
        let request_id = id.to_str().unwrap_or_default();
        let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        tracing::info!(target: "tollgate::request", %method, path = path.escape_debug().to_string(), status, took_us, request_id, "request");
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// Serves to the end of the connection, or until we lose patience with a client that does not read. A connection is on the
/// heap, once: what is handed from one future to the next would lie in each of them.
async fn until_hung_up(
    lost_patience: impl Future<Output = ()>,
    connection: Pin<Box<impl Future<Output = hyper::Result<()>>>>,
    stop: impl Future<Output = ()>,
) {
    tokio::select! {
        biased; // a request that was read already is begun first, and is in progress when the server stops
        ended = connection => {
            if let Err(error) = ended {
                tracing::debug!(%error, "connection ended");
            }
        }
        () = lost_patience => tracing::info!("hung up on a client that does not read"),
        () = stop => {}
    }
}

/// The answer to one request, whatever becomes of it. A panic is a bug here, and that request's alone.
async fn answer(router: Router, request: Request<Body>, within: Duration, traffic: &Traffic) -> Response {
    if let Some(rejected) = reject_large_head(&request) {
        return rejected;
    }
    let answered = AssertUnwindSafe(router.oneshot(request)).catch_unwind();
    match tokio::time::timeout(within, answered).await {
        Ok(Ok(Ok(response))) => response,
        Ok(Err(_)) => panicked(traffic).into_response(),
        Err(_) => {
            let detail = format!("a request has {} s, its body included", within.as_secs());
            Problem::new(StatusCode::REQUEST_TIMEOUT, "the request took too long", detail).into_response()
        }
    }
}

/// What is said of a panic.
fn panicked(traffic: &Traffic) -> Problem {
    traffic.panics.fetch_add(1, Ordering::Relaxed);
    let detail = "this is a bug in tollgate, and the log has its trace; other requests are not affected";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "something went wrong here", detail)
}

/// Out of descriptors, say: trying again at once would only burn the processor.
async fn pause_after(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tollgate::{AnyStore, Limiter, MemoryStore, RuleSet};

    use super::*;
    use crate::http::RulesHome;

    async fn asked(router: Router) -> (StatusCode, Arc<Traffic>) {
        let traffic = Arc::new(Traffic::default());
        let request = Request::get("/").body(Body::empty()).unwrap();
        let patience = Duration::from_secs(30);
        let response = answer(router, request, patience, &traffic).await;
        (response.status(), traffic)
    }

    #[tokio::test]
    async fn a_panic_is_an_answer_to_its_own_request() {
        let panics = Router::new().route("/", get(async || -> &'static str { panic!("a bug") }));
        let (status, traffic) = asked(panics).await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(traffic.panics.load(Ordering::Relaxed), 1);
    }

    /// What hyper keeps for a connection is 16 KiB of buffers, and none before there is something for it to do.
    #[tokio::test]
    async fn a_connection_takes_little_memory_while_nothing_is_asked() {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(socket.local_addr().unwrap()).await.unwrap();
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let limiter = Limiter::new(RuleSet::default(), AnyStore::from(MemoryStore::new()));
        let app = App::new(Arc::new(limiter), RulesHome::Fixed("code".to_owned()));
        let connection = Connection {
            peer: Peer("127.0.0.1:1".parse().unwrap()),
            doors: Doors { app, plane: Plane::Data, router: Router::new() },
            phase: watch::Sender::new(Phase::Serving).subscribe(),
            patience: Patience::default(),
            observe: Observe::nothing(),
            traffic: Arc::default(),
            _place: place,
        };
        let stream = Flowing::new(stream, Duration::from_secs(30));
        let served = connection.serve_checks(stream);
        let size = size_of_val(&served);
        assert!(size <= 2_048, "{size} bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_an_end_is_answered_all_the_same() {
        let hangs = Router::new().route("/", get(async || std::future::pending::<&'static str>().await));
        assert_eq!(asked(hangs).await.0, StatusCode::REQUEST_TIMEOUT);
    }
}
