//! `POST /v1/check` and `POST /v1/peek`.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use tollgate::json::{Attributes, Whole};
use tollgate::{Answer, Descriptor, Outcome};
use tollgate_tower::write_headers;

use super::App;
use super::body::{CheckBody, DecisionBody, MAX_BODY_BYTES, read};
use super::problem::Problem;

const PREFER: HeaderName = HeaderName::from_static("prefer");
const APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// What is asked of the limiter.
#[derive(Debug, Clone, Copy)]
enum Verb {
    Check,
    Peek,
}

/// Decides a request and charges it if it may pass.
pub(super) async fn check(
    State(app): State<App>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    decide(&app, Verb::Check, &headers, body).await
}

/// Answers what a check would, and charges nothing.
pub(super) async fn peek(
    State(app): State<App>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    decide(&app, Verb::Peek, &headers, body).await
}

async fn decide(
    app: &App,
    verb: Verb,
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let bytes = read(body, MAX_BODY_BYTES)?;
    let CheckBody { attributes: Attributes(request), cost: Whole(cost) } = CheckBody::parse(&bytes)?;
    let answer = match verb {
        Verb::Check => app.limiter.check(&request, cost).await,
        Verb::Peek => app.limiter.peek(&request, cost).await,
    };
    Ok(respond(app, &answer, &request, headers))
}

/// Status, headers and body of a decision.
fn respond(app: &App, answer: &Answer, request: &Descriptor<'_>, asked: &HeaderMap) -> Response {
    let always_ok = prefers_200(asked);
    let status = match answer.outcome() {
        _ if always_ok => StatusCode::OK,
        Outcome::Allowed => StatusCode::OK,
        Outcome::Refused => StatusCode::TOO_MANY_REQUESTS,
        Outcome::Denied => StatusCode::FORBIDDEN,
        Outcome::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    };
    let body = DecisionBody::new(answer, request, Some(app.ids.next()));
    let mut response = (status, Json(body)).into_response();
    if let Some(values) = app.headers.headers(answer, answer.rules(), Some(request), answer.at()) {
        write_headers(values, response.headers_mut());
    }
    if always_ok {
        response.headers_mut().insert(APPLIED, HeaderValue::from_static("status=200"));
    }
    response
}

/// Whether the client asks for 200 whatever the decision (`Prefer: status=200`).
fn prefers_200(headers: &HeaderMap) -> bool {
    let preferences = headers.get_all(PREFER).into_iter().filter_map(|value| value.to_str().ok());
    preferences.flat_map(|value| value.split(',')).any(|preference| preference.trim() == "status=200")
}
