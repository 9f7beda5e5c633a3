//! Worked numbers, one table per algorithm. The laws and the comparison with the model are in the tests member.

use super::*;
use crate::limit::{Opening, Phase, Ticks};

const SECOND: i64 = 1_000_000;

/// A bucket with a memory of its own.
struct Kept {
    limit: Limit,
    state: Option<State>,
}

/// What a verdict says, without the limit.
type Numbers = (bool, u64, Option<u64>, u64, u64);

impl Kept {
    fn new(limit: Limit) -> Self {
        Kept { limit, state: None }
    }

    fn check(&mut self, at: i64, cost: u64) -> Numbers {
        self.check_within(at, cost, Micros::MAX)
    }

    fn check_within(&mut self, at: i64, cost: u64, max_wait: Micros) -> Numbers {
        let mut bucket =
            Bucket::open(&self.limit, self.state.clone(), Timestamp::from_micros(at), Window::Own);
        let answer = bucket.ask(Demand { cost, max_wait });
        if answer.allowed() {
            bucket.take(cost);
        }
        let verdict = bucket.verdict(answer);
        if answer.allowed() && cost > 0 {
            self.state = bucket.close();
        }
        let retry = verdict.retry_after.map(Micros::get);
        (verdict.allowed, verdict.remaining, retry, verdict.reset_after.get(), verdict.delay.get())
    }
}

#[test]
fn a_token_bucket_admits_its_burst_and_then_its_rate() {
    let mut bucket = Kept::new("10/s burst 3".parse().unwrap());
    assert_eq!(bucket.check(0, 1), (true, 2, Some(0), 100_000, 0));
    assert_eq!(bucket.check(0, 2), (true, 0, Some(0), 300_000, 0));
    assert_eq!(bucket.check(0, 1), (false, 0, Some(100_000), 300_000, 0));
    assert_eq!(bucket.check(99_999, 1), (false, 0, Some(1), 200_001, 0));
    assert_eq!(bucket.check(100_000, 1), (true, 0, Some(0), 300_000, 0));
    assert_eq!(bucket.check(100_000, 4), (false, 0, None, 300_000, 0));
    assert_eq!(bucket.check(400_000, 0), (true, 3, Some(0), 0, 0));
}

#[test]
fn a_rate_that_divides_nothing_is_still_exact() {
    let mut bucket = Kept::new("3/s".parse().unwrap());
    assert_eq!(bucket.check(0, 3), (true, 0, Some(0), SECOND.unsigned_abs(), 0));
    assert_eq!(bucket.check(0, 1), (false, 0, Some(333_334), 1_000_000, 0));
    let passes = [333_333, 333_334, 666_667, 999_999, 1_000_000].map(|at| bucket.check(at, 1).0);
    assert_eq!(passes, [false, true, true, false, true]);
}

#[test]
fn an_interval_bucket_gets_its_tokens_together() {
    let mut bucket = Kept::new(Limit::interval(2, Micros::new(10), 5, Ticks::FromFirstTake).unwrap());
    assert_eq!(bucket.check(3, 5), (true, 0, Some(0), 30, 0));
    assert_eq!(bucket.check(12, 1), (false, 0, Some(1), 21, 0));
    assert_eq!(bucket.check(13, 1), (true, 1, Some(0), 20, 0));
    assert_eq!(bucket.check(13, 4), (false, 1, Some(20), 20, 0));
    let mut aligned = Kept::new(Limit::interval(2, Micros::new(10), 5, Ticks::Aligned).unwrap());
    assert_eq!(aligned.check(3, 5), (true, 0, Some(0), 27, 0));
    assert_eq!(aligned.check(10, 2), (true, 0, Some(0), 30, 0));
}

#[test]
fn a_leaky_bucket_delays_each_request_for_its_turn_and_refuses_one_that_would_wait_too_long() {
    let mut bucket = Kept::new("10/s queue 2".parse().unwrap());
    assert_eq!(bucket.check(0, 1), (true, 2, Some(0), 100_000, 0));
    assert_eq!(bucket.check(0, 1), (true, 1, Some(0), 200_000, 100_000));
    assert_eq!(bucket.check_within(0, 1, Micros::new(150_000)), (false, 1, Some(50_000), 200_000, 0));
    assert_eq!(bucket.check(0, 1), (true, 0, Some(0), 300_000, 200_000));
    assert_eq!(bucket.check(0, 1), (false, 0, Some(100_000), 300_000, 0));
    let mut free = Kept::new("10/s queue 2 free 1".parse().unwrap());
    assert_eq!([free.check(0, 1).4, free.check(0, 1).4, free.check(0, 1).4], [0, 0, 100_000]);
}

#[test]
fn a_fixed_window_counts_until_it_ends() {
    let mut epoch = Kept::new(Limit::fixed_window(2, Micros::new(100), Phase::Epoch).unwrap());
    assert_eq!(epoch.check(90, 2), (true, 0, Some(0), 10, 0));
    assert_eq!(epoch.check(99, 1), (false, 0, Some(1), 1, 0));
    assert_eq!(epoch.check(100, 2), (true, 0, Some(0), 100, 0));
    let mut first = Kept::new(Limit::fixed_window(2, Micros::new(100), Phase::First).unwrap());
    assert_eq!(first.check(90, 2), (true, 0, Some(0), 100, 0));
    assert_eq!(first.check(189, 1), (false, 0, Some(1), 1, 0));
    assert_eq!(first.check(195, 1), (true, 1, Some(0), 100, 0));
}

#[test]
fn a_log_frees_what_is_one_window_old() {
    let mut log = Kept::new(Limit::sliding_window_log(3, Micros::new(100)).unwrap());
    assert_eq!(log.check(0, 1), (true, 2, Some(0), 100, 0));
    assert_eq!(log.check(40, 2), (true, 0, Some(0), 100, 0));
    assert_eq!(log.check(99, 1), (false, 0, Some(1), 41, 0));
    assert_eq!(log.check(100, 1), (true, 0, Some(0), 100, 0));
    assert_eq!(log.check(100, 3), (false, 0, Some(100), 100, 0));
}

#[test]
fn a_sliding_counter_weighs_the_window_before() {
    let mut counter = Kept::new(Limit::sliding_window_counter(10, Micros::new(100), Opening::Epoch).unwrap());
    assert_eq!(counter.check(50, 10), (true, 0, Some(0), 141, 0));
    assert_eq!(counter.check(100, 1), (false, 0, Some(1), 91, 0));
    assert_eq!(counter.check(150, 5), (true, 0, Some(0), 131, 0));
    assert_eq!(counter.check(150, 1), (false, 0, Some(1), 131, 0));
    assert_eq!(counter.check(191, 5), (true, 0, Some(0), 100, 0));
}

#[test]
fn a_clock_that_is_late_computes_at_the_last_write_and_one_that_stepped_shifts_it() {
    let mut bucket = Kept::new("1/s burst 1".parse().unwrap());
    assert!(bucket.check(10 * SECOND, 1).0);
    assert_eq!(bucket.check(9 * SECOND, 1), (false, 0, Some(2_000_000), 2_000_000, 0));
    assert_eq!(bucket.check(9 * SECOND - 1, 1), (false, 0, Some(1_000_000), 1_000_000, 0));
}

#[test]
fn what_was_used_stays_used_when_numbers_change() {
    let mut bucket = Kept::new("10/s burst 50".parse().unwrap());
    bucket.check(0, 45);
    bucket.limit = "20/min burst 60".parse().unwrap();
    assert_eq!(bucket.check(0, 0).1, 15);
    bucket.limit = "10/s burst 20".parse().unwrap();
    assert_eq!(bucket.check(0, 0).1, 0, "at most a full bucket is owed");
    bucket.limit = Limit::fixed_window(7, Micros::new(1_000_000), Phase::Epoch).unwrap();
    assert_eq!(bucket.check(0, 0).1, 7, "another algorithm starts anew");
}

/// Numbers that look random and are the same in every run.
struct Numbered(u64);

impl Numbered {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// `t` of the RateLimit header is computed from the verdict alone, without the bucket.
#[test]
fn more_after_of_a_verdict_is_the_wait_for_one_more_token_than_remain() {
    let minute = Micros::new(60_000_000);
    let limits = [
        "10/s burst 50".parse().unwrap(),
        "3/s".parse().unwrap(),
        "7/min burst 2".parse().unwrap(),
        "999983/s burst 1000000".parse().unwrap(),
        "10/s queue 5".parse().unwrap(),
        "7/s queue 9 free 3".parse().unwrap(),
        Limit::interval(2, minute, 5, Ticks::FromFirstTake).unwrap(),
        Limit::interval(3, minute, 7, Ticks::Aligned).unwrap(),
        Limit::fixed_window(9, minute, Phase::Epoch).unwrap(),
        Limit::fixed_window(9, minute, Phase::First).unwrap(),
        Limit::sliding_window_log(9, minute).unwrap(),
        Limit::sliding_window_counter(9, minute, Opening::Epoch).unwrap(),
        Limit::sliding_window_counter(9, minute, Opening::First).unwrap(),
    ];
    let mut numbers = Numbered(18);
    let mut growing = 0;
    for limit in limits {
        let (mut state, mut now) = (None, 1_000_000_000_i64);
        for step in 0..2_000 {
            let pause = if step % 5 == 0 { 0 } else { numbers.below(2 * limit.period().get() / 9 + 2) };
            // Now and then the clock is late by up to a second: the wait counts from the clock.
            now += i64::try_from(pause).unwrap()
                - i64::try_from(numbers.below(4) / 3 * numbers.below(900_000)).unwrap();
            let mut bucket = Bucket::open(&limit, state.take(), Timestamp::from_micros(now), Window::Own);
            let cost = 1 + numbers.below(limit.capacity().min(20));
            let answer = bucket.ask(Demand { cost, max_wait: Micros::MAX });
            if answer.allowed() {
                bucket.take(cost);
            }
            let verdict = bucket.verdict(answer);
            let one_more = bucket.ask(Demand { cost: verdict.remaining + 1, max_wait: Micros::MAX });
            let expected = match one_more {
                Answer::Wait(wait) if verdict.remaining < verdict.limit => Some(wait),
                _ => None,
            };
            assert_eq!(verdict.more_after(Some(&limit)), expected, "{limit} at step {step}: {verdict:?}");
            assert_eq!(verdict.resolved(Some(&limit)).more_after(None), expected, "{limit} at step {step}");
            growing += usize::from(expected.is_some());
            state = bucket.close();
        }
    }
    assert!(growing > 10_000, "only {growing} verdicts had less than full");
}
