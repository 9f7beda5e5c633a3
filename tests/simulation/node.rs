//! A node: what it holds of each key, and the requests that wait.

use tollgate_core::lease::{
    Block, Call, Holding, Loan, NodeId, Parting, Step, TERM, Taken, Temper, Turn, is_lent,
};
use tollgate_core::{Limit, Micros, Timestamp, Verdict};

/// So often a request asks what is held before the store decides it.
const ROUNDS: u32 = 3;

/// What a node sends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Message {
    Lend(Call),
    /// Places in a queue, of which the first are for a request of this cost.
    Block {
        sequence: u64,
        places: u64,
        cost: u64,
    },
    Charge {
        cost: u64,
        ticket: u64,
    },
}

/// What it gets back.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reply {
    Loan { sequence: u64, outcome: Option<(Loan, Verdict)> },
    Block { sequence: u64, places: u64, cost: u64, verdict: Verdict, charged_at: i64 },
    Verdict { ticket: u64, cost: u64, verdict: Verdict, charged_at: i64 },
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    cost: u64,
    round: u32,
    asked: Timestamp,
}

/// What it holds of one key.
#[derive(Debug, Default)]
struct Desk {
    holding: Holding,
    block: Option<Block>,
    waiting: Vec<Waiting>,
    /// Requests that the store is deciding.
    tickets: Vec<u64>,
}

pub(crate) struct Node {
    pub(crate) id: NodeId,
    limits: Vec<Limit>,
    desks: Vec<Desk>,
    sequence: u64,
    tickets: u64,
    /// Its clock: so much ahead, and so many parts in a thousand too fast.
    ahead: i64,
    fast_permille: i64,
    temper: Temper,
    pub(crate) paused: bool,
}

/// What came of an event at a node.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) send: Vec<Message>,
    /// Costs of requests that passed here and now.
    pub(crate) passed: Vec<u64>,
    /// The same on tokens, which can be put back if another limit refuses.
    pub(crate) taken: Vec<(u64, Taken)>,
    /// A request that the store let pass, and when it did.
    pub(crate) passed_at_store: Option<(i64, u64)>,
    pub(crate) refused: u64,
}

impl Node {
    pub(crate) fn new(id: u64, limits: &[Limit], ahead: i64, fast_permille: i64, temper: Temper) -> Self {
        Node {
            id: NodeId(id),
            desks: limits.iter().map(|_| Desk::default()).collect(),
            limits: limits.to_vec(),
            sequence: 0,
            tickets: 0,
            ahead,
            fast_permille,
            temper,
            paused: false,
        }
    }

    fn clock(&self, now: i64) -> Timestamp {
        Timestamp::from_micros(now + now / 1_000 * self.fast_permille + self.ahead)
    }

    pub(crate) fn held(&self, key: usize, now: i64) -> u64 {
        self.desks[key].holding.tokens_at(self.clock(now))
    }

    pub(crate) fn request(&mut self, key: usize, cost: u64, now: i64) -> Outcome {
        let mut outcome = Outcome::default();
        let clock = self.clock(now);
        self.desks[key].holding.note(cost, self.temper, clock);
        self.spend(key, Waiting { cost, round: 0, asked: clock }, now, &mut outcome);
        outcome
    }

    fn spend(&mut self, key: usize, request: Waiting, now: i64, outcome: &mut Outcome) {
        let (clock, id) = (self.clock(now), self.id);
        let Waiting { cost, round, asked } = request;
        let again = Waiting { round: round + 1, ..request };
        let desk = &mut self.desks[key];
        let turn = desk.block.as_mut().map_or(Turn::None, |block| block.take(cost, Micros::MAX, clock));
        if let Turn::Place { .. } = turn {
            outcome.passed.push(cost);
            return;
        }
        let next = || {
            self.sequence += 1;
            self.sequence
        };
        match desk.holding.spend(cost, asked, clock) {
            Step::Pass(taken) => {
                outcome.taken.push((cost, taken));
                outcome.send.extend(desk.holding.renewal(id, next, clock).map(Message::Lend));
            }
            Step::Refuse(_) => outcome.refused += 1,
            Step::Wait if round < ROUNDS => desk.waiting.push(again),
            Step::Call if round < ROUNDS && !is_lent(&self.limits[key]) => {
                self.sequence += 1;
                let call = desk.holding.call(id, self.sequence, cost, clock);
                let (sequence, places) = (call.sequence, desk.holding.places(cost, call.want));
                outcome.send.push(Message::Block { sequence, places, cost });
            }
            Step::Call if round < ROUNDS => {
                self.sequence += 1;
                outcome.send.push(Message::Lend(desk.holding.call(id, self.sequence, cost, clock)));
                desk.waiting.push(again);
            }
            Step::Exact | Step::Wait | Step::Call => {
                self.tickets += 1;
                desk.tickets.push(self.tickets);
                outcome.send.push(Message::Charge { cost, ticket: self.tickets });
            }
        }
    }

    /// Another limit has refused the request that took these.
    pub(crate) fn put_back(&mut self, key: usize, taken: Taken) {
        self.desks[key].holding.put_back(taken);
    }

    pub(crate) fn reply(&mut self, key: usize, reply: Reply, now: i64) -> Outcome {
        let mut outcome = Outcome::default();
        let clock = self.clock(now);
        let desk = &mut self.desks[key];
        match reply {
            Reply::Loan { sequence, outcome: Some((loan, verdict)) } => {
                let waited_for = desk.holding.answered(sequence, loan, &verdict, clock).is_some();
                if waited_for
                    && !verdict.allowed
                    && let Some(cost) = desk.waiting.iter().map(|request| request.cost).max()
                {
                    desk.holding.refused(cost, verdict, clock);
                }
                self.wake(key, now, &mut outcome);
            }
            Reply::Loan { sequence, outcome: None } => desk.holding.gave_up(sequence, clock),
            Reply::Block { sequence, places, cost, verdict, charged_at } => {
                let nothing = Loan { granted: 0, kept: 0, term: TERM };
                let sent = desk.holding.answered(sequence, nothing, &verdict, clock);
                if let Some(sent) = sent.filter(|_| verdict.allowed) {
                    desk.block = Block::new(&self.limits[key], places, cost, &verdict, sent, clock);
                    outcome.passed_at_store = Some((charged_at, cost));
                }
                self.wake(key, now, &mut outcome);
            }
            Reply::Verdict { ticket, cost, verdict, charged_at } => {
                let place = desk.tickets.iter().position(|waits| *waits == ticket);
                // Nobody waits for it any more: it was charged for nothing.
                let Some(place) = place else { return outcome };
                desk.tickets.swap_remove(place);
                if verdict.allowed {
                    outcome.passed_at_store = Some((charged_at, cost));
                } else {
                    desk.holding.refused(cost, verdict, clock);
                    outcome.refused += 1;
                }
            }
        }
        outcome
    }

    /// The deadline of a message has passed.
    pub(crate) fn give_up(&mut self, key: usize, message: Message, now: i64) -> Outcome {
        let mut outcome = Outcome::default();
        let clock = self.clock(now);
        let desk = &mut self.desks[key];
        match message {
            Message::Lend(call) => {
                desk.holding.gave_up(call.sequence, clock);
                self.wake(key, now, &mut outcome);
            }
            Message::Block { sequence, .. } => {
                desk.holding.gave_up(sequence, clock);
                self.wake(key, now, &mut outcome);
            }
            Message::Charge { ticket, .. } => desk.tickets.retain(|waits| *waits != ticket),
        }
        outcome
    }

    fn wake(&mut self, key: usize, now: i64, outcome: &mut Outcome) {
        for request in std::mem::take(&mut self.desks[key].waiting) {
            self.spend(key, request, now, outcome);
        }
    }

    /// What it gives back because nobody asks, or because it stops.
    pub(crate) fn give_back(&mut self, key: usize, parting: Parting, now: i64) -> Outcome {
        let (clock, id) = (self.clock(now), self.id);
        let next = || {
            self.sequence += 1;
            self.sequence
        };
        let call = self.desks[key].holding.farewell(id, next, parting, clock);
        Outcome { send: call.map(Message::Lend).into_iter().collect(), ..Outcome::default() }
    }
}
