use super::block::{Block, Turn};
use super::holding::{Holding, Spend};
use super::*;
use crate::algorithm::{Demand, State, Window};
use crate::time::Timestamp;
use crate::verdict::Verdict;

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
        let answer = bucket.ask(Demand { cost: 8, patience: Micros::MAX });
        assert!(!answer.allowed());
        bucket.verdict(answer).retry_after.unwrap().get()
    });
    let later = i64::try_from(wait).unwrap();
    assert!(shop.with(later, |bucket| bucket.ask(Demand { cost: 8, patience: Micros::MAX }).allowed()));
}

/// What a request of this cost does that asks now.
fn spend(holding: &mut Holding, cost: u64, now: i64) -> Spend {
    holding.spend(cost, at(now), at(now))
}

/// A holding with tokens, lent at 0.
fn held(tokens: u64) -> Holding {
    let mut holding = Holding::new();
    holding.call(ONE, 1, tokens, at(0));
    let loan = Loan { granted: tokens, kept: 0, term: TERM };
    assert_eq!(holding.answered(1, loan, &verdict(50), at(10_000)), Some(at(0)));
    holding
}

#[test]
fn a_node_stops_before_the_store_forgets_counted_from_before_it_asked() {
    let mut holding = held(3);
    assert!(matches!(spend(&mut holding, 1, 449_999), Spend::Pass(_)));
    assert_eq!(holding.tokens_at(at(450_000)), 0);
    assert_eq!(spend(&mut holding, 1, 450_000), Spend::Exact, "also one that stood still meanwhile");
}

#[test]
fn an_answer_that_comes_after_the_lease_has_ended_is_not_spent() {
    let mut holding = Holding::new();
    holding.call(ONE, 1, 5, at(0));
    holding.answered(1, Loan { granted: 5, kept: 0, term: TERM }, &verdict(50), at(450_000));
    assert_eq!(holding.tokens_at(at(450_000)), 0);
}

#[test]
fn an_answer_that_was_given_up_on_is_never_spent() {
    let mut holding = Holding::new();
    let loan = Loan { granted: 5, kept: 0, term: TERM };
    holding.call(ONE, 1, 5, at(0));
    holding.gave_up(1, at(50_000));
    assert_eq!(holding.answered(1, loan, &verdict(50), at(51_000)), None);
    holding.call(ONE, 2, 5, at(60_000));
    assert_eq!(holding.answered(1, loan, &verdict(50), at(61_000)), None);
    assert_eq!(holding.tokens_at(at(61_000)), 0);
}

/// Every key is hot.
const EAGER: Temper = Temper { hot: 0, cold: 0 };

/// A request of a node, with the call that it needs.
fn ask(shop: &mut Shop, purse: &mut Purse, cost: u64, sequence: u64) -> Step {
    let (demand, mut asked) = (Demand { cost, patience: Micros::MAX }, None);
    let step = purse.ask(demand, EAGER, &mut asked, at(0));
    if step != Step::Call {
        return step;
    }
    let call = purse.call(ONE, sequence, cost, at(0));
    let (loan, verdict) = shop.with(0, |bucket| {
        let loan = bucket.lend(&call).unwrap();
        (loan, bucket.verdict_on_loan(&call, loan))
    });
    purse.lent(&call, loan, &verdict, at(0));
    purse.ask(demand, EAGER, &mut asked, at(0))
}

#[test]
fn the_store_is_asked_for_what_is_missing_and_both_together_pay() {
    let mut shop = Shop::new("1/d burst 10");
    let mut purse = Purse::new(shop.limit.clone());
    let Step::Pass(taken, _) = ask(&mut shop, &mut purse, 4, 1) else { panic!("four of ten") };
    purse.put_back(taken);
    assert_eq!((purse.held_at(at(0)), shop.remaining(0)), (4, 6));
    assert!(matches!(ask(&mut shop, &mut purse, 11, 2), Step::Refuse(_)), "that is more than both have");
    assert!(matches!(ask(&mut shop, &mut purse, 10, 3), Step::Pass(..)), "four here and six there");
    assert_eq!((purse.held_at(at(0)), shop.remaining(0)), (0, 0));
}

#[test]
fn what_goes_to_waste_is_told_once() {
    let mut holding = held(3);
    assert_eq!(holding.stranded(at(449_999)), 0);
    assert_eq!(holding.stranded(at(450_000)), 3, "its lease has ended");
    assert_eq!(holding.stranded(at(450_000)), 0);
    let mut holding = held(3);
    assert_eq!(holding.farewell(ONE, || 2, Parting::Final, at(1_000)).map(|call| call.returned), Some(3));
    assert_eq!(holding.stranded(at(1_000)), 0);
    holding.gave_up(2, at(50_000));
    assert_eq!(holding.stranded(at(50_000)), 3, "nobody knows whether they are back");
    holding.answered(2, Loan { granted: 5, kept: 0, term: TERM }, &verdict(50), at(51_000));
    assert_eq!(holding.stranded(at(51_000)), 5, "lent too late");
}

#[test]
fn places_that_pass_by_unused_are_told_once() {
    let mut purse = Purse::new("100/s queue 99".parse().unwrap());
    let call = Call { want: 5, ..purse.call(ONE, 1, 1, at(0)) };
    let verdict = Verdict { reset_after: Micros::new(50_000), ..verdict(90) };
    assert!(matches!(purse.placed(&call, Micros::MAX, &verdict, at(0)), Some(Step::Pass(..))));
    assert_eq!((purse.held_at(at(0)), purse.stranded(at(0))), (4, 0));
    assert_eq!((purse.stranded(at(20_000)), purse.stranded(at(20_000))), (2, 0));
    assert_eq!(purse.farewell(ONE, || 2, Parting::Final, at(20_000)), None, "there is nothing to give back");
    assert_eq!((purse.held_at(at(20_000)), purse.stranded(at(20_000))), (0, 2));
}

#[test]
fn tokens_are_put_back_unless_the_store_was_told_that_they_are_spent() {
    let mut holding = held(3);
    let Spend::Pass(taken) = spend(&mut holding, 1, 20_000) else { panic!("there are some") };
    holding.put_back(taken);
    assert_eq!(holding.tokens_at(at(20_000)), 3);
    let Spend::Pass(taken) = spend(&mut holding, 1, 20_000) else { panic!("there are some") };
    assert_eq!(holding.call(ONE, 2, 9, at(30_000)).left, 2);
    holding.put_back(taken);
    assert_eq!(holding.tokens_at(at(30_000)), 2);
}

#[test]
fn tokens_of_a_lease_that_the_store_has_forgotten_are_not_put_back() {
    let limit = Limit::fixed_window(100, Micros::new(1_000_000), crate::limit::Phase::Epoch).unwrap();
    let mut shop = Shop { limit, kept: None };
    let mut holding = Holding::new();
    let first = holding.call(ONE, 1, 10, at(900_000));
    let loan = shop.lend(900_000, first).unwrap();
    holding.answered(1, loan, &verdict(90), at(901_000));
    // A call leaves just before the window ends, and a request takes some meanwhile.
    let second = holding.call(ONE, 2, 15, at(980_000));
    let Spend::Pass(taken) = holding.spend(3, at(981_000), at(981_000)) else { panic!("there are ten") };
    let loan = shop.lend(SECOND + 1_000, second).unwrap();
    assert_eq!((loan.kept, loan.granted), (0, 5));
    holding.answered(2, loan, &verdict(90), at(SECOND + 2_000));
    holding.put_back(taken);
    assert_eq!(holding.tokens_at(at(SECOND + 2_000)), 5);
}

#[test]
fn tokens_taken_while_a_call_was_under_way_are_put_back_if_the_store_left_them() {
    let mut holding = held(10);
    holding.call(ONE, 2, 5, at(20_000));
    let Spend::Pass(taken) = holding.spend(3, at(21_000), at(21_000)) else { panic!("there are ten") };
    holding.answered(2, Loan { granted: 5, kept: 10, term: TERM }, &verdict(50), at(22_000));
    holding.put_back(taken);
    assert_eq!(holding.tokens_at(at(22_000)), 15);
}

#[test]
fn a_lease_that_dies_with_its_window_is_not_renewed_with_every_request() {
    let limit = Limit::fixed_window(10_000, Micros::new(1_000_000), crate::limit::Phase::Epoch).unwrap();
    let mut shop = Shop { limit, kept: None };
    let mut holding = Holding::new();
    let mut calls = 0;
    // A thousand requests a second, for three windows; every answer takes a millisecond.
    let mut answer: Option<(u64, Loan)> = None;
    for now in (0..3 * SECOND).step_by(1_000) {
        if let Some((sequence, loan)) = answer.take() {
            holding.answered(sequence, loan, &verdict(50), at(now));
        }
        holding.note(1, Temper::LEASED, at(now));
        let call = match holding.spend(1, at(now), at(now)) {
            Spend::Pass(_) => holding.renewal(ONE, || calls + 1, at(now)),
            Spend::Call => Some(holding.call(ONE, calls + 1, 1, at(now))),
            _ => None,
        };
        if let Some(call) = call {
            calls += 1;
            answer = Some((call.sequence, shop.lend(now, call).unwrap()));
        }
    }
    // 25 ms of tokens are spent before the next call: 40 a second, and a few more at each end.
    assert!(calls < 3 * 60, "{calls} calls in three windows");
}

#[test]
fn a_refusal_is_remembered_for_its_wait_and_at_most_a_second() {
    let mut holding = Holding::new();
    let refused = |wait| Verdict { allowed: false, ..Verdict::closed(10, Micros::new(wait)) };
    holding.refused(2, refused(100_000), at(0));
    let Spend::Refuse(verdict) = spend(&mut holding, 2, 60_000) else { panic!("it was refused just now") };
    assert_eq!(verdict.retry_after, Some(Micros::new(40_000)));
    assert_eq!(spend(&mut holding, 1, 60_000), Spend::Exact, "less may pass");
    assert_eq!(spend(&mut holding, 2, 100_000), Spend::Exact);
    holding.refused(2, refused(3_600_000_000), at(0));
    assert!(matches!(spend(&mut holding, 2, 999_999), Spend::Refuse(_)));
    holding.forget_refusal();
    assert_eq!(spend(&mut holding, 2, 999_999), Spend::Exact);
}

#[test]
fn one_call_answers_all_who_wait_for_it_however_late_they_look() {
    let mut shop = Shop::new("10/s burst 10");
    shop.with(0, |bucket| bucket.take(9));
    let mut holding = Holding::new();
    let call = holding.call(ONE, 1, 1, at(0));
    let (loan, verdict) = shop.with(500, |bucket| {
        let loan = bucket.lend(&call).unwrap();
        (loan, bucket.verdict(bucket.ask(Demand { cost: 0, patience: Micros::MAX })))
    });
    holding.answered(1, loan, &verdict, at(1_000));
    // On a busy machine they look when the next token is there already, and none of them calls for it.
    assert!(matches!(holding.spend(1, at(0), at(250_000)), Spend::Pass(_)), "the loan is for one of them");
    for asked in [0, 1, 999, 1_000] {
        let Spend::Refuse(verdict) = holding.spend(1, at(asked), at(250_000)) else {
            panic!("nothing was left")
        };
        assert!(!verdict.allowed);
    }
    assert_eq!(spend(&mut holding, 1, 250_000), Spend::Exact, "whoever comes later asks anew");
}

#[test]
fn a_refusal_answers_those_who_waited_for_it_also_when_its_time_is_over() {
    let mut holding = Holding::new();
    holding.refused(2, Verdict::closed(10, Micros::new(1_000)), at(500));
    assert!(matches!(holding.spend(2, at(400), at(90_000)), Spend::Refuse(_)));
    assert_eq!(holding.spend(1, at(400), at(90_000)), Spend::Exact, "less may pass");
    assert_eq!(spend(&mut holding, 2, 90_000), Spend::Exact);
    holding.forget_refusal();
    assert_eq!(holding.spend(2, at(400), at(90_000)), Spend::Exact, "something was refunded meanwhile");
}

#[test]
fn an_answer_that_leaves_enough_refuses_nobody() {
    let mut shop = Shop::new("10/s burst 10");
    shop.with(0, |bucket| bucket.take(5));
    let mut holding = Holding::new();
    let call = holding.call(ONE, 1, 1, at(0));
    let (loan, verdict) = shop.with(0, |bucket| {
        let loan = bucket.lend(&call).unwrap();
        (loan, bucket.verdict(bucket.ask(Demand { cost: 0, patience: Micros::MAX })))
    });
    assert_eq!((loan.granted, verdict.remaining), (1, 4));
    holding.answered(1, loan, &verdict, at(1_000));
    // With the one that is held, five would pass.
    assert_eq!(holding.spend(5, at(0), at(1_000)), Spend::Exact);
    assert!(matches!(holding.spend(6, at(0), at(1_000)), Spend::Refuse(_)));
}

#[test]
fn a_key_gets_hot_at_one_pace_and_cold_at_a_lower_one() {
    let temper = Temper { hot: 400, cold: 100 };
    let mut holding = Holding::new();
    let mut now = 0;
    let mut ask = |holding: &mut Holding, times: i64, gap: i64| {
        for _ in 0..times {
            now += gap;
            holding.note(1, temper, at(now));
        }
        holding.is_hot()
    };
    assert!(!ask(&mut holding, 200, 5_000), "200 a second are too few to get hot");
    assert!(ask(&mut holding, 500, 1_000));
    assert!(ask(&mut holding, 200, 5_000), "and enough to stay hot");
    assert!(!ask(&mut holding, 50, 50_000));
}

#[test]
fn idle_tokens_go_back_and_busy_ones_do_not() {
    let mut holding = held(3);
    holding.note(1, Temper::LEASED, at(100_000));
    assert_eq!(holding.farewell(ONE, || 2, Parting::Idle, at(150_000)), None);
    let farewell = holding.farewell(ONE, || 2, Parting::Idle, at(320_000)).unwrap();
    assert_eq!((farewell.returned, farewell.left, farewell.want), (3, 0, 0));
    assert_eq!(holding.tokens_at(at(320_000)), 0, "what goes back is not spent");
}

#[test]
fn places_of_two_blocks_and_of_others_in_the_queue_leave_one_after_the_other() {
    let limit: Limit = "100/s queue 99".parse().unwrap();
    let mut shop = Shop { limit: limit.clone(), kept: None };
    let mut charge = |now: i64, places: u64| {
        shop.with(now, |bucket| {
            let answer = bucket.ask(Demand { cost: places, patience: Micros::MAX });
            bucket.take(places);
            bucket.verdict(answer)
        })
    };
    let mut departures = Vec::new();
    let mut blocks = Vec::new();
    for _ in 0..2 {
        let verdict = charge(0, 5);
        departures.push(verdict.delay.get());
        blocks.extend(Block::new(&limit, 5, 1, &verdict, at(0), at(0)));
    }
    departures.push(charge(0, 1).delay.get());
    for now in (0..120_000).step_by(7_000) {
        for block in &mut blocks {
            if let Turn::Place { delay, .. } = block.take(1, Micros::MAX, at(now)) {
                departures.push(now.unsigned_abs() + delay.get());
            }
        }
    }
    departures.sort_unstable();
    assert!(departures.len() >= 10, "{departures:?}");
    let apart = departures.windows(2).all(|pair| pair[1] - pair[0] >= 10_000);
    assert!(apart, "{departures:?}");
}

#[test]
fn a_place_whose_turn_is_over_is_void() {
    let limit: Limit = "100/s queue 99".parse().unwrap();
    let verdict = Verdict { reset_after: Micros::new(50_000), ..verdict(90) };
    let mut block = Block::new(&limit, 5, 0, &verdict, at(0), at(0)).unwrap();
    assert_eq!(block.take(1, Micros::new(1), at(20_000)), Turn::TooLate(Micros::new(9_999)));
    let Turn::Place { delay, ticket } = block.take(1, Micros::MAX, at(20_000)) else {
        panic!("two are left")
    };
    assert_eq!(delay, Micros::new(10_000));
    block.put_back(Taken { cost: 1, ticket });
    assert!(matches!(block.take(2, Micros::MAX, at(20_000)), Turn::Place { .. }));
    assert_eq!(block.take(1, Micros::MAX, at(20_000)), Turn::None);
}

#[test]
fn a_place_goes_back_into_the_block_it_came_from_or_nowhere() {
    let limit: Limit = "100/s queue 99".parse().unwrap();
    let block = |sent: i64, end: u64| {
        let verdict = Verdict { reset_after: Micros::new(end), ..verdict(90) };
        Block::new(&limit, 5, 1, &verdict, at(sent), at(sent)).unwrap()
    };
    let delays = |mut block: Block, now: i64| {
        let mut delays = Vec::new();
        while let Turn::Place { delay, .. } = block.take(1, Micros::MAX, at(now)) {
            delays.push(delay.get());
        }
        delays
    };
    let mut first = block(0, 50_000);
    let own = first.first_ticket();
    let Turn::Place { ticket, .. } = first.take(1, Micros::MAX, at(0)) else { panic!("four are left") };
    // While that request waited for another tier, the next block was taken, a microsecond later.
    let mut second = block(1, 100_000);
    let four = [60_000, 70_000, 80_000, 90_000];
    for foreign in [ticket, own] {
        second.put_back(Taken { cost: 1, ticket: foreign });
        assert_eq!(delays(second, 1), four, "as many places as were taken, each with its own turn");
    }
    // Its own come back: the last that was taken, or the one of the request that it was taken for.
    second.put_back(Taken { cost: 1, ticket: second.first_ticket() });
    assert_eq!(delays(second, 1), [50_000, 60_000, 70_000, 80_000, 90_000]);
    first.put_back(Taken { cost: 1, ticket });
    assert_eq!(delays(first, 0), [10_000, 20_000, 30_000, 40_000]);
    let Turn::Place { ticket: earlier, .. } = first.take(1, Micros::MAX, at(0)) else { panic!("it is back") };
    first.take(1, Micros::MAX, at(0));
    first.put_back(Taken { cost: 1, ticket: earlier });
    assert_eq!(delays(first, 0), [30_000, 40_000], "behind it somebody stands already");
}

#[test]
fn the_size_of_a_lease_follows_demand_up_and_down() {
    let mut holding = Holding::new();
    let mut now = 0;
    let mut want = |gap: i64, seconds: i64| {
        for _ in 0..seconds * SECOND / gap {
            now += gap;
            holding.note(1, Temper::LEASED, at(now));
        }
        holding.gave_up(1, at(now));
        holding.call(ONE, 1, 1, at(now)).want
    };
    // What is asked for in 50 ms.
    for (gap, expected) in [(1_000, 50), (100, 500), (10, 5_000), (1_000, 50), (10_000, 5)] {
        let want = want(gap, 2);
        assert!((expected * 9 / 10..=expected * 11 / 10 + 1).contains(&want), "{want}, one every {gap} us");
    }
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
        let demand = Demand { cost, patience: Micros::MAX };
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
fn whoever_tells_under_an_old_limit_forgives_nothing_that_was_used_under_a_new_one() {
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
        let Written::All(kept) = bucket.written_by_lending() else { panic!("a lease came back") };
        shop.kept = kept;
        shop.limit = new.parse().unwrap();
        assert_eq!(shop.remaining(2_000), 495, "{old} to {new}");
    }
}

#[test]
fn a_refusal_of_places_that_comes_after_the_limit_was_changed_is_not_remembered() {
    let mut before = Purse::new("1/s queue 2".parse().unwrap());
    let call = before.call(ONE, 1, 1, at(0));
    let mut now = Purse::new("1000/s queue 1000".parse().unwrap());
    let demand = Demand { cost: 1, patience: Micros::MAX };
    let refused = Verdict { allowed: false, ..Verdict::closed(3, Micros::new(900_000)) };
    for late in [refused, Verdict { remaining: 2, ..refused }] {
        assert_eq!(now.placed(&call, Micros::ZERO, &late, at(1_000)), Some(Step::Refuse(late)));
        assert_eq!(now.ask(demand, EAGER, &mut None, at(2_000)), Step::Call, "a thousand may wait");
    }
}

#[test]
fn a_queue_that_is_too_long_is_so_for_the_less_patient_too_and_for_nobody_else() {
    let mut purse = Purse::new("1/s queue 10".parse().unwrap());
    let call = purse.call(ONE, 1, 1, at(0));
    let long = Verdict { allowed: false, remaining: 4, ..Verdict::closed(11, Micros::new(500_000)) };
    let two_seconds = Micros::new(2 * 1_000_000);
    assert_eq!(purse.placed(&call, two_seconds, &long, at(0)), Some(Step::Refuse(long)));
    let mut ask = |cost, patience: u64, now| match purse.ask(
        Demand { cost, patience: Micros::new(patience) },
        EAGER,
        &mut None,
        at(now),
    ) {
        Step::Refuse(verdict) => verdict.retry_after,
        step => panic!("{step:?}"),
    };
    assert_eq!(ask(1, 2_000_000, 100_000), Some(Micros::new(400_000)));
    assert_eq!(ask(1, 1_000_000, 100_000), Some(Micros::new(1_400_000)));
    for (cost, patience, now) in [(1, 2_500_000, 0), (1, 2_000_000, 500_000), (5, 0, 0), (1, 0, 1_000_000)] {
        let demand = Demand { cost, patience: Micros::new(patience) };
        assert_eq!(purse.clone().ask(demand, EAGER, &mut None, at(now)), Step::Call, "{demand:?} at {now}");
    }
}

#[test]
fn what_is_used_beyond_a_lowered_limit_is_forgotten_once_that_has_room_again() {
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
        if let Written::All(kept) = bucket.written_by_lending() {
            shop.kept = kept;
        }
    }
    assert!(admitted >= 9, "{admitted} in ten seconds, of which one would come in each");
}
