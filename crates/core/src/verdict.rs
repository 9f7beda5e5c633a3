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
    /// The instant of the store's clock at which the bucket answered; an undo of the charge names it.
    pub at: Timestamp,
}

/// No bucket was asked.
const NOWHEN: Timestamp = Timestamp::from_micros(0);

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
        at: NOWHEN,
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
            at: NOWHEN,
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
            at: NOWHEN,
        }
    }
}
