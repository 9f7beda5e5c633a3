//! Rules in the table `rate_limit_rule`.
//!
//! The number of the set (`rate_limit_rule_set.version`) is read regularly and the rows only when it has changed. With
//! PostgreSQL one connection does all of it: it listens for notifications, and reads the number once a second. A
//! connection that no longer answers is therefore noticed by the next read, whatever it was used for, and replaced.

use std::time::Duration;

use sqlx::Acquire as _;
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Connection as _};
use tollgate_core::RuleSet;

use super::book::bytes;
use super::rows::{Builder, RowsError};
use super::source::{Loaded, SourceError, off_thread};
use crate::sql::{self, Database, DatabaseError, Pool};

/// Where PostgreSQL tells of changes.
const CHANNEL: &str = "tollgate_rules";
/// How often SQLite, which cannot tell of changes, is asked.
const ASK_SQLITE_EVERY: Duration = Duration::from_millis(500);
/// How often PostgreSQL is asked although no notification arrived: a notification can be lost, and a connection that
/// was cut off silently shows only by a question without an answer.
const ASK_POSTGRES_EVERY: Duration = Duration::from_secs(1);
/// How soon a read that failed is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// The longest time to connect again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest time for one statement. Together with the interval between two questions it bounds how late an outage is
/// noticed. SQLite waits for a lock on its own, and says so.
const POSTGRES_TIMEOUT: Duration = Duration::from_secs(2);
const SQLITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Rows that are read by one statement, and then turned into rules on another thread.
const PAGE: i64 = 1_000;

const VERSION: &str = "SELECT version FROM rate_limit_rule_set";

/// Reads all rows of one instant over a connection, unless their version is known.
macro_rules! read {
    ($database:expr, $connection:expr, $begin:expr, $within:expr, $is_known:expr) => {{
        let (database, within) = (&$database, $within);
        let version = || sqlx::query_scalar::<_, i64>(VERSION);
        let seen = database.run_within(within, version().fetch_one(&mut *$connection)).await?.to_string();
        if $is_known(&seen) {
            return Ok(Found::Known(seen));
        }
        let mut snapshot = database.run_within(within, $connection.begin_with($begin)).await?;
        let version = database.run_within(within, version().fetch_one(&mut *snapshot)).await?;
        let (mut builder, mut next) = (Builder::default(), Some(i64::MIN));
        while let Some(first) = next {
            let page = sqlx::query_as(rows_from(database)).bind(first).bind(PAGE);
            let rows: Vec<(i64, Vec<u8>)> =
                database.run_within(within, page.fetch_all(&mut *snapshot)).await?;
            next = rows.last().and_then(|(rule_id, _)| rule_id.checked_add(1));
            builder = off_thread(move || {
                builder.add_json(&rows);
                builder
            })
            .await?;
        }
        database.run_within(within, snapshot.commit()).await?;
        Ok(Found::New(builder, version.to_string()))
    }};
}

/// The rules of a database. It is opened when it is first asked.
#[derive(Debug)]
pub struct DatabaseSource {
    url: String,
    shown: String,
    database: Option<Database>,
    /// Whether the last read failed, so that the next one is soon.
    failed: bool,
    /// The newest version that was read and is invalid, and why. It is not read again.
    refused: Option<(String, RowsError)>,
    listener: Option<PgListener>,
}

/// What a read found.
enum Found {
    /// The version that is in use or was refused.
    Known(String),
    /// Another one.
    New(Builder, String),
}

impl DatabaseSource {
    pub(super) fn new(url: &str) -> Self {
        DatabaseSource {
            url: url.to_owned(),
            shown: sql::masked(url),
            database: None,
            failed: false,
            refused: None,
            listener: None,
        }
    }

    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// The database, opened if it was not.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub async fn database(&mut self) -> Result<&Database, DatabaseError> {
        if self.database.is_none() {
            self.database = Some(Database::open(&self.url).await?);
        }
        Ok(self.database.as_ref().expect("opened above"))
    }

    pub(super) async fn load(&mut self, known: Option<&str>) -> Result<Option<Loaded>, SourceError> {
        self.failed = true; // also if this is cancelled
        let found = self.find(known).await;
        if found.is_err() {
            self.listener = None;
        }
        let found = found?;
        self.failed = false;
        let (builder, version) = match found {
            Found::New(builder, version) => (builder, version),
            Found::Known(version) => {
                return match &self.refused {
                    Some((refused, error)) if *refused == version => Err(error.clone().into()),
                    _ => Ok(None),
                };
            }
        };
        let shown = self.shown.clone();
        let rules: Result<RuleSet, RowsError> = off_thread(move || builder.finish(&shown)).await?;
        self.refused = rules.as_ref().err().map(|error| (version.clone(), error.clone()));
        Ok(Some(Loaded { rules: rules?, version }))
    }

    async fn find(&mut self, known: Option<&str>) -> Result<Found, SourceError> {
        let database = self.database().await?.clone();
        database.verify()?;
        let refused = self.refused.as_ref().map(|(version, _)| version.clone());
        let is_known = |version: &str| known == Some(version) || refused.as_deref() == Some(version);
        match database.pool() {
            Pool::Sqlite(pool) => {
                let mut connection = database.run_within(SQLITE_TIMEOUT, pool.acquire()).await?;
                read!(database, connection, "BEGIN", SQLITE_TIMEOUT, is_known)
            }
            Pool::Postgres(pool) => {
                if self.listener.is_none() {
                    let listen = sql::listen(pool, CHANNEL);
                    self.listener = Some(database.run_within(CONNECT_TIMEOUT, listen).await?);
                }
                let listener = self.listener.as_mut().expect("connected above");
                let connection = database.run_within(CONNECT_TIMEOUT, listener.acquire()).await?;
                let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
                read!(database, connection, begin, POSTGRES_TIMEOUT, is_known)
            }
        }
    }

    pub(super) async fn changed(&mut self) {
        match self.database.as_ref().map(Database::pool) {
            _ if self.failed => tokio::time::sleep(RETRY_DELAY).await,
            None => tokio::time::sleep(RETRY_DELAY).await,
            Some(Pool::Sqlite(_)) => tokio::time::sleep(ASK_SQLITE_EVERY).await,
            Some(Pool::Postgres(_)) => self.notified().await,
        }
    }

    /// Waits for a notification, or for the time to ask without one.
    async fn notified(&mut self) {
        let Some(listener) = &mut self.listener else { return };
        let heard = tokio::time::timeout(ASK_POSTGRES_EVERY, listener.try_recv()).await;
        // `Ok(None)`: the connection was lost.
        if matches!(heard, Ok(Ok(None) | Err(_))) {
            self.listener = None;
        }
    }
}

/// A page of rows from a number on.
fn rows_from(database: &Database) -> AssertSqlSafe<String> {
    let rule = bytes(database, "rule");
    AssertSqlSafe(format!(
        "SELECT rule_id, {rule} FROM rate_limit_rule_json WHERE rule_id >= $1 ORDER BY rule_id LIMIT $2"
    ))
}
