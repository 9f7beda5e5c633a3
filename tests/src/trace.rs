//! Random traces over a few tiers and keys, and the machinery to run one through a store and the model at once.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use tollgate::core::limit::{Algorithm, Calendar, CalendarUnit, Opening, Phase, Ticks};
use tollgate::core::{Draft, Key};
use tollgate::{
    Clock, Descriptor, Limit, Micros, Op, ReservationId, Rule, RuleSet, Store, Tier, Tiers, Timestamp,
    Verdict,
};

use crate::model::{self, Model};
use crate::rows;

/// A request kind, or what else happens to buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Charge.
    Check,
    /// Look.
    Peek,
    /// Give back.
    Refund,
    /// Charge, to be settled later: one cost for all tiers.
    Reserve,
    /// Settle the last reservation.
    Settle,
    /// Forget.
    Reset,
}

/// One line of a trace.
#[derive(Debug, Clone)]
pub struct Step {
    /// How far the clock is turned first, back when negative.
    pub turn: i64,
    /// What happens.
    pub verb: Verb,
    /// To whom.
    pub user: u8,
    /// Which tiers take part, as bits.
    pub tiers: u8,
    /// The cost each tier is asked for, as a part of its capacity in eighths, and a few on top.
    pub cost: (u8, u8),
    /// Which of its two limits each tier has from now on, as bits.
    pub config: u8,
}

/// One tier: two limits to switch between, and whether it only watches.
#[derive(Debug, Clone)]
pub struct TierSpec {
    /// The limits.
    pub limits: [Limit; 2],
    /// Whether it is on trial.
    pub shadow: bool,
}

/// Waits for a future that never waits.
///
/// # Panics
///
/// If it does.
pub fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a store in memory answers at once"),
    }
}

/// The number of cases to run where `usual` is the usual number: `TOLLGATE_TIMES=100` multiplies it, and
/// `TOLLGATE_TIMES=1/10` divides it.
///
/// # Panics
///
/// `TOLLGATE_TIMES` is not `N` or `N/M`.
pub fn cases(usual: u32) -> u32 {
    let Ok(text) = std::env::var("TOLLGATE_TIMES") else { return usual };
    scaled(usual, &text).unwrap_or_else(|| panic!("TOLLGATE_TIMES={text} is not of the form `100` or `1/10`"))
}

/// At least one case: a suite that runs nothing would pass.
fn scaled(usual: u32, times: &str) -> Option<u32> {
    let (multiply, divide) = times.split_once('/').unwrap_or((times, "1"));
    let scaled = usual.checked_mul(multiply.parse().ok()?)?.checked_div(divide.parse().ok()?)?;
    Some(scaled.max(1))
}

/// Any limit at all, small enough that traces reach its edges.
pub fn any_limit() -> BoxedStrategy<Limit> {
    prop_oneof![token_bucket(), interval(), leaky(), fixed_window(), log(), counter()].boxed()
}

/// Any limit of one algorithm, twice: before and after a change of its numbers.
pub fn any_tier() -> BoxedStrategy<TierSpec> {
    let same = prop_oneof![
        (token_bucket(), token_bucket()),
        (interval(), interval()),
        (leaky(), leaky()),
        (fixed_window(), fixed_window()),
        (log(), log()),
        (counter(), counter()),
        (prop_oneof![fixed_window(), log(), counter()], count())
            .prop_map(|(limit, count)| (limit.clone(), with_count(&limit, count))),
    ];
    let pair = prop_oneof![8 => same, 1 => (any_limit(), any_limit())];
    (pair, prop::bool::weighted(0.15))
        .prop_map(|((a, b), shadow)| TierSpec { limits: [a, b], shadow })
        .boxed()
}

/// A window or log with the same length and phase that admits another count: the same buckets.
fn with_count(limit: &Limit, count: u64) -> Limit {
    match limit.algorithm() {
        Algorithm::FixedWindow { window, phase, .. } => Limit::fixed_window(count, *window, phase.clone()),
        Algorithm::SlidingWindowLog { window, .. } => Limit::sliding_window_log(count, *window),
        Algorithm::SlidingWindowCounter { window, opens, .. } => {
            Limit::sliding_window_counter(count, *window, *opens)
        }
        _ => Ok(limit.clone()),
    }
    .expect("in range")
}

fn period() -> BoxedStrategy<u64> {
    prop_oneof![
        Just(1_u64),
        Just(7),
        Just(1_000),
        Just(333_333),
        Just(1_000_000),
        Just(60_000_000),
        Just(366 * 86_400_000_000),
        1..5_000_000_u64,
    ]
    .boxed()
}

fn count() -> BoxedStrategy<u64> {
    prop_oneof![Just(1_u64), Just(2), Just(3), Just(10), 1..200_u64].boxed()
}

/// Token buckets.
pub fn token_bucket() -> BoxedStrategy<Limit> {
    (count(), period(), count())
        .prop_filter_map("exact", |(count, period, burst)| {
            Limit::token_bucket(count, Micros::new(period), burst).ok()
        })
        .boxed()
}

/// Buckets whose tokens arrive together.
pub fn interval() -> BoxedStrategy<Limit> {
    (count(), period(), count(), any::<bool>())
        .prop_filter_map("exact", |(count, period, burst, aligned)| {
            let ticks = if aligned { Ticks::Aligned } else { Ticks::FromFirstTake };
            Limit::interval(count, Micros::new(period), burst, ticks).ok()
        })
        .boxed()
}

/// Queues.
pub fn leaky() -> BoxedStrategy<Limit> {
    (count(), period(), 0..50_u64, 0..5_u64)
        .prop_filter_map("exact", |(count, period, queue, free)| {
            Limit::leaky_bucket(count, Micros::new(period), queue, free.min(queue)).ok()
        })
        .boxed()
}

fn fixed_window() -> BoxedStrategy<Limit> {
    let zone =
        prop_oneof![Just("UTC"), Just("Europe/Berlin"), Just("America/New_York"), Just("Asia/Kathmandu")];
    let unit = prop_oneof![Just(CalendarUnit::Day), Just(CalendarUnit::Week), Just(CalendarUnit::Month)];
    let calendar = (unit, zone).prop_map(|(unit, zone)| {
        (unit.nominal().get(), Phase::Calendar(Calendar::new(unit, zone).expect("a real zone")))
    });
    let phase = prop_oneof![Just(Phase::Epoch), Just(Phase::First), Just(Phase::Spread)];
    let window = prop_oneof![4 => (period(), phase), 1 => calendar];
    (count(), window)
        .prop_map(|(count, (window, phase))| {
            Limit::fixed_window(count, Micros::new(window), phase).expect("in range")
        })
        .boxed()
}

fn log() -> BoxedStrategy<Limit> {
    (count(), period())
        .prop_map(|(count, window)| Limit::sliding_window_log(count, Micros::new(window)).expect("in range"))
        .boxed()
}

fn counter() -> BoxedStrategy<Limit> {
    let limit = prop_oneof![8 => count(), 1 => Just(1_u64 << 31)];
    let opens = prop_oneof![Just(Opening::Epoch), Just(Opening::First)];
    (limit, period(), opens)
        .prop_map(|(limit, window, opens)| {
            Limit::sliding_window_counter(limit, Micros::new(window), opens).expect("in range")
        })
        .boxed()
}

/// Steps that turn the clock to where something happens: edges of the tiers' periods, small and large steps
/// back, huge gaps.
pub fn any_steps(length: usize, periods: Vec<u64>) -> BoxedStrategy<Vec<Step>> {
    let period = prop::sample::select(periods);
    let edge = (period, -1_i64..=1, 0..8_i64, 1..5_i64)
        .prop_map(|(period, off, eighths, times)| {
            let period = period.cast_signed();
            if eighths == 0 { period * times + off } else { period * eighths / 8 + off }
        })
        .prop_map(|turn| turn.max(0))
        .boxed();
    let turn = prop_oneof![
        5 => Just(0_i64),
        8 => edge,
        3 => 0..3_000_000_i64,
        2 => 0..10_i64,
        1 => -1_000_001_i64..0,
        1 => -100_000_000_i64..-1_000_000,
        1 => Just(40_000_000_000_000_i64),
    ];
    let verb = prop_oneof![12 => Just(Verb::Check), 3 => Just(Verb::Peek), 2 => Just(Verb::Refund), 3 => Just(Verb::Reserve), 3 => Just(Verb::Settle), 1 => Just(Verb::Reset)];
    let cost = prop_oneof![8 => Just((0_u8, 1_u8)), 4 => (0..=8_u8, 0..3_u8)];
    let config = prop_oneof![7 => Just(0_u8), 3 => any::<u8>()];
    let step = (turn, verb, 0..2_u8, 1..16_u8, cost, config)
        .prop_map(|(turn, verb, user, tiers, cost, config)| Step { turn, verb, user, tiers, cost, config });
    prop::collection::vec(step, 1..length).boxed()
}

/// Tiers and a trace over them.
pub fn any_trace(tiers: usize, length: usize) -> BoxedStrategy<(Vec<TierSpec>, Vec<Step>)> {
    prop::collection::vec(any_tier(), 1..=tiers)
        .prop_flat_map(move |tiers| {
            let periods =
                tiers.iter().flat_map(|tier| &tier.limits).map(|limit| limit.period().get()).collect();
            (Just(tiers), any_steps(length, periods))
        })
        .boxed()
}

/// Where the tiers of a request lie in a Cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slots {
    /// All are about one user, and lie in one slot.
    Shared,
    /// Each is about something else, and lies in a slot of its own: what one of them refuses, the others hold and return.
    Apart,
    /// The same, and nobody can tell: the clock only goes forward, and no number changes.
    Unnoticed,
}

/// Runs a trace through a store on a manual clock and through the model, and compares every field. Traces of different
/// `name` share no bucket.
///
/// # Errors
///
/// The first step at which they disagree.
pub async fn compare<S: Store>(
    name: &str,
    store: &S,
    clock: &Clock,
    tiers: &[TierSpec],
    steps: &[Step],
) -> Result<u64, TestCaseError> {
    compare_in(Slots::Shared, name, store, clock, tiers, steps).await
}

/// As [`compare`], with a say in where buckets lie.
///
/// # Errors
///
/// As [`compare`].
pub async fn compare_in<S: Store>(
    slots: Slots,
    name: &str,
    store: &S,
    clock: &Clock,
    tiers: &[TierSpec],
    steps: &[Step],
) -> Result<u64, TestCaseError> {
    let mut configurations: BTreeMap<u8, RuleSet> = BTreeMap::new();
    let mut model = Model::new();
    let mut config = 0_u8;
    let mut reservations: Vec<(ReservationId, Vec<model::Charge>)> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let turned = clock.now().as_micros().saturating_add(step.turn);
        clock.set(Timestamp::from_micros(turned.clamp(0, 4_000_000_000_000_000)));
        config ^= step.config;
        let mut request = Descriptor::new().with("user_id", format!("user {}", step.user));
        for tier in 0..tiers.len() {
            request.set(format!("of_tier_{tier}"), format!("{tier} of user {}", step.user));
        }
        let rules = configurations
            .entry(config & u8::MAX >> 8_usize.saturating_sub(tiers.len()))
            .or_insert_with(|| configuration(slots, name, tiers, config));
        // A reservation has one cost: that of the smallest tier.
        let costs = (0..).zip(rules.rules()).filter(|(tier, _)| step.tiers >> tier & 1 == 1);
        let costs = costs.filter_map(|(_, rule)| Some(cost(step, rule.limit()?)));
        let reserved = costs.min().unwrap_or(0);
        let mut rows: Tiers = (0..)
            .zip(rules.rules())
            .filter(|(tier, _)| step.tiers >> tier & 1 == 1)
            .map(|(tier, rule)| {
                let cost = match step.verb {
                    Verb::Reserve => reserved,
                    _ => cost(step, rule.limit().expect("every rule has a limit")),
                };
                rows::row(rules, tier, &request, cost)
            })
            .collect();
        let twins: Vec<model::Hit> =
            rows.iter().map(|row| twin(step.user, row, rules.rule(row.rule), &request)).collect();
        let at = u64::try_from(clock.now().as_micros()).expect("clamped");
        let op = match step.verb {
            Verb::Check | Verb::Reserve => Op::Charge,
            // What a settlement did shows in the numbers.
            Verb::Peek | Verb::Settle => Op::Peek,
            Verb::Refund => Op::Refund,
            Verb::Reset => Op::Reset,
        };
        if step.verb == Verb::Settle
            && let Some((id, charges)) = reservations.pop()
        {
            let reserved = charges[0].hit.cost;
            let actual = reserved * u64::from(step.cost.0) / 4 + u64::from(step.cost.1 / 2);
            let settled = store.settle(id, actual).await.expect("it was reserved");
            let unpaid = model.settle(at, &charges, actual);
            prop_assert_eq!((settled.reserved, settled.actual), (reserved, actual));
            prop_assert_eq!(settled.unpaid, unpaid, "settle {:?} with {} at {}", charges, actual, at);
            let again = store.settle(id, 0).await.expect("it was reserved");
            prop_assert_eq!(again, tollgate::Settled { already_settled: true, ..settled });
        }
        if step.verb == Verb::Reserve {
            let charges = model.charges(at, &twins);
            let id = rows::reserve(store, rules, &request, &mut rows, reserved).await;
            let id = id.expect("the store answers");
            prop_assert_eq!(id.is_some(), !charges.is_empty(), "reserve {} at {}", reserved, at);
            reservations.extend(id.map(|id| (id, charges)));
        } else {
            rows::run(store, op, rules, &request, &mut rows).await.expect("the store answers");
        }
        let expected = match step.verb {
            Verb::Check | Verb::Reserve => match slots {
                Slots::Shared | Slots::Unnoticed => model.check(at, &twins),
                Slots::Apart => model.check_apart(at, &twins),
            },
            Verb::Peek | Verb::Settle => model.peek(at, &twins),
            Verb::Refund => model.refund(at, &twins),
            Verb::Reset => {
                twins.iter().for_each(|twin| model.reset(&twin.key));
                model.refund(at, &twins)
            }
        };
        let actual: Vec<model::Verdict> = rows.iter().map(|row| plain(row.verdict())).collect();
        prop_assert_eq!(
            actual,
            expected,
            "step {} of {:?}: {:?} at {} with {:?}",
            number,
            steps,
            step,
            at,
            twins
        );
    }
    Ok(model.clock_steps)
}

/// The rules of a trace while each tier has the limit that its bit of `config` selects. A tier has one name under both of
/// its limits, so limits of one identity share their buckets.
fn configuration(slots: Slots, name: &str, tiers: &[TierSpec], config: u8) -> RuleSet {
    let rule = |(tier, spec): (usize, &TierSpec)| {
        let key = match slots {
            Slots::Shared => "user:{user_id}".to_owned(),
            Slots::Apart | Slots::Unnoticed => format!("{{of_tier_{tier}}}"),
        };
        let limit = &spec.limits[usize::from(config >> tier & 1)];
        let draft = Draft {
            name: Some(format!("{name}, tier {tier}")),
            key,
            mode: spec.shadow.then(|| "shadow".to_owned()),
            ..Draft::from(limit)
        };
        let rule = draft.build().expect("a valid rule");
        assert_eq!(rule.limit(), Some(limit), "a limit that is written down is the same limit");
        rule
    };
    RuleSet::new(tiers.iter().enumerate().map(rule).collect()).expect("tiers have different names")
}

fn cost(step: &Step, limit: &Limit) -> u64 {
    limit.capacity() / 8 * u64::from(step.cost.0) + u64::from(step.cost.1)
}

fn plain(verdict: &Verdict) -> model::Verdict {
    model::Verdict {
        allowed: verdict.allowed,
        limit: verdict.limit,
        remaining: verdict.remaining,
        retry_after: verdict.retry_after.map(Micros::get),
        reset_after: verdict.reset_after.get(),
        delay: verdict.delay.get(),
    }
}

/// The same row in the model's terms.
fn twin(user: u8, row: &Tier, rule: &Rule, request: &Descriptor<'_>) -> model::Hit {
    let algorithm = spec(rule.limit().expect("every rule has a limit"), rule.key(request));
    model::Hit {
        key: format!("tier {}, user {user}, {}", row.rule, kind(&algorithm)),
        spec: model::Spec { algorithm },
        cost: row.cost,
        shadow: !row.enforces(),
    }
}

/// What tells the buckets of a rule apart when its limit changes: the algorithm; length and phase of a window.
fn kind(algorithm: &model::Algorithm) -> String {
    match algorithm {
        model::Algorithm::TokenBucket { .. } => "token bucket".to_owned(),
        model::Algorithm::Interval { .. } => "interval".to_owned(),
        model::Algorithm::Leaky { .. } => "leaky".to_owned(),
        model::Algorithm::FixedWindow { phase: model::Phase::Spread { .. }, window_us, .. } => {
            format!("spread {window_us}")
        }
        model::Algorithm::FixedWindow { phase: model::Phase::Calendar { unit, time_zone }, .. } => {
            format!("{unit:?} in {time_zone}")
        }
        model::Algorithm::FixedWindow { window_us, phase, .. } => format!("fixed {window_us} {phase:?}"),
        model::Algorithm::SlidingLog { window_us, .. } => format!("log {window_us}"),
        model::Algorithm::SlidingCounter { window_us, phase, .. } => format!("counter {window_us} {phase:?}"),
    }
}

/// The limit's numbers, read from its notation and public accessors rather than from its internals.
fn spec(limit: &Limit, key: Key<'_>) -> model::Algorithm {
    let (text, capacity, period) = (limit.to_string(), limit.capacity(), limit.period().get());
    let count =
        || text.split(['/', ' ']).next().and_then(|count| count.parse().ok()).expect("a count comes first");
    match limit.algorithm() {
        Algorithm::TokenBucket(_) => {
            model::Algorithm::TokenBucket { rate: count(), period_us: period, capacity }
        }
        Algorithm::TokenBucketInterval(refill) => model::Algorithm::Interval {
            refill: count(),
            interval_us: period,
            capacity,
            aligned: refill.ticks() == Ticks::Aligned,
        },
        Algorithm::LeakyBucket { free, .. } => {
            model::Algorithm::Leaky { rate: count(), period_us: period, queue: capacity - 1, free: *free }
        }
        Algorithm::FixedWindow { limit, window, phase } => model::Algorithm::FixedWindow {
            limit: *limit,
            window_us: window.get(),
            phase: match phase {
                Phase::Epoch => model::Phase::Epoch,
                Phase::First => model::Phase::First,
                Phase::Spread => model::Phase::Spread { phase_us: key.spread(*window).get() },
                Phase::Calendar(calendar) => model::Phase::Calendar {
                    unit: match calendar.unit() {
                        CalendarUnit::Day => model::CalendarUnit::Day,
                        CalendarUnit::Week => model::CalendarUnit::Week,
                        CalendarUnit::Month => model::CalendarUnit::Month,
                    },
                    time_zone: calendar.time_zone().to_owned(),
                },
            },
        },
        Algorithm::SlidingWindowLog { limit, window } => {
            model::Algorithm::SlidingLog { limit: *limit, window_us: window.get() }
        }
        Algorithm::SlidingWindowCounter { limit, window, opens } => model::Algorithm::SlidingCounter {
            limit: *limit,
            window_us: window.get(),
            phase: if *opens == Opening::First { model::Phase::First } else { model::Phase::Epoch },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::scaled;

    #[test]
    fn the_number_of_cases_is_multiplied_or_divided_and_never_zero() {
        for (times, expected) in
            [("1", 60), ("100", 6_000), ("1/10", 6), ("3/2", 90), ("1/1000", 1), ("0", 1)]
        {
            assert_eq!(scaled(60, times), Some(expected), "{times}");
        }
        for times in ["", "a", "1/0", "1/", "0.1", "-1", "4294967295"] {
            assert_eq!(scaled(60, times), None, "{times}");
        }
    }
}
