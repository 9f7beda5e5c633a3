//! Sliding window counter: this window's count, and the previous one's weighted by what of it still overlaps.
//!
//! ```text
//!        prev            curr
//! |--------------|-----e--+------|
//!          [------- W ----]          estimate = floor(prev * (W - e) / W) + curr
//! ```
//!
//! The floor is deliberate: it is the one place where rounding favours the caller, as users of this algorithm
//! expect.

use super::{Account as _, Answer, signed, window_start};
use crate::limit::Opening;
use crate::time::{Micros, Timestamp};

/// What a sliding window counter remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Cost admitted in the window before.
    pub prev: u64,
    /// Cost admitted in the window that holds the last write.
    pub curr: u64,
    /// The beginning of that window.
    pub start: Timestamp,
    /// The last write.
    pub last: Timestamp,
}

#[derive(Debug, Clone)]
pub(super) struct Account {
    limit: u64,
    window: u64,
    opens: Opening,
    prev: u64,
    curr: u64,
    start: i64,
    at: i64,
    /// Both counts and the start before a state as good as new was forgotten.
    stored: (u64, u64, i64),
}

impl Account {
    pub(super) fn open(limit: u64, window: Micros, opens: Opening, state: Option<Counts>, at: i64) -> Self {
        let mut account = Account {
            limit,
            window: window.get(),
            opens,
            prev: 0,
            curr: 0,
            start: at,
            at,
            stored: (0, 0, at),
        };
        if let Some(Counts { prev, curr, start, last }) = state {
            let phase = match opens {
                Opening::Epoch => 0,
                Opening::First => start.as_micros(),
            };
            let length = signed(window);
            let then = window_start(last.as_micros(), length, phase);
            account.start = window_start(at, length, phase);
            (account.prev, account.curr) = match (account.start - then) / length {
                0 => (prev, curr),
                1 => (curr, 0),
                _ => (0, 0),
            };
        }
        account.stored = (account.prev, account.curr, account.start);
        if account.reset_after() == 0 {
            account.forget();
        }
        account
    }

    /// A counter as good as new has no phase of its own.
    fn forget(&mut self) {
        (self.prev, self.curr) = (0, 0);
        self.start = match self.opens {
            Opening::Epoch => window_start(self.at, signed(Micros::new(self.window)), 0),
            Opening::First => self.at,
        };
    }

    /// The end of the window that a take would count in.
    pub(super) fn end(&self) -> i64 {
        self.start + signed(Micros::new(self.window))
    }

    pub(super) fn close(self) -> Counts {
        Counts {
            prev: self.prev,
            curr: self.curr,
            start: Timestamp::from_micros(self.start),
            last: Timestamp::from_micros(self.at),
        }
    }

    /// The state with nothing forgotten, as of now: all that a refusal writes after a clock step.
    pub(super) fn close_shifted(self) -> Counts {
        let (prev, curr, start) = self.stored;
        Account { prev, curr, start, ..self }.close()
    }

    /// How far into the window we are.
    fn offset_in_window(&self) -> u64 {
        self.at.abs_diff(self.start)
    }

    fn weighted(&self, prev: u64, e: u64) -> u64 {
        if prev == 0 { 0 } else { scaled(prev, self.window - e, self.window) }
    }

    /// How far into a window the previous count `x` must be to weigh at most `m`.
    fn least(&self, x: u64, m: u64) -> u64 {
        if x <= m { 0 } else { scaled(x - m - 1, self.window, x) + 1 }
    }

    /// How far into a window the previous count `x` must be to weigh nothing.
    fn zero(&self, x: u64) -> u64 {
        (self.window - 1).checked_div(x).map_or(0, |last| self.window - last)
    }
}

impl super::Account for Account {
    #[inline]
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn ask(&self, cost: u64) -> Answer {
        if cost > self.limit {
            return Answer::Never;
        }
        if cost <= self.remaining() {
            return Answer::Pass { delay: Micros::ZERO };
        }
        let e = self.offset_in_window();
        let wait = if self.curr + cost <= self.limit {
            self.least(self.prev, self.limit - self.curr - cost) - e
        } else {
            self.window - e + self.least(self.curr, self.limit - cost)
        };
        Answer::Wait(Micros::new(wait))
    }

    fn take(&mut self, cost: u64) {
        self.curr += cost;
    }

    fn refund(&mut self, cost: u64) {
        self.curr = self.curr.saturating_sub(cost);
    }

    fn give_back(&mut self, unused: u64, _: u64, since: Timestamp) -> bool {
        let count = match (since.as_micros() - self.start).div_euclid(signed(Micros::new(self.window))) {
            0 => &mut self.curr,
            -1 => &mut self.prev,
            _ => return false,
        };
        *count = count.saturating_sub(unused);
        true
    }

    fn repaid_from(&self, _: u64) -> Timestamp {
        Timestamp::from_micros(self.at)
    }

    fn remaining(&self) -> u64 {
        self.limit.saturating_sub(self.weighted(self.prev, self.offset_in_window()) + self.curr)
    }

    fn reset_after(&self) -> u64 {
        let e = self.offset_in_window();
        if self.curr > 0 {
            self.window - e + self.zero(self.curr)
        } else {
            self.zero(self.prev).saturating_sub(e)
        }
    }
}

/// `a * b / c`, rounded down, without losing the product's upper half. Callers know that it fits.
fn scaled(a: u64, b: u64, c: u64) -> u64 {
    u64::try_from(u128::from(a) * u128::from(b) / u128::from(c)).expect("a <= c or b <= c in every use")
}
