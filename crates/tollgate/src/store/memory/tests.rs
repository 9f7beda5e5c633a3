use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tollgate_core::{
    Descriptor, Draft, Enforcement, Limit, Op, Outcome, RuleSet, Tier, Tiers, Timestamp, Verdict,
};

use super::*;
use crate::sync::Ordering;

fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a store in memory answers immediately"),
    }
}

/// A limit over users, and the store with its buckets.
struct Users {
    store: MemoryStore,
    /// The rule that is in use.
    rules: RuleSet,
    /// The rule that names the buckets: rows keep their hashes when the limit in use changes.
    keys: Rule,
}

impl Users {
    fn new(limit: &str, clock: &Clock, bounds: Bounds) -> Self {
        Self::of(limit.parse().unwrap(), clock, bounds)
    }

    fn of(limit: Limit, clock: &Clock, bounds: Bounds) -> Self {
        let (store, keys) = (MemoryStore::with(clock.clone(), bounds), Rule::ad_hoc(limit));
        Users { store, rules: RuleSet::of(keys.clone()), keys }
    }

    fn set_limit(&mut self, limit: Limit) {
        self.rules = RuleSet::of(Rule::ad_hoc(limit));
    }

    /// Gives the rule another name: its keys are others.
    fn rename(&mut self) {
        self.keys = Rule::playground(self.keys.limit().unwrap().clone());
        self.rules = RuleSet::of(self.keys.clone());
    }

    fn ask(&self, user: &str, cost: u64, op: Op) -> Verdict {
        let request = Rule::naming(user);
        let hash = crate::key_seeds().hash(self.keys.key(&request));
        let mut tiers = Tiers::from_iter([Tier::new(0, Enforcement::Enforce, cost, hash)]);
        now(self.store.run(&mut Call::new(op, &self.rules, &request, &mut tiers)));
        *tiers[0].verdict()
    }

    fn check(&self, user: &str, cost: u64) -> bool {
        self.ask(user, cost, Op::Charge).allowed
    }
}

fn small(buckets: usize) -> Bounds {
    Bounds { buckets, bytes: 1 << 30 }
}

/// A manual clock that allows eviction, as the system's does.
fn evicting() -> Clock {
    Clock::manual_with_eviction(Timestamp::from_micros(1_000_000_000))
}

#[test]
fn a_flood_of_new_keys_stays_within_bounds_and_a_limited_key_stays_limited() {
    let clock = evicting();
    let rule = Users::new("1/min burst 3", &clock, small(1_000));
    while rule.check("victim", 1) {}
    for n in 0..50_000 {
        rule.check(&format!("flood {n}"), 1);
        if n % 1_000 == 0 {
            assert!(!rule.check("victim", 1), "after {n} keys");
        }
    }
    let stats = rule.store.stats();
    assert!(stats.buckets <= 1_000, "{stats:?}");
    assert!(stats.overflowed > 0, "{stats:?}");
}

#[test]
fn keys_without_room_share_one_bucket_that_refuses_when_it_is_empty() {
    let rule = Users::new("1/min burst 3", &evicting(), small(10));
    let admitted = (0..1_000).filter(|n| rule.check(&format!("key {n}"), 1)).count();
    assert_eq!(admitted, 10 + 3, "ten with a place of their own, three in the overflow bucket");
}

#[test]
fn every_decision_on_a_key_without_room_is_counted_refusals_included() {
    let rule = Users::new("1/min burst 3", &evicting(), small(10));
    let admitted = (0..1_000).filter(|n| rule.check(&format!("key {n}"), 1)).count();
    assert_eq!(admitted, 10 + 3);
    assert_eq!(rule.store.stats().overflowed, 1_000 - 10);
    rule.check("key 0", 1);
    assert_eq!(rule.store.stats().overflowed, 1_000 - 10, "a key with a place of its own");
}

/// One of two shards is full first. New keys of the other one begin with what the overflow bucket has used.
#[test]
fn a_key_with_room_that_is_refused_by_the_overflow_bucket_is_counted_too() {
    let clock = evicting();
    let mut rule = Users::new("1/d", &clock, small(1));
    rule.store = MemoryStore::with_shards(clock, small(400), 2);
    let admitted = (0..1_000).filter(|n| rule.check(&format!("key {n}"), 1)).count();
    let stats = rule.store.stats();
    assert_eq!(admitted, stats.buckets + 1, "one in the overflow bucket: {stats:?}");
    assert_eq!(stats.overflowed, 1_000 - stats.buckets as u64, "{stats:?}");
}

/// Issue 16: the old name's overflow bucket was never looked at again, and the flag stayed set.
#[test]
fn the_overflow_bucket_of_a_renamed_rule_is_dropped_once_it_is_full() {
    let clock = evicting();
    let mut rule = Users::new("1/min burst 3", &clock, small(10));
    for n in 0..20 {
        rule.check(&format!("early {n}"), 1);
    }
    assert!(rule.store.overflowing.load(Ordering::Acquire));
    rule.rename();
    clock.advance(Micros::new(600_000_000)); // the early ones and the overflow bucket are full
    for n in 0..5 {
        assert_eq!(rule.ask(&format!("late {n}"), 1, Op::Charge).remaining, 2);
    }
    assert!(rule.store.overflow.lock().buckets.is_empty());
    assert!(!rule.store.overflowing.load(Ordering::Acquire));
}

#[test]
fn a_key_that_gets_room_later_begins_with_what_the_overflow_bucket_has_used() {
    let clock = evicting();
    let rule = Users::new("1/min burst 3", &clock, small(10));
    for n in 0..10 {
        assert!(rule.check(&format!("early {n}"), 1));
    }
    assert!(rule.check("late", 2), "from the overflow bucket");
    clock.advance(Micros::new(60_000_000)); // the early ones are full, one token of two is back
    for n in 0..8 {
        rule.check(&format!("sweeper {n}"), 1);
    }
    assert!(rule.store.stats().evicted > 0);
    let remaining = rule.ask("late", 1, Op::Peek).remaining;
    assert!(remaining <= 2, "a fresh bucket would have 3, this one has {remaining}");
}

#[test]
fn idle_buckets_are_evicted_while_new_keys_come_in() {
    let clock = evicting();
    let rule = Users::new("10/s burst 10", &clock, small(1_000_000));
    for n in 0..100_000 {
        rule.check(&format!("user {n}"), 1);
        clock.advance(Micros::new(100)); // each is full again after 1,000 more
    }
    let stats = rule.store.stats();
    assert!(stats.buckets < 10_000, "{stats:?}");
    assert_eq!(stats.overflowed, 0);
}

#[test]
fn with_a_manual_clock_nothing_is_evicted() {
    let clock = Clock::manual(Timestamp::from_micros(0));
    let rule = Users::new("10/s burst 10", &clock, small(1_000_000));
    for n in 0..5_000 {
        rule.check(&format!("user {n}"), 1);
        clock.advance(Micros::new(100_000));
    }
    assert_eq!(rule.store.stats().buckets, 5_000);
}

#[test]
fn a_store_out_of_bytes_shortens_logs_and_never_admits_more() {
    let clock = evicting();
    let log = Limit::sliding_window_log(1_000, Micros::new(1_000_000)).unwrap();
    let rule = Users::of(log, &clock, Bounds { buckets: 1_000, bytes: 4_000 });
    let mut admitted = 0;
    for _ in 0..3_000 {
        clock.advance(Micros::new(100)); // ten thousand a second against a limit of a thousand
        admitted += u64::from(rule.check("user", 1));
    }
    assert_eq!(admitted, 1_000);
    assert!(rule.store.stats().bytes <= 8_000, "{:?}", rule.store.stats());
}

#[test]
fn wide_states_come_back_unchanged_and_are_removed_when_they_are_idle() {
    let clock = evicting();
    let log = Limit::sliding_window_log(5, Micros::new(1_000)).unwrap();
    let mut rule = Users::of(log.clone(), &clock, Bounds::default());
    for user in ["a", "b"] {
        assert!((0..5).all(|_| rule.check(user, 1)));
        assert!(!rule.check(user, 1));
        assert_eq!(rule.ask(user, 1, Op::Peek).remaining, 0);
    }
    rule.ask("a", 5, Op::Refund);
    assert_eq!(rule.store.stats().buckets, 1, "a bucket that refunds have filled is removed");
    clock.advance(Micros::new(1_000));
    rule.set_limit("10/s burst 3".parse().unwrap());
    assert!(rule.check("b", 3) && !rule.check("b", 1), "another algorithm starts anew, in the same place");
    rule.set_limit(log);
    assert!(rule.check("b", 5));
}

#[test]
fn inspect_and_reset_see_one_bucket() {
    let rule = Users::new("1/min burst 3", &evicting(), Bounds::default());
    let request = Rule::naming("a");
    let inspect = || now(rule.store.inspect(&rule.keys, rule.keys.key(&request))).unwrap();
    assert_eq!(inspect(), None);
    rule.check("a", 2);
    rule.check("b", 2);
    assert!(inspect().is_some());
    let verdict = rule.ask("a", 1, Op::Reset);
    assert_eq!((verdict.allowed, verdict.remaining), (true, 3));
    assert_eq!(inspect(), None);
    assert_eq!(rule.ask("b", 1, Op::Peek).remaining, 1);
}

/// Two rules in one store: the first bucket is as good as new when the second needs room, which sweeps.
#[test]
fn making_room_for_one_row_does_not_evict_another_row_of_the_request() {
    let clock = evicting();
    let store = MemoryStore::with(clock.clone(), small(4_000));
    let rule = |name: &str, limit: &str| {
        let (name, key) = (name.to_owned(), format!("{name}:{{{name}}}"));
        Draft { name: Some(name), key, limit: Some(limit.to_owned()), ..Draft::default() }.build().unwrap()
    };
    let rules = RuleSet::new(vec![rule("quick", "1000000/s burst 1"), rule("slow", "1/h")]).unwrap();
    for n in 0..5_000_u64 {
        clock.advance(Micros::new(1));
        let request = Descriptor::new().with("quick", (n % 7).to_string()).with("slow", n.to_string());
        let mut tiers = rules.buckets(&request, 1, crate::key_seeds());
        assert_eq!(tiers.len(), 2);
        now(store.run(&mut Call::new(Op::Charge, &rules, &request, &mut tiers)));
        assert!(tiers[0].verdict().allowed, "request {n}");
    }
}

#[test]
fn states_that_may_be_wide_are_counted_before_they_are_let_in() {
    let month = Micros::new(30 * 86_400_000_000);
    let limit = Limit::sliding_window_counter(1_000, month, tollgate_core::limit::Opening::First).unwrap();
    let rule = Users::of(limit, &evicting(), Bounds { buckets: 3_500, bytes: 200_000 });
    for n in 0..3_500 {
        rule.check(&format!("user {n}"), 1);
    }
    assert!(rule.store.stats().bytes <= 200_000, "{:?}", rule.store.stats());
}

/// 16 bytes whose last 8 cancel the word of the process-wide seed that foldhash multiplies them with; only the debug form
/// of the seed shows its words.
fn cancelling(number: u64) -> [u8; 16] {
    let shown = format!("{:?}", foldhash::SharedSeed::global_random());
    let list = shown.split(['[', ']']).nth(1).expect("a list of words");
    let word: u64 = list.split(", ").nth(1).expect("a second word").parse().expect("a word");
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number.to_ne_bytes());
    bytes[8..].copy_from_slice(&word.to_ne_bytes());
    bytes
}

#[test]
fn addresses_that_cancel_the_process_wide_seed_of_foldhash_have_buckets_of_their_own() {
    let clock = Clock::manual(Timestamp::from_micros(0));
    let store = MemoryStore::with(clock, Bounds::default());
    let draft = Draft {
        key: "ip:{ip}".to_owned(),
        limit: Some("1/h".to_owned()),
        ipv6_prefix: Some(128),
        ..Draft::default()
    };
    let rules = RuleSet::of(draft.build().unwrap());
    for number in 0..100 {
        let request = Descriptor::new().with_ip(std::net::Ipv6Addr::from(cancelling(number)).into());
        let mut tiers = rules.buckets(&request, 1, crate::key_seeds());
        now(store.run(&mut Call::new(Op::Charge, &rules, &request, &mut tiers)));
        assert!(tiers[0].verdict().allowed, "address {number} shares the bucket of another");
    }
    assert_eq!(store.stats().buckets, 100);
}

/// A store with one shard, whose hot key is the one that was used twice in a row.
#[test]
fn a_key_is_charged_exactly_whether_it_is_hot_or_not() {
    let rule = Users::new("1/h burst 50", &evicting(), small(4_000));
    let mut left = [50; 4];
    // Runs of one key, alternating keys, and operations that use the slots.
    for turn in 0..160_usize {
        let key = if turn < 80 { turn / 10 % 4 } else { turn % 3 };
        let user = key.to_string();
        match turn % 13 {
            5 => assert_eq!(rule.ask(&user, 1, Op::Peek).remaining, left[key], "turn {turn}"),
            9 => {
                left[key] = (left[key] + 2).min(50);
                assert_eq!(rule.ask(&user, 2, Op::Refund).remaining, left[key], "turn {turn}");
            }
            12 => {
                left[key] = 50;
                assert_eq!(rule.ask(&user, 1, Op::Reset).remaining, 50, "turn {turn}");
            }
            _ => {
                left[key] -= 1;
                assert_eq!(rule.ask(&user, 1, Op::Charge).remaining, left[key], "turn {turn}");
            }
        }
        if turn % 7 == 0 {
            assert!(rule.check(&format!("new {turn}"), 1));
        }
    }
    assert!(left.iter().all(|left| *left < 50));
}

#[test]
fn rows_that_already_have_an_outcome_count_and_are_left_alone() {
    let users = Users::new("1/h burst 5", &evicting(), Bounds::default());
    let request = Rule::naming("a");
    let hash = crate::key_seeds().hash(users.keys.key(&request));
    let charge = |other: Outcome| {
        let row = Tier::new(0, Enforcement::Enforce, 1, hash);
        let decided = Tier { outcome: other, ..row };
        let mut tiers = Tiers::from_iter([decided, row]);
        now(users.store.run(&mut Call::new(Op::Charge, &users.rules, &request, &mut tiers)));
        assert_eq!(tiers[0].outcome, other);
        *tiers[1].verdict()
    };
    let refused = charge(Outcome::Decided(Verdict::DENIED));
    assert_eq!((refused.allowed, refused.remaining), (true, 5), "nothing is charged");
    let lost = charge(Outcome::Lost(StoreError::Timeout));
    assert_eq!((lost.allowed, lost.remaining), (true, 4));
    assert_eq!(charge(Outcome::Decided(Verdict::open(5))).remaining, 3);
}

/// Each row is a level of recursion; a test has a stack of 2 MiB.
#[test]
fn a_request_may_meet_any_number_of_limits() {
    const RULES: usize = 10_000;
    let draft = |number: usize| Draft {
        name: Some(format!("rule {number}")),
        key: "global".to_owned(),
        limit: Some(if number == RULES / 2 { "2/h" } else { "9/h" }.to_owned()),
        algorithm: number.is_multiple_of(2).then(|| "fixed_window".to_owned()),
        ..Draft::default()
    };
    let rules = RuleSet::new((0..RULES).map(|number| draft(number).build().unwrap()).collect()).unwrap();
    let (store, request) = (MemoryStore::new(), Descriptor::new());
    let ask = |op| {
        let row = |rule| {
            let hash = crate::key_seeds().hash(rules.rule(rule).key(&request));
            Tier::new(rule, Enforcement::Enforce, 1, hash)
        };
        let mut tiers: Tiers = (0..RULES).map(|rule| row(rule.try_into().unwrap())).collect();
        let mut call = Call::new(op, &rules, &request, &mut tiers);
        now(store.run(&mut call));
        let passes = !call.refuses();
        (passes, tiers.iter().map(|tier| tier.verdict().remaining).max().unwrap())
    };
    assert_eq!([(); 3].map(|()| ask(Op::Charge).0), [true, true, false]);
    assert_eq!(ask(Op::Peek).1, 7, "the third was charged nowhere");
}
