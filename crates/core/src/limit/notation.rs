//! The limit notation: `10/s burst 50`, `60 every 60s`, `5/s queue 20 free 5`.
//!
//! ```text
//! limit    = count "/" period [ "burst" count ]
//!          | count "every" period [ "burst" count ]
//!          | count "/" period "queue" count [ "free" count ]
//! period   = [ number ] ( "us" | "ms" | "s" | "min" | "h" | "d" | "week" | "month" )
//! ```
//!
//! A month is 30 days, except in a calendar window.

use std::fmt;
use std::str::FromStr;

use super::{
    Algorithm, AlgorithmName, Calendar, CalendarUnit, Limit, LimitError, MAX_EXACT, Opening, Phase, Ticks,
};
use crate::suggest::closest;
use crate::time::{Micros, UNITS};

const MONTH: u64 = 30 * 86_400_000_000;

/// A limit as written, before an algorithm gives it meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notation {
    count: u64,
    period: Micros,
    calendar: Option<CalendarUnit>,
    shape: Shape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Rate { burst: Option<u64> },
    Every { burst: Option<u64> },
    Queue { queue: u64, free: u64 },
}

/// What a rule says beside the notation. Absent means the default of SEMANTICS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options<'a> {
    /// The algorithm's name.
    pub algorithm: Option<AlgorithmName>,
    /// `epoch`, `first`, `spread` or `calendar`.
    pub window: Option<&'a str>,
    /// For calendar windows.
    pub time_zone: Option<&'a str>,
    /// For interval refill.
    pub aligned: Option<bool>,
}

/// Which of the fields beside the notation an error is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The notation itself.
    Limit,
    /// `algorithm`
    Algorithm,
    /// `window`
    Window,
    /// `time_zone`
    TimeZone,
    /// `aligned`
    Aligned,
}

/// Why a text is not in the notation, and what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotationError {
    /// Nothing of the kind.
    #[error(
        "`{text}` is not a limit; write it like `100/min`, `10/s burst 50`, `60 every 60s` or `5/s queue 20`"
    )]
    Shape {
        /// What was written.
        text: String,
    },
    /// Not a whole number.
    #[error("`{text}` is not a whole number from 0 to {MAX_EXACT}{hint}")]
    Number {
        /// What was written.
        text: String,
        /// What to write instead, if that can be told.
        hint: &'static str,
    },
    /// An unknown unit of time.
    #[error("unknown unit `{unit}`{}; periods are us, ms, s, min, h, d, week, month, as in `30s`", did_you_mean(.closest))]
    Unit {
        /// What was written.
        unit: String,
        /// The unit that was probably meant.
        closest: Option<&'static str>,
    },
    /// An unknown or repeated word after the rate.
    #[error("unexpected `{word}`{}; after the rate come `burst N`, or `queue N` and `free N`", did_you_mean(.closest))]
    Word {
        /// What was written.
        word: String,
        /// The word that was probably meant.
        closest: Option<&'static str>,
    },
    /// A word without its number.
    #[error("`{word}` needs a number after it, as in `{word} 20`")]
    NumberMissing {
        /// The word.
        word: &'static str,
    },
    /// The notation implies another algorithm than the one named.
    #[error("`{word}` means {implied}, but the algorithm is {named}; drop one of the two")]
    Contradiction {
        /// What in the notation implies an algorithm.
        word: &'static str,
        /// Which one.
        implied: AlgorithmName,
        /// The one that was named.
        named: AlgorithmName,
    },
    /// Windows have no burst.
    #[error("`burst` has no meaning for {algorithm}; a window admits its count, drop `burst`")]
    BurstOnWindow {
        /// The algorithm.
        algorithm: AlgorithmName,
    },
    /// A leaky bucket is its queue.
    #[error("a leaky_bucket needs its queue, as in `{rate} queue 20`")]
    QueueMissing {
        /// The notation so far.
        rate: String,
    },
    /// `every` is missing.
    #[error("token_bucket_interval is written with `every`, as in `{count} every {period}`")]
    EveryMissing {
        /// The count.
        count: u64,
        /// The period.
        period: Micros,
    },
    /// A window kind that the algorithm does not know.
    #[error("window `{window}` is not for {algorithm}; it takes {accepted}")]
    Window {
        /// What was written.
        window: String,
        /// The algorithm.
        algorithm: AlgorithmName,
        /// What it takes.
        accepted: &'static str,
    },
    /// A time zone without a calendar.
    #[error("time_zone is for `window: calendar` only")]
    TimeZoneWithoutCalendar,
    /// Alignment without an interval.
    #[error("aligned is for interval refill only, as in `60 every 60s`")]
    AlignedWithoutInterval,
}

impl NotationError {
    /// Which field the error is about.
    pub const fn part(&self) -> Part {
        match self {
            NotationError::Window { .. } => Part::Window,
            NotationError::TimeZoneWithoutCalendar => Part::TimeZone,
            NotationError::AlignedWithoutInterval => Part::Aligned,
            NotationError::Contradiction { .. } => Part::Algorithm,
            _ => Part::Limit,
        }
    }
}

impl LimitError {
    /// Which of a rule's fields the error is about.
    pub const fn part(&self) -> Part {
        match self {
            LimitError::Notation(error) => error.part(),
            LimitError::UnknownTimeZone { .. } => Part::TimeZone,
            _ => Part::Limit,
        }
    }
}

fn did_you_mean(closest: &Option<&'static str>) -> String {
    closest.map(|word| format!(" (did you mean `{word}`?)")).unwrap_or_default()
}

impl FromStr for Notation {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        let not_a_limit = || NotationError::Shape { text: text.trim().to_owned() };
        // `10 / s` reads like `10/s`.
        let spaced = text.replace('/', " / ");
        let mut words = spaced.split_whitespace();
        let count = number(words.next().ok_or_else(not_a_limit)?)?;
        let every = match words.next().ok_or_else(not_a_limit)? {
            "/" => false,
            "every" => true,
            _ => return Err(not_a_limit()),
        };
        let mut period_text = words.next().ok_or_else(not_a_limit)?.to_owned();
        let mut rest = words.peekable();
        if period_text.bytes().all(|byte| byte.is_ascii_digit()) {
            period_text.push_str(rest.next().ok_or_else(not_a_limit)?); // `5 min` reads like `5min`
        }
        let (period, calendar) = period(&period_text)?;

        let (mut burst, mut queue, mut free) = (None, None, None);
        while let Some(word) = rest.next() {
            let (name, place) = match word {
                "burst" if burst.is_none() && queue.is_none() => ("burst", &mut burst),
                "queue" if queue.is_none() && burst.is_none() && !every => ("queue", &mut queue),
                "free" if free.is_none() && queue.is_some() => ("free", &mut free),
                _ => {
                    let closest =
                        closest(word, ["burst", "queue", "free"]).filter(|closest| *closest != word);
                    return Err(NotationError::Word { word: word.to_owned(), closest });
                }
            };
            *place = Some(number(rest.next().ok_or(NotationError::NumberMissing { word: name })?)?);
        }
        let shape = match (every, queue) {
            (true, _) => Shape::Every { burst },
            (false, Some(queue)) => Shape::Queue { queue, free: free.unwrap_or(0) },
            (false, None) => Shape::Rate { burst },
        };
        Ok(Notation { count, period, calendar, shape })
    }
}

fn number(text: &str) -> Result<u64, NotationError> {
    let hint = match text.as_bytes() {
        [b'-', ..] => "; it cannot be negative",
        _ if text.contains('.') && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') => {
            "; use a longer period for fractions, as in `3/2s` for 1.5 a second"
        }
        _ if text.contains('_') || text.contains(',') => "; write the digits without separators",
        _ => "",
    };
    let error = || NotationError::Number { text: text.to_owned(), hint };
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(error());
    }
    text.parse().ok().filter(|number| *number <= MAX_EXACT).ok_or_else(error)
}

fn period(text: &str) -> Result<(Micros, Option<CalendarUnit>), NotationError> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (factor, unit) = text.split_at(digits);
    let factor = if factor.is_empty() { 1 } else { number(factor)? };
    let micros = match unit {
        "month" => MONTH,
        _ => UNITS.iter().find(|(_, name)| *name == unit).map(|(micros, _)| *micros).ok_or_else(|| {
            let closest = unit_meant(unit);
            NotationError::Unit { unit: unit.to_owned(), closest }
        })?,
    };
    let calendar = match (factor, unit) {
        (1, "d") => Some(CalendarUnit::Day),
        (1, "week") => Some(CalendarUnit::Week),
        (1, "month") => Some(CalendarUnit::Month),
        _ => None,
    };
    Ok((Micros::new(micros.saturating_mul(factor)), calendar))
}

/// The unit behind the ways people spell it.
fn unit_meant(unit: &str) -> Option<&'static str> {
    match unit.to_ascii_lowercase().as_str() {
        "sec" | "secs" | "second" | "seconds" => Some("s"),
        "m" | "mins" | "minute" | "minutes" => Some("min"),
        "hr" | "hrs" | "hour" | "hours" => Some("h"),
        "day" | "days" => Some("d"),
        "w" | "wk" | "weeks" => Some("week"),
        "mo" | "mon" | "months" => Some("month"),
        "millis" | "msec" => Some("ms"),
        "micros" | "usec" | "µs" => Some("us"),
        other => closest(other, ["us", "ms", "s", "min", "h", "d", "week", "month"]),
    }
}

impl Notation {
    /// The limit this notation and the fields beside it describe.
    ///
    /// # Errors
    ///
    /// They contradict each other, or the numbers are out of range.
    pub fn limit(&self, options: &Options<'_>) -> Result<Limit, LimitError> {
        let algorithm = self.algorithm(options)?;
        if options.time_zone.is_some() && options.window != Some("calendar") {
            return Err(NotationError::TimeZoneWithoutCalendar.into());
        }
        if options.aligned.is_some() && algorithm != AlgorithmName::TokenBucketInterval {
            return Err(NotationError::AlignedWithoutInterval.into());
        }
        let (count, period) = (self.count, self.period);
        match (algorithm, self.shape) {
            (AlgorithmName::TokenBucket, Shape::Rate { burst }) => {
                self.no_window(algorithm, options)?;
                let limit = Limit::token_bucket(count, period, burst.unwrap_or(count));
                if burst.is_none() {
                    limit.map_err(|error| implied_burst(error, count, period))
                } else {
                    limit
                }
            }
            (AlgorithmName::TokenBucketInterval, Shape::Every { burst }) => {
                self.no_window(algorithm, options)?;
                let ticks = if options.aligned == Some(true) { Ticks::Aligned } else { Ticks::FromFirstTake };
                Limit::interval(count, period, burst.unwrap_or(count), ticks)
            }
            (AlgorithmName::LeakyBucket, Shape::Queue { queue, free }) => {
                self.no_window(algorithm, options)?;
                Limit::leaky_bucket(count, period, queue, free)
            }
            (AlgorithmName::LeakyBucket, _) => {
                Err(NotationError::QueueMissing { rate: format!("{count}/{}", short(period)) }.into())
            }
            (AlgorithmName::TokenBucketInterval, _) => {
                Err(NotationError::EveryMissing { count, period }.into())
            }
            (_, Shape::Rate { burst: Some(_) }) => Err(NotationError::BurstOnWindow { algorithm }.into()),
            (AlgorithmName::FixedWindow, _) => Limit::fixed_window(count, period, self.phase(options)?),
            (AlgorithmName::SlidingWindowLog, _) => {
                self.no_window(algorithm, options)?;
                Limit::sliding_window_log(count, period)
            }
            (_, _) => {
                let opens = match options.window {
                    None | Some("epoch") => Opening::Epoch,
                    Some("first") => Opening::First,
                    Some(window) => return Err(not_for(window, algorithm, "`epoch` or `first`")),
                };
                Limit::sliding_window_counter(count, period, opens)
            }
        }
    }

    /// The algorithm the notation implies, unless the named one contradicts it.
    fn algorithm(&self, options: &Options<'_>) -> Result<AlgorithmName, NotationError> {
        let (word, implied) = match self.shape {
            Shape::Rate { .. } => return Ok(options.algorithm.unwrap_or(AlgorithmName::TokenBucket)),
            Shape::Every { .. } => ("every", AlgorithmName::TokenBucketInterval),
            Shape::Queue { .. } => ("queue", AlgorithmName::LeakyBucket),
        };
        match options.algorithm {
            Some(named) if named != implied => Err(NotationError::Contradiction { word, implied, named }),
            _ => Ok(implied),
        }
    }

    fn phase(&self, options: &Options<'_>) -> Result<Phase, LimitError> {
        Ok(match options.window {
            None | Some("epoch") => Phase::Epoch,
            Some("first") => Phase::First,
            Some("spread") => Phase::Spread,
            Some("calendar") => {
                let unit = self
                    .calendar
                    .ok_or_else(|| LimitError::NotACalendarPeriod { given: self.period.to_string() })?;
                Phase::Calendar(Calendar::new(unit, options.time_zone.unwrap_or("UTC"))?)
            }
            Some(window) => {
                let accepted = "`epoch`, `first`, `spread` or `calendar`";
                return Err(not_for(window, AlgorithmName::FixedWindow, accepted));
            }
        })
    }

    fn no_window(&self, algorithm: AlgorithmName, options: &Options<'_>) -> Result<(), LimitError> {
        options.window.map_or(Ok(()), |window| Err(not_for(window, algorithm, "no window")))
    }
}

/// Nobody wrote a burst, so the count is to blame: names one that is its own burst and stays exact at any period.
fn implied_burst(error: LimitError, count: u64, period: Micros) -> LimitError {
    match error {
        LimitError::TooLarge { .. } => LimitError::TooLarge {
            what: "count",
            given: count,
            largest: (MAX_EXACT / (period.get() + 1)).max(1),
        },
        error => error,
    }
}

fn not_for(window: &str, algorithm: AlgorithmName, accepted: &'static str) -> LimitError {
    NotationError::Window { window: window.to_owned(), algorithm, accepted }.into()
}

impl FromStr for Limit {
    type Err = LimitError;

    /// Reads the notation with the algorithm it implies; a plain rate is a token bucket.
    fn from_str(text: &str) -> Result<Self, LimitError> {
        text.parse::<Notation>()?.limit(&Options::default())
    }
}

/// The notation of the limit. The algorithm and its window stand beside it in a rule.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.algorithm() {
            Algorithm::TokenBucket(refill) => {
                write!(f, "{}/{}", refill.count, short(refill.period))?;
                burst(f, refill.capacity, refill.count)
            }
            Algorithm::TokenBucketInterval(refill) => {
                write!(f, "{} every {}", refill.count, refill.interval)?;
                burst(f, refill.capacity, refill.count)
            }
            Algorithm::LeakyBucket { refill, free } => {
                write!(f, "{}/{} queue {}", refill.count, short(refill.period), refill.capacity - 1)?;
                if *free > 0 { write!(f, " free {free}") } else { Ok(()) }
            }
            Algorithm::FixedWindow { limit, phase: Phase::Calendar(calendar), .. } => {
                write!(f, "{limit}/{}", calendar.unit.text().trim_start_matches('1'))
            }
            Algorithm::FixedWindow { limit, window, .. }
            | Algorithm::SlidingWindowLog { limit, window }
            | Algorithm::SlidingWindowCounter { limit, window, .. } => {
                write!(f, "{limit}/{}", short(*window))
            }
        }
    }
}

fn burst(f: &mut fmt::Formatter<'_>, capacity: u64, count: u64) -> fmt::Result {
    if capacity == count { Ok(()) } else { write!(f, " burst {capacity}") }
}

/// A period without a leading 1: `s`, `30s`.
fn short(period: Micros) -> String {
    let text = period.to_string();
    match text.strip_prefix('1') {
        Some(unit) if unit.starts_with(|first: char| first.is_ascii_alphabetic()) => unit.to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        text.parse::<Limit>().unwrap_err().to_string()
    }

    #[test]
    fn the_notation_prints_as_it_was_read() {
        for text in [
            "10/s burst 50",
            "100/min",
            "60 every 1min",
            "10 every 5s burst 100",
            "5/s queue 20",
            "5/s queue 20 free 5",
            "1/30s",
            "7/week",
            "1/us",
            "3/2h",
        ] {
            assert_eq!(text.parse::<Limit>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn spaces_and_longer_spellings_of_a_period_are_fine() {
        for (text, canonical) in [
            (" 10 / s  burst 50 ", "10/s burst 50"),
            ("60 every 60s", "60 every 1min"),
            ("5/5 min", "5/5min"),
        ] {
            assert_eq!(text.parse::<Limit>().unwrap().to_string(), canonical);
        }
        assert_eq!("1/month".parse::<Limit>().unwrap().period(), Micros::new(MONTH));
    }

    #[test]
    fn what_is_wrong_comes_with_what_to_write() {
        assert_eq!(error("fast"), "`fast` is not a whole number from 0 to 9007199254740991");
        assert!(error("10").contains("write it like `100/min`"));
        assert!(error("10/sec").contains("did you mean `s`?"));
        assert!(error("10/s bust 5").contains("did you mean `burst`?"));
        assert!(error("10/s burst").contains("`burst 20`"));
        assert!(error("1.5/s").contains("`3/2s`"));
        assert!(error("-1/s").contains("cannot be negative"));
        assert!(error("0/min").contains("action: deny"));
        assert!(error("18446744073709551616/s").contains("9007199254740991"));
        assert!(error("10/s burst 5 queue 3").contains("unexpected `queue`"));
        assert!(error("NaN/s").contains("not a whole number"));
    }

    #[test]
    fn a_count_too_large_to_be_its_own_burst_names_one_that_is_accepted() {
        for period in ["us", "s", "7s", "d"] {
            let error = format!("9007199254740991/{period}").parse::<Limit>();
            let Err(LimitError::TooLarge { what: "count", largest, .. }) = error else { panic!("{error:?}") };
            assert!(format!("{largest}/{period}").parse::<Limit>().is_ok(), "{largest}/{period}");
        }
    }

    #[test]
    fn a_word_that_implies_an_algorithm_does_not_contradict_the_named_one() {
        let fixed = Options { algorithm: Some(AlgorithmName::FixedWindow), ..Options::default() };
        let leaky = Options { algorithm: Some(AlgorithmName::LeakyBucket), ..Options::default() };
        let read =
            |text: &str, options| text.parse::<Notation>().unwrap().limit(options).unwrap_err().to_string();
        assert!(read("1 every 1s", &fixed).contains("means token_bucket_interval"));
        assert!(read("1/s burst 2", &fixed).contains("drop `burst`"));
        assert!(read("5/s", &leaky).contains("`5/s queue 20`"));
        let calendar = Options { window: Some("calendar"), ..fixed };
        assert!(read("5/2d", &calendar).contains("one `d`, `week` or `month`"));
        let zone = Options { time_zone: Some("Mars/Olympus"), ..calendar };
        assert!(read("5/d", &zone).contains("unknown time zone `Mars/Olympus`"));
    }
}
