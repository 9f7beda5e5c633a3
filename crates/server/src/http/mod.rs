//! The HTTP API: from bytes to a decision and back.

mod body;
mod check;
mod problem;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, Uri};
use axum::routing::{get, post};
use tollgate::{AnyStore, Limiter};
use tollgate_tower::DecisionIds;

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
