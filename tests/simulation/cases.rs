//! Known ways to get leases wrong, each with its numbers.

use tollgate_core::algorithm::{State, Window};
use tollgate_core::lease::{
    Called, Grant, Heat, LEASE_TIME, LeaseCall, Ledger, NodeBucket, ParentBucket, Step, Terms, Wants,
};
use tollgate_core::{Limit, Micros, Timestamp};

const T0: i64 = 1_000_000_000_000;
const MS: i64 = 1_000;
/// A millisecond, as a step of a range.
const STEP: usize = 1_000;
/// A round trip that does not matter.
const NEAR: Micros = Micros::new(200);

/// How long before the end of a period nodes renew.
const LEAD: Micros = Micros::new(50_000);

/// One bucket at a store, and instants in microseconds after a start.
struct Bucket {
    limit: Limit,
    kept: Option<(State, Option<Ledger>)>,
}

impl Bucket {
    fn new(limit: &str) -> Self {
        Bucket { limit: crate::world::limit(limit), kept: None }
    }

    fn at<T>(&mut self, time: i64, act: impl FnOnce(&mut ParentBucket<'_>) -> T) -> T {
        let (state, ledger) = self.kept.take().unzip();
        let limit = self.limit.clone();
        let now = Timestamp::from_micros(T0 + time);
        let mut parent = ParentBucket::open(&limit, state, ledger.flatten(), now, Window::Own);
        let result = act(&mut parent);
        self.kept = parent.close();
        result
    }

    /// Exact requests of one token, as many as pass.
    fn drain(&mut self, time: i64) -> u64 {
        self.at(time, |parent| {
            let tokens = parent.remaining();
            parent.take(tokens);
            tokens
        })
    }

    fn tokens(&mut self, time: i64) -> u64 {
        self.at(time, |parent| parent.remaining())
    }

    /// A call and its reply at one instant.
    fn lend(&mut self, node: &mut NodeBucket, time: i64) -> Option<Grant> {
        let now = Timestamp::from_micros(T0 + time);
        let (call, called) = node.call(Heat::ANY, LEAD, NEAR, now)?;
        let grant = self.at(time, |parent| parent.lend(&call));
        node.granted(called, &grant, now);
        Some(grant)
    }
}

fn now(time: i64) -> Timestamp {
    Timestamp::from_micros(T0 + time)
}

/// Requests of one token, as many as pass on the lease.
fn spend(node: &mut NodeBucket, time: i64) -> u64 {
    let mut passed = 0;
    while let Step::Pass(ticket) = node.ask(1, now(time)) {
        node.finish(ticket, true, now(time));
        passed += 1;
    }
    passed
}

/// A node with a demand of the whole capacity that has its first lease.
fn leased(bucket: &mut Bucket, time: i64) -> NodeBucket {
    let mut node = NodeBucket::new(&bucket.limit, 0);
    _ = node.ask(bucket.limit.capacity(), now(time)); // shares follow demand
    let grant = bucket.lend(&mut node, time).expect("a hot key");
    assert!(grant.lease.is_some(), "{grant:?}");
    node
}

/// Renews the lease as often as it is due.
fn renew(bucket: &mut Bucket, node: &mut NodeBucket, from: i64, to: i64) {
    for time in (from..to).step_by(5 * STEP) {
        _ = node.ask(bucket.limit.capacity() + 1, now(time)); // demand that passes nowhere
        bucket.lend(node, time);
    }
}

#[test]
fn an_idle_lease_never_holds_more_than_its_capacity() {
    // Without a capacity of its own it would have refilled 1,400 in 800 ms.
    let mut bucket = Bucket::new("2000/s burst 500");
    let mut node = leased(&mut bucket, 0);
    renew(&mut bucket, &mut node, 0, 800 * MS);
    let (on_lease, at_store) = (spend(&mut node, 800 * MS), bucket.drain(800 * MS));
    assert!(on_lease > 0, "the lease is alive");
    assert!(on_lease + at_store <= 500, "{on_lease} on the lease and {at_store} at the store at one instant");
}

#[test]
fn the_fastest_clock_allowed_refills_no_more_than_the_store_would() {
    let mut bucket = Bucket::new("50000/s burst 5000");
    bucket.drain(0);
    let mut node = NodeBucket::new(&bucket.limit, 0);
    // 1/256 faster: the node's clock shows more than has passed.
    let fast = |time: i64| now(time + time / 256);
    _ = node.ask(5_000, fast(0));
    let (call, called) = node.call(Heat::ANY, LEAD, NEAR, fast(0)).unwrap();
    let grant = bucket.at(0, |parent| parent.lend(&call));
    node.granted(called, &grant, fast(0));
    let lease = grant.lease.unwrap();
    let terms = Terms::of(&bucket.limit);
    for time in (0..lease.ends.as_micros() - T0).step_by(100) {
        let refilled = time.unsigned_abs() * terms.refill * lease.rate / terms.parts;
        let has = node.content(fast(time));
        assert!(has <= lease.content + refilled, "{has} after {time} us");
    }
    // A clock that is a tenth too fast would have more, so the check can fail.
    let mut node = NodeBucket::new(&bucket.limit, 0);
    _ = node.ask(5_000, now(0));
    let (_, called) = node.call(Heat::ANY, LEAD, NEAR, now(0)).unwrap();
    node.granted(called, &grant, now(0));
    let refilled = 80_000 * terms.refill * lease.rate / terms.parts;
    assert!(node.content(now(88_000)) > lease.content + refilled);
}

#[test]
fn a_lease_of_the_next_period_leaves_no_capacity_behind() {
    // x left the parent; if the parent's capacity stayed, it would refill to 100 beside the 50 of the lease.
    let mut bucket = Bucket::new("1000/s burst 100");
    let mut node = leased(&mut bucket, 0);
    renew(&mut bucket, &mut node, 0, 95 * MS);
    for time in [95, 99, 100, 101, 110, 150].map(|time| time * MS) {
        let (on_lease, at_store) = (node.content(now(time)), bucket.tokens(time));
        let units = Terms::of(&bucket.limit).units;
        assert!(
            on_lease + at_store * units <= 100 * units,
            "{on_lease} and {at_store} tokens after {time} us"
        );
    }
}

#[test]
fn tokens_in_flight_do_not_refill_meanwhile() {
    let mut bucket = Bucket::new("1000/s burst 100");
    let mut node = leased(&mut bucket, 0);
    let mut tickets = Vec::new();
    while let Step::Pass(ticket) = node.ask(1, now(0)) {
        tickets.push(ticket);
    }
    let held = tickets.len() as u64;
    assert!(held >= 50, "{held}");
    // 40 ms later 40 tokens would have refilled into the room that the requests left.
    assert_eq!(spend(&mut node, 40 * MS), 0, "they count in the lease until they are decided");
    tickets.into_iter().for_each(|ticket| node.finish(ticket, false, now(40 * MS)));
    let (on_lease, at_store) = (spend(&mut node, 40 * MS), bucket.drain(40 * MS));
    assert_eq!(on_lease, held);
    assert!(on_lease + at_store <= 100, "{on_lease} and {at_store}");
}

#[test]
fn a_hold_is_spent_returned_or_ends_as_spent() {
    let mut bucket = Bucket::new("1/min burst 100");
    let hold = |parent: &mut ParentBucket<'_>| parent.hold(30, LEASE_TIME).unwrap();
    let boundary = bucket.at(0, hold);
    assert_eq!(bucket.tokens(0), 70);
    bucket.at(10 * MS, |parent| parent.release(30, boundary));
    assert_eq!(bucket.tokens(10 * MS), 100, "a refused request leaves nothing");
    let boundary = bucket.at(20 * MS, hold);
    bucket.at(30 * MS, |parent| parent.spend(30, boundary));
    assert_eq!(bucket.tokens(30 * MS), 70);
    let boundary = bucket.at(40 * MS, hold);
    // The reply was lost, or the return comes too late.
    let over = boundary.as_micros() - T0;
    bucket.at(over, |parent| parent.release(30, boundary));
    assert_eq!(bucket.tokens(over), 40, "after its boundary a hold is spent");
    bucket.at(over, |parent| parent.spend(30, boundary));
    assert_eq!(bucket.tokens(over), 40, "and it is spent once");
}

#[test]
fn a_hold_counts_before_and_after_the_first_boundary() {
    let mut bucket = Bucket::new("1/min burst 100");
    let boundary = bucket.at(0, |parent| parent.hold(30, LEASE_TIME).unwrap());
    let mut before = 100;
    for time in (0..boundary.as_micros() - T0 + 10 * MS).step_by(STEP) {
        let tokens = bucket.tokens(time);
        assert!(tokens <= 70 && tokens <= before, "{tokens} after {time} us");
        before = tokens;
    }
}

#[test]
fn what_is_given_back_cannot_be_spent_as_well() {
    let mut bucket = Bucket::new("1000/s burst 100");
    let mut node = leased(&mut bucket, 0);
    let had = node.content(now(10 * MS));
    let (call, _) = node.give_back(Heat::ANY, true, NEAR, now(10 * MS)).unwrap();
    assert_eq!((call.returned, call.wants), (had, Wants::Nothing));
    assert_eq!(spend(&mut node, 10 * MS), 0, "it is subtracted before the call is sent");
    let before = bucket.tokens(12 * MS);
    bucket.at(12 * MS, |parent| parent.lend(&call));
    let units = Terms::of(&bucket.limit).units;
    let after = bucket.tokens(12 * MS);
    assert!(
        after == before + had / units || after == before + had / units + 1,
        "{before}, {had} returned, {after}"
    );
    assert_eq!(bucket.at(12 * MS, |parent| parent.ledger().map(Ledger::rate)), Some(0), "and the rate");
}

#[test]
fn a_surplus_that_is_returned_takes_its_capacity_with_it() {
    // If its capacity stayed with the node, the lease would refill what the parent has again.
    let mut bucket = Bucket::new("100000/s burst 1000");
    let mut node = leased(&mut bucket, 0);
    let units = Terms::of(&bucket.limit).units;
    let (had, out) =
        (node.content(now(60 * MS)), bucket.at(60 * MS, |parent| parent.ledger().unwrap().out()));
    _ = node.ask(1, now(60 * MS));
    let (call, called) = node.call(Heat::ANY, LEASE_TIME, NEAR, now(60 * MS)).unwrap();
    assert_eq!(call.wants, Wants::Lease);
    assert!(call.returned > 0, "it was asked for one token and has {had}");
    let grant = bucket.at(60 * MS, |parent| parent.lend(&call));
    node.granted(called, &grant, now(60 * MS));
    let content = grant.lease.map_or(0, |lease| lease.content);
    let after = bucket.at(60 * MS, |parent| parent.ledger().unwrap().out());
    assert_eq!(after, out - call.returned + content, "it is off the ledger");
    let full = node.content(now(75 * MS));
    assert!(full <= out - call.returned, "{full} of {} units", (out - call.returned) / units);
}

#[test]
fn a_lease_that_runs_dry_is_made_larger_while_the_parent_has_tokens() {
    let mut bucket = Bucket::new("1000/s burst 10000");
    let mut node = NodeBucket::new(&bucket.limit, 0);
    for _ in 0..5 {
        _ = node.ask(1, now(0));
    }
    let first = bucket.lend(&mut node, 0).unwrap().lease.unwrap();
    assert!(spend(&mut node, 0) < 2_000, "it was sized for a few requests");
    let rest = bucket.tokens(0);
    let more = bucket.lend(&mut node, 0).unwrap().lease.unwrap();
    assert_eq!((more.starts, more.ends), (None, first.ends), "of the same period");
    let passed = spend(&mut node, 0);
    assert!(passed > 0 && passed + bucket.tokens(0) <= rest, "{passed} of {rest}");
    // A store that has nothing more to lend is not asked again in this period.
    bucket.drain(0);
    spend(&mut node, 0);
    let nothing = bucket.lend(&mut node, 0).unwrap();
    assert!(nothing.lease.is_none_or(|lease| lease.content == 0), "{nothing:?}");
    assert_eq!(bucket.lend(&mut node, MS), None);
}

#[test]
fn tokens_that_do_not_fit_the_next_lease_are_counted_as_stranded() {
    // The next lease is granted with what the node had then; more for this period comes after that.
    let mut bucket = Bucket::new("1000 every 1d");
    let mut node = NodeBucket::new(&bucket.limit, 0);
    for _ in 0..20 {
        _ = node.ask(1, now(0));
    }
    bucket.lend(&mut node, 0);
    let boundary = bucket.at(0, |parent| parent.ledger().unwrap().boundaries()[0].unwrap());
    let before = boundary.as_micros() - T0 - 40 * MS;
    let mut passed = spend(&mut node, before);
    bucket.lend(&mut node, before);
    _ = node.ask(300, now(before));
    let more = bucket.lend(&mut node, before).unwrap().lease.unwrap();
    assert_eq!((more.starts, more.ends), (None, boundary), "it is more for this period");
    let over = boundary.as_micros() - T0 + 90 * MS;
    passed += spend(&mut node, over);
    let (call, _) = node.give_back(Heat::ANY, true, NEAR, now(over)).unwrap();
    bucket.at(over, |parent| parent.lend(&call));
    let (left, lost) = (bucket.tokens(over + 300 * MS), node.take_stranded());
    assert_eq!(passed + left + lost, 1_000, "{passed} passed, {left} are left, {lost} are lost");
}

#[test]
fn a_return_that_arrives_after_its_boundary_is_ignored() {
    let mut bucket = Bucket::new("10/s burst 100");
    let mut other = Bucket::new("10/s burst 100");
    let mut node = leased(&mut bucket, 0);
    leased(&mut other, 0);
    let (call, _) = node.give_back(Heat::ANY, true, NEAR, now(10 * MS)).unwrap();
    let late = 400 * MS;
    bucket.at(late, |parent| parent.lend(&call));
    assert_eq!(bucket.tokens(late), other.tokens(late), "as if it had not come");
}

#[test]
fn a_lowered_limit_lends_nothing_while_more_than_its_rate_is_out() {
    let mut bucket = Bucket::new("1000/s burst 1000");
    let mut node = leased(&mut bucket, 0);
    let had = node.content(now(0));
    bucket.limit = "100/s burst 20".parse().unwrap();
    let mut lowered = NodeBucket::new(&bucket.limit, 0);
    _ = lowered.ask(1, now(MS));
    let grant = bucket.lend(&mut lowered, MS).unwrap();
    assert_eq!(grant.lease, None, "sum(rho) is above the new rate");
    assert_eq!(bucket.tokens(20 * MS), 0, "and the parent does not refill");
    let passed = spend(&mut node, MS);
    assert!(passed <= had / 1_000 + 1, "the old lease runs to its end under its own numbers");
    assert_eq!(spend(&mut node, 300 * MS), 0, "and ends");
    // The larger limit's bound: what was used under it is not forgiven.
    bucket.limit = "1000/s burst 1000".parse().unwrap();
    assert!(bucket.tokens(300 * MS) <= 1_000 - passed + 300);
}

#[test]
fn a_store_that_forgot_its_leases_costs_one_capacity_and_their_refill() {
    let mut bucket = Bucket::new("1000/s burst 100");
    let mut node = leased(&mut bucket, 0);
    let mut admitted = spend(&mut node, 0) + bucket.drain(0);
    bucket.kept = None; // a restart with nothing
    admitted += bucket.drain(0);
    for time in (0..300 * MS).step_by(STEP) {
        admitted += spend(&mut node, time);
    }
    let lease_time = 150; // ms: at most one and a half lease times to the boundary
    assert!(admitted <= 100 + 100 + lease_time, "{admitted}");
}

#[test]
fn the_first_request_of_a_hot_key_waits_for_no_lease() {
    let limit: Limit = "1000/s burst 100".parse().unwrap();
    let mut node = NodeBucket::new(&limit, 0);
    for _ in 0..10 {
        assert_eq!(node.ask(1, now(0)), Step::Store);
    }
    let (_, called): (LeaseCall, Called) = node.call(Heat::LEASED, LEAD, NEAR, now(0)).expect("it is hot");
    assert_eq!(node.ask(1, now(0)), Step::Store, "the store decides while the call is under way");
    assert_eq!(node.call(Heat::LEASED, LEAD, NEAR, now(0)), None, "one call at a time");
    node.gave_up(called, now(50 * MS));
    assert_eq!(node.ask(1, now(50 * MS)), Step::Store);
}

#[test]
fn a_lease_that_ran_dry_or_ended_leaves_the_decision_to_the_store() {
    let mut bucket = Bucket::new("1000/s burst 100");
    let mut node = leased(&mut bucket, 0);
    assert!(spend(&mut node, 0) > 0);
    assert!(!matches!(node.ask(1, now(0)), Step::Pass(_)), "dry");
    node.forget_refusal();
    assert_eq!(node.ask(1, now(0)), Step::Store, "the store decides");
    assert_eq!(node.ask(1, now(400 * MS)), Step::Store, "and when it has ended");
    assert_eq!(node.content(now(400 * MS)), 0);
}

#[test]
fn a_renewal_leaves_no_gap() {
    let mut bucket = Bucket::new("10000/s burst 1000");
    let mut node = leased(&mut bucket, 0);
    let mut left_to_the_store = Vec::new();
    // Nine tenths of the limit.
    for time in (0..500 * MS).step_by(111) {
        match node.ask(1, now(time)) {
            Step::Pass(ticket) => node.finish(ticket, true, now(time)),
            _ => left_to_the_store.push(time),
        }
        bucket.lend(&mut node, time);
    }
    assert!(left_to_the_store.len() < 3, "{left_to_the_store:?}");
}

#[test]
fn leases_of_windows_end_with_their_window() {
    for limit in ["fixed 100/s", "counter 100/s"] {
        let mut bucket = Bucket::new(limit);
        let mut node = leased(&mut bucket, 920 * MS);
        let had = node.content(now(920 * MS));
        assert!(had > 0);
        // T0 is a whole second.
        assert_eq!(node.content(now(1_000 * MS)), 0, "{limit}");
        assert!(bucket.at(999 * MS, |parent| parent.ledger().is_some()), "{limit}");
        assert!(bucket.at(1_000 * MS, |parent| parent.ledger().is_none()), "{limit}");
    }
}

#[test]
fn a_leased_entry_of_a_log_counts_from_the_end_of_its_lease() {
    let mut bucket = Bucket::new("log 100/s");
    let mut node = leased(&mut bucket, 0);
    let spent = spend(&mut node, 0);
    assert!(spent > 0);
    assert_eq!(bucket.tokens(1_000 * MS), 100 - spent, "a second after it was spent it still counts");
    assert_eq!(bucket.tokens(1_151 * MS), 100, "a second after the boundary it does not");
}
