//! Rules from wherever the command line says.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use tollgate::rules::RuleSource;
use tollgate::{RuleSet, rules};

/// More than any rules file has; the reader of rules has the last word.
const MAX_BYTES: u64 = 65 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct RulesArgs {
    /// The rules: a file, sqlite://path, postgres://user@host/name, or `-` for standard input; without it the built-in
    /// starter set is used
    #[arg(long = "rules", value_name = "FILE|URL", env = "TOLLGATE_RULES", hide_env_values = true)]
    place: Option<PathBuf>,
}

impl RulesArgs {
    /// What to call the place, without a password; none is the built-in starter set.
    pub(crate) fn shown(&self) -> Option<String> {
        self.place.as_deref().map(name)
    }

    /// Whether the rules come from standard input.
    pub(crate) fn read_stdin(&self) -> bool {
        self.place.as_deref().is_some_and(is_stdin)
    }

    /// Reads the rules.
    ///
    /// # Errors
    ///
    /// They cannot be read, or everything that is wrong with them.
    pub(crate) fn load(&self) -> anyhow::Result<RuleSet> {
        rules(self.place.as_deref())
    }
}

/// The rules of a file or a database; without a place the built-in starter set.
///
/// # Errors
///
/// They cannot be read, or everything that is wrong with them.
pub(crate) fn rules(place: Option<&Path>) -> anyhow::Result<RuleSet> {
    let Some(place) = place else { return Ok(rules::parse("starter.yaml", rules::STARTER)?) };
    if let Some(url) = url(place) {
        return load_database(url);
    }
    let text = text(place).map_err(|error| {
        let way_out = "name another with --rules, or leave it out for the built-in starter set";
        anyhow!("cannot read the rules {}: {error}; {way_out}", place.display())
    })?;
    Ok(rules::parse(&name(place), &text)?)
}

/// The address of a database, if it is one: a misspelt scheme is no file either.
fn url(place: &Path) -> Option<&str> {
    place.to_str().filter(|text| text.contains("://"))
}

fn load_database(url: &str) -> anyhow::Result<RuleSet> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let loaded = runtime.block_on(async { RuleSource::database(&for_reading(url)).load(None).await });
    Ok(loaded?.context("the database has no rules to give")?.rules)
}

/// The same database, to be looked at. It is not made if it is missing.
pub(crate) fn for_reading(url: &str) -> Cow<'_, str> {
    with_mode(url, "ro")
}

/// The same database, opened `ro` or `rw` rather than made; only SQLite makes any.
pub(crate) fn with_mode<'u>(url: &'u str, mode: &str) -> Cow<'u, str> {
    match url.contains('?') {
        _ if !url.starts_with("sqlite:") || url.contains("mode=") => Cow::Borrowed(url),
        false => Cow::Owned(format!("{url}?mode={mode}")),
        true => Cow::Owned(format!("{url}&mode={mode}")),
    }
}

/// The text of a file, or of standard input.
///
/// # Errors
///
/// It cannot be read, is no text, or has no end.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    if is_stdin(path) {
        io::stdin().take(MAX_BYTES).read_to_string(&mut text)?;
    } else {
        File::open(path)?.take(MAX_BYTES).read_to_string(&mut text)?;
    }
    Ok(text)
}

/// What errors call a place: a file by its path, a database without its password.
pub(crate) fn name(place: &Path) -> String {
    match url(place) {
        _ if is_stdin(place) => "<stdin>".to_owned(),
        Some(url) => tollgate::sql::masked(url),
        None => place.display().to_string(),
    }
}

/// Whether a path stands for standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_makes_no_database() {
        assert_eq!(for_reading("sqlite://a.db"), "sqlite://a.db?mode=ro");
        assert_eq!(for_reading("sqlite://a.db?cache=private"), "sqlite://a.db?cache=private&mode=ro");
        assert_eq!(for_reading("sqlite://a.db?mode=rw"), "sqlite://a.db?mode=rw");
        assert_eq!(for_reading("postgres://h/n"), "postgres://h/n");
    }
}
