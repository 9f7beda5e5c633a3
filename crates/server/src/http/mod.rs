//! The HTTP API: from bytes to a decision and back.

mod body;
mod check;
mod problem;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, Uri};
use axum::routing::{get, post};
use tollgate::{AnyStore, Limiter};

pub use body::DecisionBody;
use problem::Problem;

/// Request bodies beyond this are answered 413.
const MAX_BODY_BYTES: usize = 64 << 10;

/// What every handler needs.
#[derive(Debug, Clone)]
pub struct App {
    pub(crate) limiter: Arc<Limiter<AnyStore>>,
    ids: Arc<DecisionIds>,
}

impl App {
    /// An application over a limiter.
    pub fn new(limiter: Arc<Limiter<AnyStore>>) -> Self {
        App { limiter, ids: Arc::new(DecisionIds::new()) }
    }
}

/// Gives every decision a name that no other decision has, on any node.
#[derive(Debug)]
struct DecisionIds {
    process: u64,
    next: AtomicU64,
}

impl DecisionIds {
    fn new() -> Self {
        let mut process = [0; 8];
        // Without randomness names are only unique within this process; nothing else hangs on it.
        if let Err(error) = getrandom::fill(&mut process) {
            tracing::warn!(%error, "no randomness for decision ids");
        }
        DecisionIds { process: u64::from_le_bytes(process), next: AtomicU64::new(0) }
    }

    fn next(&self) -> String {
        format!("{:016x}{:08x}", self.process, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route("/v1/check", post(check::check))
        .route("/v1/peek", post(check::peek))
        .route("/livez", get(async || "ok\n"))
        .fallback(async |uri: Uri| Problem::not_found(&uri))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| Problem::method(&method, &uri))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(app)
}

#[cfg(test)]
mod tests;
