//! A rate limiter: every request pays a token at the gate or is told when to return.
//!
//! [`Limiter`] decides requests by rules: it matches a [`Descriptor`] to the rules of a file ([`rules`]), charges
//! all their buckets or none, and answers with the limit that speaks. [`Gate`] is the small form, one limit and
//! keys of your own. Both keep their buckets in a [`Store`]; [`MemoryStore`] is the one in this process.
//!
//! ```
//! use tollgate::{Descriptor, Limiter, MemoryStore, rules};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = rules::parse("rules.yaml", "rules: [{ key: 'user:{user_id}', limit: 10/s burst 50 }]")?;
//! let limiter = Limiter::new(rules, MemoryStore::new());
//! let answer = limiter.check(&Descriptor::new().with("user_id", "42"), 1).await;
//! assert!(answer.allowed());
//! assert_eq!(answer.remaining(), Some(49));
//! # Ok(()) }
//! ```
//!
//! A refusal is a value, not an error: [`Decision`] says how long to wait. So is a store that cannot be asked: each
//! rule says what happens then ([`Decision::degraded`]). [`replay`] runs a trace through rules in virtual time. [`core`] is the arithmetic beneath, which
//! reads no clock: tests turn a [`Clock::manual`].

pub mod audit;
mod clock;
mod decimal;
#[cfg(feature = "redis")]
pub mod doctor;
mod failure;
mod gate;
pub mod json;
mod key_hash;
mod limiter;
mod meter;
pub mod plans;
pub mod replay;
mod reserve;
pub mod rules;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub mod sql;
mod store;
mod sync;

pub use audit::Violations;
pub use clock::Clock;
pub use decimal::{Decimal, DecimalError};
pub use failure::DegradedCount;
pub use gate::Gate;
pub use limiter::{Answer, Explanation, Limiter, Outlook, Snapshot};
pub use meter::{CLASSES_US, Histogram, HistogramCounts, StoreCalls};
pub use plans::Plans;
pub use reserve::{ReservationId, ReservationIdError, ReserveError, Reserved, SettleError, Settled};
#[cfg(feature = "redis")]
pub use store::leased::{Held, LeaseStats, LeasedStore};
#[cfg(feature = "redis")]
pub use store::redis::{RedisBuilder, RedisConfigError, RedisStats, RedisStore};
pub use store::{
    About, AnyStore, Bounds, Difference, Due, MemoryStats, MemoryStore, NoteName, Store, StoreError,
};
pub use tollgate_core as core;
pub use tollgate_core::limit::Ticks;
pub use tollgate_core::{
    AlgorithmName, Decision, Descriptor, Hit, Limit, LimitError, Micros, Outcome, Rule, RuleSet, Tier,
    Timestamp, Verdict,
};

/// The snippets of the README and of the guide, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/guide/library.md")]
#[cfg_attr(feature = "sqlite", doc = include_str!("../../../docs/guide/plans.md"))]
#[cfg_attr(feature = "sqlite", doc = include_str!("../../../docs/guide/violations.md"))]
#[cfg_attr(feature = "sqlite", doc = include_str!("../../../docs/guide/rules-in-a-database.md"))]
struct Snippets;
