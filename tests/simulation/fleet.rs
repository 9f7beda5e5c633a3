//! Nothing goes wrong: how much of a limit is used, how it is shared, and how often the store is called.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tollgate_core::lease::{Called, Heat, NodeBucket, Step, lease_time};
use tollgate_core::limit::Algorithm;
use tollgate_core::{Limit, Micros, Timestamp};
use tollgate_tests::random::Random;

use crate::bound::{self, Admission};
use crate::store::{Message, Reply, Store};

const SECOND: i64 = 1_000_000;
/// How often a node looks at its lease.
const TICK: i64 = 5_000;
const START: i64 = 1_000_000_000_000;

/// A fleet of nodes that compete for one key.
pub(crate) struct Fleet {
    limit: Limit,
    /// One way, in microseconds.
    way: i64,
    nodes: Vec<Node>,
    store: Store,
    now: i64,
    order: u64,
    queue: BinaryHeap<Reverse<Entry>>,
    random: Random,
    admitted: Vec<Admission>,
    /// Lease calls and exact charges.
    calls: u64,
    messages: Vec<Sent>,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    message: Message,
    called: Option<Called>,
    /// Nothing before the store has answered.
    reply: Reply,
}

struct Node {
    bucket: NodeBucket,
    /// Requests per second.
    demand: f64,
    /// Whether it decides everything at the store.
    exact: bool,
    /// When it renews, in parts of 256 of a lease time before the end of a period.
    lead: u64,
    asked: u64,
    admitted: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: i64,
    order: u64,
    node: usize,
    event: Event,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Request,
    Tick,
    AtStore(usize),
    AtNode(usize),
}

/// What a stretch of time came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch {
    /// Of what the limit refills in that time.
    pub(crate) utilisation: f64,
    pub(crate) calls_per_second: f64,
    /// How far the nodes' shares of the admitted requests are from their shares of the demand, in sum.
    pub(crate) share_error: f64,
}

impl Fleet {
    /// Nodes with these demands, in requests per second.
    pub(crate) fn new(limit: &str, way: i64, demands: &[f64]) -> Self {
        let limit: Limit = limit.parse().unwrap();
        let mut random = Random::new(7);
        let nodes = demands.iter().map(|demand| Node {
            bucket: NodeBucket::new(&limit, 0),
            demand: *demand,
            exact: false,
            lead: 64 + random.next() % 128,
            asked: 0,
            admitted: 0,
        });
        let mut fleet = Fleet {
            nodes: nodes.collect(),
            store: Store::new([vec![limit.clone()], vec![limit.clone()]], Micros::new(50_000)),
            limit,
            way,
            now: START,
            order: 0,
            queue: BinaryHeap::new(),
            random: Random::new(11),
            admitted: Vec::new(),
            calls: 0,
            messages: Vec::new(),
        };
        for node in 0..fleet.nodes.len() {
            let wait = fleet.random.between(0, TICK);
            fleet.after(wait, node, Event::Request);
            fleet.after(wait, node, Event::Tick);
        }
        fleet
    }

    fn after(&mut self, wait: i64, node: usize, event: Event) {
        self.order += 1;
        self.queue.push(Reverse(Entry { at: self.now + wait, order: self.order, node, event }));
    }

    /// Lets time pass, and tells what came of it.
    pub(crate) fn run(&mut self, time: i64) -> Stretch {
        let (end, calls) = (self.now + time, self.calls);
        self.nodes.iter_mut().for_each(|node| (node.asked, node.admitted) = (0, 0));
        while let Some(Reverse(Entry { at, node, event, .. })) =
            self.queue.peek().copied().filter(|next| next.0.at < end)
        {
            self.queue.pop();
            self.now = at;
            match event {
                Event::Request => {
                    let longest = twice_the_gap(self.nodes[node].demand);
                    let wait = self.random.between(1, longest.max(2));
                    self.after(wait, node, event);
                    self.request(node);
                    self.tend(node);
                }
                Event::Tick => {
                    self.after(TICK, node, event);
                    self.tend(node);
                }
                Event::AtStore(place) => {
                    let message = self.messages[place].message;
                    let reply = self.store.answer(0, 0, message, at);
                    if let (Message::Charge { cost, .. }, Reply::Verdict(verdict)) = (message, reply)
                        && verdict.allowed
                    {
                        self.admit(node, cost);
                    }
                    self.messages[place].reply = reply;
                    self.after(self.way, node, Event::AtNode(place));
                }
                Event::AtNode(place) => self.reply(node, self.messages[place]),
            }
        }
        self.now = end;
        self.stretch(time, self.calls - calls)
    }

    fn stretch(&self, time: i64, calls: u64) -> Stretch {
        let Algorithm::TokenBucket(refill) = self.limit.algorithm() else { panic!("a token bucket") };
        let refilled = refill.rate() as f64 * time as f64 / refill.units() as f64;
        let (admitted, asked) = self
            .nodes
            .iter()
            .fold((0, 0), |(admitted, asked), node| (admitted + node.admitted, asked + node.asked));
        let share = |part: u64, all: u64| part as f64 / all.max(1) as f64;
        let error = |node: &Node| (share(node.admitted, admitted) - share(node.asked, asked)).abs();
        Stretch {
            utilisation: admitted as f64 / refilled,
            calls_per_second: calls as f64 * SECOND as f64 / time as f64,
            share_error: self.nodes.iter().map(error).sum(),
        }
    }

    /// The part of all admitted requests that were this node's.
    fn share(&self, node: usize) -> f64 {
        self.nodes[node].admitted as f64 / self.nodes.iter().map(|node| node.admitted).sum::<u64>() as f64
    }

    fn request(&mut self, place: usize) {
        let clock = Timestamp::from_micros(self.now);
        let node = &mut self.nodes[place];
        node.asked += 1;
        if node.exact {
            return self.send(place, Message::Charge { cost: 1, reported: false }, None);
        }
        match node.bucket.ask(1, clock) {
            Step::Pass(ticket) => {
                node.bucket.finish(ticket, true, clock);
                self.admit(place, 1);
            }
            Step::Refuse(_) => {}
            Step::Store => {
                let reported = node.bucket.is_leased();
                self.send(place, Message::Charge { cost: 1, reported }, None);
            }
        }
    }

    fn tend(&mut self, node: usize) {
        let clock = Timestamp::from_micros(self.now);
        let round_trip = Micros::new(2 * self.way.unsigned_abs());
        let Node { lead, exact, .. } = self.nodes[node];
        let lead = Micros::new((lease_time(round_trip).get() * lead / 256).max(2 * round_trip.get()));
        let call = self.nodes[node].bucket.call(Heat::LEASED, lead, round_trip, clock).filter(|_| !exact);
        if let Some((call, called)) = call {
            self.send(node, Message::Lease(call), Some(called));
        }
    }

    fn send(&mut self, node: usize, message: Message, called: Option<Called>) {
        self.calls += 1;
        self.messages.push(Sent { message, called, reply: Reply::Nothing });
        self.after(self.way, node, Event::AtStore(self.messages.len() - 1));
    }

    fn reply(&mut self, node: usize, Sent { message, called, reply }: Sent) {
        let clock = Timestamp::from_micros(self.now);
        let bucket = &mut self.nodes[node].bucket;
        match (message, reply, called) {
            (_, Reply::Grant(grant), Some(called)) => bucket.granted(called, &grant, clock),
            (Message::Charge { cost, .. }, Reply::Verdict(verdict), _) if !verdict.allowed => {
                bucket.refused(cost, verdict, clock);
            }
            _ => {}
        }
    }

    /// Requests that were decided at the store until now.
    fn charges(&self) -> usize {
        self.messages.iter().filter(|sent| matches!(sent.message, Message::Charge { .. })).count()
    }

    fn admit(&mut self, node: usize, cost: u64) {
        self.nodes[node].admitted += cost;
        self.admitted.push((self.now, cost));
    }

    /// Panics when any interval has more than the limit promises.
    fn check(mut self) {
        bound::check_token_bucket(&self.limit, &mut self.admitted);
    }
}

/// Twice the mean time between requests of so many per second, in microseconds.
#[expect(clippy::cast_possible_truncation, reason = "a few seconds at most")]
fn twice_the_gap(demand: f64) -> i64 {
    (2.0 * SECOND as f64 / demand) as i64
}

/// Demands of so many nodes by Zipf's law, so many requests per second in all.
fn zipf(count: usize, all: f64) -> Vec<f64> {
    let weights: Vec<f64> = (1..=count).map(|rank| 1.0 / rank as f64).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| all * weight / sum).collect()
}

#[test]
fn four_nodes_use_a_saturated_limit_with_few_calls() {
    for times in [1.2, 3.0] {
        let mut fleet = Fleet::new("2000/s burst 500", 300, &[times * 500.0; 4]);
        fleet.run(2 * SECOND);
        let stretch = fleet.run(3 * SECOND);
        println!("4 nodes, 2000/s burst 500, {times} times the limit: {stretch:?}");
        assert!((0.98..=1.0).contains(&stretch.utilisation), "{stretch:?}");
        assert!(stretch.calls_per_second <= 60.0, "{stretch:?}");
        fleet.check();
    }
}

#[test]
fn half_load_is_decided_on_leases() {
    let mut fleet = Fleet::new("2000/s burst 500", 300, &[250.0; 4]);
    fleet.run(2 * SECOND);
    let stretch = fleet.run(3 * SECOND);
    println!("4 nodes, 2000/s burst 500, half load: {stretch:?}");
    assert!((0.48..=0.52).contains(&stretch.utilisation), "{stretch:?}");
    assert!(stretch.calls_per_second <= 60.0, "{stretch:?}");
    fleet.check();
}

#[test]
fn shares_follow_a_tenfold_step_of_demand_within_300_ms() {
    let mut fleet = Fleet::new("5000/s burst 1000", 300, &[1_000.0, 10_000.0]);
    fleet.run(2 * SECOND);
    fleet.nodes[0].demand = 10_000.0;
    fleet.nodes[1].demand = 1_000.0;
    fleet.run(300_000);
    fleet.run(300_000);
    let share = fleet.share(0);
    assert!((0.81..=1.0).contains(&share), "{share} of the demand's 0.91");
    fleet.check();
}

#[test]
fn exact_callers_keep_their_part() {
    let mut fleet = Fleet::new("5000/s burst 1000", 300, &[5_000.0, 5_000.0, 5_000.0]);
    fleet.nodes[2].exact = true;
    fleet.run(2 * SECOND);
    let stretch = fleet.run(3 * SECOND);
    let share = fleet.share(2);
    println!("two nodes with leases and exact callers: {share} is admitted at the store, {stretch:?}");
    assert!((0.25..=0.45).contains(&share), "{share} of 0.33, {stretch:?}");
    fleet.check();
}

#[test]
fn a_store_200_ms_away_is_used_well() {
    let mut fleet = Fleet::new("10000/s burst 10000", 100_000, &[10_000.0; 3]);
    fleet.run(5 * SECOND);
    let stretch = fleet.run(5 * SECOND);
    println!("3 nodes, 200 ms round trip, 3 times the limit: {stretch:?}");
    assert!(stretch.utilisation >= 0.85, "{stretch:?}");
    fleet.check();
}

#[test]
fn a_hundred_nodes_share_by_demand() {
    let mut fleet = Fleet::new("20000/s burst 2000", 500, &zipf(100, 60_000.0));
    fleet.run(SECOND);
    let stretch = fleet.run(SECOND);
    println!("100 nodes, zipf, 20000/s burst 2000, 3 times the limit: {stretch:?}");
    assert!(stretch.utilisation >= 0.95 && stretch.share_error < 0.1, "{stretch:?}");
    assert!(stretch.calls_per_second <= 1_200.0, "{stretch:?}");
    fleet.check();
}

#[test]
fn a_thousand_nodes_share_by_demand() {
    let mut fleet = Fleet::new("200000/s burst 20000", 500, &zipf(1_000, 600_000.0));
    fleet.run(SECOND);
    let stretch = fleet.run(2 * SECOND);
    println!("1,000 nodes, zipf, 200000/s burst 20000, 3 times the limit: {stretch:?}");
    assert!(stretch.utilisation >= 0.95 && stretch.share_error < 0.1, "{stretch:?}");
    assert!(stretch.calls_per_second <= 12_000.0, "{stretch:?}");
    fleet.check();
}

#[test]
fn ten_thousand_holders_fit_one_ledger() {
    let mut fleet = Fleet::new("1000000/s burst 1000000", 500, &[200.0; 10_000]);
    fleet.run(SECOND);
    let stretch = fleet.run(SECOND);
    println!("10,000 nodes, 1000000/s burst 1000000, twice the limit: {stretch:?}");
    assert!(stretch.utilisation >= 0.85, "{stretch:?}");
    fleet.check();
}

#[test]
fn the_burst_of_a_limit_is_spent_by_nodes_that_start_together() {
    let mut fleet = Fleet::new("50/s burst 2000", 300, &[1_000.0; 4]);
    fleet.run(2 * SECOND);
    let admitted = fleet.admitted.len();
    println!("4 nodes, 50/s burst 2000: {admitted} admitted in the first 2 s");
    assert!(admitted > 1_900, "{admitted} of 2100");
    fleet.check();
}

/// Leases that are sized for the first few requests run dry within milliseconds. The burst is in the parent then.
#[test]
fn the_burst_of_a_hot_limit_is_spent_on_leases_from_the_first_milliseconds_on() {
    let mut fleet = Fleet::new("50000/s burst 100000", 300, &[37_500.0; 4]);
    let stretch = fleet.run(2 * SECOND);
    let (charges, calls) = (fleet.charges(), fleet.calls);
    println!("4 nodes, 50000/s burst 100000, 3 times the limit: {charges} of {calls} calls are decisions");
    assert!(stretch.utilisation > 1.95, "the burst and two seconds: {stretch:?}");
    assert!(charges < 600 && calls < 1_200, "{charges} of {calls} calls, and 300,000 requests");
    fleet.check();
}

#[test]
fn a_burst_smaller_than_the_fleet_is_decided_at_the_store() {
    let mut fleet = Fleet::new("100/s burst 3", 300, &[100.0; 4]);
    fleet.run(2 * SECOND);
    let stretch = fleet.run(3 * SECOND);
    println!("4 nodes, 100/s burst 3, 4 times the limit: {stretch:?}");
    assert!(stretch.utilisation >= 0.8, "{stretch:?}");
    fleet.check();
}

#[test]
fn a_refused_hot_key_of_a_slow_limit_costs_few_calls() {
    let mut fleet = Fleet::new("10/s burst 10", 300, &[50_000.0]);
    fleet.run(2 * SECOND);
    let stretch = fleet.run(4 * SECOND);
    println!("1 node, 10/s burst 10, 5,000 times the limit: {stretch:?}");
    assert!(stretch.utilisation >= 0.9 && stretch.calls_per_second <= 40.0, "{stretch:?}");
    fleet.check();
}
