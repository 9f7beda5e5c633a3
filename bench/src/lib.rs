//! What the benchmarks and the test of instruction counts share: the contenders, the callers they decide about,
//! and sets of rules.

pub mod contender;
pub mod instructions;
pub mod mixed;
#[cfg(feature = "peers")]
pub mod peers;
#[cfg(feature = "violations")]
pub mod processor;
pub mod window_accuracy;
