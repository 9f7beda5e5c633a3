//! `POST /v1/reserve` and `/v1/settle`: work whose price is known only afterwards.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use tollgate::json::{Attributes, Whole};
use tollgate::{Micros, ReservationId, ReservationLimit, ReserveError, SettleError};
use utoipa::ToSchema;

use super::App;
use super::ask::{AdHocSets, Asked, CheckBody, Facts, Place, Sent, one};
use super::auth::CallerKey;
use super::check::{Prefer, away};
use super::problem::{Problem, Problems};
use crate::api::{self, Reserved, Settled};

/// How long a reservation may last.
const LONGEST_MS: u64 = 86_400_000;

/// A request to decide and to settle later: that of a check, and for how long.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReserveBody<'a> {
    /// The facts about the request, as in a check.
    #[serde(borrow, default)]
    #[schema(value_type = Option<Facts>, example = json!({"user_id": "42", "plan": "free"}))]
    attributes: Option<Attributes<'a>>,
    /// What it will take, as far as anybody knows; at least 1.
    #[serde(default = "one")]
    #[schema(value_type = u64, default = 1, minimum = 1, maximum = 9007199254740991_i64)]
    cost: Whole,
    /// How long there is to settle, in milliseconds. After that it counts as spent.
    #[serde(default = "a_minute")]
    #[schema(value_type = u64, default = 60000, minimum = 1, maximum = 86400000)]
    ttl_ms: Whole,
    /// A bucket of the caller's own, as in a check.
    #[schema(min_length = 1, max_length = 512)]
    key: Option<String>,
    /// Its limit, as in a rule.
    #[schema(example = "10/s burst 50")]
    limit: Option<String>,
    algorithm: Option<String>,
    window: Option<String>,
    time_zone: Option<String>,
    aligned: Option<bool>,
    on_store_failure: Option<String>,
    consistency: Option<String>,
}

/// What it took in truth.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleBody {
    /// As it was answered to the request that reserved.
    #[schema(example = "8f14e45fceea167a5a36dedd4bea2543")]
    reservation_id: String,
    #[schema(value_type = u64, maximum = 9007199254740991_i64)]
    actual: Whole,
}

/// Decide a request as a check does, to be settled with the true cost.
#[utoipa::path(post, path = "/v1/reserve", tag = "decisions", request_body = ReserveBody,
    params(("Prefer" = Option<String>, Header, description = "`status=200` answers 200 whatever the decision")),
    responses(
        (status = 200, description = "it may pass", body = Reserved),
        (status = 403, description = "a rule denies it", body = Reserved),
        (status = 429, content(
            (Reserved = "application/json"),
            (api::Problem = "application/problem+json"),
        ), description = "a limit is used up; or the caller has too many unsettled reservations"),
        (status = 503, content(
            (Reserved = "application/json"),
            (api::Problem = "application/problem+json"),
        ), description = "the store is unavailable, and a rule lets nothing pass then; or there are too many unsettled reservations"),
        Problems,
    ))]
pub(super) async fn reserve(
    State(app): State<App>,
    prefer: Prefer,
    CallerKey(caller): CallerKey,
    Sent(bytes): Sent,
) -> Result<Response, Problem> {
    let example = "{\"attributes\": {\"user_id\": \"42\"}, \"cost\": 100}";
    let (asked, ttl) = Problem::parse::<ReserveBody<'_>>(&bytes, example)?.asked(&app.ad_hoc)?;
    let started = app.limiter.clock().stopwatch_nanos();
    let reserved = asked.to(&app.limiter).caller(&caller).reserve(ttl).await;
    let tollgate::Reserved { answer, reservation } = reserved.map_err(|error| unkept(&error))?;
    let decided = app.remembered(&asked, answer, started)?;
    let body = Reserved {
        reservation_id: reservation.map(|id| id.to_string()),
        expires_in_ms: reservation.map(|_| ttl.ceil_millis()),
        decision: decided.body(),
    };
    Ok(decided.reply(&app, prefer, &body).into_response())
}

/// Settle a reservation with what the work took in truth. Only the first time counts.
#[utoipa::path(post, path = "/v1/settle", tag = "decisions", request_body = SettleBody,
    responses(
        (status = 200, description = "settled, now or before", body = Settled),
        (status = 404, description = "there is no such reservation, or its time is over and it is spent"),
        (status = 503, description = "the store gave no answer"),
        Problems,
    ))]
pub(super) async fn settle(State(app): State<App>, Sent(bytes): Sent) -> Result<Json<Settled>, Problem> {
    let example = "{\"reservation_id\": \"8f14e45fceea167a5a36dedd4bea2543\", \"actual\": 70}";
    let SettleBody { reservation_id, actual: Whole(actual) } = Problem::parse(&bytes, example)?;
    let id: ReservationId =
        reservation_id.parse().map_err(|error| Problem::bad_body("reservation_id", format!("{error}")))?;
    match app.limiter.settle(id, actual).await {
        Ok(tollgate::Settled { reserved, actual, refunded, charged, unpaid, already_settled }) => {
            Ok(Json(Settled { reservation_id, reserved, actual, refunded, charged, unpaid, already_settled }))
        }
        Err(SettleError::Store(error)) => Err(away(&error)),
        Err(gone) => Err(Problem::missing(gone.to_string())),
    }
}

impl<'a> ReserveBody<'a> {
    fn asked(self, sets: &AdHocSets) -> Result<(Asked<'a>, Micros), Problem> {
        let Whole(ttl_ms) = self.ttl_ms;
        if !(1..=LONGEST_MS).contains(&ttl_ms) {
            let detail = format!("a reservation lasts from 1 to {LONGEST_MS} ms, not {ttl_ms}");
            return Err(Problem::bad_body("ttl_ms", detail));
        }
        let check = CheckBody {
            attributes: self.attributes,
            cost: self.cost,
            key: self.key,
            limit: self.limit,
            algorithm: self.algorithm,
            window: self.window,
            time_zone: self.time_zone,
            aligned: self.aligned,
            on_store_failure: self.on_store_failure,
            consistency: self.consistency,
        };
        Ok((check.asked(Place::AdHoc, sets)?, Micros::new(1_000 * ttl_ms)))
    }
}

/// It could have passed, but there is no room for its record.
fn unkept(error: &ReserveError) -> Problem {
    let title = "the reservation cannot be kept";
    let status = match error {
        ReserveError::Nothing => return Problem::bad_body("cost", error.to_string()),
        ReserveError::Full(ReservationLimit::Caller { .. }) => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    Problem::new(status, title, error.to_string()).retry_after(1)
}

const fn a_minute() -> Whole {
    Whole(60_000)
}
