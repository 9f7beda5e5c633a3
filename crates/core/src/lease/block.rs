//! Places in a queue: what a node borrows of a leaky bucket.
//!
//! A block is charged like any other request and stands in the queue until its time has come. Each place in it has a
//! turn, when everything before it has left; whoever takes the place is held until then. A place whose turn is over is
//! void: the queue has moved on, and others stand where it was. So blocks of different nodes never overlap, and nothing
//! has to be given back.

use super::purse::Taken;
use super::{DRIFT, TERM};
use crate::limit::{Algorithm, Limit};
use crate::tier::Verdict;
use crate::time::{Micros, Timestamp};

/// Places that follow each other, taken from the front.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    /// Units that leave in a microsecond, and units of one place.
    rate: u64,
    units: u64,
    /// Units that need not wait.
    free: u64,
    /// Units that stood before the first place that is left, when the block was taken.
    ahead: u64,
    places: u64,
    /// From before the block was asked for: its places are void no later than they are at the store.
    sent: Timestamp,
    /// Waits are counted from here, as those of a single request are.
    received: Timestamp,
    /// Grows with everything that is taken; no two blocks of a key begin with the same.
    takes: u64,
    /// Places that nobody took in time, until somebody asks.
    lapsed: u64,
}

/// What a block has for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// A place, to be held for so long.
    Place {
        /// Until its turn.
        delay: Micros,
        /// To put it back.
        ticket: u64,
    },
    /// The place comes this much too late for the request.
    TooLate(Micros),
    /// There is none.
    None,
}

impl Block {
    /// What is left of a block that a charge of so many places took, when the request that it was taken for has its own;
    /// `None` for a limit that has no queue.
    pub(super) fn new(
        limit: &Limit,
        places: u64,
        cost: u64,
        verdict: &Verdict,
        sent: Timestamp,
        received: Timestamp,
    ) -> Option<Self> {
        let Algorithm::LeakyBucket { refill, free } = limit.algorithm() else { return None };
        let (rate, units) = (refill.n, refill.p);
        let end = verdict.reset_after.get().saturating_mul(rate);
        let places = places.saturating_sub(cost);
        let ahead = end.saturating_sub(places.saturating_mul(units));
        let takes = sent.as_micros().unsigned_abs() << 16;
        Some(Block { rate, units, free: free * units, ahead, places, sent, received, takes, lapsed: 0 })
    }

    /// The ticket of the request that the block was taken for.
    pub(super) const fn first_ticket(&self) -> u64 {
        self.takes
    }

    /// Takes places for a request of this cost that bears no longer delay than its max_wait.
    pub(super) fn take(&mut self, cost: u64, max_wait: Micros, now: Timestamp) -> Turn {
        self.drop_void(now);
        if cost > self.places {
            return Turn::None;
        }
        let waited = now.as_micros().abs_diff(self.received.as_micros());
        let wait = self.ahead.saturating_sub(self.free).div_ceil(self.rate);
        let delay = Micros::new(wait.saturating_sub(waited));
        if delay > max_wait {
            return Turn::TooLate(delay.saturating_sub(max_wait));
        }
        self.ahead += cost * self.units;
        self.places -= cost;
        self.takes += 1;
        Turn::Place { delay, ticket: self.takes }
    }

    /// Puts places back that a request, refused elsewhere, did not need; lost if others were taken since.
    pub(super) fn put_back(&mut self, Taken { cost, ticket }: Taken) {
        if ticket == self.takes
            && let Some(ahead) = self.ahead.checked_sub(cost * self.units)
        {
            self.ahead = ahead;
            self.places += cost;
        }
    }

    /// The places whose turn is over are gone, and with the term all of them.
    fn drop_void(&mut self, now: Timestamp) {
        let elapsed = now.as_micros().abs_diff(self.sent.as_micros());
        let elapsed = elapsed + elapsed.div_ceil(DRIFT);
        let left = elapsed.saturating_add(1).saturating_mul(self.rate);
        let void = if elapsed > TERM.get() {
            self.places
        } else {
            left.saturating_sub(self.ahead).div_ceil(self.units).min(self.places)
        };
        self.ahead += void * self.units;
        self.places -= void;
        self.lapsed += void;
    }

    /// Places that may be taken.
    pub(super) fn places_at(mut self, now: Timestamp) -> u64 {
        self.drop_void(now);
        self.places
    }

    /// How many passed by unused, since this was asked last.
    pub(super) fn lapsed(&mut self, now: Timestamp) -> u64 {
        self.drop_void(now);
        std::mem::take(&mut self.lapsed)
    }
}
