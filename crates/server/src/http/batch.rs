//! `POST /v1/check/batch`: many requests in one, each decided on its own.
//!
//! Requests are decided in pieces, and the next piece when the answers to the last one have been sent. So the memory of a
//! batch does not depend on how large its answers are or how slowly they are read, and what is never read is never
//! charged.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::{io, vec};

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use futures_util::{FutureExt as _, stream};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::App;
use super::ask::{Asked, CheckBody, Place, Sent};
use super::check::to_json;
use super::problem::{Problem, Problems};
use super::render::JSON;
use crate::api::{self, Decision};
use crate::listen::{Reservation, panicked};

/// The largest body of a batch.
pub(super) const MAX_BATCH_BYTES: usize = 1 << 20;
/// The most requests in a batch.
const MOST: usize = 1_000;
/// Answers are sent when they have about this size.
const PIECE_BYTES: usize = 64 << 10;
/// Requests decided together before the size of their answers is known.
const FIRST_REQUESTS: usize = 16;
/// Memory that a batch needs beside its body, to be decided at all.
const WORKING_BYTES: usize = 2 * PIECE_BYTES;

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
    responses((status = 200, description = "what became of each, in order", body = BatchResults),
        (status = 503, description = "there is no memory for it; nothing was charged"),
        Problems))]
pub(super) async fn batch(
    State(app): State<App>,
    reservation: Option<Extension<Arc<Reservation>>>,
    Sent(bytes): Sent<MAX_BATCH_BYTES>,
) -> Result<Response, Problem> {
    let reservation = reservation.map(|Extension(reservation)| reservation);
    let BatchBody { requests } =
        Problem::parse(&bytes, "{\"requests\": [{\"attributes\": {\"user_id\": \"42\"}}]}")?;
    if requests.len() > MOST {
        let detail = format!("a batch has at most {MOST} requests, not {}", requests.len());
        return Err(Problem::bad_body("requests", detail));
    }
    if reservation.as_ref().is_some_and(|reservation| !reservation.try_grow(WORKING_BYTES)) {
        return Err(Problem::no_memory());
    }
    let requests: Vec<Bytes> =
        requests.iter().map(|request| bytes.slice_ref(request.get().as_bytes())).collect();
    let batch = Batch {
        app,
        requests: requests.into_iter(),
        answered: 0,
        answer_bytes: 0,
        _reservation: reservation,
    };
    let (first, rest) = batch.piece(b"{\"results\":[".to_vec()).await;
    let body = match rest {
        None => Body::from(first),
        Some(rest) => Body::from_stream(stream::unfold(Next::Answers(first, rest), Next::send)),
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    Ok(response)
}

/// The requests of a batch that are not yet decided.
struct Batch {
    app: App,
    requests: vec::IntoIter<Bytes>,
    /// Requests decided so far, and the size of the answers to them.
    answered: usize,
    answer_bytes: usize,
    /// Held until the last answer is sent.
    _reservation: Option<Arc<Reservation>>,
}

impl Batch {
    /// Appends the next answers; returns the requests that are left, if any are.
    async fn piece(mut self, mut json: Vec<u8>) -> (Vec<u8>, Option<Batch>) {
        while json.len() < PIECE_BYTES && self.requests.len() > 0 {
            let average = self.answer_bytes.checked_div(self.answered);
            let number = average
                .map_or(FIRST_REQUESTS, |average| (PIECE_BYTES - json.len()).div_ceil(average.max(1)).max(1));
            let before = json.len();
            self.decide(number, &mut json).await;
            self.answer_bytes += json.len() - before;
        }
        let is_last = self.requests.len() == 0;
        if is_last {
            json.extend_from_slice(b"]}");
        }
        (json, (!is_last).then_some(self))
    }

    /// Decides this many of the requests together.
    async fn decide(&mut self, number: usize, json: &mut Vec<u8>) {
        let requests: Vec<Bytes> = self.requests.by_ref().take(number).collect();
        let app = &self.app;
        let parsed: Vec<Result<Asked<'_>, Problem>> =
            requests.iter().map(|request| Asked::parse(request, Place::AdHoc, &app.ad_hoc)).collect();
        let started = app.limiter.clock().stopwatch_nanos();
        let asked: Vec<_> = parsed.iter().flatten().map(|asked| asked.to(&app.limiter)).collect();
        let mut answers = app.limiter.check_many(&asked).await.into_iter();
        drop(asked);
        for asked in parsed {
            if self.answered > 0 {
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
                Err(problem) => {
                    let place = format!("requests[{}]", self.answered);
                    json.extend_from_slice(&problem.within(&place).to_json());
                }
            }
            self.answered += 1;
        }
    }
}

/// What is sent next.
enum Next {
    /// Answers, and what is left after them.
    Answers(Vec<u8>, Batch),
    Requests(Batch),
    End,
}

impl Next {
    /// The next piece of the body. A panic cuts it off: a status cannot be changed any more.
    async fn send(self) -> Option<(Result<Vec<u8>, io::Error>, Next)> {
        match self {
            Next::Answers(json, rest) => Some((Ok(json), Next::Requests(rest))),
            Next::Requests(batch) => {
                let app = batch.app.clone();
                Some(match AssertUnwindSafe(batch.piece(Vec::new())).catch_unwind().await {
                    Ok((json, Some(rest))) => (Ok(json), Next::Requests(rest)),
                    Ok((json, None)) => (Ok(json), Next::End),
                    Err(_) => {
                        panicked(app.traffic());
                        (Err(io::Error::other("a bug in tollgate")), Next::End)
                    }
                })
            }
            Next::End => None,
        }
    }
}
