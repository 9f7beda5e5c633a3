//! Usage above the capacity of the limit in use.
//!
//! Two limits may be used on one bucket: nodes during a reload, callers that name different limits for one key. Usage
//! under the larger one does not fit the smaller one. If it were cut to the smaller capacity, returning to the larger
//! limit would find the bucket almost full again, and alternating between the two would admit without bound. So what
//! does not fit is kept beside the state, in whole tokens:
//!
//! ```text
//! 1000/s burst 1000      |=============== 950 used ================----|
//! 100/s burst 100        |====| 100 used, 850 excess
//! ```
//!
//! The limit in use ignores the excess in every number that it reports, so a lowered limit makes no caller wait longer
//! than that limit's own reset. Time repays the debt first and the excess afterwards, and no time is credited twice;
//! usage never exceeds the largest capacity in use. Hence in any interval T, admitted <= the largest capacity + the
//! largest rate * T, whatever the sequence of limits.

use crate::limit::MAX_EXACT;
use crate::time::Micros;

/// Excess is kept for at most this long after the last write.
pub const EXCESS_LIFETIME: Micros = Micros::new(366 * 86_400 * 1_000_000);

/// Tokens used above the capacity of a limit, and the numbers of that limit. Under other numbers, usage is divided anew
/// between state and excess.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excess {
    /// At least one.
    pub tokens: u64,
    /// The capacity of the limit.
    pub capacity: u64,
    /// What comes back in a period: units per microsecond of a continuous bucket, tokens per interval otherwise.
    pub refill: u64,
    /// Units in a token of a continuous bucket, the interval otherwise.
    pub period: u64,
}

impl Excess {
    pub(super) fn new(tokens: u64, capacity: u64, refill: u64, period: u64) -> Option<Self> {
        (tokens > 0).then_some(Excess { tokens, capacity, refill, period })
    }

    pub(super) fn is_under(&self, capacity: u64, refill: u64, period: u64) -> bool {
        (self.capacity, self.refill, self.period) == (capacity, refill, period)
    }
}

/// Whole tokens used, as far as a capacity goes, and the rest.
pub(super) struct Usage {
    pub(super) used: u64,
    pub(super) excess: u64,
}

impl Usage {
    /// Divides usage between a bucket of this capacity and its excess.
    pub(super) fn split(used: u64, excess: u64, capacity: u64) -> Self {
        let usage = used.saturating_add(excess).min(MAX_EXACT);
        Usage { used: usage.min(capacity), excess: usage.saturating_sub(capacity) }
    }
}
