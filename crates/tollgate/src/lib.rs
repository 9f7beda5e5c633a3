//! A rate limiter that is exact, fast and calm.

mod clock;
mod gate;
mod limiter;
pub mod replay;
pub mod rules;
mod store;
mod sync;

pub use clock::Clock;
pub use gate::Gate;
pub use limiter::{Answer, Explanation, Limiter, Snapshot};
pub use store::{AnyStore, Bounds, MemoryStats, MemoryStore, Store, StoreError};
pub use tollgate_core as core;
pub use tollgate_core::limit::Ticks;
pub use tollgate_core::{
    AlgorithmName, Decision, Descriptor, Hit, Limit, LimitError, Micros, Outcome, Rule, RuleSet, Tier,
    Timestamp, Verdict,
};
