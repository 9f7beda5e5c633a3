//! A limit for each route, and dear routes that cost more:
//! `cargo run -p tollgate-tower --example per_route`.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{env, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::Path,
    routing::{get, post},
};
use tokio::net::TcpListener;
use tollgate::{Limiter, MemoryStore, rules};
use tollgate_tower::{Identify, TollgateLayer};

// `route` is what axum matched: `/items/1` and `/items/2` share a bucket. The rule for `/login` counts failures of
// whoever tries many names from one address; `everything` is one budget that dear routes use up sooner.
const RULES: &str = r#"
rules:
  - { name: items, key: "ip:{ip}:{route}", limit: 5/min burst 5, when: { route: ["/items/{id}"] } }
  - { name: login, key: "ip:{ip}", limit: 2/min, when: { endpoint: /login, method: POST } }
  - { name: everything, key: "ip:{ip}", limit: 20/min burst 20 }
"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Arc::new(Limiter::new(rules::parse("rules.yaml", RULES)?, MemoryStore::new()));
    let layer = TollgateLayer::new(limiter).identify(Identify::new().matched_path("route")?);

    // One layer for each group of routes, around the same limiter: no request passes two of them.
    let cheap = Router::new()
        .route("/items/{id}", get(async |Path(id): Path<u64>| format!("item {id}\n")))
        .route("/login", post(async || "welcome\n"))
        .layer(layer.clone());
    let dear = Router::new().route("/report", get(async || "a long report\n")).layer(layer.cost(|_| 10));

    let listener = TcpListener::bind(env::args().nth(1).as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("http://{}/", listener.local_addr()?);
    let app = cheap.merge(dear).into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
