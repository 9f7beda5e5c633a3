//! Nothing goes wrong: how often is the store asked, and how much of a limit is used?

use std::collections::VecDeque;

use tollgate_core::lease::Temper;

use crate::node::{Message, Node, Outcome, Reply};
use crate::store::Store;

/// What a message takes one way, in microseconds; and the instants at which something may happen.
const WAY: i64 = 300;
const STEP: usize = 10;
const SECOND: i64 = 1_000_000;
/// Nodes do not ask at the same instants.
const APART: usize = 130;

enum Event {
    AtStore(Message),
    AtNode(Reply),
}

/// Some nodes, one key, and what is on its way between them and the store.
struct Calm {
    now: i64,
    /// Each with the time between two of its requests.
    nodes: Vec<(Node, i64)>,
    store: Store,
    under_way: VecDeque<(i64, usize, Event)>,
    sum: Sum,
}

#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    calls: u64,
    admitted: u64,
}

impl Calm {
    fn new(limit: &str, gaps: &[i64], temper: Temper) -> Self {
        let store = Store::new(vec![limit.parse().unwrap()]);
        let node = |(id, gap): (u64, &i64)| (Node::new(id, &store.limits, 0, 0, temper), *gap);
        let nodes = (1..).zip(gaps).map(node).collect();
        Calm { now: 1_000 * SECOND, nodes, store, under_way: VecDeque::new(), sum: Sum::default() }
    }

    /// Goes on for some seconds, and answers what they came to.
    fn run(&mut self, seconds: i64) -> Sum {
        let before = self.sum;
        for now in (self.now..self.now + seconds * SECOND).step_by(STEP) {
            self.deliver(now);
            for (place, offset) in (0..self.nodes.len()).zip((0..).step_by(APART)) {
                let (node, gap) = &mut self.nodes[place];
                if (now + offset) % *gap == 0 {
                    let outcome = node.request(0, 1, now);
                    self.follow(place, outcome, now);
                }
            }
        }
        self.now += seconds * SECOND;
        Sum { calls: self.sum.calls - before.calls, admitted: self.sum.admitted - before.admitted }
    }

    fn follow(&mut self, place: usize, outcome: Outcome, now: i64) {
        self.sum.calls += outcome.send.len() as u64;
        self.sum.admitted += (outcome.passed.len() + outcome.taken.len()) as u64
            + u64::from(outcome.passed_at_store.is_some());
        let calls = outcome.send.into_iter().map(|call| (now + WAY, place, Event::AtStore(call)));
        self.under_way.extend(calls);
    }

    fn deliver(&mut self, now: i64) {
        while let Some((at, place, event)) = self.under_way.pop_front_if(|(at, ..)| *at <= now) {
            match event {
                Event::AtStore(message) => {
                    let reply = self.store.answer(0, message, at);
                    self.under_way.push_back((at + WAY, place, Event::AtNode(reply)));
                }
                Event::AtNode(reply) => {
                    let outcome = self.nodes[place].0.reply(0, reply, at);
                    self.follow(place, outcome, at);
                }
            }
        }
    }
}

#[test]
fn a_refused_hot_key_asks_the_store_twice_for_each_token() {
    const TOKENS: u64 = 90;
    for temper in [Temper::LEASED, Temper::AUTO] {
        let mut calm = Calm::new("10/s burst 10", &[20], temper);
        let (first, then) = (calm.run(1), calm.run(9));
        println!(
            "10/s burst 10, asked 50,000 times a second: {first:?} in the first second, {then:?} in nine more"
        );
        assert!((TOKENS - 1..=TOKENS + 1).contains(&then.admitted), "{then:?} of {TOKENS} tokens");
        assert!(then.calls <= 2 * TOKENS + 2, "{then:?} for {TOKENS} tokens");
    }
}

#[test]
fn four_nodes_that_want_twice_the_limit_unevenly_use_all_of_it() {
    let mut calm = Calm::new("1000/s burst 1000", &[1_250, 1_250, 5_000, 5_000], Temper::LEASED);
    let sum = calm.run(8);
    println!("1000/s burst 1000, asked 800 + 800 + 200 + 200 times a second: {sum:?} in eight seconds");
    assert!((8_820..=9_000).contains(&sum.admitted), "{sum:?}: 9000 are promised, and at most 2 % less");
}
