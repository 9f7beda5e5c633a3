//! A Cluster that loses nodes, moves slots and comes apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tollgate::{Clock, Descriptor, Gate, Limiter, Micros, RedisStore, StoreError, rules};
use tollgate_tests::fault_proxy::Mode;
use tollgate_tests::poll;
use tollgate_tests::redis_cluster::{RedisCluster, Replicas};
use tollgate_tests::redis_server::text;
use tollgate_tests::rows::{OneBucket, Stored as _};

use crate::node::{CAPACITY, RECOVERED_WITHIN, UNHURRIED, USUAL, listen_to_logs, logged, slow_limit};

/// A gate of [`CAPACITY`] over a Cluster.
struct Fleet {
    gate: Arc<Gate<RedisStore>>,
    cluster: RedisCluster,
}

impl Fleet {
    async fn start(replicas: Replicas, deadline: Duration) -> Self {
        listen_to_logs();
        let cluster = RedisCluster::start(replicas).await;
        let store = RedisStore::builder(&cluster.url()).deadline(deadline).connect().await.unwrap();
        poll::until("every node to be connected to", async || store.ready().await.ok()).await;
        Fleet { gate: Arc::new(Gate::new(slow_limit(), store)), cluster }
    }

    /// A name whose bucket was given to a primary.
    async fn name(&self, primary: usize) -> String {
        for number in 0.. {
            let name = format!("name {number}");
            let bucket = OneBucket::new(&slow_limit(), &name);
            let key = String::from_utf8(self.gate.store().key(bucket.rule(), bucket.request())).unwrap();
            let slot = self.cluster.nodes[0].server.command(&["CLUSTER", "KEYSLOT", &key]).await;
            if self.cluster.primary_of(redis::from_redis_value(slot).unwrap()) == primary {
                return name;
            }
        }
        unreachable!("a third of all names are there")
    }

    async fn recovered(&self, name: &str) -> Duration {
        let since = Instant::now();
        poll::within(RECOVERED_WITHIN, "the slot to be served again", async || {
            self.gate.allow(name).await.stored().ok()
        })
        .await;
        since.elapsed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loss_of_a_primary_is_followed_and_the_other_shards_never_notice() {
    let mut fleet = Fleet::start(Replicas::One, UNHURRIED).await;
    let (lost, other) = (fleet.name(0).await, fleet.name(1).await);
    fleet.gate.allow(&lost).await.stored().unwrap();
    fleet.cluster.nodes[0].server.kill();
    let killed = Instant::now();
    let mut elsewhere: u64 = 0;
    poll::within(Duration::from_secs(30), "the replica to be promoted", async || {
        assert!(fleet.gate.allow(&other).await.stored().is_ok(), "another shard failed");
        elsewhere += 1;
        fleet.cluster.nodes[3].is_primary().await.then_some(())
    })
    .await;
    let promoted = killed.elapsed();
    let followed = fleet.recovered(&lost).await;
    assert!(fleet.gate.store().stats().stranded == 0);
    println!(
        "promoted {promoted:?} after the kill, followed {followed:?} later, {elsewhere} decisions elsewhere meanwhile"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_shard_that_is_silent_degrades_only_its_own_keys() {
    let fleet = Fleet::start(Replicas::None, USUAL).await;
    let (lost, other) = (fleet.name(0).await, fleet.name(1).await);
    fleet.cluster.nodes[0].proxy.set(Mode::Blackhole).await;
    let mut paid = 0;
    poll::until("the shard's breaker to open", async || {
        paid += 1;
        let asked = Instant::now();
        assert!(fleet.gate.allow(&lost).await.stored().is_err());
        let waited = asked.elapsed();
        // The others are asked in between, and answered.
        poll::until("the other shard", async || fleet.gate.allow(&other).await.stored().ok()).await;
        (waited < USUAL / 10).then_some(())
    })
    .await;
    assert!(paid <= 60, "{paid} requests waited for the silent shard");
    let asked = Instant::now();
    for _ in 0..200 {
        assert!(fleet.gate.allow(&lost).await.stored().is_err());
    }
    assert!(asked.elapsed() < USUAL * 40, "200 decisions took {:?}", asked.elapsed());
    fleet.cluster.nodes[0].proxy.set(Mode::Pass).await;
    let recovered = fleet.recovered(&lost).await;
    println!("{paid} requests paid the deadline, recovered {recovered:?} after it healed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_1000_slots_under_load_fails_no_decision_and_charges_none_twice() {
    let cluster = RedisCluster::start(Replicas::None).await;
    let limiter = Arc::new(two_tiers(&cluster).await);
    move_under_load(&cluster, &limiter, 1_000, 2).await;
}

/// A redirection then names a node that the store has never heard of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_slots_to_a_new_empty_node_under_load_delays_no_decision_beyond_its_deadline() {
    let mut cluster = RedisCluster::start(Replicas::None).await;
    let limiter = Arc::new(two_tiers(&cluster).await);
    let new = cluster.join().await;
    let slowest = move_under_load(&cluster, &limiter, 300, new).await;
    assert!(slowest <= UNHURRIED, "a decision took {slowest:?}");
}

/// Moves the first slots to another node while users whose buckets are in them are decided. How long the slowest decision
/// took.
#[expect(clippy::print_stdout, reason = "figures of a test")]
async fn move_under_load(
    cluster: &RedisCluster,
    limiter: &Arc<Limiter<RedisStore>>,
    moved: u16,
    to: usize,
) -> Duration {
    const PER_SECOND: u64 = 2_000;
    let users = Arc::new(users_below(moved, limiter, cluster).await);
    let admitted: Arc<Vec<AtomicU64>> = Arc::new(users.iter().map(|_| AtomicU64::new(0)).collect());
    let done = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..8_u64)
        .map(|worker| {
            let (limiter, users) = (limiter.clone(), users.clone());
            let (admitted, done) = (admitted.clone(), done.clone());
            tokio::spawn(async move {
                let clock = Clock::system();
                let start = clock.now();
                let (mut decided, mut slowest) = (0_u64, Duration::ZERO);
                while !done.load(Ordering::Relaxed) {
                    // A pace, nothing that is waited for.
                    let due = start.after(Micros::new(decided * 8 * 1_000_000 / PER_SECOND));
                    let wait = due.as_micros() - clock.now().as_micros();
                    clock.sleep(Micros::new(u64::try_from(wait).unwrap_or(0))).await;
                    let place = usize::try_from(decided * 8 + worker).unwrap() % admitted.len();
                    let request = Descriptor::new().with("user_id", &*users[place]);
                    let asked = Instant::now();
                    let answer = limiter.check(&request).await;
                    slowest = slowest.max(asked.elapsed());
                    assert!(answer.allowed() && answer.degraded().is_none(), "{answer:?}");
                    admitted[place].fetch_add(1, Ordering::Relaxed);
                    decided += 1;
                }
                (decided, slowest)
            })
        })
        .collect();
    let started = Instant::now();
    cluster.migrate(0..moved, 0, to).await;
    let took = started.elapsed();
    done.store(true, Ordering::Relaxed);
    let (mut decided, mut slowest) = (0, Duration::ZERO);
    for worker in workers {
        let (count, longest) = worker.await.unwrap();
        (decided, slowest) = (decided + count, slowest.max(longest));
    }
    for (user, admitted) in users.iter().zip(admitted.iter()) {
        let answer = limiter.request(&Descriptor::new().with("user_id", &**user)).peek().await;
        let taken: Vec<u64> =
            answer.tiers().iter().map(|tier| tier.verdict().limit - tier.verdict().remaining).collect();
        assert_eq!(taken, [admitted.load(Ordering::Relaxed); 2], "user {user}");
    }
    let redirected = redirections(cluster).await;
    assert!(redirected.contains("MOVED"), "{redirected}");
    println!(
        "{moved} slots moved in {took:?} under {decided} decisions: 0 failed, 0 charged twice, the slowest took {slowest:?}; {redirected}"
    );
    slowest
}

/// Two buckets of one user lie in one slot: while it moves, one may be here and the other there.
async fn two_tiers(cluster: &RedisCluster) -> Limiter<RedisStore> {
    let store = RedisStore::builder(&cluster.url()).deadline(UNHURRIED).connect().await.unwrap();
    store.ready().await.unwrap();
    let rules = "rules:
      - { name: a, key: 'user:{user_id}', limit: 1/d burst 100000 }
      - { name: b, key: 'user:{user_id}', limit: 1/d burst 50000 }";
    Limiter::new(rules::parse("rules.yaml", rules).unwrap(), store)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_on_its_way_is_answered_where_its_keys_are_and_waited_for_when_they_are_apart() {
    let cluster = RedisCluster::start(Replicas::None).await;
    let limiter = Arc::new(two_tiers(&cluster).await);
    let user = users_below(1_000, &limiter, &cluster).await.remove(0);
    let check = async |limiter: &Limiter<RedisStore>| {
        let answer = limiter.check(&Descriptor::new().with("user_id", &*user)).await;
        assert!(answer.allowed() && answer.degraded().is_none(), "{answer:?}");
        answer.tiers().iter().map(|tier| tier.verdict().limit - tier.verdict().remaining).collect::<Vec<_>>()
    };
    assert_eq!(check(&limiter).await, [1, 1]);
    let slot = slot_of(&limiter, &cluster, &user).await;
    cluster.begin_to_move(slot, 0, 2).await;
    assert_eq!(check(&limiter).await, [2, 2], "both are still here");

    let keys = cluster.keys(slot, 0).await;
    assert_eq!(keys.len(), 2);
    cluster.move_key(&keys[0], 0, 2).await;
    let apart = check(&limiter);
    let together = async {
        poll::until("somebody to be told to try again", async || {
            redirections(&cluster).await.contains("TRYAGAIN").then_some(())
        })
        .await;
        cluster.move_key(&keys[1], 0, 2).await;
    };
    assert_eq!(tokio::join!(apart, together).0, [3, 3], "both are there");
    assert!(redirections(&cluster).await.contains("ASK"));
    cluster.end_to_move(slot, 0, 2).await;
    assert_eq!(check(&limiter).await, [4, 4], "and stay");
}

async fn slot_of(limiter: &Limiter<RedisStore>, cluster: &RedisCluster, user: &str) -> u16 {
    let request = Descriptor::new().with("user_id", user);
    let rules = limiter.rules();
    let key = String::from_utf8(limiter.store().key(rules.rule(0), &request)).unwrap();
    let slot = cluster.nodes[0].server.command(&["CLUSTER", "KEYSLOT", &key]).await;
    redis::from_redis_value(slot).unwrap()
}

/// Some users whose buckets lie in the first slots.
async fn users_below(slots: u16, limiter: &Limiter<RedisStore>, cluster: &RedisCluster) -> Vec<String> {
    const USERS: usize = 60;
    let mut users = Vec::new();
    for number in 0.. {
        let user = format!("user {number}");
        if slot_of(limiter, cluster, &user).await < slots {
            users.push(user);
        }
        if users.len() == USERS {
            break;
        }
    }
    users
}

/// What nodes answered instead of doing it, and how often.
async fn redirections(cluster: &RedisCluster) -> String {
    let mut lines = Vec::new();
    for node in &cluster.nodes {
        let stats = text(&node.server.command(&["INFO", "errorstats"]).await);
        let errors = stats.lines().filter_map(|line| line.strip_prefix("errorstat_"));
        let told =
            errors.filter(|line| ["MOVED", "ASK", "TRYAGAIN"].iter().any(|word| line.starts_with(word)));
        lines.extend(told.map(|line| line.replace(":count=", " ")));
    }
    lines.join(", ")
}

#[tokio::test]
async fn a_slot_without_an_owner_is_refused_by_policy_and_served_when_it_has_one() {
    let fleet = Fleet::start(Replicas::None, USUAL).await;
    let name = fleet.name(0).await;
    poll::until("a decision in time", async || fleet.gate.allow(&name).await.stored().ok()).await;
    let node = &fleet.cluster.nodes[0].server;
    let [_, last] = fleet.cluster.slots(0).map(|slot| slot.to_string());
    node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]).await;
    let taken: Vec<String> = (0..=last.parse::<u16>().unwrap()).map(|slot| slot.to_string()).collect();
    let words: Vec<&str> =
        ["CLUSTER", "DELSLOTS"].into_iter().chain(taken.iter().map(String::as_str)).collect();
    node.command(&words).await;
    let mut code = None;
    poll::until("the shard to refuse", async || {
        let error = fleet.gate.allow(&name).await.stored().err()?;
        if let StoreError::Rejected { code: word } = error {
            code = Some(word);
        }
        code
    })
    .await;
    assert_eq!(code, Some("CLUSTERDOWN"));
    poll::until("the breaker to open", async || {
        let _ = fleet.gate.allow(&name).await;
        (!fleet.gate.store().stats().up).then_some(())
    })
    .await;
    node.command(&["CLUSTER", "ADDSLOTSRANGE", "0", &last]).await;
    fleet.recovered(&name).await;
    let peeked = poll::until("a look in time", async || fleet.gate.peek(&name).await.stored().ok()).await;
    assert_eq!(peeked.limit, CAPACITY);
    let alarms = logged(&format!("127.0.0.1:{}", fleet.cluster.nodes[0].proxy.port()));
    assert!(alarms.iter().any(|line| line.contains(" WARN ") && line.contains("CLUSTERDOWN")), "{alarms:#?}");
}
