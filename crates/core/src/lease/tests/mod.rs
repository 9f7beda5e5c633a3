//! Lending and borrowing: the store's side here.

mod node;

use super::*;
use crate::algorithm::{Demand, State, Window};
use crate::tier::{Mark, Verdict};
use crate::time::Timestamp;

const SECOND: i64 = 1_000_000;
const ONE: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(1_000 * SECOND + micros)
}

/// A bucket that remembers.
struct Shop {
    limit: Limit,
    kept: Option<(State, Ledger)>,
}

impl Shop {
    fn new(limit: &str) -> Self {
        Shop { limit: limit.parse().unwrap(), kept: None }
    }

    fn with<T>(&mut self, now: i64, what: impl FnOnce(&mut LeasedBucket<'_>) -> T) -> T {
        let (state, ledger) = self.kept.take().map_or((None, Ledger::default()), |(s, l)| (Some(s), l));
        let mut bucket = LeasedBucket::open(&self.limit, state, ledger, at(now), Window::Own);
        let outcome = what(&mut bucket);
        self.kept = bucket.close();
        outcome
    }

    fn remaining(&mut self, now: i64) -> u64 {
        self.with(now, |bucket| bucket.remaining())
    }

    fn lend(&mut self, now: i64, call: Call) -> Option<Loan> {
        self.with(now, |bucket| bucket.lend(&call))
    }
}

fn call(node: NodeId, sequence: u64) -> Call {
    Call { node, sequence, left: 0, returned: 0, least: 0, want: 0, term: TERM }
}

fn verdict(remaining: u64) -> Verdict {
    Verdict { remaining, ..Verdict::open(100) }
}

#[test]
fn time_pays_back_what_was_spent_and_never_what_is_out_on_lease() {
    let mut shop = Shop::new("10/s burst 10");
    let hour = Micros::new(3_600_000_000);
    let loan = shop.lend(0, Call { least: 4, term: hour, ..call(ONE, 1) }).unwrap();
    assert_eq!((loan.granted, loan.kept, loan.term), (4, 0, hour));
    assert_eq!(shop.remaining(0), 6);
    assert_eq!(shop.remaining(600 * SECOND), 6);
    // It tells that one was spent: that one comes back with time, the others do not.
    shop.lend(600 * SECOND, Call { left: 3, term: hour, ..call(ONE, 2) });
    assert_eq!(shop.remaining(600 * SECOND), 6);
    assert_eq!(shop.remaining(600 * SECOND + 100_000), 7);
    assert_eq!(shop.remaining(700 * SECOND), 7);
}

#[test]
fn what_nobody_told_of_counts_as_spent_when_its_lease_ends() {
    let mut shop = Shop::new("10/s burst 10");
    shop.lend(0, Call { least: 4, ..call(ONE, 1) });
    assert_eq!(shop.remaining(499_999), 6);
    assert_eq!(shop.remaining(500_000), 6);
    assert_eq!(shop.remaining(600_000), 7);
    assert_eq!(shop.remaining(900_000), 10);
    // Also when nobody looked in between.
    let mut unwatched = Shop::new("10/s burst 10");
    unwatched.lend(0, Call { least: 4, ..call(ONE, 1) });
    assert_eq!(unwatched.remaining(700_000), 8);
}

#[test]
fn a_late_or_doubled_call_changes_nothing_even_after_everything_was_given_back() {
    let mut shop = Shop::new("10/s burst 10");
    let first = Call { least: 4, ..call(ONE, 1) };
    assert_eq!(shop.lend(0, first).unwrap().granted, 4);
    assert_eq!(shop.lend(1, first), None);
    assert_eq!(shop.remaining(1), 6);
    let farewell = Call { returned: 4, ..call(ONE, 3) };
    assert_eq!(shop.lend(2, farewell).unwrap().granted, 0);
    assert_eq!(shop.remaining(2), 10);
    assert_eq!(shop.lend(3, Call { least: 2, ..call(ONE, 2) }), None);
    assert_eq!(shop.lend(4, farewell), None);
    assert_eq!(shop.remaining(4), 10);
}

#[test]
fn a_node_cannot_keep_or_give_back_more_than_it_has() {
    let mut shop = Shop::new("10/s burst 10");
    shop.lend(0, Call { least: 4, ..call(ONE, 1) });
    let loan = shop.lend(0, Call { left: 9, returned: 9, ..call(ONE, 2) }).unwrap();
    assert_eq!((loan.kept, shop.remaining(0)), (4, 6));
    // After its lease has ended it has nothing.
    let loan = shop.lend(2 * SECOND, Call { left: 4, returned: 4, ..call(ONE, 3) }).unwrap();
    assert_eq!((loan.kept, shop.remaining(2 * SECOND)), (0, 10));
}

#[test]
fn leases_shrink_to_single_tokens_as_the_bucket_empties() {
    let mut shop = Shop::new("1/d burst 100");
    let mut granted = Vec::new();
    for sequence in 1..=20 {
        let node = NodeId(sequence % 2);
        let loan = shop.lend(0, Call { least: 1, want: 40, ..call(node, sequence) }).unwrap();
        granted.push(loan.granted);
    }
    assert_eq!(granted[..6], [40, 15, 11, 8, 6, 5]);
    assert_eq!(granted.iter().rfind(|granted| **granted > 0), Some(&1));
    assert_eq!(granted.iter().sum::<u64>(), 100);
    assert_eq!(shop.remaining(0), 0);
}

#[test]
fn a_lease_dies_with_its_window() {
    let limit = Limit::fixed_window(10, Micros::new(1_000_000), crate::limit::Phase::Epoch).unwrap();
    let mut shop = Shop { limit, kept: None };
    let loan = shop.lend(900_000, Call { least: 4, ..call(ONE, 1) }).unwrap();
    assert_eq!(loan.term, Micros::new(99_999));
    assert_eq!(shop.remaining(999_999), 6);
    assert_eq!(shop.remaining(SECOND), 10);
}

#[test]
fn a_logs_lease_counts_for_a_whole_window_from_its_end() {
    let limit = Limit::sliding_window_log(10, Micros::new(1_000_000)).unwrap();
    let mut shop = Shop { limit, kept: None };
    shop.lend(0, Call { least: 4, ..call(ONE, 1) });
    assert_eq!(shop.remaining(SECOND + 499_999), 6);
    assert_eq!(shop.remaining(SECOND + 500_000), 10);
}

#[test]
fn more_nodes_than_the_ledger_holds_get_nothing() {
    let mut shop = Shop::new("1/d burst 100000");
    for node in 0..MOST_HOLDERS as u64 {
        assert_eq!(shop.lend(0, Call { least: 1, ..call(NodeId(node), 1) }).unwrap().granted, 1);
    }
    assert_eq!(shop.lend(0, Call { least: 1, ..call(NodeId(99), 1) }).unwrap().granted, 0);
    assert_eq!(shop.lend(0, Call { least: 1, left: 1, ..call(NodeId(7), 2) }).unwrap().granted, 1);
}

#[test]
fn a_store_clock_that_is_set_back_shortens_no_lease() {
    let mut shop = Shop::new("10/s burst 10");
    shop.lend(0, Call { least: 4, ..call(ONE, 1) });
    shop.lend(1, Call { least: 1, ..call(OTHER, 1) });
    // An hour back: half a second later it is still out, and then it ends.
    let back = -3_600 * SECOND;
    shop.with(back, |bucket| bucket.take(1));
    assert_eq!(shop.with(back + 499_998, |bucket| bucket.outstanding()), 5);
    assert_eq!(shop.with(back + 500_000, |bucket| bucket.outstanding()), 0);
}

#[test]
fn a_request_that_leases_crowd_out_is_told_to_wait_until_they_are_back() {
    let mut shop = Shop::new("10/s burst 10");
    shop.lend(0, Call { least: 4, ..call(ONE, 1) });
    let wait = shop.with(0, |bucket| {
        let answer = bucket.ask(Demand { cost: 8, max_wait: Micros::MAX });
        assert!(!answer.allowed());
        bucket.verdict(answer).retry_after.unwrap().get()
    });
    let later = i64::try_from(wait).unwrap();
    assert!(shop.with(later, |bucket| bucket.ask(Demand { cost: 8, max_wait: Micros::MAX }).allowed()));
}

#[test]
fn waits_count_every_lease_as_spent_when_it_ends_and_are_exact_then() {
    let window = |limit: u64, length: u64, phase| Limit::fixed_window(limit, Micros::new(length), phase);
    let minute = window(100, 60_000_000, crate::limit::Phase::Epoch).unwrap();
    for (limit, cost) in [
        ("1000/h burst 1000".parse().unwrap(), 1_000),
        ("10/s burst 20".parse().unwrap(), 19),
        ("5 every 300ms burst 20".parse().unwrap(), 18),
        (minute, 100),
    ] {
        let mut shop = Shop { limit, kept: None };
        shop.with(0, |bucket| bucket.take(1));
        shop.lend(0, Call { least: 2, ..call(ONE, 1) });
        shop.lend(100_000, Call { least: 3, ..call(OTHER, 1) });
        let demand = Demand { cost, max_wait: Micros::MAX };
        let verdict = shop.with(200_000, |bucket| bucket.verdict(bucket.ask(demand)));
        let (retry, reset) = (verdict.retry_after.unwrap(), verdict.reset_after);
        assert!(!verdict.allowed && retry > Micros::ZERO, "{}: {verdict:?}", shop.limit);
        // Nobody tells anything any more.
        let remaining = |wait: u64| {
            let (state, ledger) = shop.kept.clone().unwrap();
            let now = at(200_000).after(Micros::new(wait));
            LeasedBucket::open(&shop.limit, Some(state), ledger, now, Window::Own).remaining()
        };
        assert!(remaining(retry.get()) >= cost, "{}: {} after {retry:?}", shop.limit, remaining(retry.get()));
        assert!(remaining(retry.get() - 1) < cost, "{}: a microsecond less is not enough", shop.limit);
        let full = shop.limit.capacity();
        assert_eq!(remaining(reset.get()), full, "{}: as good as new after {reset:?}", shop.limit);
        assert!(reset >= retry && remaining(reset.get() - 1) < full, "{}: {reset:?}", shop.limit);
    }
}

#[test]
fn a_report_under_an_old_limit_forgives_no_usage_under_the_new_one() {
    for (old, new) in [
        ("1/d burst 100", "1/d burst 1000"),
        ("1/d burst 100", "7/h burst 1000"),
        ("100 every 1d", "1000 every 1d"),
    ] {
        let mut shop = Shop::new(old);
        shop.lend(0, Call { least: 20, ..call(ONE, 1) });
        shop.limit = new.parse().unwrap();
        assert_eq!(shop.with(1_000, |bucket| (bucket.take(500), bucket.remaining())).1, 480);
        // The node that borrowed has not heard of the change, and tells that it spent five.
        shop.limit = old.parse().unwrap();
        let mut bucket = {
            let (state, ledger) = shop.kept.clone().unwrap();
            LeasedBucket::open(&shop.limit, Some(state), ledger, at(2_000), Window::Own)
        };
        assert_eq!(bucket.remaining(), 0, "{old}: nothing is left under its own limit");
        bucket.lend(&Call { returned: 15, ..call(ONE, 2) }).unwrap();
        let Written::All(kept) = bucket.written() else { panic!("a lease came back") };
        shop.kept = kept;
        shop.limit = new.parse().unwrap();
        assert_eq!(shop.remaining(2_000), 495, "{old} to {new}");
    }
}

#[test]
fn a_lowered_limit_lends_at_its_own_rate_whatever_the_excess() {
    let mut shop = Shop::new("1/s burst 20");
    shop.with(0, |bucket| bucket.take(15));
    shop.limit = "1/s burst 10".parse().unwrap();
    let mut admitted = 0;
    for (sequence, now) in (1..).zip((0..10 * SECOND).step_by(10_000)) {
        let mut bucket = {
            let (state, ledger) = shop.kept.clone().unwrap();
            LeasedBucket::open(&shop.limit, Some(state), ledger, at(now), Window::Own)
        };
        admitted += bucket.lend(&Call { least: 1, ..call(ONE, sequence) }).unwrap().granted;
        if let Written::All(kept) = bucket.written() {
            shop.kept = kept;
        }
    }
    assert!(admitted >= 9, "{admitted} in ten seconds, of which one would come in each");
}
