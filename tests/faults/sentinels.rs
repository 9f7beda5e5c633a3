//! Sentinels that promote a replica, and what callers see of it.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tollgate::{Gate, RedisStore};
use tollgate_tests::certificates::Certificates;
use tollgate_tests::poll;
use tollgate_tests::redis_cluster::{RedisCluster, Replicas};
use tollgate_tests::redis_server::{Options, RedisServer, Tls};
use tollgate_tests::scratch::Scratch;
use tollgate_tests::sentinels::{Guard, NAME, Sentinel, Sentinels};

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
    poll::within(RECOVERED_WITHIN, "the new primary to decide", async || gate.allow(key).await.ok()).await;
    since.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_after_a_crash_is_followed_although_a_sentinel_is_gone() {
    let mut sentinels = Sentinels::start().await;
    let gate = gate(&sentinels.url()).await;
    gate.allow_cost("spent", CAPACITY).await.unwrap();
    poll::until("the replica to have it", async || {
        (sentinels.servers[1].server.contents().await.len() >= 2).then_some(())
    })
    .await;
    sentinels.lose_a_sentinel();
    sentinels.servers[0].server.kill();
    let killed = Instant::now();
    sentinels.until_role(1, "master").await;
    let promoted = killed.elapsed();
    let followed = followed(&gate, "another").await;
    assert!(!gate.allow("spent").await.unwrap().allowed, "what was replicated is not forgotten");
    println!("promoted {promoted:?} after the kill, followed {followed:?} later");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_is_followed_at_once_and_leaves_the_old_primary() {
    let sentinels = Sentinels::start().await;
    let gate = gate(&sentinels.url()).await;
    let done = Arc::new(AtomicBool::new(false));
    let (failed, decided) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let load = {
        let (gate, done, failed, decided) = (gate.clone(), done.clone(), failed.clone(), decided.clone());
        tokio::spawn(async move {
            while !done.load(Ordering::Relaxed) {
                let count = if gate.peek("load").await.is_ok() { &decided } else { &failed };
                count.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    sentinels.failover().await;
    sentinels.until_role(1, "master").await;
    let promoted = Instant::now();
    poll::until("the new primary to be written to", async || {
        gate.allow("key").await.ok()?;
        let keys = sentinels.servers[1].server.try_command(&["KEYS", "*:key"]).await.ok()?;
        (redis::from_redis_value::<Vec<String>>(keys).unwrap().len() == 1).then_some(())
    })
    .await;
    let followed = promoted.elapsed();
    sentinels.until_role(0, "slave").await;
    done.store(true, Ordering::Relaxed);
    load.await.unwrap();
    let (failed, decided) = (failed.load(Ordering::Relaxed), decided.load(Ordering::Relaxed));
    println!(
        "followed {followed:?} after the promotion; {failed} of {} decisions were degraded",
        failed + decided
    );
    assert!(failed < decided, "{failed} failed, {decided} did not");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_replica_that_is_promoted_forgets_what_it_had_not_and_no_more() {
    const REPLICATED: u64 = 300;
    const LOST: u64 = 200;
    let mut sentinels = Sentinels::start().await;
    let gate = gate(&sentinels.url()).await;
    gate.allow_cost("key", REPLICATED).await.unwrap();
    poll::until("the replica to have it", async || {
        let contents = sentinels.servers[1].server.contents().await;
        contents.iter().any(|(key, _)| key.ends_with(":key")).then_some(())
    })
    .await;
    sentinels.leave_the_replica_behind().await;
    gate.allow_cost("key", LOST).await.unwrap();
    sentinels.servers[0].server.kill();
    sentinels.until_role(1, "master").await;
    followed(&gate, "another").await;
    let left = gate.peek("key").await.unwrap().remaining;
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
        assert!(gate.allow(&format!("key {key}")).await.unwrap().allowed);
    }
    let wrong = RedisStore::builder(&url.replace(SECRET, "wrong")).ca(authority).deadline(UNHURRIED);
    assert!(wrong.connect().await.unwrap().ready().await.is_err());
    assert_eq!(logged(SECRET), [""; 0], "the secret is in the log");
}
