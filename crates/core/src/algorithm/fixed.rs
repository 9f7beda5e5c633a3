//! Fixed windows: a count that is forgotten when its window ends.

use super::{Answer, Window, calendar, signed, until, window_start};
use crate::limit::Phase;
use crate::time::{Micros, Timestamp};

/// What a fixed window remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// Cost admitted in the window.
    pub count: u64,
    /// The beginning of the window.
    pub start: Timestamp,
    /// The last write, which lies in the window.
    pub last: Timestamp,
}

#[derive(Debug, Clone)]
pub(super) struct Account<'l> {
    limit: u64,
    windows: Windows<'l>,
    count: u64,
    start: i64,
    end: i64,
    at: i64,
}

/// The start of the clock's window around an instant; the instant itself where the clock has no say.
pub(super) fn start_on_the_clock(length: Micros, phase: &Phase, window: Window, at: i64) -> i64 {
    let windows = Windows::new(length, phase, window);
    windows.on_the_clock(at).map_or(at, |(start, _)| start)
}

/// Where windows begin and how long they are.
#[derive(Debug, Clone)]
struct Windows<'l> {
    length: i64,
    phase: &'l Phase,
    offset: i64,
}

impl<'l> Account<'l> {
    pub(super) fn open(
        limit: u64,
        length: Micros,
        phase: &'l Phase,
        window: Window,
        state: Option<Count>,
        at: i64,
    ) -> Self {
        let windows = Windows::new(length, phase, window);
        // A window in which nothing counts has no phase.
        if let Some(Count { count, start, last }) = state.filter(|state| state.count > 0) {
            let (start, end) = windows.of_last_write(start.as_micros(), last.as_micros());
            if at < end {
                return Account { limit, windows, count, start, end, at };
            }
        }
        let (start, end) = windows.opened_at(at);
        Account { limit, windows, count: 0, start, end, at }
    }

    /// The end of the window that a take would count in.
    pub(super) fn end(&self) -> i64 {
        if self.count == 0 { self.windows.opened_at(self.at).1 } else { self.end }
    }

    pub(super) fn close(self) -> Count {
        Count {
            count: self.count,
            start: Timestamp::from_micros(self.start),
            last: Timestamp::from_micros(self.at),
        }
    }
}

impl super::Account for Account<'_> {
    #[inline]
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn ask(&self, cost: u64) -> Answer {
        if cost > self.limit {
            Answer::Never
        } else if cost <= self.remaining() {
            Answer::Pass { delay: Micros::ZERO }
        } else {
            Answer::Wait(Micros::new(until(self.end, self.at)))
        }
    }

    fn take(&mut self, cost: u64) {
        if self.count == 0 {
            (self.start, self.end) = self.windows.opened_at(self.at);
        }
        self.count += cost;
    }

    fn refund(&mut self, cost: u64) {
        self.count = self.count.saturating_sub(cost);
    }

    fn give_back(&mut self, unused: u64, _: u64, since: Timestamp) -> bool {
        let counts = (self.start..self.end).contains(&since.as_micros());
        if counts {
            self.refund(unused);
        }
        counts
    }

    fn repaid_from(&self, _: u64) -> Timestamp {
        Timestamp::from_micros(self.at)
    }

    fn remaining(&self) -> u64 {
        self.limit.saturating_sub(self.count)
    }

    fn reset_after(&self) -> u64 {
        if self.count == 0 { 0 } else { until(self.end, self.at) }
    }
}

impl<'l> Windows<'l> {
    fn new(length: Micros, phase: &'l Phase, window: Window) -> Self {
        let offset = match window {
            Window::Spread(offset) => signed(offset),
            Window::Own => 0,
        };
        Windows { length: signed(length), phase, offset }
    }

    /// The window a first take at `at` falls into.
    fn opened_at(&self, at: i64) -> (i64, i64) {
        self.on_the_clock(at).unwrap_or((at, at + self.length))
    }

    /// The window that holds the last write, under the lengths as they are now.
    fn of_last_write(&self, start: i64, last: i64) -> (i64, i64) {
        self.on_the_clock(last).unwrap_or_else(|| {
            let start = window_start(last, self.length, start);
            (start, start + self.length)
        })
    }

    /// The window around `at` where the clock, not the first take, says when it begins.
    fn on_the_clock(&self, at: i64) -> Option<(i64, i64)> {
        match self.phase {
            Phase::First => None,
            Phase::Calendar(calendar) => Some(calendar::window(calendar, at)),
            Phase::Epoch | Phase::Spread => {
                let start = window_start(at, self.length, self.offset);
                Some((start, start + self.length))
            }
        }
    }
}
