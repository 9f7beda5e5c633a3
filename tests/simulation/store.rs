//! The store: buckets with their ledgers, on a clock that is sometimes set back.

use tollgate_core::algorithm::{Answer, Bucket, Demand, State, Window};
use tollgate_core::lease::{Call, LeasedBucket, Ledger, Loan};
use tollgate_core::limit::AlgorithmName;
use tollgate_core::{Limit, Micros, Timestamp, Verdict};

use crate::node::{Message, Reply};

/// What a bucket's key holds.
type Kept = Option<(State, Ledger)>;

pub(crate) struct Store {
    pub(crate) limits: Vec<Limit>,
    kept: Vec<Kept>,
    /// What a replica had some time ago.
    copy: Vec<Kept>,
    /// How far its clock is off.
    pub(crate) off: i64,
}

impl Store {
    pub(crate) fn new(limits: Vec<Limit>) -> Self {
        let nothing = vec![None; limits.len()];
        Store { limits, kept: nothing.clone(), copy: nothing, off: 0 }
    }

    fn clock(&self, now: i64) -> Timestamp {
        Timestamp::from_micros(now + self.off)
    }

    fn open(&self, key: usize, now: i64) -> LeasedBucket<'_> {
        let (state, ledger) = match self.kept[key].clone() {
            Some((state, ledger)) => (Some(state), ledger),
            None => (None, Ledger::default()),
        };
        LeasedBucket::open(&self.limits[key], state, ledger, self.clock(now), Window::Own)
    }

    /// Does what a message says.
    pub(crate) fn answer(&mut self, key: usize, message: Message, now: i64) -> Reply {
        match message {
            Message::Lend(call) => {
                Reply::Loan { sequence: call.sequence, outcome: self.lend(key, &call, now) }
            }
            Message::Block { sequence, places, cost } => {
                let verdict = self.charge(key, places, now);
                Reply::Block { sequence, places, cost, verdict, charged_at: now }
            }
            Message::Charge { cost, ticket } => {
                let verdict = self.charge(key, cost, now);
                Reply::Verdict { ticket, cost, verdict, charged_at: now }
            }
        }
    }

    fn charge(&mut self, key: usize, cost: u64, now: i64) -> Verdict {
        let mut bucket = self.open(key, now);
        let answer = bucket.ask(Demand { cost, patience: Micros::MAX });
        if answer.allowed() {
            bucket.take(cost);
        }
        let verdict = bucket.verdict(answer);
        if answer.allowed() {
            self.kept[key] = bucket.close();
        }
        verdict
    }

    fn lend(&mut self, key: usize, call: &Call, now: i64) -> Option<(Loan, Verdict)> {
        let mut bucket = self.open(key, now);
        let loan = bucket.lend(call)?;
        let answer = if loan.granted >= call.least {
            Answer::Pass { delay: Micros::ZERO }
        } else {
            bucket.ask(Demand { cost: call.least, patience: Micros::MAX })
        };
        let verdict = bucket.verdict(answer);
        self.kept[key] = bucket.close();
        Some((loan, verdict))
    }

    /// The invariant: what is used leaves room for what is out on lease. Answers what is out, and to whom.
    pub(crate) fn check(&self, key: usize, now: i64) -> Ledger {
        let (limit, clock) = (&self.limits[key], self.clock(now));
        let bucket = self.open(key, now);
        let (available, out) = (bucket.remaining(), bucket.outstanding());
        let ledger = bucket.ledger().clone();
        let unused = bucket.close().map_or(limit.capacity(), |(state, _)| {
            Bucket::open(limit, Some(state), clock, Window::Own).remaining() // without the ledger
        });
        // A clock that is set back into the middle of a counter's window gives the window before more weight again.
        let weighs_more = self.off != 0 && limit.algorithm_name() == AlgorithmName::SlidingWindowCounter;
        assert!(
            available + out == unused || weighs_more,
            "of {limit}: {available} available, {out} out, {unused} unused"
        );
        ledger
    }

    pub(crate) fn replicate(&mut self) {
        self.copy = self.kept.clone();
    }

    pub(crate) fn fail_over(&mut self) {
        self.kept = self.copy.clone();
    }

    pub(crate) fn restart_empty(&mut self) {
        self.kept.fill(None);
    }
}
