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
//!
//! Usage above the capacity of the limit in use is kept as [`Excess`]: time repays the debt first, then the excess.

use super::{Answer, EXCESS_LIFETIME, Excess, Usage, until};
use crate::limit::Refill;
use crate::tier::Growth;
use crate::time::{Micros, Timestamp};

/// What a continuous bucket remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Debt {
    /// Units owed at `last`.
    pub debt: u64,
    /// Units in a token when this was written, so that a changed rate can convert.
    pub p: u64,
    /// The last write.
    pub last: Timestamp,
    /// Usage above the capacity of the limit this was written under.
    pub excess: Option<Excess>,
}

impl Debt {
    /// Repays units up to an instant, the debt first and then whole tokens of the excess. Whether debt is left.
    pub(crate) fn repay(&mut self, units: u64, to: Timestamp) -> bool {
        let beyond = units.saturating_sub(self.debt) / self.p;
        self.debt = self.debt.saturating_sub(units);
        self.excess = self.excess.and_then(|excess| {
            let tokens = excess.tokens.saturating_sub(beyond);
            (tokens > 0).then_some(Excess { tokens, ..excess })
        });
        self.last = to;
        self.debt > 0
    }
}

#[derive(Debug, Clone)]
pub struct Account<'l> {
    refill: &'l Refill,
    /// Tokens that need not wait; `None` for a token bucket, which holds nobody.
    free: Option<u64>,
    debt: u64,
    /// Tokens used above the capacity, under a larger limit.
    excess: u64,
    at: i64,
}

impl<'l> Account<'l> {
    pub(super) fn open(refill: &'l Refill, free: Option<u64>, state: Option<Debt>, at: i64) -> Self {
        let mut account = Account { refill, free, debt: 0, excess: 0, at };
        let Some(state) = state else { return account };
        Self::open_as_is(refill, free, &state, at).unwrap_or_else(|| {
            account.convert(&state);
            account.repay(at.abs_diff(state.last.as_micros()));
            account
        })
    }

    /// Opens a state that needs no conversion, as most do.
    #[inline(always)]
    pub(super) fn open_as_is(refill: &'l Refill, free: Option<u64>, state: &Debt, at: i64) -> Option<Self> {
        let Refill { capacity, n, p, .. } = *refill;
        let repaid = at.abs_diff(state.last.as_micros()).saturating_mul(n);
        let is_converted = state.p == p && state.debt <= capacity * p && state.excess.is_none();
        is_converted.then(|| Account { refill, free, debt: state.debt.saturating_sub(repaid), excess: 0, at })
    }

    /// Reads a state in the units of the limit in use. Usage is kept: what exceeds the capacity becomes excess, and
    /// excess that a larger capacity covers becomes debt. Debt in another unit is rounded up to whole tokens.
    #[cold]
    fn convert(&mut self, state: &Debt) {
        let Refill { capacity, n, p, .. } = *self.refill;
        let excess = state.excess.map_or(0, |excess| excess.tokens);
        if state.p == p && state.excess.is_some_and(|excess| excess.is_under(capacity, n, p)) {
            (self.debt, self.excess) = (state.debt.min(capacity * p), excess);
        } else if state.p == p && state.debt <= capacity * p {
            let covered = excess.min((capacity * p - state.debt) / p);
            (self.debt, self.excess) = (state.debt + covered * p, excess - covered);
        } else {
            let Usage { used, excess } = Usage::split(state.debt.div_ceil(state.p), excess, capacity);
            (self.debt, self.excess) = (used * p, excess);
        }
    }

    /// Time repays the debt first, and then whole tokens of the excess.
    fn repay(&mut self, elapsed: u64) {
        let repaid = elapsed.saturating_mul(self.refill.n);
        if self.excess > 0 {
            self.repay_excess(elapsed);
        }
        self.debt = self.debt.saturating_sub(repaid);
    }

    #[cold]
    fn repay_excess(&mut self, elapsed: u64) {
        let repaid = u128::from(elapsed) * u128::from(self.refill.n);
        let tokens = repaid.saturating_sub(self.debt.into()) / u128::from(self.refill.p);
        let expired = elapsed >= EXCESS_LIFETIME.get();
        let left = u128::from(self.excess).saturating_sub(tokens);
        self.excess = if expired { 0 } else { u64::try_from(left).expect("at most the excess before") };
    }

    /// Counts units that were spent while they were out, as far as the capacity goes; the rest is excess.
    pub(super) fn settle_units(&mut self, units: u64) {
        let fits = units.min(self.room_units());
        self.debt += fits;
        self.excess = self.excess.saturating_add((units - fits).div_ceil(self.refill.p));
    }

    pub(super) fn forgive_units(&mut self, units: u64) {
        self.debt = self.debt.saturating_sub(units);
    }

    pub(super) const fn room_units(&self) -> u64 {
        self.refill.capacity * self.refill.p - self.debt
    }

    /// The time until what stands in front, beyond the free part, has left.
    #[inline]
    fn delay(&self) -> Micros {
        let Some(free) = self.free else { return Micros::ZERO };
        Micros::new(time_for(self.debt.saturating_sub(free * self.refill.p), self.refill.n))
    }

    #[inline]
    pub(super) fn close(&self) -> Debt {
        let Refill { capacity, n, p, .. } = *self.refill;
        let excess = Excess::new(self.excess, capacity, n, p);
        Debt { debt: self.debt, p, last: Timestamp::from_micros(self.at), excess }
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
        let from_excess = cost.saturating_sub(self.debt.div_ceil(self.refill.p));
        self.excess = self.excess.saturating_sub(from_excess);
        self.debt = self.debt.saturating_sub(cost.saturating_mul(self.refill.p));
    }

    fn give_back(&mut self, unused: u64, price: u64, since: Timestamp) -> bool {
        let Refill { capacity, n, p, .. } = *self.refill;
        let repaid = until(self.at, since.as_micros()).saturating_mul(n);
        let left = (price.min(capacity) * p).saturating_sub(repaid);
        let given = (unused.min(capacity) * p).min(left).min(self.debt);
        self.debt -= given;
        given > 0
    }

    /// The oldest debt is repaid first: this charge comes after all that was owed before it.
    fn repaid_from(&self, cost: u64) -> Timestamp {
        let owed = self.debt.saturating_sub(cost.saturating_mul(self.refill.p));
        Timestamp::from_micros(self.at.saturating_add_unsigned(owed / self.refill.n))
    }

    #[inline]
    fn growth(&self, _: u64) -> Growth {
        Growth::Debt(self.debt)
    }

    #[inline]
    fn remaining(&self) -> u64 {
        (self.refill.capacity * self.refill.p - self.debt) / self.refill.p
    }

    #[inline]
    fn reset_after(&self) -> u64 {
        time_for(self.debt, self.refill.n)
    }

    #[inline]
    fn is_idle(&self) -> bool {
        self.debt == 0 && self.excess == 0
    }
}

/// The time in which `n` units a microsecond make up `units`. Most rates have `n = 1`; a division costs more.
#[inline]
fn time_for(units: u64, n: u64) -> u64 {
    if n == 1 { units } else { units.div_ceil(n) }
}
