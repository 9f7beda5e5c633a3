//! The node's side.

use super::*;
use crate::lease::block::{Block, Turn};
use crate::lease::holding::{Holding, Spend};

/// What a request of this cost does that asks now.
fn spend(holding: &mut Holding, cost: u64, now: i64) -> Spend {
    holding.spend(cost, at(now), at(now))
}

/// A holding with tokens, lent at 0.
fn held(tokens: u64) -> Holding {
    let mut holding = Holding::new();
    holding.call(ONE, 1, tokens, at(0));
    let loan = Loan { granted: tokens, kept: 0, term: TERM };
    assert_eq!(holding.answered(1, loan, &verdict(50), Mark::default(), at(10_000)), Some(at(0)));
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
    holding.answered(1, Loan { granted: 5, kept: 0, term: TERM }, &verdict(50), Mark::default(), at(450_000));
    assert_eq!(holding.tokens_at(at(450_000)), 0);
}

#[test]
fn an_answer_that_was_given_up_on_is_never_spent() {
    let mut holding = Holding::new();
    let loan = Loan { granted: 5, kept: 0, term: TERM };
    holding.call(ONE, 1, 5, at(0));
    holding.gave_up(1, at(50_000));
    assert_eq!(holding.answered(1, loan, &verdict(50), Mark::default(), at(51_000)), None);
    holding.call(ONE, 2, 5, at(60_000));
    assert_eq!(holding.answered(1, loan, &verdict(50), Mark::default(), at(61_000)), None);
    assert_eq!(holding.tokens_at(at(61_000)), 0);
}

/// Every key is hot.
const EAGER: Temper = Temper { hot: 0, cold: 0 };

/// A request of a node, with the call that it needs.
fn ask(shop: &mut Shop, purse: &mut Purse, cost: u64, sequence: u64) -> Step {
    let (demand, mut asked) = (Demand { cost, max_wait: Micros::MAX }, None);
    let step = purse.ask(demand, EAGER, &mut asked, at(0));
    if step != Step::Call {
        return step;
    }
    let call = purse.call(ONE, sequence, cost, at(0));
    let (loan, verdict) = shop.with(0, |bucket| {
        let loan = bucket.lend(&call).unwrap();
        (loan, bucket.verdict_on_loan(&call, loan))
    });
    purse.lent(&call, loan, &verdict, Mark::default(), at(0));
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
fn a_request_that_does_not_wait_is_counted_only_if_it_is_answered() {
    let mut shop = Shop::new("1/d burst 10");
    let mut purse = Purse::new(shop.limit.clone());
    let demand = Demand { cost: 1, max_wait: Micros::MAX };
    for now in (0..SECOND).step_by(1_000) {
        assert_eq!(purse.ask_now(demand, Temper::LEASED, at(now)), Step::Exact, "nothing is held");
    }
    assert!(!purse.is_hot(), "each of them asks again, and is counted then");
    let Step::Pass(taken, _) = ask(&mut shop, &mut purse, 1, 1) else { panic!("one of ten") };
    assert_eq!(purse.ask_now(demand, EAGER, at(0)), Step::Exact, "and makes no call");
    purse.put_back(Taken::new(1, taken.ticket()));
    assert!(matches!(purse.ask_now(demand, EAGER, at(0)), Step::Pass(..)));
    let refused = Verdict::closed(10, Micros::new(100_000));
    purse.refused(demand, refused, at(0));
    assert!(matches!(purse.ask_now(demand, EAGER, at(0)), Step::Refuse(_)));
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
    holding.answered(2, Loan { granted: 5, kept: 0, term: TERM }, &verdict(50), Mark::default(), at(51_000));
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
    holding.answered(1, loan, &verdict(90), Mark::default(), at(901_000));
    // A call leaves just before the window ends, and a request takes some meanwhile.
    let second = holding.call(ONE, 2, 15, at(980_000));
    let Spend::Pass(taken) = holding.spend(3, at(981_000), at(981_000)) else { panic!("there are ten") };
    let loan = shop.lend(SECOND + 1_000, second).unwrap();
    assert_eq!((loan.kept, loan.granted), (0, 5));
    holding.answered(2, loan, &verdict(90), Mark::default(), at(SECOND + 2_000));
    holding.put_back(taken);
    assert_eq!(holding.tokens_at(at(SECOND + 2_000)), 5);
}

#[test]
fn tokens_taken_while_a_call_was_under_way_are_put_back_if_the_store_left_them() {
    let mut holding = held(10);
    holding.call(ONE, 2, 5, at(20_000));
    let Spend::Pass(taken) = holding.spend(3, at(21_000), at(21_000)) else { panic!("there are ten") };
    holding.answered(2, Loan { granted: 5, kept: 10, term: TERM }, &verdict(50), Mark::default(), at(22_000));
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
            holding.answered(sequence, loan, &verdict(50), Mark::default(), at(now));
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
        (loan, bucket.verdict(bucket.ask(Demand { cost: 0, max_wait: Micros::MAX })))
    });
    holding.answered(1, loan, &verdict, Mark::default(), at(1_000));
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
        (loan, bucket.verdict(bucket.ask(Demand { cost: 0, max_wait: Micros::MAX })))
    });
    assert_eq!((loan.granted, verdict.remaining), (1, 4));
    holding.answered(1, loan, &verdict, Mark::default(), at(1_000));
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
            let answer = bucket.ask(Demand { cost: places, max_wait: Micros::MAX });
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
fn a_refusal_of_places_that_comes_after_the_limit_was_changed_is_not_remembered() {
    let mut before = Purse::new("1/s queue 2".parse().unwrap());
    let call = before.call(ONE, 1, 1, at(0));
    let mut now = Purse::new("1000/s queue 1000".parse().unwrap());
    let demand = Demand { cost: 1, max_wait: Micros::MAX };
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
    let mut ask = |cost, max_wait: u64, now| match purse.ask(
        Demand { cost, max_wait: Micros::new(max_wait) },
        EAGER,
        &mut None,
        at(now),
    ) {
        Step::Refuse(verdict) => verdict.retry_after,
        step => panic!("{step:?}"),
    };
    assert_eq!(ask(1, 2_000_000, 100_000), Some(Micros::new(400_000)));
    assert_eq!(ask(1, 1_000_000, 100_000), Some(Micros::new(1_400_000)));
    for (cost, max_wait, now) in [(1, 2_500_000, 0), (1, 2_000_000, 500_000), (5, 0, 0), (1, 0, 1_000_000)] {
        let demand = Demand { cost, max_wait: Micros::new(max_wait) };
        assert_eq!(purse.clone().ask(demand, EAGER, &mut None, at(now)), Step::Call, "{demand:?} at {now}");
    }
}
