//! `POST /v1/rules/preview`: what another set would change, without changing anything.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use serde::Serialize;
use tollgate::RuleSet;
use tollgate::core::Draft;

use super::super::App;
use super::super::body::read as bytes;
use super::super::problem::Problem;
use super::read;

/// A set has room for some ten thousand rules.
pub(crate) const MAX_SET_BYTES: usize = 8 << 20;

/// The difference to the rules in effect, by label.
#[derive(Debug, Serialize)]
pub(crate) struct PreviewBody {
    valid: bool,
    added: Vec<String>,
    changed: Vec<String>,
    removed: Vec<String>,
}

pub(crate) async fn preview(
    State(app): State<App>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<PreviewBody>, Problem> {
    let body = bytes(body, MAX_SET_BYTES)?;
    let limiter = app.limiter;
    // So many rules take a while to read: not on a thread that decides.
    let compared = tokio::task::spawn_blocking(move || {
        let next = read::set(&body)?;
        Ok(PreviewBody::between(&limiter.rules(), &next))
    });
    compared
        .await
        .map_err(|_| {
            let detail = "reading the rules was interrupted; try again";
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "interrupted", detail)
        })?
        .map(Json)
}

impl PreviewBody {
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
        PreviewBody {
            valid: true,
            added: missing_in(&now, &next),
            changed: next.iter().filter(differs).map(|(label, _)| (*label).to_owned()).collect(),
            removed: missing_in(&next, &now),
        }
    }
}

fn by_label(rules: &RuleSet) -> BTreeMap<&str, &Draft> {
    rules.rules().iter().map(|rule| (rule.label(), rule.draft())).collect()
}
