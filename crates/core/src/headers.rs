//! Header values as data: what every HTTP surface tells a caller about its limits.
//!
//! `X-RateLimit-*` carry the numbers of the limit that speaks. `RateLimit-Policy` and `RateLimit` list every
//! enforcing one as structured fields (draft-ietf-httpapi-ratelimit-headers-10).

use std::fmt::Write as _;

use crate::decision::{Decision, Outcome, Tier};
use crate::limit::Limit;
use crate::ruleset::RuleSet;
use crate::time::{Micros, Timestamp};

/// Structured fields allow integers of at most 15 digits.
const MAX_FIELD_INTEGER: u64 = 999_999_999_999_999;

/// The headers of an answer to which a limit applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimitHeaders {
    /// `X-RateLimit-Limit`
    pub limit: u64,
    /// `X-RateLimit-Remaining`
    pub remaining: u64,
    /// `X-RateLimit-Reset`: Unix seconds at which the bucket is full or the window over.
    pub reset: u64,
    /// `RateLimit-Policy`
    pub policy: String,
    /// `RateLimit`
    pub state: String,
    /// `Retry-After`, on refusals that a wait cures.
    pub retry_after: Option<u64>,
}

impl RateLimitHeaders {
    /// The headers of a decision made at `now`; none where no limit spoke: nothing matched, a rule blocks, or the store
    /// was away and nobody knows the numbers.
    pub fn of(decision: &Decision, rules: &RuleSet, now: Timestamp) -> Option<Self> {
        let has_numbers = !matches!(decision.outcome(), Outcome::Denied | Outcome::Unavailable);
        let speaker = decision.speaker().filter(|_| has_numbers)?;
        let reset = now.after(decision.reset_after());
        let mut headers = RateLimitHeaders {
            limit: speaker.verdict.limit,
            remaining: speaker.verdict.remaining,
            reset: Micros::new(u64::try_from(reset.as_micros()).unwrap_or(0)).ceil_secs(),
            policy: String::with_capacity(64 * decision.tiers().len()),
            state: String::with_capacity(64 * decision.tiers().len()),
            retry_after: retry_after(decision, speaker),
        };
        for tier in decision.tiers().iter().filter(|tier| tier.speaks()) {
            let rule = rules.rule(tier.rule);
            headers.push(rule.label(), rule.limit(), tier);
        }
        Some(headers)
    }

    fn push(&mut self, label: &str, limit: Option<&Limit>, tier: &Tier) {
        if !self.policy.is_empty() {
            self.policy.push_str(", ");
            self.state.push_str(", ");
        }
        push_string(&mut self.policy, label);
        push_integer(&mut self.policy, ";q=", tier.verdict.limit);
        if let Some(window) = limit.and_then(window_secs) {
            push_integer(&mut self.policy, ";w=", window);
        }
        push_string(&mut self.state, label);
        push_integer(&mut self.state, ";r=", tier.verdict.remaining);
        if let Some(more_after) = tier.verdict.more_after {
            push_integer(&mut self.state, ";t=", more_after.ceil_secs());
        }
    }
}

/// Whole seconds, at least 1, and not before the speaking limit has anything to give.
fn retry_after(decision: &Decision, speaker: &Tier) -> Option<u64> {
    if decision.outcome() != Outcome::Refused {
        return None;
    }
    let wait = decision.retry_after()?.max(speaker.verdict.more_after.unwrap_or(Micros::ZERO));
    Some(wait.ceil_secs().max(1))
}

/// The window of a policy in whole seconds; none below one second, where only the quota says something.
fn window_secs(limit: &Limit) -> Option<u64> {
    use crate::limit::Algorithm;
    let window = limit.time_to_full();
    let is_window = !matches!(
        limit.algorithm(),
        Algorithm::TokenBucket(_) | Algorithm::TokenBucketInterval(_) | Algorithm::LeakyBucket { .. }
    );
    (!is_window || window.get() >= 1_000_000).then(|| window.ceil_secs())
}

/// A structured-field String; what it cannot hold is percent-encoded.
fn push_string(out: &mut String, text: &str) {
    out.push('"');
    let stands_for_itself = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if text.bytes().all(stands_for_itself) {
        out.push_str(text);
    } else {
        push_escaped(out, text);
    }
    out.push('"');
}

fn push_escaped(out: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                out.push('\\');
                out.push(character);
            }
            ' '..='~' => out.push(character),
            other => {
                let mut buffer = [0; 4];
                for byte in other.encode_utf8(&mut buffer).bytes() {
                    let _ = write!(out, "%{byte:02X}");
                }
            }
        }
    }
}

fn push_integer(out: &mut String, name: &str, value: u64) {
    out.push_str(name);
    out.push_str(itoa::Buffer::new().format(value.min(MAX_FIELD_INTEGER)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Answer, Bucket, Demand, Window};
    use crate::decision::Verdicts;
    use crate::descriptor::Descriptor;
    use crate::rule::Draft;
    use crate::ruleset::Ruling;

    /// The headers of rules (name, limit, algorithm) after `cost` was asked of each fresh bucket.
    fn headers(rules: &[(&str, &str, &str)], cost: u64, now: i64) -> Option<RateLimitHeaders> {
        let draft = |(name, limit, algorithm): &(&str, &str, &str)| Draft {
            name: Some((*name).to_owned()),
            key: "global".to_owned(),
            limit: Some((*limit).to_owned()),
            algorithm: (!algorithm.is_empty()).then(|| (*algorithm).to_owned()),
            ..Draft::default()
        };
        let rules = RuleSet::new(rules.iter().map(|rule| draft(rule).build().unwrap()).collect()).unwrap();
        let request = Descriptor::new();
        let Ruling::Limited(limited) = rules.ruling(&request, cost, Micros::MAX) else { panic!("limits") };
        let now = Timestamp::from_micros(now);
        let verdicts: Verdicts = limited
            .hits
            .iter()
            .map(|hit| {
                let mut bucket = Bucket::open(hit.limit, None, now, Window::Own);
                let answer = bucket.ask(Demand { cost, patience: Micros::MAX });
                if let Answer::Pass { .. } = answer {
                    bucket.take(cost);
                }
                bucket.verdict(answer)
            })
            .collect();
        RateLimitHeaders::of(&Decision::strictest(&rules, &limited, &verdicts), &rules, now)
    }

    #[test]
    fn every_enforcing_limit_is_listed_and_the_speaker_gives_the_numbers() {
        let rules = [("per-user", "10/s burst 50", ""), ("global", "50000/s burst 100000", "")];
        let headers = headers(&rules, 38, 0).unwrap();
        assert_eq!((headers.limit, headers.remaining, headers.reset), (50, 12, 4));
        assert_eq!(headers.policy, r#""per-user";q=50;w=5, "global";q=100000;w=2"#);
        assert_eq!(headers.state, r#""per-user";r=12;t=1, "global";r=99962;t=1"#);
        assert_eq!(headers.retry_after, None);
    }

    #[test]
    fn windows_below_a_second_have_no_w_and_a_full_bucket_no_t() {
        let rules = [("short", "5/100ms", "fixed_window"), ("log", "5/2s", "sliding_window_log")];
        let headers = headers(&rules, 0, 0).unwrap();
        assert_eq!(headers.policy, r#""short";q=5, "log";q=5;w=2"#);
        assert_eq!(headers.state, r#""short";r=5, "log";r=5"#);
    }

    #[test]
    fn a_refusal_that_no_wait_cures_has_no_retry_after() {
        assert_eq!(headers(&[("small", "10/s burst 5", "")], 6, 0).unwrap().retry_after, None);
    }

    #[test]
    fn any_name_and_number_make_a_structured_field() {
        let hostile = r#"a "quoted" \ näme"#;
        let rules = [(hostile, "9007199254740991/s", "fixed_window")];
        let headers = headers(&rules, 1, 1_800_000_000_000_000).unwrap();
        for field in [&headers.policy, &headers.state] {
            let list: sfv::List = sfv::Parser::new(field.as_str()).parse().unwrap();
            assert_eq!(list.len(), 1, "{field}");
        }
        assert!(headers.policy.contains(";q=999999999999999"), "{}", headers.policy);
        assert!(headers.policy.is_ascii());
    }
}
