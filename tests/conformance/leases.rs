//! Lending in Redis agrees with `core`: random calls, charges, refunds and resets on one bucket, every answer compared.

use std::time::Duration;

use tollgate::core::algorithm::{Answer, Demand, State, Window};
use tollgate::core::lease::{Call, LeasedBucket, Ledger, NodeId};
use tollgate::core::limit::{Calendar, CalendarUnit, Opening, Phase, Ticks};
use tollgate::core::{Enforcement, Hit, Space, Verdict, Verdicts};
use tollgate::{Clock, Limit, Micros, RedisStore, Store as _, Timestamp};
use tollgate_tests::random::Random;
use tollgate_tests::redis_server::RedisServer;
use tollgate_tests::trace::times;

const TRACES: u64 = 250;
const STEPS: u64 = 60;

/// What the store keeps, by the book.
struct Book {
    limit: Limit,
    window: Window,
    kept: Option<(State, Ledger)>,
}

impl Book {
    fn open(&self, now: Timestamp) -> LeasedBucket<'_> {
        let (state, ledger) = match self.kept.clone() {
            Some((state, ledger)) => (Some(state), ledger),
            None => (None, Ledger::default()),
        };
        LeasedBucket::open(&self.limit, state, ledger, now, self.window)
    }

    fn charge(&mut self, cost: u64, now: Timestamp) -> Verdict {
        let mut bucket = self.open(now);
        let answer = bucket.ask(Demand { cost, patience: Micros::MAX });
        if answer.allowed() {
            bucket.take(cost);
        }
        let (verdict, stepped) = (bucket.verdict(answer), bucket.stepped());
        if answer.allowed() && cost > 0 {
            self.kept = bucket.close();
        } else if stepped && cost > 0 {
            self.kept = Some(bucket.close_shifted());
        }
        verdict
    }

    fn refund(&mut self, cost: u64, now: Timestamp) -> Verdict {
        let mut bucket = self.open(now);
        if self.kept.is_some() && cost > 0 {
            bucket.refund(cost);
            let verdict = bucket.verdict(Answer::Pass { delay: Micros::ZERO });
            self.kept = bucket.close();
            return verdict;
        }
        bucket.verdict(Answer::Pass { delay: Micros::ZERO })
    }
}

fn any_limit(random: &mut Random) -> Limit {
    let second = Micros::new(1_000_000);
    let small = random.between(1, 60).unsigned_abs();
    let berlin = || Calendar::new(CalendarUnit::Day, "Europe/Berlin").expect("a zone");
    match random.next() % 11 {
        0 => Limit::new(small, second),
        1 => Limit::token_bucket(7, Micros::new(300_000), small),
        2 => Limit::token_bucket(1_000, second, 100_000),
        3 => Limit::interval(3, Micros::new(70_000), small, Ticks::FromFirstTake),
        4 => Limit::interval(5, second, small, Ticks::Aligned),
        5 => Limit::fixed_window(small, Micros::new(400_000), Phase::Epoch),
        6 => Limit::fixed_window(
            small,
            second,
            if random.permille(500) { Phase::First } else { Phase::Spread },
        ),
        7 => Limit::fixed_window(small, Micros::new(86_400_000_000), Phase::Calendar(berlin())),
        8 => Limit::sliding_window_log(small, Micros::new(500_000)),
        9 => Limit::sliding_window_counter(small, second, Opening::Epoch),
        _ => Limit::sliding_window_counter(small, Micros::new(300_000), Opening::First),
    }
    .expect("in range")
}

#[tokio::test]
async fn lending_in_redis_agrees_with_core_on_every_step() {
    let server = RedisServer::start().await;
    let clock = Clock::manual(Timestamp::from_micros(0));
    let store = RedisStore::builder(&server.url())
        .clock(clock.clone())
        .deadline(Duration::from_secs(20))
        .connect()
        .await
        .expect("a URL");
    let seeds = match std::env::var("LEASE_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("a number");
            seed..seed + 1
        }
        Err(_) => 0..TRACES * u64::from(times()),
    };
    for seed in seeds {
        trace(seed, &store, &clock).await;
    }
}

async fn trace(seed: u64, store: &RedisStore, clock: &Clock) {
    let mut random = Random::new(seed);
    let limit = any_limit(&mut random);
    let space = Space::ad_hoc(limit.algorithm_name());
    let name = format!("trace {seed}");
    let hit = |cost| Hit {
        key: space.named(&name),
        limit: &limit,
        demand: Demand { cost, patience: Micros::MAX },
        enforcement: Enforcement::Enforce,
    };
    let window = match limit.algorithm() {
        tollgate::core::limit::Algorithm::FixedWindow { phase: Phase::Spread, window, .. } => {
            Window::Spread(hit(0).key.spread(*window))
        }
        _ => Window::Own,
    };
    let mut book = Book { limit: limit.clone(), window, kept: None };
    let mut now = 1_700_000_000_000_000 + random.between(0, 86_400_000_000);
    let mut sequence = 0;
    for step in 0..STEPS {
        now += match random.next() % 40 {
            0 => -random.choose(&[1, 400_000, 1_000_000, 1_000_001, 7_000_000]),
            1 => random.between(0, 3_000_000),
            2..=9 => random.between(0, 300_000),
            _ => random.between(0, 30_000),
        };
        let at = Timestamp::from_micros(now);
        clock.set(at);
        let cost = random.between(0, limit.capacity().min(20).cast_signed() + 2).unsigned_abs();
        let context = format!("{limit}, LEASE_SEED={seed}, step {step}");
        let mut verdicts = Verdicts::new();
        match random.next() % 10 {
            0..=5 => {
                sequence += 1;
                let stale = if random.permille(100) { random.next() % 3 } else { 0 };
                let call = Call {
                    node: NodeId(random.next() % 4),
                    sequence: u64::saturating_sub(sequence, stale),
                    left: random.choose(&[0, 0, 1, 3, 10]),
                    returned: random.choose(&[0, 0, 2, 100]),
                    least: random.choose(&[0, 1, cost]),
                    want: random.choose(&[0, 1, 5, 50, 100_000]),
                    term: random.choose(&[Micros::new(500_000), Micros::new(50_000)]),
                };
                let mut bucket = book.open(at);
                let expected = bucket.lend(&call).map(|loan| {
                    let answer = if loan.granted >= call.least {
                        Answer::Pass { delay: Micros::ZERO }
                    } else {
                        bucket.ask(Demand { cost: call.least, patience: Micros::MAX })
                    };
                    (loan, bucket.verdict(answer))
                });
                let changed = expected.is_some()
                    && bucket.ledger().leases().iter().any(|lease| lease.node == call.node);
                if changed {
                    book.kept = bucket.close();
                }
                let answer = store
                    .lend(&hit(call.least), &call)
                    .await
                    .unwrap_or_else(|error| panic!("{context} {call:?}: {error}"));
                assert_eq!(answer, expected, "{context} {call:?}");
            }
            6 | 7 => {
                store
                    .charge(&[hit(cost)], &mut verdicts)
                    .await
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                assert_eq!(verdicts[0], book.charge(cost, at), "charge of {cost}, {context}");
            }
            8 => {
                store
                    .refund(&[hit(cost)], &mut verdicts)
                    .await
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                assert_eq!(verdicts[0], book.refund(cost, at), "refund of {cost}, {context}");
            }
            _ if random.permille(300) => {
                store
                    .reset(&[hit(0)], &mut verdicts)
                    .await
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                book.kept = book.open(at).reset(at, window);
            }
            _ => {
                store
                    .peek(&[hit(cost)], &mut verdicts)
                    .await
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                let bucket = book.open(at);
                let answer = bucket.ask(Demand { cost, patience: Micros::MAX });
                assert_eq!(verdicts[0], bucket.verdict(answer), "peek at {cost}, {context}");
            }
        }
    }
}
