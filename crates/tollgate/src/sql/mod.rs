//! Databases: SQLite in a file, or PostgreSQL for a fleet, behind one [`Database`].
//!
//! Opening one creates its tables, or brings them up to date, under a lock: a fleet may start together. Rules, their
//! history, violations and plans live in the tables that `migrations/` describes, one set for each database.
//!
//! The SQL of both databases is nearly the same, and `$1` is a parameter in both, so most statements are written once and
//! run by `each!` on whichever pool is open.

mod address;
mod file;
mod postgres;
pub(crate) use postgres::listen;
mod sqlite;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sqlx::migrate::{Migrate, MigrateError, Migration, MigrationType, Migrator};
use sqlx::{ConnectOptions, SqlSafeStr as _};

pub use file::FileProblem;

/// How long a query waits for a connection, and a connection for its server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time that one statement of an administrative request may take.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Which migrations were applied; a name that no other program's migrations use.
const MIGRATIONS: &str = "tollgate_migration";

/// An open database with all tables in place. Clones share its connections.
#[derive(Clone)]
pub struct Database {
    pool: Pool,
    shown: Arc<str>,
    file: Option<Arc<file::DatabaseFile>>,
}

/// The connections of a database.
#[derive(Debug, Clone)]
pub enum Pool {
    /// An SQLite file.
    Sqlite(sqlx::SqlitePool),
    /// A PostgreSQL server.
    Postgres(sqlx::PgPool),
}

/// Runs an expression over the pool of a database, whichever it is.
macro_rules! each {
    ($database:expr, $pool:ident => $run:expr) => {
        match $database.pool() {
            $crate::sql::Pool::Sqlite($pool) => $run,
            $crate::sql::Pool::Postgres($pool) => $run,
        }
    };
}
pub(crate) use each;

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseError {
    /// Not the address of a database that this program knows.
    #[error("`{shown}` is not a database; write `sqlite://path/to/file` or `postgres://user@host/name`")]
    Scheme {
        /// The address without its password.
        shown: String,
    },
    /// The address has an unknown parameter.
    #[error("unknown parameter `{name}` in {shown}; remove it or correct its spelling")]
    Parameter {
        /// The address without its password.
        shown: String,
        /// The parameter.
        name: String,
    },
    /// The database's file cannot be made.
    #[error("cannot make the database {}; its folder must exist and be writable", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file of an SQLite database cannot be used as it is.
    #[error("cannot use the database {}: {problem}", path.display())]
    Unusable {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: FileProblem,
        /// What SQLite says, if it was asked.
        source: Option<sqlx::Error>,
    },
    /// The file of an SQLite database cannot be opened.
    #[error("cannot open the database {}; does it exist, and may it be read?", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: sqlx::Error,
    },
    /// The tables are not those of this version, and it may only read.
    #[error(
        "the tables in {shown} are those of another version; `tollgate serve` updates older ones when it starts"
    )]
    OtherTables {
        /// The address without its password.
        shown: String,
    },
    /// The database cannot be reached.
    #[error("cannot open {shown}; is it running, and are name and password right?")]
    Open {
        /// The address without its password.
        shown: String,
        /// Why.
        source: sqlx::Error,
    },
    /// The tables cannot be brought up to date.
    #[error("cannot make the tables in {shown}")]
    Tables {
        /// The address without its password.
        shown: String,
        /// Why.
        source: MigrateError,
    },
    /// The tables were updated by a newer tollgate.
    #[error("the tables in {shown} are those of a newer tollgate; upgrade this one")]
    Newer {
        /// The address without its password.
        shown: String,
    },
    /// The SQLite that this program was built with loses data.
    #[error("this program has SQLite {version}, which may corrupt its files; build it with 3.51.3 or later")]
    OldSqlite {
        /// The version.
        version: String,
    },
    /// The database accepted a query and did not answer it in time.
    #[error("{shown} gave no answer within {within:?}")]
    Slow {
        /// The address without its password.
        shown: String,
        /// The time it had.
        within: Duration,
    },
    /// A query failed.
    #[error("{shown} could not answer")]
    Query {
        /// The address without its password.
        shown: String,
        /// Why.
        source: sqlx::Error,
    },
}

impl DatabaseError {
    /// Whether trying again later may help: the database is down, busy or out of reach.
    pub fn is_transient(&self) -> bool {
        match self {
            DatabaseError::Unusable { problem, .. } => matches!(problem, FileProblem::Full),
            DatabaseError::Read { source, .. } => is_transient(source),
            DatabaseError::Open { source, .. } | DatabaseError::Query { source, .. } => is_transient(source),
            DatabaseError::Tables { source: MigrateError::Execute(source), .. } => is_transient(source),
            DatabaseError::Slow { .. } => true,
            _ => false,
        }
    }

    /// The reason in a few words, where the error itself does not say it: what the database answered, or why the
    /// connection failed.
    pub fn reason(&self) -> Option<String> {
        let (DatabaseError::Open { source, .. } | DatabaseError::Query { source, .. }) = self else {
            return None;
        };
        Some(match source {
            sqlx::Error::Database(error) if error.code().as_deref() == Some(LOCK_NOT_AVAILABLE) => {
                "another transaction holds a lock on the table".to_owned()
            }
            sqlx::Error::Database(error) => error.message().to_owned(),
            source => source.to_string(),
        })
    }

    /// What a constraint of the tables says about the rows that were to be written, if that is the error.
    pub fn violated_constraint(&self) -> Option<&str> {
        let DatabaseError::Query { source: sqlx::Error::Database(error), .. } = self else { return None };
        // 1811: a trigger of SQLite, which cannot add a constraint to a table.
        let is_violation = error.is_unique_violation()
            || error.is_check_violation()
            || error.code().as_deref() == Some("1811");
        is_violation.then(|| error.message())
    }
}

/// PostgreSQL's code for a lock that was not granted within `lock_timeout`.
const LOCK_NOT_AVAILABLE: &str = "55P03";

fn is_transient(error: &sqlx::Error) -> bool {
    use sqlx::Error as E;
    match error {
        E::Io(_) | E::PoolTimedOut | E::PoolClosed | E::WorkerCrashed => true,
        E::Database(error) => error.code().is_some_and(|code| {
            // PostgreSQL: connection trouble, resources, shutdown or cancellation, deadlock, lock timeout.
            // SQLite: busy, locked, disk.
            let classes = ["08", "53", "57", "40", LOCK_NOT_AVAILABLE];
            let results = ["5", "6", "10", "13", "261", "517"];
            classes.iter().any(|class| code.len() == 5 && code.starts_with(class))
                || results.contains(&&*code)
        }),
        _ => false,
    }
}

impl Database {
    /// Opens `sqlite://path` or `postgres://user:password@host/name`, and makes or updates its tables.
    ///
    /// An SQLite file is made if it is missing, readable by its owner only. `sqlite:///var/lib/rules.db` is an absolute
    /// path, `sqlite://rules.db` a relative one.
    ///
    /// # Errors
    ///
    /// The address is invalid, the database cannot be reached, or its tables cannot be brought up to date.
    pub async fn open(url: &str) -> Result<Self, DatabaseError> {
        let database = Self::later(url)?;
        database.prepare().await?;
        Ok(database)
    }

    /// Makes or updates the tables, and an SQLite file that is missing.
    ///
    /// # Errors
    ///
    /// The database cannot be reached, or the tables cannot be brought up to date.
    pub async fn prepare(&self) -> Result<(), DatabaseError> {
        match &self.pool {
            Pool::Sqlite(pool) => {
                let file = self.file.as_ref().expect("an SQLite database has a file");
                sqlite::prepare(pool, file, &self.shown).await
            }
            Pool::Postgres(pool) => postgres::prepare(pool, &self.shown).await,
        }
    }

    /// Whether the file of an SQLite database can be written. SQLite opens a read-only file without an error, and refuses the
    /// first write.
    ///
    /// # Errors
    ///
    /// The file or its folder cannot be written.
    pub fn verify_writable(&self) -> Result<(), DatabaseError> {
        self.file.as_ref().map_or(Ok(()), |file| file.verify_writable())
    }

    /// The same without connecting: for a database that may be down. Its tables are those that [`prepare`](Self::prepare) or another
    /// process makes.
    ///
    /// # Errors
    ///
    /// The address is invalid.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn later(url: &str) -> Result<Self, DatabaseError> {
        let shown = address::masked(url);
        match address::scheme(url) {
            Some("sqlite") => {
                let (pool, file) = sqlite::later(url, &shown)?;
                Ok(Database { pool, shown: shown.into(), file: Some(Arc::new(file)) })
            }
            Some("postgres" | "postgresql") => {
                Ok(Database { pool: postgres::later(url, &shown)?, shown: shown.into(), file: None })
            }
            _ => Err(DatabaseError::Scheme { shown }),
        }
    }

    /// Whether a text is the address of a database rather than, say, a file.
    pub fn is_url(text: &str) -> bool {
        matches!(address::scheme(text), Some("sqlite" | "postgres" | "postgresql"))
    }

    /// The address with its password masked.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The connections.
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// A query's error, with the database it is about.
    pub fn error(&self, source: sqlx::Error) -> DatabaseError {
        let source = match &self.file {
            None => source,
            Some(file) => match file.explain(source) {
                Ok(error) => return error,
                Err(source) => source,
            },
        };
        DatabaseError::Query { shown: self.shown.to_string(), source }
    }

    /// Whether what is written is kept: an SQLite file is still the one that was opened.
    ///
    /// SQLite does not notice that its file was deleted or replaced, so this is checked before and after every write.
    ///
    /// # Errors
    ///
    /// The file was deleted, replaced or emptied.
    pub fn verify(&self) -> Result<(), DatabaseError> {
        if let Some(file) = &self.file {
            return file.verify();
        }
        Ok(())
    }

    /// Runs one statement of an administrative request, at most for [`STATEMENT_TIMEOUT`].
    pub(crate) async fn run<T>(
        &self,
        statement: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, DatabaseError> {
        self.run_within(STATEMENT_TIMEOUT, statement).await
    }

    /// Runs one statement with a time limit.
    pub(crate) async fn run_within<T>(
        &self,
        within: Duration,
        statement: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, DatabaseError> {
        match tokio::time::timeout(within, statement).await {
            Ok(answer) => answer.map_err(|error| self.error(error)),
            Err(_) => Err(DatabaseError::Slow { shown: self.shown.to_string(), within }),
        }
    }

    /// Closes every connection once what runs has ended.
    pub async fn close(&self) {
        each!(self, pool => pool.close().await);
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Database").field(&self.shown).finish()
    }
}

/// An address without its password, for logs and messages.
pub fn masked(url: &str) -> String {
    address::masked(url)
}

/// Statements are our own and hold no values; a log line for each would be noise.
fn quiet<O: ConnectOptions>(options: O) -> O {
    options.disable_statement_logging()
}

/// `sql`: the number of each migration and its statements.
fn migrator(sql: &[&'static str]) -> Migrator {
    let migration = |(version, sql): (i64, &&'static str)| {
        Migration::new(version, "tables".into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    let mut migrator = Migrator::with_migrations((1..).zip(sql).map(migration).collect());
    migrator.dangerous_set_table_name(MIGRATIONS);
    migrator
}

/// Whether every migration was applied before. Whoever may only read finds out without writing.
async fn is_up_to_date(connection: &mut impl Migrate, migrator: &Migrator) -> bool {
    // An error here most likely means that there are no tables yet; if not, the migration will say what it is.
    let Ok(applied) = connection.list_applied_migrations(MIGRATIONS).await else { return false };
    let same = |wanted: &Migration| {
        applied.iter().any(|known| known.version == wanted.version && known.checksum == wanted.checksum)
    };
    applied.len() == migrator.iter().count() && migrator.iter().all(same)
}

fn tables_error(shown: &str, source: MigrateError) -> DatabaseError {
    match source {
        MigrateError::VersionMissing(_) => DatabaseError::Newer { shown: shown.to_owned() },
        source => DatabaseError::Tables { shown: shown.to_owned(), source },
    }
}
