//! PostgreSQL: one database for a fleet.

use std::str::FromStr as _;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, PgPool};

use super::{CONNECT_TIMEOUT, DatabaseError, Pool, address, is_up_to_date, migrator, quiet, tables_error};

/// For each node of the fleet.
const CONNECTIONS: u32 = 5;
/// The longest wait for a lock, so that a request on a locked table is answered with the reason.
const LOCK_TIMEOUT: &str = "SET lock_timeout = '5s'";
/// The same for the connection that follows the rules, whose reads are repeated.
const FOLLOWER_LOCK_TIMEOUT: &str = "SET lock_timeout = '1500ms'";
/// A connection that was given back and does not answer within this time is closed.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
const TABLES: &[&str] = &[
    include_str!("../../migrations/postgres/0001_rules.sql"),
    include_str!("../../migrations/postgres/0002_numbers.sql"),
    include_str!("../../migrations/postgres/0003_rule_checks.sql"),
];
const PARAMETERS: &[&str] = &[
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

/// Brings the tables up to date under an advisory lock. On an error the lock goes with the connection.
pub(super) async fn prepare(pool: &PgPool, shown: &str) -> Result<(), DatabaseError> {
    let refused = |source| DatabaseError::Open { shown: shown.to_owned(), source };
    let options = pool.connect_options();
    let connect = tokio::time::timeout(CONNECT_TIMEOUT, options.connect());
    let mut connection = connect.await.map_err(|_| refused(sqlx::Error::PoolTimedOut))?.map_err(refused)?;
    let migrator = migrator(TABLES);
    if !is_up_to_date(&mut connection, &migrator).await {
        let migrated = migrator.run_direct(None, &mut connection, false).await;
        migrated.map_err(|error| tables_error(shown, error))?;
    }
    connection.close().await.map_err(refused)
}

/// A connection of its own that is told of changes on a channel and also answers queries. It does not come from the pool:
/// one that hangs does not reduce the connections for requests.
pub(crate) async fn listen(pool: &PgPool, channel: &str) -> Result<PgListener, sqlx::Error> {
    let options = PgConnectOptions::clone(&pool.connect_options());
    let own = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&own).await?;
    listener.eager_reconnect(false);
    listener.execute(FOLLOWER_LOCK_TIMEOUT).await?;
    listener.listen(channel).await?;
    Ok(listener)
}

/// The server as it will be when it is first asked.
pub(super) fn later(url: &str, shown: &str) -> Result<Pool, DatabaseError> {
    Ok(Pool::Postgres(pool().connect_lazy_with(options(url, shown)?)))
}

fn options(url: &str, shown: &str) -> Result<PgConnectOptions, DatabaseError> {
    let refused = |source| DatabaseError::Open { shown: shown.to_owned(), source };
    if let Some(name) = address::unknown_parameter(url, PARAMETERS) {
        return Err(DatabaseError::Parameter { shown: shown.to_owned(), name: name.to_owned() });
    }
    let options = quiet(PgConnectOptions::from_str(url).map_err(refused)?);
    Ok(match options.get_application_name() {
        Some(_) => options,
        None => options.application_name("tollgate"),
    })
}

fn pool() -> PgPoolOptions {
    PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(CONNECT_TIMEOUT)
        .after_connect(|connection, _| {
            Box::pin(async move { connection.execute(LOCK_TIMEOUT).await.map(|_| ()) })
        })
        // A query that was given up may hang on the server. Without this, its connection would never be replaced.
        .after_release(|connection, _| {
            Box::pin(async move {
                let answered = tokio::time::timeout(RELEASE_TIMEOUT, connection.ping()).await;
                answered.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map(|()| true)
            })
        })
}
