//! What must happen when the store or time misbehaves: one real Redis, and everything that can befall it.
//!
//! Tests wait for states, never for a time to pass. Where a time is asserted, it is a generous bound on what must not
//! happen; how fast things are stands in `bench/`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod across;
mod alarms;
mod answers;
mod cluster;
mod doctor;
mod losses;
mod middleware;
mod node;
mod outages;
mod policies;
mod refusals;
mod secrets;
mod sentinels;
mod settle;
mod time;
