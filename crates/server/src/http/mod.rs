//! The HTTP API: from bytes to a decision and back, and whatever an operator asks.

mod admin;
mod authz;
mod body;
mod check;
mod json_path;
mod problem;
mod query;
mod rules;
mod tokens;
mod violations;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::{any, get, post};
use tollgate::audit::ViolationLog;
use tollgate::core::HeaderForm;
use tollgate::{AnyStore, Limiter};
use tollgate_tower::{DecisionIds, Identify};

pub use admin::Access;
pub(crate) use admin::Peer;
pub use body::DecisionBody;
use body::MAX_BODY_BYTES;
pub(crate) use problem::Problem;
pub use rules::RulesHome;
pub use tokens::{TokenError, Tokens};

use crate::listen::Traffic;

/// What every handler needs.
#[derive(Debug, Clone)]
pub struct App {
    limiter: Arc<Limiter<AnyStore>>,
    ids: Arc<DecisionIds>,
    rules: Arc<RulesHome>,
    violations: Arc<Option<ViolationLog>>,
    access: Access,
    traffic: Arc<Traffic>,
    headers: Arc<HeaderForm>,
    gate: Arc<authz::Gate>,
}

impl App {
    /// An application over a limiter, with rules from wherever they are kept.
    pub fn new(limiter: Arc<Limiter<AnyStore>>, rules: RulesHome) -> Self {
        let ids = Arc::new(DecisionIds::new());
        App {
            limiter,
            ids,
            rules: Arc::new(rules),
            violations: Arc::new(None),
            access: Access::default(),
            traffic: Arc::default(),
            headers: Arc::new(HeaderForm::DEFAULT),
            gate: Arc::new(authz::Gate::default()),
        }
    }

    /// The same with violations to look at.
    #[must_use]
    pub fn with_violations(self, log: ViolationLog) -> Self {
        App { violations: Arc::new(Some(log)), ..self }
    }

    /// The same for those who show a token.
    #[must_use]
    pub fn with_access(self, access: Access) -> Self {
        App { access, ..self }
    }

    pub(crate) const fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// The same with another form of the headers that tell about limits.
    #[must_use]
    pub fn with_headers(self, form: HeaderForm) -> Self {
        App { headers: Arc::new(form), ..self }
    }

    /// The same with forward-auth that identifies requests like this.
    #[must_use]
    pub fn with_identify(self, identify: Identify) -> Self {
        App { gate: Arc::new(authz::Gate::new(identify)), ..self }
    }
}

pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .merge(decisions(app.access.clone()))
        .merge(admin(app.access.clone()))
        .fallback(async |uri: Uri| Problem::not_found(&uri))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| Problem::method(&method, &uri))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(app)
}

/// What applications ask.
fn decisions(access: Access) -> Router<App> {
    let routes = Router::new()
        .route("/v1/check", post(check::check))
        .route("/v1/peek", post(check::peek))
        .route("/v1/authz", any(authz::authz));
    match access.check {
        // Nothing stands in the way of the hottest path, where nothing is asked.
        None => routes,
        Some(_) => routes.route_layer(from_fn_with_state(access, admin::guard_check)),
    }
}

/// What changes or reveals state.
fn admin(access: Access) -> Router<App> {
    let preview = post(rules::preview).layer(DefaultBodyLimit::max(rules::MAX_SET_BYTES));
    let rule = get(rules::get).put(rules::put).patch(rules::patch).delete(rules::remove);
    Router::new()
        .route("/v1/rules", get(rules::list).post(rules::add))
        .route("/v1/rules/preview", preview)
        .route("/v1/rules/history", get(rules::history))
        .route("/v1/rules/history/{id}/undo", post(rules::undo))
        .route("/v1/rules/{id}", rule)
        .route("/v1/violations", get(violations::list))
        .route_layer(from_fn_with_state(access, admin::guard))
}

#[cfg(test)]
mod tests;
