//! A bucket's state in 16 bytes.
//!
//! ```text
//! bits   0..4    which algorithm; 0 is an empty slot
//! bits   4..20   the limit it was written under, by its number in `Limits`
//! bits  20..73   the amount: a debt, a count, or two or three small numbers side by side
//! bits  76..128  the last write, microseconds since the epoch
//! ```
//!
//! What does not fit (a log, excess, an instant before 1970 or after 2112, counts beyond their bits) is kept wide, on
//! the heap, and the slot holds its place there.

use tollgate_core::algorithm::{Count, Counts, Debt, Spent, State};
use tollgate_core::limit::{Algorithm, Opening, Phase, Refill};
use tollgate_core::{Limit, Micros, Timestamp};

use super::limits::LimitId;

const AMOUNT_BITS: u32 = 53;
const LAST_BITS: u32 = 52;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packed(u128);

/// What a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Empty,
    /// A state, written under this limit.
    Narrow(LimitId),
    /// The place of a wide state.
    Wide(u32),
}

const EMPTY: u128 = 0;
const TOKEN: u128 = 1;
const LEAKY: u128 = 2;
const INTERVAL: u128 = 3;
const FIXED: u128 = 4;
const COUNTER: u128 = 5;
const WIDE: u128 = 6;

impl Packed {
    pub(super) const EMPTY: Packed = Packed(EMPTY);

    #[inline]
    pub(super) const fn is_empty(self) -> bool {
        self.0 == EMPTY
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "fields are cut to their bits")]
    pub(super) const fn content(self) -> Content {
        match self.0 & 0xf {
            EMPTY => Content::Empty,
            WIDE => Content::Wide((self.0 >> 20) as u32),
            _ => Content::Narrow((self.0 >> 4) as LimitId),
        }
    }

    #[inline]
    pub(super) fn wide(place: u32) -> Self {
        Packed(WIDE | u128::from(place) << 20)
    }

    /// The state in 16 bytes, if it fits.
    #[inline]
    pub(super) fn narrow(state: &State, id: LimitId, limit: &Limit) -> Option<Self> {
        let last = state.last().as_micros();
        let since = |start: Timestamp| u64::try_from(last - start.as_micros()).ok();
        let (tag, amount) = match (state, limit.algorithm()) {
            (State::TokenBucket(debt), _) if debt.excess.is_none() => (TOKEN, fit(debt.debt, AMOUNT_BITS)?),
            (State::LeakyBucket(debt), _) if debt.excess.is_none() => (LEAKY, fit(debt.debt, AMOUNT_BITS)?),
            (State::TokenBucketInterval(spent), _) if spent.excess.is_none() => {
                (INTERVAL, beside(&[spent.used], since(spent.anchor)?, limit.period())?)
            }
            (State::FixedWindow(count), Algorithm::FixedWindow { phase: Phase::First, .. }) => {
                (FIXED, beside(&[count.count], since(count.start)?, limit.period())?)
            }
            (State::FixedWindow(count), _) => (FIXED, fit(count.count, AMOUNT_BITS)?),
            (
                State::SlidingWindowCounter(counts),
                Algorithm::SlidingWindowCounter { opens: Opening::First, .. },
            ) => (COUNTER, beside(&[counts.prev, counts.curr], since(counts.start)?, limit.period())?),
            (State::SlidingWindowCounter(counts), _) => {
                (COUNTER, beside(&[counts.prev, counts.curr], 0, Micros::ZERO)?)
            }
            _ => return None,
        };
        let last = fit(u64::try_from(last).ok()?, LAST_BITS)?;
        Some(Packed(tag | u128::from(id) << 4 | u128::from(amount) << 20 | u128::from(last) << 76))
    }

    /// Whether every state of a limit fits, as long as its numbers do not change and the century does not end.
    pub(super) fn always_fits(limit: &Limit) -> bool {
        let bits = |number: u64| u64::BITS - number.leading_zeros();
        let (capacity, period) = (bits(limit.capacity()), bits(limit.period().get()));
        let needed = match limit.algorithm() {
            Algorithm::TokenBucket(_) | Algorithm::LeakyBucket { .. } => AMOUNT_BITS,
            Algorithm::TokenBucketInterval(_) => capacity + period,
            Algorithm::FixedWindow { phase: Phase::First, .. } => capacity + period,
            Algorithm::FixedWindow { .. } => capacity,
            Algorithm::SlidingWindowCounter { opens: Opening::First, .. } => 2 * capacity + period + 1,
            Algorithm::SlidingWindowCounter { .. } => 2 * capacity + 1,
            Algorithm::SlidingWindowLog { .. } => u32::MAX,
        };
        needed <= AMOUNT_BITS
    }

    /// A token bucket's debt in 16 bytes, if it fits.
    #[inline]
    pub(super) fn of_debt(debt: Debt, id: LimitId) -> Option<Self> {
        let last = fit(u64::try_from(debt.last.as_micros()).ok()?, LAST_BITS)?;
        let amount = fit(debt.debt, AMOUNT_BITS)?;
        Some(Packed(TOKEN | u128::from(id) << 4 | u128::from(amount) << 20 | u128::from(last) << 76))
    }

    /// The debt, if this is a token bucket's state, written under the limit of this name and refill.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "fields are cut to their bits")]
    pub(super) fn debt(self, id: LimitId, refill: &Refill) -> Option<Debt> {
        if self.0 & 0xf_ffff != TOKEN | u128::from(id) << 4 {
            return None;
        }
        let debt = (self.0 >> 20) as u64 & ((1 << AMOUNT_BITS) - 1);
        let last = Timestamp::from_micros((self.0 >> 76) as i64);
        Some(Debt { debt, p: refill.units(), last, excess: None })
    }

    /// The state again. `limit` is the one it was written under; `start_of` finds the start of the clock's
    /// window around an instant, where that is not stored.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "fields are cut to their bits")]
    pub(super) fn state(self, limit: &Limit, start_of: impl Fn(Timestamp) -> Timestamp) -> State {
        let last_micros = (self.0 >> 76) as i64;
        let last = Timestamp::from_micros(last_micros);
        let amount = (self.0 >> 20) as u64 & ((1 << AMOUNT_BITS) - 1);
        let back = |offset: u64| Timestamp::from_micros(last_micros - offset.cast_signed());
        match (self.0 & 0xf, limit.algorithm()) {
            (tag, Algorithm::TokenBucket(refill) | Algorithm::LeakyBucket { refill, .. }) => {
                let debt = Debt { debt: amount, p: refill.units(), last, excess: None };
                if tag == TOKEN { State::TokenBucket(debt) } else { State::LeakyBucket(debt) }
            }
            (_, Algorithm::TokenBucketInterval(_)) => {
                let ([used], offset) = apart(amount, limit.period());
                State::TokenBucketInterval(Spent { used, anchor: back(offset), last, excess: None })
            }
            (_, Algorithm::FixedWindow { phase: Phase::First, window, .. }) => {
                let ([count], offset) = apart(amount, *window);
                State::FixedWindow(Count { count, start: back(offset), last })
            }
            (_, Algorithm::FixedWindow { .. }) => {
                State::FixedWindow(Count { count: amount, start: start_of(last), last })
            }
            (_, Algorithm::SlidingWindowCounter { opens: Opening::First, window, .. }) => {
                let ([prev, curr], offset) = apart(amount, *window);
                State::SlidingWindowCounter(Counts { prev, curr, start: back(offset), last })
            }
            (_, Algorithm::SlidingWindowCounter { .. }) => {
                let ([prev, curr], _) = apart(amount, Micros::ZERO);
                State::SlidingWindowCounter(Counts { prev, curr, start: start_of(last), last })
            }
            (_, Algorithm::SlidingWindowLog { .. }) => unreachable!("logs are never packed"),
        }
    }
}

fn fit(number: u64, bits: u32) -> Option<u64> {
    (number < 1 << bits).then_some(number)
}

/// Numbers of equal width above an offset that is less than `window`.
fn beside<const N: usize>(numbers: &[u64; N], offset: u64, window: Micros) -> Option<u64> {
    let (offset_bits, bits) = widths::<N>(window);
    let offset = fit(offset, offset_bits)?;
    numbers
        .iter()
        .try_rfold(0, |above, number| Some(above << bits | fit(*number, bits)?))
        .map(|all| all << offset_bits | offset)
}

fn apart<const N: usize>(amount: u64, window: Micros) -> ([u64; N], u64) {
    let (offset_bits, bits) = widths::<N>(window);
    let mut rest = amount >> offset_bits;
    let numbers = std::array::from_fn(|_| {
        let number = rest & ((1 << bits) - 1);
        rest >>= bits;
        number
    });
    (numbers, amount & ((1 << offset_bits) - 1))
}

/// The bits an offset into `window` needs, and those left for each of `N` numbers.
fn widths<const N: usize>(window: Micros) -> (u32, u32) {
    let offset_bits = u64::BITS - window.get().leading_zeros();
    let parts = u32::try_from(N).expect("one or two numbers");
    (offset_bits, AMOUNT_BITS.saturating_sub(offset_bits) / parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::limit::Ticks;

    fn instant(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    fn round_trip(limit: &Limit, state: &State) -> Option<State> {
        let start_of = |last: Timestamp| instant(last.as_micros() / 60_000_000 * 60_000_000);
        Packed::narrow(state, 7, limit).map(|packed| {
            assert_eq!(packed.content(), Content::Narrow(7));
            packed.state(limit, start_of)
        })
    }

    #[test]
    fn every_state_that_fits_comes_back_as_it_was() {
        let minute = Micros::new(60_000_000);
        let (start, last) = (instant(1_800_000_000_000_000), instant(1_800_000_000_000_000 + 59_999_999));
        let bucket = Limit::token_bucket(10, minute, 50).unwrap();
        let debt = Debt { debt: (1 << 53) - 1, p: 6_000_000, last, excess: None };
        let leaky = Limit::leaky_bucket(10, minute, 5, 0).unwrap();
        let interval = Limit::interval(10, minute, 50, Ticks::FromFirstTake).unwrap();
        let spent = Spent { used: 50, anchor: start, last, excess: None };
        let window = |phase| Limit::fixed_window(100, minute, phase).unwrap();
        let count = Count { count: 100, start, last };
        let counter = |opens| Limit::sliding_window_counter(100, minute, opens).unwrap();
        let counts = Counts { prev: 99, curr: 100, start, last };
        for (limit, state) in [
            (bucket, State::TokenBucket(debt)),
            (leaky, State::LeakyBucket(debt)),
            (interval, State::TokenBucketInterval(spent)),
            (window(Phase::Epoch), State::FixedWindow(count)),
            (window(Phase::First), State::FixedWindow(count)),
            (counter(Opening::Epoch), State::SlidingWindowCounter(counts)),
            (counter(Opening::First), State::SlidingWindowCounter(counts)),
        ] {
            assert_eq!(round_trip(&limit, &state), Some(state));
        }
    }

    #[test]
    fn what_does_not_fit_is_not_cut() {
        let limit = Limit::new(10, Micros::new(1_000_000)).unwrap();
        let debt =
            |debt, last| State::TokenBucket(Debt { debt, p: 100_000, last: instant(last), excess: None });
        assert_eq!(round_trip(&limit, &debt(1 << 53, 0)), None);
        assert_eq!(round_trip(&limit, &debt(1, -1)), None);
        assert_eq!(round_trip(&limit, &debt(1, 1 << 52)), None);
        let month = Micros::new(30 * 86_400_000_000);
        let counter = Limit::sliding_window_counter(1_000, month, Opening::First).unwrap();
        let counts = Counts { prev: 999, curr: 1, start: instant(0), last: instant(0) };
        assert_eq!(round_trip(&counter, &State::SlidingWindowCounter(counts)), None);
    }
}
