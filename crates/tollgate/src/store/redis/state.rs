//! What a bucket looks like in Redis: a few packed integers, as `charge.lua` reads and writes them.
//!
//! One byte says which algorithm wrote it; integers follow, little end first, seven bytes each unless noted:
//!
//! | algorithm | after the first byte |
//! |---|---|
//! | token bucket, leaky bucket | debt, units in a token, last write |
//! | interval bucket | used, anchor, last write |
//! | fixed window | count, start of the window, last write |
//! | sliding window counter | previous and current count (four bytes each), start of the window, last write |
//! | sliding window log | a list: cost of all entries (four bytes), last write; then instant and cost (four) of each |
//!
//! A bucket with [`Excess`] has 16 added to its first byte, and four more integers before the others: the excess and the
//! numbers of the limit it was written under.
//!
//! Where something is out on lease, the ledger stands behind that (in a log: behind its first element): for each node its
//! id (eight bytes), the sequence number of its last call, tokens, and the end of its lease.

use tollgate_core::Timestamp;
use tollgate_core::algorithm::{Count, Counts, Debt, Entry, Excess, Log, Spent, State};
use tollgate_core::lease::{Call, Lease, Ledger, NodeId};
use tollgate_core::limit::AlgorithmName;

/// The bytes of one lease.
const LEASE: usize = 29;

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

    fn lease(&mut self) -> Option<Lease> {
        let node = NodeId(self.bytes().map(u64::from_le_bytes)?);
        Some(Lease { node, sequence: self.number()?, tokens: self.number()?, until: self.instant()? })
    }

    fn short(&mut self) -> Option<u32> {
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

    fn instant(&mut self) -> Option<Timestamp> {
        self.signed().map(Timestamp::from_micros)
    }

    fn excess(&mut self) -> Option<Excess> {
        let [tokens, capacity, refill, period] =
            [self.number()?, self.number()?, self.number()?, self.number()?];
        Some(Excess { tokens, capacity, refill, period })
    }
}

/// The state of an algorithm and what is out on lease; none where the bytes are another's or nobody's.
pub(super) fn decode_leased(algorithm: AlgorithmName, bytes: &[u8]) -> Option<(State, Ledger)> {
    let excess = if has_excess(bytes) { EXCESS } else { 0 };
    let (state, leases) = bytes.split_at_checked(length(algorithm) + excess)?;
    let state = decode(algorithm, state)?;
    let leases = leases.chunks(LEASE).map(|bytes| Fields(bytes).lease()).collect::<Option<Vec<_>>>()?;
    Some((state, Ledger::new(leases)))
}

/// Added to the first byte of a state with excess, which only the three kinds of buckets have.
const EXCESS_FLAG: u8 = 16;
/// The bytes of the excess.
const EXCESS: usize = 28;

fn has_excess(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|first| matches!(first, 17..=19))
}

/// The bytes of a state without excess and leases.
const fn length(algorithm: AlgorithmName) -> usize {
    match algorithm {
        AlgorithmName::SlidingWindowLog => 12,
        AlgorithmName::SlidingWindowCounter => 23,
        _ => 22,
    }
}

/// Appends a call as the script reads it.
pub(super) fn put_call(call: &Call, out: &mut Vec<u8>) {
    let Call { node, sequence, left, returned, least, want, term } = *call;
    out.extend_from_slice(&node.0.to_le_bytes());
    for number in [sequence, left, returned, least, want, term.get()] {
        put(number.min(MOST).cast_signed(), out);
    }
}

/// The most that a call says; no bucket holds as much.
const MOST: u64 = 1 << 53;

/// The state of an algorithm; none where the bytes are another's or nobody's.
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
