//! Sentinels that promote a replica, and what callers see of it.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tollgate::{Gate, RedisStore};
use tollgate_tests::certificates::Certificates;
use tollgate_tests::poll;
use tollgate_tests::redis_cluster::{RedisCluster, Replicas};
use tollgate_tests::redis_server::{Options, RedisServer, Tls};
use tollgate_tests::rows::Stored as _;
use tollgate_tests::scratch::Scratch;
use tollgate_tests::sentinels::{Guard, NAME, Sentinel, Sentinels, is_in_step};

use crate::node::{CAPACITY, RECOVERED_WITHIN, UNHURRIED, listen_to_logs, logged, slow_limit};
use crate::secrets::RIGHTS;

async fn gate(url: &str) -> Arc<Gate<RedisStore>> {
    listen_to_logs();
    let store = RedisStore::builder(url).deadline(UNHURRIED).connect().await.unwrap();
    store.ready().await.unwrap();
    Arc::new(Gate::new(slow_limit(), store))
}

/// How long until decisions are made again.
async fn followed(gate: &Gate<RedisStore>, key: &str) -> Duration {
    let since = Instant::now();
    poll::within(RECOVERED_WITHIN, "the new primary to decide", async || gate.allow(key).await.stored().ok())
        .await;
    since.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_after_a_crash_is_followed_although_a_sentinel_is_gone() {
    let mut sentinels = Sentinels::start().await;
    let gate = gate(&sentinels.url()).await;
    gate.allow_cost("spent", CAPACITY).await.stored().unwrap();
    poll::until("the replica to have it", async || {
        let contents = sentinels.servers[1].server.contents().await;
        contents.iter().any(|(key, _)| key.ends_with(":spent")).then_some(())
    })
    .await;
    sentinels.lose_a_sentinel();
    sentinels.servers[0].server.kill();
    let killed = Instant::now();
    sentinels.until_role(1, "master").await;
    let promoted = killed.elapsed();
    let followed = followed(&gate, "another").await;
    assert!(!gate.allow("spent").await.stored().unwrap().allowed, "what was replicated is not forgotten");
    println!("promoted {promoted:?} after the kill, followed {followed:?} later");
}

/// A planned failover is followed within this time of the promotion. Sentinels announce it after about a second.
const FOLLOWED_WITHIN: Duration = Duration::from_millis(200);
/// Failovers at most, there and back. On a busy machine the sentinels and servers are late as well, so one failover in time
/// suffices. A store that waits for the announcement is late in all of them.
const FAILOVERS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planned_failover_is_followed_within_200_ms_of_the_promotion() {
    let sentinels = Sentinels::start().await;
    let gate = gate(&sentinels.url()).await;
    for number in 0..FAILOVERS {
        let Failover { followed, elapsed, charged, lost } =
            planned_failover(&sentinels, &gate, 1 - number % 2, number).await;
        let seen = format!(
            "followed {followed:?} after the promotion ({elapsed:?} with the pauses of the machine); \
             {lost} of {charged} charges were lost"
        );
        println!("{seen}");
        if followed <= FOLLOWED_WITHIN {
            return;
        }
    }
    panic!("no failover was followed within {FOLLOWED_WITHIN:?}");
}

/// Time as far as this process is given a processor: it counts the milliseconds at which a task was woken. On an idle
/// machine it is the elapsed time; on a busy one it leaves out the pauses in which nothing here could have happened.
struct Ticks {
    count: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Ticks {
    const EVERY: Duration = Duration::from_millis(1);

    fn start() -> Self {
        let count = Arc::new(AtomicU64::new(0));
        let ticked = Arc::clone(&count);
        let task = tokio::spawn(async move {
            let mut ticks = interval(Self::EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                ticked.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ticks { count, task }
    }

    fn elapsed(&self) -> Duration {
        let count = u32::try_from(self.count.load(Ordering::Relaxed)).unwrap();
        Self::EVERY * count
    }
}

impl Drop for Ticks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Two servers and a sentinel that says nothing by itself. The store is connected to the first server.
struct Silent {
    old: RedisServer,
    new: RedisServer,
    sentinel: Sentinel,
    gate: Arc<Gate<RedisStore>>,
}

impl Silent {
    async fn start() -> Self {
        // A primary waits for further replicas before it sends anything, unless it is told not to.
        let options = Options { args: &["--repl-diskless-sync-delay", "0"], ..Options::default() };
        let (old, new) = (RedisServer::with(options).await, RedisServer::with(options).await);
        let sentinel = Sentinel::start(old.port(), 1, Guard::default());
        let url = format!("redis-sentinel://127.0.0.1:{}/{NAME}", sentinel.port());
        listen_to_logs();
        let store = RedisStore::builder(&url).deadline(UNHURRIED).connect().await.unwrap();
        let gate = Arc::new(Gate::new(slow_limit(), store));
        poll::until("the first primary to decide", async || gate.allow("before").await.stored().ok()).await;
        Silent { old, new, sentinel, gate }
    }

    /// Makes the old server a replica of the new one. It keeps its clients.
    async fn demote(&self) {
        self.old.command(&["REPLICAOF", "127.0.0.1", &self.new.port().to_string()]).await;
        poll::until("the old primary to be in step", async || is_in_step(&self.old).await.then_some(()))
            .await;
    }

    /// Whether a charge was made at the new primary.
    async fn has_charged(&self, key: &str) -> bool {
        self.new.contents().await.iter().any(|(name, _)| name.ends_with(&format!(":{key}")))
    }

    fn announcements(&self) -> Vec<String> {
        logged(&format!("the primary is 127.0.0.1:{} now", self.new.port()))
    }
}

/// Demotions at most. Following one takes a dozen round trips to other processes, which a busy machine delays; a store that waits
/// for an announcement is late in all of them.
const DEMOTIONS: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readonly_answer_alone_leads_the_same_decision_to_the_new_primary_within_200_ms() {
    for _ in 0..DEMOTIONS {
        let servers = Silent::start().await;
        servers.sentinel.watch(servers.new.port()).await;
        servers.demote().await;
        let before = servers.gate.store().stats();
        assert!(before.up, "the old primary keeps the connection");
        let (asked, ticks) = (Instant::now(), Ticks::start());
        let answer = servers.gate.allow("after").await;
        let (followed, elapsed) = (ticks.elapsed(), asked.elapsed());
        assert!(answer.stored().unwrap().allowed);
        assert!(servers.has_charged("after").await);
        assert_eq!(servers.gate.store().stats().connections, before.connections + 1);
        assert_eq!(servers.announcements(), [""; 0], "no sentinel said so");
        println!("decided after {followed:?} ({elapsed:?} with the pauses of the machine)");
        if followed <= FOLLOWED_WITHIN {
            return;
        }
    }
    panic!("no decision followed within {FOLLOWED_WITHIN:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_readonly_answer_sentinels_are_asked_until_they_name_the_new_primary() {
    let servers = Silent::start().await;
    servers.demote().await;
    assert!(servers.gate.allow("before").await.stored().is_err(), "the sentinel still names the replica");
    servers.sentinel.watch(servers.new.port()).await;
    poll::within(RECOVERED_WITHIN, "the new primary to decide", async || {
        servers.gate.allow("after").await.stored().ok()
    })
    .await;
    assert!(servers.has_charged("after").await);
    assert_eq!(servers.announcements(), [""; 0], "no sentinel said so");
}

/// The rights that the docs of earlier versions gave.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_that_permits_only_switch_master_is_followed_by_that() {
    let sentinels = Sentinels::start().await;
    let channels = ["resetchannels", "&+switch-master", "&__sentinel__:hello"];
    sentinels.command(&[&["ACL", "SETUSER", "default"][..], &channels].concat()).await;
    let gate = gate(&sentinels.url()).await;
    let denied = "cannot subscribe to +failover-state-wait-promotion: NOPERM";
    poll::until("the sentinels to refuse", async || (logged(denied).len() >= 3).then_some(())).await;
    sentinels.failover().await;
    let there = format!("the primary is 127.0.0.1:{} now", sentinels.servers[1].proxy.port());
    poll::within(Duration::from_secs(60), "+switch-master to be heard", async || {
        (!logged(&there).is_empty()).then_some(())
    })
    .await;
    poll::until("the new primary to be written to", async || {
        gate.allow("key").await.stored().ok()?;
        (count(&sentinels, 1, "*:key").await? == 1).then_some(())
    })
    .await;
}

/// What a failover under load was like.
struct Failover {
    /// How long after the promotion the first charge was made at the new primary, without the pauses of the machine.
    followed: Duration,
    /// The same with them.
    elapsed: Duration,
    charged: usize,
    /// Those that only the old primary had.
    lost: usize,
}

/// Has a server promoted while there is load.
async fn planned_failover(
    sentinels: &Sentinels,
    gate: &Arc<Gate<RedisStore>>,
    new: usize,
    number: usize,
) -> Failover {
    let done = Arc::new(AtomicBool::new(false));
    let load = {
        let (gate, done) = (gate.clone(), done.clone());
        tokio::spawn(async move {
            let (mut charged, mut failed) = (0_usize, 0_usize);
            while !done.load(Ordering::Relaxed) {
                let key = format!("load{number}-{charged}");
                if gate.allow(&key).await.stored().is_ok() { charged += 1 } else { failed += 1 }
            }
            (charged, failed)
        })
    };
    sentinels.until_in_step(new).await;
    sentinels.servers[new].server.command(&["CONFIG", "RESETSTAT"]).await;
    sentinels.failover().await;
    sentinels.until_role(new, "master").await;
    let (promoted, ticks) = (Instant::now(), Ticks::start());
    poll::until("the new primary to decide", async || {
        (sentinels.servers[new].server.succeeded("evalsha").await? > 0).then_some(())
    })
    .await;
    let (followed, elapsed) = (ticks.elapsed(), promoted.elapsed());
    sentinels.until_role(1 - new, "slave").await;
    done.store(true, Ordering::Relaxed);
    let (charged, failed) = load.await.unwrap();
    let kept = poll::until("the keys of the new primary", async || {
        count(sentinels, new, &format!("*:load{number}-*")).await
    })
    .await;
    assert!(failed < charged, "{failed} failed, {charged} did not");
    // `KEYS` in the next failover takes as long as there are keys.
    sentinels.servers[new].server.command(&["FLUSHALL"]).await;
    Failover { followed, elapsed, charged, lost: charged - kept }
}

/// How many keys of a pattern a server has.
async fn count(sentinels: &Sentinels, server: usize, pattern: &str) -> Option<usize> {
    let keys = sentinels.servers[server].server.try_command(&["KEYS", pattern]).await.ok()?;
    Some(redis::from_redis_value::<Vec<String>>(keys).unwrap().len())
}

#[tokio::test]
async fn wrong_name_and_missing_password_are_logged_as_doctor_says_them() {
    listen_to_logs();
    let server = RedisServer::start().await;
    let sentinel =
        Sentinel::start(server.port(), 1, Guard { password: Some("watch-77"), ..Guard::default() });
    let url =
        |name: &str, login: &str| format!("redis-sentinel://127.0.0.1:{}/{name}{login}", sentinel.port());
    let said = async |url: &str| {
        let redis = RedisStore::builder(url).deadline(UNHURRIED);
        let refused = redis.connect().await.unwrap().ready().await;
        assert!(refused.is_err(), "{url}");
        logged(" WARN ").into_iter().rfind(|line| line.contains(&redis_shown(url))).unwrap_or_default()
    };
    let right = url(NAME, "?sentinel_pass=watch-77");
    poll::until("the primary by way of its sentinel", async || {
        RedisStore::builder(&right).deadline(UNHURRIED).connect().await.unwrap().ready().await.ok()
    })
    .await;
    let wrong_name = said(&url("nobody", "?sentinel_pass=watch-77")).await;
    assert!(
        wrong_name.contains("no primary is called `nobody`; correct the name at the end of the URL"),
        "{wrong_name}"
    );
    let no_password = said(&url(NAME, "")).await;
    assert!(no_password.contains("NOAUTH Authentication required; give a password"), "{no_password}");
    assert!(no_password.contains(&format!("sentinel 127.0.0.1:{}", sentinel.port())), "{no_password}");
    server.command(&["CONFIG", "SET", "requirepass", "canary-31"]).await;
    for url in [server.url(), server.url().replace("redis://", "redis-cluster://")] {
        let no_password = said(&url).await;
        assert!(no_password.contains("NOAUTH Authentication required; give a password"), "{no_password}");
    }
}

/// The part of a URL that is logged.
fn redis_shown(url: &str) -> String {
    RedisStore::builder(url).shown()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_replica_that_is_promoted_forgets_what_it_had_not_and_no_more() {
    const REPLICATED: u64 = 300;
    const LOST: u64 = 200;
    let mut sentinels = Sentinels::start().await;
    let gate = gate(&sentinels.url()).await;
    gate.allow_cost("key", REPLICATED).await.stored().unwrap();
    poll::until("the replica to have it", async || {
        let contents = sentinels.servers[1].server.contents().await;
        contents.iter().any(|(key, _)| key.ends_with(":key")).then_some(())
    })
    .await;
    sentinels.leave_the_replica_behind().await;
    gate.allow_cost("key", LOST).await.stored().unwrap();
    sentinels.servers[0].server.kill();
    sentinels.until_role(1, "master").await;
    followed(&gate, "another").await;
    let left = gate.peek("key").await.stored().unwrap().remaining;
    assert_eq!(left, CAPACITY - REPLICATED, "exactly what was not replicated is forgotten");
    println!(
        "{LOST} tokens taken while the replica was cut off were handed out again, {REPLICATED} were not"
    );
}

/// In every URL here, and nowhere else.
const SECRET: &str = "canary-5e21";

#[tokio::test]
async fn tls_and_passwords_of_their_own_hold_towards_sentinels_and_the_primary() {
    listen_to_logs();
    let options = Options { args: &["--requirepass", SECRET, "--tls-replication", "yes"], tls: Tls::On };
    let server = RedisServer::with(options).await;
    let files = server.certificates();
    let lines = [
        format!("tls-ca-cert-file {}", files.authority().display()),
        format!("tls-cert-file {}", files.certificate("server").display()),
        format!("tls-key-file {}", files.key("server").display()),
        "tls-auth-clients no".to_owned(),
        "tls-replication yes".to_owned(),
        format!("sentinel auth-pass {NAME} {SECRET}"),
    ];
    let guard = Guard { password: Some("watch-9d"), lines: &lines, tls: Tls::On };
    let sentinel = Sentinel::start(server.port(), 1, guard);
    let authority = fs::read(files.authority()).unwrap();
    let url = |login: &str, watch: &str| {
        format!("rediss-sentinel://:{login}@127.0.0.1:{}/{NAME}?sentinel_pass={watch}", sentinel.port())
    };
    let connect = async |url: &str| {
        let redis = RedisStore::builder(url).ca(authority.clone()).deadline(UNHURRIED);
        redis.connect().await.unwrap().ready().await
    };
    let good = url(SECRET, "watch-9d");
    poll::until("the primary by way of its sentinel", async || connect(&good).await.ok()).await;
    assert!(connect(&url("wrong", "watch-9d")).await.is_err());
    assert!(connect(&url(SECRET, "wrong")).await.is_err());
    assert_eq!(logged(SECRET), [""; 0], "the secret is in the log");
}

#[tokio::test]
async fn tls_and_a_password_hold_towards_every_node_of_a_cluster() {
    listen_to_logs();
    let folder = Scratch::new("cluster-tls");
    let files = Certificates::make(folder.path());
    let paths = [files.authority(), files.certificate("server"), files.key("server")];
    let [authority, certificate, key] = paths.each_ref().map(|path| path.to_str().unwrap());
    let password = format!(">{SECRET}");
    let login = ["--requirepass", "another", "--masterauth", "another", "--tls-cluster", "yes"];
    let user = ["--user", "app", "on", &password, "~tg:*", "+cluster|slots"];
    let shown = ["--tls-ca-cert-file", authority, "--tls-cert-file", certificate, "--tls-key-file", key];
    let args = [&login[..], &shown, &user, &RIGHTS].concat();
    let cluster = RedisCluster::with(Replicas::None, Options { args: &args, tls: Tls::On }).await;
    let url = cluster.url().replace("redis-cluster://", &format!("rediss-cluster://app:{SECRET}@"));
    let authority = fs::read(files.authority()).unwrap();
    let redis = RedisStore::builder(&url).ca(authority.clone()).deadline(UNHURRIED);
    let store = redis.connect().await.unwrap();
    assert_eq!(store.ready().await, Ok(()));
    let gate = Gate::new(slow_limit(), store);
    for key in 0..20 {
        assert!(gate.allow(&format!("key {key}")).await.stored().unwrap().allowed);
    }
    let wrong = RedisStore::builder(&url.replace(SECRET, "wrong")).ca(authority).deadline(UNHURRIED);
    assert!(wrong.connect().await.unwrap().ready().await.is_err());
    assert_eq!(logged(SECRET), [""; 0], "the secret is in the log");
}
