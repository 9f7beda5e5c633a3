//! `/livez`, `/readyz` and `/metrics`: for those who watch over the process.

use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tollgate::Violations;
use utoipa::ToSchema;

use super::App;
use super::problem::Problem;
use crate::telemetry::metrics::{self, TextFormat};

/// Say that the process is up.
#[utoipa::path(get, path = "/livez", tag = "operating",
    responses((status = 200, description = "it is", body = String, content_type = "text/plain")))]
pub(super) async fn livez() -> &'static str {
    "ok\n"
}

/// Whether requests should be sent here, and what is not as it should be.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Readiness {
    ready: bool,
    /// `up`, or why the store gives no answer. Rules decide without it, so the server is ready all the same.
    store: &'static str,
    /// `fresh`, or `stale` while their source cannot be read or is refused. Those from before decide.
    rules: &'static str,
    /// `written`, `failing` while the database cannot be written to, or `off`. They wait in memory, and are dropped when there is
    /// no room.
    violations: &'static str,
    /// Whether the server is about to stop.
    stopping: bool,
}

/// Say whether requests should be sent here.
///
/// A store that is unavailable does not make a node unready: every node shares it, each rule says what happens meanwhile,
/// and a fleet that is out of rotation as a whole answers no requests. Decisions do not depend on the database either.
#[utoipa::path(get, path = "/readyz", tag = "operating",
    responses(
        (status = 200, description = "they should", body = Readiness),
        (status = 503, description = "they should not: the server is about to stop", body = Readiness),
    ))]
pub(super) async fn readyz(State(app): State<App>) -> Response {
    let store = match app.limiter.store().redis() {
        Some(redis) if !redis.stats().up => match redis.ready().await {
            Err(error) => error.reason(),
            Ok(()) => "up",
        },
        _ => "up",
    };
    let stale = app.report().is_some_and(|report| report.error.is_some());
    let stopping = app.traffic().stopping.load(Ordering::Relaxed);
    let status = if stopping { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let rules = if stale { "stale" } else { "fresh" };
    let violations = match app.limiter.violations().map(Violations::write_error) {
        None => "off",
        Some(None) => "written",
        Some(Some(_)) => "failing",
    };
    (status, Json(Readiness { ready: !stopping, store, rules, violations, stopping })).into_response()
}

/// Read the metrics: OpenMetrics text, or the Prometheus text format where `Accept` prefers `text/plain`.
#[utoipa::path(get, path = "/metrics", tag = "operating",
    responses(
        (status = 200, description = "all of them", content(
            (String = "application/openmetrics-text"),
            (String = "text/plain"),
        )),
    ))]
pub(super) async fn metrics(State(app): State<App>, headers: HeaderMap) -> Result<Response, Problem> {
    let format = TextFormat::accepted(&headers);
    let text = metrics::text(&app, format).map_err(|_| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the metrics cannot be told",
            "a name is not valid text",
        )
    })?;
    Ok(([(CONTENT_TYPE, format.content_type())], text).into_response())
}
