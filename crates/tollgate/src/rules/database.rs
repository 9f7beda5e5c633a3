//! Rules in the table `rate_limit_rule`.

use std::time::Duration;

#[cfg(feature = "postgres")]
use sqlx::postgres::PgListener;
use tollgate_core::RuleSet;

use super::rows::Builder;
use super::source::{Loaded, SourceError, off_thread};
use crate::sql::{self, Database, DatabaseError, Pool, each};

/// Where PostgreSQL tells of changes.
#[cfg(feature = "postgres")]
const CHANNEL: &str = "tollgate_rules";
/// How often SQLite, which cannot tell of changes, is asked.
#[cfg(feature = "sqlite")]
const ASK_SQLITE_EVERY: Duration = Duration::from_millis(500);
/// How often PostgreSQL is asked in case a notification was lost.
#[cfg(feature = "postgres")]
const ASK_POSTGRES_EVERY: Duration = Duration::from_secs(30);
/// How soon a database that could not be reached is tried again.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Rows that are read before they are turned into rules on another thread.
const PAGE: i64 = 5_000;

/// The rules of a database. It is opened when it is first asked.
#[derive(Debug)]
pub struct DatabaseSource {
    url: String,
    shown: String,
    database: Option<Database>,
    #[cfg(feature = "postgres")]
    listener: Option<PgListener>,
}

impl DatabaseSource {
    pub(super) fn new(url: &str) -> Self {
        DatabaseSource {
            url: url.to_owned(),
            shown: sql::masked(url),
            database: None,
            #[cfg(feature = "postgres")]
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
        let database = self.database().await?;
        database.verify()?;
        let Some((builder, version)) = read(database, known).await? else { return Ok(None) };
        let shown = self.shown.clone();
        let rules: RuleSet = off_thread(move || builder.finish(&shown)).await??;
        Ok(Some(Loaded { rules, version }))
    }

    pub(super) async fn changed(&mut self) {
        match self.database.as_ref().map(Database::pool) {
            None => tokio::time::sleep(TRY_AGAIN_AFTER).await,
            #[cfg(feature = "sqlite")]
            Some(Pool::Sqlite(_)) => tokio::time::sleep(ASK_SQLITE_EVERY).await,
            #[cfg(feature = "postgres")]
            Some(Pool::Postgres(pool)) => {
                let pool = pool.clone();
                self.notified(&pool).await;
            }
        }
    }

    /// Waits for a notification, or for the time to ask without one.
    #[cfg(feature = "postgres")]
    async fn notified(&mut self, pool: &sqlx::PgPool) {
        let Some(listener) = &mut self.listener else {
            match listen(pool).await {
                // What happened before we listened is worth a look at once.
                Ok(listener) => self.listener = Some(listener),
                Err(_) => tokio::time::sleep(TRY_AGAIN_AFTER).await, // the next load says why
            }
            return;
        };
        // `Ok(None)`: the connection was lost and is back, and anything may have happened in between.
        let lost = match tokio::time::timeout(ASK_POSTGRES_EVERY, listener.try_recv()).await {
            Ok(heard) => heard.is_err(),
            Err(_) => false,
        };
        if lost {
            self.listener = None;
        }
    }
}

#[cfg(feature = "postgres")]
async fn listen(pool: &sqlx::PgPool) -> Result<PgListener, sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(CHANNEL).await?;
    Ok(listener)
}

/// All rows of one instant on their way to a set, unless they are those of version `known`.
async fn read(database: &Database, known: Option<&str>) -> Result<Option<(Builder, String)>, SourceError> {
    let begin = one_snapshot(database);
    each!(database, pool => {
        let failed = |error| SourceError::Database(database.error(error));
        let mut snapshot = pool.begin_with(begin).await.map_err(failed)?;
        let version: i64 = sqlx::query_scalar("SELECT version FROM rate_limit_rule_set")
            .fetch_one(&mut *snapshot).await.map_err(failed)?;
        let version = version.to_string();
        if known == Some(&version) {
            return Ok(None);
        }
        let (mut builder, mut last) = (Builder::default(), i64::MIN);
        loop {
            let rows: Vec<(i64, String)> = sqlx::query_as(ROWS)
                .bind(last).bind(PAGE).fetch_all(&mut *snapshot).await.map_err(failed)?;
            let Some((id, _)) = rows.last() else { break };
            last = *id;
            builder = off_thread(move || {
                builder.add_json(&rows);
                builder
            }).await?;
        }
        snapshot.commit().await.map_err(failed)?;
        Ok(Some((builder, version)))
    })
}

const ROWS: &str = "SELECT rule_id, CAST(rule AS TEXT) FROM rate_limit_rule_json \
                    WHERE rule_id > $1 ORDER BY rule_id LIMIT $2";

/// How a transaction begins that sees one instant and nothing later.
fn one_snapshot(database: &Database) -> &'static str {
    match database.pool() {
        #[cfg(feature = "sqlite")]
        Pool::Sqlite(_) => "BEGIN",
        #[cfg(feature = "postgres")]
        Pool::Postgres(_) => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    }
}
