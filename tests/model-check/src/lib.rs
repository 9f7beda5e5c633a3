//! The memory store's locking, checked: ordered shard locks, the overflow bucket and its flag.
//!
//! Shuttle runs each body thousands of times and decides at every lock and atomic which thread goes on. A
//! deadlock, a lost update or one admission too many fails the run and prints the schedule that led there.

#![cfg(test)]

use shuttle::sync::Arc;
use shuttle::thread;
use tollgate::core::{Draft, Enforcement, RuleIndex};
use tollgate::{
    Bounds, Call, Clock, Descriptor, MemoryStore, Op, RuleSet, Store as _, Tier, Tiers, Timestamp, key_seeds,
};

fn check(body: impl Fn() + Send + Sync + 'static) {
    let iterations = std::env::var("SHUTTLE_ITERATIONS").ok().and_then(|text| text.parse().ok());
    let iterations = iterations.unwrap_or(2_000);
    let body = std::sync::Arc::new(body);
    let again = std::sync::Arc::clone(&body);
    shuttle::check_random(move || body(), iterations);
    shuttle::check_pct(move || again(), iterations, 3);
}

/// A store of a few shards, and rules over one attribute.
struct World {
    store: MemoryStore,
    rules: RuleSet,
}

impl World {
    fn new(limits: &[&str], buckets: usize, shards: usize) -> Arc<Self> {
        let clock = Clock::manual(Timestamp::from_micros(0));
        let rule = |(rule, limit): (usize, &&str)| Draft {
            name: Some(format!("rule {rule}")),
            key: "user:{user_id}".to_owned(),
            limit: Some((*limit).to_owned()),
            ..Draft::default()
        };
        let rules = limits.iter().enumerate().map(|limit| rule(limit).build().unwrap());
        Arc::new(World {
            store: MemoryStore::sharded(clock, Bounds { buckets, bytes: 1 << 20 }, shards),
            rules: RuleSet::new(rules.collect()).unwrap(),
        })
    }

    /// Charges one token of each of these rules for a user.
    fn charge(&self, user: &str, rules: &[RuleIndex]) -> bool {
        self.run(Op::Charge, user, rules).iter().all(|tier| tier.verdict().allowed)
    }

    fn remaining(&self, user: &str, rule: RuleIndex) -> u64 {
        self.run(Op::Peek, user, &[rule])[0].verdict().remaining
    }

    fn run(&self, op: Op, user: &str, rules: &[RuleIndex]) -> Tiers {
        let request = Descriptor::new().with("user_id", user.to_owned());
        let row = |rule: &RuleIndex| {
            let hash = key_seeds().hash(self.rules.rule(*rule).key(&request));
            Tier::new(*rule, Enforcement::Enforce, 1, hash)
        };
        let mut tiers: Tiers = rules.iter().map(row).collect();
        let mut call = Call::new(op, &self.rules, &request, &mut tiers);
        self.store.run_now(&mut call).expect("a store in memory answers immediately");
        let passes = !call.refuses();
        self.store.finish(&mut call, passes);
        tiers
    }
}

/// Runs one thread per list of charges and answers how many were admitted in all.
fn race(world: &Arc<World>, threads: Vec<Vec<(&'static str, &'static [RuleIndex])>>) -> usize {
    let threads: Vec<_> = threads
        .into_iter()
        .map(|charges| {
            let world = Arc::clone(world);
            thread::spawn(move || charges.iter().filter(|(user, rules)| world.charge(user, rules)).count())
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).sum()
}

#[test]
fn threads_on_one_key_admit_exactly_the_capacity() {
    check(|| {
        let world = World::new(&["3/h"], 16, 2);
        let each = vec![("a", &[0][..]); 2];
        assert_eq!(race(&world, vec![each.clone(), each.clone(), each]), 3);
    });
}

#[test]
fn tiers_in_opposite_orders_neither_deadlock_nor_charge_by_halves() {
    check(|| {
        let world = World::new(&["9/h", "2/h", "9/h"], 16, 4);
        let admitted = race(&world, vec![
            vec![("a", &[0, 1, 2][..]), ("a", &[2, 1, 0])],
            vec![("a", &[2, 0, 1][..]), ("a", &[1, 2, 0])],
            vec![("a", &[1, 0, 2][..])],
        ]);
        assert_eq!(admitted, 2);
        assert_eq!([0, 1, 2].map(|rule| world.remaining("a", rule)), [7, 0, 7]);
    });
}

#[test]
fn keys_without_room_never_get_more_than_one_bucket_together() {
    check(|| {
        // Two shards with room for one bucket each: at most two keys have a place of their own.
        let world = World::new(&["2/h"], 2, 2);
        let admitted = race(&world, vec![
            vec![("a", &[0][..]), ("b", &[0]), ("a", &[0])],
            vec![("c", &[0][..]), ("d", &[0]), ("c", &[0])],
            vec![("e", &[0][..]), ("f", &[0])],
        ]);
        assert!(admitted <= 3 * 2, "{admitted} admitted by two buckets and the overflow bucket");
    });
}

#[test]
fn requests_over_two_shards_without_room_neither_deadlock_nor_exceed_the_limit() {
    check(|| {
        // Which keys share a shard depends on the seeds of the process: several users cover both cases.
        let world = World::new(&["1/h", "9/h"], 2, 2);
        let first = world.charge("x", &[0, 1]);
        let each = |user| vec![(user, &[0, 1][..])];
        let admitted = usize::from(first) + race(&world, vec![each("a"), each("b"), each("c")]);
        assert!(admitted <= 2 + 1, "{admitted} admitted by two buckets and the overflow bucket");
    });
}

#[test]
fn a_limited_key_is_never_handed_a_fresh_quota() {
    check(|| {
        let world = World::new(&["1/h"], 2, 2);
        let admitted_a = Arc::new(shuttle::sync::Mutex::new(0));
        let threads: Vec<_> = [["a", "b"], ["b", "a"], ["c", "a"]]
            .into_iter()
            .map(|users| {
                let (world, admitted_a) = (Arc::clone(&world), Arc::clone(&admitted_a));
                thread::spawn(move || {
                    for user in users {
                        let admitted = world.charge(user, &[0]);
                        *admitted_a.lock().unwrap() += usize::from(admitted && user == "a");
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(*admitted_a.lock().unwrap() <= 1);
    });
}
