//! `POST /v1/rules/preview`: what another set would change, without changing anything.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::value::RawValue;
use tollgate::core::Draft;
use tollgate::replay::{Event, EventError, Op, Replay};
use tollgate::{Rule, RuleSet, Snapshot};
use utoipa::ToSchema;

use super::super::App;
use super::super::ask::Sent;
use super::super::background::{BackgroundPlace, Cancelled};
use super::super::problem::{Problem, Problems};
use super::read;
use crate::api::{Preview, PreviewRecent, PreviewTurned, Rule as RuleFields, View};
use crate::record::Recorded;

/// A set has room for some ten thousand rules.
pub(super) const MAX_SET_BYTES: usize = 8 << 20;
/// The most lines that are listed of requests that would go another way.
const MOST_LISTED: usize = 20;

/// A set of rules to try.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PreviewRequest<'a> {
    #[serde(borrow)]
    #[schema(value_type = Vec<RuleFields>)]
    rules: &'a RawValue,
    /// Whether to try it on the requests that were decided a moment ago.
    #[serde(default)]
    recent: bool,
}

/// See what another set of rules would change, without changing anything.
#[utoipa::path(post, operation_id = "preview_rules", path = "/v1/rules/preview", tag = "rules", request_body = PreviewRequest,
    responses(
        (status = 200, description = "the difference to the rules in effect", body = Preview),
        (status = 422, description = "rules that make no set"),
        (status = 503, description = "two replays or previews are in progress"),
        Problems,
    ))]
pub(crate) async fn preview(
    State(app): State<App>,
    place: BackgroundPlace,
    Sent(body): Sent<MAX_SET_BYTES>,
) -> Result<Json<Preview>, Problem> {
    let compared = place.run(move |cancelled| {
        let PreviewRequest { rules, recent } =
            Problem::parse(&body, "{\"rules\": [{\"key\": \"global\", \"limit\": \"100/s\"}]}")?;
        let (now, next) = (app.limiter.rules(), read::set_of(rules)?);
        let mut preview = Preview::between(&now, &next);
        if recent {
            let mut decisions: Vec<Recorded> = app.recorder.newest(|_| true).collect();
            decisions.reverse();
            preview.recent = Some(PreviewRecent::of(&decisions, &now, next, cancelled)?);
        }
        Ok(preview)
    });
    compared.await.map(Json)
}

impl Preview {
    fn between(now: &RuleSet, next: &RuleSet) -> Self {
        let (now, next) = (by_label(now), by_label(next));
        let missing_in = |other: &BTreeMap<&str, &Draft>, these: &BTreeMap<&str, &Draft>| {
            these
                .keys()
                .filter(|label| !other.contains_key(*label))
                .map(|label| (*label).to_owned())
                .collect()
        };
        let differs =
            |(label, draft): &(&&str, &&Draft)| now.get(**label).is_some_and(|known| known != *draft);
        Preview {
            valid: true,
            added: missing_in(&now, &next),
            changed: next.iter().filter(differs).map(|(label, _)| (*label).to_owned()).collect(),
            removed: missing_in(&next, &now),
            recent: None,
        }
    }
}

fn by_label(rules: &RuleSet) -> BTreeMap<&str, &Draft> {
    rules.rules().iter().map(|rule| (rule.label(), rule.draft())).collect()
}

impl PreviewRecent {
    /// Replays decisions, oldest first. Those without rules, or that were not kept whole, are passed over.
    fn of(
        decisions: &[Recorded],
        now: &Snapshot,
        next: RuleSet,
        cancelled: &Cancelled,
    ) -> Result<Self, Problem> {
        let (now, next) = (Replay::new(now.to_arc()), Replay::new(next));
        let mut recent = PreviewRecent {
            view: View::Node,
            requests: 0,
            newly_refused: Vec::new(),
            newly_allowed: Vec::new(),
            refused_before: 0,
            refused_after: 0,
        };
        let (mut refused, mut allowed) = (Turns::new(), Turns::new());
        for decision in decisions.iter().filter(|decision| !decision.is_cut && !decision.is_ad_hoc()) {
            cancelled.check()?;
            let request = decision.request();
            let event = Event { at: decision.answer.at(), op: Op::Check, request, cost: decision.cost };
            let (before, after) = (refused_by(&now, &event), refused_by(&next, &event));
            recent.requests += 1;
            recent.refused_before += u64::from(before.is_some());
            recent.refused_after += u64::from(after.is_some());
            match (before, after) {
                (None, Some(by)) => *refused.entry(by).or_default() += 1,
                (Some(by), None) => *allowed.entry(by).or_default() += 1,
                _ => {}
            }
        }
        (recent.newly_refused, recent.newly_allowed) = (listed(refused), listed(allowed));
        Ok(recent)
    }
}

/// How often which rule and key refused, where the other set does not.
type Turns = BTreeMap<(String, String), u64>;

/// The rule that refuses a request and its key, if one does.
fn refused_by(replay: &Replay, event: &Event<'_>) -> Option<(String, String)> {
    let by = |rule: &Rule| (rule.label().to_owned(), rule.key(&event.request).to_string());
    match replay.step(event) {
        Ok(step) => {
            let answer = step.answer.as_ref().filter(|answer| !answer.allowed())?;
            Some(by(answer.rules().rule(answer.binding_limit()?.rule)))
        }
        Err(EventError::Cost(error)) => {
            replay.rules().rules().iter().find(|rule| rule.label() == error.rule).map(by)
        }
        Err(_) => None, // only a change of rules fails otherwise
    }
}

fn listed(turns: Turns) -> Vec<PreviewTurned> {
    let mut listed: Vec<PreviewTurned> =
        turns.into_iter().map(|((rule, key), count)| PreviewTurned { key, rule, count }).collect();
    listed.sort_by_key(|turned| std::cmp::Reverse(turned.count));
    listed.truncate(MOST_LISTED);
    listed
}
