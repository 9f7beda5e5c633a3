//! The database of `tollgate serve`: violations and plans, wherever the rules are.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::builder::FalseyValueParser;
use tollgate::audit::{Retention, ViolationLog, Writer, WriterOptions};
use tollgate::plans::PlanOptions;
use tollgate::sql::{self, Database, DatabaseError};
use tollgate::{AnyStore, Limiter, Plans, RuleSet, Violations};

use crate::data::DataArgs;
use crate::source::own_url;
use crate::violations::pseudonyms;

/// How long the start waits for a database that the rules do not come from.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between attempts to open it afterwards.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Violations that are not written by then when the server stops are lost, and counted.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that are not closed by then are dropped.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// The flags.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Violations and plans")]
pub(crate) struct DatabaseArgs {
    /// The database for violations, plans and, without --rules, the rules: sqlite://path or postgres://user@host/name
    /// [default: the database of --rules, or tollgate.db in the data directory]
    #[arg(long, value_name = "URL", env = "TOLLGATE_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// Record no violations
    #[arg(long, env = "TOLLGATE_NO_VIOLATIONS", value_parser = FalseyValueParser::new())]
    no_violations: bool,
    /// Delete violations after this number of days
    #[arg(long, value_name = "DAYS", env = "TOLLGATE_VIOLATIONS_KEEP_DAYS", default_value = "30",
          value_parser = clap::value_parser!(u32).range(1..=36_500))]
    violations_keep_days: u32,
    /// Delete the oldest violations beyond this number of rows
    #[arg(long, value_name = "ROWS", env = "TOLLGATE_VIOLATIONS_KEEP_ROWS", default_value = "1000000",
          value_parser = clap::value_parser!(u32).range(1..))]
    violations_keep_rows: u32,
    /// Record user ids and addresses as hashes under the secret in this file
    #[arg(long, value_name = "FILE", env = "TOLLGATE_HASH_KEY_FILE")]
    hash_key_file: Option<PathBuf>,
    /// Look up the plan of requests that name none in the table account_plan; users without a row have this one
    #[arg(long, value_name = "PLAN", env = "TOLLGATE_DEFAULT_PLAN")]
    default_plan: Option<String>,
}

/// The database, and what the server keeps in it.
#[derive(Debug)]
pub(crate) struct ServerDatabase {
    database: Database,
    log: ViolationLog,
    violations: Option<(Violations, Writer)>,
    plans: Option<Plans>,
}

impl DatabaseArgs {
    /// The address that --database names.
    ///
    /// # Errors
    ///
    /// It is not the address of a database.
    pub(crate) fn url(&self) -> anyhow::Result<Option<&str>> {
        let url = self.database.as_deref();
        ensure!(
            url.is_none_or(Database::is_url),
            "--database is neither sqlite://path nor postgres://user@host/name" // it may hold a password
        );
        Ok(url)
    }

    /// Opens the database and starts to record violations in it. `of_rules` is the database that the rules come from.
    ///
    /// A database that cannot be opened does not stop the start: decisions do not depend on it.
    ///
    /// # Errors
    ///
    /// The address is invalid, or the secret cannot be read.
    pub(crate) async fn open(
        &self,
        of_rules: Option<&Database>,
        data: &DataArgs,
        rules: &RuleSet,
    ) -> anyhow::Result<ServerDatabase> {
        let database = match (self.url()?, of_rules) {
            (None, Some(database)) => database.clone(),
            (Some(url), Some(database)) if sql::masked(url) == database.shown() => database.clone(),
            (Some(url), _) => self.connect(url).await?,
            (None, None) => {
                let _ = data.folder(); // opening the file says what is wrong with it
                self.connect(&own_url(&own(data))).await?
            }
        };
        let log = ViolationLog::new(database.clone());
        let log = match &self.hash_key_file {
            None => log,
            Some(path) => log.with_pseudonyms(pseudonyms(path)?),
        };
        let violations = (!self.no_violations).then(|| self.record(&log));
        let plans = self.default_plan.as_deref().map(|plan| {
            if !rules.rules().iter().any(|rule| rule.plan() == Some(plan)) {
                tracing::warn!(plan, "no rule is for the default plan, so users without another have none");
            }
            Plans::from_database(database.clone(), PlanOptions::new(plan))
        });
        Ok(ServerDatabase { database, log, violations, plans })
    }

    /// A database with its tables in place, or else one that gets them as soon as it can be opened.
    async fn connect(&self, url: &str) -> Result<Database, DatabaseError> {
        let database = Database::later(url)?;
        if self.no_violations && self.default_plan.is_none() {
            return Ok(database); // it is only read, by those who ask for earlier violations
        }
        if let Err(error) = prepare(&database).await {
            let error: &(dyn std::error::Error + 'static) = &error;
            tracing::error!(
                database = database.shown(),
                error,
                "serving without the database: until it can be opened, violations wait in memory, are dropped when there \
                 is no room, and users have the default plan; retrying"
            );
            tokio::spawn(prepare_later(database.clone()));
        }
        Ok(database)
    }

    fn record(&self, log: &ViolationLog) -> (Violations, Writer) {
        let retention = Retention {
            age: DAY * self.violations_keep_days,
            rows: usize::try_from(self.violations_keep_rows).unwrap_or(usize::MAX),
        };
        let violations = Violations::default();
        let options = WriterOptions { retention, ..WriterOptions::default() };
        (violations.clone(), Writer::start(violations, log.clone(), options))
    }
}

impl ServerDatabase {
    /// Where violations are found again.
    pub(crate) const fn log(&self) -> &ViolationLog {
        &self.log
    }

    /// Has a limiter record its refusals and look plans up. Nodes that share a Redis are warned of a file of their own.
    pub(crate) fn equip(&self, mut limiter: Limiter<AnyStore>) -> Limiter<AnyStore> {
        if let Some((violations, _)) = &self.violations {
            limiter = limiter.with_violations(violations.clone());
        }
        if let Some(plans) = &self.plans {
            limiter = limiter.with_plans(plans.clone());
        }
        let is_used = self.violations.is_some() || self.plans.is_some();
        let is_file = matches!(self.database.pool(), sql::Pool::Sqlite(_));
        if is_used && is_file && !matches!(limiter.store(), AnyStore::Memory(_)) {
            tracing::warn!(
                database = self.database.shown(),
                "nodes that share a Redis keep violations and plans in a file each; name one database for all of them: \
                 --database postgres://user@host/name"
            );
        }
        limiter
    }

    /// Writes pending violations and closes the database.
    pub(crate) async fn close(self) {
        if let Some((_, writer)) = self.violations {
            let stats = writer.shutdown(FLUSH_TIMEOUT).await;
            tracing::info!(written = stats.written, dropped = stats.dropped, "violations are on record");
        }
        if tokio::time::timeout(CLOSE_TIMEOUT, self.database.close()).await.is_err() {
            tracing::debug!("the database did not close in time");
        }
    }
}

/// Our own database in the data directory.
pub(crate) fn own(data: &DataArgs) -> PathBuf {
    data.path().join("tollgate.db")
}

/// Makes or updates the tables as soon as the database can be opened.
async fn prepare_later(database: Database) {
    loop {
        tokio::time::sleep(RETRY_INTERVAL).await;
        if prepare(&database).await.is_ok() {
            return tracing::info!(database = database.shown(), "the database has recovered");
        }
    }
}

async fn prepare(database: &Database) -> Result<(), DatabaseError> {
    let slow = |_| DatabaseError::Slow { shown: database.shown().to_owned(), within: OPEN_TIMEOUT };
    tokio::time::timeout(OPEN_TIMEOUT, database.prepare()).await.map_err(slow)??;
    database.verify_writable()
}
