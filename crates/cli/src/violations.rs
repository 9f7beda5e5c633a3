//! `tollgate violations`: refusals on record.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::builder::FalseyValueParser;
use tollgate::RuleSet;
use tollgate::audit::{FoundViolation, MAX_PAGE, Pseudonyms, ViolationLog, ViolationPage, instant_text};
use tollgate::sql::Database;
use tollgate_server::RulesHome;

use crate::client::{Client, Plane, ReachArgs, app, encoded};
use crate::database::own;
use crate::load::for_reading;
use crate::source::own_url;
use crate::table::table;
use crate::terminal::Terminal;
use crate::words::{count, grouped, printable};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The database: sqlite://path or postgres://user@host/name; without it that of --rules; without both the server that
    /// runs over the data directory is asked, else tollgate.db there is read
    #[arg(long, value_name = "URL", env = "TOLLGATE_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// The rules of the server, which are in the same database unless they are in a file
    #[arg(long, value_name = "FILE|URL", env = "TOLLGATE_RULES", hide_env_values = true)]
    rules: Option<String>,
    #[command(flatten)]
    reach: ReachArgs,
    /// Who was refused
    #[arg(long, value_name = "ID", env = "TOLLGATE_USER_ID")]
    user_id: Option<String>,
    /// From which address
    #[arg(long, value_name = "ADDRESS", env = "TOLLGATE_IP")]
    ip: Option<IpAddr>,
    /// Asking for which path
    #[arg(long, value_name = "PATH", env = "TOLLGATE_ENDPOINT")]
    endpoint: Option<String>,
    /// By which rule
    #[arg(long, value_name = "NAME", env = "TOLLGATE_RULE")]
    rule: Option<String>,
    /// Not before; a time, or how long ago, such as 1h
    #[arg(long, value_name = "TIME", env = "TOLLGATE_SINCE")]
    since: Option<String>,
    /// Before; a time, or how long ago
    #[arg(long, value_name = "TIME", env = "TOLLGATE_UNTIL")]
    until: Option<String>,
    /// The most to list
    #[arg(long, value_name = "ROWS", env = "TOLLGATE_LIMIT", default_value_t = 100)]
    limit: usize,
    /// The secret that user ids and addresses were hashed with
    #[arg(long, value_name = "FILE", env = "TOLLGATE_HASH_KEY_FILE")]
    hash_key_file: Option<PathBuf>,
    /// Print one JSON object per violation
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (found, more) = runtime.block_on(args.find())?;
    if args.json {
        for violation in &found {
            writeln!(terminal.out(), "{}", serde_json::to_string(violation)?)?;
        }
    } else if found.is_empty() {
        terminal.remark("no violations");
    } else {
        print(&found, terminal)?;
    }
    if more {
        let listed = count(u64::try_from(args.limit)?, "violation");
        terminal.remark(&format!("these are the newest {listed}; there are more, see --limit"));
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// The newest violations, page by page, and whether there are more.
    async fn find(&self) -> anyhow::Result<(Vec<FoundViolation>, bool)> {
        let client = self.open().await?;
        let mut query = String::new();
        let given = [
            ("user_id", self.user_id.clone()),
            ("ip", self.ip.map(|address| address.to_string())),
            ("endpoint", self.endpoint.clone()),
            ("rule", self.rule.clone()),
            ("since", self.since.clone()),
            ("until", self.until.clone()),
        ];
        for (name, value) in given {
            query.extend(value.map(|value| format!("&{name}={}", encoded(&value))));
        }
        let (mut found, mut cursor) = (Vec::new(), String::new());
        while found.len() < self.limit {
            let limit = (self.limit - found.len()).min(MAX_PAGE);
            let page: ViolationPage =
                client.get(&format!("/v1/violations?limit={limit}{cursor}{query}")).await?;
            found.extend(page.violations);
            match page.next {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok((found, false)),
            }
        }
        Ok((found, !cursor.is_empty()))
    }

    /// The server that runs over the data directory, unless another place is named; else the database.
    async fn open(&self) -> anyhow::Result<Client> {
        let is_named = self.database.is_some() || self.rules.is_some() || self.hash_key_file.is_some();
        match if is_named { None } else { self.reach.local(Plane::Admin) } {
            Some(server) => self.reach.client(&server),
            None => {
                let shown = "the database".to_owned();
                let app = app(RuleSet::default(), RulesHome::Fixed(shown.clone()));
                Ok(Client::in_process(app.with_violations(self.log().await?), shown))
            }
        }
    }

    async fn log(&self) -> anyhow::Result<ViolationLog> {
        let url = match (&self.database, &self.rules) {
            (Some(url), _) if !Database::is_url(url) => {
                bail!("--database is neither sqlite://path nor postgres://user@host/name"); // it may hold a password
            }
            (Some(url), _) => url.clone(),
            (None, Some(rules)) if rules.contains("://") => rules.clone(),
            (None, _) => own_url(&own(&self.reach.data)),
        };
        let way_out = "name the server's database with --database, or its data directory with --data-dir";
        let database = Database::open(&for_reading(&url)).await.context(way_out)?;
        let log = ViolationLog::new(database);
        match &self.hash_key_file {
            None => Ok(log),
            Some(path) => Ok(log.with_pseudonyms(pseudonyms(path)?)),
        }
    }
}

/// Hashes under the secret in a file.
///
/// # Errors
///
/// It cannot be read, or is too short.
pub(crate) fn pseudonyms(path: &Path) -> anyhow::Result<Pseudonyms> {
    let told = || format!("the secret in {}", path.display());
    let secret = std::fs::read(path).with_context(told)?;
    Pseudonyms::new(secret.trim_ascii_end()).with_context(told)
}

fn print(found: &[FoundViolation], terminal: &mut Terminal) -> anyhow::Result<()> {
    let mut table = table(["TIME", "COUNT", "RULE", "KEY", "USER", "ADDRESS", "ENDPOINT"], &[1]);
    for FoundViolation { violation, .. } in found {
        let or_dash = |text: &Option<String>| text.as_deref().map_or("-".to_owned(), printable);
        table.add_row([
            instant_text(violation.requested_at),
            grouped(violation.count),
            printable(&violation.rule_name),
            printable(&violation.bucket_key),
            or_dash(&violation.user_id),
            or_dash(&violation.ip_address),
            or_dash(&violation.endpoint),
        ]);
    }
    writeln!(terminal.out(), "{}", table.trim_fmt())?;
    Ok(())
}
