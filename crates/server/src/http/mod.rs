//! The HTTP API: from bytes to a decision and back, and whatever an operator asks.

mod admin;
mod body;
mod check;
mod json_path;
mod problem;
mod query;
mod rules;
mod violations;
mod web;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, Uri};
use axum::middleware::from_fn;
use axum::routing::{get, post};
use tollgate::audit::ViolationLog;
use tollgate::{AnyStore, Limiter};
use tollgate_tower::DecisionIds;

pub(crate) use admin::Peer;
pub use body::DecisionBody;
use body::MAX_BODY_BYTES;
use problem::Problem;
pub use rules::RulesHome;
use web::Pages;

/// What every handler needs.
#[derive(Debug, Clone)]
pub struct App {
    limiter: Arc<Limiter<AnyStore>>,
    ids: Arc<DecisionIds>,
    rules: Arc<RulesHome>,
    violations: Arc<Option<ViolationLog>>,
    pages: Arc<Pages>,
}

impl App {
    /// An application over a limiter, with rules from wherever they are kept.
    pub fn new(limiter: Arc<Limiter<AnyStore>>, rules: RulesHome) -> Self {
        let ids = Arc::new(DecisionIds::new());
        App { limiter, ids, rules: Arc::new(rules), violations: Arc::new(None), pages: Arc::default() }
    }

    /// The same with violations to look at.
    #[must_use]
    pub fn with_violations(self, log: ViolationLog) -> Self {
        App { violations: Arc::new(Some(log)), ..self }
    }

    /// The same with the dashboard read from a folder at every request, while somebody edits it.
    #[must_use]
    pub fn with_web_dir(self, folder: PathBuf) -> Self {
        App { pages: Arc::new(Pages::Folder(folder)), ..self }
    }
}

pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route("/v1/check", post(check::check))
        .route("/v1/peek", post(check::peek))
        .route("/livez", get(async || "ok\n"))
        .merge(admin())
        .merge(web::router())
        .fallback(async |uri: Uri| Problem::not_found(&uri))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| Problem::method(&method, &uri))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(app)
}

/// What changes or reveals state.
fn admin() -> Router<App> {
    let preview = post(rules::preview).layer(DefaultBodyLimit::max(rules::MAX_SET_BYTES));
    let rule = get(rules::get).put(rules::put).patch(rules::patch).delete(rules::remove);
    Router::new()
        .route("/v1/rules", get(rules::list).post(rules::add))
        .route("/v1/rules/preview", preview)
        .route("/v1/rules/history", get(rules::history))
        .route("/v1/rules/history/{id}/undo", post(rules::undo))
        .route("/v1/rules/{id}", rule)
        .route("/v1/violations", get(violations::list))
        .route_layer(from_fn(admin::local_only))
}

#[cfg(test)]
mod tests;
