//! What a store remembers beside its buckets.

use tollgate_core::{Hit, Mark};

use crate::reserve::ReservationId;

/// The longest note, in bytes: a reservation over forty limits with the usual names.
pub(crate) const LONGEST_NOTE: usize = 8 << 10;

/// Names a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NoteName {
    /// The reservation it is about.
    pub reservation: ReservationId,
    /// What it says about it.
    pub about: About,
}

/// What a note says about a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum About {
    /// What was charged.
    Reserved,
    /// That somebody settles it, and with how much.
    Settled,
    /// What that did to its buckets.
    Receipt,
}

impl About {
    /// One word, for names.
    pub const fn as_str(self) -> &'static str {
        match self {
            About::Reserved => "reserved",
            About::Settled => "settled",
            About::Receipt => "receipt",
        }
    }
}

/// What has to be settled with one bucket of a reservation; the hit's cost says how much.
#[derive(Debug, Clone)]
pub struct Due<'h> {
    /// The bucket, and how much.
    pub hit: Hit<'h>,
    /// Who owes whom.
    pub difference: Difference,
}

/// How a reservation was wrong about its cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// It was charged too much, with this mark: the rest is given back, as [`Store::undo`](crate::Store::undo) does.
    Rest(Mark),
    /// It was charged too little: what is missing is charged, down to nothing at most.
    Missing,
}
