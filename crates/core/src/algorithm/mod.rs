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
//! let answer = bucket.ask(Demand { cost: 1, max_wait: Micros::MAX });
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
mod excess;
mod fixed;
mod interval;
mod log;

use crate::limit::{Algorithm, Calendar, Limit, Opening, Refill};
use crate::tier::{Growth, Verdict};
use crate::time::{Micros, Timestamp};
use excess::Usage;

pub use counter::Counts;
pub use debt::Debt;
pub use excess::{EXCESS_LIFETIME, Excess};
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
    pub max_wait: Micros,
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
#[derive(Debug, Clone)]
pub struct Bucket<'l> {
    limit: &'l Limit,
    accounts: Accounts<'l>,
}

#[derive(Debug, Clone)]
enum Accounts<'l> {
    Debt(Opened<debt::Account<'l>>),
    Interval(Opened<interval::Account<'l>>),
    Fixed(Opened<fixed::Account<'l>>),
    Log(Opened<log::Account>),
    Counter(Opened<counter::Account>),
}

/// A continuous token bucket at one instant: [`Bucket`] for a store that knows what it has before it.
pub type TokenBucket<'l> = Opened<debt::Account<'l>>;

/// The arithmetic of one algorithm at one instant.
trait Account {
    /// What it ever holds.
    fn capacity(&self) -> u64;
    /// What it would do with a cost; 0 always passes.
    fn ask(&self, cost: u64) -> Answer;
    /// Charges what `ask` let pass.
    fn take(&mut self, cost: u64);
    /// Gives back, never beyond full.
    fn refund(&mut self, cost: u64);
    /// Gives back the unused part of a charge; whether there is anything to give back.
    fn give_back(&mut self, unused: u64, price: u64, since: Timestamp) -> bool;
    /// The instant from which time repays this cost, which was taken just now.
    fn repaid_from(&self, cost: u64) -> Timestamp;
    /// What the wait until `remaining` grows is computed from; asked only while `remaining` is less than the capacity.
    fn growth(&self, remaining: u64) -> Growth {
        match self.ask(remaining + 1) {
            Answer::Wait(wait) => Growth::After(wait),
            Answer::Pass { .. } | Answer::Never => Growth::Full,
        }
    }
    /// The largest cost that would pass.
    fn remaining(&self) -> u64;
    /// The wait until the limit in use answers as on a fresh state.
    fn reset_after(&self) -> u64;
    /// Whether nothing is left that a fresh state does not have.
    fn is_idle(&self) -> bool {
        self.reset_after() == 0
    }
}

/// An account, and how its instant relates to the clock.
#[derive(Debug, Clone)]
pub struct Opened<A> {
    account: A,
    /// How far the clock is behind the instant that is computed at.
    lag: u64,
    stepped: bool,
}

/// Calls the same method of whichever algorithm is there.
macro_rules! each {
    ($accounts:expr, $name:ident => $call:expr) => {
        match $accounts {
            Accounts::Debt($name) => $call,
            Accounts::Interval($name) => $call,
            Accounts::Fixed($name) => $call,
            Accounts::Log($name) => $call,
            Accounts::Counter($name) => $call,
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
        let mut state = state.filter(|state| state.is_of(limit));
        let Instant { at, lag, step } = Instant::of(state.as_ref().map(State::last), now);
        if let (Some(state), Some(by)) = (&mut state, step) {
            state.shift(by);
        }
        let stepped = step.is_some();
        let accounts = match (limit.algorithm(), state) {
            (Algorithm::TokenBucket(refill), state) => {
                let debt = state.and_then(State::into_debt);
                Accounts::Debt(Opened { account: debt::Account::open(refill, None, debt, at), lag, stepped })
            }
            (Algorithm::LeakyBucket { refill, free }, state) => {
                let debt = state.and_then(State::into_debt);
                let account = debt::Account::open(refill, Some(*free), debt, at);
                Accounts::Debt(Opened { account, lag, stepped })
            }
            (Algorithm::TokenBucketInterval(refill), state) => {
                let spent = match state {
                    Some(State::TokenBucketInterval(spent)) => Some(spent),
                    _ => None,
                };
                let account = interval::Account::open(refill, spent, at, stepped);
                Accounts::Interval(Opened { account, lag, stepped })
            }
            (Algorithm::FixedWindow { limit, window: length, phase }, state) => {
                let count = match state {
                    Some(State::FixedWindow(count)) => Some(count),
                    _ => None,
                };
                let account = fixed::Account::open(*limit, *length, phase, window, count, at);
                Accounts::Fixed(Opened { account, lag, stepped })
            }
            (Algorithm::SlidingWindowLog { limit, window }, state) => {
                let log = match state {
                    Some(State::SlidingWindowLog(log)) => log,
                    _ => Log::default(),
                };
                let account = log::Account::open(*limit, *window, log, at);
                Accounts::Log(Opened { account, lag, stepped })
            }
            (Algorithm::SlidingWindowCounter { limit, window, opens }, state) => {
                let counts = match state {
                    Some(State::SlidingWindowCounter(counts)) => Some(counts),
                    _ => None,
                };
                let account = counter::Account::open(*limit, *window, *opens, counts, at);
                Accounts::Counter(Opened { account, lag, stepped })
            }
        };
        Bucket { limit, accounts }
    }

    /// What the bucket would do with a demand. A cost of 0 always passes.
    pub fn ask(&self, demand: Demand) -> Answer {
        each!(&self.accounts, opened => opened.ask(demand))
    }

    /// Charges a cost that [`ask`](Self::ask) let pass.
    pub fn take(&mut self, cost: u64) {
        each!(&mut self.accounts, opened => opened.take(cost));
    }

    /// Charges units that were spent while they were out: those of [`Terms`](crate::lease::Terms). If the limit was lowered
    /// since, they may not fit: windows and logs count them all the same, and buckets keep what exceeds their capacity as
    /// excess.
    pub(crate) fn settle_units(&mut self, units: u64) {
        match &mut self.accounts {
            Accounts::Debt(opened) => opened.account.settle_units(units),
            Accounts::Interval(opened) => opened.account.settle(units),
            Accounts::Fixed(_) | Accounts::Log(_) | Accounts::Counter(_) => self.take(units),
        }
    }

    /// Takes units off the usage of a continuous bucket, and nothing off its excess.
    pub(crate) fn forgive_units(&mut self, units: u64) {
        if let Accounts::Debt(opened) = &mut self.accounts {
            opened.account.forgive_units(units);
        }
    }

    /// What the usage leaves of the capacity, in the units of [`Terms`](crate::lease::Terms).
    pub(crate) fn room_units(&self) -> u64 {
        match &self.accounts {
            Accounts::Debt(opened) => opened.account.room_units(),
            accounts => each!(accounts, opened => opened.remaining()),
        }
    }

    /// Gives back a cost; never beyond full.
    pub fn refund(&mut self, cost: u64) {
        each!(&mut self.accounts, opened => opened.refund(cost));
    }

    /// Gives back the unused part of a price that was charged: to a bucket that refills no more than time has not repaid
    /// since that instant ([`repaid_from`](Self::repaid_from)), to a window or log only where the window or entry of that
    /// instant still counts. Whether anything changed.
    pub fn give_back(&mut self, unused: u64, price: u64, since: Timestamp) -> bool {
        each!(&mut self.accounts, opened => opened.give_back(unused, price, since))
    }

    /// The verdict on a demand, with the numbers of the bucket as it is now.
    pub fn verdict(&self, answer: Answer) -> Verdict {
        each!(&self.accounts, opened => opened.verdict(answer))
    }

    /// The instant from which time repays this cost, which was taken just now: older debt is repaid before it. For a window
    /// or a log it is the instant of the charge. Rounds down.
    pub fn repaid_from(&self, cost: u64) -> Timestamp {
        each!(&self.accounts, opened => opened.repaid_from(cost))
    }

    /// The largest cost that would pass now.
    pub fn remaining(&self) -> u64 {
        each!(&self.accounts, opened => opened.remaining())
    }

    /// The least wait after which the bucket is as good as new.
    pub fn reset_after(&self) -> Micros {
        each!(&self.accounts, opened => opened.reset_after())
    }

    /// Whether the clock went back by more than a second, so that the state was shifted.
    pub fn stepped(&self) -> bool {
        each!(&self.accounts, opened => opened.stepped)
    }

    /// Makes this instant that of the last write, though nothing was taken.
    pub(crate) fn touch(&mut self) {
        if let Accounts::Log(opened) = &mut self.accounts {
            opened.account.written(); // every other state is written as of now anyway
        }
    }

    /// The last instant at which what is taken now counts; `None` where there are no windows.
    pub(crate) fn last_instant_of_window(&self) -> Option<Timestamp> {
        let end = match &self.accounts {
            Accounts::Fixed(opened) => opened.account.end(),
            Accounts::Counter(opened) => opened.account.end(),
            Accounts::Debt(_) | Accounts::Interval(_) | Accounts::Log(_) => return None,
        };
        Some(Timestamp::from_micros(end - 1))
    }

    /// What to remember; `None` when there is nothing that a fresh bucket does not know.
    pub fn close(self) -> Option<State> {
        (!self.is_idle()).then(|| self.into_state())
    }

    /// Whether nothing is left that a fresh bucket does not have.
    fn is_idle(&self) -> bool {
        each!(&self.accounts, opened => opened.account.is_idle())
    }

    /// What a refusal writes after a clock step: the shifted state, and nothing that time did to it.
    pub fn close_shifted(self) -> State {
        match self.accounts {
            Accounts::Interval(opened) => State::TokenBucketInterval(opened.account.close_shifted()),
            Accounts::Counter(opened) => State::SlidingWindowCounter(opened.account.close_shifted()),
            // At the instant of its last write, any other state is what it is.
            _ => self.into_state(),
        }
    }

    /// The state, even if it is as good as new.
    pub fn into_state(self) -> State {
        match self.accounts {
            Accounts::Debt(opened) => match self.limit.algorithm() {
                Algorithm::LeakyBucket { .. } => State::LeakyBucket(opened.account.close()),
                _ => State::TokenBucket(opened.account.close()),
            },
            Accounts::Interval(opened) => State::TokenBucketInterval(opened.account.close()),
            Accounts::Fixed(opened) => State::FixedWindow(opened.account.close()),
            Accounts::Log(opened) => State::SlidingWindowLog(opened.account.close()),
            Accounts::Counter(opened) => State::SlidingWindowCounter(opened.account.close()),
        }
    }
}

impl<'l> TokenBucket<'l> {
    /// Brings a debt to `now`; `None` when the clock went back by so much that the debt must be shifted, or when it has to
    /// be converted: [`Bucket::open`] handles these.
    #[inline(always)]
    pub fn open(refill: &'l Refill, debt: Debt, now: Timestamp) -> Option<Self> {
        let Instant { at, lag, step } = Instant::of(Some(debt.last), now);
        let account = debt::Account::open_as_is(refill, None, &debt, at).filter(|_| step.is_none())?;
        Some(Opened { account, lag, stepped: false })
    }

    /// What to remember; `None` when the bucket is full.
    #[inline]
    pub fn close(&self) -> Option<Debt> {
        (!self.account.is_idle()).then(|| self.account.close())
    }
}

#[expect(private_bounds, reason = "only this module has accounts")]
impl<A: Account> Opened<A> {
    /// What the bucket would do with a demand. A cost of 0 always passes.
    #[inline]
    pub fn ask(&self, demand: Demand) -> Answer {
        match self.account.ask(demand.cost) {
            // A place in the queue that comes too late is no place; `delay - max_wait` later it would do.
            Answer::Pass { delay } if delay > demand.max_wait && demand.cost > 0 => {
                self.late(Answer::Wait(delay.saturating_sub(demand.max_wait)))
            }
            answer => self.late(answer),
        }
    }

    /// Charges a cost that [`ask`](Self::ask) let pass.
    #[inline]
    pub fn take(&mut self, cost: u64) {
        if cost > 0 {
            self.account.take(cost);
        }
    }

    /// Gives back a cost; never beyond full.
    pub fn refund(&mut self, cost: u64) {
        if cost > 0 {
            self.account.refund(cost);
        }
    }

    /// As [`Bucket::give_back`].
    pub fn give_back(&mut self, unused: u64, price: u64, since: Timestamp) -> bool {
        unused > 0 && self.account.give_back(unused, price, since)
    }

    /// As [`Bucket::repaid_from`].
    pub fn repaid_from(&self, cost: u64) -> Timestamp {
        self.account.repaid_from(cost)
    }

    /// The largest cost that would pass now.
    pub fn remaining(&self) -> u64 {
        self.account.remaining()
    }

    /// The verdict on a demand, with the numbers of the bucket as it is now.
    #[inline]
    pub fn verdict(&self, answer: Answer) -> Verdict {
        let (allowed, retry_after, delay) = match answer {
            Answer::Pass { delay } => (true, Some(Micros::ZERO), delay),
            Answer::Wait(wait) => (false, Some(wait), Micros::ZERO),
            Answer::Never => (false, None, Micros::ZERO),
        };
        let (limit, remaining) = (self.account.capacity(), self.account.remaining());
        let growth = if remaining < limit { self.growth(remaining) } else { Growth::Full };
        let reset_after = self.reset_after();
        Verdict { allowed, limit, remaining, retry_after, reset_after, delay, growth }
    }

    #[inline]
    fn growth(&self, remaining: u64) -> Growth {
        match self.account.growth(remaining) {
            growth if self.lag == 0 => growth,
            // A wait counts from the clock, so it has to be known now.
            _ => match self.late(self.account.ask(remaining + 1)) {
                Answer::Wait(wait) => Growth::After(wait),
                Answer::Pass { .. } | Answer::Never => Growth::Full,
            },
        }
    }

    #[inline]
    fn reset_after(&self) -> Micros {
        match self.account.reset_after() {
            0 => Micros::ZERO,
            wait => Micros::new(wait + self.lag),
        }
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

/// The instant a state is computed at, given its last write and the clock.
pub(crate) struct Instant {
    pub(crate) at: i64,
    lag: u64,
    /// By how much to move the stored instants, when the clock went back too far to be merely late.
    pub(crate) step: Option<i64>,
}

impl Instant {
    #[inline]
    pub(crate) fn of(last: Option<Timestamp>, now: Timestamp) -> Self {
        let now = now.as_micros();
        match last.map(Timestamp::as_micros) {
            Some(last) if last > now && last - now <= LATE => {
                Instant { at: last, lag: last.abs_diff(now), step: None }
            }
            Some(last) if last > now => Instant { at: now, lag: 0, step: Some(now - last) },
            _ => Instant { at: now, lag: 0, step: None },
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

    fn into_debt(self) -> Option<Debt> {
        match self {
            State::TokenBucket(debt) | State::LeakyBucket(debt) => Some(debt),
            _ => None,
        }
    }

    /// Whether there is usage above the capacity of the limit that it was written under.
    pub const fn has_excess(&self) -> bool {
        match self {
            State::TokenBucket(debt) | State::LeakyBucket(debt) => debt.excess.is_some(),
            State::TokenBucketInterval(spent) => spent.excess.is_some(),
            State::FixedWindow(_) | State::SlidingWindowLog(_) | State::SlidingWindowCounter(_) => false,
        }
    }

    /// Whether it was written by the algorithm of this limit; if not, the bucket starts anew.
    #[inline]
    pub fn is_of(&self, limit: &Limit) -> bool {
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

    /// Whether it equals a fresh state from now on, so that it may be evicted.
    pub fn is_idle(&self, limit: &Limit, now: Timestamp, window: Window) -> bool {
        if self.last() > now {
            return false;
        }
        match self {
            State::SlidingWindowLog(log) => {
                log.entries.back().is_none_or(|newest| newest.at.after(limit.period()) <= now)
            }
            state => Bucket::open(limit, Some(state.clone()), now, window).is_idle(),
        }
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

/// The start of the clock's window of a limit around an instant, for stores that keep only the last write;
/// the instant itself where no clock says when windows begin.
pub fn start_on_the_clock(limit: &Limit, window: Window, at: Timestamp) -> Timestamp {
    let at = at.as_micros();
    Timestamp::from_micros(match limit.algorithm() {
        Algorithm::FixedWindow { window: length, phase, .. } => {
            fixed::start_on_the_clock(*length, phase, window, at)
        }
        Algorithm::SlidingWindowCounter { window, opens: Opening::Epoch, .. } => {
            window_start(at, signed(*window), 0)
        }
        _ => at,
    })
}

/// The windows of a calendar around an instant: where the one before begins, the one that holds the instant, the next,
/// and the one after that.
pub fn calendar_windows(calendar: &Calendar, around: Timestamp) -> [Timestamp; 4] {
    let (start, end) = calendar::window(calendar, around.as_micros());
    let (before, _) = calendar::window(calendar, start - 1);
    let (_, after) = calendar::window(calendar, end);
    [before, start, end, after].map(Timestamp::from_micros)
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
