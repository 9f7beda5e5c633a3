//! The store: buckets with their ledgers, on a clock that is sometimes set back.

use tollgate_core::algorithm::{Bucket, Demand, State, Window};
use tollgate_core::lease::{Call, LeasedBucket, Ledger, Loan, Written};
use tollgate_core::limit::AlgorithmName;
use tollgate_core::{Limit, Timestamp, Verdict};

use crate::node::{Message, Reply};

/// What a bucket's key holds.
type Kept = Option<(State, Ledger)>;

pub(crate) struct Store {
    /// The limit of each key, in two versions of the rules.
    pub(crate) limits: [Vec<Limit>; 2],
    kept: Vec<Kept>,
    /// What a replica had some time ago.
    copy: Vec<Kept>,
    /// How far its clock is off, and whether it ever was.
    off: i64,
    pub(crate) was_set: bool,
}

impl Store {
    pub(crate) fn new(limits: [Vec<Limit>; 2]) -> Self {
        let nothing = vec![None; limits[0].len()];
        Store { limits, kept: nothing.clone(), copy: nothing, off: 0, was_set: false }
    }

    /// Sets its clock by so much.
    pub(crate) fn set_clock(&mut self, by: i64) {
        self.off += by;
        self.was_set = true;
    }

    fn clock(&self, now: i64) -> Timestamp {
        Timestamp::from_micros(now + self.off)
    }

    pub(crate) fn keys(&self) -> std::ops::Range<usize> {
        0..self.kept.len()
    }

    fn open(&self, key: usize, version: usize, now: i64) -> LeasedBucket<'_> {
        let (state, ledger) = match self.kept[key].clone() {
            Some((state, ledger)) => (Some(state), ledger),
            None => (None, Ledger::default()),
        };
        LeasedBucket::open(&self.limits[version][key], state, ledger, self.clock(now), Window::Own)
    }

    /// Does what a message says, under the limit that its sender knows.
    pub(crate) fn answer(&mut self, key: usize, version: usize, message: Message, now: i64) -> Reply {
        match message {
            Message::Lend(call) => Reply::Loan { call, outcome: self.lend(key, version, &call, now) },
            Message::Block(call, max_wait) => {
                let verdict = self.charge(key, version, Demand { cost: call.want, max_wait }, now);
                Reply::Block { call, verdict, charged_at: now }
            }
            Message::Charge { demand, ticket } => {
                let verdict = self.charge(key, version, demand, now);
                Reply::Verdict { ticket, demand, verdict, charged_at: now }
            }
        }
    }

    fn charge(&mut self, key: usize, version: usize, demand: Demand, now: i64) -> Verdict {
        let mut bucket = self.open(key, version, now);
        let answer = bucket.ask(demand);
        if answer.allowed() {
            bucket.take(demand.cost);
        }
        let (verdict, written) = (bucket.verdict(answer), bucket.written());
        self.write(key, written);
        verdict
    }

    fn lend(&mut self, key: usize, version: usize, call: &Call, now: i64) -> Option<(Loan, Verdict)> {
        let mut bucket = self.open(key, version, now);
        let loan = bucket.lend(call)?;
        let (verdict, written) = (bucket.verdict_on_loan(call, loan), bucket.written());
        self.write(key, written);
        Some((loan, verdict))
    }

    fn write(&mut self, key: usize, written: Written) {
        if let Written::All(kept) = written {
            self.kept[key] = kept;
        }
    }

    /// The invariant: what is used leaves room for what is out on lease. Answers what is out, and to whom.
    pub(crate) fn check(&self, key: usize, now: i64) -> Ledger {
        self.check_version(key, 1, now);
        self.check_version(key, 0, now)
    }

    fn check_version(&self, key: usize, version: usize, now: i64) -> Ledger {
        let (limit, clock) = (&self.limits[version][key], self.clock(now));
        let bucket = self.open(key, version, now);
        let (available, out) = (bucket.remaining(), bucket.outstanding());
        let ledger = bucket.ledger().clone();
        let unused = bucket.close().map_or(limit.capacity(), |(state, _)| {
            Bucket::open(limit, Some(state), clock, Window::Own).remaining() // without the ledger
        });
        // A clock that is set back into the middle of a counter's window gives the window before more weight again.
        let weighs_more = self.was_set && limit.algorithm_name() == AlgorithmName::SlidingWindowCounter;
        // What is out under a larger limit may be more than a smaller one has unused.
        let is_mixed = self.limits[0][key] != self.limits[1][key];
        let agrees =
            if is_mixed { available == unused.saturating_sub(out) } else { available + out == unused };
        assert!(
            agrees || weighs_more,
            "of {limit} ({:?}): {available} available, {out} out, {unused} unused",
            limit.algorithm_name()
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
