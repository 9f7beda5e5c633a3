//! A language model behind a limit of tokens: `cargo run -p tollgate-tower --example llm_proxy`.
//!
//! How many tokens an answer has is known only when it is over. So a request reserves as many as it may take, and is
//! settled with those that came.
//!
//! ```sh
//! for i in 1 2 3 4 5; do curl -si 'localhost:3000/chat?max_tokens=60' -H 'x-user-id: ada' | head -1; done
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::convert::Infallible;
use std::env;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::{Extension, Router, routing::get};
use http::request::Parts;
use http_body::Frame;
use tokio::net::TcpListener;
use tollgate::{Limiter, MemoryStore, rules};
use tollgate_tower::{Identify, Reservation, TollgateLayer};

const RULES: &str = r#"
rules:
  - { name: tokens-of-user, key: "user:{user_id}", limit: 100/h }
  - { name: tokens-of-all, key: global, limit: 100000/h }
"#;

const ANSWER: &str = "A toll is paid once and then the road is open to you";

/// What a request may take: what it asks for, as far as there is no more of it.
fn max_tokens(request: &Parts) -> u64 {
    let pairs = request.uri.query().unwrap_or_default().split('&');
    let asked = pairs.filter_map(|pair| pair.strip_prefix("max_tokens=")).find_map(|text| text.parse().ok());
    asked.unwrap_or(50)
}

/// The model's answer, one token at a time. A proxy of yours has the body of its upstream here.
struct Upstream(std::str::SplitWhitespace<'static>);

impl http_body::Body for Upstream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|token| Ok(Frame::data(Bytes::from(format!("{token}\n"))))))
    }
}

async fn chat(Extension(reservation): Extension<Reservation>) -> Body {
    let answer = Upstream(ANSWER.split_whitespace());
    Body::new(reservation.count(answer, |_token| 1))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::new(rules::parse("rules.yaml", RULES)?, MemoryStore::new());
    let layer = TollgateLayer::new(limiter)
        .identify(Identify::new().header("x-user-id", "user_id")?)
        .cost(max_tokens)
        .reserve(Duration::from_secs(120));
    let app = Router::new().route("/chat", get(chat)).layer(layer);

    let listener = TcpListener::bind(env::args().nth(1).as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("http://{}/chat", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
