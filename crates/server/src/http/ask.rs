//! What a request for a decision sends: facts for the rules, or a limit of its own.

use std::collections::HashMap;
use std::mem;
use std::pin::pin;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use parking_lot::RwLock;
use serde::Deserialize;
use tollgate::core::Draft;
use tollgate::json::{Attributes, Whole};
use tollgate::{Descriptor, Limiter, Rule, RuleSet};
use utoipa::ToSchema;

use super::problem::Problem;
use crate::listen::Reservation;

/// Request bodies beyond this are answered 413, unless they are more than one request.
pub(crate) const MAX_BODY_BYTES: usize = 64 << 10;
/// The longest name that a caller may give to a bucket, in bytes; it is shown in headers.
const MAX_KEY_BYTES: usize = 512;

/// The bytes of a body, of at most so many.
#[derive(Debug)]
pub(crate) struct Sent<const MOST: usize = MAX_BODY_BYTES>(pub(crate) Bytes);

impl<S: Send + Sync, const MOST: usize> FromRequest<S> for Sent<MOST> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        // None only where a router is called without a listener.
        let reservation = request.extensions().get::<Arc<Reservation>>().cloned();
        let read = read_body::<MOST>(request.into_body(), reservation.as_deref());
        let Some(reservation) = &reservation else { return read.await };
        tokio::select! {
            biased;
            read = read => read,
            () = reservation.evicted() => Err(Problem::no_memory()),
        }
    }
}

async fn read_body<const MOST: usize>(
    body: Body,
    reservation: Option<&Reservation>,
) -> Result<Sent<MOST>, Problem> {
    let mut body = pin!(Limited::new(body, MOST));
    let mut frames = Vec::new();
    while let Some(frame) = body.frame().await {
        let data = match frame {
            Ok(frame) => frame.into_data().unwrap_or_default(),
            Err(error) if error.is::<LengthLimitError>() => return Err(Problem::too_large(MOST)),
            Err(error) => return Err(Problem::unreadable(error.to_string())),
        };
        if reservation.is_some_and(|reservation| !reservation.try_grow(data.len())) {
            return Err(Problem::no_memory());
        }
        frames.push(data);
    }
    Ok(Sent(match frames.as_mut_slice() {
        [whole] => mem::take(whole),
        frames => frames.concat().into(),
    }))
}

/// A request to decide: by the rules (`attributes`), or by a limit of its own (`key` and `limit`).
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckBody<'a> {
    /// The facts about the request: up to 64 strings, numbers and booleans, compared as text.
    #[serde(borrow, default)]
    #[schema(value_type = Option<Facts>, example = json!({"user_id": "42", "plan": "free"}))]
    pub(super) attributes: Option<Attributes<'a>>,
    /// What it takes.
    #[serde(default = "one")]
    #[schema(value_type = u64, default = 1, maximum = 9007199254740991_i64)]
    pub(super) cost: Whole,
    /// A bucket of the caller's own, apart from every rule's.
    #[schema(min_length = 1, max_length = 512)]
    pub(super) key: Option<String>,
    /// Its limit, as in a rule.
    #[schema(example = "10/s burst 50")]
    pub(super) limit: Option<String>,
    pub(super) algorithm: Option<String>,
    pub(super) window: Option<String>,
    pub(super) time_zone: Option<String>,
    pub(super) aligned: Option<bool>,
    /// `open` (default), `closed` or `local`: what happens while the store is unavailable.
    #[schema(example = "closed")]
    pub(super) on_store_failure: Option<String>,
    /// `exact` (default), `leased`, `local` or `auto`: where the decision is made.
    #[schema(example = "exact")]
    pub(super) consistency: Option<String>,
}

/// Attributes in the document.
#[derive(ToSchema)]
#[schema(as = Attributes)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct Facts(std::collections::BTreeMap<String, Fact>);

/// A value of an attribute in the document.
#[derive(ToSchema)]
#[schema(as = Attribute)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum Fact {
    Text(String),
    Number(f64),
    Boolean(bool),
}

/// What is asked of the limiter.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) request: Descriptor<'a>,
    pub(crate) cost: u64,
    /// The rules to decide by, where they are not the limiter's.
    pub(crate) own: Option<Arc<RuleSet>>,
}

/// Which buckets a limit without rules counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// Those that callers name.
    AdHoc,
    /// Those for trying limits out.
    Playground,
}

/// The most limits without rules whose compiled sets are kept.
const MAX_AD_HOC_SETS: usize = 4_096;

/// The longest text of a limit whose set is kept: a limit can be written in any length.
const MAX_CACHED_BYTES: usize = 128;

/// Compiled sets of limits without rules, by what requests write. When there are too many, all are dropped.
#[derive(Debug, Default)]
pub(crate) struct AdHocSets(RwLock<HashMap<AdHocLimit, Arc<RuleSet>>>);

/// A limit as a request writes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AdHocLimit {
    place: Place,
    limit: Option<String>,
    algorithm: Option<String>,
    window: Option<String>,
    time_zone: Option<String>,
    aligned: Option<bool>,
    on_store_failure: Option<String>,
    consistency: Option<String>,
}

impl AdHocSets {
    /// The set with this limit.
    fn get(&self, limit: AdHocLimit) -> Result<Arc<RuleSet>, Problem> {
        if let Some(set) = self.0.read().get(&limit) {
            return Ok(Arc::clone(set));
        }
        let set = Arc::new(RuleSet::of(limit.rule()?));
        if limit.bytes() > MAX_CACHED_BYTES {
            return Ok(set);
        }
        let mut sets = self.0.write();
        if sets.len() >= MAX_AD_HOC_SETS {
            sets.clear();
        }
        Ok(Arc::clone(sets.entry(limit).or_insert(set)))
    }
}

impl AdHocLimit {
    fn rule(&self) -> Result<Rule, Problem> {
        let AdHocLimit {
            limit, algorithm, window, time_zone, aligned, on_store_failure, consistency, ..
        } = self.clone();
        let draft = Draft {
            limit,
            algorithm,
            window,
            time_zone,
            aligned,
            on_store_failure,
            consistency,
            ..Draft::default()
        };
        let written = rule_of(draft)?;
        let limit = written.limit().cloned().ok_or_else(|| without("key", "limit"))?;
        let rule = match self.place {
            Place::AdHoc => Rule::ad_hoc(limit),
            Place::Playground => Rule::playground(limit),
        };
        Ok(rule.with_failure_policy(written.on_store_failure()).with_consistency(written.consistency()))
    }

    /// The length of all its texts.
    fn bytes(&self) -> usize {
        let AdHocLimit { limit, algorithm, window, time_zone, on_store_failure, consistency, .. } = self;
        let texts = [limit, algorithm, window, time_zone, on_store_failure, consistency];
        texts.into_iter().flatten().map(String::len).sum()
    }

    /// A field that means nothing without a key.
    fn stray(&self) -> Option<&'static str> {
        let given = [
            ("limit", self.limit.is_some()),
            ("algorithm", self.algorithm.is_some()),
            ("window", self.window.is_some()),
            ("time_zone", self.time_zone.is_some()),
            ("aligned", self.aligned.is_some()),
            ("on_store_failure", self.on_store_failure.is_some()),
            ("consistency", self.consistency.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(field, _)| field)
    }
}

impl<'a> Asked<'a> {
    /// Reads a body.
    pub(crate) fn parse(bytes: &'a [u8], place: Place, sets: &AdHocSets) -> Result<Self, Problem> {
        let expected = match place {
            Place::AdHoc => "expected a JSON object such as {\"attributes\": {\"user_id\": \"42\"}}",
            Place::Playground => {
                "expected a JSON object such as {\"key\": \"me\", \"limit\": \"10/s burst 50\"}"
            }
        };
        CheckBody::parse(bytes, expected)?.asked(place, sets)
    }

    /// The request to the limiter.
    pub(crate) fn to<'r>(&'r self, limiter: &'r Limiter) -> tollgate::Request<'r> {
        let request = limiter.request(&self.request).cost(self.cost);
        match &self.own {
            None => request,
            Some(own) => request.rules(Arc::clone(own)),
        }
    }
}

impl<'a> CheckBody<'a> {
    fn parse(bytes: &'a [u8], expected: &'static str) -> Result<Self, Problem> {
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            return Err(Problem::bad_body(".", expected));
        }
        serde_json::from_slice(bytes).map_err(|_| {
            // Only whoever is wrong pays for knowing where.
            let mut json = serde_json::Deserializer::from_slice(bytes);
            let read: Result<CheckBody<'_>, _> = serde_path_to_error::deserialize(&mut json);
            match read {
                Err(error) => Problem::bad_body(&error.path().to_string(), error.inner().to_string()),
                Ok(_) => {
                    let trailing = json.end().err().map(|error| error.to_string());
                    Problem::bad_body(".", trailing.unwrap_or_else(|| "not JSON".to_owned()))
                }
            }
        })
    }

    /// What it asks for.
    pub(super) fn asked(self, place: Place, sets: &AdHocSets) -> Result<Asked<'a>, Problem> {
        let Whole(cost) = self.cost;
        let CheckBody { attributes, key, limit, algorithm, window, time_zone, aligned, .. } = self;
        let (on_store_failure, consistency) = (self.on_store_failure, self.consistency);
        let limit =
            AdHocLimit { place, limit, algorithm, window, time_zone, aligned, on_store_failure, consistency };
        let Some(key) = key else {
            return match limit.stray() {
                Some(field) => Err(without(field, "key")),
                None if place == Place::Playground => Err(without("limit", "key")),
                None => {
                    let Attributes(request) = attributes.unwrap_or_default();
                    Ok(Asked { request, cost, own: None })
                }
            };
        };
        if attributes.is_some() {
            let detail = "`key` decides without rules and `attributes` by them; send one of the two";
            return Err(Problem::bad_body("key", detail));
        }
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            let detail = format!("a key has from 1 to {MAX_KEY_BYTES} bytes, not {}", key.len());
            return Err(Problem::bad_body("key", detail));
        }
        Ok(Asked { request: Rule::naming(key), cost, own: Some(sets.get(limit)?) })
    }
}

/// A rule with everything that a draft without a key writes down, or which field is wrong.
pub(crate) fn rule_of(draft: Draft) -> Result<Rule, Problem> {
    if draft.limit.is_none() {
        return Err(without("key", "limit"));
    }
    Draft { key: "global".to_owned(), ..draft }.build().map_err(|errors| {
        let first = errors.first().map(|error| (error.field.name, error.problem.to_string()));
        let (field, message) = first.unwrap_or_default();
        Problem::bad_body(field, message)
    })
}

fn without(given: &str, needed: &str) -> Problem {
    let example = "{\"key\": \"user:123\", \"limit\": \"10/s burst 50\"}";
    Problem::bad_body(needed, format!("`{given}` goes with `{needed}`, as in {example}"))
}

pub(super) const fn one() -> Whole {
    Whole(1)
}
