//! `GET` and `DELETE /v1/keys/{key}`: the buckets of a key as it is shown, to look at and to forget.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use serde_json::{Value, json};
use tollgate::core::Draft;
use tollgate::core::algorithm::State as Remembered;
use tollgate::{AnyStore, BucketPreview, Descriptor, Held, Limit, Limiter, Rule, StoreError};
use utoipa::IntoParams;

use super::App;
use super::ask::rule_of;
use super::check::away;
use super::problem::Problem;
use super::query::Query;
use crate::api::{Bucket, KeyBuckets};

/// A limit without rules that the key may have been used with.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) struct KeyQuery {
    /// A limit such as `10/s burst 50`: adds the bucket that the key has without rules.
    limit: Option<String>,
    /// Its algorithm.
    algorithm: Option<String>,
    /// Where its windows begin.
    window: Option<String>,
    /// The time zone of calendar windows.
    time_zone: Option<String>,
}

/// Look at the buckets of a key.
#[utoipa::path(get, operation_id = "get_key", path = "/v1/keys/{key}", tag = "operating",
    params(("key" = String, Path, description = "a key as answers show it, percent-encoded"), KeyQuery),
    responses((status = 200, description = "its buckets", body = KeyBuckets),
        (status = 400, description = "a parameter that does not fit"),
        (status = 404, description = "no rule has such a key"),
        (status = 503, description = "the store gave no answer")))]
pub(super) async fn get(
    State(app): State<App>,
    key: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<KeyBuckets>, Problem> {
    Buckets::of(&app, key, &uri)?.look(&app.limiter).await.map(Json).map_err(|error| away(&error))
}

/// Forget the buckets of a key.
#[utoipa::path(delete, operation_id = "reset_key", path = "/v1/keys/{key}", tag = "operating",
    params(("key" = String, Path, description = "a key as answers show it, percent-encoded"), KeyQuery),
    responses((status = 200, description = "its buckets, as good as new", body = KeyBuckets),
        (status = 400, description = "a parameter that does not fit"),
        (status = 404, description = "no rule has such a key"),
        (status = 503, description = "the store gave no answer")))]
pub(super) async fn forget(
    State(app): State<App>,
    key: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<KeyBuckets>, Problem> {
    let buckets = Buckets::of(&app, key, &uri)?;
    for (rule, request) in &buckets.found {
        app.limiter.reset_bucket(rule, request).await.map_err(|error| away(&error))?;
    }
    buckets.look(&app.limiter).await.map(Json).map_err(|error| away(&error))
}

/// The rules that have such a key, each with a request that falls into it.
struct Buckets {
    key: String,
    found: Vec<(Rule, Descriptor<'static>)>,
}

impl Buckets {
    fn of(app: &App, key: Result<Path<String>, PathRejection>, uri: &Uri) -> Result<Self, Problem> {
        let Path(key) = key.map_err(|error| Problem::missing(error.body_text()))?;
        let query = Query::parse(uri, &["limit", "algorithm", "window", "time_zone", "consistency"])?;
        let rules = app.limiter.rules();
        let with_limits = rules.rules().iter().filter(|rule| rule.limit().is_some());
        let read = |rule: &Rule| rule.read_key(&key).map(|request| (rule.clone(), request));
        let mut found: Vec<_> = with_limits.filter_map(read).collect();
        let given = |name| query.text(name).map(str::to_owned);
        if query.text("limit").or(query.text("algorithm")).is_some() {
            let draft = Draft {
                limit: given("limit"),
                algorithm: given("algorithm"),
                window: given("window"),
                time_zone: given("time_zone"),
                consistency: given("consistency"),
                ..Draft::default()
            };
            let written = rule_of(draft)?;
            let limit = written
                .limit()
                .cloned()
                .ok_or_else(|| Problem::missing("a key without rules needs ?limit="))?;
            let rule = Rule::ad_hoc(limit).with_consistency(written.consistency());
            found.push((rule, Rule::naming(key.clone())));
        }
        if found.is_empty() {
            let help = "keys are as in `limits` of a decision; add ?limit= for one without rules";
            return Err(Problem::missing(format!("no rule has the key `{key}`; {help}")));
        }
        Ok(Buckets { key, found })
    }

    async fn look(self, limiter: &Limiter<AnyStore>) -> Result<KeyBuckets, StoreError> {
        let mut buckets = Vec::with_capacity(self.found.len());
        for (rule, request) in &self.found {
            if let Some(limit) = rule.limit() {
                let held = limiter.store().leased().map(|leased| leased.held(rule, request));
                let preview = limiter.inspect(rule, request, 1).await?;
                buckets.push(bucket(rule, limit, request, held, preview));
            }
        }
        Ok(KeyBuckets { key: self.key, buckets })
    }
}

fn bucket(
    rule: &Rule,
    limit: &Limit,
    request: &Descriptor<'_>,
    held: Option<Held>,
    preview: BucketPreview,
) -> Bucket {
    Bucket {
        rule: rule.label_in(Some(request)).to_owned(),
        scope: rule.scope().as_str().into(),
        plan: rule.plan().map(str::to_owned),
        when: rule.draft().when.clone(),
        algorithm: limit.algorithm_name().as_str().into(),
        limit: limit.to_string(),
        consistency: rule.consistency().as_str().into(),
        in_force: held.map_or("exact", |held| held.in_force.as_str()).into(),
        held: held.map_or(0, |held| held.tokens),
        mode: rule.mode().as_str().into(),
        known: preview.state.is_some(),
        remaining: preview.before.remaining,
        reset_after_ms: preview.before.reset_after.ceil_millis(),
        state: preview.state.as_ref().map(named),
    }
}

/// The fields of a state, by the names that its algorithm gives them.
fn named(state: &Remembered) -> Value {
    let last_us = state.last().as_micros();
    match state {
        Remembered::TokenBucket(debt) | Remembered::LeakyBucket(debt) => {
            json!({"debt": debt.debt, "p": debt.p, "last_us": last_us})
        }
        Remembered::TokenBucketInterval(spent) => {
            json!({"used": spent.used, "anchor_us": spent.anchor.as_micros(), "last_us": last_us})
        }
        Remembered::FixedWindow(count) => {
            json!({"count": count.count, "start_us": count.start.as_micros(), "last_us": last_us})
        }
        Remembered::SlidingWindowLog(log) => {
            json!({"sum": log.sum, "entries": log.entries.len(), "last_us": last_us})
        }
        Remembered::SlidingWindowCounter(counts) => {
            let start_us = counts.start.as_micros();
            json!({"prev": counts.prev, "curr": counts.curr, "start_us": start_us, "last_us": last_us})
        }
    }
}
