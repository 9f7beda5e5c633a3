//! What a store remembers beside its buckets.

use tollgate_core::{Descriptor, Enforcement, Key, Limit, Mark, Rule};

use crate::reserve::ReservationId;

/// The largest note: a reservation over forty limits with the usual names.
pub(crate) const MAX_NOTE_BYTES: usize = 8 << 10;

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

/// What has to be settled with one bucket of a reservation.
#[derive(Debug, Clone, Copy)]
pub struct Due<'a> {
    /// The rule of the bucket.
    pub rule: &'a Rule,
    /// The request that its key is made from.
    pub request: &'a Descriptor<'a>,
    /// How many tokens.
    pub cost: u64,
    /// In which direction.
    pub difference: Difference,
}

impl<'a> Due<'a> {
    /// The key of the bucket.
    pub fn key(&self) -> Key<'a> {
        self.rule.key(self.request)
    }

    /// The limit of the bucket.
    ///
    /// # Panics
    ///
    /// The rule has no limit: only rules with a limit are settled.
    pub fn limit(&self) -> &'a Limit {
        self.rule.limit().expect("only rules with a limit are settled")
    }

    /// Whether the rule's refusals count.
    pub fn enforcement(&self) -> Enforcement {
        self.rule.enforcement()
    }
}

/// How a reservation was wrong about its cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// It was charged too much, with this mark: the rest is given back, as far as time has not given it back.
    Rest(Mark),
    /// It was charged too little: what is missing is charged, down to nothing at most.
    Missing,
}
