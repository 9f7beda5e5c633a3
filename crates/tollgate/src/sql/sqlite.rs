//! SQLite: a file of our own, readable by its owner.

use std::str::FromStr as _;
use std::time::Duration;

use sqlx::migrate::MigrateError;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, SqlitePool};

use super::file::{DatabaseFile, is_read_only};
use super::{CONNECT_TIMEOUT, DatabaseError, Pool, address, is_up_to_date, migrator, quiet, tables_error};

/// From this version on a write-ahead log cannot be reset under a reader.
const OLDEST: [u32; 3] = [3, 51, 3];
/// One writes, the others read.
const CONNECTIONS: u32 = 4;
const TABLES: &[&str] = &[
    include_str!("../../migrations/sqlite/0001_rules.sql"),
    include_str!("../../migrations/sqlite/0002_numbers.sql"),
    include_str!("../../migrations/sqlite/0003_rule_checks.sql"),
];
/// The most tries for the lock that turns the write-ahead log on, and the pause between them.
const TRIES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);

/// Makes the file if it is missing, and brings its tables up to date.
pub(super) async fn prepare(
    pool: &SqlitePool,
    file: &DatabaseFile,
    shown: &str,
) -> Result<(), DatabaseError> {
    let options = pool.connect_options();
    let refused = |source| file.cannot_open(source);
    // `ro` and `rw` open what is there; `rwc`, as no mode at all, also makes it.
    if file.is_new()? && (!shown.contains("mode=r") || shown.contains("mode=rwc")) {
        make(&options, file, shown).await?;
    }
    let mut connection = options.connect().await.map_err(refused)?;
    if let Err(error) = make_tables(&mut connection).await {
        return Err(match error {
            PrepareError::Sql(error) if is_read_only(&error) && shown.contains("mode=ro") => {
                DatabaseError::OtherTables { shown: shown.to_owned() }
            }
            error => error.explain(file, shown),
        });
    }
    connection.close().await.map_err(refused)?;
    file.verify()
}

/// Makes a database with its tables under another name and then renames it: a file with the final name is complete, and
/// an empty file is never the result of an interrupted start.
async fn make(options: &SqliteConnectOptions, file: &DatabaseFile, shown: &str) -> Result<(), DatabaseError> {
    let unfinished = file.unfinished()?;
    let made = async {
        let mut connection = options.clone().filename(&unfinished).connect().await?;
        make_tables(&mut connection).await?;
        Ok(connection.close().await?)
    };
    if let Err(error) = made.await {
        let _ = std::fs::remove_file(&unfinished);
        return Err(PrepareError::explain(error, file, shown));
    }
    file.finish(&unfinished)
}

/// The file as it will be when it is first asked.
pub(super) fn later(url: &str, shown: &str) -> Result<(Pool, DatabaseFile), DatabaseError> {
    let options = options(url, shown)?;
    let file = DatabaseFile::new(options.get_filename());
    let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(CONNECT_TIMEOUT);
    Ok((Pool::Sqlite(pool.connect_lazy_with(options)), file))
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
        .busy_timeout(CONNECT_TIMEOUT))
}

async fn check_version(connection: &mut SqliteConnection) -> Result<(), PrepareError> {
    let version: String = sqlx::query_scalar("SELECT sqlite_version()").fetch_one(connection).await?;
    if parts(&version) < OLDEST { Err(PrepareError::Version(version)) } else { Ok(()) }
}

fn parts(version: &str) -> [u32; 3] {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    std::array::from_fn(|_| parts.next().unwrap_or(0))
}

/// Why tables are not up to date.
enum PrepareError {
    Version(String),
    Sql(sqlx::Error),
    Tables(MigrateError),
}

impl PrepareError {
    fn explain(self, file: &DatabaseFile, shown: &str) -> DatabaseError {
        match self {
            PrepareError::Version(version) => DatabaseError::OldSqlite { version },
            PrepareError::Sql(source) | PrepareError::Tables(MigrateError::Execute(source)) => {
                file.cannot_open(source)
            }
            PrepareError::Tables(error) => tables_error(shown, error),
        }
    }
}

impl From<sqlx::Error> for PrepareError {
    fn from(error: sqlx::Error) -> Self {
        PrepareError::Sql(error)
    }
}

/// Turns the write-ahead log on and brings the tables up to date, alone among all processes that try.
async fn make_tables(connection: &mut SqliteConnection) -> Result<(), PrepareError> {
    check_version(connection).await?;
    let migrator = migrator(TABLES);
    if is_up_to_date(connection, &migrator).await {
        return Ok(());
    }
    use_write_ahead_log(connection).await?;
    let mut alone = connection.begin_with("BEGIN IMMEDIATE").await?;
    migrator.run_direct(None, &mut *alone, false).await.map_err(PrepareError::Tables)?;
    Ok(alone.commit().await?)
}

/// SQLite does not wait for the lock that this needs, so this does.
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
