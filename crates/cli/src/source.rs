//! Where `tollgate serve` has its rules from.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use tollgate::rules::{self, Follower, RuleBook, RuleSource, SnapshotFile, SourceError};
use tollgate::sql::{Database, DatabaseError, FileProblem};
use tollgate::{RuleSet, rules::STARTER};
use tollgate_server::RulesHome;

use crate::data::DataArgs;
use crate::database::own;
use crate::load;

/// Whoever wrote the first rules into a fresh database.
const SEEDED_BY: &str = "tollgate";

#[derive(Debug, clap::Args)]
pub(crate) struct SourceArgs {
    /// The rules: a file, sqlite://path, postgres://user@host/name, or `-` for standard input; without it they are in
    /// the database (--database), which begins with a starter set
    #[arg(long = "rules", value_name = "FILE|URL", env = "TOLLGATE_RULES", hide_env_values = true)]
    rules: Option<PathBuf>,
    /// A rules file to start with while the database of the rules is down and no rules are kept from before; the
    /// database's own take effect as soon as it can be read
    #[arg(long, value_name = "FILE", env = "TOLLGATE_RULES_FALLBACK")]
    rules_fallback: Option<PathBuf>,
}

/// Rules to serve by.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) rules: RuleSet,
    /// Keeps them those of their source; standard input has nothing to follow.
    pub(crate) follower: Option<Follower>,
    /// What to call them on the first screen.
    pub(crate) shown: String,
    /// Where they are kept.
    pub(crate) home: RulesHome,
}

impl Source {
    /// The database, if they are in one. It may be down.
    pub(crate) const fn database(&self) -> Option<&Database> {
        match &self.home {
            RulesHome::Book(book) | RulesHome::Database { book, .. } => Some(book.database()),
            RulesHome::File(_) | RulesHome::Fixed(_) => None,
        }
    }
}

impl SourceArgs {
    /// Loads the rules: those of `--rules`, else those of the database, which begins with the starter set.
    ///
    /// # Errors
    ///
    /// They cannot be read, or everything that is wrong with them.
    pub(crate) async fn open(&self, database: Option<&str>, data: &DataArgs) -> anyhow::Result<Source> {
        let given = self.rules.as_deref();
        // A misspelt scheme is not a file either; the database says so, without the password.
        let url = given.and_then(|rules| rules.to_str()).filter(|text| text.contains("://"));
        let is_given = url.is_some() || given.is_none() && database.is_some();
        ensure!(
            self.rules_fallback.is_none() || is_given,
            "--rules-fallback is for rules in a database; name it: --rules sqlite://path or postgres://user@host/name"
        );
        match (given, url, database) {
            (_, Some(url), _) => self.open_database(url, data).await,
            (None, _, Some(url)) => self.open_or_seed(url, data).await,
            (None, _, None) => open_own(data).await,
            (Some(given), ..) if load::is_stdin(given) => {
                let text = load::text(given).context("cannot read the rules from standard input")?;
                let rules = rules::parse("<stdin>", &text)?;
                let shown = "standard input".to_owned();
                Ok(Source { rules, follower: None, home: RulesHome::Fixed(shown.clone()), shown })
            }
            (Some(given), ..) => follow(RuleSource::file(given), None, None).await,
        }
    }

    /// The database of `--database`.
    async fn open_or_seed(&self, url: &str, data: &DataArgs) -> anyhow::Result<Source> {
        let seeded = match Database::open(url).await {
            Ok(database) => seed(database).await?,
            Err(error) if error.is_transient() => false, // rules that were kept from before may serve
            Err(error) => return Err(error.into()),
        };
        let source = self.open_database(url, data).await?;
        Ok(if seeded { with_starter_set(source) } else { source })
    }

    /// A database that is named; its last good rules are kept in case it is down at the next start.
    async fn open_database(&self, url: &str, data: &DataArgs) -> anyhow::Result<Source> {
        let last_good = match data.folder() {
            Ok(folder) => Some(SnapshotFile::new(folder.join("rules.snapshot"))),
            Err(error) => {
                let folder = data.shown();
                tracing::warn!(folder, %error, "no data directory, so no start while the database is down");
                None
            }
        };
        let Some(path) = &self.rules_fallback else {
            return follow(RuleSource::database(url), last_good, Some(Database::later(url)?)).await;
        };
        // Read at every start: a mistake in it shows before it is needed.
        let fallback =
            load::rules(Some(path)).with_context(|| format!("--rules-fallback {}", path.display()))?;
        let started = start(RuleSource::database(url), last_good.clone()).await;
        let started = match started {
            Err(error) if !error.is_refusal() => {
                tracing::warn!(
                    file = %path.display(), %error,
                    "the database cannot be reached and no rules are kept from before: starting with --rules-fallback"
                );
                Ok(Follower::start_without_source(RuleSource::database(url), fallback, last_good, &error))
            }
            started => started,
        };
        let shown = RuleSource::database(url).shown().to_owned();
        Ok(home(started.map_err(explain)?, shown, Some(Database::later(url)?)))
    }
}

/// The database of our own.
async fn open_own(data: &DataArgs) -> anyhow::Result<Source> {
    let cannot = || format!("cannot make the data directory {}; name another with --data-dir", data.shown());
    data.folder().with_context(cannot)?;
    let path = own(data);
    let url = own_url(&path);
    let database = Database::open(&url).await.map_err(|error| explain_own(error, data))?;
    database.verify_writable().map_err(|error| explain_own(error, data))?;
    let seeded = seed(database).await?;
    let source = follow(RuleSource::database(&url), None, Some(Database::later(&url)?)).await?;
    let source = Source { shown: path.display().to_string(), ..source };
    Ok(if seeded { with_starter_set(source) } else { source })
}

/// Why the database of our own cannot be opened.
fn explain_own(error: DatabaseError, data: &DataArgs) -> anyhow::Error {
    let is_read_only = match &error {
        DatabaseError::File { .. } => true,
        DatabaseError::Unusable { problem, .. } => {
            matches!(problem, FileProblem::ReadOnly(_) | FileProblem::ReadOnlyFolder(_))
        }
        _ => false,
    };
    let error = anyhow::Error::from(error);
    if !is_read_only {
        return error;
    }
    let folder = data.shown();
    error.context(format!(
        "the data directory {folder} cannot be written; make it writable, or name another with --data-dir"
    ))
}

/// Adds the starter set to a database that never had any rules; whether it did.
async fn seed(database: Database) -> anyhow::Result<bool> {
    let book = RuleBook::new(database);
    let seeded = book.seed(SEEDED_BY, rules::parse_drafts("starter.yaml", STARTER)?).await?;
    book.database().close().await;
    Ok(seeded)
}

fn with_starter_set(source: Source) -> Source {
    Source { shown: format!("a starter set, now in {}; bring your own with --rules", source.shown), ..source }
}

/// `?`, `%` and `#` in a path are not what they are in an address.
pub(crate) fn own_url(path: &Path) -> String {
    let path = path.display().to_string().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    format!("sqlite://{path}")
}

async fn follow(
    source: RuleSource,
    last_good: Option<SnapshotFile>,
    database: Option<Database>,
) -> anyhow::Result<Source> {
    let shown = source.shown().to_owned();
    Ok(home(start(source, last_good).await.map_err(explain)?, shown, database))
}

async fn start(
    source: RuleSource,
    last_good: Option<SnapshotFile>,
) -> Result<(RuleSet, Follower), SourceError> {
    match last_good {
        Some(file) => Follower::start_with_snapshot(source, file).await,
        None => Follower::start(source).await,
    }
}

fn home((rules, follower): (RuleSet, Follower), shown: String, database: Option<Database>) -> Source {
    let home = match database {
        None => RulesHome::File(shown.clone()),
        Some(database) => RulesHome::Database {
            book: RuleBook::new(database),
            status: follower.status(),
            refresher: follower.refresher(),
        },
    };
    Source { rules, follower: Some(follower), shown, home }
}

fn explain(error: SourceError) -> anyhow::Error {
    match error {
        SourceError::Text(error) => error.into(),
        SourceError::Read { shown, source } => {
            let way_out = "name another with --rules, or leave it out for a database with a starter set";
            anyhow!("cannot read the rules {shown}: {source}; {way_out}")
        }
        SourceError::Database(error) => anyhow::Error::from(error)
            .context("there are no rules to start with, and none were kept from before; --rules-fallback names a file for that"),
        error => error.into(),
    }
}
