//! One bucket's answer.

use crate::time::{Micros, Timestamp};

/// What one bucket says to a request: may it pass, and the numbers a caller is told.
///
/// `remaining`, `reset_after` and `more_after` describe the bucket after the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Whether this bucket lets the request pass.
    pub allowed: bool,
    /// The most it ever holds: capacity, the window's limit, or queue + 1.
    pub limit: u64,
    /// The largest cost it would admit now. Rounds down.
    pub remaining: u64,
    /// The least wait after which the same request would pass if nobody else spends; zero when allowed,
    /// `None` when no wait helps.
    pub retry_after: Option<Micros>,
    /// The least wait after which the bucket is as good as new.
    pub reset_after: Micros,
    /// How long an admitted request must be held before it goes on (leaky buckets).
    pub delay: Micros,
    /// The wait until `remaining` grows; `None` when it is as large as it gets.
    pub more_after: Option<Micros>,
    /// What an undo of the charge names.
    pub mark: Mark,
}

/// Where a charge stands among all that was charged to its bucket: an undo names it, and gives back no more than time has
/// not given back already.
///
/// Of a window or a log it is the instant of the charge. A bucket that refills is paid back in the order of its charges:
/// here it is the instant from which on time pays back this one, and how much of the microsecond after it still goes to
/// those before, in the bucket's own units. Of a log that was charged on a lease it is an instant no later than the entry:
/// then the oldest entries since are touched, and none that would have counted for longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark {
    /// The instant, on the store's clock.
    pub at: Timestamp,
    /// What of the microsecond after it belongs to earlier charges. Of a log: not 0 if any entry since may be meant.
    pub rest: u64,
}

impl Mark {
    /// A whole instant.
    pub const fn at(at: Timestamp) -> Self {
        Mark { at, rest: 0 }
    }

    /// This instant or later.
    pub const fn since(at: Timestamp) -> Self {
        Mark { at, rest: 1 }
    }
}

/// No bucket was asked.
const NOWHEN: Mark = Mark::at(Timestamp::from_micros(0));

impl Verdict {
    /// The verdict of a rule that blocks outright: nothing is left and no wait helps.
    pub const DENIED: Verdict = Verdict {
        allowed: false,
        limit: 0,
        remaining: 0,
        retry_after: None,
        reset_after: Micros::ZERO,
        delay: Micros::ZERO,
        more_after: None,
        mark: NOWHEN,
    };

    /// The verdict of a rule that lets everything pass while nobody knows its bucket.
    pub const fn open(limit: u64) -> Verdict {
        Verdict {
            allowed: true,
            limit,
            remaining: limit,
            retry_after: Some(Micros::ZERO),
            reset_after: Micros::ZERO,
            delay: Micros::ZERO,
            more_after: None,
            mark: NOWHEN,
        }
    }

    /// The verdict of a rule that lets nothing pass while nobody knows its bucket; it is worth asking again then.
    pub const fn closed(limit: u64, retry_after: Micros) -> Verdict {
        Verdict {
            allowed: false,
            limit,
            remaining: 0,
            retry_after: Some(retry_after),
            reset_after: Micros::ZERO,
            delay: Micros::ZERO,
            more_after: None,
            mark: NOWHEN,
        }
    }
}
