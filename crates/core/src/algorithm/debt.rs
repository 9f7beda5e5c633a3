//! Continuous buckets: the whole bucket is a debt that time pays back.
//!
//! A token is `p` units and `n` units come back every microsecond, so nothing is ever rounded:
//!
//! ```text
//! 0            debt                      cap = capacity * p
//! |-------------|------ room left -----------|
//!        <- n units per microsecond
//! ```
//!
//! A request passes while its price fits into the room. Nothing runs in the background; a debt of 0 is a full
//! bucket and may be forgotten. A leaky bucket is the same bucket read as a queue: what is owed is what stands
//! in front of you, and the time to pay it back is how long you wait.

use super::{Answer, until};
use crate::limit::{MAX_EXACT, Refill};
use crate::time::{Micros, Timestamp};
use crate::verdict::Mark;

/// What a continuous bucket remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Debt {
    /// Units owed at `last`.
    pub debt: u64,
    /// Units in a token when this was written, so that a changed rate can convert.
    pub p: u64,
    /// The last write.
    pub last: Timestamp,
}

impl Debt {
    /// Tokens owed beyond what a limit holds.
    pub(super) fn beyond(&self, refill: &Refill) -> u64 {
        if self.p == refill.p {
            return self.debt.saturating_sub(refill.capacity * refill.p).div_ceil(refill.p);
        }
        self.debt.div_ceil(self.p).saturating_sub(refill.capacity)
    }

    /// Owes so many tokens more, or as many of them as can be counted.
    pub(super) fn use_beyond(&mut self, tokens: u64) {
        self.debt += tokens.min((MAX_EXACT - self.debt) / self.p) * self.p;
    }
}

#[derive(Debug, Clone)]
pub struct Account<'l> {
    refill: &'l Refill,
    /// Tokens that need not wait; `None` for a token bucket, which holds nobody.
    free: Option<u64>,
    debt: u64,
    /// The debt before anything was taken at this instant.
    owed: u64,
    at: i64,
}

impl<'l> Account<'l> {
    #[inline]
    pub(super) fn open(refill: &'l Refill, free: Option<u64>, state: Option<Debt>, at: i64) -> Self {
        let debt = state.map_or(0, |state| {
            let paid_back = at.abs_diff(state.last.as_micros()).saturating_mul(refill.n);
            converted(state, refill).saturating_sub(paid_back)
        });
        Account { refill, free, debt, owed: debt, at }
    }

    /// The time until what stands in front, beyond the free part, has left.
    #[inline]
    fn delay(&self) -> Micros {
        let Some(free) = self.free else { return Micros::ZERO };
        Micros::new(time_for(self.debt.saturating_sub(free * self.refill.p), self.refill.n))
    }

    #[inline]
    pub(super) const fn owes(&self) -> bool {
        self.debt > 0
    }

    #[inline]
    pub(super) fn close(&self) -> Debt {
        Debt { debt: self.debt, p: self.refill.p, last: Timestamp::from_micros(self.at) }
    }
}

impl super::Account for Account<'_> {
    #[inline]
    fn capacity(&self) -> u64 {
        self.refill.capacity
    }

    #[inline]
    fn ask(&self, cost: u64) -> Answer {
        let Refill { capacity, n, p, .. } = *self.refill;
        if cost > capacity {
            return Answer::Never;
        }
        let (price, cap) = (cost * p, capacity * p);
        if price <= cap - self.debt {
            return Answer::Pass { delay: self.delay() };
        }
        Answer::Wait(Micros::new(time_for(self.debt - (cap - price), n)))
    }

    #[inline]
    fn take(&mut self, cost: u64) {
        self.debt += cost * self.refill.p;
    }

    fn refund(&mut self, cost: u64) {
        self.debt = self.debt.saturating_sub(cost.saturating_mul(self.refill.p));
    }

    fn undo(&mut self, cost: u64, mark: Mark) -> bool {
        let Refill { capacity, n, p, .. } = *self.refill;
        let paid_back = until(self.at, mark.at.as_micros()).saturating_mul(n).saturating_sub(mark.rest);
        let left = (cost.min(capacity) * p).saturating_sub(paid_back).min(self.debt);
        self.debt -= left;
        left > 0
    }

    /// The oldest debt is paid back first: what is taken now comes after all that was owed.
    #[inline]
    fn mark(&self) -> Mark {
        let (wait, rest) = match self.refill.n {
            1 => (self.owed, 0),
            n => (self.owed / n, self.owed % n),
        };
        Mark { at: Timestamp::from_micros(self.at.saturating_add_unsigned(wait)), rest }
    }

    #[inline]
    fn remaining(&self) -> u64 {
        (self.refill.capacity * self.refill.p - self.debt) / self.refill.p
    }

    #[inline]
    fn reset_after(&self) -> u64 {
        time_for(self.debt, self.refill.n)
    }
}

/// The debt in the units of the limit as it is now: what was used stays used, at most a full bucket of it.
#[inline]
fn converted(state: Debt, refill: &Refill) -> u64 {
    let cap = refill.capacity * refill.p;
    if state.p == refill.p {
        return state.debt.min(cap);
    }
    state.debt.div_ceil(state.p).min(refill.capacity) * refill.p
}

/// The time in which `n` units a microsecond make up `units`. Most rates have `n = 1`; a division costs more.
#[inline]
fn time_for(units: u64, n: u64) -> u64 {
    if n == 1 { units } else { units.div_ceil(n) }
}
