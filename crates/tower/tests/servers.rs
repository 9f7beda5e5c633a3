//! The layer in real servers, with real sockets: axum, hyper and tonic.

#![allow(clippy::unwrap_used, reason = "a test that is surprised stops there")]

mod support;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::routing::get;
use http::Response;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tollgate::{Descriptor, Micros};
use tollgate_tower::{Identify, TollgateLayer};
use tonic::Code;
use tonic::transport::Server;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tower::{ServiceBuilder, service_fn};

use support::limiter;
use support::wire::{Delay, ask, begin, channel, hello, retry_delay, status, until};

#[path = "../examples/tonic.rs"]
#[expect(dead_code, reason = "only its service is wanted")]
mod greeter;

const PER_ADDRESS: &str = r#"  - { name: per-address, key: "ip:{ip}", limit: 1/min burst 2 }"#;

/// Serves an application on a free port.
async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

#[tokio::test]
async fn axum_answers_429_with_headers_and_a_problem_and_counts_by_the_peer() {
    let (limiter, _) = limiter(PER_ADDRESS);
    let app = Router::new().route("/", get(async || "ok")).layer(TollgateLayer::new(limiter));
    let address = serve(app).await;
    for left in ["1", "0"] {
        let answer = ask(address, "GET /", &[]).await;
        assert_eq!(status(&answer), 200, "{answer}");
        assert!(
            answer.contains(&format!("x-ratelimit-remaining: {left}\r\n")) && answer.ends_with("ok"),
            "{answer}"
        );
    }
    // Rotating a header that nobody trusts changes nothing.
    let answer = ask(address, "GET /", &[("x-forwarded-for", "192.0.2.1")]).await;
    assert_eq!(status(&answer), 429, "{answer}");
    for part in [
        "content-type: application/problem+json\r\n",
        "retry-after: 60\r\n",
        "x-ratelimit-limit: 2\r\n",
        "x-ratelimit-reset: 1800000121\r\n",
        "ratelimit-policy: \"per-address\";q=2;w=120\r\n",
        "ratelimit: \"per-address\";r=0;t=60\r\n",
        "\"violated-policies\":[\"per-address\"]",
        "\"retry_after_ms\":60000",
    ] {
        assert!(answer.contains(part), "no `{part}` in {answer}");
    }
}

#[tokio::test]
async fn every_spelling_of_a_path_on_the_wire_is_one_bucket() {
    let (limiter, _) = limiter(r#"  - { name: a, key: "endpoint:/a", limit: 10/min }"#);
    let app = Router::new().route("/a", get(async || "ok")).fallback(async || "ok");
    let address = serve(app.layer(TollgateLayer::new(limiter))).await;
    for (path, left) in [("/a", 9), ("/a/", 8), ("//a", 7), ("/%61", 6), ("/a?x=1", 5), ("http://other/a", 4)]
    {
        let answer = ask(address, &format!("GET {path}"), &[]).await;
        assert!(answer.contains(&format!("x-ratelimit-remaining: {left}\r\n")), "{path}: {answer}");
    }
    let answer = ask(address, "get /a", &[]).await;
    assert!(answer.contains("x-ratelimit-remaining: 3\r\n"), "{answer}");
}

/// Notices when a request is gone.
struct Witness(Arc<AtomicU64>);

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_while_it_is_held_leaves_nothing_behind() {
    let (limiter, clock) = limiter(r#"  - { name: queue, key: global, limit: 10/s queue 5 }"#);
    let gone = Arc::new(AtomicU64::new(0));
    let witness = Arc::clone(&gone);
    let app = Router::new()
        .route("/", get(async || "ok"))
        .layer(TollgateLayer::new(Arc::clone(&limiter)))
        .layer(from_fn(move |mut request: Request, next: Next| {
            request.extensions_mut().insert(Arc::new(Witness(Arc::clone(&witness))));
            next.run(request)
        }));
    let address = serve(app).await;
    assert_eq!(status(&ask(address, "GET /", &[]).await), 200);
    assert_eq!(gone.load(Ordering::SeqCst), 1);
    let left = async || limiter.request(&Descriptor::new()).peek().await.remaining();
    let held = begin(address, "GET /", &[]).await;
    until(async || left().await == Some(4)).await;
    drop(held);
    until(async || gone.load(Ordering::SeqCst) == 2).await;
    assert_eq!(left().await, Some(4), "its place is spent");
    clock.advance(Micros::new(600_000));
    assert_eq!(status(&ask(address, "GET /", &[]).await), 200);
}

#[tokio::test]
async fn hyper_is_told_the_peer_by_an_extension() {
    let (limiter, _) = limiter(PER_ADDRESS);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let layer = TollgateLayer::new(limiter);
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let service = ServiceBuilder::new()
                .map_request(move |mut request: http::Request<Incoming>| {
                    request.extensions_mut().insert(peer);
                    request
                })
                .layer(layer.clone())
                .service(service_fn(async |_| {
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("ok"))))
                }));
            let service = TowerToHyperService::new(service);
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    for expected in [200, 200, 429] {
        let answer = ask(address, "GET /", &[]).await;
        assert_eq!(status(&answer), expected, "{answer}");
    }
}

#[tokio::test]
async fn tonic_answers_resource_exhausted_with_retry_info() {
    let (limiter, _) = limiter(
        r#"
  - { name: per-tenant, key: "tenant:{tenant}", limit: 4/min burst 2 }
  - { name: per-address, key: "ip:{ip}", limit: 100/s, missing: deny }
  - { name: closed, key: "tenant:{tenant}", action: deny, when: { tenant: [evil] } }
  - { name: large, key: "tenant:{tenant}", limit: 5/s, cost: 6, when: { tenant: [large] } }
"#,
    );
    let identify = Identify::new()
        .peer(|request| Some(request.extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()))
        .header("x-tenant", "tenant")
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder()
        .layer(TollgateLayer::new(limiter).identify(identify))
        .add_service(greeter::Greeter)
        .serve_with_incoming(TcpIncoming::from(listener));
    tokio::spawn(server);

    let channel = channel(address).await;
    for left in ["1", "0"] {
        let answer = hello(&channel, "acme").await.unwrap();
        assert_eq!(answer.metadata().get("x-ratelimit-remaining").unwrap(), left);
        assert_eq!(answer.into_inner(), "hello you");
    }
    let refused = hello(&channel, "acme").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), "the limit `per-tenant` is used up; try again in 15000 ms");
    assert_eq!(retry_delay(&refused), Some(Delay { seconds: 15, nanos: 0 }));
    assert_eq!(refused.metadata().get("retry-after").unwrap(), "15");
    let denied = hello(&channel, "evil").await.unwrap_err();
    assert_eq!((denied.code(), retry_delay(&denied)), (Code::PermissionDenied, None));
    let never = hello(&channel, "large").await.unwrap_err();
    assert_eq!((never.code(), retry_delay(&never)), (Code::ResourceExhausted, None));
}
