//! `POST /v1/explain`: which rules a request meets, what each says, and why.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::App;
use super::ask::{Asked, CheckBody, Place, Sent};
use super::body::DecisionBody;
use super::problem::{Problem, Problems};
use crate::explain::Report;

/// Say which rules a request meets, what each says, and why. Nothing is charged.
#[utoipa::path(post, path = "/v1/explain", tag = "operating", request_body = CheckBody,
    responses(
        (status = 200, description = "what every rule has to do with it", body = Report<DecisionBody>),
        Problems,
    ))]
pub(super) async fn explain(State(app): State<App>, Sent(bytes): Sent) -> Result<Response, Problem> {
    let asked = Asked::parse(&bytes, Place::AdHoc, &app.ad_hoc)?;
    let answer = app.peeked(&asked).await;
    let request = answer.request(&asked.request);
    let report = Report::of(&app.limiter, &answer, &request, asked.cost).await;
    Ok(Json(report).into_response())
}
