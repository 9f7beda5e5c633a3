//! What the tests of the middleware share: a limiter on a clock of their own, requests, answers.
#![allow(dead_code, reason = "every test program uses a part of it")]

pub(crate) mod wire;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use http::request::Builder;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tollgate::{Bounds, Clock, Limiter, MemoryStore, Timestamp, rules};
use tollgate_tower::{ResponseBody, TollgateLayer};
use tower::util::BoxCloneService;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

/// An instant in the middle of a second.
pub(crate) const START_US: i64 = 1_800_000_000_500_000;

/// A limiter on a clock that stands still.
pub(crate) fn limiter(rules: &str) -> (Arc<Limiter<MemoryStore>>, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(START_US));
    let store = MemoryStore::with(clock.clone(), Bounds::default());
    let rules =
        rules::parse("rules.yaml", &format!("rules:\n{rules}")).unwrap_or_else(|error| panic!("{error}"));
    (Arc::new(Limiter::new(rules, store)), clock)
}

/// A service behind the gate.
pub(crate) type Behind = BoxCloneService<Request<Body>, Response<ResponseBody<Body>>, Infallible>;

/// Counts who came through.
#[derive(Clone, Default)]
pub(crate) struct Inner(Arc<AtomicU64>);

impl Inner {
    pub(crate) fn calls(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// A service behind a layer that answers `ok` and counts.
    pub(crate) fn behind<S: tollgate::Store>(&self, layer: &TollgateLayer<S>) -> Behind {
        let calls = Arc::clone(&self.0);
        BoxCloneService::new(layer.layer(service_fn(move |_: Request<Body>| {
            calls.fetch_add(1, Ordering::SeqCst);
            async { Ok(Response::new(Body::from("ok"))) }
        })))
    }
}

/// A request from an address.
pub(crate) fn from(peer: &str, path: &str) -> Builder {
    let peer: IpAddr = peer.parse().unwrap();
    Request::get(path).extension(axum::extract::ConnectInfo(SocketAddr::new(peer, 4711)))
}

/// An answer whose body has arrived.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answered {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Sends one request.
pub(crate) async fn send<S, B>(service: &S, request: Builder) -> Answered
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone,
    B: http_body::Body<Data: AsRef<[u8]>, Error = axum::Error>,
{
    let response = service.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    Answered { status: parts.status, headers: parts.headers, body }
}
