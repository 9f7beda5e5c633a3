//! Header values as data: what every HTTP surface tells a caller about its limits.
//!
//! `X-RateLimit-*` carry the numbers of the limit that speaks. `RateLimit-Policy` and `RateLimit` list every
//! enforcing one as structured fields (draft-ietf-httpapi-ratelimit-headers-10).

use std::fmt::Write as _;

use crate::decision::{Decision, Outcome, Tier};
use crate::limit::Limit;
use crate::ruleset::{Enforcement, RuleSet};
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
    /// The headers of a decision made at `now`; none where no limit spoke: nothing matched, or a rule blocks.
    pub fn of(decision: &Decision, rules: &RuleSet, now: Timestamp) -> Option<Self> {
        let speaker = decision.speaker().filter(|_| decision.outcome() != Outcome::Denied)?;
        let reset = now.after(decision.reset_after());
        let mut headers = RateLimitHeaders {
            limit: speaker.verdict.limit,
            remaining: speaker.verdict.remaining,
            reset: Micros::new(u64::try_from(reset.as_micros()).unwrap_or(0)).ceil_secs(),
            policy: String::new(),
            state: String::new(),
            retry_after: retry_after(decision, speaker),
        };
        for tier in decision.tiers().iter().filter(|tier| tier.enforcement == Enforcement::Enforce) {
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
        push_integer(&mut self.policy, "q", tier.verdict.limit);
        if let Some(window) = limit.and_then(window_secs) {
            push_integer(&mut self.policy, "w", window);
        }
        push_string(&mut self.state, label);
        push_integer(&mut self.state, "r", tier.verdict.remaining);
        if let Some(more_after) = tier.verdict.more_after {
            push_integer(&mut self.state, "t", more_after.ceil_secs());
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
    out.push('"');
}

fn push_integer(out: &mut String, name: &str, value: u64) {
    let _ = write!(out, ";{name}={}", value.min(MAX_FIELD_INTEGER));
}
