//! `GET` and `DELETE /v1/keys/{key}`: the buckets of a key as it is shown, to look at and to forget.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use serde::Serialize;
use serde_json::{Value, json};
use tollgate::core::Draft;
use tollgate::core::algorithm::State as Remembered;
use tollgate::{AnyStore, BucketPreview, Descriptor, Held, Limit, Limiter, Rule, StoreError};
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::ask::rule_of;
use super::check::away;
use super::problem::{Problem, ProblemBody};
use super::query::Query;

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

/// Every bucket that is shown as this key.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KeyBody {
    key: String,
    buckets: Vec<BucketBody>,
}

/// One bucket of a key.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BucketBody {
    rule: String,
    /// `user`, `endpoint`, `ip`, `global` or `custom`.
    scope: &'static str,
    #[schema(required)]
    plan: Option<String>,
    /// What a request must meet for the rule to apply, as in the rule.
    when: BTreeMap<String, Vec<String>>,
    algorithm: &'static str,
    limit: String,
    consistency: &'static str,
    /// Where its decisions are made at present: `exact`, `leased` or `local`.
    in_force: &'static str,
    /// Tokens of it that this node holds.
    held: u64,
    mode: &'static str,
    /// Whether anything is remembered of it.
    known: bool,
    remaining: u64,
    reset_after_ms: u64,
    /// What is remembered, by name; instants are microseconds since the Unix epoch.
    #[schema(required, value_type = Option<Object>)]
    state: Option<Value>,
}

/// Look at the buckets of a key.
#[utoipa::path(get, operation_id = "get_key", path = "/v1/keys/{key}", tag = "operating",
    params(("key" = String, Path, description = "a key as answers show it, percent-encoded"), KeyQuery),
    responses((status = 200, description = "its buckets", body = KeyBody),
        (status = 400, description = "a parameter that does not fit", body = ProblemBody,
            content_type = "application/problem+json"),
        (status = 404, description = "no rule has such a key", body = ProblemBody,
            content_type = "application/problem+json"),
        (status = 503, description = "the store gave no answer", body = ProblemBody,
            content_type = "application/problem+json")))]
pub(super) async fn get(
    State(app): State<App>,
    key: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<KeyBody>, Problem> {
    Buckets::of(&app, key, &uri)?.look(&app.limiter).await.map(Json).map_err(|error| away(&error))
}

/// Forget the buckets of a key.
#[utoipa::path(delete, operation_id = "reset_key", path = "/v1/keys/{key}", tag = "operating",
    params(("key" = String, Path, description = "a key as answers show it, percent-encoded"), KeyQuery),
    responses((status = 200, description = "its buckets, as good as new", body = KeyBody),
        (status = 400, description = "a parameter that does not fit", body = ProblemBody,
            content_type = "application/problem+json"),
        (status = 404, description = "no rule has such a key", body = ProblemBody,
            content_type = "application/problem+json"),
        (status = 503, description = "the store gave no answer", body = ProblemBody,
            content_type = "application/problem+json")))]
pub(super) async fn forget(
    State(app): State<App>,
    key: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<KeyBody>, Problem> {
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

    async fn look(self, limiter: &Limiter<AnyStore>) -> Result<KeyBody, StoreError> {
        let mut buckets = Vec::with_capacity(self.found.len());
        for (rule, request) in &self.found {
            if let Some(limit) = rule.limit() {
                let held = limiter.store().leased().map(|leased| leased.held(rule, request));
                let preview = limiter.inspect(rule, request, 1).await?;
                buckets.push(BucketBody::new(rule, limit, request, held, preview));
            }
        }
        Ok(KeyBody { key: self.key, buckets })
    }
}

impl BucketBody {
    fn new(
        rule: &Rule,
        limit: &Limit,
        request: &Descriptor<'_>,
        held: Option<Held>,
        preview: BucketPreview,
    ) -> Self {
        BucketBody {
            rule: rule.label_in(Some(request)).to_owned(),
            scope: rule.scope().as_str(),
            plan: rule.plan().map(str::to_owned),
            when: rule.draft().when.clone(),
            algorithm: limit.algorithm_name().as_str(),
            limit: limit.to_string(),
            consistency: rule.consistency().as_str(),
            in_force: held.map_or("exact", |held| held.in_force.as_str()),
            held: held.map_or(0, |held| held.tokens),
            mode: rule.mode().as_str(),
            known: preview.state.is_some(),
            remaining: preview.before.remaining,
            reset_after_ms: preview.before.reset_after.ceil_millis(),
            state: preview.state.as_ref().map(named),
        }
    }
}

/// What is remembered, by the names that the algorithms have for it.
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
