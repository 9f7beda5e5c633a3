//! PostgreSQL: one database for a fleet.

use std::str::FromStr as _;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection};

use super::{DatabaseError, PATIENCE, Pool, address, is_up_to_date, migrator, quiet, tables_error};

/// For each node of the fleet.
const CONNECTIONS: u32 = 5;
const TABLES: &[&str] = &[
    include_str!("../../migrations/postgres/0001_rules.sql"),
    include_str!("../../migrations/postgres/0002_numbers.sql"),
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

/// Connects and brings the tables up to date.
pub(super) async fn open(url: &str, shown: &str) -> Result<Pool, DatabaseError> {
    let refused = |source| DatabaseError::Open { shown: shown.to_owned(), source };
    let options = options(url, shown)?;
    let connect = tokio::time::timeout(PATIENCE, options.connect());
    let mut connection = connect.await.map_err(|_| refused(sqlx::Error::PoolTimedOut))?.map_err(refused)?;
    prepare(&mut connection, shown).await?;
    connection.close().await.map_err(refused)?;
    pool().connect_with(options).await.map(Pool::Postgres).map_err(refused)
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
    PgPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(PATIENCE)
}

/// Brings the tables up to date under an advisory lock. On an error the lock goes with the connection.
async fn prepare(connection: &mut PgConnection, shown: &str) -> Result<(), DatabaseError> {
    let migrator = migrator(TABLES);
    if is_up_to_date(connection, &migrator).await {
        return Ok(());
    }
    migrator.run_direct(None, connection, false).await.map_err(|error| tables_error(shown, error))
}
