//! The store's side: a bucket, and who has borrowed what of it.

use smallvec::SmallVec;

use super::{Call, Loan, MOST_HOLDERS, NodeId, is_lent};
use crate::algorithm::{Answer, Bucket, Demand, Instant, State, Window};
use crate::limit::Limit;
use crate::time::{Micros, Timestamp};
use crate::verdict::{Mark, Verdict};

/// What one node has borrowed of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Who has it.
    pub node: NodeId,
    /// The last call that was heard of that node.
    pub sequence: u64,
    /// The most the node may still spend. Zero is a lease given back, remembered so that no late call revives it.
    pub tokens: u64,
    /// When it ends, on the store's clock.
    pub until: Timestamp,
}

/// Everything that is out on lease from one bucket, the earliest end first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ledger(SmallVec<[Lease; 1]>);

impl Ledger {
    /// A ledger of these leases.
    pub fn new(leases: impl IntoIterator<Item = Lease>) -> Self {
        let mut leases: SmallVec<[Lease; 1]> = leases.into_iter().collect();
        leases.sort_by_key(|lease| (lease.until, lease.node));
        Ledger(leases)
    }

    /// Its leases, the earliest end first.
    pub fn leases(&self) -> &[Lease] {
        &self.0
    }

    /// Whether nobody has anything, nor had lately.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All tokens that may still be spent.
    pub fn outstanding(&self) -> u64 {
        self.0.iter().map(|lease| lease.tokens).sum()
    }

    /// The end of the last lease.
    fn end(&self) -> Option<Timestamp> {
        self.0.last().map(|lease| lease.until)
    }

    fn of(&self, node: NodeId) -> Option<&Lease> {
        self.0.iter().find(|lease| lease.node == node)
    }

    fn shift(&mut self, by: i64) {
        for lease in &mut self.0 {
            lease.until = Timestamp::from_micros(lease.until.as_micros() + by);
        }
    }

    /// Takes out the leases that have ended.
    fn ended(&mut self, at: Timestamp) -> SmallVec<[Lease; 1]> {
        let count = self.0.partition_point(|lease| lease.until <= at);
        self.0.drain(..count).collect()
    }
}

/// One bucket at one instant, with what is out on lease from it: [`Bucket`] for a store that lends.
///
/// What is out is not in the bucket's state; it takes room beside it. So nothing refills it, and time pays back only
/// what was really spent. A lease that ended is a take of its tokens at that instant.
#[derive(Debug)]
pub struct LeasedBucket<'l> {
    limit: &'l Limit,
    bucket: Bucket<'l>,
    ledger: Ledger,
    outstanding: u64,
    at: Timestamp,
}

impl<'l> LeasedBucket<'l> {
    /// Brings a bucket and its ledger to `now`, as [`Bucket::open`] does.
    pub fn open(
        limit: &'l Limit,
        state: Option<State>,
        mut ledger: Ledger,
        now: Timestamp,
        window: Window,
    ) -> Self {
        let mut state = state.filter(|state| state.is_of(limit));
        if state.is_none() {
            ledger = Ledger::default(); // a ledger never stands alone: this one was another algorithm's
        }
        let Instant { at, step, .. } = Instant::of(state.as_ref().map(State::last), now);
        let at = Timestamp::from_micros(at);
        match step {
            // No time has passed, so no lease has ended.
            Some(by) => ledger.shift(by),
            None => {
                for lease in ledger.ended(at) {
                    let mut bucket = Bucket::open(limit, state, lease.until, window);
                    bucket.settle(lease.tokens);
                    state = Some(bucket.into_state());
                }
            }
        }
        let bucket = Bucket::open(limit, state, now, window);
        LeasedBucket { limit, bucket, outstanding: ledger.outstanding(), ledger, at }
    }

    /// What the bucket would do with a demand. A cost of 0 always passes.
    ///
    /// The wait is exact while the tokens out on lease leave room for the cost; beyond, it is until the last lease has
    /// ended and all of it has been earned back.
    pub fn ask(&self, demand: Demand) -> Answer {
        if self.outstanding == 0 || demand.cost == 0 || demand.cost > self.limit.capacity() {
            return self.bucket.ask(demand);
        }
        let cost = demand.cost.saturating_add(self.outstanding);
        match self.bucket.ask(Demand { cost, ..demand }) {
            Answer::Never => Answer::Wait(self.until_all_is_back()),
            answer => answer,
        }
    }

    /// Charges a cost that [`ask`](Self::ask) let pass.
    pub fn take(&mut self, cost: u64) {
        self.bucket.take(cost);
    }

    /// Gives back a cost; never beyond full.
    pub fn refund(&mut self, cost: u64) {
        self.bucket.refund(cost);
    }

    /// Gives back what is left of a charge, as [`Bucket::undo`]; what is out on lease is not touched.
    pub fn undo(&mut self, cost: u64, mark: Mark) -> bool {
        self.bucket.undo(cost, mark)
    }

    /// The largest cost that would pass now.
    pub fn remaining(&self) -> u64 {
        self.bucket.remaining().saturating_sub(self.outstanding)
    }

    /// All tokens that are out on lease.
    pub const fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Who has borrowed what.
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether the clock went back by more than a second, so that all instants were shifted.
    pub fn stepped(&self) -> bool {
        self.bucket.stepped()
    }

    /// The verdict on a demand, with the numbers of the bucket as it is now.
    pub fn verdict(&self, answer: Answer) -> Verdict {
        let verdict = self.bucket.verdict(answer);
        if self.outstanding == 0 {
            return verdict;
        }
        let remaining = self.remaining();
        let more_after = match self.ask(Demand { cost: remaining + 1, patience: Micros::MAX }) {
            Answer::Wait(wait) => Some(wait),
            Answer::Pass { .. } | Answer::Never => None,
        };
        Verdict { remaining, more_after, reset_after: self.until_all_is_back(), ..verdict }
    }

    /// Lends to a node, after it has told what became of its lease. `None`, and nothing is changed, when a later call
    /// of that node was heard already.
    pub fn lend(&mut self, call: &Call) -> Option<Loan> {
        let known = self.ledger.of(call.node).copied();
        if known.is_some_and(|lease| lease.sequence >= call.sequence) {
            return None;
        }
        let held = known.map_or(0, |lease| lease.tokens);
        let kept = call.left.min(held);
        let returned = call.returned.min(held - kept);
        self.ledger.0.retain(|lease| lease.node != call.node);
        self.bucket.settle(held - kept - returned);
        self.outstanding = self.ledger.outstanding() + kept;

        let lends = is_lent(self.limit) && self.ledger.0.len() < MOST_HOLDERS;
        let others = self.ledger.0.iter().filter(|lease| lease.tokens > 0).count() as u64;
        let granted = if lends { call.grant(self.remaining(), others + 1) } else { 0 };
        let until = self.bucket.last_instant_of_window().map_or(self.at.after(call.term), |last| {
            last.min(self.at.after(call.term)) // a lease dies with its window
        });
        if granted > 0 || known.is_some() {
            let Call { node, sequence, .. } = *call;
            let lease = Lease { node, sequence, tokens: kept + granted, until };
            self.ledger = Ledger::new(self.ledger.0.drain(..).chain([lease]));
            self.outstanding += granted;
            self.bucket.touch();
        }
        let term = Micros::new(until.as_micros().abs_diff(self.at.as_micros()));
        Some(Loan { granted, kept, term })
    }

    /// What to remember; `None` when there is nothing that a fresh bucket does not know.
    pub fn close(self) -> Option<(State, Ledger)> {
        if self.ledger.is_empty() {
            return self.bucket.close().map(|state| (state, Ledger::default()));
        }
        Some((self.bucket.into_state(), self.ledger))
    }

    /// What a refusal writes after a clock step, as [`Bucket::close_shifted`].
    pub fn close_shifted(self) -> (State, Ledger) {
        (self.bucket.close_shifted(), self.ledger)
    }

    /// What is left when the bucket is forgotten: only what is out on lease.
    pub fn reset(mut self, now: Timestamp, window: Window) -> Option<(State, Ledger)> {
        self.bucket = Bucket::open(self.limit, None, now, window);
        self.bucket.touch();
        self.close()
    }

    /// The wait until the last lease has ended and everything has been earned back, if nothing is given back before.
    fn until_all_is_back(&self) -> Micros {
        let end = self.ledger.end().unwrap_or(self.at).after(self.limit.time_to_full());
        Micros::new(end.as_micros().abs_diff(self.at.as_micros()) + self.bucket.lag())
    }
}
