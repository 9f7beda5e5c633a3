//! How fast a key is asked for on this node.

use crate::time::{Micros, Timestamp};

/// The shortest time that says something about a rate.
const SLOT: u64 = 50_000;
/// So many requests say it sooner, after this time.
const MANY: u64 = 64;
const SOON: u64 = 1_000;
/// After so long a silence, what was before says nothing.
const FORGOTTEN: u64 = 16 * SLOT;
const SECOND: u64 = 1_000_000;

/// An estimate of tokens asked for in a second: quick to rise, slow to fall.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    since: Timestamp,
    asked: u64,
    requests: u64,
    per_second: u64,
}

impl Pace {
    /// Counts a request.
    #[inline]
    pub(super) fn note(&mut self, cost: u64, now: Timestamp) {
        let elapsed = now.as_micros().abs_diff(self.since.as_micros());
        if elapsed >= SLOT || self.requests >= MANY && elapsed >= SOON {
            self.roll(elapsed, now);
        }
        self.asked = self.asked.saturating_add(cost);
        self.requests += 1;
    }

    /// The estimate as of now.
    #[inline]
    pub(super) fn per_second(&mut self, now: Timestamp) -> u64 {
        let elapsed = now.as_micros().abs_diff(self.since.as_micros());
        if elapsed >= SLOT {
            self.roll(elapsed, now);
        }
        self.per_second
    }

    /// How long nobody has asked, as far as slots tell.
    pub(super) fn silence(&self, now: Timestamp) -> Micros {
        let elapsed = now.as_micros().abs_diff(self.since.as_micros());
        if self.requests > 0 && elapsed < 2 * SLOT { Micros::ZERO } else { Micros::new(elapsed) }
    }

    fn roll(&mut self, elapsed: u64, now: Timestamp) {
        let measured = self.asked.saturating_mul(SECOND) / elapsed.max(1);
        self.per_second = if measured > self.per_second || elapsed >= FORGOTTEN {
            measured
        } else {
            (self.per_second / 4).saturating_mul(3).saturating_add(measured / 4)
        };
        if self.requests > 0 {
            self.since = now;
        }
        (self.asked, self.requests) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(1_000_000_000 + micros)
    }

    #[test]
    fn a_steady_caller_is_measured_and_silence_forgets_it() {
        let mut pace = Pace::default();
        (0..1_000).for_each(|number| pace.note(2, at(number * 1_000)));
        assert!((1_900..=2_100).contains(&pace.per_second(at(1_000_000))), "{pace:?}");
        assert_eq!(pace.silence(at(1_000_000)), Micros::ZERO);
        assert!(pace.silence(at(3_000_000)).get() >= 1_900_000);
        assert!(pace.per_second(at(5_000_000)) < 30, "{pace:?}");
    }

    #[test]
    fn one_request_now_and_then_is_no_pace() {
        let mut pace = Pace::default();
        (0..10).for_each(|number| pace.note(1, at(number * 500_000)));
        assert!(pace.per_second(at(5_000_000)) <= 2, "{pace:?}");
    }
}
