//! PostgreSQL that stops answering while rules are followed: how soon that shows, and how soon it is over.

use std::time::Duration;

use sqlx::{Connection as _, Executor as _, PgConnection};
use tollgate::rules::RuleSource;
use tollgate::sql::Database;
use tollgate_tests::fault_proxy::{FaultProxy, Mode};
use tollgate_tests::poll;
use tollgate_tests::postgres::Postgres;
use tollgate_tests::signals::Signal;

use crate::follow::Followed;
use crate::server::Running;
use crate::tables::run;

/// An outage shows within this time.
const VISIBLE_WITHIN: Duration = Duration::from_secs(5);
/// And is over within this time after its end.
const GONE_WITHIN: Duration = Duration::from_secs(2);
/// The poll that a lost notification had to wait for took 30 s, and a read that hung as long again.
const WITHOUT_THE_OLD_POLL: Duration = Duration::from_secs(10);

const FIRST: &str =
    "INSERT INTO rate_limit_rule (name, key_pattern, limit_text) VALUES ('first', 'global', '1/s')";
const RENAME: &str = "UPDATE rate_limit_rule SET name = 'renamed'";

/// A server with one rule, and a connection for the test that the follower does not use.
async fn server() -> (Postgres, Database) {
    let server = Postgres::start();
    let database = Database::open(&format!("{}?application_name=test", server.url())).await.unwrap();
    run(&database, FIRST).await.unwrap();
    (server, database)
}

async fn stale_within(followed: &Followed, within: Duration) -> String {
    poll::within(within, "the outage to show", async || {
        let report = followed.status.report();
        report.stale_since.and(report.error)
    })
    .await
}

async fn fresh_within(followed: &Followed, within: Duration) {
    poll::within(within, "the outage to be over", async || {
        let report = followed.status.report();
        (report.stale_since.is_none() && report.error.is_none()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outage_of_postgres_shows_within_5_s_and_is_over_within_2_s() {
    let (server, database) = server().await;
    let proxy = FaultProxy::start(server.port()).await;
    let url = server.url().replace(&server.port().to_string(), &proxy.port().to_string());
    let followed = Followed::start(RuleSource::database(&url)).await;
    let mut number = 0;
    for mode in [Mode::Blackhole, Mode::Forget, Mode::Refuse, Mode::Reset] {
        proxy.set(mode).await;
        stale_within(&followed, VISIBLE_WITHIN).await;
        // A change that is made meanwhile is in effect as soon as the outage is over.
        number += 1;
        let name = format!("after {number}");
        run(&database, &format!("UPDATE rate_limit_rule SET name = '{name}'")).await.unwrap();
        proxy.set(Mode::Pass).await;
        poll::within(GONE_WITHIN, "the change to be in effect", async || {
            (followed.labels() == [name.as_str()]).then_some(())
        })
        .await;
        fresh_within(&followed, GONE_WITHIN).await;
    }
    database.close().await;
}

/// The processes of the server that serve the follower.
async fn backends(database: &Database) -> Vec<u32> {
    let tollgate::sql::Pool::Postgres(pool) = database.pool() else { unreachable!("opened as PostgreSQL") };
    let pids: Vec<i32> =
        sqlx::query_scalar("SELECT pid FROM pg_stat_activity WHERE application_name = 'tollgate'")
            .fetch_all(pool)
            .await
            .unwrap();
    pids.into_iter().map(|pid| u32::try_from(pid).unwrap()).collect()
}

/// Stopped processes go on when the test ends, however it ends.
struct Stopped(Vec<u32>);

impl Stopped {
    fn stop(pids: Vec<u32>) -> Self {
        pids.iter().for_each(|pid| Signal::Stop.send(*pid));
        Stopped(pids)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.iter().for_each(|pid| Signal::Continue.send(*pid));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn change_is_obeyed_although_every_connection_of_the_follower_is_silent() {
    let (server, database) = server().await;
    let followed = Followed::start(RuleSource::database(&server.url())).await;
    // It has settled: what follows is not the first read.
    run(&database, "UPDATE rate_limit_rule SET name = 'settled'").await.unwrap();
    followed.until_the_rules_are(&["settled"]).await;
    let stopped = Stopped::stop(backends(&database).await);
    assert!(!stopped.0.is_empty());
    run(&database, RENAME).await.unwrap();
    poll::within(WITHOUT_THE_OLD_POLL, "the change to be in effect", async || {
        (followed.labels() == ["renamed"]).then_some(())
    })
    .await;
    fresh_within(&followed, GONE_WITHIN).await;
    drop(stopped);
    database.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn read_that_waits_for_a_lock_is_stale_with_the_reason_and_repeated_when_the_lock_is_gone() {
    let (server, database) = server().await;
    let followed = Followed::start(RuleSource::database(&server.url())).await;
    followed.until_the_rules_are(&["first"]).await;
    // The second transaction waits for the first, and has the lock before the follower reads what was committed.
    let mut first = PgConnection::connect(&server.url()).await.unwrap();
    first.execute("BEGIN").await.unwrap();
    first.execute(RENAME).await.unwrap();
    let mut second = PgConnection::connect(&server.url()).await.unwrap();
    let locking = tokio::spawn(async move {
        second.execute("BEGIN; LOCK TABLE rate_limit_rule IN ACCESS EXCLUSIVE MODE").await.unwrap();
        second
    });
    poll::until("the second transaction to wait", async || {
        let waiting = "SELECT CAST(count(*) AS text) FROM pg_locks WHERE NOT granted";
        (crate::tables::text(&database, waiting).await.as_deref() == Some("1")).then_some(())
    })
    .await;
    first.execute("COMMIT").await.unwrap();
    let mut second = locking.await.unwrap();
    let error = stale_within(&followed, VISIBLE_WITHIN).await;
    assert!(error.contains("lock"), "{error}");
    assert_eq!(followed.labels(), ["first"]);
    second.execute("ROLLBACK").await.unwrap();
    poll::within(GONE_WITHIN, "the change to be in effect", async || {
        (followed.labels() == ["renamed"]).then_some(())
    })
    .await;
    fresh_within(&followed, GONE_WITHIN).await;
    database.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_on_a_locked_table_are_answered_503_with_the_reason() {
    let (server, database) = server().await;
    let api = Running::start(&server.url()).await;
    let mut locking = PgConnection::connect(&server.url()).await.unwrap();
    locking
        .execute(
            "BEGIN; LOCK TABLE rate_limit_rule, rate_limit_rule_history, rate_limit_violation \
             IN ACCESS EXCLUSIVE MODE",
        )
        .await
        .unwrap();
    let rule = r#"{"name": "new", "key": "global", "limit": "1/s"}"#;
    let answers = tokio::join!(
        api.ask("GET", "/v1/rules", ""),
        api.ask("POST", "/v1/rules", rule),
        api.ask("GET", "/v1/rules/history", ""),
        api.ask("GET", "/v1/violations", ""),
    );
    for (status, answer) in [answers.0, answers.1, answers.2, answers.3] {
        let detail = answer["detail"].as_str().unwrap_or_default();
        assert!(status == 503 && detail.contains("holds a lock"), "{status} {answer}");
    }
    locking.execute("ROLLBACK").await.unwrap();
    api.expect(200, "GET", "/v1/rules", "").await;
    api.expect(201, "POST", "/v1/rules", rule).await;
    database.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_on_a_silent_database_are_answered_503_and_the_next_ones_are_served() {
    let (server, database) = server().await;
    let api = Running::start(&server.url()).await;
    api.expect(200, "GET", "/v1/rules", "").await;
    let stopped = Stopped::stop(backends(&database).await);
    // Connections that were open give no answer and are replaced.
    poll::within(Duration::from_secs(60), "a request to be served", async || {
        match api.ask("GET", "/v1/rules", "").await {
            (200, _) => Some(()),
            (503, _) => None,
            (status, answer) => panic!("{status} {answer}"),
        }
    })
    .await;
    drop(stopped);
    database.close().await;
}
