//! One connection, from the handshake to its end.

use std::convert::Infallible;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Method, Version};
use axum::response::{IntoResponse as _, Response};
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;
use tracing::Instrument as _;

use super::budget::{ConnectionBudget, SHORT_WAIT};
use super::direct::Direct;
use super::half_close::HalfClose;
use super::head::{MAX_HEAD_BYTES, MAX_HTTP2_HEAD_BYTES, head_bytes, reject_large_head};
use super::overflow::PROBE;
use super::places::Place;
use super::rejections::Rejections;
use super::rewind::Rewind;
use super::slow_reader::{Flowing, Unread, fitting, hold};
use super::{ListenerLimits, Phase, Reservation, Traffic, panicked, preface, timed_out};
use crate::http::{App, EVENTS, Peer, Plane, Problem};
use crate::record::events::Hangup;
use crate::telemetry::{Observe, REQUEST_ID};

/// What hyper takes for a connection while it serves it: two buffers of 8 KiB, a head and its futures.
const HYPER_BYTES: usize = 24 << 10;
/// How often it is looked whether a connection is idle. One of HTTP/1 that has been for one or two of these intervals is
/// taken back from hyper.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Requests in progress on one connection of HTTP/2.
const MAX_STREAMS: u32 = 250;
/// Streams that a client may open and reset before its connection is closed.
const MAX_RESETS: usize = 100;
/// What an HTTP/2 client may send of bodies that are not read yet: on a stream, and on its connection.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;

/// What is behind a listener.
#[derive(Debug, Clone)]
pub(super) struct Doors {
    pub(super) app: App,
    pub(super) plane: Plane,
    pub(super) router: Router,
}

/// What a connection needs for as long as it lasts.
pub(super) struct Connection {
    pub(super) peer: Peer,
    pub(super) doors: Doors,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) limits: ListenerLimits,
    pub(super) budget: Arc<ConnectionBudget>,
    pub(super) observe: Observe,
    pub(super) traffic: Arc<Traffic>,
    pub(super) _place: Place,
}

impl Connection {
    /// Waits for requests and answers them. The futures of hyper are large, and most connections wait, so they are made
    /// when there is a request for them.
    pub(super) async fn serve(self, mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let (reservation, mut read) = (self.budget.own(), BytesMut::new());
        let app = &self.doors.app;
        loop {
            let direct = Direct {
                app,
                answers_checks: self.doors.plane == Plane::Data && self.observe.is_off(),
                limits: &self.limits,
                traffic: &self.traffic,
                reservation: &reservation,
            };
            let Some(begun) = direct.serve(&mut stream, read, self.phase.clone()).await else {
                break;
            };
            // Without TLS, only the first bytes tell which version it is.
            if preface::is_whole(&begun) {
                return Box::pin(self.serve_http2(stream, begun.freeze(), &reservation)).await;
            }
            if !reservation.try_set(HYPER_BYTES) && !begun.starts_with(PROBE) {
                let mut answer = Vec::new();
                Problem::no_memory().write_last(app.limiter().clock().now(), &mut answer);
                let _ = stream.write_all(&answer).await; // an error is a client that has gone
                break;
            }
            match Box::pin(self.serve_http1(stream, begun.freeze())).await {
                Some(idle) => (stream, read) = idle,
                None => return,
            }
            reservation.set(0);
        }
        let _ = stream.shutdown().await; // an error is a client that has closed the connection
    }

    pub(super) async fn serve_tls(self, stream: Flowing, tls: Arc<ServerConfig>) {
        let handshake = TlsAcceptor::from(tls).accept(stream);
        // The memory of the handshake is freed before the connection is served.
        match self.within(self.limits.handshake, Box::pin(handshake)).await {
            Some(Ok(mut stream)) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => {
                // hyper waits for the preface without a timer.
                match self.within(self.limits.head, preface::read(&mut stream)).await {
                    Some(Ok(read)) => Box::pin(self.serve_http2(stream, read, &self.budget.own())).await,
                    _ => drop(stream.shutdown().await), // an error is a client that has gone
                }
            }
            Some(Ok(stream)) => self.serve(stream).await,
            failed => {
                self.traffic.handshakes_failed.fetch_add(1, Ordering::Relaxed);
                if let Some(Err(error)) = failed {
                    tracing::debug!(%error, "TLS handshake failed");
                }
            }
        }
    }

    /// What a client does before its first request; none if it takes too long, or the server stops.
    async fn within<T>(&self, max_wait: Duration, begin: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = begin => Some(done),
            () = Phase::Closing.reached(self.phase.clone()) => None,
            () = tokio::time::sleep(max_wait) => None,
        }
    }

    /// Serves requests until the connection is idle, and returns it with what was read of the next one; none when the
    /// connection is over.
    async fn serve_http1<S>(&self, stream: S, read: Bytes) -> Option<(S, BytesMut)>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (hangup, is_reading) = (Hangup::default(), Arc::new(AtomicBool::new(false)));
        let io = Rejections::new(Rewind::new(read, stream), Arc::clone(&is_reading));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // A client of the data plane may close its side once its request is sent, and is answered. On the admin
            // plane it has gone, and what it asked for is cancelled.
            .half_close(self.doors.plane == Plane::Data)
            .header_read_timeout(self.limits.head)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(io), service_fn(|request| self.answer(request, &hangup, None)));
        let mut connection = Box::new(connection);
        let (mut hung_up, mut closing) =
            (pin!(hangup.asked()), pin!(Phase::Closing.reached(self.phase.clone())));
        let (mut is_closing, mut was_idle) = (false, false);
        let mut ticks = interval(IDLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased; // a request that was read already is begun first, and is in progress when the server stops
                ended = &mut connection => {
                    log_end(ended);
                    return None;
                }
                () = &mut hung_up => {
                    tracing::info!("closed the connection of a client that does not read");
                    return None;
                }
                () = &mut closing, if !is_closing => {
                    is_closing = true;
                    Pin::new(&mut *connection).graceful_shutdown();
                }
                _ = ticks.tick() => {
                    // hyper reads without a request in progress only when the last answer is sent.
                    let is_idle = is_reading.load(Ordering::Relaxed) && self.budget.requests() == 0;
                    if is_idle && was_idle && !is_closing {
                        break;
                    }
                    was_idle = is_idle;
                }
            }
        }
        let parts = connection.into_parts();
        Some((parts.io.into_inner().into_inner().into_inner(), parts.read_buf.into()))
    }

    /// Serves requests until the connection is over. `read` is its preface and what came with it.
    async fn serve_http2(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        read: Bytes,
        reservation: &Reservation,
    ) {
        if !reservation.try_set(HYPER_BYTES) {
            let _ = stream.write_all(preface::NO_MEMORY).await; // an error is a client that has gone
            let _ = stream.shutdown().await;
            return;
        }
        let (hangup, unread, is_used) = (Hangup::default(), Unread::default(), AtomicBool::new(false));
        // A client of the data plane may close its side once its requests are sent, as over HTTP/1.
        let before_the_end = (self.doors.plane == Plane::Data).then(|| unread.clone());
        let stream = HalfClose::new(Rewind::new(read, stream), before_the_end);
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(self.limits.idle)
            .max_concurrent_streams(MAX_STREAMS)
            .max_pending_accept_reset_streams(MAX_RESETS)
            .max_local_error_reset_streams(MAX_RESETS)
            .max_header_list_size(MAX_HTTP2_HEAD_BYTES)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .serve_connection(
                TokioIo::new(stream),
                service_fn(|request| {
                    is_used.store(true, Ordering::Relaxed);
                    self.answer(request, &hangup, Some(&unread))
                }),
            );
        let mut connection = Box::pin(connection);
        let mut does_not_read = pin!(async {
            tokio::select! {
                () = hangup.asked() => {}
                () = unread.for_longer_than(self.limits.unread) => {}
            }
        });
        let mut stopping = pin!(Phase::Grace.reached(self.phase.clone()));
        let mut is_stopping = false;
        let mut idleness = Idleness::default();
        let mut ticks = interval(IDLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased; // a request that was read already is begun first, and is in progress when the server stops
                ended = &mut connection => return log_end(ended),
                () = &mut does_not_read => {
                    return tracing::info!("closed the connection of a client that does not read");
                }
                () = &mut stopping, if !is_stopping => {
                    is_stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                _ = ticks.tick() => {
                    // Requests may begin and end between two ticks.
                    let is_idle = !is_used.swap(false, Ordering::Relaxed) && self.budget.requests() == 0;
                    match idleness.next(is_idle, self.limits.idle, || self.budget.is_evicted()) {
                        Idle::Wait => {}
                        Idle::Shutdown => connection.as_mut().graceful_shutdown(),
                        Idle::Close => return tracing::debug!("closed an idle connection"),
                    }
                }
            }
        }
    }

    /// Answers a request. On the heap: a silent connection has no space for a request.
    fn answer(
        &self,
        mut request: Request<Incoming>,
        hangup: &Hangup,
        unread: Option<&Unread>,
    ) -> Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>> {
        let (peer, observe) = (self.peer, self.observe.clone());
        let (router, within, traffic) =
            (self.doors.router.clone(), self.limits.request, Arc::clone(&self.traffic));
        let is_http1 = request.version() < Version::HTTP_2;
        let reservation = self.budget.request();
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(Arc::clone(&reservation));
        let mut unread = unread.cloned();
        // A listener to events is hung up on by the hub, and every other request is better off without one more
        // allocation.
        if request.uri().path() == EVENTS {
            request.extensions_mut().insert(hangup.clone());
            unread = None;
        }
        // Whatever a GET asks for can be asked again, except a decision.
        let is_repeatable = request.method() == Method::GET && self.doors.plane != Plane::Data
            || request.uri().path() == "/openapi.json";
        let request = request.map(Body::new);
        Box::pin(async move {
            // Over HTTP/1 the head is part of what is counted for hyper.
            if !is_http1 && !reservation.try_set(head_bytes(&request)) {
                return Ok(Problem::no_memory().into_response());
            }
            let answered = |request| answer(router, request, within, &traffic);
            let answer = match observe.is_off() {
                true => answered(request).await,
                false => observed(&observe, request, answered).await,
            };
            let answer = if is_repeatable { fitting(answer, &reservation) } else { answer };
            let answer = if is_http1 { and_close(answer, &traffic) } else { answer };
            Ok(hold(answer, reservation, unread))
        })
    }
}

/// How long a connection of HTTP/2 has been idle. Its client answers PINGs, so hyper does not close it.
#[derive(Debug, Default)]
struct Idleness {
    since: Option<Instant>,
    /// When the client was told that the connection is closed.
    told: Option<Instant>,
}

/// What becomes of an idle connection.
enum Idle {
    Wait,
    /// The client is told to send no further requests.
    Shutdown,
    /// The client was told, and has not closed it.
    Close,
}

impl Idleness {
    /// Notes whether the connection was idle since the last time.
    fn next(&mut self, is_idle: bool, max_idle: Duration, is_evicted: impl FnOnce() -> bool) -> Idle {
        let now = Instant::now();
        self.since = is_idle.then(|| self.since.unwrap_or(now));
        let Some(since) = self.since else { return Idle::Wait };
        match self.told {
            Some(told) if now - told.max(since) >= SHORT_WAIT => Idle::Close,
            None if now - since >= max_idle || now - since >= SHORT_WAIT && is_evicted() => {
                self.told = Some(now);
                Idle::Shutdown
            }
            _ => Idle::Wait,
        }
    }
}

fn log_end(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// Asks a client to close the connection, once the server is about to stop.
fn and_close(mut response: Response, traffic: &Traffic) -> Response {
    if traffic.stopping.load(Ordering::Relaxed) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The same with a span, and a line in the log if this request is sampled.
async fn observed<F: Future<Output = Response>>(
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

/// The answer to one request. A panic is a bug here, and affects that request only.
async fn answer(router: Router, request: Request<Body>, within: Duration, traffic: &Traffic) -> Response {
    if let Some(rejected) = reject_large_head(&request) {
        return rejected;
    }
    let answered = AssertUnwindSafe(router.oneshot(request)).catch_unwind();
    match tokio::time::timeout(within, answered).await {
        Ok(Ok(Ok(response))) => response,
        Ok(Err(_)) => panicked(traffic).into_response(),
        Err(_) => timed_out(within).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use axum::routing::get;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tollgate::{AnyStore, Limiter, MemoryStore, RuleSet};

    use super::super::budget::Budget;
    use super::super::places::{Admission, Places};
    use super::*;
    use crate::http::{RulesHome, router};

    async fn asked(router: Router) -> (StatusCode, Arc<Traffic>) {
        let traffic = Arc::new(Traffic::default());
        let request = Request::get("/").body(Body::empty()).unwrap();
        let response = answer(router, request, Duration::from_secs(30), &traffic).await;
        (response.status(), traffic)
    }

    #[tokio::test]
    async fn a_panic_is_an_answer_to_its_own_request() {
        let panics = Router::new().route("/", get(async || -> &'static str { panic!("a bug") }));
        let (status, traffic) = asked(panics).await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(traffic.panics.load(Ordering::Relaxed), 1);
    }

    /// A connection of the data plane, and the client at its other end.
    async fn connection() -> (Connection, Flowing, TcpStream) {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(socket.local_addr().unwrap()).await.unwrap();
        let (stream, peer) = socket.accept().await.unwrap();
        let limits = ListenerLimits::default();
        let Admission::Place(place) = Places::new(&limits).admit(peer.ip(), |_| true) else {
            panic!("no place")
        };
        let limiter = Limiter::new(RuleSet::default(), AnyStore::from(MemoryStore::new()));
        let app = App::new(Arc::new(limiter), RulesHome::Fixed("code".to_owned()));
        let budget = ConnectionBudget::new(&Budget::new(limits.memory));
        let stream = Flowing::new(stream, limits.unread, Arc::clone(&budget));
        let (phases, phase) = watch::channel(Phase::Serving);
        std::mem::forget(phases); // dropped, it would stop the connection
        let connection = Connection {
            peer: Peer(peer),
            doors: Doors { router: router(app.clone(), Plane::Data), app, plane: Plane::Data },
            phase,
            limits,
            budget,
            observe: Observe::nothing(),
            traffic: Arc::default(),
            _place: place,
        };
        (connection, stream, client)
    }

    #[tokio::test]
    async fn a_connection_takes_little_memory_while_no_request_is_in_progress() {
        let (connection, stream, _client) = connection().await;
        let size = size_of_val(&connection.serve(stream));
        assert!(size <= 2_048, "{size} bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_taken_back_from_hyper_with_what_has_arrived_of_the_next_request() {
        for next in ["", "GET /li"] {
            let (connection, stream, mut client) = connection().await;
            client.write_all(next.as_bytes()).await.unwrap();
            let request = Bytes::from_static(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n");
            let (stream, read) = connection.serve_http1(stream, request).await.expect("it is open");
            assert_eq!(&read[..], next.as_bytes());
            drop(stream);
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("ok\n"), "{answer}");
        }
    }

    const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

    /// A `GET` over HTTP/2 for `/`, which is 404.
    fn http2_get(stream: u8) -> Vec<u8> {
        [&[0, 0, 6, 1, 5, 0, 0, 0, stream], &[0x82, 0x86, 0x84, 0x41, 1, b'a'][..]].concat()
    }

    /// Sends a request every `pause` until `requests` are sent, and answers nothing. Returns how long the connection is
    /// served after the last one.
    async fn served_after_last(connection: Connection, requests: u8, pause: Duration) -> Duration {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let asked = async {
            for number in 0..requests {
                client.write_all(&http2_get(2 * number + 1)).await.unwrap();
                tokio::time::sleep(pause).await;
            }
            let last = Instant::now() - pause;
            let mut answers = Vec::new();
            client.read_to_end(&mut answers).await.unwrap();
            assert!(answers.windows(4).any(|frame| frame[0] == 8 && frame[1] == 7), "GOAWAY");
            last.elapsed()
        };
        let reservation = connection.budget.own();
        tokio::join!(asked, connection.serve_http2(server, HTTP2.into(), &reservation)).0
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_of_http_2_is_closed_when_it_is_idle_and_not_between_requests() {
        let (connection, _stream, _client) = connection().await;
        let idle = connection.limits.idle;
        let pause = idle - Duration::from_secs(5);
        let served = served_after_last(connection, 4, pause).await;
        assert!(served >= idle && served <= idle + 4 * IDLE_INTERVAL, "{served:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn while_memory_is_short_a_connection_of_http_2_is_closed_unless_it_is_used() {
        let (mut connection, _stream, _client) = connection().await;
        let listener = Budget::new(64 << 10);
        connection.budget = ConnectionBudget::new(&listener);
        let others = [0; 2].map(|_| {
            let others = ConnectionBudget::new(&listener).own();
            assert!(others.try_set(24 << 10));
            others
        });
        let filled = ConnectionBudget::new(&listener).own();
        assert!(filled.try_set(20 << 10));
        let served = served_after_last(connection, 10, IDLE_INTERVAL / 2).await;
        assert!(served >= SHORT_WAIT && served <= 5 * IDLE_INTERVAL, "{served:?}");
        drop((others, filled));
    }

    #[tokio::test]
    async fn a_connection_of_http_2_that_does_not_fit_is_told_that_no_request_was_processed() {
        let (mut connection, _stream, _client) = connection().await;
        connection.budget = ConnectionBudget::new(&Budget::new(1 << 10));
        let reservation = connection.budget.own();
        let (mut client, server) = tokio::io::duplex(1 << 10);
        connection.serve_http2(server, HTTP2.into(), &reservation).await;
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        let (settings, goaway) = answer.split_at(9);
        assert_eq!(settings, [0, 0, 0, 4, 0, 0, 0, 0, 0]);
        assert_eq!(goaway, [&[0, 0, 8, 7, 0, 0, 0, 0, 0][..], &[0; 4], &11_u32.to_be_bytes()].concat());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_takes_too_long_is_answered_408() {
        let hangs = Router::new().route("/", get(async || std::future::pending::<&'static str>().await));
        assert_eq!(asked(hangs).await.0, StatusCode::REQUEST_TIMEOUT);
    }
}
