//! What a store remembers beside its buckets.

use crate::reserve::ReservationId;

/// The longest note, in bytes.
pub(crate) const LONGEST_NOTE: usize = 64 << 10;

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
    /// What did not fit when it was settled.
    Unpaid,
}

impl About {
    /// One word, for names.
    pub const fn as_str(self) -> &'static str {
        match self {
            About::Reserved => "reserved",
            About::Settled => "settled",
            About::Unpaid => "unpaid",
        }
    }
}
