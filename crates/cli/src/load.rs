//! Rules from wherever the command line says.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use tollgate::{RuleSet, rules};

/// More than any rules file has; the reader of rules has the last word.
const MAX_BYTES: u64 = 65 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct RulesArgs {
    /// The rules file; `-` is standard input, without it the built-in starter set is used
    #[arg(long = "rules", value_name = "FILE", env = "TOLLGATE_RULES")]
    file: Option<PathBuf>,
}

impl RulesArgs {
    /// Whether the rules come from standard input.
    pub(crate) fn read_stdin(&self) -> bool {
        self.file.as_deref().is_some_and(is_stdin)
    }

    /// Reads the rules.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or everything that is wrong with it.
    pub(crate) fn load(&self) -> anyhow::Result<RuleSet> {
        let Some(path) = &self.file else { return Ok(rules::parse("starter.yaml", rules::STARTER)?) };
        let text = text(path).map_err(|error| {
            let way_out = "name another with --rules, or leave it out for the built-in starter set";
            anyhow!("cannot read the rules {}: {error}; {way_out}", path.display())
        })?;
        Ok(rules::parse(&name(path), &text)?)
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

/// What errors call a file.
pub(crate) fn name(path: &Path) -> String {
    if is_stdin(path) { "<stdin>".to_owned() } else { path.display().to_string() }
}

/// Whether a path stands for standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}
