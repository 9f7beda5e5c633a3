//! The arithmetic of every algorithm, over values: a state and an instant go in, a verdict and a state come out.
//!
//! A store keeps [`State`]s and knows nothing of what is in them. To decide it opens a [`Bucket`] on what it
//! kept, asks, takes if every bucket of the request would give, and keeps what the bucket closes to:
//!
//! ```
//! use tollgate_core::algorithm::{Bucket, Demand, Window};
//! use tollgate_core::{Limit, Micros, Timestamp};
//!
//! let limit: Limit = "10/s burst 50".parse()?;
//! let now = Timestamp::from_micros(0);
//! let mut bucket = Bucket::open(&limit, None, now, Window::Own);
//! let answer = bucket.ask(Demand { cost: 1, patience: Micros::MAX });
//! assert!(answer.allowed());
//! bucket.take(1);
//! assert_eq!(bucket.verdict(answer).remaining, 49);
//! let kept = bucket.close();
//! assert!(kept.is_some());
//! # Ok::<(), tollgate_core::LimitError>(())
//! ```
//!
//! Each algorithm is a file. What they share stands here: clock steps, reconfiguration to another algorithm,
//! and how an answer becomes a verdict.

mod calendar;
mod counter;
mod debt;
mod fixed;
mod interval;
mod log;

use crate::limit::{Algorithm, Limit};
use crate::time::{Micros, Timestamp};
use crate::verdict::Verdict;

pub use counter::Counts;
pub use debt::Debt;
pub use fixed::Count;
pub use interval::Spent;
pub use log::{Entry, Log};

/// A clock that is behind the last write by no more than this is late, not stepped.
const LATE: i64 = 1_000_000;

/// What is remembered of one bucket. A bucket that is as good as new is not remembered at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Of a continuous token bucket.
    TokenBucket(Debt),
    /// Of an interval token bucket.
    TokenBucketInterval(Spent),
    /// Of a leaky bucket.
    LeakyBucket(Debt),
    /// Of a fixed window.
    FixedWindow(Count),
    /// Of a sliding window log.
    SlidingWindowLog(Log),
    /// Of a sliding window counter.
    SlidingWindowCounter(Counts),
}

/// What a request wants of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Tokens.
    pub cost: u64,
    /// The longest delay the caller would bear; a longer one refuses the request and charges nothing.
    pub patience: Micros,
}

/// What a bucket would do with a demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Admit it, to be held for `delay`.
    Pass {
        /// Zero but for leaky buckets.
        delay: Micros,
    },
    /// Refuse it now; the same demand passes after this wait.
    Wait(Micros),
    /// Refuse it for ever: it is more than the bucket can hold.
    Never,
}

impl Answer {
    /// Whether the demand would pass.
    pub const fn allowed(self) -> bool {
        matches!(self, Answer::Pass { .. })
    }
}

/// Where a spread window begins; every other limit finds its windows by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// The limit says it all.
    Own,
    /// The windows of this key begin at this offset ([`Key::spread`](crate::Key::spread)).
    Spread(Micros),
}

/// One bucket at one instant: the state brought to `now`, ready to be asked, charged and written back.
#[derive(Debug)]
pub struct Bucket<'l> {
    limit: &'l Limit,
    account: Account<'l>,
    /// How far the clock is behind the instant that is computed at.
    lag: u64,
    stepped: bool,
}

#[derive(Debug)]
enum Account<'l> {
    Debt(debt::Account<'l>),
    Interval(interval::Account<'l>),
    Fixed(fixed::Account<'l>),
    Log(log::Account),
    Counter(counter::Account),
}

/// Calls the same method of whichever algorithm is there.
macro_rules! each {
    ($account:expr, $name:ident => $call:expr) => {
        match $account {
            Account::Debt($name) => $call,
            Account::Interval($name) => $call,
            Account::Fixed($name) => $call,
            Account::Log($name) => $call,
            Account::Counter($name) => $call,
        }
    };
}

impl<'l> Bucket<'l> {
    /// Brings what was kept to `now`.
    ///
    /// Numbers that changed since are converted first (what was used stays used), a state of another
    /// algorithm counts as none, and a clock that went back is dealt with here for every algorithm.
    #[inline]
    pub fn open(limit: &'l Limit, state: Option<State>, now: Timestamp, window: Window) -> Self {
        let now = now.as_micros();
        let (mut at, mut lag, mut stepped) = (now, 0, false);
        let mut state = state.filter(|state| state.is_of(limit));
        if let Some(state) = &mut state {
            let last = state.last().as_micros();
            if last > now {
                if last - now <= LATE {
                    (at, lag) = (last, last.abs_diff(now));
                } else {
                    state.shift(now - last);
                    stepped = true;
                }
            }
        }
        let account = match (limit.algorithm(), state) {
            (Algorithm::TokenBucket(refill), Some(State::TokenBucket(debt))) => {
                Account::Debt(debt::Account::open(refill, None, Some(debt), at))
            }
            (Algorithm::TokenBucket(refill), _) => Account::Debt(debt::Account::open(refill, None, None, at)),
            (Algorithm::LeakyBucket { refill, free }, Some(State::LeakyBucket(debt))) => {
                Account::Debt(debt::Account::open(refill, Some(*free), Some(debt), at))
            }
            (Algorithm::LeakyBucket { refill, free }, _) => {
                Account::Debt(debt::Account::open(refill, Some(*free), None, at))
            }
            (Algorithm::TokenBucketInterval(refill), state) => {
                let spent = match state {
                    Some(State::TokenBucketInterval(spent)) => Some(spent),
                    _ => None,
                };
                Account::Interval(interval::Account::open(refill, spent, at, stepped))
            }
            (Algorithm::FixedWindow { limit, window: length, phase }, state) => {
                let count = match state {
                    Some(State::FixedWindow(count)) => Some(count),
                    _ => None,
                };
                Account::Fixed(fixed::Account::open(*limit, *length, phase, window, count, at))
            }
            (Algorithm::SlidingWindowLog { limit, window }, state) => {
                let log = match state {
                    Some(State::SlidingWindowLog(log)) => log,
                    _ => Log::default(),
                };
                Account::Log(log::Account::open(*limit, *window, log, at))
            }
            (Algorithm::SlidingWindowCounter { limit, window, opens }, state) => {
                let counts = match state {
                    Some(State::SlidingWindowCounter(counts)) => Some(counts),
                    _ => None,
                };
                Account::Counter(counter::Account::open(*limit, *window, *opens, counts, at))
            }
        };
        Bucket { limit, account, lag, stepped }
    }

    /// What the bucket would do with a demand. A cost of 0 always passes.
    #[inline]
    pub fn ask(&self, demand: Demand) -> Answer {
        let answer = each!(&self.account, account => account.ask(demand.cost));
        match answer {
            // A place in the queue that comes too late is no place; `delay - patience` later it would do.
            Answer::Pass { delay } if delay > demand.patience && demand.cost > 0 => {
                self.late(Answer::Wait(delay.saturating_sub(demand.patience)))
            }
            answer => self.late(answer),
        }
    }

    /// Charges a cost that [`ask`](Self::ask) let pass.
    #[inline]
    pub fn take(&mut self, cost: u64) {
        if cost > 0 {
            each!(&mut self.account, account => account.take(cost));
        }
    }

    /// Gives back a cost; never beyond full.
    pub fn refund(&mut self, cost: u64) {
        if cost > 0 {
            each!(&mut self.account, account => account.refund(cost));
        }
    }

    /// The verdict on a demand, with the numbers of the bucket as it is now.
    #[inline]
    pub fn verdict(&self, answer: Answer) -> Verdict {
        let (allowed, retry_after, delay) = match answer {
            Answer::Pass { delay } => (true, Some(Micros::ZERO), delay),
            Answer::Wait(wait) => (false, Some(wait), Micros::ZERO),
            Answer::Never => (false, None, Micros::ZERO),
        };
        let remaining = self.remaining();
        Verdict {
            allowed,
            limit: self.limit.capacity(),
            remaining,
            retry_after,
            reset_after: self.reset_after(),
            delay,
            more_after: self.more_after(remaining),
        }
    }

    /// The wait until `remaining` grows.
    #[inline]
    fn more_after(&self, remaining: u64) -> Option<Micros> {
        if remaining >= self.limit.capacity() {
            return None;
        }
        match self.late(each!(&self.account, account => account.ask(remaining + 1))) {
            Answer::Wait(wait) => Some(wait),
            Answer::Pass { .. } | Answer::Never => None,
        }
    }

    /// The largest cost that would pass now.
    #[inline]
    pub fn remaining(&self) -> u64 {
        each!(&self.account, account => account.remaining())
    }

    /// The least wait after which the bucket is as good as new.
    #[inline]
    pub fn reset_after(&self) -> Micros {
        match each!(&self.account, account => account.reset_after()) {
            0 => Micros::ZERO,
            wait => Micros::new(wait + self.lag),
        }
    }

    /// Whether the clock went back by more than a second, so that the state was shifted.
    pub const fn stepped(&self) -> bool {
        self.stepped
    }

    /// What to remember; `None` when there is nothing that a fresh bucket does not know.
    #[inline]
    pub fn close(self) -> Option<State> {
        if each!(&self.account, account => account.reset_after()) == 0 {
            return None;
        }
        Some(match self.account {
            Account::Debt(account) => match self.limit.algorithm() {
                Algorithm::LeakyBucket { .. } => State::LeakyBucket(account.close()),
                _ => State::TokenBucket(account.close()),
            },
            Account::Interval(account) => State::TokenBucketInterval(account.close()),
            Account::Fixed(account) => State::FixedWindow(account.close()),
            Account::Log(account) => State::SlidingWindowLog(account.close()),
            Account::Counter(account) => State::SlidingWindowCounter(account.close()),
        })
    }

    /// A wait counted from the clock rather than from the instant computed at.
    #[inline]
    fn late(&self, answer: Answer) -> Answer {
        match answer {
            Answer::Wait(wait) => Answer::Wait(Micros::new(wait.get() + self.lag)),
            answer => answer,
        }
    }
}

impl State {
    /// The instant of the last write.
    #[inline]
    pub fn last(&self) -> Timestamp {
        match self {
            State::TokenBucket(debt) | State::LeakyBucket(debt) => debt.last,
            State::TokenBucketInterval(spent) => spent.last,
            State::FixedWindow(count) => count.last,
            State::SlidingWindowLog(log) => log.last,
            State::SlidingWindowCounter(counts) => counts.last,
        }
    }

    #[inline]
    fn is_of(&self, limit: &Limit) -> bool {
        matches!(
            (self, limit.algorithm()),
            (State::TokenBucket(_), Algorithm::TokenBucket(_))
                | (State::TokenBucketInterval(_), Algorithm::TokenBucketInterval(_))
                | (State::LeakyBucket(_), Algorithm::LeakyBucket { .. })
                | (State::FixedWindow(_), Algorithm::FixedWindow { .. })
                | (State::SlidingWindowLog(_), Algorithm::SlidingWindowLog { .. })
                | (State::SlidingWindowCounter(_), Algorithm::SlidingWindowCounter { .. })
        )
    }

    /// Moves every stored instant by the same amount, so that time neither credits twice nor stands still.
    #[cold]
    fn shift(&mut self, by: i64) {
        let moved = |instant: Timestamp| Timestamp::from_micros(instant.as_micros() + by);
        match self {
            State::TokenBucket(debt) | State::LeakyBucket(debt) => debt.last = moved(debt.last),
            State::TokenBucketInterval(spent) => {
                (spent.anchor, spent.last) = (moved(spent.anchor), moved(spent.last));
            }
            State::FixedWindow(count) => (count.start, count.last) = (moved(count.start), moved(count.last)),
            State::SlidingWindowLog(log) => log.shift(by),
            State::SlidingWindowCounter(counts) => {
                (counts.start, counts.last) = (moved(counts.start), moved(counts.last));
            }
        }
    }
}

/// The start of the window of length `window` that contains `at`, windows beginning at `phase`.
#[inline]
fn window_start(at: i64, window: i64, phase: i64) -> i64 {
    (at - phase).div_euclid(window) * window + phase
}

/// A length that validation bounded far below 2^63.
#[inline]
fn signed(micros: Micros) -> i64 {
    i64::try_from(micros.get()).expect("periods are at most 366 days")
}

/// The wait from `now` to an instant that is not before it.
#[inline]
fn until(instant: i64, now: i64) -> u64 {
    u64::try_from(instant - now).unwrap_or(0)
}

#[cfg(test)]
mod tests;
