//! A Redis that does not know us, or that we do not trust: loud, and without the secret.

use std::fs;

use tollgate::{Limit, Micros, Op, RedisBuilder, RedisStore, StoreError};
use tollgate_tests::certificates::Certificates;
use tollgate_tests::redis_server::{Options, RedisServer, Tls};
use tollgate_tests::rows::{OneBucket, Stored as _};
use tollgate_tests::scratch::Scratch;

use crate::node::{UNHURRIED, listen_to_logs, logged};

/// In every URL here, and nowhere else.
const SECRET: &str = "canary-8c1f";

/// What a user needs to decide, as the docs say.
#[rustfmt::skip]
pub(crate) const RIGHTS: [&str; 23] = [
    "+evalsha", "+script|load", "+time", "+mget", "+get", "+set", "+del", "+pexpire", "+lindex",
    "+lrange", "+lset", "+lpop", "+rpop", "+lpush", "+rpush", "+zadd", "+zrem", "+zcard", "+zrank", "+zrangebyscore",
    "+pttl", "+type",
    "+@connection",
];

async fn server(args: &[&str], tls: Tls) -> RedisServer {
    listen_to_logs();
    RedisServer::with(Options { args, tls }).await
}

/// Why the store does not work. It said so in its log, and neither there nor anywhere else is the secret.
async fn complaint(redis: RedisBuilder, port: u16) -> StoreError {
    let store = redis.clone().deadline(UNHURRIED).connect().await.unwrap();
    let error = store.ready().await.unwrap_err();
    let lines = logged(&format!("127.0.0.1:{port}"));
    let loud = lines.iter().any(|line| line.contains(" WARN ") || line.contains(" ERROR "));
    assert!(loud, "nothing was logged: {lines:#?}");
    let everything = format!("{error} {error:?} {store:?} {redis:?} {} {lines:?}", redis.shown());
    assert!(!everything.contains(SECRET), "{everything}");
    assert_eq!(logged(SECRET), [""; 0], "the secret is in the log");
    error
}

fn login(server: &RedisServer, login: &str) -> RedisBuilder {
    RedisStore::builder(&server.url().replace("://", &format!("://{login}@")))
}

#[tokio::test]
async fn a_missing_password_is_said() {
    let server = server(&["--requirepass", SECRET], Tls::Off).await;
    let error = complaint(RedisStore::builder(&server.url()), server.port()).await;
    assert_eq!(error, StoreError::Rejected { code: "NOAUTH" });
}

#[tokio::test]
async fn a_wrong_password_is_said() {
    let server = server(&["--requirepass", "another"], Tls::Off).await;
    let error = complaint(login(&server, &format!(":{SECRET}")), server.port()).await;
    assert!(matches!(error, StoreError::Rejected { code: "NOAUTH" | "WRONGPASS" }), "{error:?}");
}

#[tokio::test]
async fn a_user_who_may_not_is_said() {
    let password = format!(">{SECRET}");
    for rights in ["+ping +client", "+@all -script", "+@all -evalsha"] {
        let rights: Vec<&str> = rights.split(' ').collect();
        let user = [&["--user", "app", "on", &password, "~*"][..], &rights].concat();
        let server = server(&user, Tls::Off).await;
        let error = complaint(login(&server, &format!("app:{SECRET}")), server.port()).await;
        assert_eq!(error, StoreError::Rejected { code: "NOPERM" }, "{rights:?}");
    }
}

#[tokio::test]
async fn a_user_who_may_run_the_script_but_not_what_is_in_it_is_said() {
    let password = format!(">{SECRET}");
    for (missing, keys) in [("-time", "~*"), ("-set", "~*"), ("+get", "~other:*")] {
        let user = ["--user", "app", "on", &password, keys, "+@all", missing];
        let server = server(&user, Tls::Off).await;
        complaint(login(&server, &format!("app:{SECRET}")), server.port()).await;
        // Within a script Redis says ERR, so the word alone tells nobody what to do.
        let lines = logged(&format!("127.0.0.1:{}", server.port()));
        let says_why = |line: &&String| line.contains("can't run") || line.contains("NOPERM");
        assert!(lines.iter().any(|line| says_why(&line)), "{missing} {keys}: {lines:#?}");
    }
}

#[tokio::test]
async fn a_user_with_just_the_rights_of_the_docs_decides() {
    let password = format!(">{SECRET}");
    let keys = ["--user", "app", "on", &password, "~tg:*"];
    let user = [&keys[..], &RIGHTS].concat();
    let server = server(&user, Tls::Off).await;
    let store = login(&server, &format!("app:{SECRET}")).deadline(UNHURRIED).connect().await.unwrap();
    assert_eq!(store.ready().await, Ok(()));
    for limit in ["1/d burst 10", "10 every 1d", "1/d queue 9"] {
        OneBucket::new(&limit.parse().unwrap(), "k").run(&store, Op::Charge, 1).await.unwrap();
    }
    let log = Limit::sliding_window_log(10, Micros::new(1_000_000)).unwrap();
    OneBucket::new(&log, "k").run(&store, Op::Charge, 1).await.unwrap();
}

#[tokio::test]
async fn a_certificate_nobody_vouches_for_is_said() {
    let server = server(&[], Tls::On).await;
    let error = complaint(login(&server, &format!(":{SECRET}")), server.port()).await;
    assert_eq!(error, StoreError::Unreachable);

    let strangers = Scratch::new("strangers");
    let stranger = fs::read(Certificates::make(strangers.path()).authority()).unwrap();
    let error = complaint(login(&server, &format!(":{SECRET}")).ca(stranger), server.port()).await;
    assert_eq!(error, StoreError::Unreachable);
}

#[tokio::test]
async fn a_certificate_of_the_authority_that_was_named_is_trusted() {
    let server = server(&["--requirepass", SECRET], Tls::On).await;
    let authority = fs::read(server.certificates().authority()).unwrap();
    let redis = login(&server, &format!(":{SECRET}")).ca(authority).deadline(UNHURRIED);
    assert_eq!(redis.connect().await.unwrap().ready().await, Ok(()));
}

#[tokio::test]
async fn a_redis_that_asks_for_a_certificate_gets_one() {
    let server = server(&[], Tls::Mutual).await;
    let files = server.certificates();
    let read = |path| fs::read(path).unwrap();
    let redis = RedisStore::builder(&server.url()).ca(read(files.authority())).deadline(UNHURRIED);
    let error = complaint(redis.clone(), server.port()).await;
    assert_eq!(error, StoreError::Unreachable);
    let redis = redis.client_certificate(read(files.certificate("client")), read(files.key("client")));
    assert_eq!(redis.connect().await.unwrap().ready().await, Ok(()));
}

#[tokio::test]
async fn a_socket_and_a_database_are_reached() {
    let server = server(&[], Tls::Off).await;
    for url in [format!("unix://{}?db=3", server.socket().display()), format!("{}/3", server.url())] {
        let store = RedisStore::builder(&url).deadline(UNHURRIED).connect().await.unwrap();
        let gate = tollgate::Gate::new("1/d burst 10".parse().unwrap(), store);
        gate.allow("k").await.stored().unwrap();
    }
    let keyspace = server.info("keyspace", "db3").await;
    assert!(keyspace.is_some_and(|line| line.starts_with("keys=")), "nothing was counted in database 3");
    assert_eq!(server.info("keyspace", "db0").await, None);
}

#[tokio::test]
async fn a_url_that_makes_no_sense_does_not_show_its_secret() {
    let urls = [
        format!("http://:{SECRET}@host"),
        format!("redis://:{SECRET}/more@host"),
        format!("redis://:{SECRET}?more@host"),
        format!("redis://:{SECRET}#more@host"),
        format!("redis://:half@{SECRET}/@host"),
        format!("redis://user:{SECRET}@host:not-a-port"),
        format!("redis://host/0?password={SECRET}&db=x"),
        format!("unix:///nowhere?pass={SECRET}"),
        format!("unix:///nowhere?user=u&pass=a@{SECRET}"),
        format!("redis:{SECRET}@host"),
        SECRET.to_owned(),
    ];
    let shows = |url: &&String| {
        let redis = RedisStore::builder(url);
        let error =
            redis.client().map(|_| String::new()).unwrap_or_else(|error| format!("{error} {error:?}"));
        format!("{redis:?} {} {error}", redis.shown()).contains(SECRET)
    };
    let leaks: Vec<_> = urls.iter().filter(shows).collect();
    assert!(leaks.is_empty(), "the secret of these is shown: {leaks:#?}");
}
