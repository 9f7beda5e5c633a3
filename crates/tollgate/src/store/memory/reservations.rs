//! Records of reservations in this process: a bounded map.
//!
//! Unsettled reservations are bounded, in all and for each caller. One that was settled is kept for callers that settle it
//! again, until it expires or newer ones need its room.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use tollgate_core::{Enforcement, KeyHash, Limit, Timestamp};

use crate::reserve::{Reservation, ReservationId, ReservationLimit, SettleError, Settled};

/// How many unsettled reservations there are at most, and how many settled ones are kept.
const MAX_UNSETTLED: usize = 100_000;
const MAX_SETTLED: usize = 100_000;
/// The part of them that one caller may have.
const CALLER_PART: usize = 16;

/// All records.
#[derive(Debug)]
pub(super) struct Reservations {
    max: usize,
    records: HashMap<u128, Record>,
    /// Their ids, those that expire first before others.
    expiring: BTreeSet<(Timestamp, u128)>,
    /// Ids of settled ones, in the order of their settlements.
    settled: VecDeque<u128>,
    unsettled: usize,
    /// Unsettled reservations of each caller.
    callers: HashMap<Box<str>, usize>,
}

#[derive(Debug)]
struct Record {
    expires: Timestamp,
    state: RecordState,
}

#[derive(Debug)]
enum RecordState {
    Unsettled { caller: Option<Box<str>>, cost: u64, buckets: Box<[ReservedBucket]> },
    Settled(Settled),
}

/// One bucket that was charged.
#[derive(Debug, Clone)]
pub(super) struct ReservedBucket {
    pub(super) hash: KeyHash,
    pub(super) limit: Arc<Limit>,
    /// The digest of its rule's keys.
    pub(super) space: [u64; 2],
    pub(super) spread_seed: u64,
    pub(super) enforcement: Enforcement,
    /// What it takes for a cost of 1.
    pub(super) price: u64,
    /// The instant from which time repays the charge.
    pub(super) since: Timestamp,
}

impl Default for Reservations {
    fn default() -> Self {
        Self::with_max(MAX_UNSETTLED)
    }
}

impl Reservations {
    fn with_max(max: usize) -> Self {
        Reservations {
            max,
            records: HashMap::new(),
            expiring: BTreeSet::new(),
            settled: VecDeque::new(),
            unsettled: 0,
            callers: HashMap::new(),
        }
    }

    /// Makes an empty record, if there is room.
    pub(super) fn claim(
        &mut self,
        reservation: &Reservation,
        now: Timestamp,
    ) -> Result<(), ReservationLimit> {
        self.expire(now);
        if self.unsettled >= self.max {
            return Err(ReservationLimit::All { max: self.max });
        }
        let max = (self.max / CALLER_PART).max(1);
        let of_caller = reservation.caller.as_ref().and_then(|caller| self.callers.get(caller));
        if of_caller.is_some_and(|unsettled| *unsettled >= max) {
            return Err(ReservationLimit::Caller { max });
        }
        self.add(reservation, Box::default(), now);
        Ok(())
    }

    /// Writes down what was charged, in the place that was claimed for it. Its time starts now.
    pub(super) fn record(&mut self, reservation: &Reservation, charged: Vec<ReservedBucket>, now: Timestamp) {
        self.remove(reservation.id);
        self.add(reservation, charged.into(), now);
    }

    fn add(&mut self, reservation: &Reservation, buckets: Box<[ReservedBucket]>, now: Timestamp) {
        let (id, expires) = (reservation.id.bits(), now.after(reservation.ttl));
        let caller = reservation.caller.clone();
        if let Some(caller) = &caller {
            *self.callers.entry(caller.clone()).or_default() += 1;
        }
        self.unsettled += 1;
        self.expiring.insert((expires, id));
        let state = RecordState::Unsettled { caller, cost: reservation.cost, buckets };
        self.records.insert(id, Record { expires, state });
    }

    /// Removes a record that came to nothing.
    pub(super) fn remove(&mut self, id: ReservationId) {
        if let Some(record) = self.records.remove(&id.bits()) {
            self.expiring.remove(&(record.expires, id.bits()));
            self.uncount(&record);
        }
    }

    /// Settles a reservation: `settle` is called once, with its cost and its buckets, and answers what did not fit.
    pub(super) fn settle(
        &mut self,
        id: ReservationId,
        actual: u64,
        now: Timestamp,
        settle: impl FnOnce(u64, &[ReservedBucket]) -> u64,
    ) -> Result<Settled, SettleError> {
        self.expire(now);
        let record = self.records.get_mut(&id.bits()).ok_or(SettleError::Gone)?;
        let (cost, unpaid) = match &record.state {
            RecordState::Settled(settled) => return Ok(Settled { already_settled: true, ..*settled }),
            RecordState::Unsettled { cost, buckets, .. } => (*cost, settle(*cost, buckets)),
        };
        let settled = Settled::new(cost, actual).with_unpaid(unpaid);
        let state = std::mem::replace(&mut record.state, RecordState::Settled(settled));
        let before = Record { expires: record.expires, state };
        self.uncount(&before);
        self.settled.push_back(id.bits());
        if self.settled.len() > MAX_SETTLED
            && let Some(oldest) = self.settled.pop_front()
        {
            self.remove(ReservationId::from_bits(oldest));
        }
        Ok(settled)
    }

    /// Removes every record that has expired.
    fn expire(&mut self, now: Timestamp) {
        while let Some((expires, id)) = self.expiring.first().copied()
            && expires <= now
        {
            self.expiring.pop_first();
            if let Some(record) = self.records.remove(&id) {
                self.uncount(&record);
            }
        }
    }

    fn uncount(&mut self, record: &Record) {
        let RecordState::Unsettled { caller, .. } = &record.state else { return };
        self.unsettled -= 1;
        if let Some(caller) = caller
            && let Some(unsettled) = self.callers.get_mut(caller)
        {
            *unsettled -= 1;
            if *unsettled == 0 {
                self.callers.remove(caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::Micros;

    use super::*;

    const MAX: usize = 32;

    fn reservation(id: u128, caller: &str) -> Reservation {
        Reservation::new(ReservationId::from_bits(id), 1, Micros::new(10), Some(caller.into()))
    }

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    fn settle(all: &mut Reservations, id: u128, now: i64) -> Result<Settled, SettleError> {
        all.settle(ReservationId::from_bits(id), 1, at(now), |_, _| 0)
    }

    #[test]
    fn one_caller_has_a_sixteenth_of_the_room_and_all_together_have_all_of_it() {
        let mut all = Reservations::with_max(MAX);
        for id in 0..2 {
            assert_eq!(all.claim(&reservation(id, "a"), at(0)), Ok(()));
        }
        let full = all.claim(&reservation(2, "a"), at(0)).unwrap_err();
        assert_eq!(full, ReservationLimit::Caller { max: 2 });
        assert!(full.to_string().contains("this caller has 2 unsettled reservations"), "{full}");
        for id in 2..32 {
            assert_eq!(all.claim(&reservation(id, &format!("caller {}", id / 2)), at(0)), Ok(()));
        }
        assert_eq!(all.claim(&reservation(99, "new"), at(0)), Err(ReservationLimit::All { max: MAX }));
        // A settled one needs no room, and neither does one that has expired or came to nothing.
        settle(&mut all, 0, 5).unwrap();
        assert_eq!(all.claim(&reservation(99, "a"), at(5)), Ok(()));
        all.remove(ReservationId::from_bits(1));
        assert_eq!(all.claim(&reservation(98, "a"), at(5)), Ok(()));
        assert_eq!(all.claim(&reservation(97, "new"), at(10)), Ok(()));
        assert_eq!((all.unsettled, all.callers.len()), (3, 2));
    }

    #[test]
    fn a_settled_one_answers_the_same_until_it_expires_or_newer_ones_need_its_room() {
        let mut all = Reservations::default();
        all.claim(&reservation(7, "a"), at(0)).unwrap();
        let first = settle(&mut all, 7, 1).unwrap();
        assert_eq!(settle(&mut all, 7, 9), Ok(Settled { already_settled: true, ..first }));
        assert_eq!(settle(&mut all, 7, 10), Err(SettleError::Gone));
        for id in 100..100 + MAX_SETTLED as u128 + 1 {
            all.claim(&reservation(id, "a"), at(20)).unwrap();
            settle(&mut all, id, 20).unwrap();
        }
        assert_eq!(settle(&mut all, 100, 20), Err(SettleError::Gone), "the oldest made room");
        assert!(settle(&mut all, 102, 20).unwrap().already_settled);
        assert!(all.records.len() <= MAX_SETTLED + 1 && all.expiring.len() == all.records.len());
    }
}
