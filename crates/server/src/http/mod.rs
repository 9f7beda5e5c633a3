//! The HTTP API: from bytes to a decision and back, and whatever an operator asks.

mod ask;
mod auth;
mod authz;
mod background;
mod batch;
mod check;
mod decisions;
mod events;
mod explain;
mod health;
mod json_path;
mod keys;
mod openapi;
mod problem;
mod query;
mod render;
mod replay;
mod reserve;
mod rules;
mod session;
mod sessions;
mod stats;
mod tokens;
mod violations;
mod web;

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use axum::http::{Method, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use axum::{Extension, Router};
use tollgate::audit::ViolationLog;
use tollgate::core::HeaderForm;
use tollgate::rules::{RulesReport, RulesStatus};
use tollgate::{Answer, AnyStore, Descriptor, Limiter, Timestamp};
use tollgate_tower::{DecisionIds, Identify};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use ask::AdHocSets;
pub(crate) use ask::MAX_BODY_BYTES;
pub use auth::Access;
use auth::Caller;
pub(crate) use auth::{Auth, Peer};
pub(crate) use authz::{refusal_status, rejected};
pub(crate) use check::Prefer;
pub(crate) use events::EVENTS;
pub(crate) use problem::Problem;
pub use rules::RulesHome;
pub use tokens::{TokenError, Tokens};

use auth::Guard;
use tokens::Role;
use web::Pages;

use crate::api::RuleStats;
use crate::listen::Traffic;
use crate::record::events::Hub;
use crate::record::{Happened, Recorder, USUAL_CAPACITY};
use crate::telemetry;

/// What every handler needs; clones share it.
#[derive(Debug, Clone)]
pub struct App(Arc<Parts>);

/// The parts of an application.
#[derive(Debug, Clone)]
pub struct Parts {
    limiter: Arc<Limiter<AnyStore>>,
    ids: Arc<DecisionIds>,
    rules: Arc<RulesHome>,
    status: Option<RulesStatus>,
    violations: Arc<Option<ViolationLog>>,
    recorder: Arc<Recorder>,
    pub(crate) events: Arc<Hub>,
    store_shown: Arc<str>,
    /// Where checks are answered, once a listener is open.
    checks_at: Arc<OnceLock<SocketAddr>>,
    started_at: Timestamp,
    pub(crate) auth: Arc<Auth>,
    traffic: Arc<Traffic>,
    headers: Arc<HeaderForm>,
    gate: Arc<authz::Gate>,
    pages: Arc<Pages>,
    ad_hoc: Arc<AdHocSets>,
    background: background::Background,
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// An application that may be gone.
#[derive(Debug)]
struct WeakApp(Weak<Parts>);

impl WeakApp {
    fn upgrade(&self) -> Option<App> {
        self.0.upgrade().map(App)
    }
}

impl App {
    /// An application over a limiter, with rules from wherever they are kept.
    pub fn new(limiter: Arc<Limiter<AnyStore>>, rules: RulesHome) -> Self {
        let recorder = Recorder::new(USUAL_CAPACITY, &limiter.rules().to_arc());
        let kind = match limiter.store() {
            AnyStore::Memory(_) => "memory",
            _ => "redis",
        };
        App(Arc::new(Parts {
            started_at: limiter.clock().now(),
            ids: Arc::new(DecisionIds::new()),
            status: rules.status().cloned(),
            rules: Arc::new(rules),
            violations: Arc::new(None),
            recorder: Arc::new(recorder),
            events: Arc::new(Hub::new()),
            store_shown: kind.into(),
            checks_at: Arc::default(),
            auth: Arc::new(Auth::new(Access::default(), limiter.clock().clone())),
            traffic: Arc::default(),
            headers: Arc::new(HeaderForm::DEFAULT),
            gate: Arc::default(),
            pages: Arc::default(),
            ad_hoc: Arc::default(),
            limiter,
            background: background::Background::default(),
        }))
    }

    /// The same with violations to look at.
    #[must_use]
    pub fn with_violations(self, log: ViolationLog) -> Self {
        self.with(|parts| parts.violations = Arc::new(Some(log)))
    }

    /// The same with so many decisions to look back on; 0 keeps none.
    #[must_use]
    pub fn with_decisions(self, capacity: usize) -> Self {
        let recorder = Recorder::new(capacity, &self.limiter.rules().to_arc());
        self.with(|parts| parts.recorder = Arc::new(recorder))
    }

    /// The same with what is known of rules that somebody follows.
    #[must_use]
    pub fn with_rules_status(self, status: RulesStatus) -> Self {
        self.with(|parts| parts.status = Some(status))
    }

    /// The same with what to call the store; without a password.
    #[must_use]
    pub fn with_store_shown(self, shown: &str) -> Self {
        self.with(|parts| parts.store_shown = shown.into())
    }

    /// The same with tokens. Without any, every route that needs a credential answers 401.
    #[must_use]
    pub fn with_access(self, access: Access) -> Self {
        let auth = Arc::new(Auth::new(access, self.limiter.clock().clone()));
        self.with(|parts| parts.auth = auth)
    }

    /// The same with another form of the headers that tell about limits.
    #[must_use]
    pub fn with_headers(self, form: HeaderForm) -> Self {
        self.with(|parts| parts.headers = Arc::new(form))
    }

    /// The same with forward-auth that identifies requests like this.
    #[must_use]
    pub fn with_identify(self, identify: Identify) -> Self {
        self.with(|parts| parts.gate = Arc::new(authz::Gate::new(identify)))
    }

    /// The same with the dashboard read from a folder at every request, while somebody edits it.
    #[must_use]
    pub fn with_web_dir(self, folder: PathBuf) -> Self {
        self.with(|parts| parts.pages = Arc::new(Pages::Folder(folder)))
    }

    /// Whether checks are answered to callers with a token only.
    #[must_use]
    pub fn checks_need_a_token(&self) -> bool {
        !self.auth.checks_are_open()
    }

    pub(crate) fn traffic(&self) -> &Arc<Traffic> {
        &self.0.traffic
    }

    /// Remembers a decision for whoever looks at `/v1/decisions`, `/v1/stats` and `/v1/events`: the request as it was
    /// decided ([`Answer::request`]), under its name, and how long the limiter took. It costs about a microsecond. An
    /// invalid request is not a decision: only its span says so.
    pub fn record(&self, request: &Descriptor<'_>, answer: &Answer, id: &str, cost: u64, took: Duration) {
        telemetry::tell_span(answer, id);
        if answer.invalid_cost().is_some() {
            return;
        }
        let now = self.limiter.clock().now();
        let happened = Happened { id, request, answer, cost, took, now };
        self.recorder.note(&happened, || self.limiter.rules());
    }

    fn with(self, change: impl FnOnce(&mut Parts)) -> Self {
        let mut parts = Parts::clone(&self.0);
        change(&mut parts);
        App(Arc::new(parts))
    }

    fn downgraded(&self) -> WeakApp {
        WeakApp(Arc::downgrade(&self.0))
    }
}

impl Parts {
    /// How the rules are, where somebody follows them.
    pub(crate) fn report(&self) -> Option<RulesReport> {
        self.status.as_ref().map(RulesStatus::report)
    }

    /// Checks are answered there.
    pub(crate) fn set_checks_at(&self, address: SocketAddr) {
        let _ = self.checks_at.set(address); // the first listener stays
    }

    pub(crate) fn limiter(&self) -> &Limiter<AnyStore> {
        &self.limiter
    }

    pub(crate) fn gate(&self) -> &authz::Gate {
        &self.gate
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// What every rule in effect said, in their order.
    pub(crate) fn rule_counts(&self) -> Vec<RuleStats> {
        self.recorder.rules(&self.limiter.rules())
    }

    pub(crate) const fn started_at(&self) -> Timestamp {
        self.started_at
    }
}

/// Which part of the API a listener serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plane {
    /// Decisions, for applications and proxies.
    Data,
    /// What changes or reveals state, and the dashboard.
    Admin,
    /// Only `/metrics`, without a credential.
    Metrics,
}

pub(crate) fn router(app: App, plane: Plane) -> Router {
    let documented = || documented(plane, &app.auth).split_for_parts().0;
    let router = match plane {
        Plane::Data => documented(),
        Plane::Admin => documented().merge(web::router()),
        Plane::Metrics => Router::new().route("/metrics", get(health::metrics)),
    };
    router
        .layer(Extension(plane))
        .fallback(async move |uri: Uri| Problem::not_found(&uri, plane))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            rejected(&uri, Problem::method(&method, &uri))
        })
        .with_state(app)
}

/// Every route of a plane with what the document says about it and the role that it needs: there is no other way to add one.
fn documented(plane: Plane, auth: &Arc<Auth>) -> OpenApiRouter<App> {
    let needs = |needed: Role, routes: OpenApiRouter<App>| {
        let guard = Guard { auth: Arc::clone(auth), needed };
        openapi::guarded(routes, needed).route_layer(from_fn_with_state(guard, auth::guard))
    };
    let open = OpenApiRouter::with_openapi(openapi::document(plane))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz));
    openapi::with_problems(match plane {
        Plane::Data => open
            .routes(routes!(openapi::openapi))
            // The token that a proxy passes on is its client's, for the application; the proxy is known by its address.
            .merge(openapi::with_methods_in_ids(OpenApiRouter::new().routes(routes!(authz::authz))))
            .merge(needs(Role::Check, checks()))
            .merge(needs(Role::Settle, settlements())),
        Plane::Admin | Plane::Metrics => open
            .routes(routes!(session::sign_in))
            .routes(routes!(session::sign_out))
            .merge(needs(Role::Read, views()))
            .merge(needs(Role::Write, changes())),
    })
}

/// Both planes for a caller in this process, who needs no credential.
pub(crate) fn unguarded(app: App, who: &str) -> Router {
    let routes = checks().merge(settlements()).merge(views()).merge(changes());
    routes.split_for_parts().0.layer(Extension(Caller::in_process(who))).with_state(app)
}

fn checks() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(check::check))
        .routes(routes!(check::peek))
        .routes(routes!(reserve::reserve))
        .routes(routes!(batch::batch))
}

/// What gives tokens back.
fn settlements() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(check::refund)).routes(routes!(reserve::settle))
}

/// What only shows state.
fn views() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(openapi::openapi))
        .routes(routes!(session::session))
        .routes(routes!(session::login_link))
        .routes(routes!(rules::list))
        .routes(routes!(rules::get))
        .routes(routes!(rules::preview::preview))
        .routes(routes!(rules::history::history))
        .routes(routes!(violations::list))
        .routes(routes!(explain::explain))
        .routes(routes!(decisions::list))
        .routes(routes!(decisions::get))
        .routes(routes!(keys::get))
        .routes(routes!(stats::stats))
        .routes(routes!(events::events))
        .routes(routes!(replay::replay))
        .routes(routes!(health::metrics))
}

/// What changes rules or buckets.
fn changes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(rules::add))
        .routes(routes!(rules::edits::edit))
        .routes(routes!(rules::put, rules::patch, rules::remove))
        .routes(routes!(rules::history::undo))
        .routes(routes!(keys::forget))
        .routes(routes!(check::playground))
}

/// Both planes on one router.
#[cfg(test)]
pub(crate) fn guarded_planes(app: App) -> Router {
    router(app.clone(), Plane::Admin).fallback_service(router(app, Plane::Data))
}

/// The same for a caller who may do everything, where a request does not say otherwise.
#[cfg(test)]
pub(crate) fn both_planes(app: App) -> Router {
    use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
    use axum::http::{HeaderValue, Request};

    let secret = "write-0123456789abcdef";
    let tokens = Tokens::parse(&format!("tester:write:{secret}")).unwrap();
    let router = guarded_planes(app.with_access(Access { tokens: vec![tokens], hosts: Vec::new() }));
    let credential = HeaderValue::try_from(format!("Bearer {secret}")).unwrap();
    Router::new().fallback_service(router).layer(tower::util::MapRequestLayer::new(
        move |mut request: Request<axum::body::Body>| {
            let headers = request.headers_mut();
            headers.entry(AUTHORIZATION).or_insert_with(|| credential.clone());
            headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            request
        },
    ))
}

#[cfg(test)]
mod tests;
