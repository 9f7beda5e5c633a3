//! What a bucket looks like in Redis: packed integers, as the scripts read and write them, little end first.
//!
//! The usual state is **compact**: 12 bytes, the most that fits an allocation of 32 bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | low four bits: algorithm + 8; high four bits: bits 48 to 51 of the last write |
//! | 6 | bits 0 to 47 of the last write, in microseconds |
//! | 5 | by algorithm, the highest bits first: |
//! | | token bucket (1), leaky bucket (3): debt (29 bits), units in a token as m (7) and k (4): m * 10^k |
//! | | interval bucket (2): used (12), last write - anchor (28) |
//! | | fixed window (4) that the clock opens: count (40) |
//! | | sliding window counter (6) that the clock opens: previous and current count (20 each) |
//!
//! A state that does not fit is **wide**: one byte is the algorithm, then integers of seven bytes each unless noted:
//!
//! | algorithm | after the first byte |
//! |---|---|
//! | token bucket, leaky bucket | debt, units in a token, last write |
//! | interval bucket | used, anchor, last write |
//! | fixed window | count, start of the window, last write |
//! | sliding window counter | previous and current count (four bytes each), start of the window, last write |
//! | sliding window log (5) | a list: cost of all entries (four bytes), last write; then instant and cost (four) of each |
//!
//! A bucket with [`Excess`] is wide, has 16 added to its first byte, and four more integers before the others: the excess
//! and the numbers of the limit it was written under.
//!
//! A bucket with a [`Ledger`] is wide, and the ledger's numbers follow (in a log: after its first element).

use tollgate_core::Timestamp;
use tollgate_core::algorithm::{Count, Counts, Debt, Entry, Excess, Log, Spent, State};
use tollgate_core::lease::{LeaseCall, Ledger};
use tollgate_core::limit::{AlgorithmName, MAX_EXACT};

/// The bytes of each number of a ledger.
const LEDGER: [usize; Ledger::NUMBERS] = [7, 7, 7, 7, 7, 7, 7, 4, 5, 5, 5, 5, 4, 4, 7, 7, 4];
/// The bytes of a compact state.
const COMPACT: usize = 12;
/// Added to the algorithm in the first byte of a compact state.
const COMPACT_FLAG: u8 = 8;

/// The first byte of what an algorithm stores.
pub(super) const fn tag(algorithm: AlgorithmName) -> u8 {
    match algorithm {
        AlgorithmName::TokenBucket => 1,
        AlgorithmName::TokenBucketInterval => 2,
        AlgorithmName::LeakyBucket => 3,
        AlgorithmName::FixedWindow => 4,
        AlgorithmName::SlidingWindowLog => 5,
        AlgorithmName::SlidingWindowCounter => 6,
    }
}

/// Reads packed integers from the front of some bytes.
#[derive(Debug)]
pub(super) struct Fields<'b>(pub(super) &'b [u8]);

impl Fields<'_> {
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn ledger(&mut self) -> Option<Ledger> {
        let mut numbers = [0; Ledger::NUMBERS];
        for (number, bytes) in numbers.iter_mut().zip(LEDGER) {
            *number = match bytes {
                4 => self.short()?.into(),
                5 => self.bytes().map(|[a, b, c, d, e]| i64::from_le_bytes([a, b, c, d, e, 0, 0, 0]))?,
                _ => self.signed()?,
            };
        }
        Ledger::from_numbers(numbers)
    }

    pub(super) fn two_bytes(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    pub(super) fn short(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(super) fn signed(&mut self) -> Option<i64> {
        let [a, b, c, d, e, f, g] = self.bytes()?;
        // The sign is in the highest of seven bytes: shift it up and back.
        Some(i64::from_le_bytes([0, a, b, c, d, e, f, g]) >> 8)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        self.signed().and_then(|number| u64::try_from(number).ok())
    }

    pub(super) fn instant(&mut self) -> Option<Timestamp> {
        self.signed().map(Timestamp::from_micros)
    }

    fn excess(&mut self) -> Option<Excess> {
        let [tokens, capacity, refill, period] =
            [self.number()?, self.number()?, self.number()?, self.number()?];
        Some(Excess { tokens, capacity, refill, period })
    }
}

/// Units in a token as a compact state has them: m * 16 + k for m * 10^k; 0 if they do not fit.
pub(super) const fn units_code(units: u64) -> u64 {
    let (mut m, mut k) = (units, 0);
    while m > 0 && m.is_multiple_of(10) {
        m /= 10;
        k += 1;
    }
    if m < 128 && k < 16 { m * 16 + k } else { 0 }
}

/// The state of an algorithm and its ledger; `None` for the bytes of another algorithm, or foreign bytes. Where the
/// clock opens windows, a compact state has no start: it is that of the last write.
pub(super) fn decode_leased(algorithm: AlgorithmName, bytes: &[u8]) -> Option<(State, Option<Ledger>)> {
    if bytes.len() == COMPACT && bytes[0] & 15 == tag(algorithm) + COMPACT_FLAG {
        return decode_compact(algorithm, bytes).map(|state| (state, None));
    }
    let excess = if has_excess(bytes) { EXCESS } else { 0 };
    let (state, ledger) = bytes.split_at_checked(length(algorithm) + excess)?;
    let state = decode(algorithm, state)?;
    if ledger.is_empty() {
        return Some((state, None));
    }
    let mut fields = Fields(ledger);
    let ledger = fields.ledger().filter(|_| fields.0.is_empty())?;
    Some((state, Some(ledger)))
}

fn decode_compact(algorithm: AlgorithmName, bytes: &[u8]) -> Option<State> {
    let (instant, number) = bytes.split_first_chunk::<7>()?;
    let mut wide = [0; 8];
    wide[..6].copy_from_slice(&instant[1..]);
    wide[6] = instant[0] >> 4;
    let last = Timestamp::from_micros(i64::from_le_bytes(wide));
    wide = [0; 8];
    wide[..5].copy_from_slice(number);
    let x = u64::from_le_bytes(wide);
    let debt = || {
        let (m, k) = (x >> 4 & 127, u32::try_from(x & 15).ok()?);
        Some(Debt { debt: x >> 11, p: (m * 10u64.pow(k)).max(1), last, excess: None })
    };
    Some(match algorithm {
        AlgorithmName::TokenBucket => State::TokenBucket(debt()?),
        AlgorithmName::LeakyBucket => State::LeakyBucket(debt()?),
        AlgorithmName::TokenBucketInterval => {
            let since = i64::try_from(x & ((1 << 28) - 1)).ok()?;
            let anchor = Timestamp::from_micros(last.as_micros() - since);
            State::TokenBucketInterval(Spent { used: x >> 28, anchor, last, excess: None })
        }
        AlgorithmName::FixedWindow => State::FixedWindow(Count { count: x, start: last, last }),
        AlgorithmName::SlidingWindowCounter => {
            let (prev, curr) = (x >> 20, x & ((1 << 20) - 1));
            State::SlidingWindowCounter(Counts { prev, curr, start: last, last })
        }
        AlgorithmName::SlidingWindowLog => return None,
    })
}

/// Added to the first byte of a state with excess, which only the three kinds of buckets have.
const EXCESS_FLAG: u8 = 16;
/// The bytes of the excess.
const EXCESS: usize = 28;

fn has_excess(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|first| matches!(first, 17..=19))
}

/// The bytes of a state without excess and ledger.
const fn length(algorithm: AlgorithmName) -> usize {
    match algorithm {
        AlgorithmName::SlidingWindowLog => 12,
        AlgorithmName::SlidingWindowCounter => 23,
        _ => 22,
    }
}

/// Appends a call as the script reads it.
pub(super) fn put_call(call: &LeaseCall, out: &mut Vec<u8>) {
    let number = |number: u64| number.min(MAX_EXACT).cast_signed();
    let short = |number: u64| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
    put(call.boundary.map_or(Ledger::NO_END, Timestamp::as_micros), out);
    put(number(call.returned), out);
    out.extend_from_slice(&short(call.rate));
    put(number(call.has), out);
    put(number(call.demand), out);
    put(number(call.own_demand), out);
    out.push(call.wants as u8);
    out.extend_from_slice(&short(call.lease_time.get()));
}

/// The state of an algorithm; `None` for the bytes of another algorithm, or foreign bytes.
fn decode(algorithm: AlgorithmName, bytes: &[u8]) -> Option<State> {
    let mut fields = Fields(bytes);
    let excess_flag = if has_excess(bytes) { EXCESS_FLAG } else { 0 };
    if fields.byte()? != tag(algorithm) + excess_flag {
        return None;
    }
    let excess = if has_excess(bytes) { Some(fields.excess()?) } else { None };
    let state = match algorithm {
        AlgorithmName::TokenBucket => State::TokenBucket(debt(&mut fields, excess)?),
        AlgorithmName::LeakyBucket => State::LeakyBucket(debt(&mut fields, excess)?),
        AlgorithmName::TokenBucketInterval => State::TokenBucketInterval(Spent {
            used: fields.number()?,
            anchor: fields.instant()?,
            last: fields.instant()?,
            excess,
        }),
        AlgorithmName::FixedWindow => State::FixedWindow(Count {
            count: fields.number()?,
            start: fields.instant()?,
            last: fields.instant()?,
        }),
        AlgorithmName::SlidingWindowCounter => State::SlidingWindowCounter(Counts {
            prev: fields.short()?.into(),
            curr: fields.short()?.into(),
            start: fields.instant()?,
            last: fields.instant()?,
        }),
        AlgorithmName::SlidingWindowLog => return None,
    };
    fields.0.is_empty().then_some(state)
}

fn debt(fields: &mut Fields<'_>, excess: Option<Excess>) -> Option<Debt> {
    let (debt, p, last) = (fields.number()?, fields.number()?.max(1), fields.instant()?);
    Some(Debt { debt, p, last, excess })
}

/// A log, from the elements of its list.
pub(super) fn decode_log(elements: &[Vec<u8>]) -> Option<State> {
    let (head, entries) = elements.split_first()?;
    let mut fields = Fields(head);
    if fields.byte()? != tag(AlgorithmName::SlidingWindowLog) {
        return None;
    }
    let (sum, last) = (fields.short()?.into(), fields.instant()?);
    let entry = |bytes: &Vec<u8>| {
        let mut fields = Fields(bytes);
        Some(Entry { at: fields.instant()?, cost: fields.short()? })
    };
    let entries = entries.iter().map(entry).collect::<Option<_>>()?;
    Some(State::SlidingWindowLog(Log { entries, sum, last }))
}

/// Appends an integer in seven bytes.
pub(super) fn put(number: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_le_bytes()[..7]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seven_bytes_keep_every_instant_and_its_sign() {
        for number in [0, 1, -1, 255, -256, (1 << 53) - 1, -(1 << 53), (1 << 55) - 1, -(1 << 55)] {
            let mut bytes = Vec::new();
            put(number, &mut bytes);
            assert_eq!(bytes.len(), 7);
            assert_eq!(Fields(&bytes).signed(), Some(number));
        }
    }

    #[test]
    fn units_in_a_token_have_a_code_if_few_digits_are_not_zero() {
        assert_eq!(units_code(100_000), 16 + 5); // 10/s
        assert_eq!(units_code(36_000_000), 36 * 16 + 6); // 100/h
        assert_eq!(units_code(1), 16);
        assert_eq!(units_code(128), 0);
        assert_eq!(units_code(15_625), 0);
    }

    #[test]
    fn compact_state_has_all_bits_of_the_instant() {
        let last = (9 << 48) + 7;
        let mut bytes = vec![1 + COMPACT_FLAG + (9 << 4)];
        bytes.extend_from_slice(&7u64.to_le_bytes()[..6]);
        bytes.extend_from_slice(&(((1u64 << 29) - 1) * 2048 + units_code(36_000_000)).to_le_bytes()[..5]);
        let debt =
            Debt { debt: (1 << 29) - 1, p: 36_000_000, last: Timestamp::from_micros(last), excess: None };
        let decoded = |algorithm| decode_leased(algorithm, &bytes).map(|(state, _)| state);
        assert_eq!(decoded(AlgorithmName::TokenBucket), Some(State::TokenBucket(debt)));
        assert_eq!(decoded(AlgorithmName::LeakyBucket), None);
    }

    #[test]
    fn what_is_not_a_state_of_the_algorithm_is_none() {
        let mut bytes = vec![1];
        [7, 3, 9].into_iter().for_each(|number| put(number, &mut bytes));
        let last = Timestamp::from_micros(9);
        assert_eq!(
            decode(AlgorithmName::TokenBucket, &bytes),
            Some(State::TokenBucket(Debt { debt: 7, p: 3, last, excess: None }))
        );
        assert_eq!(decode(AlgorithmName::LeakyBucket, &bytes), None);
        assert_eq!(decode(AlgorithmName::TokenBucket, &bytes[..21]), None);
        bytes.push(0);
        assert_eq!(decode(AlgorithmName::TokenBucket, &bytes), None);
        assert_eq!(decode(AlgorithmName::TokenBucket, b""), None);
        // Only buckets have excess: a window with its flag is not ours, as in the script.
        let mut flagged = vec![tag(AlgorithmName::FixedWindow) + EXCESS_FLAG];
        (0..7).for_each(|number| put(number, &mut flagged));
        assert_eq!(decode(AlgorithmName::FixedWindow, &flagged), None);
        flagged[0] = tag(AlgorithmName::TokenBucket) + EXCESS_FLAG;
        let excess = Some(Excess { tokens: 0, capacity: 1, refill: 2, period: 3 });
        let last = Timestamp::from_micros(6);
        let state = State::TokenBucket(Debt { debt: 4, p: 5, last, excess });
        assert_eq!(decode(AlgorithmName::TokenBucket, &flagged), Some(state));
    }
}
