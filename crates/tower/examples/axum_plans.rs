//! Limits by plan around an axum application: `cargo run -p tollgate-tower --example axum_plans`.
//!
//! ```sh
//! for i in 1 2 3 4; do curl -si localhost:3000/hello -H 'x-api-key: alice-key' | head -1; done
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{env, net::SocketAddr};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tollgate::{Limiter, MemoryStore, rules};
use tollgate_tower::{Identify, TollgateLayer};

const RULES: &str = r#"
rules:
  - { name: free, key: "user:{user_id}", plan: free, limit: 10/min burst 3 }
  - { name: pro, key: "user:{user_id}", plan: pro, limit: 100/s burst 500 }
  - { name: per-address, key: "ip:{ip}", limit: 50/s burst 100 }
"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::new(rules::parse("rules.yaml", RULES)?, MemoryStore::new());
    let identify = Identify::new().with(|request, facts| {
        // Who holds which key is in your database.
        let (user, plan) = match request.headers.get("x-api-key").map(|key| key.as_bytes()) {
            Some(b"alice-key") => ("alice", "free"),
            Some(b"bob-key") => ("bob", "pro"),
            _ => return,
        };
        facts.set("user_id", user);
        facts.set("plan", plan);
    });
    let app = Router::new()
        .route("/hello", get(async || "hello\n"))
        .layer(TollgateLayer::new(limiter).identify(identify));

    let listener = TcpListener::bind(env::args().nth(1).as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("http://{}/hello", listener.local_addr()?);
    // With the peer's address: `ip` is a fact like any other.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
