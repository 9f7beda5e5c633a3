//! A request whose tiers are in different slots of a Cluster, when something happens between hold and end.

use std::env;
use std::io::Write as _;
use std::num::NonZeroU32;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tollgate::core::RuleIndex;
use tollgate::core::rule::FailurePolicy;
use tollgate::{Clock, Descriptor, Limiter, Micros, RedisStore, Status, Timestamp, rules};
use tollgate_tests::fault_proxy::Mode;
use tollgate_tests::poll;
use tollgate_tests::redis_cluster::{RedisCluster, Replicas};

use crate::node::{UNHURRIED, listen_to_logs};

/// The node that a child of this program connects to, in its environment.
const ORDERS: &str = "TOLLGATE_ACROSS_NODE";
/// Of so many questions a child says that it asks them.
const SAID: u64 = 20;
const CAPACITY: u64 = 100_000;

/// Two tiers; both buckets are wherever their names put them.
const RULES: &str = r#"
rules:
  - { name: user, key: "user:{user_id}", limit: 1/d burst 1 }
  - { name: shared, key: "pool:{pool}", limit: 1/d burst 100000, on_store_failure: POLICY }
"#;

struct Two {
    limiter: Limiter<RedisStore>,
    cluster: RedisCluster,
    /// The node of the tier that all share.
    shared: usize,
    pool: String,
}

fn request<'a>(user: &'a str, pool: &'a str) -> Descriptor<'a> {
    Descriptor::new().with("user_id", user).with("pool", pool)
}

async fn limiter(url: &str, deadline: Duration, policy: &str) -> Limiter<RedisStore> {
    let store = RedisStore::builder(url).deadline(deadline).connect().await.unwrap();
    poll::until("every node to be connected to", async || store.ready().await.ok()).await;
    Limiter::new(rules::parse("rules.yaml", &RULES.replace("POLICY", policy)).unwrap(), store)
}

impl Two {
    async fn start(deadline: Duration, policy: &str) -> Self {
        listen_to_logs();
        let cluster = RedisCluster::start(Replicas::None).await;
        let limiter = limiter(&cluster.url(), deadline, policy).await;
        let pool = "p".to_owned();
        let two = Two { limiter, cluster, shared: 0, pool };
        let shared = two.primary_of(1, &request("anybody", &two.pool)).await;
        Two { shared, ..two }
    }

    /// The node that has the bucket of a rule.
    async fn primary_of(&self, rule: RuleIndex, request: &Descriptor<'_>) -> usize {
        let rules = self.limiter.rules();
        let key = String::from_utf8(self.limiter.store().key(rules.rule(rule), request)).unwrap();
        let slot = self.cluster.nodes[0].server.command(&["CLUSTER", "KEYSLOT", &key]).await;
        self.cluster.primary_of(redis::from_redis_value(slot).unwrap())
    }

    /// A user whose bucket is in another shard than the shared one.
    async fn elsewhere(&self) -> String {
        for number in 0.. {
            let user = format!("u{number}");
            if self.primary_of(0, &request(&user, &self.pool)).await != self.shared {
                return user;
            }
        }
        unreachable!("two thirds of all users are elsewhere")
    }

    /// The same with its only token spent.
    async fn spent(&self) -> String {
        let user = self.elsewhere().await;
        assert!(self.limiter.check(&request(&user, &self.pool)).await.allowed());
        user
    }

    async fn left(&self) -> u64 {
        poll::until("the shared tier to be known", async || {
            let answer = self.limiter.request(&request("looks on", &self.pool)).peek().await;
            let tier = answer.tiers().iter().find(|tier| tier.verdict().limit == CAPACITY)?;
            tier.instead().is_none().then_some(tier.verdict().remaining)
        })
        .await
    }
}

/// The scripts that ran on all nodes. The first call to a node finds no script there, and is not one of them.
async fn calls(cluster: &RedisCluster) -> Option<u64> {
    let mut calls = 0;
    for node in &cluster.nodes {
        calls += node.server.succeeded("evalsha").await?;
    }
    Some(calls)
}

#[tokio::test]
async fn a_tier_that_refuses_leaves_the_one_in_another_slot_as_it_was() {
    let two = Two::start(UNHURRIED, "open").await;
    let user = two.spent().await;
    let before = two.left().await;
    for _ in 0..50 {
        let answer = two.limiter.check(&request(&user, &two.pool)).await;
        assert_eq!((answer.status(), answer.rule()), (Status::Refused, Some("user")));
        let shared = answer.tiers().iter().find(|tier| tier.verdict().limit == CAPACITY).unwrap();
        assert_eq!(shared.verdict().remaining, before, "told as if nothing was charged");
    }
    assert_eq!(two.left().await, before);
    assert_eq!(two.limiter.store().stats().stranded, 0);
}

#[tokio::test]
async fn a_request_over_three_slots_is_answered_in_one_round_trip_and_ends_its_holds_in_the_background() {
    let cluster = RedisCluster::start(Replicas::None).await;
    let store = RedisStore::builder(&cluster.url()).deadline(UNHURRIED).connect().await.unwrap();
    poll::until("every node to be connected to", async || store.ready().await.ok()).await;
    let text = "rules:
      - { name: user, key: 'user:{user_id}', limit: 1/d burst 2 }
      - { name: pool, key: 'pool:{pool}', limit: 1/d burst 1000 }
      - { name: trial, key: 'pool:{pool}', limit: 1/d burst 1, mode: shadow }
      - { name: team, key: 'team:{team}', limit: 1/d burst 1000 }";
    let limiter = Limiter::new(rules::parse("rules.yaml", text).unwrap(), store);
    let request = Descriptor::new().with("user_id", "u").with("pool", "p").with("team", "t");
    let mut expected = calls(&cluster).await.unwrap();
    let mut more_calls = async |more: u64| {
        expected += more;
        let reached = async || calls(&cluster).await.filter(|calls| *calls >= expected);
        assert_eq!(poll::until("the calls", reached).await, expected);
    };
    for _ in 0..2 {
        assert!(limiter.check(&request).await.allowed());
        more_calls(6).await; // each slot holds, and spends
    }
    assert_eq!(limiter.check(&request).await.status(), Status::Refused);
    more_calls(5).await; // each slot is asked, and those that passed return
    assert_eq!(limiter.request(&request).peek().await.status(), Status::Refused);
    more_calls(3).await; // nothing is held
}

/// A row in shadow mode is charged independently of rows that were lost.
#[tokio::test]
async fn a_limit_in_shadow_mode_is_charged_once_although_a_shard_is_missed() {
    const ASKED: u64 = 5;
    let two = Two::start(UNHURRIED, "open").await;
    let text = RULES.replace("POLICY", "open").replace("1/d burst 1 }", "1/d burst 1000 }")
        + "  - { name: trial, key: 'user:{user_id}', limit: 1/d burst 3, mode: shadow }\n";
    two.limiter.set_rules(rules::parse("rules.yaml", &text).unwrap());
    let user = two.elsewhere().await;
    two.cluster.nodes[two.shared].proxy.set(Mode::Blackhole).await;
    for asked in 1..=ASKED {
        let answer = two.limiter.check(&request(&user, &two.pool)).await;
        assert!(answer.allowed() && answer.degraded().is_some(), "{answer:?}");
        let left: Vec<u64> = answer.tiers().iter().map(|tier| tier.verdict().remaining).collect();
        assert_eq!((left[0], left[2]), (1_000 - asked, 3_u64.saturating_sub(asked)), "{answer:?}");
    }
    two.cluster.nodes[two.shared].proxy.set(Mode::Pass).await;
    let left = poll::until("the shard", async || {
        let answer = two.limiter.request(&request(&user, &two.pool)).peek().await;
        let left: Vec<u64> = answer.tiers().iter().map(|tier| tier.verdict().remaining).collect();
        answer.degraded().is_none().then_some(left)
    })
    .await;
    assert_eq!((left[0], left[2]), (1_000 - ASKED, 0));
}

/// A row that was decided when rules were matched has no bucket.
#[tokio::test]
async fn a_shard_that_is_gone_does_not_matter_to_rules_without_a_bucket() {
    let two = Two::start(UNHURRIED, "open").await;
    let text = RULES.replace("POLICY", "open").replace("1/d burst 1 }", "1/d burst 1000 }")
        + "  - { name: ban, key: global, action: deny, mode: shadow }\n";
    two.limiter.set_rules(rules::parse("rules.yaml", &text).unwrap());
    let user = two.elsewhere().await;
    two.cluster.nodes[two.shared].proxy.set(Mode::Refuse).await;
    for asked in 1..=5 {
        let answer = two.limiter.check(&request(&user, &two.pool)).await;
        assert!(answer.allowed() && answer.degraded().is_some(), "{answer:?}");
        let of_user = answer.tiers().iter().find(|tier| tier.verdict().limit == 1_000).unwrap();
        assert_eq!(of_user.verdict().remaining, 1_000 - asked);
    }
}

/// A hold that has reached its boundary was charged there. A settlement must not take it for a later charge.
#[tokio::test]
async fn a_reservation_whose_spend_comes_too_late_gives_nothing_back_to_a_later_window() {
    let cluster = RedisCluster::start(Replicas::None).await;
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_500_000));
    let builder = RedisStore::builder(&cluster.url()).deadline(UNHURRIED).clock(clock.clone());
    let text = "rules:
      - { name: user, key: 'user:{user_id}', limit: 100/s, algorithm: fixed_window }
      - { name: pool, key: 'pool:{pool}', limit: 1/d burst 100000 }";
    let limiter =
        Arc::new(Limiter::new(rules::parse("rules.yaml", text).unwrap(), builder.connect().await.unwrap()));
    let calls = async || calls(&cluster).await;
    // Uploads the scripts, so that the next request is sent once.
    for pool in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        limiter.check(&request("warm", pool)).await;
    }
    let shard = {
        let rules = limiter.rules();
        let key = String::from_utf8(limiter.store().key(rules.rule(1), &request("u", "p"))).unwrap();
        let slot = cluster.nodes[0].server.command(&["CLUSTER", "KEYSLOT", &key]).await;
        cluster.primary_of(redis::from_redis_value(slot).unwrap())
    };
    // Eight requests over two slots each: holds, and spends.
    poll::until("the holds to end", async || (calls().await? == 32).then_some(())).await;
    cluster.nodes[shard].proxy.set(Mode::Delay(Duration::from_millis(300))).await;
    let reserving = {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move {
            limiter.request(&request("u", "p")).cost(100).reserve(Duration::from_secs(60)).await.unwrap()
        })
    };
    poll::until("both holds", async || (calls().await? >= 34).then_some(())).await;
    clock.advance(Micros::new(1_000_000));
    let reserved = reserving.await.unwrap();
    assert!(reserved.answer.allowed());
    cluster.nodes[shard].proxy.set(Mode::Pass).await;
    // The hold counts in the first window, and the second has all of its tokens.
    assert!(limiter.request(&request("u", "q")).cost(100).check().await.allowed());
    limiter.settle(reserved.reservation.unwrap(), 0).await.unwrap();
    assert!(!limiter.check(&request("u", "q")).await.allowed());
}

#[tokio::test]
async fn a_lost_reply_is_never_charged_twice_and_the_other_slot_is_returned() {
    let two = Two::start(UNHURRIED, "closed").await;
    let user = two.elsewhere().await;
    let before = two.left().await;
    two.cluster.nodes[two.shared].proxy.set(Mode::DropReplies).await;
    let answer = two.limiter.check(&request(&user, &two.pool)).await;
    assert_eq!(answer.status(), Status::Unavailable);
    two.cluster.nodes[two.shared].proxy.set(Mode::Pass).await;
    let after = two.left().await;
    assert!(after == before || after == before - 1, "{after} of {before}");
    // The token of the user came back: what it was asked with did not pass.
    let asked = poll::until("the user's token", async || {
        let answer = two.limiter.check(&request(&user, "another")).await;
        answer.allowed().then_some(answer.degraded().is_none())
    });
    assert!(asked.await);
}

#[tokio::test]
async fn a_shard_that_is_gone_degrades_its_own_tier_and_the_other_still_decides() {
    let two = Two::start(UNHURRIED, "open").await;
    let user = two.elsewhere().await;
    two.cluster.nodes[two.shared].proxy.set(Mode::Refuse).await;
    let passed = poll::until("the shard to be missed", async || {
        let answer = two.limiter.check(&request(&user, &two.pool)).await;
        answer.degraded().is_some().then_some(answer)
    })
    .await;
    assert!(passed.allowed());
    assert_eq!(passed.degraded().unwrap().policy, FailurePolicy::Open);
    assert_eq!((passed.rule(), passed.remaining()), (Some("user"), Some(0)), "the user's tier speaks");
    let refused = two.limiter.check(&request(&user, &two.pool)).await;
    assert_eq!((refused.status(), refused.rule()), (Status::Refused, Some("user")), "and refuses");
}

#[tokio::test]
async fn a_closed_tier_whose_shard_is_gone_leaves_the_other_uncharged() {
    let two = Two::start(UNHURRIED, "closed").await;
    let user = two.elsewhere().await;
    two.cluster.nodes[two.shared].proxy.set(Mode::Refuse).await;
    for _ in 0..30 {
        let answer = two.limiter.check(&request(&user, &two.pool)).await;
        assert_eq!(answer.status(), Status::Unavailable);
    }
    poll::until("the user's token to be there", async || {
        let alone = two.limiter.check(&request(&user, "a pool that is never asked for")).await;
        alone.tiers()[0].verdict().allowed.then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_share_that_refuses_while_its_shard_is_gone_gives_the_other_tier_back() {
    let two = Two::start(UNHURRIED, "local").await;
    // One of a hundred thousand nodes: its share is one.
    let nodes = NonZeroU32::new(100_000).unwrap();
    let limiter = limiter(&two.cluster.url(), UNHURRIED, "local").await.with_nodes(nodes);
    let user = two.elsewhere().await;
    two.cluster.nodes[two.shared].proxy.set(Mode::Refuse).await;
    let others = ["someone", "else"].map(|user| user.to_owned());
    for other in &others {
        limiter.check(&request(other, &two.pool)).await; // the share is spent
    }
    let refused = limiter.check(&request(&user, &two.pool)).await;
    assert_eq!((refused.status(), refused.rule()), (Status::Refused, Some("shared")));
    two.cluster.nodes[two.shared].proxy.set(Mode::Pass).await;
    let passed = poll::until("the shard", async || {
        let answer = limiter.check(&request(&user, &two.pool)).await;
        answer.degraded().is_none().then_some(answer)
    })
    .await;
    assert!(passed.allowed(), "the user's token was given back");
}

#[tokio::test]
async fn whoever_gives_up_half_way_strands_nothing() {
    let two = Two::start(UNHURRIED, "open").await;
    let user = two.spent().await;
    let before = two.left().await;
    two.cluster.nodes[two.shared].proxy.set(Mode::Delay(Duration::from_millis(30))).await;
    let mut cancelled = 0;
    for _ in 0..20 {
        let request = request(&user, &two.pool);
        let check = two.limiter.check(&request);
        // A reply takes 30 ms. On a busy machine it may have arrived when the timeout is looked at.
        cancelled += u32::from(tokio::time::timeout(Duration::from_millis(5), check).await.is_err());
    }
    assert!(cancelled > 0, "no check was cancelled");
    two.cluster.nodes[two.shared].proxy.set(Mode::Pass).await;
    poll::until("everything to be returned", async || (two.left().await == before).then_some(())).await;
}

/// Nothing to do, unless the test below started this process: asks for what is refused, over and over.
#[tokio::test]
async fn is_what_it_was_told_to_be() {
    let Ok(orders) = env::var(ORDERS) else { return };
    let [url, user, pool] = orders.split(' ').collect::<Vec<_>>()[..] else { panic!("{orders}") };
    let limiter = limiter(url, UNHURRIED, "open").await;
    let mut out = std::io::stdout();
    for asked in 0..1_000_000 {
        if asked < SAID {
            writeln!(out, "asks").unwrap();
            out.flush().unwrap();
        }
        limiter.check(&request(user, pool)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_200_times_between_hold_and_return_strands_at_most_one_request_each_time() {
    const KILLS: u64 = 200;
    const AT_ONCE: u64 = 4;
    let two = Two::start(UNHURRIED, "open").await;
    let user = two.spent().await;
    let before = two.left().await;
    let mut killed = 0;
    while killed < KILLS {
        let mut children = Vec::new();
        for _ in 0..AT_ONCE {
            let mut child = Command::new(env::current_exe().unwrap())
                .args(["--exact", "across::is_what_it_was_told_to_be", "--quiet", "--nocapture"])
                .env(ORDERS, format!("{} {user} {}", two.cluster.url(), two.pool))
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            children.push((child, lines));
        }
        for (child, lines) in &mut children {
            // It is in the middle of something by then, each time of something else.
            for _ in 0..=killed % SAID {
                while lines.next_line().await.unwrap().unwrap() != "asks" {}
            }
            child.kill().await.unwrap();
            killed += 1;
        }
    }
    let stranded = before - two.left().await;
    assert!(stranded <= killed, "{stranded} stranded by {killed} kills");
    println!("{killed} kills stranded {stranded} requests");
}
