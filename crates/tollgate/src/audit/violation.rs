//! A violation: one recorded refusal, or several of the same bucket within a second.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};
use tollgate_core::limit::Algorithm;
use tollgate_core::{Descriptor, Key, Limit, Timestamp, Value, Verdict};

use crate::Decimal;
use crate::limiter::Answer;

/// The most bytes of a text that are kept; callers choose what is in them.
pub const MAX_TEXT: usize = 256;

/// Refusals of one second that have the same bucket, user, address and endpoint.
///
/// Beyond [a bounded number](super::Violations) of such combinations, a record counts several of them: what its requests do
/// not have in common is `None`, so that a record never attributes one caller's requests to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// The bucket as people read it: `user:42`.
    pub bucket_key: String,
    /// Who asked.
    pub user_id: Option<String>,
    /// From where.
    pub ip_address: Option<String>,
    /// For what.
    pub endpoint: Option<String>,
    /// When the first of them asked.
    #[serde(with = "rfc3339")]
    pub requested_at: Timestamp,
    /// What the bucket had left then.
    pub tokens_at_time: Decimal,
    /// The row of the rule of the binding limit, where it has one.
    pub rule_id: Option<i64>,
    /// The rule of the binding limit.
    pub rule_name: String,
    /// How many requests were refused.
    pub count: u64,
}

impl Violation {
    /// The first refusal of a bucket in its second.
    ///
    /// # Panics
    ///
    /// The answer is not a refusal: the caller has checked.
    pub(super) fn new(request: &Descriptor<'_>, answer: &Answer) -> Self {
        let binding = answer.binding_limit().expect("a refusal has a binding limit");
        let rule = answer.rules().rule(binding.rule);
        Violation {
            bucket_key: shown(&rule.key(request)),
            user_id: fact(request, "user_id"),
            ip_address: fact(request, "ip"),
            endpoint: fact(request, "endpoint"),
            requested_at: answer.at(),
            tokens_at_time: tokens(rule.limit(), binding.verdict()),
            rule_id: rule.id(),
            rule_name: kept(rule.label()).into_owned(),
            count: 1,
        }
    }

    /// Drops what a further request does not share.
    pub(super) fn keep_common(&mut self, request: &Descriptor<'_>) {
        let named =
            [("user_id", &mut self.user_id), ("ip", &mut self.ip_address), ("endpoint", &mut self.endpoint)];
        for (name, known) in named {
            if known.is_some() && *known != fact(request, name) {
                *known = None;
            }
        }
    }

    /// Becomes what this and another part of the same second have in common.
    pub(super) fn merge(&mut self, other: Violation) {
        if other.requested_at < self.requested_at {
            (self.requested_at, self.tokens_at_time) = (other.requested_at, other.tokens_at_time);
        }
        let facts = [
            (&mut self.user_id, other.user_id),
            (&mut self.ip_address, other.ip_address),
            (&mut self.endpoint, other.endpoint),
        ];
        for (known, other) in facts {
            if *known != other {
                *known = None;
            }
        }
    }
}

/// The tokens a bucket has left. Those of a token bucket have decimals: it lacks what refills within `reset_after`. That
/// wait is rounded up to a microsecond, so the tokens are rounded down.
fn tokens(limit: Option<&Limit>, verdict: &Verdict) -> Decimal {
    const MILLION: u128 = 1_000_000;
    let whole = u128::from(verdict.remaining) * MILLION;
    let left = match limit.map(Limit::algorithm) {
        Some(Algorithm::TokenBucket(refill)) => {
            let debt = u128::from(verdict.reset_after.get()) * u128::from(refill.rate()) * MILLION;
            let lacking = debt.div_ceil(u128::from(refill.units()));
            (u128::from(refill.capacity()) * MILLION).saturating_sub(lacking)
        }
        _ => whole,
    };
    let is_plausible = (whole..whole + MILLION).contains(&left);
    Decimal::from_millionths(if is_plausible { left } else { whole })
}

fn fact(request: &Descriptor<'_>, name: &str) -> Option<String> {
    request.get(name).map(|value| match value {
        Value::Borrowed(text) => kept(text).into_owned(),
        Value::Owned(text) => kept(text).into_owned(),
        Value::Ip(address) => address.to_string(),
    })
}

/// The beginning of a key as people read it. Nothing is written out only to be cut off.
fn shown(key: &Key<'_>) -> String {
    let mut beginning = Beginning(String::new());
    let _ = write!(beginning, "{key}"); // an error is where it was cut
    beginning.0
}

struct Beginning(String);

impl fmt::Write for Beginning {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let part = &text[..text.floor_char_boundary(MAX_TEXT - self.0.len())];
        self.0.push_str(part);
        if part.len() < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// A text as it is recorded: its first [`MAX_TEXT`] bytes, and no NUL, which PostgreSQL has no room for.
pub(super) fn kept(text: &str) -> Cow<'_, str> {
    let text = &text[..text.floor_char_boundary(MAX_TEXT)];
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{2400}")) } else { Cow::Borrowed(text) }
}

/// Whether a recorded text is an address, rather than a pseudonym or something else that a caller sent.
#[cfg(feature = "sql")]
pub(super) fn is_address(text: &str) -> bool {
    text.parse::<std::net::IpAddr>().is_ok()
}

/// Instants as people and JSON write them: `2026-11-03T12:00:00.123456Z`.
pub(super) mod rfc3339 {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
    use tollgate_core::Timestamp;

    pub(in crate::audit) fn serialize<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        super::super::instant::instant_text(*at).serialize(to)
    }

    pub(in crate::audit) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        let text = String::deserialize(from)?;
        super::super::instant::written(&text)
            .ok_or_else(|| D::Error::custom("expected a time like 2026-11-03T12:00:00Z"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_text_is_bounded_whole_characters_and_free_of_nul() {
        assert_eq!(kept("42"), "42");
        assert_eq!(kept("a\0b"), "a\u{2400}b");
        assert_eq!(kept(&"ä".repeat(1_000)), "ä".repeat(128));
        assert_eq!(kept(&format!("x{}", "ä".repeat(1_000))).len(), 255);
    }

    #[test]
    fn a_key_is_shown_as_far_as_there_is_room() {
        let pattern = tollgate_core::KeyPattern::parse("user:{user_id}:x").unwrap();
        let space = tollgate_core::Space::new(&[], pattern, 64);
        let key = |user_id: &str| shown(&space.key(&Descriptor::new().with("user_id", user_id.to_owned())));
        assert_eq!(key("42"), "user:42:x");
        assert_eq!(key(&"a".repeat(1_000_000)), format!("user:{}", "a".repeat(MAX_TEXT - 5)));
        assert_eq!(key(&"\n".repeat(1_000)).len(), MAX_TEXT);
    }

    #[test]
    fn a_violation_survives_json() {
        let violation = Violation {
            bucket_key: "user:42".into(),
            user_id: Some("42".into()),
            ip_address: None,
            endpoint: Some("/".into()),
            requested_at: Timestamp::from_micros(1_762_171_200_123_456),
            tokens_at_time: "2.5".parse().unwrap(),
            rule_id: None,
            rule_name: "per-user".into(),
            count: 7,
        };
        let json = serde_json::to_string(&violation).unwrap();
        assert!(
            json.contains(r#""requested_at":"2025-11-03T12:00:00.123456Z","tokens_at_time":2.5"#),
            "{json}"
        );
        assert_eq!(serde_json::from_str::<Violation>(&json).unwrap(), violation);
    }
}
