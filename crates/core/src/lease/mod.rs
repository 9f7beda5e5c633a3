//! Leases: tokens that a node borrows from a bucket, to spend them without asking.
//!
//! The store takes what it lends out of the bucket at once and writes it into a [`Ledger`] beside it. Until a lease
//! ends, what is out counts as used, however much time has passed; when it ends, what was not given back counts as
//! spent at that instant. So at every moment
//!
//! ```text
//! available + out on lease <= capacity
//! ```
//!
//! and what all nodes together admit is bounded by capacity and refill, as if every request had gone to the store
//! (`docs/decisions/0006-leases.md` has the proof). Both sides are plain values that get the time as an argument:
//!
//! | side | value | asks |
//! |---|---|---|
//! | store | [`LeasedBucket`] | how much may be lent, and what is left for the others? |
//! | node | [`Purse`] | may this request pass on what is held? is it time to call the store? |
//!
//! Between them travel a [`Call`] and its [`Loan`]. Either may be lost, late, doubled or out of order. A node spends
//! a loan only if it is the answer to the call it waits for, and only until an end that is counted from before that
//! call was sent; the store does not listen to a call that is older than the last it heard from that node.

mod block;
mod holding;
mod ledger;
mod pace;
mod purse;

use crate::limit::{Algorithm, Limit};
use crate::time::Micros;

pub use holding::{Parting, Temper};
pub use ledger::{Lease, LeasedBucket, Ledger, Written};
pub use purse::{Purse, ROUNDS, Step, Taken};

/// How long a lease lasts at the store.
pub const TERM: Micros = Micros::new(500_000);
/// The most nodes that hold leases of one bucket at the same time. Those beyond ask for every request.
pub const MOST_HOLDERS: usize = 64;

/// One part in so many of a lease's time is not used: clocks may differ by that much in speed.
const DRIFT: u64 = 10;

/// A node, by a number that it drew when it started: one that is started again is another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// What a node tells the store about its lease of one bucket, and what it wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Who calls.
    pub node: NodeId,
    /// Larger than that of every earlier call of this node.
    pub sequence: u64,
    /// Tokens of the lease that the node has not spent and keeps.
    pub left: u64,
    /// Tokens of the lease that it has not spent and gives back.
    pub returned: u64,
    /// What a request waits for: less than this is no help.
    pub least: u64,
    /// Tokens that it would like to have beside what it keeps.
    pub want: u64,
    /// For how long.
    pub term: Micros,
}

/// What the store lends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loan {
    /// New tokens.
    pub granted: u64,
    /// Tokens of before that the node may go on to spend.
    pub kept: u64,
    /// How long all of them are good for, from the instant at which the store decided.
    pub term: Micros,
}

impl Call {
    /// What to lend of so much room among so many holders: what is wanted, but no more than half of a fair part,
    /// so that leases shrink to single tokens as the bucket empties.
    fn grant(&self, room: u64, holders: u64) -> u64 {
        if room < self.least {
            return 0;
        }
        self.want.max(self.least).min((room / (2 * holders)).max(self.least))
    }
}

/// Whether tokens of this limit can be lent. The places of a queue cannot, each has its own turn: they are taken as a
/// block.
pub const fn is_lent(limit: &Limit) -> bool {
    !matches!(limit.algorithm(), Algorithm::LeakyBucket { .. })
}

#[cfg(test)]
mod tests;
