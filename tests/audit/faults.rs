//! The database is stopped, slow, or full: decisions go on, and the books stay right.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tollgate::Micros;
use tollgate::audit::{ViolationLog, ViolationStats};
use tollgate::sql::Pool;

use crate::databases::Fresh;
use crate::recorded::{PATIENCE, Recorded, in_the_table, until};

/// A PostgreSQL that does not move, neither the server nor any of its processes, until this is dropped.
pub(crate) struct Frozen(Vec<String>);

impl Frozen {
    pub(crate) async fn freeze(fresh: &Fresh) -> Self {
        let Pool::Postgres(pool) = fresh.database.pool() else { panic!("only a server can be frozen") };
        let folder: String = sqlx::query_scalar("SHOW data_directory").fetch_one(pool).await.unwrap();
        let text = fs::read_to_string(Path::new(&folder).join("postmaster.pid")).unwrap();
        let server = text.lines().next().unwrap().trim().to_owned();
        signal("STOP", &server); // first, so that it starts no others
        let mut processes = children(&server);
        for process in &processes {
            signal("STOP", process);
        }
        processes.extend([parent(&server), server]); // runuser stops itself when what it runs is stopped
        Frozen(processes)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for process in &self.0 {
            signal("CONT", process);
        }
    }
}

fn signal(signal: &str, process: &str) {
    let done = Command::new("kill").args([&format!("-{signal}"), process]).status().unwrap();
    assert!(done.success() || signal == "CONT");
}

fn parent(process: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().to_owned()
}

fn children(parent: &str) -> Vec<String> {
    let file = format!("/proc/{parent}/task/{parent}/children");
    fs::read_to_string(file).unwrap().split_whitespace().map(str::to_owned).collect()
}

/// What the books say is what is in the table.
async fn assert_the_books_are_right(stats: ViolationStats, fresh: &Fresh) {
    assert_eq!(stats.produced, stats.written + stats.dropped, "{stats:?}");
    assert_eq!(stats.pending, 0, "{stats:?}");
    assert_eq!(in_the_table(&fresh.database).await.1, i64::try_from(stats.written).unwrap(), "{stats:?}");
}

/// Refuses 200 users, 20 times each.
fn refuse_many(recorded: &Recorded, tag: &str) {
    for user in 0..200 {
        recorded.refuse(&format!("{tag}-{user}"), 20);
    }
}

async fn some_are_written(recorded: &Recorded) {
    recorded.settled().await;
    assert_eq!(recorded.violations.stats().dropped, 0);
    assert!(recorded.violations.stats().written > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_stopped_and_comes_back_gets_all_there_was_room_for() {
    let mut fresh = Fresh::postgres().await;
    let recorded = Recorded::with_room(4_000);
    let writer = recorded.writer(ViolationLog::new(fresh.database.clone()));
    refuse_many(&recorded, "before");
    some_are_written(&recorded).await;

    fresh.postgres.as_mut().unwrap().crash();
    for second in 0..50 {
        refuse_many(&recorded, &format!("meanwhile-{second}"));
        recorded.clock.advance(Micros::new(1_000_000));
    }
    let stats = recorded.violations.stats();
    assert_eq!(stats.produced, 51 * 200 * 20);
    assert!(stats.dropped > 0 && stats.pending > 0, "{stats:?}");

    fresh.postgres.as_mut().unwrap().resume();
    until(|| "it is written again".to_owned(), || async { recorded.violations.stats().pending == 0 }).await;
    refuse_many(&recorded, "after");
    recorded.settled().await;
    assert_eq!(recorded.violations.stats().dropped, stats.dropped, "nothing is dropped any more");
    assert_the_books_are_right(writer.shutdown(PATIENCE).await, &fresh).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_server_gone_a_shutdown_ends_in_time_and_counts_the_rest_as_dropped() {
    let mut fresh = Fresh::postgres().await;
    let recorded = Recorded::with_room(4_000);
    let writer = recorded.writer(ViolationLog::new(fresh.database.clone()));
    refuse_many(&recorded, "before");
    some_are_written(&recorded).await;

    fresh.postgres.as_mut().unwrap().crash();
    refuse_many(&recorded, "meanwhile");
    let stats = tokio::time::timeout(PATIENCE, writer.shutdown(Duration::from_millis(200))).await.unwrap();
    assert_eq!((stats.written, stats.dropped, stats.pending), (4_000, 4_000, 0));
    fresh.postgres.as_mut().unwrap().resume();
    assert_the_books_are_right(stats, &fresh).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_delays_no_decision_and_gets_everything_in_the_end() {
    let fresh = Fresh::postgres().await;
    let recorded = Recorded::with_room(100_000);
    let writer = recorded.writer(ViolationLog::new(fresh.database.clone()));
    refuse_many(&recorded, "before");
    some_are_written(&recorded).await;

    let frozen = Frozen::freeze(&fresh).await;
    for second in 0..20 {
        refuse_many(&recorded, &format!("meanwhile-{second}")); // each decision is there at the first poll
        recorded.clock.advance(Micros::new(1_000_000));
        tokio::task::yield_now().await;
    }
    let stats = recorded.violations.stats();
    assert_eq!((stats.produced, stats.written, stats.dropped), (21 * 4_000, 4_000, 0));
    drop(frozen);
    recorded.settled().await;
    let stats = writer.shutdown(PATIENCE).await;
    assert_eq!(stats.written, 21 * 4_000);
    assert_the_books_are_right(stats, &fresh).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_drops_what_finds_no_room_and_heals() {
    let fresh = Fresh::sqlite().await;
    let recorded = Recorded::with_room(2_000);
    let writer = recorded.writer(ViolationLog::new(fresh.database.clone()));
    refuse_many(&recorded, "before");
    some_are_written(&recorded).await;

    let pages = most_pages(&fresh, 1).await; // no more than there are
    for second in 0..50 {
        refuse_many(&recorded, &format!("meanwhile-{second}"));
        recorded.clock.advance(Micros::new(1_000_000));
        tokio::task::yield_now().await;
    }
    let stats = recorded.violations.stats();
    assert!(stats.dropped > 0 && stats.pending > 0, "{stats:?}");
    // What still fits is written meanwhile, so the table and the books agree at some instant, not at every one.
    let agree = || async {
        let written = recorded.violations.stats().written;
        in_the_table(&fresh.database).await.1 == i64::try_from(written).unwrap()
    };
    until(|| "the table and the books agree".to_owned(), agree).await;

    most_pages(&fresh, pages + 10_000).await;
    until(|| "it is written again".to_owned(), || async { recorded.violations.stats().pending == 0 }).await;
    let stats = writer.shutdown(PATIENCE).await;
    assert!(stats.written > 4_000, "{stats:?}");
    assert_the_books_are_right(stats, &fresh).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_at_shutdown_is_counted_as_dropped() {
    let fresh = Fresh::sqlite().await;
    let recorded = Recorded::with_room(100_000);
    most_pages(&fresh, 1).await;
    let writer = recorded.writer(ViolationLog::new(fresh.database.clone()));
    for second in 0..20 {
        refuse_many(&recorded, &format!("{second}"));
    }
    let stats = writer.shutdown(Duration::from_millis(300)).await;
    assert_eq!(stats.produced, 20 * 4_000);
    assert!(stats.dropped > 0, "{stats:?}");
    assert_the_books_are_right(stats, &fresh).await;
}

/// Lets every connection of the pool use so many pages; answers how many there are.
async fn most_pages(fresh: &Fresh, pages: u32) -> u32 {
    let Pool::Sqlite(pool) = fresh.database.pool() else { panic!("only a file has pages") };
    let mut connections = Vec::new();
    for _ in 0..pool.options().get_max_connections() {
        connections.push(pool.acquire().await.unwrap());
    }
    let mut most = 0;
    for connection in &mut connections {
        let statement = sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"));
        most = sqlx::query_scalar(statement).fetch_one(&mut **connection).await.unwrap();
    }
    most
}
