//! Violations and plans in real databases: what is written is found, whatever happens to the database.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod databases;
mod faults;
mod lost_replies;
mod plans;
mod recorded;
mod violations;
