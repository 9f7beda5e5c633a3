//! What `tollgate serve` keeps beside the rules of a database: violations and plans.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::builder::FalseyValueParser;
use tollgate::audit::{Retention, ViolationLog, Writer, WriterOptions};
use tollgate::plans::PlanOptions;
use tollgate::sql::Database;
use tollgate::{AnyStore, Limiter, Plans, RuleSet, Violations};

use crate::violations::pseudonyms;

/// Violations that are not written by then when the server stops are lost, and counted.
const FLUSH_WITHIN: Duration = Duration::from_secs(5);
/// A database that does not let go by then is left to itself.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// The flags, which matter where the rules are in a database.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With rules in a database")]
pub(crate) struct BesideArgs {
    /// Record no violations
    #[arg(long, env = "TOLLGATE_NO_VIOLATIONS", value_parser = FalseyValueParser::new())]
    no_violations: bool,
    /// Forget violations after so many days
    #[arg(long, value_name = "DAYS", env = "TOLLGATE_VIOLATIONS_KEEP_DAYS", default_value = "30",
          value_parser = clap::value_parser!(u32).range(1..=36_500))]
    violations_keep_days: u32,
    /// Forget the oldest violations beyond so many rows
    #[arg(long, value_name = "ROWS", env = "TOLLGATE_VIOLATIONS_KEEP_ROWS", default_value = "1000000",
          value_parser = clap::value_parser!(u32).range(1..))]
    violations_keep_rows: u32,
    /// Record user ids and addresses as hashes under the secret in this file
    #[arg(long, value_name = "FILE", env = "TOLLGATE_HASH_KEY_FILE")]
    hash_key_file: Option<PathBuf>,
    /// Look up the plan of requests that name none in the table account_plan; users that are not there have this one
    #[arg(long, value_name = "PLAN", env = "TOLLGATE_DEFAULT_PLAN")]
    default_plan: Option<String>,
}

/// What is kept beside the rules.
#[derive(Debug)]
pub(crate) struct Beside {
    database: Database,
    log: ViolationLog,
    violations: Option<(Violations, Writer)>,
    plans: Option<Plans>,
}

impl BesideArgs {
    /// Starts to keep it in the database of the rules, if they have one. It may be down.
    ///
    /// # Errors
    ///
    /// Flags that make no sense here, or a secret that cannot be read.
    pub(crate) fn open(
        &self,
        database: Option<&Database>,
        rules: &RuleSet,
    ) -> anyhow::Result<Option<Beside>> {
        let Some(database) = database else {
            if self.default_plan.is_some() {
                bail!(
                    "--default-plan looks plans up in a database; name it: --rules sqlite://path or \
                     postgres://user@host/name"
                );
            }
            return Ok(None);
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
        Ok(Some(Beside { database: database.clone(), log, violations, plans }))
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

impl Beside {
    /// Where violations are found again.
    pub(crate) const fn log(&self) -> &ViolationLog {
        &self.log
    }

    /// Has a limiter record its refusals and look plans up.
    pub(crate) fn equip(&self, mut limiter: Limiter<AnyStore>) -> Limiter<AnyStore> {
        if let Some((violations, _)) = &self.violations {
            limiter = limiter.with_violations(violations.clone());
        }
        if let Some(plans) = &self.plans {
            limiter = limiter.with_plans(plans.clone());
        }
        limiter
    }

    /// Writes what is not written yet and lets the database go.
    pub(crate) async fn close(self) {
        if let Some((_, writer)) = self.violations {
            let stats = writer.shutdown(FLUSH_WITHIN).await;
            tracing::info!(written = stats.written, dropped = stats.dropped, "violations are on record");
        }
        if tokio::time::timeout(CLOSE_WITHIN, self.database.close()).await.is_err() {
            tracing::debug!("the database did not close in time");
        }
    }
}
