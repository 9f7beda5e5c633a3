//! The store: buckets with their ledgers, on one clock.

use tollgate_core::algorithm::{Demand, State, Window};
use tollgate_core::lease::{Grant, LeaseCall, Ledger, ParentBucket, Written};
use tollgate_core::{Limit, Micros, Timestamp, Verdict};

type Kept = Option<(State, Option<Ledger>)>;

/// What a node sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    /// A request that is decided at the store. The calls of a node with a lease report its demand.
    Charge {
        cost: u64,
        reported: bool,
    },
    /// A request that is decided in another slot as well.
    Hold {
        cost: u64,
    },
    Spend {
        cost: u64,
        boundary: Timestamp,
    },
    Release {
        cost: u64,
        boundary: Timestamp,
    },
    Lease(LeaseCall),
}

/// What the store answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    Verdict(Verdict),
    Held(Option<Timestamp>),
    Grant(Grant),
    Nothing,
}

#[derive(Debug, Clone)]
pub(crate) struct Store {
    /// The limit of each key, in two versions of the rules.
    pub(crate) limits: [Vec<Limit>; 2],
    kept: Vec<Kept>,
    /// What a replica had some time ago.
    copy: Vec<Kept>,
    /// How far its clock is from true time.
    off: i64,
    /// The shortest lease time of holds: that of the decision's deadline.
    hold_time: Micros,
}

impl Store {
    pub(crate) fn new(limits: [Vec<Limit>; 2], hold_time: Micros) -> Self {
        let nothing = vec![None; limits[0].len()];
        Store { limits, kept: nothing.clone(), copy: nothing, off: 0, hold_time }
    }

    pub(crate) fn keys(&self) -> std::ops::Range<usize> {
        0..self.kept.len()
    }

    pub(crate) fn step_clock(&mut self, by: i64) {
        self.off += by;
    }

    fn open(&self, key: usize, version: usize, now: i64) -> ParentBucket<'_> {
        let (state, ledger) = self.kept[key].clone().unzip();
        let now = Timestamp::from_micros(now + self.off);
        ParentBucket::open(&self.limits[version][key], state, ledger.flatten(), now, Window::Own)
    }

    /// Does what a message says, under the limit that its sender knows.
    pub(crate) fn answer(&mut self, key: usize, version: usize, message: Message, now: i64) -> Reply {
        let hold_time = self.hold_time;
        let mut parent = self.open(key, version, now);
        let reply = match message {
            Message::Charge { cost, reported } => {
                if !reported {
                    parent.note_exact_demand(cost);
                }
                let answer = parent.ask(Demand { cost, max_wait: Micros::MAX });
                if answer.allowed() {
                    parent.take(cost);
                }
                Reply::Verdict(parent.verdict(answer))
            }
            Message::Hold { cost } => Reply::Held(parent.hold(cost, hold_time)),
            Message::Spend { cost, boundary } => {
                parent.spend(cost, boundary);
                Reply::Nothing
            }
            Message::Release { cost, boundary } => {
                parent.release(cost, boundary);
                Reply::Nothing
            }
            Message::Lease(call) => Reply::Grant(parent.lend(&call)),
        };
        let written = parent.written();
        if let Written::All(kept) = written {
            self.kept[key] = kept;
        }
        reply
    }

    /// Units that are out according to the ledger.
    pub(crate) fn out(&self, key: usize, version: usize, now: i64) -> u64 {
        self.open(key, version, now).ledger().map_or(0, Ledger::out)
    }

    /// The sums of the ledger fit the limit, now and after the next boundary.
    pub(crate) fn check(&self, key: usize, now: i64) {
        let limit = &self.limits[0][key];
        let terms = tollgate_core::lease::Terms::of(limit);
        let parent = self.open(key, 0, now);
        let Some(ledger) = parent.ledger() else { return };
        let capacity = limit.capacity() * terms.units;
        for (out, rate) in ledger.sums() {
            assert!(out <= capacity && rate <= terms.parts, "of {limit}: {ledger:?}");
        }
        assert!(ledger.out() <= capacity, "of {limit}: {ledger:?}");
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
