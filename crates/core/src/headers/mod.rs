//! Header values as data: what every HTTP surface tells a caller about its limits.
//!
//! A decision's numbers become the text of a few fields here, and nowhere else; surfaces only put them on their
//! answers. Which fields there are is the [`HeaderForm`]'s business:
//!
//! ```text
//! default    X-RateLimit-Limit, -Remaining, -Reset   the limit that speaks
//!            RateLimit-Policy, RateLimit             every enforcing one (draft-ietf-httpapi-ratelimit-headers-10)
//! draft-06   RateLimit-Limit, -Remaining, -Reset     the limit that speaks
//! draft-03   X-RateLimit-Limit, -Remaining, -Reset   the same, with every enforcing one behind the limit
//! none
//! ```
//!
//! `Retry-After` is HTTP's own and belongs to every form.

mod form;
mod partition;
mod text;

use std::ops::Range;

use smallvec::SmallVec;

pub use form::{HeaderForm, HeaderSet, ResetForm};
pub use partition::{PartitionSecret, SecretError};

use crate::decision::Decision;
use crate::ruleset::RuleSet;
use crate::time::Timestamp;

/// The headers of an answer to which a limit applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimitHeaders {
    /// All values, one behind the other: they travel in one piece of memory.
    text: String,
    /// Which there are, and where each ends.
    fields: SmallVec<[(HeaderField, usize); 5]>,
    retry_after: Option<u64>,
}

/// A header that tells about limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeaderField {
    /// `X-RateLimit-Limit`
    XLimit,
    /// `X-RateLimit-Remaining`
    XRemaining,
    /// `X-RateLimit-Reset`
    XReset,
    /// `RateLimit-Policy`
    Policy,
    /// `RateLimit`
    State,
    /// `RateLimit-Limit`
    Limit,
    /// `RateLimit-Remaining`
    Remaining,
    /// `RateLimit-Reset`
    Reset,
}

impl HeaderField {
    /// Its name, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            HeaderField::XLimit => "x-ratelimit-limit",
            HeaderField::XRemaining => "x-ratelimit-remaining",
            HeaderField::XReset => "x-ratelimit-reset",
            HeaderField::Policy => "ratelimit-policy",
            HeaderField::State => "ratelimit",
            HeaderField::Limit => "ratelimit-limit",
            HeaderField::Remaining => "ratelimit-remaining",
            HeaderField::Reset => "ratelimit-reset",
        }
    }

    /// Whether services behind one another each add their items. The others hold one number.
    pub const fn is_a_list(self) -> bool {
        matches!(self, HeaderField::Policy | HeaderField::State)
    }
}

impl RateLimitHeaders {
    /// The default set for a decision made at `now`; none where no limit applied. [`HeaderForm::headers`] has the others.
    pub fn of(decision: &Decision, rules: &RuleSet, now: Timestamp) -> Option<Self> {
        HeaderForm::DEFAULT.headers(decision, rules, None, now)
    }

    /// The fields and their values.
    pub fn fields(&self) -> impl Iterator<Item = (HeaderField, &str)> {
        self.places().map(|(field, place)| (field, &self.text[place]))
    }

    /// One value, if the form has that field.
    pub fn get(&self, field: HeaderField) -> Option<&str> {
        self.fields().find(|(known, _)| *known == field).map(|(_, value)| value)
    }

    /// `Retry-After`, where a request did not pass and a wait helps: whole seconds.
    pub const fn retry_after(&self) -> Option<u64> {
        self.retry_after
    }

    /// The fields and where in the [text](Self::into_text) their values are, for surfaces that share its memory.
    pub fn places(&self) -> impl Iterator<Item = (HeaderField, Range<usize>)> + use<> {
        let mut start = 0;
        self.fields
            .clone()
            .into_iter()
            .map(move |(field, end)| (field, std::mem::replace(&mut start, end)..end))
    }

    /// All values, one behind the other: printable ASCII.
    pub fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests;
