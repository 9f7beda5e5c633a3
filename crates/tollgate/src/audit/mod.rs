//! Violations: refusals on record.
//!
//! A refusal is added to [`Violations`], a bounded table in memory, and the decision goes on. A writer takes what has
//! come together every second, one record for each bucket and second, and writes it to a database in batches. What
//! finds no room is dropped and counted:
//!
//! ```text
//! produced == written + dropped + pending
//! ```
//!
//! counts refusals, not records, and holds whatever happens to the database. `written` is a promise: so many are
//! in the database. Where the answer to an insert is lost, the writer finds out: it tries again, and what has arrived
//! already is not written twice. Only what is being written when a shutdown runs out of time is counted as dropped
//! though it may have arrived: then the database has up to a batch more than `written` says, never less.

#[cfg(feature = "sql")]
mod hash;
mod instant;
#[cfg(feature = "sql")]
mod log;
#[cfg(feature = "sql")]
mod query;
mod queue;
#[cfg(feature = "sql")]
mod retention;
mod violation;
#[cfg(feature = "sql")]
mod write;
#[cfg(feature = "sql")]
mod writer;

pub use instant::{InstantError, instant, instant_text};
pub use queue::{Violations, WriteOutcome};
pub use violation::{MAX_TEXT, Violation};
#[cfg(feature = "sql")]
pub use {
    hash::Pseudonyms,
    log::ViolationLog,
    query::{Cursor, CursorError, FoundViolation, MAX_PAGE, ViolationFilter, ViolationPage},
    retention::Retention,
    writer::{Writer, WriterOptions},
};

use serde::Serialize;
#[cfg(feature = "sql")]
pub use tollgate_core::SecretError;

/// How many requests were refused, and what became of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ViolationStats {
    /// Refusals so far.
    pub produced: u64,
    /// Those in the database.
    pub written: u64,
    /// Those that found no room, or could not be written.
    pub dropped: u64,
    /// Those on their way.
    pub pending: u64,
}
