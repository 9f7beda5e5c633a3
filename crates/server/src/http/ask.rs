//! What a request for a decision sends: facts for the rules, or a limit of its own.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Deserialize;
use tollgate::core::Draft;
use tollgate::json::{Attributes, Whole};
use tollgate::{Descriptor, Limit, Rule, RuleSet};
use utoipa::ToSchema;

use super::problem::Problem;

/// Request bodies beyond this are answered 413, unless they are more than one request.
pub(crate) const MAX_BODY_BYTES: usize = 64 << 10;
/// The longest name that a caller may give to a bucket, in bytes; it is shown in headers.
const LONGEST_KEY: usize = 512;

/// The bytes of a body, of at most so many.
#[derive(Debug)]
pub(crate) struct Sent<const MOST: usize = MAX_BODY_BYTES>(pub(crate) Bytes);

impl<S: Send + Sync, const MOST: usize> FromRequest<S> for Sent<MOST> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let body: Body = request.into_body();
        match Limited::new(body, MOST).collect().await {
            Ok(read) => Ok(Sent(read.to_bytes())),
            Err(error) if error.is::<LengthLimitError>() => Err(Problem::too_large(MOST)),
            Err(error) => Err(Problem::unreadable(error.to_string())),
        }
    }
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Those that callers name.
    AdHoc,
    /// Those for trying limits out.
    Playground,
}

impl<'a> Asked<'a> {
    /// Reads a body.
    pub(crate) fn parse(bytes: &'a [u8], place: Place) -> Result<Self, Problem> {
        let expected = match place {
            Place::AdHoc => "expected a JSON object such as {\"attributes\": {\"user_id\": \"42\"}}",
            Place::Playground => {
                "expected a JSON object such as {\"key\": \"me\", \"limit\": \"10/s burst 50\"}"
            }
        };
        CheckBody::parse(bytes, expected)?.asked(place)
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
    pub(super) fn asked(self, place: Place) -> Result<Asked<'a>, Problem> {
        let Whole(cost) = self.cost;
        let CheckBody { attributes, key, limit, algorithm, window, time_zone, aligned, .. } = self;
        let draft = Draft { limit, algorithm, window, time_zone, aligned, ..Draft::default() };
        let Some(key) = key else {
            return match stray(&draft) {
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
        if key.is_empty() || key.len() > LONGEST_KEY {
            let detail = format!("a key has from 1 to {LONGEST_KEY} bytes, not {}", key.len());
            return Err(Problem::bad_body("key", detail));
        }
        let limit = limit_of(draft)?;
        let rule = match place {
            Place::AdHoc => Rule::ad_hoc(&key, limit),
            Place::Playground => Rule::playground(&key, limit),
        };
        let own = RuleSet::new(vec![rule]).map_err(|_| Problem::bad_body("key", "not a key"))?;
        Ok(Asked { request: Rule::naming(key), cost, own: Some(Arc::new(own)) })
    }
}

/// The limit that a draft writes down, or which field is wrong.
pub(crate) fn limit_of(draft: Draft) -> Result<Limit, Problem> {
    if draft.limit.is_none() {
        return Err(without("key", "limit"));
    }
    let rule = Draft { key: "global".to_owned(), ..draft }.build().map_err(|errors| {
        let first = errors.first().map(|error| (error.field.name, error.problem.to_string()));
        let (field, message) = first.unwrap_or_default();
        Problem::bad_body(field, message)
    })?;
    rule.limit().cloned().ok_or_else(|| without("key", "limit"))
}

/// A field that means nothing without a key.
fn stray(draft: &Draft) -> Option<&'static str> {
    let given = [
        ("limit", draft.limit.is_some()),
        ("algorithm", draft.algorithm.is_some()),
        ("window", draft.window.is_some()),
        ("time_zone", draft.time_zone.is_some()),
        ("aligned", draft.aligned.is_some()),
    ];
    given.into_iter().find(|(_, given)| *given).map(|(field, _)| field)
}

fn without(given: &str, needed: &str) -> Problem {
    let example = "{\"key\": \"user:123\", \"limit\": \"10/s burst 50\"}";
    Problem::bad_body(needed, format!("`{given}` goes with `{needed}`, as in {example}"))
}

pub(super) const fn one() -> Whole {
    Whole(1)
}
