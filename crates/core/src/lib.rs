//! The pure heart of tollgate.
//!
//! Descriptors, limits, rules, matching, the arithmetic of every algorithm, verdicts, decisions and header
//! values. No I/O, no clock, no async: time is an argument, and the same input gives the same output on every
//! machine. Stores and servers are in the crates around it.
//!
//! ```text
//! Descriptor --RuleSet::ruling--> Hits --a store, by algorithm::Bucket--> Verdicts --> Decision --> headers
//! ```

#![forbid(unsafe_code)]

pub mod algorithm;
pub mod lease;
pub mod limit;
pub mod rule;
pub mod suggest;

mod condition;
mod decision;
mod descriptor;
mod glob;
mod headers;
mod index;
mod key;
mod ruleset;
mod time;
mod verdict;

pub use condition::{Condition, ConditionError};
pub use decision::{Decision, Degraded, Loss, Outcome, Tier, Verdicts};
pub use descriptor::{Descriptor, Value};
pub use glob::Glob;
pub use headers::{
    HeaderField, HeaderForm, HeaderSet, PartitionSecret, RateLimitHeaders, ResetForm, SecretError,
};
pub use key::{Key, KeyPattern, PatternError, Scope, Space};
pub use limit::{AlgorithmName, Limit, LimitError};
pub use rule::{Draft, Rule};
pub use ruleset::{Enforcement, Hit, Hits, Limited, Matched, RuleIndex, RuleSet, Ruling, SetError};
pub use time::{Micros, Timestamp};
pub use verdict::{Mark, Verdict};
