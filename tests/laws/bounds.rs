//! Law 1: the bound of each algorithm, over all pairs of admitted requests.

use proptest::prelude::*;
use tollgate::core::limit::{Algorithm, Phase};
use tollgate::{Limit, ReservationId};
use tollgate_tests::trace::{any_limit, any_steps};

use crate::{World, config};

/// Admitted cost between two admissions (both included) may not exceed this.
pub(crate) fn bound(limit: &Limit, from: u64, to: u64) -> u128 {
    let (elapsed, capacity, period) =
        (u128::from(to - from), u128::from(limit.capacity()), u128::from(limit.period().get()));
    let count = || u128::from(limit.to_string().split(['/', ' ']).next().unwrap().parse::<u64>().unwrap());
    match limit.algorithm() {
        Algorithm::TokenBucket(_) | Algorithm::LeakyBucket { .. } => capacity + count() * elapsed / period,
        Algorithm::TokenBucketInterval(_) => capacity + count() * (elapsed / period + 1),
        Algorithm::SlidingWindowLog { .. } if elapsed < period => capacity,
        Algorithm::FixedWindow { phase: Phase::Calendar(_), .. } => u128::MAX,
        Algorithm::FixedWindow { .. } | Algorithm::SlidingWindowCounter { .. } if elapsed < period => {
            2 * capacity
        }
        _ => u128::MAX,
    }
}

fn any_traffic() -> impl Strategy<Value = (Limit, Vec<(u64, u64)>)> {
    any_limit().prop_flat_map(|limit| {
        let steps = any_steps(120, vec![limit.period().get()]);
        let traffic = steps.prop_map(|steps| {
            let wait = |turn: i64| u64::try_from(turn).unwrap_or(0);
            steps
                .iter()
                .map(|step| (wait(step.turn), u64::from(step.cost.0) * 3 + u64::from(step.cost.1)))
                .collect()
        });
        (Just(limit), traffic)
    })
}

proptest! {
    #![proptest_config(config(2_000))]

    #[test]
    fn no_interval_admits_more_than_the_bound((limit, traffic) in any_traffic()) {
        let world = World::new(&limit);
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        for (wait, cost) in traffic {
            world.wait(wait);
            // Greedy: everything that is left, or the cost drawn.
            let cost = if cost == 0 { world.peek(1).remaining } else { cost };
            if cost > 0 && world.check(cost).allowed {
                admitted.push((u64::try_from(world.clock.now().as_micros()).unwrap(), cost));
            }
        }
        no_pair_exceeds_the_bound(&limit, &admitted)?;
    }

    /// As in a Cluster, where a tier in another slot refuses: what was reserved meanwhile counts as nobody's. One is under
    /// way at a time: of two that overlap, the second does not know what the first gave back.
    #[test]
    fn no_interval_admits_more_than_the_bound_where_others_reserve_and_settle_for_nothing(
        (limit, traffic) in any_traffic(),
        fates in prop::collection::vec((0..3_u8, 0..6_usize), 120),
    ) {
        let world = World::new(&limit);
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        let mut reserved: Vec<(usize, ReservationId)> = Vec::new();
        for (step, ((wait, cost), (fate, held))) in traffic.into_iter().zip(fates).enumerate() {
            world.wait(wait);
            for (_, id) in reserved.extract_if(.., |(until, _)| *until <= step) {
                world.settle(id, 0);
            }
            let cost = if cost == 0 { world.peek(1).remaining } else { cost };
            if fate == 0 && reserved.is_empty() {
                reserved.extend(world.reserve(cost).map(|id| (step + held, id)));
            } else if world.check(cost).allowed && cost > 0 {
                admitted.push((u64::try_from(world.clock.now().as_micros()).unwrap(), cost));
            }
        }
        no_pair_exceeds_the_bound(&limit, &admitted)?;
    }
}

fn no_pair_exceeds_the_bound(limit: &Limit, admitted: &[(u64, u64)]) -> Result<(), TestCaseError> {
    for (first, (from, _)) in admitted.iter().enumerate() {
        let mut sum = 0_u128;
        for (to, cost) in &admitted[first..] {
            sum += u128::from(*cost);
            prop_assert!(sum <= bound(limit, *from, *to), "{limit:?}: {sum} from {from} to {to}");
        }
    }
    Ok(())
}

/// What was reserved, refilled meanwhile and spent by others is not given back a second time.
#[test]
fn what_others_were_given_of_a_reservation_is_not_given_back() {
    for limit in ["10/s burst 100", "10/s queue 99", "10 every 1s burst 100"] {
        let world = World::new(&limit.parse().unwrap());
        let reserved = world.reserve(100).unwrap();
        world.wait(5_000_000);
        assert!(world.check(50).allowed, "{limit}: half of it came back");
        world.settle(reserved, 0);
        assert_eq!(world.peek(1).remaining, 50, "{limit}");
    }
    // What was owed before is paid back first, so all of the charge is left.
    let world = World::new(&"10/s burst 100".parse().unwrap());
    assert!(world.check(60).allowed);
    let reserved = world.reserve(40).unwrap();
    world.wait(5_000_000);
    world.settle(reserved, 0);
    assert_eq!(world.peek(1).remaining, 90);
}

#[test]
fn a_calendar_window_admits_its_limit_in_each_day_also_when_clocks_change() {
    // 25 October 2026 has 25 hours in Berlin, 29 March 23.
    let limit = tollgate::core::Draft {
        key: "global".into(),
        limit: Some("1/d".into()),
        algorithm: Some("fixed_window".into()),
        window: Some("calendar".into()),
        time_zone: Some("Europe/Berlin".into()),
        ..Default::default()
    };
    let limit = limit.build().unwrap().limit().unwrap().clone();
    for (noon_utc, until_midnight_hours) in [
        (1_792_922_400_u64, 13), // 25 Oct 2026 10:00 UTC is 11:00 CET: 13 hours to midnight
        (1_792_882_800, 24),     // 24 Oct 2026 23:00 UTC is 25 Oct 01:00 CEST: 24 hours to midnight
        (1_774_746_000, 22),     // 29 Mar 2026 01:00 UTC is 03:00 CEST, just after the jump: 21 hours
    ] {
        let world = World::new(&limit);
        world.wait(noon_utc * 1_000_000);
        assert!(world.check(1).allowed);
        let refused = world.check(1);
        let hours = refused.retry_after.unwrap().get() / 3_600_000_000;
        let expected = if until_midnight_hours == 22 { 21 } else { until_midnight_hours };
        assert_eq!(hours, expected, "at {noon_utc}");
        world.wait(refused.retry_after.unwrap().get());
        assert!(world.check(1).allowed);
    }
}

#[test]
fn nothing_drifts_in_ten_million_decisions_at_three_a_second() {
    use tollgate::core::algorithm::{Answer, Bucket, Demand, Window};
    use tollgate::{Micros, Timestamp};
    let limit: Limit = "3/s burst 1000".parse().unwrap();
    let demand = Demand { cost: 1, max_wait: Micros::MAX };
    let (mut state, mut admitted, mut now) = (None, 0_u64, 0_i64);
    for _ in 0..10_000_000 {
        now += 100_003;
        let mut bucket = Bucket::open(&limit, state, Timestamp::from_micros(now), Window::Own);
        if let Answer::Pass { .. } = bucket.ask(demand) {
            bucket.take(1);
            admitted += 1;
        }
        state = Some(bucket.into_state());
    }
    // Full at the first decision, then 3 per second: exactly what the closed form says.
    let elapsed = u64::try_from(now - 100_003).unwrap();
    assert_eq!(admitted, 1_000 + elapsed * 3 / 1_000_000);
}
