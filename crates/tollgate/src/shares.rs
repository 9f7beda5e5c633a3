//! Local shares: this node's part of a limit, in buckets of its own.
//!
//! A share is the memory store over a rule set with the same indices and smaller limits ([`RuleSet::divided`]). It serves
//! rules with `consistency: local`, and `on_store_failure: local` while the store is unavailable.
//!
//! [`RuleSet::divided`]: tollgate_core::RuleSet::divided

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tollgate_core::limit::Rank;
use tollgate_core::{Holder, Limit, Micros, Op, Outcome, Tier, Timestamp, Verdict};

use crate::clock::Clock;
use crate::store::memory::Charged;
use crate::store::{Bounds, Call, MemoryStore};

/// How long a node counts as a member after its last heartbeat.
pub(crate) const MEMBERSHIP_TTL: Micros = Micros::new(3_000_000);
/// How often a node sends a heartbeat.
pub(crate) const HEARTBEAT_INTERVAL: Micros = Micros::new(1_000_000);

/// The shares of this node, and its place among the nodes that share a limit.
#[derive(Debug)]
pub struct Shares {
    buckets: MemoryStore,
    /// The minimum number of nodes, whatever membership says.
    configured: NonZeroU32,
    /// The number of nodes, and in the lower half how many come before this one. Zero until membership is known.
    rank: AtomicU64,
    /// Since when every heartbeat has counted fewer nodes than `rank`.
    fewer_since: Mutex<Option<Timestamp>>,
}

impl Shares {
    /// Shares of a node that is one of at least `nodes`.
    pub(crate) fn new(clock: Clock, nodes: NonZeroU32, bounds: Bounds) -> Self {
        Shares {
            buckets: MemoryStore::with(clock, bounds),
            configured: nodes,
            rank: AtomicU64::new(0),
            fewer_since: Mutex::new(None),
        }
    }

    /// Whether membership is known.
    #[inline]
    pub(crate) fn is_counted(&self) -> bool {
        self.rank.load(Ordering::Relaxed) != 0
    }

    /// This node's place as last counted; without membership, one of the configured number of nodes.
    pub fn rank(&self) -> Rank {
        let [place, nodes] = halves(self.rank.load(Ordering::Relaxed));
        match NonZeroU32::new(nodes) {
            Some(nodes) => Rank { place: Some(place), nodes },
            None => Rank { place: None, nodes: self.configured },
        }
    }

    /// Takes a count of nodes, of which `place` come before this one.
    ///
    /// More nodes are believed immediately, fewer only after [`MEMBERSHIP_TTL`]: after an outage, or when the store has
    /// lost the membership, every node at first sees only those that sent a heartbeat before it.
    pub(crate) fn update_membership(&self, nodes: u32, place: u32, now: Timestamp) {
        let nodes = nodes.max(self.configured.get());
        let mut fewer_since = self.fewer_since.lock();
        let fewer = self.is_counted() && nodes < self.rank().nodes.get();
        if fewer && fewer_since.get_or_insert(now).after(MEMBERSHIP_TTL) > now {
            return;
        }
        *fewer_since = None;
        self.rank.store(u64::from(nodes) << 32 | u64::from(place), Ordering::Relaxed);
    }

    /// A heartbeat failed. The last count still holds.
    pub(crate) fn membership_lost(&self) {
        *self.fewer_since.lock() = None;
    }

    /// Decides the pending rows that `is_local` selects. A charged row is held where other rows are still undecided.
    pub(crate) fn run(&self, call: &mut Call<'_>, is_local: impl Fn(&Tier) -> bool) -> Timestamp {
        let rules = call.rules.divided(self.rank());
        let undecided = |tier: &Tier| matches!(tier.outcome, Outcome::Pending | Outcome::Lost(_));
        let mut local: SmallVec<[bool; 4]> = SmallVec::new();
        for tier in call.tiers.iter_mut() {
            let is_local = tier.is_pending() && is_local(tier);
            if is_local && rules.rule(tier.rule).limit().is_none() {
                // There are more nodes than tokens, and none is left for this node until the fleet changes.
                let capacity = call.rules.rule(tier.rule).limit().map_or(0, Limit::capacity);
                tier.outcome = Outcome::Decided(Verdict::closed(capacity, HEARTBEAT_INTERVAL));
            }
            local.push(is_local && tier.is_pending());
        }
        let is_local = |at: usize| local[at];
        let others = (0..local.len()).any(|at| !local[at] && undecided(&call.tiers[at]));
        let holds = others && call.op == Op::Charge;
        let reserves = call.reservation.is_some();
        let mut charged = Charged::new();
        let at = self.buckets.run_rows(call, &rules, is_local, (holds || reserves).then_some(&mut charged));
        let refused = call.refuses();
        for (at, tier) in call.tiers.iter_mut().enumerate().filter(|(at, _)| local[*at]) {
            let Outcome::Decided(verdict) = tier.outcome else { continue };
            let verdict = verdict.resolved(rules.rule(tier.rule).limit());
            let since = charged.iter().find(|(row, _)| *row == at).map(|(_, since)| *since);
            tier.outcome = match since.filter(|_| holds && !refused && tier.enforces()) {
                Some(since) => Outcome::Held { if_passed: verdict, holder: Holder::Share(since) },
                None => Outcome::Decided(verdict),
            };
        }
        if reserves {
            self.buckets.record(call, &rules, &charged);
        }
        at
    }

    /// Ends what is held by charges of shares: they stand, or are given back.
    pub(crate) fn finish(&self, call: &mut Call<'_>, passes: bool) {
        let mut divided = None;
        for tier in call.tiers.iter_mut() {
            let Outcome::Held { if_passed, holder: Holder::Share(since) } = tier.outcome else { continue };
            tier.outcome = Outcome::Decided(if_passed);
            if !passes {
                let rules = divided.get_or_insert_with(|| call.rules.divided(self.rank()));
                let rule = rules.rule(tier.rule);
                if rule.limit().is_some() {
                    self.buckets.give_back(tier, rule, rule.key(call.request), since);
                }
                tier.outcome = Outcome::Decided(if_passed.given_back(tier.cost, None));
            }
        }
    }

    /// The buckets, for operations on one of them.
    pub(crate) const fn buckets(&self) -> &MemoryStore {
        &self.buckets
    }
}

#[expect(clippy::cast_possible_truncation, reason = "each half has 32 bits")]
const fn halves(both: u64) -> [u32; 2] {
    [both as u32, (both >> 32) as u32]
}
