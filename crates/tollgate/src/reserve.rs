//! Work whose cost is known only afterwards: reserve first, settle later.
//!
//! ```text
//! reserve: a check, charged with an estimate ---> a record in the store, for a time to live
//! settle:  the record ---> the first settlement gives the rest back, or charges what is missing
//!                     '--> a later one is answered what the first did
//! no settle: the record expires, and what was reserved counts as spent
//! ```
//!
//! The store writes the record together with the charge, and settles it together with the buckets. It says what was charged
//! where, under which limit and since when, so that any node that shares the store can settle.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tollgate_core::{Micros, Op, StoreError};

use crate::limiter::{Answer, Deciding, Limiter, Recording};
use crate::request::Request;
use crate::store::Store;

/// The shortest and the longest time of a reservation: a millisecond and a day.
const MIN_TTL: Micros = Micros::new(1_000);
const MAX_TTL: Micros = Micros::new(86_400_000_000);

/// Names a reservation: 128 random bits, written as 32 hexadecimal digits, and where Redis has it the tag of its slot. It is
/// a secret: a client that knows it may settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationId {
    bits: u128,
    tag: Option<Tag>,
}

/// The hash tag of a key in Redis, which decides its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Tag([u8; 4]);

/// Not the id of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a reservation's id has 32 hexadecimal digits in lower case, and sometimes four more letters")]
pub struct ReservationIdError;

/// A charge that is settled later, while it is decided.
#[derive(Debug)]
pub struct Reservation {
    /// Its id. A store may add its tag.
    pub id: ReservationId,
    /// The cost of the request.
    pub cost: u64,
    /// How long there is to settle it.
    pub ttl: Micros,
    /// Who reserves, where that is known.
    pub caller: Option<Box<str>>,
    /// Whether a store has a record of it.
    pub is_recorded: bool,
    /// Records that are deleted if the request does not pass, while it is undecided.
    #[cfg(feature = "redis")]
    pub(crate) records: Vec<Vec<u8>>,
}

impl Reservation {
    /// A reservation that no store has a record of.
    pub const fn new(id: ReservationId, cost: u64, ttl: Micros, caller: Option<Box<str>>) -> Self {
        Reservation {
            id,
            cost,
            ttl,
            caller,
            is_recorded: false,
            #[cfg(feature = "redis")]
            records: Vec::new(),
        }
    }
}

/// The answer to a request that reserves.
#[derive(Debug)]
pub struct Reserved {
    /// The decision, as a check would have made it.
    pub answer: Answer,
    /// What to settle. None where the store charged nothing that a settlement could change: the request may not pass, no
    /// limit applies or none that counts by the request's cost, or the store is unavailable and each rule's policy decided.
    pub reservation: Option<ReservationId>,
}

/// What came of a reservation, in the cost of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// What was reserved.
    pub reserved: u64,
    /// What the work took.
    pub actual: u64,
    /// What was given back, as far as time or the end of a window has not done that already.
    pub refunded: u64,
    /// What was charged on top.
    pub charged: u64,
    /// What was not, because a limit had no more to give; of several limits the most.
    pub unpaid: u64,
    /// Whether it was settled before: then all this is what the first settlement did.
    pub already_settled: bool,
}

/// Why a request that could have passed was not let pass. It is charged nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// There is no room for another record.
    #[error(transparent)]
    Full(#[from] ReservationLimit),
    /// It costs nothing, so that any number of them could be kept.
    #[error("a reservation of nothing is not kept; reserve at least 1, and what is not needed is given back")]
    Nothing,
    /// The system has no random numbers for its id.
    #[error("no random numbers for the id of a reservation")]
    NoRandomness,
}

/// Which bound on unsettled reservations was hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReservationLimit {
    /// That of one caller.
    #[error(
        "this caller has {max} unsettled reservations, the most for one caller; settle some, or reserve for a shorter time"
    )]
    Caller {
        /// The bound.
        max: usize,
    },
    /// That of all callers together.
    #[error(
        "there are {max} unsettled reservations, the most that are kept; settle some, or reserve for a shorter time"
    )]
    All {
        /// The bound.
        max: usize,
    },
}

/// Why a reservation was not settled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettleError {
    /// No reservation has this id, or it has expired and what was reserved is spent.
    #[error("no such reservation; it has expired and counts as spent, or there never was one")]
    Gone,
    /// The store gave no answer, and may or may not have settled. Settle again: what was done is not done twice.
    #[error("the reservation may not be settled; settle it again")]
    Store(#[from] StoreError),
}

impl ReservationId {
    fn random() -> Result<Self, getrandom::Error> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits)?;
        Ok(ReservationId::from_bits(u128::from_le_bytes(bits)))
    }

    /// The id with these bits; they should be random.
    pub const fn from_bits(bits: u128) -> Self {
        ReservationId { bits, tag: None }
    }

    pub(crate) const fn bits(self) -> u128 {
        self.bits
    }

    #[cfg(feature = "redis")]
    pub(crate) const fn tag(self) -> Option<Tag> {
        self.tag
    }

    #[cfg(feature = "redis")]
    pub(crate) const fn with_tag(self, tag: Tag) -> Self {
        ReservationId { bits: self.bits, tag: Some(tag) }
    }
}

impl Tag {
    fn read(text: &[u8]) -> Option<Self> {
        let tag: [u8; 4] = text.try_into().ok()?;
        let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
        tag.iter().all(is_letter).then_some(Tag(tag))
    }

    /// The tag in a key of a bucket.
    #[cfg(feature = "redis")]
    pub(crate) fn of_key(key: &[u8]) -> Self {
        let open = key.iter().position(|byte| *byte == b'{').map_or(0, |open| open + 1);
        key.get(open..open + 4).and_then(Tag::read).expect("every key of a bucket has a tag")
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.0).unwrap_or_default())
    }
}

impl TryFrom<String> for Tag {
    type Error = ReservationIdError;

    fn try_from(text: String) -> Result<Self, ReservationIdError> {
        Tag::read(text.as_bytes()).ok_or(ReservationIdError)
    }
}

impl From<Tag> for String {
    fn from(tag: Tag) -> Self {
        tag.to_string()
    }
}

impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.bits)?;
        self.tag.map_or(Ok(()), |tag| tag.fmt(f))
    }
}

impl FromStr for ReservationId {
    type Err = ReservationIdError;

    fn from_str(text: &str) -> Result<Self, ReservationIdError> {
        let (digits, tag) = text.as_bytes().split_at_checked(32).ok_or(ReservationIdError)?;
        let is_plain = digits.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let bits = str::from_utf8(digits).ok().filter(|_| is_plain);
        let bits = bits.and_then(|digits| u128::from_str_radix(digits, 16).ok()).ok_or(ReservationIdError)?;
        let tag = match tag {
            [] => None,
            tag => Some(Tag::read(tag).ok_or(ReservationIdError)?),
        };
        Ok(ReservationId { bits, tag })
    }
}

impl Settled {
    /// A settlement that fits.
    pub(crate) const fn new(reserved: u64, actual: u64) -> Self {
        Settled {
            reserved,
            actual,
            refunded: reserved.saturating_sub(actual),
            charged: actual.saturating_sub(reserved),
            unpaid: 0,
            already_settled: false,
        }
    }

    /// The same with so much of what was missing unpaid.
    pub(crate) const fn with_unpaid(self, unpaid: u64) -> Self {
        let missing = self.actual.saturating_sub(self.reserved);
        Settled { charged: missing.saturating_sub(unpaid), unpaid, ..self }
    }
}

/// A place for a record, given back if the reservation does not use it.
struct Place<'s, S: Store> {
    store: &'s S,
    id: ReservationId,
    is_used: bool,
}

impl<S: Store> Drop for Place<'_, S> {
    fn drop(&mut self) {
        if !self.is_used {
            self.store.drop_reservation(self.id);
        }
    }
}

impl<S: Store> Limiter<S> {
    /// Decides a request as a check does, with a record of what it was charged.
    pub(crate) async fn reserve(
        &self,
        request: Request<'_, S>,
        ttl: Micros,
    ) -> Result<Reserved, ReserveError> {
        if request.cost == 0 {
            return Err(ReserveError::Nothing);
        }
        let id = ReservationId::random().map_err(|_| ReserveError::NoRandomness)?;
        let (cost, ttl) = (request.cost, ttl.clamp(MIN_TTL, MAX_TTL));
        let caller = request.caller.map(Box::from);
        let mut reservation = Reservation::new(id, cost, ttl, caller);
        self.store().claim_reservation(&reservation)?;
        let mut place = Place { store: self.store(), id, is_used: false };
        let answer = Deciding::new(request, Op::Charge, Recording::Refusals, Some(&mut reservation)).await;
        place.is_used = reservation.is_recorded && answer.allowed();
        Ok(Reserved { answer, reservation: place.is_used.then_some(reservation.id) })
    }

    /// Settles a reservation with what the work took.
    ///
    /// Less than was reserved: the rest is given back where and when it was charged, so that a window that has passed
    /// gives nothing. More: the difference was used, so it is charged without asking, to each limit as far as it has
    /// something left. Only the first cost counts. Settling again, with any cost, answers the same and changes nothing.
    ///
    /// In Redis Cluster a bucket in another slot than the caller's is settled at most once: if the settlement is
    /// interrupted, it stays charged as reserved.
    ///
    /// # Errors
    ///
    /// [`SettleError::Gone`] once it has expired; then all of it is spent. Or the store gave no answer.
    pub async fn settle(&self, id: ReservationId, actual: u64) -> Result<Settled, SettleError> {
        self.store().settle(id, actual).await
    }
}

#[cfg(test)]
mod tests;
