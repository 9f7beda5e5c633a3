//! A hot key that is refused, without faults: how often is the store asked?

use std::collections::VecDeque;

use tollgate_core::lease::Temper;

use crate::node::{Message, Node, Outcome, Reply};
use crate::store::Store;

/// A request every so often, and what a message takes one way, in microseconds.
const GAP: i64 = 20;
const WAY: i64 = 300;
const SECONDS: i64 = 10;

enum Event {
    AtStore(Message),
    AtNode(Reply),
}

/// One node, one key, and what is on its way between node and store.
struct Pair {
    node: Node,
    store: Store,
    under_way: VecDeque<(i64, Event)>,
    calls: u64,
    admitted: u64,
}

impl Pair {
    fn follow(&mut self, outcome: Outcome, now: i64) {
        self.calls += outcome.send.len() as u64;
        self.admitted += (outcome.passed.len() + outcome.taken.len()) as u64
            + u64::from(outcome.passed_at_store.is_some());
        self.under_way.extend(outcome.send.into_iter().map(|call| (now + WAY, Event::AtStore(call))));
    }

    fn deliver(&mut self, now: i64) {
        while let Some((at, event)) = self.under_way.pop_front_if(|(at, _)| *at <= now) {
            match event {
                Event::AtStore(message) => {
                    let reply = self.store.answer(0, message, at);
                    self.under_way.push_back((at + WAY, Event::AtNode(reply)));
                }
                Event::AtNode(reply) => {
                    let outcome = self.node.reply(0, reply, at);
                    self.follow(outcome, at);
                }
            }
        }
    }
}

#[test]
fn a_refused_hot_key_asks_the_store_twice_for_each_token() {
    for temper in [Temper::LEASED, Temper::AUTO] {
        let store = Store::new(vec!["10/s burst 10".parse().unwrap()]);
        let node = Node::new(1, &store.limits, 0, 0, temper);
        let mut pair = Pair { node, store, under_way: VecDeque::new(), calls: 0, admitted: 0 };
        let start = 1_000_000_000_000;
        let mut warm = (0, 0);
        for now in (start..start + SECONDS * 1_000_000).step_by(GAP.unsigned_abs() as usize) {
            pair.deliver(now);
            let outcome = pair.node.request(0, 1, now);
            pair.follow(outcome, now);
            if now == start + 1_000_000 {
                warm = (pair.calls, pair.admitted);
            }
        }
        let (calls, admitted) = (pair.calls - warm.0, pair.admitted - warm.1);
        println!(
            "{temper:?}: {} calls and {} admitted in the first second, then {calls} and {admitted}",
            warm.0, warm.1
        );
        let tokens = 10 * (SECONDS - 1).unsigned_abs();
        assert!((tokens - 2..=tokens + 1).contains(&admitted), "{admitted} of {tokens} tokens were used");
        assert!(calls <= 2 * tokens + 2, "{calls} calls for {tokens} tokens");
    }
}
