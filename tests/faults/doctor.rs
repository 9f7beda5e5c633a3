//! What `doctor` finds at real servers.

use std::process::Command;
use std::time::Duration;

use tollgate::RedisStore;
use tollgate::doctor::{Demands, Finding, Level, examine};
use tollgate_tests::certificates::Certificates;
use tollgate_tests::fault_proxy::{FaultProxy, Mode};
use tollgate_tests::poll;
use tollgate_tests::ports::free_port;
use tollgate_tests::redis_cluster::{RedisCluster, Replicas};
use tollgate_tests::redis_server::{Options, RedisServer, Tls, program};
use tollgate_tests::scratch::Scratch;
use tollgate_tests::sentinels::Sentinels;

async fn look(url: &str) -> Vec<Finding> {
    examine(&RedisStore::builder(url), &unhurried()).await
}

/// A busy machine is not what these tests ask about.
fn unhurried() -> Demands {
    Demands { deadline: Duration::from_secs(5), ..Demands::default() }
}

fn finding<'f>(findings: &'f [Finding], check: &str) -> &'f Finding {
    let found = findings.iter().find(|finding| finding.check == check);
    found.unwrap_or_else(|| panic!("no `{check}` in {findings:#?}"))
}

/// The one finding of a server that cannot be used.
async fn reason(url: &str) -> String {
    let findings = look(url).await;
    let [finding] = &findings[..] else { panic!("{findings:#?}") };
    assert_eq!((finding.check, finding.level), ("reachable", Level::Fail));
    assert!(!format!("{finding:?}").contains("canary"));
    finding.found.clone()
}

#[tokio::test]
async fn a_plain_redis_is_in_order_and_stays_as_it_was() {
    let server = RedisServer::start().await;
    let findings = look(&server.url()).await;
    let bad: Vec<_> = findings.iter().filter(|finding| finding.level != Level::Ok).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert_eq!(server.contents().await, []);
    let numbers = &finding(&findings, "round-trip").numbers;
    assert!(0 < numbers["p50_us"] && numbers["p50_us"] <= numbers["p99_us"]);
    assert!(finding(&findings, "clock").numbers["ahead_us"].abs() < 1_000_000);
    assert!(finding(&findings, "persistence").found.starts_with("none"));
}

/// The suite runs on Redis and on Valkey, which tells its own version in another field.
#[tokio::test]
async fn the_version_is_that_of_the_program_that_was_started() {
    let told = Command::new(program()).arg("--version").output().unwrap();
    // "Redis server v=7.0.15 sha=…", "Valkey server v=8.0.1 sha=…"
    let told = String::from_utf8(told.stdout).unwrap();
    let mut words = told.split([' ', '=']);
    let [name, _, _, version] = [(); 4].map(|()| words.next().unwrap());
    let server = RedisServer::start().await;
    let findings = look(&server.url()).await;
    let finding = finding(&findings, "version");
    assert_eq!((finding.level, &*finding.found), (Level::Ok, &*format!("{name} {version}")));
}

#[tokio::test]
async fn an_eviction_policy_that_drops_buckets_is_a_warning() {
    let server = RedisServer::start().await;
    for policy in ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-ttl"] {
        server.command(&["CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", policy]).await;
        let findings = look(&server.url()).await;
        let eviction = finding(&findings, "eviction");
        assert_eq!(eviction.level, Level::Warn, "{policy}");
        assert!(eviction.found.contains(policy) && eviction.advice.is_some());
    }
}

#[tokio::test]
async fn why_nobody_answers_is_told_apart() {
    let server = RedisServer::start().await;
    assert_eq!(reason(&format!("redis://127.0.0.1:{}", free_port())).await, "connection refused");
    let proxy = FaultProxy::start(server.port()).await;
    proxy.set(Mode::Blackhole).await;
    assert_eq!(reason(&proxy.url()).await, "no answer in time");
    let proxy = FaultProxy::start(server.port()).await;
    proxy.set(Mode::GARBAGE).await;
    assert_eq!(reason(&proxy.url()).await, "what answers there is not Redis");
    assert!(reason("redis://:canary@no-such-host.invalid").await.contains("lookup"));
    assert!(reason("http://:canary@127.0.0.1").await.contains("no address of a Redis"));
}

#[tokio::test]
async fn a_password_that_is_missing_or_wrong_is_told_apart() {
    let server = RedisServer::with(Options { args: &["--requirepass", "s"], ..Options::default() }).await;
    assert!(reason(&server.url()).await.starts_with("NOAUTH"));
    let wrong = server.url().replace("://", "://:canary@");
    assert_eq!(reason(&wrong).await, "the user or the password is wrong");
    let right = server.url().replace("://", "://:s@");
    assert_eq!(finding(&look(&right).await, "reachable").level, Level::Ok);
}

#[tokio::test]
async fn tls_where_there_is_none_and_none_where_there_is_are_failures() {
    let server = RedisServer::with(Options { tls: Tls::On, ..Options::default() }).await;
    assert!(reason(&server.url()).await.contains("certificate"));
    let findings = look(&server.url().replace("rediss", "redis")).await;
    assert_eq!(finding(&findings, "reachable").level, Level::Fail);
    let authority = std::fs::read(server.certificates().authority()).unwrap();
    let findings = examine(&RedisStore::builder(&server.url()).ca(authority), &unhurried()).await;
    assert_eq!(finding(&findings, "reachable").level, Level::Ok);
}

#[tokio::test]
async fn a_replica_is_a_failure_that_names_the_primary() {
    let server = RedisServer::start().await;
    let primary = free_port().to_string();
    server.command(&["REPLICAOF", "127.0.0.1", &primary]).await;
    let findings = look(&server.url()).await;
    let role = finding(&findings, "role");
    assert_eq!(role.level, Level::Fail);
    assert!(role.advice.as_ref().is_some_and(|advice| advice.contains(&primary)), "{role:?}");
    let script = finding(&findings, "script");
    assert!(script.level == Level::Fail && script.found.starts_with("READONLY"), "{script:?}");
}

#[tokio::test]
async fn a_redis_that_takes_no_writes_is_a_failure_with_a_way_out() {
    let server = RedisServer::start().await;
    for (name, bad, good, code) in
        [("maxmemory", "1", "0", "OOM"), ("min-replicas-to-write", "1", "0", "NOREPLICAS")]
    {
        server.command(&["CONFIG", "SET", name, bad]).await;
        let findings = look(&server.url()).await;
        let script = finding(&findings, "script");
        assert_eq!(script.level, Level::Fail);
        assert!(script.found.starts_with(code) && script.advice.is_some(), "{script:?}");
        server.command(&["CONFIG", "SET", name, good]).await;
    }
}

#[tokio::test]
async fn rights_that_are_missing_are_named() {
    let bob = ["--user", "bob", "on", ">canary", "~*", "+@all", "-info", "-time"];
    let server = RedisServer::with(Options { args: &bob, ..Options::default() }).await;
    let findings = look(&server.url().replace("://", "://bob:canary@")).await;
    assert_eq!(finding(&findings, "version").level, Level::Warn);
    assert!(finding(&findings, "clock").found.contains("NOPERM"));
    let script = finding(&findings, "script");
    assert!(script.level == Level::Fail && script.found.starts_with("ERR "), "{script:?}");
    assert!(script.advice.as_ref().is_some_and(|advice| advice.contains("+time")), "{script:?}");
}

#[tokio::test]
async fn a_round_trip_beyond_the_deadline_is_a_failure() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.port()).await;
    proxy.set(Mode::Delay(Duration::from_millis(20))).await;
    let demands = Demands { deadline: Duration::from_millis(10), ..Demands::default() };
    let findings = examine(&RedisStore::builder(&proxy.url()), &demands).await;
    assert_eq!(finding(&findings, "round-trip").level, Level::Fail);
    assert_eq!(finding(&findings, "script").level, Level::Fail);
    assert!(finding(&findings, "clock").numbers["uncertainty_us"] >= 10_000);
}

#[tokio::test]
async fn sentinels_are_asked_who_is_primary_and_whether_they_could_agree_on_another() {
    let mut sentinels = Sentinels::start().await;
    let findings = look(&sentinels.url()).await;
    let bad: Vec<_> = findings.iter().filter(|finding| finding.level != Level::Ok).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    let primary = format!("127.0.0.1:{}", sentinels.servers[0].proxy.port());
    assert_eq!(finding(&findings, "sentinels").found, format!("3 of 3 answer: the primary is {primary}"));
    assert_eq!(finding(&findings, "role").numbers["replicas"], 1);
    let clocks = finding(&findings, "clocks");
    assert!(clocks.numbers["nodes"] == 2 && clocks.numbers["apart_us"] < 1_000_000, "{clocks:?}");
    let url = sentinels.url();
    sentinels.lose_a_sentinel();
    let findings = look(&url).await;
    assert_eq!(finding(&findings, "sentinels").level, Level::Warn);
    let nobody = look(&url.replace("/main", "/nobody")).await;
    assert!(nobody[0].level == Level::Fail && nobody[0].found.contains("`nobody`"), "{nobody:#?}");
}

#[tokio::test]
async fn a_replica_that_does_not_tell_the_time_is_named_with_the_reason() {
    let sentinels = Sentinels::start().await;
    let replica = &sentinels.servers[1];
    let there = format!("127.0.0.1:{}", replica.proxy.port());
    let reason = async || {
        let clocks = finding(&look(&sentinels.url()).await, "clocks").clone();
        assert_eq!((clocks.level, clocks.numbers["nodes"]), (Level::Warn, 2), "{clocks:?}");
        let advice = clocks.advice.unwrap();
        advice.strip_prefix(&there).unwrap_or_else(|| panic!("{advice}")).to_owned()
    };
    replica.server.command(&["ACL", "SETUSER", "default", "-time"]).await;
    assert!(reason().await.contains("NOPERM"));
    replica.proxy.set(Mode::Refuse).await;
    let reason = reason().await;
    assert!(reason.contains("permit TIME") && !reason.contains("NOPERM"), "{reason}");
}

/// The login and TLS of the store hold towards replicas too.
#[tokio::test]
async fn clocks_of_replicas_are_read_with_the_login_and_tls_of_the_store() {
    let folder = Scratch::new("doctor-tls");
    let files = Certificates::make(folder.path());
    let paths = [files.authority(), files.certificate("server"), files.key("server")];
    let [authority, certificate, key] = paths.each_ref().map(|path| path.to_str().unwrap());
    let login = ["--requirepass", "canary-77", "--masterauth", "canary-77", "--tls-cluster", "yes"];
    let tls = ["--tls-replication", "yes", "--tls-ca-cert-file", authority];
    let own = ["--tls-cert-file", certificate, "--tls-key-file", key];
    let args = [&login[..], &tls, &own].concat();
    let cluster = RedisCluster::with(Replicas::One, Options { args: &args, tls: Tls::On }).await;
    let url = cluster.url().replace("redis-cluster://", "rediss-cluster://:canary-77@");
    let redis = RedisStore::builder(&url).ca(std::fs::read(files.authority()).unwrap());
    // A replica is told of once it has heard of its primary's data.
    let clocks = poll::until("all six to be known", async || {
        let findings = examine(&redis, &unhurried()).await;
        assert!(!format!("{findings:?}").contains("canary"));
        let clocks = finding(&findings, "clocks").clone();
        (clocks.numbers["nodes"] == 6).then_some(clocks)
    })
    .await;
    assert_eq!(clocks.level, Level::Ok, "{clocks:?}");
}

#[tokio::test]
async fn of_a_cluster_slots_replicas_clocks_and_every_primary_are_told() {
    let cluster = RedisCluster::start(Replicas::None).await;
    let findings = look(&cluster.url()).await;
    assert_eq!(finding(&findings, "slots").found, "16384 of 16384 covered by 3 primaries");
    assert_eq!(finding(&findings, "coverage").level, Level::Ok);
    assert_eq!(finding(&findings, "role").level, Level::Warn, "no replica");
    let clocks = &finding(&findings, "clocks").numbers;
    assert!(clocks["nodes"] == 3 && clocks["apart_us"] < 1_000_000);
    assert_eq!(finding(&findings, "script").level, Level::Ok);
    for node in &cluster.nodes {
        assert_eq!(node.server.contents().await, []);
    }
    let node = &cluster.nodes[2].server;
    node.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let eviction = finding(&look(&cluster.url()).await, "eviction").clone();
    let there = format!("127.0.0.1:{}", cluster.nodes[2].proxy.port());
    assert!(eviction.level == Level::Warn && eviction.found.starts_with(&there), "{eviction:?}");
    let last = cluster.slots(2)[1].to_string();
    node.command(&["CLUSTER", "DELSLOTS", &last]).await;
    let url = format!("redis-cluster://127.0.0.1:{}", cluster.nodes[2].proxy.port());
    assert_eq!(finding(&look(&url).await, "slots").level, Level::Fail);
    // A node by itself is not what somebody should count on.
    let one = look(&cluster.nodes[0].server.url()).await;
    assert!(finding(&one, "role").advice.as_ref().is_some_and(|advice| advice.contains("redis-cluster://")));
}
