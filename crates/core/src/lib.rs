//! The pure core of tollgate.
//!
//! Descriptors, limits, rules, matching, the arithmetic of every algorithm, verdicts, decisions and header
//! values. No I/O, no clock, no async: time is an argument, and the same input gives the same output on every
//! machine. Stores and servers are in the crates around it.
//!
//! ```text
//! Descriptor --RuleSet::tiers--> Tiers --a store, by algorithm::Bucket--> the same Tiers --> Decision --> headers
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
mod key;
mod path;
mod ruleset;
mod tier;
mod time;

pub use condition::{Condition, ConditionError};
pub use decision::{Decision, Degraded, Status};
pub use descriptor::{Descriptor, Value};
pub use glob::Glob;
pub use headers::{
    HeaderField, HeaderForm, HeaderSet, PartitionSecret, RateLimitHeaders, ResetForm, SecretError,
};
pub use key::{Key, KeyPattern, KeySeeds, PatternError, Scope, Space};
pub use limit::{AlgorithmName, Limit, LimitError};
pub use rule::{Draft, Rule};
pub use ruleset::{Matched, RuleIndex, RuleSet, Ruling, SetError};
pub use tier::{Enforcement, Growth, Holder, KeyHash, Op, Outcome, StoreError, Tier, Tiers, Verdict};
pub use time::{Micros, Timestamp};
