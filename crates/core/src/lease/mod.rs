//! The ledger: tokens that are out of a bucket, on lease or held for a request that is not decided yet.
//!
//! A node may admit locally only with tokens that the store has already taken out of the bucket that `exact` uses. The
//! store writes what is out on a [`Ledger`] in the bucket's own value. A **lease** is a bucket of its own, carved out of
//! the key's bucket of capacity C and refill r: `x` tokens at its start, capacity `c >= x`, refill `rho`, and an end.
//! Token buckets lend rate; interval buckets, windows and logs lend tokens only (`rho = 0`, `c = x`). A **hold** is a
//! lease of exactly one request's cost.
//!
//! ```text
//!            C, r                       C - sum(c), r - sum(rho)      c1, rho1        c2, rho2
//!   +-------------------+     lend      +---------------------+     +----------+   +----------+
//!   | the key's bucket  |   -------->   |       parent        |     | node 1   |   | node 2   |
//!   +-------------------+               +---------------------+     +----------+   +----------+
//! ```
//!
//! Let `V = parent + contents of live leases + tokens that are granted and not started`. Then `V <= C`, `V` grows at most
//! at `r`, and every admission takes from one part that is not negative. Hence in any interval T, over all nodes and
//! whichever of them dies, stops or is partitioned: admitted <= C + r * T (`docs/decisions/0006-leases.md`).
//!
//! | side | value | answers |
//! |---|---|---|
//! | store | [`ParentBucket`] | what is left for exact callers, and how much may be lent? |
//! | node | [`NodeBucket`] | does this request pass on the lease? is a call to the store due? |
//!
//! A [`LeaseCall`] and its [`Grant`] travel between them. A call carries differences and is sent at most once. A call or a
//! reply that is lost leaves tokens out until the end of their period, where they count as spent.

mod ledger;
mod node;

use crate::limit::{Algorithm, Limit, MAX_EXACT, Refill};
use crate::time::{Micros, Timestamp};

pub use ledger::{Ledger, ParentBucket, Written};
pub use node::{Called, Heat, NodeBucket, Step, Ticket, lease_time};

/// How long leases of a key last unless its store is far away.
pub const LEASE_TIME: Micros = Micros::new(100_000);
/// The longest lease.
pub const MAX_LEASE_TIME: Micros = Micros::new(2_000_000);
/// Clocks may differ in speed by one part in this many: a node uses that much less of its lease's refill and time.
pub const DRIFT: u64 = 256;

/// The most parts that a refill rate is divided into.
const MAX_PARTS: u64 = 65_536;
/// The most tokens that a demand counts, so that a product with the parts is exact in the script.
const MAX_DEMAND: u64 = (1 << 36) - 1;
/// With fewer parts the shares of nodes would be too coarse: such a limit is not leased.
const MIN_PARTS: u64 = 1_024;

/// The numbers of a limit that amounts on a ledger are in. Capacity is counted in units: a token of a continuous bucket
/// has `p` of them, any other token one. Rate is counted in parts of the limit's refill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Units in a token.
    pub units: u64,
    /// Units that the limit refills in a microsecond; 0 for limits that lend tokens only.
    pub refill: u64,
    /// Parts of the refill rate.
    pub parts: u64,
}

/// What a node tells the store about its lease of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseCall {
    /// The end of the period of the lease that the node has or gives back; `None` without a lease.
    pub boundary: Option<Timestamp>,
    /// Units that the node gives back, tokens together with as much capacity. It has subtracted them from its lease.
    pub returned: u64,
    /// Parts of the refill rate that the lease has. They are given back if the node wants nothing.
    pub rate: u64,
    /// Units in the lease, those of requests in flight included: what a token lease must cover in the next period.
    pub has: u64,
    /// Tokens that requests asked for since the last call, refused requests included.
    pub demand: u64,
    /// The same with what this node's calls have reported in this period already: its part of the demand.
    pub own_demand: u64,
    /// What the node wants.
    pub wants: Wants,
    /// The lease time that fits the node's distance from the store.
    pub lease_time: Micros,
}

/// What a call wants. Its number is what the script reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Wants {
    /// Nothing: the node gives its lease back.
    Nothing = 0,
    /// A lease: for the next period if it has one in this period, else for the rest of this one.
    Lease = 1,
    /// More for the rest of this period: requests ask for more than the lease was sized for.
    More = 2,
}

/// The store's reply to a [`LeaseCall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The store's time, and the instant that it computed at: later if its clock went back a little.
    pub now: Timestamp,
    /// See `now`.
    pub at: Timestamp,
    /// The lease; `None` when nothing can be lent.
    pub lease: Option<Lease>,
    /// Tokens in the parent.
    pub remaining: u64,
    /// The wait until the parent has one token; zero if it has one.
    pub wait: Micros,
    /// The wait until the bucket equals a fresh one.
    pub reset_after: Micros,
}

/// A granted lease. Amounts are in the terms of the limit that the call was made under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// When it starts, on the store's clock; `None` for now.
    pub starts: Option<Timestamp>,
    /// When it ends, on the store's clock.
    pub ends: Timestamp,
    /// Units at its start, beside what the node's lease of the period before still has.
    pub content: u64,
    /// The most units that it holds.
    pub capacity: u64,
    /// Parts of the limit's refill rate.
    pub rate: u64,
}

impl Terms {
    /// The terms of a limit.
    pub fn of(limit: &Limit) -> Self {
        match limit.algorithm() {
            Algorithm::TokenBucket(refill) => {
                Terms { units: refill.p, refill: refill.n, parts: parts(refill) }
            }
            Algorithm::LeakyBucket { refill, .. } => Terms { units: refill.p, refill: 0, parts: 1 },
            _ => Terms { units: 1, refill: 0, parts: 1 },
        }
    }

    /// Units of other terms in these, rounded up to whole tokens.
    fn convert_up(&self, units: u64, from: &Terms) -> u64 {
        if self.units == from.units {
            return units;
        }
        units.div_ceil(from.units).saturating_mul(self.units).min(MAX_EXACT)
    }

    /// Parts of another refill rate in parts of this one, rounded up. They may be more than this one has.
    fn convert_rate(&self, rate: u64, from: &Terms) -> u64 {
        if self == from || rate == 0 || self.refill == 0 {
            return rate;
        }
        // In two steps, so that the script's numbers stay exact.
        let lent = share_up(rate.saturating_mul(from.refill), self.units, from.units).min(MAX_EXACT);
        share_up(lent, self.parts, from.parts * self.refill).min(MAX_EXACT)
    }
}

/// Whether leases of this limit can be granted. Queues are decided at the store, and a limit whose numbers leave too few
/// exact parts as well.
pub fn is_lent(limit: &Limit) -> bool {
    match limit.algorithm() {
        Algorithm::LeakyBucket { .. } => false,
        Algorithm::TokenBucket(refill) => parts(refill) >= MIN_PARTS,
        _ => true,
    }
}

/// The largest power of two up to [`MAX_PARTS`] with which every product is an exact number in the script.
fn parts(refill: &Refill) -> u64 {
    let largest = MAX_EXACT / (refill.capacity * refill.p).max(refill.n);
    (largest + 1).next_power_of_two().div_ceil(2).clamp(1, MAX_PARTS)
}

/// `a * b / c`, rounded down.
fn share(a: u64, b: u64, c: u64) -> u64 {
    u64::try_from(u128::from(a) * u128::from(b) / u128::from(c.max(1))).unwrap_or(u64::MAX)
}

/// `a * b / c`, rounded up.
fn share_up(a: u64, b: u64, c: u64) -> u64 {
    u64::try_from((u128::from(a) * u128::from(b)).div_ceil(c.max(1).into())).unwrap_or(u64::MAX)
}
