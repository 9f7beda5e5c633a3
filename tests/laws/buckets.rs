//! Laws 2 to 8: what one bucket promises.

use proptest::prelude::*;
use tollgate::Limit;
use tollgate::core::limit::Algorithm;
use tollgate_tests::trace::any_limit;

use crate::{World, config};

/// A limit, a past, a wait since, and a cost from 0 to one beyond capacity.
fn any_moment() -> impl Strategy<Value = (Limit, Vec<(u64, u64)>, u64, u64)> {
    any_limit().prop_flat_map(|limit| {
        let (period, capacity) = (limit.period().get(), limit.capacity());
        let wait =
            prop_oneof![Just(0), Just(1), Just(period - 1), Just(period), 0..=period, 0..5_000_000_u64];
        let past = prop::collection::vec((wait.clone(), 0..=capacity), 0..12);
        let cost = prop_oneof![Just(1), Just(capacity), Just(capacity + 1), 0..=capacity + 1];
        (Just(limit), past, wait, cost)
    })
}

fn moment(limit: &Limit, past: &[(u64, u64)], wait: u64) -> World {
    let world = World::with_past(limit, past);
    world.wait(wait);
    world
}

proptest! {
    #![proptest_config(config(3_000))]

    #[test]
    fn law_2_a_peek_and_a_refusal_leave_the_state_as_it_was((limit, past, wait, cost) in any_moment()) {
        let world = moment(&limit, &past, wait);
        let before = world.state();
        world.peek(cost);
        prop_assert_eq!(&world.state(), &before);
        if !world.check(cost).allowed {
            prop_assert_eq!(&world.state(), &before);
        }
        world.check(0);
        prop_assert!(world.store.stats().buckets <= 1);
    }

    #[test]
    fn law_3_allowed_exactly_when_the_cost_is_at_most_remaining((limit, past, wait, cost) in any_moment()) {
        let world = moment(&limit, &past, wait);
        let remaining = world.peek(0).remaining;
        prop_assert_eq!(world.check(cost).allowed, cost <= remaining);
    }

    #[test]
    fn law_4_waiting_exactly_retry_after_is_enough_and_one_microsecond_less_is_not(
        (limit, past, wait, cost) in any_moment(),
    ) {
        let world = moment(&limit, &past, wait);
        let verdict = world.peek(cost);
        match verdict.retry_after {
            None => prop_assert!(cost > limit.capacity()),
            Some(retry) if verdict.allowed => prop_assert_eq!(retry.get(), 0),
            Some(retry) => {
                prop_assert!(retry.get() > 0);
                world.wait(retry.get() - 1);
                prop_assert!(!world.peek(cost).allowed);
                world.wait(1);
                prop_assert!(world.peek(cost).allowed);
            }
        }
    }

    #[test]
    fn a_reservation_settled_for_nothing_leaves_at_most_what_a_microsecond_repays(
        (limit, past, wait, cost) in any_moment(),
        (later, more) in (0..10_000_000_u64, 0..10_000_000_u64),
    ) {
        let (world, without) = (moment(&limit, &past, wait), moment(&limit, &past, wait));
        let reserved = world.reserve(cost);
        prop_assume!(reserved.is_some());
        for wait in [later, more] {
            world.wait(wait);
            without.wait(wait);
            if wait == later && let Some(id) = reserved {
                world.settle(id, 0);
            }
            let ((left, reset), (expected, expected_reset)) = (world.numbers(), without.numbers());
            // The instant from which time repays a charge is a whole one, rounded down.
            let tick = if matches!(limit.algorithm(), Algorithm::TokenBucketInterval(_)) { limit.period().get() } else { 1 };
            prop_assert!(left <= expected && expected <= left + 1, "{left} of {expected}");
            prop_assert!((expected_reset..=expected_reset + tick).contains(&reset), "{reset} of {expected_reset}");
        }
    }

    #[test]
    fn what_was_reserved_so_long_ago_that_it_is_gone_is_not_given_back(
        (limit, past, wait, cost) in any_moment(),
    ) {
        let world = World::new(&limit);
        let reserved = world.reserve(cost.max(1));
        prop_assume!(reserved.is_some());
        world.wait(world.numbers().1);
        for (wait, cost) in past {
            world.wait(wait);
            world.check(cost % (limit.capacity() + 2));
        }
        world.wait(wait);
        let before = world.numbers();
        if let Some(id) = reserved {
            world.settle(id, 0);
        }
        prop_assert_eq!(world.numbers(), before);
    }

    #[test]
    fn law_5_neither_time_nor_a_smaller_cost_turns_an_allow_into_a_refusal(
        (limit, past, wait, cost) in any_moment(),
        later in 0..10_000_000_u64,
    ) {
        let world = moment(&limit, &past, wait);
        prop_assume!(world.peek(cost).allowed);
        prop_assert!(world.peek(cost.saturating_sub(1)).allowed);
        let windows = matches!(
            limit.algorithm(),
            Algorithm::FixedWindow { .. } | Algorithm::SlidingWindowCounter { .. }
        );
        if !windows {
            world.wait(later);
            prop_assert!(world.peek(cost).allowed);
        }
    }

    #[test]
    fn law_6_after_reset_after_the_bucket_is_as_a_fresh_one((limit, past, wait, _) in any_moment()) {
        let world = moment(&limit, &past, wait);
        let reset = world.peek(1).reset_after.get();
        if reset > 0 {
            world.wait(reset - 1);
            prop_assert!(world.state().is_some());
            world.wait(1);
        }
        prop_assert_eq!(world.state(), None);
        prop_assert_eq!(world.numbers(), (limit.capacity(), 0));
        // As one that never saw a request: a whole capacity, and not one more.
        let fresh = World::new(&limit);
        fresh.clock.set(world.clock.now());
        for cost in [limit.capacity() - 1, 1, 1] {
            prop_assert_eq!(world.check(cost), fresh.check(cost));
        }
    }

    #[test]
    fn law_7_taking_a_then_b_at_one_instant_is_taking_both((limit, past, wait, cost) in any_moment(), part in 0..=8_u64) {
        let (a, b) = (cost / 8 * part, cost - cost / 8 * part);
        let (together, apart) = (moment(&limit, &past, wait), moment(&limit, &past, wait));
        prop_assume!(together.check(cost).allowed);
        prop_assert!(apart.check(a).allowed && apart.check(b).allowed);
        prop_assert_eq!(together.state(), apart.state());
    }

    #[test]
    fn law_8_a_refund_undoes_a_take_of_the_same_instant((limit, past, wait, cost) in any_moment()) {
        let world = moment(&limit, &past, wait);
        let before = world.numbers();
        prop_assume!(world.check(cost).allowed);
        world.refund(cost);
        prop_assert_eq!(world.numbers(), before);
        // and gives no more than was taken
        prop_assert_eq!(world.refund(u64::MAX).remaining <= limit.capacity(), true);
    }
}

#[test]
fn a_leaky_bucket_lets_departures_be_at_least_an_interval_apart() {
    let limit: Limit = "7/s queue 20".parse().unwrap();
    let world = World::new(&limit);
    let mut departures = Vec::new();
    for (wait, cost) in (0..400_u64).map(|n| (n * 7_919 % 90_000, 1)) {
        world.wait(wait);
        let verdict = world.check(cost);
        if verdict.allowed {
            departures.push(world.clock.now().as_micros().unsigned_abs() + verdict.delay.get());
        }
    }
    assert!(departures.len() > 100);
    assert!(departures.windows(2).all(|pair| pair[1] - pair[0] >= 1_000_000 / 7), "{departures:?}");
}
