use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tollgate_core::algorithm::Demand;
use tollgate_core::{Descriptor, Enforcement, KeyPattern, Limit, Space, Timestamp, Verdict};

use super::*;
use crate::sync::Ordering;

fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a store in memory answers at once"),
    }
}

/// A rule over users, and the store it lives in.
struct Rule {
    store: MemoryStore,
    limit: Limit,
    space: Space,
}

impl Rule {
    fn new(limit: &str, clock: &Clock, bounds: Bounds) -> Self {
        Rule {
            store: MemoryStore::with(clock.clone(), bounds),
            limit: limit.parse().unwrap(),
            space: Space::new(&["rule"], KeyPattern::parse("user:{user_id}").unwrap(), 64),
        }
    }

    fn ask(&self, user: &str, cost: u64, operation: Operation) -> Verdict {
        let request = Descriptor::new().with("user_id", user.to_owned());
        let hit = Hit {
            key: self.space.key(&request),
            limit: &self.limit,
            demand: Demand { cost, patience: Micros::MAX },
            enforcement: Enforcement::Enforce,
        };
        let mut verdicts = Verdicts::new();
        self.store.run(&[hit], operation, &mut verdicts);
        verdicts[0]
    }

    fn check(&self, user: &str, cost: u64) -> bool {
        self.ask(user, cost, Operation::Charge).allowed
    }
}

fn small(buckets: usize) -> Bounds {
    Bounds { buckets, bytes: 1 << 30 }
}

/// A clock that counts as the system's, so that things may be forgotten, and can be turned all the same.
fn forgetful() -> Clock {
    Clock::manual_and_forgetful(Timestamp::from_micros(1_000_000_000))
}

#[test]
fn a_flood_of_new_keys_stays_within_bounds_and_a_limited_key_stays_limited() {
    let clock = forgetful();
    let rule = Rule::new("1/min burst 3", &clock, small(1_000));
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
    let rule = Rule::new("1/min burst 3", &forgetful(), small(10));
    let admitted = (0..1_000).filter(|n| rule.check(&format!("key {n}"), 1)).count();
    assert_eq!(admitted, 10 + 3, "ten with a place of their own, three in the overflow bucket");
}

#[test]
fn every_decision_on_a_key_without_room_is_counted_refusals_included() {
    let rule = Rule::new("1/min burst 3", &forgetful(), small(10));
    let admitted = (0..1_000).filter(|n| rule.check(&format!("key {n}"), 1)).count();
    assert_eq!(admitted, 10 + 3);
    assert_eq!(rule.store.stats().overflowed, 1_000 - 10);
    rule.check("key 0", 1);
    assert_eq!(rule.store.stats().overflowed, 1_000 - 10, "a key with a place of its own");
}

/// One of two shards is full first. New keys of the other one begin with what the overflow bucket has used.
#[test]
fn a_key_with_room_that_is_refused_by_the_overflow_bucket_is_counted_too() {
    let clock = forgetful();
    let mut rule = Rule::new("1/d", &clock, small(1));
    rule.store = MemoryStore::with_shards(clock, small(400), 2);
    let admitted = (0..1_000).filter(|n| rule.check(&format!("key {n}"), 1)).count();
    let stats = rule.store.stats();
    assert_eq!(admitted, stats.buckets + 1, "one in the overflow bucket: {stats:?}");
    assert_eq!(stats.overflowed, 1_000 - stats.buckets as u64, "{stats:?}");
}

/// Issue 16: the old name's overflow bucket was never looked at again, and the flag stayed set.
#[test]
fn the_overflow_bucket_of_a_renamed_rule_is_dropped_once_it_is_full() {
    let clock = forgetful();
    let mut rule = Rule::new("1/min burst 3", &clock, small(10));
    for n in 0..20 {
        rule.check(&format!("early {n}"), 1);
    }
    assert!(rule.store.overflowing.load(Ordering::Acquire));
    rule.space = Space::new(&["renamed"], KeyPattern::parse("user:{user_id}").unwrap(), 64);
    clock.advance(Micros::new(600_000_000)); // the early ones and the overflow bucket are full
    for n in 0..5 {
        assert_eq!(rule.ask(&format!("late {n}"), 1, Operation::Charge).remaining, 2);
    }
    assert!(rule.store.overflow.lock().buckets.is_empty());
    assert!(!rule.store.overflowing.load(Ordering::Acquire));
}

#[test]
fn a_key_that_gets_room_later_begins_with_what_the_overflow_bucket_has_used() {
    let clock = forgetful();
    let rule = Rule::new("1/min burst 3", &clock, small(10));
    for n in 0..10 {
        assert!(rule.check(&format!("early {n}"), 1));
    }
    assert!(rule.check("late", 2), "from the overflow bucket");
    clock.advance(Micros::new(60_000_000)); // the early ones are as good as new, one token of two is back
    for n in 0..8 {
        rule.check(&format!("sweeper {n}"), 1);
    }
    assert!(rule.store.stats().dropped > 0);
    let remaining = rule.ask("late", 1, Operation::Peek).remaining;
    assert!(remaining <= 2, "a fresh bucket would have 3, this one has {remaining}");
}

#[test]
fn what_is_as_good_as_new_is_dropped_while_new_keys_come_in() {
    let clock = forgetful();
    let rule = Rule::new("10/s burst 10", &clock, small(1_000_000));
    for n in 0..100_000 {
        rule.check(&format!("user {n}"), 1);
        clock.advance(Micros::new(100)); // each is full again after 1,000 more
    }
    let stats = rule.store.stats();
    assert!(stats.buckets < 10_000, "{stats:?}");
    assert_eq!(stats.overflowed, 0);
}

#[test]
fn with_injected_time_nothing_is_forgotten() {
    let clock = Clock::manual(Timestamp::from_micros(0));
    let rule = Rule::new("10/s burst 10", &clock, small(1_000_000));
    for n in 0..5_000 {
        rule.check(&format!("user {n}"), 1);
        clock.advance(Micros::new(100_000));
    }
    assert_eq!(rule.store.stats().buckets, 5_000);
}

#[test]
fn a_store_out_of_bytes_shortens_logs_and_never_admits_more() {
    let clock = forgetful();
    let mut rule = Rule::new("1/s", &clock, Bounds { buckets: 1_000, bytes: 4_000 });
    rule.limit = Limit::sliding_window_log(1_000, Micros::new(1_000_000)).unwrap();
    let mut admitted = 0;
    for _ in 0..3_000 {
        clock.advance(Micros::new(100)); // ten thousand a second against a limit of a thousand
        admitted += u64::from(rule.check("user", 1));
    }
    assert_eq!(admitted, 1_000);
    assert!(rule.store.stats().bytes <= 8_000, "{:?}", rule.store.stats());
}

#[test]
fn wide_states_come_back_as_they_were_and_go_when_they_are_new() {
    let clock = forgetful();
    let mut rule = Rule::new("1/s", &clock, Bounds::default());
    rule.limit = Limit::sliding_window_log(5, Micros::new(1_000)).unwrap();
    for user in ["a", "b"] {
        assert!((0..5).all(|_| rule.check(user, 1)));
        assert!(!rule.check(user, 1));
        assert_eq!(rule.ask(user, 1, Operation::Peek).remaining, 0);
    }
    rule.ask("a", 5, Operation::Refund);
    assert_eq!(rule.store.stats().buckets, 1, "a bucket emptied by refunds is new");
    clock.advance(Micros::new(1_000));
    rule.limit = "10/s burst 3".parse().unwrap();
    assert!(rule.check("b", 3) && !rule.check("b", 1), "another algorithm starts anew, in the same place");
    rule.limit = Limit::sliding_window_log(5, Micros::new(1_000)).unwrap();
    assert!(rule.check("b", 5));
}

#[test]
fn inspect_and_reset_see_one_bucket() {
    let rule = Rule::new("1/min burst 3", &forgetful(), Bounds::default());
    let request = Descriptor::new().with("user_id", "a");
    let hit = Hit {
        key: rule.space.key(&request),
        limit: &rule.limit,
        demand: Demand { cost: 1, patience: Micros::MAX },
        enforcement: Enforcement::Enforce,
    };
    assert_eq!(now(rule.store.inspect(&hit)).unwrap(), None);
    rule.check("a", 2);
    rule.check("b", 2);
    assert!(now(rule.store.inspect(&hit)).unwrap().is_some());
    let mut verdicts = Verdicts::new();
    now(rule.store.reset(std::slice::from_ref(&hit), &mut verdicts)).unwrap();
    assert_eq!((verdicts[0].allowed, verdicts[0].remaining), (true, 3));
    assert_eq!(now(rule.store.inspect(&hit)).unwrap(), None);
    assert_eq!(rule.ask("b", 1, Operation::Peek).remaining, 1);
}

#[test]
fn the_same_key_twice_in_a_request_needs_room_for_both() {
    let rule = Rule::new("1/min burst 3", &forgetful(), Bounds::default());
    let request = Descriptor::new().with("user_id", "a");
    let hit = |cost| Hit {
        key: rule.space.key(&request),
        limit: &rule.limit,
        demand: Demand { cost, patience: Micros::MAX },
        enforcement: Enforcement::Enforce,
    };
    let charge = |first, second| {
        let mut verdicts = Verdicts::new();
        rule.store.run(&[hit(first), hit(second)], Operation::Charge, &mut verdicts);
        (verdicts[0].allowed, verdicts[1].allowed, verdicts[1].remaining)
    };
    assert_eq!(charge(2, 2), (true, false, 3));
    assert_eq!(charge(2, 1), (true, true, 0));
}

/// Two rules in one store: the first bucket is as good as new when the second needs room, which sweeps.
#[test]
fn making_room_for_one_tier_does_not_pull_another_from_under_the_request() {
    let clock = forgetful();
    let store = MemoryStore::with(clock.clone(), small(4_000));
    let limits: [Limit; 2] = ["1000000/s burst 1".parse().unwrap(), "1/h".parse().unwrap()];
    let space = |name: &str| Space::new(&[name], KeyPattern::parse("user:{user_id}").unwrap(), 64);
    let spaces = [space("quick"), space("slow")];
    for n in 0..5_000_u64 {
        clock.advance(Micros::new(1));
        let requests =
            [(n % 7).to_string(), n.to_string()].map(|user| Descriptor::new().with("user_id", user));
        let hits: Vec<Hit<'_>> = (0..2)
            .map(|rule| Hit {
                key: spaces[rule].key(&requests[rule]),
                limit: &limits[rule],
                demand: Demand { cost: 1, patience: Micros::MAX },
                enforcement: Enforcement::Enforce,
            })
            .collect();
        let mut verdicts = Verdicts::new();
        now(store.charge(&hits, &mut verdicts)).unwrap();
        assert!(verdicts[0].allowed, "request {n}");
    }
}

#[test]
fn two_keys_of_one_rule_without_room_share_the_overflow_bucket_within_a_request_too() {
    let rule = Rule::new("1/h burst 4", &forgetful(), small(1));
    assert!(rule.check("first", 1));
    let admitted: usize = (0..4)
        .map(|n| {
            let requests =
                [format!("a{n}"), format!("b{n}")].map(|user| Descriptor::new().with("user_id", user));
            let hit = |request| Hit {
                key: rule.space.key(request),
                limit: &rule.limit,
                demand: Demand { cost: 1, patience: Micros::MAX },
                enforcement: Enforcement::Enforce,
            };
            let mut verdicts = Verdicts::new();
            rule.store.run(&[hit(&requests[0]), hit(&requests[1])], Operation::Charge, &mut verdicts);
            if verdicts.iter().all(|verdict| verdict.allowed) { 2 } else { 0 }
        })
        .sum();
    assert_eq!(admitted, 4);
}

#[test]
fn states_that_may_be_wide_are_counted_before_they_are_let_in() {
    let mut rule = Rule::new("1/s", &forgetful(), Bounds { buckets: 3_500, bytes: 200_000 });
    let month = Micros::new(30 * 86_400_000_000);
    rule.limit = Limit::sliding_window_counter(1_000, month, tollgate_core::limit::Opening::First).unwrap();
    for n in 0..3_500 {
        rule.check(&format!("user {n}"), 1);
    }
    assert!(rule.store.stats().bytes <= 200_000, "{:?}", rule.store.stats());
}

#[test]
fn addresses_that_cancel_the_process_wide_seed_of_foldhash_have_buckets_of_their_own() {
    use foldhash::SharedSeed;

    let clock = Clock::manual(Timestamp::from_micros(0));
    let store = MemoryStore::with(clock, Bounds::default());
    let limit: Limit = "1/h".parse().unwrap();
    let space = Space::new(&["rule"], KeyPattern::parse("ip:{ip}").unwrap(), 128);
    for number in 0..100 {
        let octets = crate::key_hash::tests::cancelling(SharedSeed::global_random(), number);
        let request = Descriptor::new().with_ip(std::net::Ipv6Addr::from(octets).into());
        let demand = Demand { cost: 1, patience: Micros::MAX };
        let hit = Hit { key: space.key(&request), limit: &limit, demand, enforcement: Enforcement::Enforce };
        let mut verdicts = Verdicts::new();
        now(store.charge(&[hit], &mut verdicts)).unwrap();
        assert!(verdicts[0].allowed, "address {number} shares the bucket of another");
    }
    assert_eq!(store.stats().buckets, 100);
}
