//! Instants and waits in whole microseconds: the only units of time a decision knows.

use std::fmt;
use std::time::Duration;

/// An instant: microseconds since the Unix epoch.
///
/// What the clock gives is never negative. A stored instant may be, where a clock step near the epoch moved it
/// (replayed traces start at 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The latest instant that arithmetic on every store represents exactly: the year 2255.
    pub const MAX: Timestamp = Timestamp((1 << 53) - 1);

    /// The instant `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Timestamp(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The time from an earlier instant to this one; zero if it is later.
    #[must_use]
    pub const fn since(self, earlier: Timestamp) -> Micros {
        let micros = self.0.saturating_sub(earlier.0);
        Micros(if micros < 0 { 0 } else { micros.cast_unsigned() })
    }

    /// This instant moved by a wait into the future.
    #[must_use]
    pub const fn after(self, wait: Micros) -> Self {
        Timestamp(self.0.saturating_add_unsigned(wait.0))
    }
}

/// A length of time in microseconds: a wait, a period, a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Micros(u64);

impl Micros {
    /// No time at all.
    pub const ZERO: Micros = Micros(0);
    /// Longer than anything that is waited for.
    pub const MAX: Micros = Micros(u64::MAX);

    /// So many microseconds.
    pub const fn new(micros: u64) -> Self {
        Micros(micros)
    }

    /// The bare number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whole milliseconds, rounded up: whoever waits that long has waited enough.
    pub const fn ceil_millis(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Whole seconds, rounded up.
    pub const fn ceil_secs(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// The same length for the standard library.
    pub const fn as_duration(self) -> Duration {
        Duration::from_micros(self.0)
    }

    /// What is left of this wait after `other` of it has passed.
    #[must_use]
    pub const fn saturating_sub(self, other: Micros) -> Micros {
        Micros(self.0.saturating_sub(other.0))
    }
}

impl From<Duration> for Micros {
    /// Rounds up; lengths beyond 584,000 years are cut there.
    fn from(duration: Duration) -> Self {
        Micros(u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX))
    }
}

/// A period as an operator writes it, in the largest unit that divides it: `1s`, `5min`, `1week`.
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = UNITS
            .iter()
            .copied()
            .find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit))
            .unwrap_or((1, "us"));
        write!(f, "{}{name}", self.0 / unit)
    }
}

/// The units of the limit notation and their length in microseconds, longest first.
pub(crate) const UNITS: [(u64, &str); 7] = [
    (7 * 86_400_000_000, "week"),
    (86_400_000_000, "d"),
    (3_600_000_000, "h"),
    (60_000_000, "min"),
    (1_000_000, "s"),
    (1_000, "ms"),
    (1, "us"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_round_up_so_that_nobody_comes_back_too_early() {
        assert_eq!(Micros::new(1).ceil_millis(), 1);
        assert_eq!(Micros::new(1_000_001).ceil_secs(), 2);
        assert_eq!(Micros::from(Duration::from_nanos(1)), Micros::new(1));
    }

    #[test]
    fn a_period_reads_in_its_largest_whole_unit() {
        for (micros, text) in [
            (1, "1us"),
            (1_500, "1500us"),
            (2_000, "2ms"),
            (1_000_000, "1s"),
            (90_000_000, "90s"),
            (300_000_000, "5min"),
            (604_800_000_000, "1week"),
            (2_592_000_000_000, "30d"),
        ] {
            assert_eq!(Micros::new(micros).to_string(), text);
        }
    }
}
