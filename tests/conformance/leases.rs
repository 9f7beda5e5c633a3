//! The ledger in Redis agrees with `core`: random leases, holds, charges, reservations, refunds and resets on one bucket, every
//! answer compared.

use std::time::Duration;

use tollgate::core::algorithm::{Answer, Demand, State, Window};
use tollgate::core::lease::{Grant, LeaseCall, Ledger, ParentBucket, Terms, Wants, Written};
use tollgate::core::limit::{Algorithm, Calendar, CalendarUnit, Opening, Phase, Ticks};
use tollgate::core::{Holder, Verdict};
use tollgate::{Clock, Limit, Micros, Op, Outcome, RedisStore, Store as _, Tier, Timestamp};
use tollgate_tests::random::Random;
use tollgate_tests::redis_server::RedisServer;
use tollgate_tests::rows::OneBucket;
use tollgate_tests::trace::cases;

const TRACES: u32 = 250;
const STEPS: u64 = 60;
/// That of holds: the store's deadline, and no more than the longest.
const HOLD_TIME: Micros = Micros::new(2_000_000);

/// What the store keeps, by the book.
struct Book {
    window: Window,
    kept: Option<(State, Option<Ledger>)>,
}

impl Book {
    fn of(bucket: &OneBucket) -> Self {
        let limit = bucket.rule().limit().expect("a rule with a limit");
        let window = match limit.algorithm() {
            Algorithm::FixedWindow { phase: Phase::Spread, window, .. } => {
                Window::Spread(bucket.rule().key(bucket.request()).spread(*window))
            }
            _ => Window::Own,
        };
        Book { window, kept: None }
    }

    fn open<'l>(&self, limit: &'l Limit, now: Timestamp) -> ParentBucket<'l> {
        let (state, ledger) = self.kept.clone().unzip();
        ParentBucket::open(limit, state, ledger.flatten(), now, self.window)
    }

    fn write(&mut self, written: Written) {
        if let Written::All(kept) = written {
            self.kept = kept;
        }
    }

    /// The verdict, and the instant from which time repays the charge.
    fn charge(&mut self, limit: &Limit, cost: u64, now: Timestamp) -> (Verdict, Timestamp) {
        let mut bucket = self.open(limit, now);
        bucket.note_exact_demand(cost);
        let answer = bucket.ask(Demand { cost, max_wait: Micros::MAX });
        if answer.allowed() {
            bucket.take(cost);
        }
        let verdict = bucket.verdict(answer).resolved(Some(limit));
        let since = bucket.repaid_from(cost);
        if cost > 0 {
            self.write(bucket.written());
        }
        (verdict, since)
    }

    fn refund(&mut self, limit: &Limit, cost: u64, now: Timestamp) -> Verdict {
        let mut bucket = self.open(limit, now);
        let refunds = self.kept.is_some() && cost > 0;
        if refunds {
            bucket.refund(cost);
        }
        let verdict = bucket.verdict(Answer::Pass { delay: Micros::ZERO }).resolved(Some(limit));
        if refunds {
            self.write(bucket.written());
        }
        verdict
    }

    /// Settles a charge with what it took; answers what did not fit.
    fn settle(
        &mut self,
        limit: &Limit,
        (charged, actual): (u64, u64),
        since: Timestamp,
        now: Timestamp,
    ) -> u64 {
        let mut bucket = self.open(limit, now);
        if actual <= charged {
            if self.kept.is_some() && bucket.give_back(charged - actual, charged, since) {
                self.write(bucket.written());
            }
            return 0;
        }
        let fits = (actual - charged).min(bucket.remaining());
        if fits > 0 {
            bucket.take(fits);
            self.write(bucket.written());
        }
        actual - charged - fits
    }

    /// Holds a cost: the verdict if it is spent, and its boundary; or the refusal.
    fn hold(&mut self, limit: &Limit, cost: u64, now: Timestamp) -> (Verdict, Option<Timestamp>) {
        let mut bucket = self.open(limit, now);
        bucket.note_exact_demand(cost);
        let answer = bucket.ask(Demand { cost, max_wait: Micros::MAX });
        let boundary = (answer.allowed() && cost > 0).then(|| bucket.hold(cost, HOLD_TIME).expect("it fits"));
        let mut spent = bucket.clone();
        boundary.into_iter().for_each(|boundary| _ = spent.spend(cost, boundary));
        if cost > 0 {
            self.write(bucket.written());
        }
        (spent.verdict(answer).resolved(Some(limit)), boundary)
    }

    fn finish(&mut self, limit: &Limit, cost: u64, boundary: Timestamp, passes: bool, now: Timestamp) {
        let mut bucket = self.open(limit, now);
        let was_held = if passes { bucket.spend(cost, boundary) } else { bucket.release(cost, boundary) };
        if was_held {
            self.write(bucket.written());
        }
    }

    fn lend(&mut self, limit: &Limit, call: &LeaseCall, now: Timestamp) -> Grant {
        let mut bucket = self.open(limit, now);
        let grant = bucket.lend(call);
        self.write(bucket.written());
        grant
    }
}

/// The same limit with other numbers, as after a change of its rule.
fn changed(limit: &Limit, random: &mut Random) -> Limit {
    let other = random.between(1, 90).unsigned_abs();
    let period = limit.period();
    match limit.algorithm() {
        Algorithm::TokenBucket(_) => {
            let period = random.choose(&[period, Micros::new(300_000), Micros::new(1_000_000)]);
            Limit::token_bucket(random.between(1, 200).unsigned_abs(), period, other)
        }
        Algorithm::TokenBucketInterval(refill) => {
            Limit::interval(3, refill.interval(), other, refill.ticks())
        }
        Algorithm::FixedWindow { window, phase, .. } => Limit::fixed_window(other, *window, phase.clone()),
        Algorithm::SlidingWindowLog { window, .. } => Limit::sliding_window_log(other, *window),
        Algorithm::SlidingWindowCounter { opens, .. } => {
            let window = random.choose(&[period, Micros::new(700_000)]);
            Limit::sliding_window_counter(other, window, *opens)
        }
        Algorithm::LeakyBucket { .. } => unreachable!("none is lent"),
    }
    .expect("in range")
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

async fn store_at(server: &RedisServer, clock: &Clock) -> RedisStore {
    let store = RedisStore::builder(&server.url()).clock(clock.clone()).deadline(Duration::from_secs(20));
    store.connect().await.expect("a URL")
}

#[tokio::test]
async fn lending_in_redis_agrees_with_core_on_every_step() {
    let server = RedisServer::start().await;
    let clock = Clock::manual(Timestamp::from_micros(0));
    let store = store_at(&server, &clock).await;
    let seeds = match std::env::var("LEASE_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("a number");
            seed..seed + 1
        }
        Err(_) => 0..u64::from(cases(TRACES)),
    };
    let count = seeds.end - seeds.start;
    let mut granted = 0;
    for seed in seeds {
        granted += trace(seed, &store, &clock).await;
    }
    assert!(granted > 5 * count, "{granted} leases in {count} traces");
}

/// Runs one trace; answers how many leases were granted.
async fn trace(seed: u64, store: &RedisStore, clock: &Clock) -> u64 {
    let mut random = Random::new(seed);
    let first = any_limit(&mut random);
    // Nodes that have not heard of a change yet go on with the old limit.
    let limits = [changed(&first, &mut random), first];
    let changes = random.choose(&[0, 0, 100, 400]);
    let name = format!("trace {seed}");
    let buckets = limits.each_ref().map(|limit| OneBucket::new(limit, &name));
    // A changed limit of the same identity has the same bucket; a counter of another window has a bucket of its own.
    let same = limits[0].identity() == limits[1].identity();
    let mut books = buckets.each_ref().map(Book::of);
    let mut which = 1;
    let mut now = 1_700_000_000_000_000 + random.between(0, 86_400_000_000);
    // Boundaries that calls may name: of leases, of others, and past ones.
    let mut boundaries: Vec<Option<Timestamp>> = vec![None];
    // Reservations and holds, each with the limit that it was made under.
    let mut reservations = Vec::new();
    let mut holds: Vec<(usize, Tier, Timestamp)> = Vec::new();
    let mut granted = 0;
    for step in 0..STEPS {
        now += match random.next() % 40 {
            0 => -random.choose(&[1, 400_000, 1_000_000, 1_000_001, 7_000_000]),
            1 => random.between(0, 3_000_000),
            2..=9 => random.between(0, 300_000),
            _ => random.between(0, 30_000),
        };
        let at = Timestamp::from_micros(now);
        clock.set(at);
        if random.permille(changes) {
            which = random.below(2);
        }
        let (limit, bucket) = (&limits[which], &buckets[which]);
        let book = &mut books[if same { 0 } else { which }];
        let cost = random.between(0, limit.capacity().min(20).cast_signed() + 2).unsigned_abs();
        let context = format!("{limit} {:?}, LEASE_SEED={seed}, step {step}", limit.algorithm());
        let run = async |op, cost| {
            let row = bucket.run(store, op, cost).await.unwrap_or_else(|error| panic!("{context}: {error}"));
            row.verdict().resolved(Some(limit))
        };
        match random.next() % 15 {
            0..=5 => {
                let newest = boundaries.len().saturating_sub(3);
                let boundary = boundaries[newest..][random.below(boundaries.len() - newest)];
                let units = Terms::of(limit).units;
                let call = LeaseCall {
                    boundary,
                    returned: random.choose(&[0, 0, 2, 100]) * units + random.choose(&[0, 0, 1]),
                    rate: random.choose(&[0, 0, 5_000, 100_000]),
                    has: random.choose(&[0, 1, 10, 100_000]) * units,
                    demand: random.choose(&[0, 1, 3, 20, 500]),
                    own_demand: random.choose(&[0, 1, 20, 500, 700]),
                    wants: random.choose(&[Wants::Lease, Wants::Lease, Wants::More, Wants::Nothing]),
                    lease_time: random.choose(&[
                        Micros::new(100_000),
                        Micros::new(100_000),
                        Micros::new(370_001),
                    ]),
                };
                let expected = book.lend(limit, &call, at);
                let answer = store
                    .lend(bucket.rule(), bucket.request(), &call)
                    .await
                    .unwrap_or_else(|error| panic!("{context} {call:?}: {error}"));
                assert_eq!(answer, expected, "{context} {call:?}");
                boundaries.extend(answer.lease.map(|lease| Some(lease.ends)));
                granted += u64::from(answer.lease.is_some());
            }
            6 | 7 => {
                let verdict = run(Op::Charge, cost).await;
                let (expected, _) = book.charge(limit, cost, at);
                assert_eq!(verdict, expected, "charge of {cost}, {context}");
            }
            9 => {
                let reserved = bucket.reserve(store, cost).await;
                let (row, id) = reserved.unwrap_or_else(|error| panic!("{context}: {error}"));
                let (expected, since) = book.charge(limit, cost, at);
                assert_eq!(row.verdict().resolved(Some(limit)), expected, "reservation of {cost}, {context}");
                assert_eq!(id.is_some(), expected.allowed && cost > 0, "reservation of {cost}, {context}");
                reservations.extend(id.map(|id| (id, which, cost, since)));
            }
            10 if !reservations.is_empty() => {
                let (id, which, cost, since) = reservations.swap_remove(random.below(reservations.len()));
                let actual = random.between(0, 2 * cost.cast_signed() + 1).unsigned_abs();
                let settled = store.settle(id, actual).await;
                let settled = settled.unwrap_or_else(|error| panic!("{context}: {error}"));
                let book = &mut books[if same { 0 } else { which }];
                let unpaid = book.settle(&limits[which], (cost, actual), since, at);
                assert_eq!(settled.unpaid, unpaid, "{cost} settled with {actual}, {context}");
            }
            11 | 12 => {
                let row = bucket.hold(store, cost).await;
                let (expected, boundary) = book.hold(limit, cost, at);
                let (verdict, held_until) = match row.outcome {
                    Outcome::Held { if_passed, holder: Holder::Hold(boundary) } => {
                        (if_passed, Some(boundary))
                    }
                    _ => (*row.verdict(), None),
                };
                assert_eq!(held_until, boundary, "hold of {cost}, {context}");
                assert_eq!(verdict.resolved(Some(limit)), expected, "hold of {cost}, {context}");
                holds.extend(boundary.map(|boundary| (which, row, boundary)));
                boundaries.extend(boundary.map(Some));
            }
            13 if !holds.is_empty() => {
                let (which, row, boundary) = holds.swap_remove(random.below(holds.len()));
                let passes = random.permille(500);
                buckets[which].finish(store, row, passes);
                let book = &mut books[if same { 0 } else { which }];
                book.finish(&limits[which], row.cost, boundary, passes, at);
            }
            8 => {
                let verdict = run(Op::Refund, cost).await;
                assert_eq!(verdict, book.refund(limit, cost, at), "refund of {cost}, {context}");
            }
            _ if random.permille(300) => {
                run(Op::Reset, 0).await;
                book.kept = book.kept.is_some().then(|| book.open(limit, at).reset()).flatten();
            }
            _ => {
                let verdict = run(Op::Peek, cost).await;
                let bucket = book.open(limit, at);
                let answer = bucket.ask(Demand { cost, max_wait: Micros::MAX });
                let expected = bucket.verdict(answer).resolved(Some(limit));
                assert_eq!(verdict, expected, "peek at {cost}, {context}");
            }
        }
    }
    granted
}

/// On Redis' own clock: with injected time no key expires soon.
#[tokio::test]
async fn a_key_does_not_expire_before_what_was_lent_under_a_larger_limit_is_earned_back() {
    let server = RedisServer::start().await;
    let store = RedisStore::builder(&server.url()).deadline(Duration::from_secs(5)).connect().await;
    let store = store.expect("a store");
    let pairs = [["10/s burst 1000", "10/s burst 5"], ["10 every 1s burst 1000", "10 every 1s burst 10"]];
    for (number, texts) in pairs.into_iter().enumerate() {
        let [large, small] = texts.map(|text| text.parse::<Limit>().expect("a limit"));
        let name = format!("key {number}");
        let [large, small] = [large, small].map(|limit| OneBucket::new(&limit, &name));
        let call = LeaseCall {
            boundary: None,
            returned: 0,
            rate: 0,
            has: 0,
            demand: 400,
            own_demand: 400,
            wants: Wants::Lease,
            lease_time: Micros::new(2_000_000),
        };
        let grant = store.lend(large.rule(), large.request(), &call).await.expect("an answer");
        let units = Terms::of(large.rule().limit().expect("a limit")).units;
        let capacity = grant.lease.expect("a lease").capacity / units;
        assert!((200..=1_000).contains(&capacity), "{grant:?}");
        small.run(&store, Op::Refund, 1).await.expect("an answer");
        let key = String::from_utf8(store.key(large.rule(), large.request())).expect("text");
        let ttl = server.command(&["PTTL", &key]).await;
        let ttl: i64 = redis::from_redis_value(ttl).expect("a number");
        // The lease ends within 3 s, and then its capacity takes a second for ten tokens.
        let earned = 100 * capacity.cast_signed();
        assert!((earned..=earned + 12_000).contains(&ttl), "{texts:?}: {capacity} tokens, {ttl} ms");
    }
}
