//! The store's side: a bucket, and who has borrowed what of it.

use smallvec::SmallVec;

use super::{Call, Loan, MOST_HOLDERS, NodeId, is_lent};
use crate::algorithm::{Answer, Bucket, Demand, Instant, State, Window};
use crate::limit::{Algorithm, Limit};
use crate::tier::{Growth, Mark, Verdict};
use crate::time::{Micros, Timestamp};

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
    window: Window,
    changed: bool,
}

/// What a store has to write when it is done with a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// Nothing.
    Nothing,
    /// What there is to remember, if there is anything that a fresh bucket does not know.
    All(Option<(State, Ledger)>),
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
        let outstanding = ledger.outstanding();
        LeasedBucket { limit, bucket, ledger, outstanding, at, window, changed: false }
    }

    /// What the bucket would do with a demand. A cost of 0 always passes.
    ///
    /// Of a bucket the wait is the least one if all that is out on lease is spent and nobody tells of it before its end. Of
    /// windows and logs it suffices.
    pub fn ask(&self, demand: Demand) -> Answer {
        if self.outstanding == 0 || demand.cost == 0 || demand.cost > self.limit.capacity() {
            return self.bucket.ask(demand);
        }
        let cost = demand.cost.saturating_add(self.outstanding);
        match self.bucket.ask(Demand { cost, ..demand }) {
            Answer::Never => Answer::Wait(self.until_leases_have_ended(|bucket, left| {
                let cost = demand.cost.saturating_add(left);
                match bucket.ask(Demand { cost, ..demand }) {
                    Answer::Pass { .. } => Some(Micros::ZERO),
                    Answer::Wait(wait) => Some(wait),
                    Answer::Never => None,
                }
            })),
            answer => answer,
        }
    }

    /// Charges a cost that [`ask`](Self::ask) let pass.
    pub fn take(&mut self, cost: u64) {
        self.bucket.take(cost);
        self.changed |= cost > 0;
    }

    /// Gives back a cost; never beyond full.
    pub fn refund(&mut self, cost: u64) {
        self.bucket.refund(cost);
        self.changed |= cost > 0;
    }

    /// Gives back what is left of a charge, as [`Bucket::undo`]; what is out on lease is not touched.
    pub fn undo(&mut self, cost: u64, mark: Mark) -> bool {
        let undone = self.bucket.undo(cost, mark);
        self.changed |= undone;
        undone
    }

    /// What an undo of this cost names, which was taken just now.
    pub fn mark(&self, cost: u64) -> Mark {
        self.bucket.mark(cost)
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
        let growth = match self.ask(Demand { cost: remaining + 1, max_wait: Micros::MAX }) {
            Answer::Wait(wait) => Growth::After(wait),
            Answer::Pass { .. } | Answer::Never => Growth::Full,
        };
        let reset_after =
            self.until_leases_have_ended(|bucket, left| (left == 0).then(|| bucket.reset_after()));
        Verdict { remaining, growth, reset_after, ..verdict }
    }

    /// The verdict on the request that waited for a loan, after [`lend`](Self::lend).
    pub fn verdict_on_loan(&self, call: &Call, loan: Loan) -> Verdict {
        self.verdict(if loan.granted >= call.least {
            Answer::Pass { delay: Micros::ZERO }
        } else {
            self.ask(Demand { cost: call.least, max_wait: Micros::MAX })
        })
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
            self.changed = true;
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

    /// What to write after a request: what changed, and where nothing did, that the clock went back.
    pub fn written(self) -> Written {
        match (self.changed, self.stepped()) {
            (true, _) => Written::All(self.close()),
            (false, true) => Written::All(Some((self.bucket.close_shifted(), self.ledger))),
            (false, false) => Written::Nothing,
        }
    }

    /// What is left when the bucket is forgotten: only what is out on lease.
    pub fn reset(mut self, now: Timestamp) -> Option<(State, Ledger)> {
        self.bucket = Bucket::open(self.limit, None, now, self.window);
        self.bucket.touch();
        self.close()
    }

    /// The wait until enough leases have ended, as if each were spent at its end: `then` says, of the bucket at the end of
    /// one and of what is still out, how long it takes from there, if that is enough.
    fn until_leases_have_ended(&self, then: impl Fn(&Bucket<'_>, u64) -> Option<Micros>) -> Micros {
        let leases = self.ledger.leases();
        let last = leases.last().map_or(self.at, |lease| lease.until);
        if let Algorithm::SlidingWindowLog { window, .. } = self.limit.algorithm() {
            return self.until(last.after(*window)); // an entry counts from when its lease ended
        }
        let mut state = self.bucket.clone().into_state();
        let (mut left, mut wait) = (self.outstanding, Micros::ZERO);
        for (place, lease) in leases.iter().enumerate() {
            let mut bucket = Bucket::open(self.limit, Some(state), lease.until, self.window);
            bucket.settle(lease.tokens);
            left -= lease.tokens;
            let next = leases.get(place + 1).map(|next| next.until);
            if let Some(after) = then(&bucket, left) {
                let end = lease.until.after(after);
                wait = self.until(end);
                if next.is_none_or(|next| end <= next) {
                    break;
                }
            }
            state = bucket.into_state();
        }
        wait
    }

    fn until(&self, instant: Timestamp) -> Micros {
        Micros::new(instant.as_micros().abs_diff(self.at.as_micros()) + self.bucket.lag())
    }
}
