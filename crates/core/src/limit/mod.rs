//! The numbers of a rule: how much, how fast, by which algorithm.
//!
//! A [`Limit`] is valid by construction. Every number that a decision can reach from it stays an exact integer
//! below 2^53, so that the Lua translation, whose only numbers are doubles, computes the same.

mod error;
pub mod notation;
mod share;

use std::fmt;
use std::hash::BuildHasher as _;

use foldhash::quality::FixedState;

use crate::time::Micros;
pub use error::LimitError;
pub use notation::{Notation, NotationError};
pub use share::Rank;

/// The largest integer that every store represents exactly.
pub const MAX_EXACT: u64 = (1 << 53) - 1;
/// The longest period and window: a leap year.
pub const MAX_PERIOD: Micros = Micros::new(366 * 86_400_000_000);
/// The most entries a sliding window log keeps for one key.
pub const MAX_LOG_ENTRIES: u64 = 10_000;
/// The largest limit of a sliding window counter.
pub const MAX_COUNTER_LIMIT: u64 = 1 << 31;
/// The longest time to full of an interval bucket; its end stays exact when added to an instant.
const MAX_TIME_TO_FULL: u64 = 1 << 52;

/// How much a caller may spend, how fast it comes back, and by which algorithm.
///
/// `10/s burst 50` hands one token back every 100 ms and keeps at most 50 in reserve. A caller who was silent
/// may send 50 requests at once, and from then on one every 100 ms: the burst bounds the spike, the rate
/// bounds the average. Whom it applies to is the [`Rule`](crate::Rule)'s business.
///
/// ```
/// use tollgate_core::Limit;
///
/// let limit: Limit = "10/s burst 50".parse()?;
/// assert_eq!(limit.capacity(), 50);
/// assert_eq!(limit.to_string(), "10/s burst 50");
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// A hash of the algorithm, so that stores recognise a limit without reading all of it.
    digest: u64,
    algorithm: Algorithm,
}

/// The algorithm of a limit with its numbers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Tokens come back continuously (A1).
    TokenBucket(Refill),
    /// Tokens come back together, once per interval (A2).
    TokenBucketInterval(IntervalRefill),
    /// Requests leave one by one at a constant rate, the excess waits or is refused (A3).
    LeakyBucket {
        /// How fast requests leave; its capacity is queue + 1.
        refill: Refill,
        /// So many requests pass without waiting.
        free: u64,
    },
    /// A counter per window (A4, A7).
    FixedWindow {
        /// What one window admits.
        limit: u64,
        /// How long a window is; nominal for calendar windows.
        window: Micros,
        /// Where windows begin.
        phase: Phase,
    },
    /// Every admitted request is remembered for one window (A5).
    SlidingWindowLog {
        /// What any window admits.
        limit: u64,
        /// How long an entry counts.
        window: Micros,
    },
    /// Two counters, the previous one weighted by what of it still overlaps (A6).
    SlidingWindowCounter {
        /// What the estimate may reach.
        limit: u64,
        /// How long a window is.
        window: Micros,
        /// Whether the first take opens the window, rather than the clock.
        opens: Opening,
    },
}

/// A continuous refill in lowest terms.
///
/// `count` tokens per `period` is `n` units per microsecond, where a token is `p` units: no rounding anywhere.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Refill {
    pub(crate) count: u64,
    pub(crate) period: Micros,
    pub(crate) capacity: u64,
    pub(crate) n: u64,
    pub(crate) p: u64,
}

/// A refill that arrives all at once, every `interval`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IntervalRefill {
    pub(crate) count: u64,
    pub(crate) interval: Micros,
    pub(crate) capacity: u64,
    pub(crate) ticks: Ticks,
}

impl IntervalRefill {
    /// Tokens that arrive together.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The time between two arrivals.
    pub const fn interval(&self) -> Micros {
        self.interval
    }

    /// The most it holds.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// When its tokens arrive.
    pub const fn ticks(&self) -> Ticks {
        self.ticks
    }
}

/// When the tokens of an interval bucket arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ticks {
    /// Whole intervals after the take that brought a full bucket below full.
    FromFirstTake,
    /// At the epoch's multiples of the interval.
    Aligned,
}

/// Where the windows of a counter begin: with the clock or with the first take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Opening {
    /// At the epoch's multiples of the window.
    Epoch,
    /// With the first take after the state was as good as new.
    First,
}

/// Where the windows of a fixed window counter begin.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Phase {
    /// At the epoch's multiples of the window.
    Epoch,
    /// With the first take after the previous window ended.
    First,
    /// At an offset hashed from the key, so that not everybody's window resets at once.
    Spread,
    /// With the day, week or month of a time zone.
    Calendar(Calendar),
}

/// Days, weeks (from Monday) or months as people of one time zone count them.
#[derive(Debug, Clone)]
pub struct Calendar {
    pub(crate) unit: CalendarUnit,
    pub(crate) name: Box<str>,
    pub(crate) zone: jiff::tz::TimeZone,
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.unit == other.unit && self.name == other.name
    }
}

impl Eq for Calendar {}

impl std::hash::Hash for Calendar {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.unit, &self.name).hash(state);
    }
}

/// A unit that the calendar defines, not a number of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// From midnight to midnight.
    Day,
    /// From Monday's midnight.
    Week,
    /// From the first.
    Month,
}

/// The names of the algorithms, as rules files spell them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AlgorithmName {
    /// `token_bucket`
    TokenBucket,
    /// `token_bucket_interval`
    TokenBucketInterval,
    /// `leaky_bucket`
    LeakyBucket,
    /// `fixed_window`
    FixedWindow,
    /// `sliding_window_log`
    SlidingWindowLog,
    /// `sliding_window_counter`
    SlidingWindowCounter,
}

impl AlgorithmName {
    /// Every algorithm, in the order of the documentation.
    pub const ALL: [AlgorithmName; 6] = [
        AlgorithmName::TokenBucket,
        AlgorithmName::TokenBucketInterval,
        AlgorithmName::LeakyBucket,
        AlgorithmName::FixedWindow,
        AlgorithmName::SlidingWindowLog,
        AlgorithmName::SlidingWindowCounter,
    ];

    /// The name in rules files, SQL and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            AlgorithmName::TokenBucket => "token_bucket",
            AlgorithmName::TokenBucketInterval => "token_bucket_interval",
            AlgorithmName::LeakyBucket => "leaky_bucket",
            AlgorithmName::FixedWindow => "fixed_window",
            AlgorithmName::SlidingWindowLog => "sliding_window_log",
            AlgorithmName::SlidingWindowCounter => "sliding_window_counter",
        }
    }

    /// Reads such a name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|name| name.as_str() == text)
    }
}

impl fmt::Display for AlgorithmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Limit {
    /// A token bucket that hands back `count` tokens per `period`, holding at most `count`.
    ///
    /// # Errors
    ///
    /// A zero, a period beyond 366 days, or numbers too large to stay exact.
    pub fn new(count: u64, period: impl Into<Micros>) -> Result<Self, LimitError> {
        Self::token_bucket(count, period, count)
    }

    /// A token bucket that hands back `count` tokens per `period`, holding at most `capacity`.
    ///
    /// # Errors
    ///
    /// As [`Limit::new`].
    pub fn token_bucket(count: u64, period: impl Into<Micros>, capacity: u64) -> Result<Self, LimitError> {
        Ok(Limit::of(Algorithm::TokenBucket(Refill::new(count, period.into(), capacity, "burst")?)))
    }

    /// A token bucket to which `count` tokens come back together, once per `interval`.
    ///
    /// # Errors
    ///
    /// As [`Limit::new`].
    pub fn interval(
        count: u64,
        interval: impl Into<Micros>,
        capacity: u64,
        ticks: Ticks,
    ) -> Result<Self, LimitError> {
        let interval = interval.into();
        at_least_one(count, "count")?;
        at_least_one(capacity, "burst")?;
        check_period(interval)?;
        let largest = (MAX_TIME_TO_FULL / interval.get()).saturating_mul(count).min(MAX_EXACT);
        at_most(count, MAX_EXACT, "count")?;
        at_most(capacity, largest, "burst")?;
        let refill = IntervalRefill { count, interval, capacity, ticks };
        Ok(Limit::of(Algorithm::TokenBucketInterval(refill)))
    }

    /// A queue that `count` requests per `period` leave, in which `queue` wait; the first `free` do not wait.
    ///
    /// # Errors
    ///
    /// As [`Limit::new`], or `free` beyond the queue.
    pub fn leaky_bucket(
        count: u64,
        period: impl Into<Micros>,
        queue: u64,
        free: u64,
    ) -> Result<Self, LimitError> {
        at_most(queue, MAX_EXACT - 1, "queue")?;
        let refill = Refill::new(count, period.into(), queue + 1, "queue")?;
        if free > queue {
            return Err(LimitError::FreeBeyondQueue { free, queue });
        }
        Ok(Limit::of(Algorithm::LeakyBucket { refill, free }))
    }

    /// `limit` per window, windows beginning as `phase` says.
    ///
    /// # Errors
    ///
    /// As [`Limit::new`].
    pub fn fixed_window(limit: u64, window: impl Into<Micros>, phase: Phase) -> Result<Self, LimitError> {
        let window = window.into();
        check_window(limit, window, MAX_EXACT)?;
        Ok(Limit::of(Algorithm::FixedWindow { limit, window, phase }))
    }

    /// `limit` in any interval of length `window`, exactly.
    ///
    /// # Errors
    ///
    /// As [`Limit::new`], or a limit of more than 10,000 entries.
    pub fn sliding_window_log(limit: u64, window: impl Into<Micros>) -> Result<Self, LimitError> {
        let window = window.into();
        if limit > MAX_LOG_ENTRIES {
            return Err(LimitError::LogTooLong { given: limit });
        }
        check_window(limit, window, MAX_LOG_ENTRIES)?;
        Ok(Limit::of(Algorithm::SlidingWindowLog { limit, window }))
    }

    /// `limit` per window by the estimate of two counters.
    ///
    /// # Errors
    ///
    /// As [`Limit::new`], or a limit beyond 2^31.
    pub fn sliding_window_counter(
        limit: u64,
        window: impl Into<Micros>,
        opens: Opening,
    ) -> Result<Self, LimitError> {
        let window = window.into();
        check_window(limit, window, MAX_COUNTER_LIMIT)?;
        Ok(Limit::of(Algorithm::SlidingWindowCounter { limit, window, opens }))
    }

    /// The same token bucket with another capacity.
    ///
    /// # Errors
    ///
    /// A capacity of zero or one too large to stay exact. Windows have no burst: for them this changes nothing.
    pub fn with_burst(self, capacity: u64) -> Result<Self, LimitError> {
        match self.algorithm {
            Algorithm::TokenBucket(refill) => Self::token_bucket(refill.count, refill.period, capacity),
            Algorithm::TokenBucketInterval(refill) => {
                Self::interval(refill.count, refill.interval, capacity, refill.ticks)
            }
            algorithm => Ok(Limit::of(algorithm)),
        }
    }

    fn of(algorithm: Algorithm) -> Self {
        Limit { digest: FixedState::default().hash_one(&algorithm), algorithm }
    }

    /// A hash of everything that makes this limit.
    #[inline]
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// The algorithm with its numbers.
    pub const fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// The algorithm's name.
    pub const fn algorithm_name(&self) -> AlgorithmName {
        match self.algorithm {
            Algorithm::TokenBucket(_) => AlgorithmName::TokenBucket,
            Algorithm::TokenBucketInterval(_) => AlgorithmName::TokenBucketInterval,
            Algorithm::LeakyBucket { .. } => AlgorithmName::LeakyBucket,
            Algorithm::FixedWindow { .. } => AlgorithmName::FixedWindow,
            Algorithm::SlidingWindowLog { .. } => AlgorithmName::SlidingWindowLog,
            Algorithm::SlidingWindowCounter { .. } => AlgorithmName::SlidingWindowCounter,
        }
    }

    /// The most one bucket ever admits at once: capacity, the window's limit, or queue + 1.
    pub const fn capacity(&self) -> u64 {
        match &self.algorithm {
            Algorithm::TokenBucket(refill) | Algorithm::LeakyBucket { refill, .. } => refill.capacity,
            Algorithm::TokenBucketInterval(refill) => refill.capacity,
            Algorithm::FixedWindow { limit, .. }
            | Algorithm::SlidingWindowLog { limit, .. }
            | Algorithm::SlidingWindowCounter { limit, .. } => *limit,
        }
    }

    /// The period, interval or window its numbers are given for.
    pub const fn period(&self) -> Micros {
        match &self.algorithm {
            Algorithm::TokenBucket(refill) | Algorithm::LeakyBucket { refill, .. } => refill.period,
            Algorithm::TokenBucketInterval(refill) => refill.interval,
            Algorithm::FixedWindow { window, .. }
            | Algorithm::SlidingWindowLog { window, .. }
            | Algorithm::SlidingWindowCounter { window, .. } => *window,
        }
    }

    /// What a limit adds to the identity of its buckets: the algorithm, and of windows and logs their length and phase.
    /// With another of these, a rule counts in other buckets, so that two of them in use never overwrite each other.
    pub fn identity(&self) -> String {
        let name = self.algorithm_name().as_str();
        match &self.algorithm {
            Algorithm::TokenBucket(_) | Algorithm::TokenBucketInterval(_) | Algorithm::LeakyBucket { .. } => {
                name.to_owned()
            }
            Algorithm::FixedWindow { window, phase, .. } => match phase {
                Phase::Epoch => format!("{name} {} epoch", window.get()),
                Phase::First => format!("{name} {} first", window.get()),
                Phase::Spread => format!("{name} {} spread", window.get()),
                Phase::Calendar(calendar) => format!("{name} {} {}", calendar.unit.text(), calendar.name),
            },
            Algorithm::SlidingWindowLog { window, .. } => format!("{name} {}", window.get()),
            Algorithm::SlidingWindowCounter { window, opens, .. } => match opens {
                Opening::Epoch => format!("{name} {} epoch", window.get()),
                Opening::First => format!("{name} {} first", window.get()),
            },
        }
    }

    /// The period as a reader wants it: `1s`, `5min`, and `1month` for a calendar month.
    pub fn period_text(&self) -> String {
        match &self.algorithm {
            Algorithm::FixedWindow { phase: Phase::Calendar(calendar), .. } => {
                calendar.unit.text().to_owned()
            }
            _ => self.period().to_string(),
        }
    }

    /// How long a used-up limit takes to be as good as new: a window, or the time a bucket needs to fill.
    pub fn time_to_full(&self) -> Micros {
        match &self.algorithm {
            Algorithm::TokenBucket(refill) | Algorithm::LeakyBucket { refill, .. } => {
                Micros::new((refill.capacity * refill.p).div_ceil(refill.n))
            }
            Algorithm::TokenBucketInterval(refill) => {
                Micros::new(refill.capacity.div_ceil(refill.count) * refill.interval.get())
            }
            _ => self.period(),
        }
    }
}

impl Refill {
    /// Units in a token: what a debt is counted in.
    pub const fn units(&self) -> u64 {
        self.p
    }

    /// Units that come back every microsecond.
    pub const fn rate(&self) -> u64 {
        self.n
    }

    /// The most tokens it holds.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    fn new(count: u64, period: Micros, capacity: u64, what: &'static str) -> Result<Self, LimitError> {
        at_least_one(count, "count")?;
        at_least_one(capacity, what)?;
        check_period(period)?;
        let g = gcd(count, period.get());
        let (n, p) = (count / g, period.get() / g);
        at_most(count, MAX_EXACT - period.get(), "count")?;
        // capacity * p + n is the largest sum a decision forms.
        let largest = (MAX_EXACT - n) / p;
        let (given, largest) =
            if what == "queue" { (capacity - 1, largest - 1) } else { (capacity, largest) };
        at_most(given, largest, what)?;
        Ok(Refill { count, period, capacity, n, p })
    }
}

impl Calendar {
    /// Days, weeks or months of a time zone of the IANA database.
    ///
    /// # Errors
    ///
    /// No such time zone.
    pub fn new(unit: CalendarUnit, time_zone: &str) -> Result<Self, LimitError> {
        let zone = jiff::tz::TimeZone::get(time_zone)
            .map_err(|_| LimitError::UnknownTimeZone { given: time_zone.to_owned() })?;
        Ok(Calendar { unit, name: time_zone.into(), zone })
    }

    /// The name of the time zone.
    pub fn time_zone(&self) -> &str {
        &self.name
    }

    /// Day, week or month.
    pub const fn unit(&self) -> CalendarUnit {
        self.unit
    }
}

impl CalendarUnit {
    /// The length the notation gives it outside a calendar; only reports use it.
    pub const fn nominal(self) -> Micros {
        match self {
            CalendarUnit::Day => Micros::new(86_400_000_000),
            CalendarUnit::Week => Micros::new(7 * 86_400_000_000),
            CalendarUnit::Month => Micros::new(30 * 86_400_000_000),
        }
    }

    const fn text(self) -> &'static str {
        match self {
            CalendarUnit::Day => "1d",
            CalendarUnit::Week => "1week",
            CalendarUnit::Month => "1month",
        }
    }
}

fn at_least_one(number: u64, what: &'static str) -> Result<(), LimitError> {
    if number == 0 { Err(LimitError::Zero { what }) } else { Ok(()) }
}

fn at_most(given: u64, largest: u64, what: &'static str) -> Result<(), LimitError> {
    if given > largest { Err(LimitError::TooLarge { what, given, largest }) } else { Ok(()) }
}

fn check_period(period: Micros) -> Result<(), LimitError> {
    at_least_one(period.get(), "period")?;
    if period > MAX_PERIOD { Err(LimitError::PeriodTooLong { given: period }) } else { Ok(()) }
}

fn check_window(limit: u64, window: Micros, largest: u64) -> Result<(), LimitError> {
    at_least_one(limit, "count")?;
    check_period(window)?;
    at_most(limit, largest, "count")
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_rate_is_kept_in_lowest_terms() {
        let limit = Limit::new(100, Duration::from_secs(60)).unwrap();
        let Algorithm::TokenBucket(refill) = limit.algorithm() else { panic!("a token bucket") };
        assert_eq!((refill.n, refill.p), (1, 600_000));
    }

    #[test]
    fn a_refused_burst_names_the_largest_one_and_that_one_is_accepted() {
        let error = Limit::token_bucket(10, Duration::from_secs(1), u64::MAX).unwrap_err();
        let LimitError::TooLarge { what: "burst", largest, .. } = error else { panic!("{error}") };
        assert!(Limit::token_bucket(10, Duration::from_secs(1), largest).is_ok());
        assert!(Limit::token_bucket(10, Duration::from_secs(1), largest + 1).is_err());
    }

    #[test]
    fn every_refused_number_names_one_that_is_accepted() {
        let second = Duration::from_secs(1);
        let largest = |error: LimitError| match error {
            LimitError::TooLarge { largest, .. } => largest,
            other => panic!("{other}"),
        };
        let queue = largest(Limit::leaky_bucket(3, second, MAX_EXACT - 1, 0).unwrap_err());
        assert!(Limit::leaky_bucket(3, second, queue, 0).is_ok());
        assert!(Limit::leaky_bucket(3, second, queue + 1, 0).is_err());
        let burst = largest(Limit::interval(7, second, u64::MAX, Ticks::Aligned).unwrap_err());
        assert!(Limit::interval(7, second, burst, Ticks::Aligned).is_ok());
        let limit = largest(Limit::sliding_window_counter(u64::MAX, second, Opening::Epoch).unwrap_err());
        assert!(Limit::sliding_window_counter(limit, second, Opening::Epoch).is_ok());
        let limit = largest(Limit::fixed_window(u64::MAX, second, Phase::First).unwrap_err());
        assert!(Limit::fixed_window(limit, second, Phase::First).is_ok());
    }

    #[test]
    fn zero_and_a_period_beyond_a_year_are_refused() {
        assert_eq!(Limit::new(0, Micros::new(1)).unwrap_err(), LimitError::Zero { what: "count" });
        assert_eq!(Limit::new(1, Micros::ZERO).unwrap_err(), LimitError::Zero { what: "period" });
        let long = Micros::new(MAX_PERIOD.get() + 1);
        assert_eq!(Limit::new(1, long).unwrap_err(), LimitError::PeriodTooLong { given: long });
        assert_eq!(
            Limit::sliding_window_log(10_001, Micros::new(1)).unwrap_err(),
            LimitError::LogTooLong { given: 10_001 }
        );
    }
}
