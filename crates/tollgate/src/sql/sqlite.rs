//! SQLite: a file of our own, readable by its owner.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::str::FromStr as _;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};

use super::{DatabaseError, PATIENCE, Pool, address, is_up_to_date, migrator, quiet, tables_error};

/// From this version on a write-ahead log cannot be reset under a reader.
const OLDEST: [u32; 3] = [3, 51, 3];
/// One writes, the others read.
const CONNECTIONS: u32 = 4;
const TABLES: &[(i64, &str)] = &[
    (1, include_str!("../../migrations/sqlite/0001_rules.sql")),
    (3, include_str!("../../migrations/sqlite/0003_rule_checks.sql")),
];
/// The most tries for the lock that turns the write-ahead log on, and the pause between them.
const TRIES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);

/// Opens the file, making it if it is missing, and brings its tables up to date.
pub(super) async fn open(url: &str, shown: &str) -> Result<Pool, DatabaseError> {
    let refused = |source| DatabaseError::Open { shown: shown.to_owned(), source };
    let options = options(url, shown)?;
    let path = options.get_filename().to_owned();
    // `ro` and `rw` open what is there; `rwc`, as no mode at all, also makes it.
    if !url.contains("mode=r") || url.contains("mode=rwc") {
        make_private(&path).map_err(|source| DatabaseError::File { path: path.clone(), source })?;
    }
    let mut connection = options.connect().await.map_err(refused)?;
    check_version(&mut connection).await?.map_err(refused)?;
    prepare(&mut connection, shown).await?;
    connection.close().await.map_err(refused)?;
    pool().connect_with(options).await.map(Pool::Sqlite).map_err(refused)
}

/// The file as it will be when it is first asked.
pub(super) fn later(url: &str, shown: &str) -> Result<Pool, DatabaseError> {
    Ok(Pool::Sqlite(pool().connect_lazy_with(options(url, shown)?)))
}

fn options(url: &str, shown: &str) -> Result<SqliteConnectOptions, DatabaseError> {
    let refused = |source| DatabaseError::Open { shown: shown.to_owned(), source };
    if let Some(name) = address::unknown_parameter(url, &["mode", "cache", "immutable", "vfs"]) {
        return Err(DatabaseError::Parameter { shown: shown.to_owned(), name: name.to_owned() });
    }
    Ok(quiet(SqliteConnectOptions::from_str(url).map_err(refused)?)
        .create_if_missing(false)
        .foreign_keys(true)
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(PATIENCE))
}

fn pool() -> SqlitePoolOptions {
    SqlitePoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(PATIENCE)
}

/// Makes an empty file with mode 0600; SQLite gives its logs the mode of the file they belong to.
fn make_private(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

async fn check_version(connection: &mut SqliteConnection) -> Result<Result<(), sqlx::Error>, DatabaseError> {
    let version: Result<String, _> =
        sqlx::query_scalar("SELECT sqlite_version()").fetch_one(connection).await;
    match version {
        Ok(version) if parts(&version) < OLDEST => Err(DatabaseError::OldSqlite { version }),
        version => Ok(version.map(|_| ())),
    }
}

fn parts(version: &str) -> [u32; 3] {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    std::array::from_fn(|_| parts.next().unwrap_or(0))
}

/// Turns the write-ahead log on and brings the tables up to date, alone among all processes that try.
async fn prepare(connection: &mut SqliteConnection, shown: &str) -> Result<(), DatabaseError> {
    let migrator = migrator(TABLES);
    if is_up_to_date(connection, &migrator).await {
        return Ok(());
    }
    let refused = |source| DatabaseError::Open { shown: shown.to_owned(), source };
    use_write_ahead_log(connection).await.map_err(refused)?;
    let mut alone = connection.begin_with("BEGIN IMMEDIATE").await.map_err(refused)?;
    migrator.run_direct(None, &mut *alone, false).await.map_err(|error| tables_error(shown, error))?;
    alone.commit().await.map_err(refused)
}

/// SQLite does not wait for the lock that this needs, so we do.
async fn use_write_ahead_log(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    for _ in 1..TRIES {
        match sqlx::query("PRAGMA journal_mode = WAL").execute(&mut *connection).await {
            Err(error) if super::is_transient(&error) => tokio::time::sleep(PAUSE).await,
            done => return done.map(|_| ()),
        }
    }
    sqlx::query("PRAGMA journal_mode = WAL").execute(connection).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(parts("3.51.3") >= OLDEST && parts("3.100.0") > OLDEST && parts("4") > OLDEST);
        assert!(parts("3.51.2") < OLDEST && parts("3.9.9") < OLDEST);
    }
}
