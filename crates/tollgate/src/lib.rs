//! A rate limiter for fleets: exact limits over any number of nodes, or in one process.
//!
//! [`Limiter`] decides requests by rules: it matches a [`Descriptor`] to the rules of a file ([`rules`]), charges
//! all their buckets or none, and answers with the binding limit. [`Gate`] is the small form, one limit and
//! keys of your own. Both keep their buckets in a [`Store`]; [`MemoryStore`] is the one in this process.
//!
//! ```
//! use tollgate::{Descriptor, Limiter, MemoryStore, rules};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = rules::parse("rules.yaml", "rules: [{ key: 'user:{user_id}', limit: 10/s burst 50 }]")?;
//! let limiter = Limiter::new(rules, MemoryStore::new());
//! let answer = limiter.check(&Descriptor::new().with("user_id", "42")).await;
//! assert!(answer.allowed());
//! assert_eq!(answer.remaining(), Some(49));
//! # Ok(()) }
//! ```
//!
//! A refusal is a value, not an error: [`Decision`] says how long to wait. While the store is unavailable, each rule's
//! failure policy answers ([`Decision::degraded`]). [`replay`] runs a trace through rules in virtual time. [`core`] is the arithmetic beneath, which
//! reads no clock: tests turn a [`Clock::manual`].

pub mod audit;
mod clock;
mod decimal;
#[cfg(feature = "redis")]
pub mod doctor;
mod failure;
mod gate;
pub mod json;
mod key_seeds;
mod limiter;
mod meter;
pub mod plans;
pub mod replay;
mod request;
mod reserve;
pub mod rules;
#[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only a store in Redis counts nodes"))]
mod shares;
#[cfg(feature = "sql")]
pub mod sql;
mod store;
mod sync;

pub use audit::Violations;
pub use clock::Clock;
pub use decimal::{Decimal, DecimalError};
pub use failure::DegradedCount;
pub use gate::Gate;
pub use key_seeds::key_seeds;
pub use limiter::{Answer, BucketPreview, Explanation, Limiter, Snapshot};
pub use meter::{CLASSES_US, Histogram, HistogramCounts, StoreCalls};
pub use plans::Plans;
pub use request::Request;
pub use reserve::{
    Reservation, ReservationId, ReservationIdError, ReservationLimit, ReserveError, Reserved, SettleError,
    Settled,
};
pub use shares::Shares;
#[cfg(feature = "redis")]
pub use store::leased::{Held, LeaseStats, LeasedStore};
#[cfg(feature = "redis")]
pub use store::redis::{RedisBuilder, RedisConfigError, RedisStats, RedisStore};
pub use store::{AnyStore, Bounds, Call, Deadline, MemoryStats, MemoryStore, Store};
pub use tollgate_core as core;
pub use tollgate_core::limit::Ticks;
pub use tollgate_core::{
    AlgorithmName, Decision, Descriptor, Limit, LimitError, Micros, Op, Outcome, Rule, RuleSet, Status,
    StoreError, Tier, Tiers, Timestamp, Verdict,
};

/// The snippets of the README and of the guide, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/guide/library.md")]
#[cfg_attr(feature = "sql", doc = include_str!("../../../docs/guide/plans.md"))]
#[cfg_attr(feature = "sql", doc = include_str!("../../../docs/guide/violations.md"))]
#[cfg_attr(feature = "sql", doc = include_str!("../../../docs/guide/rules-in-a-database.md"))]
struct Snippets;
