//! Where rules come from, and how a change there is noticed.
//!
//! A source is asked two things, again and again: `load` gives the rules unless they are those already known, and
//! `changed` waits until it is worth asking again. Waiting may end too early and never ends too late: a file is looked at
//! twice a second, SQLite is asked twice a second for a number that grows with every change, PostgreSQL notifies and is
//! asked once a second in case a notification was lost. A database that could not be read is asked again after half a
//! second.

use std::time::Duration;

use tollgate_core::RuleSet;

#[cfg(feature = "sql")]
use super::database::DatabaseSource;
use super::errors::RulesError;
use super::file::FileSource;
use super::rows::RowsError;
#[cfg(feature = "sql")]
use crate::sql::DatabaseError;

/// A source that has not answered by then is unreachable.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);

/// A place that rules come from.
#[derive(Debug)]
#[non_exhaustive]
pub enum RuleSource {
    /// A rules file.
    File(FileSource),
    /// The table `rate_limit_rule`.
    #[cfg(feature = "sql")]
    Database(DatabaseSource),
}

/// Rules, and which.
#[derive(Debug)]
pub struct Loaded {
    /// The rules.
    pub rules: RuleSet,
    /// Changes whenever they do: a database's counter, or the hash of a file.
    pub version: String,
}

/// Why there are no new rules.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The file cannot be read.
    #[error("cannot read the rules {shown}")]
    Read {
        /// The file.
        shown: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file has mistakes.
    #[error(transparent)]
    Text(#[from] RulesError),
    /// The rows have mistakes.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// The database cannot be asked.
    #[cfg(feature = "sql")]
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// It took too long.
    #[error("{shown} gave no answer within {DEADLINE:?}")]
    Slow {
        /// The source.
        shown: String,
    },
    /// The thread that reads rules ended early.
    #[error("reading the rules was interrupted")]
    Interrupted,
}

impl SourceError {
    /// Whether the source was read and what it says is wrong, rather than that it cannot be reached.
    pub const fn is_refusal(&self) -> bool {
        matches!(self, SourceError::Text(_) | SourceError::Rows(_))
    }

    /// The error with its causes, in a line.
    pub fn in_full(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let said = error.to_string();
            if !text.contains(&said) {
                text = format!("{text}: {said}");
            }
            cause = error.source();
        }
        text
    }
}

impl RuleSource {
    /// A rules file.
    pub fn file(path: impl Into<std::path::PathBuf>) -> Self {
        RuleSource::File(FileSource::new(path.into()))
    }

    /// A database by its address. It is opened when it is first asked, so it may be down.
    #[cfg(feature = "sql")]
    pub fn database(url: &str) -> Self {
        RuleSource::Database(DatabaseSource::new(url))
    }

    /// What to call it; no password in it.
    pub fn shown(&self) -> &str {
        match self {
            RuleSource::File(file) => file.shown(),
            #[cfg(feature = "sql")]
            RuleSource::Database(database) => database.shown(),
        }
    }

    /// The rules, or nothing while they are still those of version `known`. They are read on a thread of their own.
    ///
    /// # Errors
    ///
    /// The source cannot be reached, or everything that is wrong with its rules.
    pub async fn load(&mut self, known: Option<&str>) -> Result<Option<Loaded>, SourceError> {
        let shown = self.shown().to_owned();
        let load = async {
            match self {
                RuleSource::File(file) => file.load(known).await,
                #[cfg(feature = "sql")]
                RuleSource::Database(database) => database.load(known).await,
            }
        };
        tokio::time::timeout(DEADLINE, load).await.map_err(|_| SourceError::Slow { shown })?
    }

    /// Waits until the rules may have changed.
    pub async fn changed(&mut self) {
        match self {
            RuleSource::File(file) => file.changed().await,
            #[cfg(feature = "sql")]
            RuleSource::Database(database) => database.changed().await,
        }
    }
}

/// Runs work that takes long on a thread that decides nothing.
pub(super) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SourceError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| SourceError::Interrupted)
}
