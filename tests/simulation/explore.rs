//! Small configurations, explored exhaustively: every order of requests, calls, replies, losses and ticks up to a depth.
//!
//! Two nodes share one bucket of a few tokens. In each state every action is tried: a node is asked, a message is delivered
//! or lost, time passes. States that were seen before are not explored again. In each of them nodes have no more than the
//! ledger says, and all admissions fit a bucket that is charged with every one of them.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use tollgate_core::lease::{Called, Heat, NodeBucket, Step};
use tollgate_core::limit::Algorithm;
use tollgate_core::{Limit, Micros, Timestamp};

use crate::store::{Message, Reply, Store};

const NODES: usize = 2;
const START: i64 = 1_000_000_000_000;
/// Time passes in steps of this length: half a lease time, and a little less, so that boundaries fall between steps too.
const STEPS: [i64; 2] = [50_000, 37_000];
/// Messages under way at most.
const UNDER_WAY: usize = 3;

#[derive(Debug, Clone)]
struct Small {
    now: i64,
    nodes: Vec<NodeBucket>,
    store: Store,
    under_way: Vec<Travelling>,
    /// Units that a bucket charged with every admission is in debt, and since when.
    debt: u64,
    charged: i64,
}

#[derive(Debug, Clone, Copy)]
enum Travelling {
    ToStore { node: usize, message: Message, called: Option<Called> },
    ToNode { node: usize, called: Option<Called>, reply: Reply, cost: u64 },
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Ask { node: usize, cost: u64 },
    GiveBack { node: usize },
    Deliver(usize),
    Lose(usize),
    Pass(i64),
}

impl Small {
    fn new(limit: &Limit) -> Self {
        Small {
            now: START,
            nodes: vec![NodeBucket::new(limit, 0); NODES],
            store: Store::new([vec![limit.clone()], vec![limit.clone()]], Micros::new(50_000)),
            under_way: Vec::new(),
            debt: 0,
            charged: START,
        }
    }

    fn actions(&self, costs: &[u64]) -> Vec<Action> {
        let mut actions: Vec<Action> = STEPS.map(Action::Pass).into();
        if self.under_way.len() < UNDER_WAY {
            for node in 0..NODES {
                actions.extend(costs.iter().map(|cost| Action::Ask { node, cost: *cost }));
                actions.push(Action::GiveBack { node });
            }
        }
        for place in 0..self.under_way.len() {
            actions.extend([Action::Deliver(place), Action::Lose(place)]);
        }
        actions
    }

    fn act(&mut self, action: Action) {
        let clock = Timestamp::from_micros(self.now);
        let round_trip = Micros::new(1_000);
        match action {
            Action::Pass(time) => self.now += time,
            Action::Ask { node, cost } => {
                let bucket = &mut self.nodes[node];
                match bucket.ask(cost, clock) {
                    Step::Pass(ticket) => {
                        bucket.finish(ticket, true, clock);
                        self.admit(cost);
                    }
                    Step::Refuse(_) => {}
                    Step::Store => {
                        let message = Message::Charge { cost, reported: bucket.is_leased() };
                        self.under_way.push(Travelling::ToStore { node, message, called: None });
                    }
                }
                // A renewal is due throughout the period.
                if let Some((call, called)) = self.nodes[node].call(Heat::ANY, Micros::MAX, round_trip, clock)
                {
                    let message = Message::Lease(call);
                    self.under_way.push(Travelling::ToStore { node, message, called: Some(called) });
                }
            }
            Action::GiveBack { node } => {
                if let Some((call, _)) = self.nodes[node].give_back(Heat::ANY, true, round_trip, clock) {
                    let message = Message::Lease(call);
                    self.under_way.push(Travelling::ToStore { node, message, called: None });
                }
            }
            Action::Deliver(place) => match self.under_way.remove(place) {
                Travelling::ToStore { node, message, called } => {
                    let reply = self.store.answer(0, 0, message, self.now);
                    let cost = if let Message::Charge { cost, .. } = message { cost } else { 0 };
                    if let Reply::Verdict(verdict) = reply
                        && verdict.allowed
                    {
                        self.admit(cost);
                    }
                    self.under_way.push(Travelling::ToNode { node, called, reply, cost });
                }
                Travelling::ToNode { node, called, reply, cost } => match (reply, called) {
                    (Reply::Grant(grant), Some(called)) => self.nodes[node].granted(called, &grant, clock),
                    (Reply::Verdict(verdict), _) if !verdict.allowed => {
                        self.nodes[node].refused(cost, verdict, clock);
                    }
                    _ => {}
                },
            },
            Action::Lose(place) => {
                let (Travelling::ToStore { node, called, .. } | Travelling::ToNode { node, called, .. }) =
                    self.under_way.remove(place);
                if let Some(called) = called {
                    self.nodes[node].gave_up(called, clock);
                }
            }
        }
    }

    fn admit(&mut self, cost: u64) {
        let limit = &self.store.limits[0][0];
        let Algorithm::TokenBucket(refill) = limit.algorithm() else { panic!("a token bucket") };
        let refilled = self.now.abs_diff(self.charged) * refill.rate();
        self.debt = self.debt.saturating_sub(refilled) + cost * refill.units();
        self.charged = self.now;
        let most = refill.capacity() * refill.units();
        assert!(self.debt <= most, "{limit}: {} units too many", self.debt - most);
    }

    fn check(&self) {
        let clock = Timestamp::from_micros(self.now);
        let has: u64 = self.nodes.iter().map(|node| node.clone().content(clock)).sum();
        let out = self.store.out(0, 0, self.now);
        assert!(has <= out, "nodes have {has}, the ledger has {out}");
        self.store.check(0, self.now);
    }
}

/// Explores all states within so many actions; answers how many there are.
fn explore(limit: &str, costs: &[u64], depth: usize) -> usize {
    let limit: Limit = limit.parse().unwrap();
    let hasher = RandomState::new();
    let mut seen: HashSet<u64> = HashSet::new();
    let mut frontier = vec![Small::new(&limit)];
    for _ in 0..depth {
        let mut next = Vec::new();
        for world in &frontier {
            for action in world.actions(costs) {
                let mut after = world.clone();
                after.act(action);
                after.check();
                if seen.insert(hasher.hash_one(format!("{after:?}"))) {
                    next.push(after);
                }
            }
        }
        frontier = next;
    }
    println!("{limit}: {} states within {depth} actions", seen.len());
    seen.len()
}

#[test]
fn no_order_of_a_few_messages_admits_too_much() {
    let depth = usize::try_from(crate::number("SIM_DEPTH").unwrap_or(6)).unwrap();
    for (limit, costs) in [("100/s burst 4", &[1, 3][..]), ("1000/s burst 60", &[20])] {
        assert!(explore(limit, costs, depth) > 1_000);
    }
}
