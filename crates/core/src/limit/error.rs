//! What makes no limit, said with what would.

use super::{MAX_LOG_ENTRIES, NotationError};
use crate::time::Micros;

/// Why numbers make no limit, and what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// The text is not in the notation.
    #[error(transparent)]
    Notation(#[from] NotationError),
    /// A number that must be at least 1 is 0.
    #[error("{what} is zero; the least is 1 (to block a caller outright write `action: deny`)")]
    Zero {
        /// Which number.
        what: &'static str,
    },
    /// A number is too large to be computed with exactly.
    #[error("{what} {given} is too large to stay exact; the largest accepted here is {largest}")]
    TooLarge {
        /// Which number.
        what: &'static str,
        /// What was asked for.
        given: u64,
        /// What would be accepted, the other numbers being as they are.
        largest: u64,
    },
    /// The period is beyond a leap year.
    #[error("period {given} is too long; the longest is 366d")]
    PeriodTooLong {
        /// What was asked for.
        given: Micros,
    },
    /// More requests than a log keeps.
    #[error(
        "a sliding window log keeps at most {MAX_LOG_ENTRIES} entries for a key, not {given}; use `sliding_window_counter` for larger limits"
    )]
    LogTooLong {
        /// What was asked for.
        given: u64,
    },
    /// The free part of a leaky bucket is larger than its queue.
    #[error("free {free} is more than the queue holds; the largest accepted here is {queue}")]
    FreeBeyondQueue {
        /// What was asked for.
        free: u64,
        /// The queue.
        queue: u64,
    },
    /// A calendar window that is no single day, week or month.
    #[error("a calendar window is one `d`, `week` or `month`, not `{given}`")]
    NotACalendarPeriod {
        /// What was asked for.
        given: String,
    },
    /// No such time zone.
    #[error("unknown time zone `{given}`; write a name of the IANA database such as `Europe/Berlin`")]
    UnknownTimeZone {
        /// What was asked for.
        given: String,
    },
}
