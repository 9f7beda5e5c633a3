//! Where commands look for rules, so that each is written once: a file, which is only read, a database, or a running server.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail, ensure};
use tollgate::RuleSet;
use tollgate::rules::{self, RuleBook, STARTER};
use tollgate::sql::Database;
use tollgate_server::RulesHome;

use crate::client::{Address, Client, Plane, ReachArgs, app};
use crate::load::{self, for_reading, with_mode};
use crate::terminal::remark;

const RULES: &str = "TOLLGATE_RULES";
const SERVER: &str = "TOLLGATE_SERVER";
const NOWHERE: &str = "the built-in rules cannot be changed; say where yours are: --rules sqlite://rules.db, \
                       --rules postgres://user@host/name, or --server http://127.0.0.1:8081";

#[derive(Debug, clap::Args)]
pub(crate) struct PlaceArgs {
    /// Where the rules are: a file (`-` is standard input), sqlite://path or postgres://user@host/name. Without it those of the
    /// server that runs over the data directory; if none runs, of the database there; if there is none, the built-in starter set
    #[arg(long, value_name = "FILE|URL", env = RULES, hide_env_values = true)]
    rules: Option<PathBuf>,
    /// A running server to ask instead, such as http://127.0.0.1:8081 or unix:PATH, where its dashboard is; for `tollgate check`, where it
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
    /// Opens the place to look at its rules or to change them.
    ///
    /// # Errors
    ///
    /// It cannot be opened, two are named, or it is one whose rules cannot be changed.
    pub(in crate::rules) async fn open(&self, access: Access) -> anyhow::Result<Client> {
        match self.find(Plane::Admin)? {
            Some(place) => open(&place, access, &self.reach).await,
            None if access == Access::Read => {
                let rules = rules::parse("starter.yaml", STARTER)?;
                let shown = "the built-in starter set".to_owned();
                Ok(Client::in_process(app(rules, RulesHome::Fixed(shown.clone())), shown))
            }
            None => bail!(NOWHERE),
        }
    }

    /// Opens the place to decide by its rules. Without a server, nothing is counted before, and time stands still: the answers
    /// do not depend on the machine's speed.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub(crate) fn open_to_decide(&self, plane: Plane) -> anyhow::Result<Client> {
        let place = self.find(plane)?;
        if let Some(server) = place.as_deref().filter(|place| is_server(place)) {
            return self.reach.client(server);
        }
        let place = place.as_deref().map(Path::new);
        let shown = place.map_or_else(|| "the built-in starter set".to_owned(), load::name);
        let app = app(load::rules(place)?, RulesHome::Fixed(shown.clone()));
        Ok(Client::in_process(app, shown))
    }

    /// The place that is named, else what there is on this machine: the running server, the database in the data directory, or
    /// nothing, which is the built-in starter set. Says on standard error what it found.
    ///
    /// # Errors
    ///
    /// Two are named, or the server by what is no address.
    pub(crate) fn find(&self, plane: Plane) -> anyhow::Result<Option<String>> {
        if let Some(place) = self.named()? {
            return Ok(Some(place));
        }
        let found = self.reach.local(plane).or_else(|| self.reach.data.database());
        if found.is_none() {
            let folder = self.reach.data.shown();
            remark(&format!(
                "no server is running over {folder} and no database is there; using the built-in starter set"
            ));
        }
        Ok(found)
    }

    /// The place that is named. A flag wins over the other's variable.
    ///
    /// # Errors
    ///
    /// Two are named, or the server by what is no address.
    fn named(&self) -> anyhow::Result<Option<String>> {
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
    ["http://", "https://", "unix:"].iter().any(|scheme| place.starts_with(scheme))
}

/// Opens a file, a database or a server by what it is called.
///
/// # Errors
///
/// It cannot be opened, or it is a file that would be changed.
pub(super) async fn open(place: &str, access: Access, reach: &ReachArgs) -> anyhow::Result<Client> {
    if is_server(place) {
        return reach.client(place);
    }
    // A misspelt scheme is no file either; the database says so, without the password.
    if !place.contains("://") {
        let (path, name) = (Path::new(place), load::name(Path::new(place)));
        ensure!(access == Access::Read, file_is_read_only(&name));
        let text = load::text(path).map_err(|error| {
            let way_out = "name another with --rules, or leave it out for the built-in starter set";
            anyhow!("cannot read the rules {name}: {error}; {way_out}")
        })?;
        let app = app(rules::parse(&name, &text)?, RulesHome::File(name.clone()));
        return Ok(Client::in_process(app, name));
    }
    let url = match access {
        Access::Read => for_reading(place),
        Access::Change => with_mode(place, "rw"),
        Access::Make => place.into(),
    };
    let book = RuleBook::new(Database::open(&url).await?);
    let shown = book.database().shown().to_owned();
    Ok(Client::in_process(app(RuleSet::default(), RulesHome::Book(book)), shown))
}

/// Why a command that changes rules does not change a rules file, and what to do instead.
fn file_is_read_only(name: &str) -> String {
    format!(
        "{name} is a file, and this command changes rules in a database or in a server; edit the file, which a running \
         server loads within a second, or use --server http://127.0.0.1:8081, or move the rules to a database with \
         `tollgate rules import {name} --rules sqlite://rules.db`"
    )
}
