//! A node: a purse for each key, the requests that wait, and a clock of its own.

use tollgate_core::algorithm::Demand;
use tollgate_core::lease::{Call, Loan, NodeId, Parting, Purse, ROUNDS, Step, Taken, Temper, is_lent};
use tollgate_core::{Limit, Mark, Micros, Timestamp, Verdict};

/// What a node sends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Message {
    Lend(Call),
    /// Places in a queue, for a request with this maximum wait.
    Block(Call, Micros),
    Charge {
        demand: Demand,
        ticket: u64,
    },
}

/// What it gets back.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reply {
    Loan { call: Call, outcome: Option<(Loan, Verdict)> },
    Block { call: Call, verdict: Verdict, charged_at: i64 },
    Verdict { ticket: u64, demand: Demand, verdict: Verdict, charged_at: i64 },
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    cost: u64,
    round: usize,
    asked: Option<Timestamp>,
}

/// What it has of one key.
#[derive(Debug)]
struct Desk {
    purse: Purse,
    waiting: Vec<Waiting>,
    /// The call for places that a request waits for.
    block: Option<u64>,
    /// Requests that the store is deciding.
    tickets: Vec<u64>,
}

pub(crate) struct Node {
    pub(crate) id: NodeId,
    /// Which version of the rules it knows.
    pub(crate) version: usize,
    desks: Vec<Desk>,
    sequence: u64,
    tickets: u64,
    /// Its clock: so much ahead, and so many parts in a thousand too fast.
    ahead: i64,
    fast_permille: i64,
    temper: Temper,
    /// How long its requests would wait in a queue.
    pub(crate) max_wait: Micros,
    /// How often it was stopped and not continued.
    pub(crate) paused: u32,
}

/// A request that passed here and now, unless another limit refuses it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Passed {
    pub(crate) cost: u64,
    pub(crate) taken: Taken,
    pub(crate) delay: Micros,
}

/// What came of an event at a node.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) send: Vec<Message>,
    pub(crate) passed: Vec<Passed>,
    /// A request that the store let pass, when it did, and how long it is held.
    pub(crate) passed_at_store: Option<(i64, u64, Micros)>,
    pub(crate) refused: u64,
}

impl Node {
    pub(crate) fn new(id: u64, limits: &[Limit], ahead: i64, fast_permille: i64, temper: Temper) -> Self {
        let desk = |limit: &Limit| Desk {
            purse: Purse::new(limit.clone()),
            waiting: Vec::new(),
            block: None,
            tickets: Vec::new(),
        };
        Node {
            id: NodeId(id),
            version: 0,
            desks: limits.iter().map(desk).collect(),
            sequence: 0,
            tickets: 0,
            ahead,
            fast_permille,
            temper,
            max_wait: Micros::MAX,
            paused: 0,
        }
    }

    /// The same node with the limits of this version of the rules.
    pub(crate) fn knowing(self, version: usize) -> Self {
        Node { version, ..self }
    }

    fn clock(&self, now: i64) -> Timestamp {
        Timestamp::from_micros(now + now / 1_000 * self.fast_permille + self.ahead)
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Tokens that it would spend.
    pub(crate) fn held(&self, key: usize, now: i64) -> u64 {
        let purse = &self.desks[key].purse;
        if is_lent(purse.limit()) { purse.held_at(self.clock(now)) } else { 0 }
    }

    pub(crate) fn request(&mut self, key: usize, cost: u64, now: i64) -> Outcome {
        let mut outcome = Outcome::default();
        self.ask(key, Waiting { cost, round: 0, asked: None }, now, &mut outcome);
        outcome
    }

    fn ask(&mut self, key: usize, mut request: Waiting, now: i64, outcome: &mut Outcome) {
        let (clock, id, sequence, cost) = (self.clock(now), self.id, self.next_sequence(), request.cost);
        let desk = &mut self.desks[key];
        let demand = Demand { cost, max_wait: self.max_wait };
        let step = if request.round == ROUNDS {
            Step::Exact
        } else {
            desk.purse.ask(demand, self.temper, &mut request.asked, clock)
        };
        request.round += 1;
        match step {
            Step::Pass(taken, verdict) => {
                outcome.passed.push(Passed { cost, taken, delay: verdict.delay });
                outcome.send.extend(desk.purse.renewal(id, || sequence, clock).map(Message::Lend));
            }
            Step::Refuse(_) => outcome.refused += 1,
            Step::Wait => desk.waiting.push(request),
            Step::Call => {
                let call = desk.purse.call(id, sequence, cost, clock);
                if is_lent(desk.purse.limit()) {
                    outcome.send.push(Message::Lend(call));
                    desk.waiting.push(request);
                } else {
                    desk.block = Some(sequence);
                    outcome.send.push(Message::Block(call, self.max_wait));
                }
            }
            Step::Exact => self.leave_to_the_store(key, cost, outcome),
        }
    }

    fn leave_to_the_store(&mut self, key: usize, cost: u64, outcome: &mut Outcome) {
        self.tickets += 1;
        self.desks[key].tickets.push(self.tickets);
        let demand = Demand { cost, max_wait: self.max_wait };
        outcome.send.push(Message::Charge { demand, ticket: self.tickets });
    }

    /// Another limit has refused the request that took these.
    pub(crate) fn put_back(&mut self, key: usize, taken: Taken) {
        self.desks[key].purse.put_back(taken);
    }

    pub(crate) fn reply(&mut self, key: usize, reply: Reply, now: i64) -> Outcome {
        let mut outcome = Outcome::default();
        let clock = self.clock(now);
        let desk = &mut self.desks[key];
        match reply {
            Reply::Loan { call, outcome: answer } => {
                match answer {
                    Some((loan, verdict)) => desk.purse.lent(&call, loan, &verdict, Mark::default(), clock),
                    None => desk.purse.gave_up(&call, clock),
                }
                self.wake(key, now, &mut outcome);
            }
            Reply::Block { call, verdict, charged_at } => {
                let waits = desk.block.take_if(|sequence| *sequence == call.sequence).is_some();
                match desk.purse.placed(&call, self.max_wait, &verdict, clock) {
                    Some(Step::Pass(_, verdict)) => {
                        outcome.passed_at_store = Some((charged_at, call.least, verdict.delay));
                    }
                    Some(_) => outcome.refused += 1,
                    None if waits => self.leave_to_the_store(key, call.least, &mut outcome),
                    None => {}
                }
                self.wake(key, now, &mut outcome);
            }
            Reply::Verdict { ticket, demand, verdict, charged_at } => {
                let place = desk.tickets.iter().position(|waits| *waits == ticket);
                // Nobody waits for it any more: it was charged for nothing.
                let Some(place) = place else { return outcome };
                desk.tickets.swap_remove(place);
                if verdict.allowed {
                    outcome.passed_at_store = Some((charged_at, demand.cost, verdict.delay));
                } else {
                    desk.purse.refused(demand, verdict, clock);
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
            Message::Lend(call) | Message::Block(call, _) => {
                desk.block.take_if(|sequence| *sequence == call.sequence);
                desk.purse.gave_up(&call, clock);
                self.wake(key, now, &mut outcome);
            }
            Message::Charge { ticket, .. } => desk.tickets.retain(|waits| *waits != ticket),
        }
        outcome
    }

    fn wake(&mut self, key: usize, now: i64, outcome: &mut Outcome) {
        for request in std::mem::take(&mut self.desks[key].waiting) {
            self.ask(key, request, now, outcome);
        }
    }

    /// What it gives back because nobody asks, or because it stops.
    pub(crate) fn give_back(&mut self, key: usize, parting: Parting, now: i64) -> Outcome {
        let (clock, id, sequence) = (self.clock(now), self.id, self.next_sequence());
        let call = self.desks[key].purse.farewell(id, || sequence, parting, clock);
        Outcome { send: call.map(Message::Lend).into_iter().collect(), ..Outcome::default() }
    }

    /// What went to waste on it since this was asked last.
    pub(crate) fn stranded(&mut self, now: i64) -> u64 {
        let clock = self.clock(now);
        self.desks.iter_mut().map(|desk| desk.purse.stranded(clock)).sum()
    }
}
