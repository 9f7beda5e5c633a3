//! How many instructions does the layer add to an axum request? `cargo bench -p tollgate-tower`.
//!
//! Counted by valgrind (Debian package `valgrind`), so the number does not depend on what else the machine does. The
//! same application is asked with and without the layer, once called as a service and once through hyper with bytes
//! that stay in the process; the difference is the layer with everything it makes others do, such as writing the five
//! headers. The bias: one caller and one thread, so every cache is warm and no lock is taken, and a path of 11 bytes.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::runtime::Runtime;
use tollgate::{Limiter, MemoryStore, rules};
use tollgate_bench::instructions;
use tollgate_tower::{Identify, TollgateLayer};
use tower::Service as _;
use tower::util::MapRequestLayer;

const REQUESTS: u64 = 1_000;
const ONE: &str = r#"rules: [{ name: per-user, key: "user:{user_id}", limit: 1000000000/h }]"#;
const THREE: &str = r#"
rules:
  - { name: per-user, key: "user:{user_id}", limit: 1000000000/h }
  - { name: per-address, key: "ip:{ip}", limit: 1000000000/h }
  - { name: search, key: "endpoint:/api/search", limit: 1000000000/h }
"#;

fn main() {
    if let Some((scenario, requests)) = instructions::requested() {
        return run(&scenario, requests);
    }
    for way in ["service", "hyper"] {
        let count = |what: &str| {
            instructions::per_decision(&format!("{way}/{what}"), REQUESTS, &[])
                .unwrap_or_else(|error| panic!("{error}"))
        };
        let bare = count("bare");
        println!("{way:8} bare     {bare:6}");
        for what in ["a layer", "none", "one", "three"] {
            let all = count(what);
            println!("{way:8} {what:8} {all:6}  +{}", all - bare);
        }
    }
}

fn run(scenario: &str, requests: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (way, what) = scenario.split_once('/').expect("way and what");
    let app = app(what);
    match way {
        "service" => as_a_service(&runtime, app, requests),
        _ => through_hyper(&runtime, app, requests),
    }
}

fn app(what: &str) -> Router {
    let app = Router::new().route("/api/search", get(async || "ok"));
    let rules = match what {
        "bare" => return app,
        // What axum makes of any layer, also one that does nothing.
        "a layer" => return app.layer(MapRequestLayer::new(|request: Request| request)),
        "none" => "rules: []",
        "one" => ONE,
        _ => THREE,
    };
    let rules = rules::parse("rules.yaml", rules).expect("rules");
    let identify = Identify::new().header("x-user-id", "user_id").expect("names");
    app.layer(TollgateLayer::new(Limiter::new(rules, MemoryStore::new())).identify(identify))
}

fn as_a_service(runtime: &Runtime, mut app: Router, requests: u64) {
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 4711));
    let mut once = || {
        let request = Request::get("/api/search").header("x-user-id", "42").extension(ConnectInfo(peer));
        let request = request.body(Body::empty()).expect("a request");
        runtime.block_on(app.call(request))
    };
    assert!(once().is_ok_and(|response| response.status().is_success()));
    repeat(requests, once);
}

fn through_hyper(runtime: &Runtime, app: Router, requests: u64) {
    let (mut client, server) = tokio::io::duplex(1 << 14);
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 4711));
    let app = app.layer(axum::Extension(ConnectInfo(peer)));
    runtime.spawn(async move {
        http1::Builder::new().serve_connection(TokioIo::new(server), TowerToHyperService::new(app)).await
    });
    let mut once = || runtime.block_on(ask(&mut client));
    once();
    repeat(requests, once);
}

async fn ask(client: &mut DuplexStream) {
    client
        .write_all(b"GET /api/search HTTP/1.1\r\nhost: x\r\nx-user-id: 42\r\n\r\n")
        .await
        .expect("a server");
    let (mut answer, mut filled) = ([0; 1 << 10], 0);
    while !answer[..filled].ends_with(b"\r\n\r\nok") {
        filled += client.read(&mut answer[filled..]).await.expect("an answer");
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"));
}

/// Does something so often. Valgrind finds this function by its name.
#[inline(never)]
fn repeat<T>(times: u64, mut once: impl FnMut() -> T) {
    for _ in 0..times {
        black_box(once());
    }
}
