//! `POST /v1/check/batch`: many requests in one, each decided on its own.

use axum::extract::State;
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::App;
use super::ask::{Asked, CheckBody, Place, Sent};
use super::check::to_json;
use super::problem::{Problem, Problems};
use super::render::Reply;
use crate::api::{self, Decision};

/// The largest body of a batch.
pub(super) const MAX_BATCH_BYTES: usize = 1 << 20;
/// The most requests in a batch.
const MOST: usize = 1_000;

/// Requests to decide.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchBody<'a> {
    #[serde(borrow)]
    #[schema(value_type = Vec<CheckBody>, max_items = 1000)]
    requests: Vec<&'a RawValue>,
}

/// What became of them, in their order.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) struct BatchResults<'a> {
    results: Vec<BatchResult<'a>>,
}

/// A decision, or what is wrong with the request.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) enum BatchResult<'a> {
    Decision(Box<Decision<'a>>),
    Problem(Box<api::Problem>),
}

/// Decide many requests, each on its own.
#[utoipa::path(post, operation_id = "check_batch", path = "/v1/check/batch", tag = "decisions", request_body = BatchBody,
    responses((status = 200, description = "what became of each, in order", body = BatchResults), Problems))]
pub(super) async fn batch(
    State(app): State<App>,
    Sent(bytes): Sent<MAX_BATCH_BYTES>,
) -> Result<Reply, Problem> {
    let BatchBody { requests } =
        Problem::parse(&bytes, "{\"requests\": [{\"attributes\": {\"user_id\": \"42\"}}]}")?;
    if requests.len() > MOST {
        let detail = format!("a batch has at most {MOST} requests, not {}", requests.len());
        return Err(Problem::bad_body("requests", detail));
    }
    let parsed: Vec<Result<Asked<'_>, Problem>> = requests
        .iter()
        .map(|request| Asked::parse(request.get().as_bytes(), Place::AdHoc, &app.ad_hoc))
        .collect();
    let started = app.limiter.clock().stopwatch_nanos();
    let asked: Vec<_> = parsed.iter().flatten().map(|asked| asked.to(&app.limiter)).collect();
    let mut answers = app.limiter.check_many(&asked).await.into_iter();
    drop(asked);
    let mut json = Vec::with_capacity(64 + 512 * parsed.len());
    json.extend_from_slice(b"{\"results\":[");
    for (place, asked) in parsed.into_iter().enumerate() {
        if place > 0 {
            json.push(b',');
        }
        let decided = asked.and_then(|asked| {
            let answer = answers.next().expect("every request that was read has an answer");
            let decided = app.remembered(&asked, answer, started)?;
            let body = decided.body();
            Ok(to_json(&body, body.limits.len()))
        });
        match decided {
            Ok(body) => json.extend_from_slice(&body),
            Err(problem) => json.extend_from_slice(&problem.within(&format!("requests[{place}]")).to_json()),
        }
    }
    json.extend_from_slice(b"]}");
    Ok(Reply::json(json))
}
