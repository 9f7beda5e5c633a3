//! The bodies of the HTTP API: what a check sends and what it gets.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use tollgate::core::limit::MAX_EXACT;
use tollgate::core::{Enforcement, Tier};
use tollgate::{Answer, Descriptor, Micros};

use super::problem::Problem;

/// Facts a request may carry.
const MOST_ATTRIBUTES: usize = 64;

/// `{"attributes": {"user_id": "42"}, "cost": 1}`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckBody<'a> {
    #[serde(borrow, default)]
    pub(crate) attributes: Attributes<'a>,
    #[serde(default = "one", deserialize_with = "cost")]
    pub(crate) cost: u64,
}

impl<'a> CheckBody<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Problem> {
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            return Err(Problem::bad_body(
                ".",
                "expected a JSON object such as {\"attributes\": {\"user_id\": \"42\"}}",
            ));
        }
        let mut json = serde_json::Deserializer::from_slice(bytes);
        let body = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| Problem::bad_body(&error.path().to_string(), error.inner().to_string()))?;
        json.end().map_err(|error| Problem::bad_body(".", error.to_string()))?;
        Ok(body)
    }
}

const fn one() -> u64 {
    1
}

fn cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let cost = u64::deserialize(deserializer)?;
    if cost > MAX_EXACT {
        let expected = format!("a whole number from 0 to {MAX_EXACT}");
        return Err(D::Error::invalid_value(Unexpected::Unsigned(cost), &expected.as_str()));
    }
    Ok(cost)
}

/// The facts of a request: a flat object of strings, numbers and booleans.
#[derive(Debug, Default)]
pub(crate) struct Attributes<'a>(pub(crate) Descriptor<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AttributesVisitor(PhantomData)).map(Attributes)
    }
}

struct AttributesVisitor<'a>(PhantomData<Descriptor<'a>>);

impl<'de: 'a, 'a> Visitor<'de> for AttributesVisitor<'a> {
    type Value = Descriptor<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of attributes, such as {\"user_id\": \"42\"}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Descriptor<'a>, A::Error> {
        let mut request = Descriptor::new();
        while let Some(Text(name)) = map.next_key::<Text<'de>>()? {
            let Text(value) = map.next_value::<Text<'de>>()?;
            if request.get(&name).is_some() {
                return Err(A::Error::custom(format!("attribute `{name}` is given twice")));
            }
            if request.facts().count() == MOST_ATTRIBUTES {
                return Err(A::Error::custom(format!("a request has at most {MOST_ATTRIBUTES} attributes")));
            }
            request.set(name, value);
        }
        Ok(request)
    }
}

/// A string, or a number or boolean as text; borrowed from the body where it stands there as it is.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a number or a boolean")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }

            fn visit_bool<E>(self, truth: bool) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(if truth { "true" } else { "false" })))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }
        }

        deserializer.deserialize_any(TextVisitor)
    }
}

/// The answer of `/v1/check` and `/v1/peek`.
#[derive(Debug, Serialize)]
pub struct DecisionBody<'a> {
    allowed: bool,
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    delay_ms: u64,
    violated_tier: Option<&'static str>,
    violated_rule: Option<&'a str>,
    decision_id: String,
    degraded: Option<()>,
    limits: Vec<LimitBody<'a>>,
}

/// One rule's part in it.
#[derive(Debug, Serialize)]
struct LimitBody<'a> {
    rule: &'a str,
    key: String,
    scope: &'static str,
    plan: Option<&'a str>,
    allowed: bool,
    limit: u64,
    remaining: u64,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    mode: &'static str,
}

impl<'a> DecisionBody<'a> {
    /// The answer to a request, as JSON has it: waits in milliseconds, rounded up.
    pub fn new(answer: &'a Answer, request: &Descriptor<'_>, decision_id: String) -> Self {
        let violated = answer.speaker().filter(|_| !answer.allowed());
        let rule = |tier: &Tier| answer.rules().rule(tier.rule);
        DecisionBody {
            allowed: answer.allowed(),
            limit: answer.limit(),
            remaining: answer.remaining(),
            retry_after_ms: answer.retry_after().map(Micros::ceil_millis),
            reset_after_ms: answer.reset_after().ceil_millis(),
            delay_ms: answer.delay().ceil_millis(),
            violated_tier: violated.map(|tier| rule(tier).scope().as_str()),
            violated_rule: violated.map(|tier| rule(tier).label()),
            decision_id,
            degraded: None,
            limits: answer.tiers().iter().map(|tier| LimitBody::new(answer, tier, request)).collect(),
        }
    }
}

impl<'a> LimitBody<'a> {
    fn new(answer: &'a Answer, tier: &Tier, request: &Descriptor<'_>) -> Self {
        let (rule, verdict) = (answer.rules().rule(tier.rule), &tier.verdict);
        LimitBody {
            rule: rule.label(),
            key: rule.key(request).to_string(),
            scope: rule.scope().as_str(),
            plan: rule.plan(),
            allowed: verdict.allowed,
            limit: verdict.limit,
            remaining: verdict.remaining,
            retry_after_ms: verdict.retry_after.map(Micros::ceil_millis),
            reset_after_ms: verdict.reset_after.ceil_millis(),
            mode: match tier.enforcement {
                Enforcement::Enforce => "enforce",
                Enforcement::Shadow => "shadow",
            },
        }
    }
}
