//! `POST /v1/replay`: a trace through a set of rules, in virtual time.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tollgate::RuleSet;
use tollgate::core::Enforcement;
use tollgate::replay::{Event, Replay, Step};
use utoipa::ToSchema;

use super::ask::Sent;
use super::background::{BackgroundPlace, Cancelled};
use super::problem::{Problem, Problems};
use super::render::Reply;
use super::rules::read_set;
use crate::listen::Reservation;

/// The largest body of a replay.
pub(super) const MAX_REPLAY_BYTES: usize = 2 << 20;
/// Answers beyond this are not given.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// Memory that has to be free beside the body: most answers take less.
const WORKING_BYTES: usize = 8 << 20;
/// The longest trace.
const MOST: usize = 20_000;

/// Rules, and what happens.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayBody<'a> {
    /// Rules as in a rules file.
    #[serde(borrow)]
    #[schema(value_type = Vec<Object>)]
    rules: &'a RawValue,
    /// Lines of a trace: `{"t_us": 0, "attributes": {"user_id": "a"}}`.
    #[serde(borrow)]
    #[schema(value_type = Vec<Object>, max_items = 20000)]
    trace: Vec<&'a RawValue>,
}

/// What became of every line, and in all.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) struct ReplayResult {
    #[schema(value_type = Vec<Object>)]
    lines: Vec<()>,
    summary: Summary,
}

/// What became of the requests of a trace.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = ReplaySummary)]
struct Summary {
    requests: u64,
    allowed: u64,
    refused: u64,
    rules: Vec<RuleSummary>,
    /// Where each rule is in that list.
    #[serde(skip)]
    #[schema(ignore)]
    places: HashMap<String, usize>,
}

/// What a rule said to them.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ReplayRule)]
struct RuleSummary {
    rule: String,
    allowed: u64,
    refused: u64,
}

/// Replay a trace through rules, in virtual time. Nothing of this server is touched.
#[utoipa::path(post, path = "/v1/replay", tag = "operating", request_body = ReplayBody,
    responses((status = 200, description = "the lines of a trace's output, and a summary", body = ReplayResult),
        (status = 422, description = "rules that make no set"),
        (status = 503, description = "two replays or previews are in progress"),
        Problems))]
pub(super) async fn replay(
    place: BackgroundPlace,
    reservation: Option<Extension<Arc<Reservation>>>,
    Sent(bytes): Sent<MAX_REPLAY_BYTES>,
) -> Result<Reply, Problem> {
    if reservation.is_some_and(|Extension(reservation)| !reservation.try_grow(WORKING_BYTES)) {
        return Err(Problem::no_memory());
    }
    let json = place.run(move |cancelled| run(&bytes, cancelled)).await?;
    Ok(Reply::json(json))
}

fn run(bytes: &[u8], cancelled: &Cancelled) -> Result<Vec<u8>, Problem> {
    let ReplayBody { rules, trace } = Problem::parse(
        bytes,
        "{\"rules\": [{\"key\": \"global\", \"limit\": \"1/s\"}], \"trace\": [{\"t_us\": 0}]}",
    )?;
    if trace.len() > MOST {
        let detail = format!("a trace has at most {MOST} lines here, not {}", trace.len());
        return Err(Problem::bad_body("trace", detail));
    }
    let rules: RuleSet = read_set(rules)?;
    let replay = Replay::new(rules);
    let mut summary = Summary::default();
    let mut json = Vec::new();
    json.extend_from_slice(b"{\"lines\":[");
    for (place, line) in trace.into_iter().enumerate() {
        cancelled.check()?;
        let wrong = |error: tollgate::replay::EventError| {
            Problem::bad_body(&format!("trace[{place}]"), error.to_string())
        };
        let event = Event::parse(line.get().as_bytes()).map_err(wrong)?;
        let step = replay.step(&event).map_err(wrong)?;
        if place > 0 {
            json.push(b',');
        }
        step.write_json(&mut json);
        summary.count(&step);
        if json.len() > MAX_ANSWER_BYTES {
            let detail = format!(
                "the answer would have more than {MAX_ANSWER_BYTES} bytes; send fewer lines or rules"
            );
            return Err(Problem::bad_body(&format!("trace[{place}]"), detail));
        }
    }
    json.extend_from_slice(b"],\"summary\":");
    // Text and numbers: there is nothing in them that JSON cannot say.
    json.extend_from_slice(&serde_json::to_vec(&summary).unwrap_or_default());
    json.push(b'}');
    Ok(json)
}

impl Summary {
    /// Counts a request that was checked; what only looks or gives back is none.
    fn count(&mut self, step: &Step<'_, '_>) {
        let Some(answer) = step.answer.as_ref().filter(|_| step.event.op.as_str() == "check") else { return };
        self.requests += 1;
        self.allowed += u64::from(answer.allowed());
        self.refused += u64::from(!answer.allowed());
        for tier in answer.tiers() {
            let refuses = !tier.verdict().allowed && tier.enforcement == Enforcement::Enforce;
            let rule = self.rule(answer.rules().rule(tier.rule).label());
            rule.allowed += u64::from(!refuses);
            rule.refused += u64::from(refuses);
        }
    }

    fn rule(&mut self, label: &str) -> &mut RuleSummary {
        let known = self.places.get(label).copied();
        let place = known.unwrap_or_else(|| {
            self.places.insert(label.to_owned(), self.rules.len());
            self.rules.push(RuleSummary { rule: label.to_owned(), allowed: 0, refused: 0 });
            self.rules.len() - 1
        });
        &mut self.rules[place]
    }
}
