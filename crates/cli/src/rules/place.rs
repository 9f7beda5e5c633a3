//! Where `tollgate rules` looks for rules.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use tollgate::rules::RuleBook;
use tollgate::sql::Database;

use super::book::{Book, file_is_read_only};
use crate::client::{Address, ReachArgs};
use crate::load::{self, for_reading, with_mode};

const RULES: &str = "TOLLGATE_RULES";
const SERVER: &str = "TOLLGATE_SERVER";

#[derive(Debug, clap::Args)]
pub(crate) struct PlaceArgs {
    /// Where the rules are: a file (`-` is standard input), sqlite://path or postgres://user@host/name; without it the
    /// built-in starter set
    #[arg(long, value_name = "FILE|URL", env = RULES, hide_env_values = true)]
    rules: Option<PathBuf>,
    /// A running server to ask instead, such as http://127.0.0.1:8081, where its dashboard is; for `tollgate check`, where it
    /// answers checks: http://127.0.0.1:8080
    #[arg(long, value_name = "URL", env = SERVER, hide_env_values = true)]
    server: Option<String>,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
}

/// What is about to be done there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Look; what is missing is an error.
    Read,
    /// Change what is there; what is missing is an error.
    Change,
    /// Add to it; a SQLite database that is missing is made.
    Make,
}

impl PlaceArgs {
    /// Opens the place; the built-in starter set if none is named.
    ///
    /// # Errors
    ///
    /// It cannot be opened, or two are named.
    pub(in crate::rules) async fn open(&self, access: Access) -> anyhow::Result<Book> {
        match self.named()? {
            Some(place) => open(&place, access, &self.reach).await,
            None => Ok(Book::Starter),
        }
    }

    /// The place that is named. A flag wins over the other's variable.
    ///
    /// # Errors
    ///
    /// Two are named, or the server by what is no address.
    pub(crate) fn named(&self) -> anyhow::Result<Option<String>> {
        let rules = self.rules.as_ref().map(|path| path.to_string_lossy().into_owned());
        if let Some(server) = &self.server {
            Address::of(server)?;
        }
        let is_variable = |name: &str, given: &str| env::var(name).is_ok_and(|value| value == given);
        match (rules, self.server.clone()) {
            (Some(rules), Some(server)) => match (is_variable(RULES, &rules), is_variable(SERVER, &server)) {
                (true, false) => Ok(Some(server)),
                (false, true) => Ok(Some(rules)),
                _ => bail!("--rules and --server are two places; name one"),
            },
            (rules, server) => Ok(rules.or(server)),
        }
    }
}

/// Whether a place is a server.
pub(crate) fn is_server(place: &str) -> bool {
    place.starts_with("http://") || place.starts_with("https://")
}

/// Opens a file, a database or a server by what it is called.
///
/// # Errors
///
/// It cannot be opened, or it is a file that would be changed.
pub(super) async fn open(place: &str, access: Access, reach: &ReachArgs) -> anyhow::Result<Book> {
    if is_server(place) {
        return Ok(Book::Server(reach.client(place)?.into()));
    }
    // A misspelt scheme is no file either; the database says so, without the password.
    if !place.contains("://") {
        let path = Path::new(place);
        ensure!(access == Access::Read, file_is_read_only(&load::name(path)));
        return Ok(Book::File(path.to_owned()));
    }
    let url = match access {
        Access::Read => for_reading(place),
        Access::Change => with_mode(place, "rw"),
        Access::Make => place.into(),
    };
    Ok(Book::Database(RuleBook::new(Database::open(&url).await?)))
}

/// Who changes rules: the user of this terminal.
pub(super) fn actor() -> String {
    let name = env::var("USER").or_else(|_| env::var("LOGNAME")).unwrap_or_default();
    let name: String = name.chars().filter(char::is_ascii_graphic).take(100).collect();
    if name.is_empty() { "cli".to_owned() } else { name }
}
