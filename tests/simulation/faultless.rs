//! Nothing goes wrong: how often is the store asked, and how much of a limit is used?

use std::collections::VecDeque;

use tollgate_core::lease::Temper;
use tollgate_core::{Limit, Micros};

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
    /// When those who passed go on.
    departures: Vec<i64>,
    sum: Sum,
}

#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    calls: u64,
    admitted: u64,
}

impl Calm {
    fn new(limit: &str, gaps: &[u64], temper: Temper) -> Self {
        let limits: Vec<Limit> = vec![limit.parse().unwrap()];
        let store = Store::new([limits.clone(), limits.clone()]);
        let node = |(id, gap): (u64, &u64)| (Node::new(id, &limits, 0, 0, temper), gap.cast_signed());
        let nodes = (1..).zip(gaps).map(node).collect();
        Calm {
            now: 1_000 * SECOND,
            nodes,
            store,
            under_way: VecDeque::new(),
            departures: Vec::new(),
            sum: Sum::default(),
        }
    }

    /// The same with requests that would not wait any longer than this.
    fn with_max_wait(mut self, max_wait: Micros) -> Self {
        self.nodes.iter_mut().for_each(|(node, _)| node.max_wait = max_wait);
        self
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
        let here = outcome.passed.iter().map(|passed| passed.delay);
        let there = outcome.passed_at_store.map(|(_, _, delay)| delay);
        let before = self.departures.len();
        self.departures.extend(here.chain(there).map(|delay| now + delay.get().cast_signed()));
        self.sum.admitted += (self.departures.len() - before) as u64;
        let calls = outcome.send.into_iter().map(|call| (now + WAY, place, Event::AtStore(call)));
        self.under_way.extend(calls);
    }

    fn deliver(&mut self, now: i64) {
        while let Some((at, place, event)) = self.under_way.pop_front_if(|(at, ..)| *at <= now) {
            match event {
                Event::AtStore(message) => {
                    let reply = self.store.answer(0, 0, message, at);
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

#[test]
fn places_that_several_nodes_take_by_the_block_leave_one_after_the_other() {
    // Everybody's messages take the same time, so that turns at the store are turns for everybody.
    for (limit, room, gaps) in [
        ("200/s queue 100", 100, [2_000, 2_500, 3_000]),
        ("200/s queue 5000", 5_000, [2_000, 2_500, 3_000]),
        ("200/s queue 100", 100, [18_000, 19_000, 20_000]),
    ] {
        let mut calm = Calm::new(limit, &gaps, Temper::LEASED);
        let sum = calm.run(5);
        let asked: u64 = gaps.iter().map(|gap| 5_000_000 / gap).sum();
        println!("{limit}, asked {asked} times in five seconds: {sum:?}");
        assert!(sum.admitted + 20 >= asked.min(5 * 200 + room), "{limit}: {sum:?}");
        assert!(
            room < 5_000 || 2 * sum.calls < sum.admitted,
            "{limit}: {sum:?}, places are taken by the block"
        );
        calm.departures.sort_unstable();
        let closest = calm.departures.windows(2).map(|pair| pair[1] - pair[0]).min();
        assert!(closest >= Some(5_000), "{limit}: {closest:?} us apart, and 5000 are promised");
    }
}

#[test]
fn requests_that_would_not_wait_for_long_use_a_queue_no_less_than_exactly() {
    // Ten times as many as leave, and the queue is longer than anybody waits.
    let calm = Calm::new("10/s queue 100", &[10_000], Temper::LEASED);
    let mut calm = calm.with_max_wait(Micros::new(5_000_000));
    let (first, then) = (calm.run(6), calm.run(20));
    println!(
        "10/s queue 100, asked 100 times a second by the impatient: {first:?}, then {then:?} in twenty more"
    );
    assert!((195..=201).contains(&then.admitted), "{then:?}: ten leave in a second");
    assert!(then.calls <= 3 * then.admitted, "{then:?}: a refusal is remembered");
}
