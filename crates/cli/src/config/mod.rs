//! What `tollgate serve` runs by: flags, environment, `tollgate.toml` and defaults, in this order.
//!
//! There is one list of settings, the flags of `serve`. A line of the file is a flag with underscores, is checked by
//! what checks the flag, and counts where neither the flag nor its variable is given. The lines of `[identify]` have
//! flags of their own; those of `[headers]` have none.

mod check;
mod file;
mod headers;
mod identify;
mod show;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory as _, FromArgMatches as _, Subcommand};
use tollgate::core::HeaderForm;
use tollgate_tower::{Identify, IdentifyConfig};

use crate::load;
use crate::serve;
use crate::terminal::Terminal;
use file::File;
pub(crate) use identify::IdentifyArgs;

/// Looked for in the working directory where no other is named.
const USUAL: &str = "tollgate.toml";
/// The flag that names the file; it cannot be in it.
const CONFIG: &str = "config";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a configuration file, and show everything that is wrong with it
    Check(check::Args),
    /// Show what `serve` would run by, and where each value comes from
    Show(Box<show::Args>),
}

pub(crate) fn run(args: &Args, given: &ArgMatches, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Check(args) => check::run(args, terminal),
        Command::Show(args) => {
            let given = given.subcommand_matches("show").context("`show` was just parsed")?;
            show::run(args, given, terminal)
        }
    }
}

/// The flags of `serve` by themselves.
#[derive(Debug, clap::Parser)]
#[command(name = "tollgate serve")]
struct Flags {
    #[command(flatten)]
    serve: serve::Args,
}

/// Everything that `serve` runs by.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) serve: serve::Args,
    pub(crate) identify: Identify,
    pub(crate) headers: HeaderForm,
    /// The file that was read, if there is one.
    pub(crate) file: Option<String>,
    settings: Vec<Setting>,
}

/// One value, and who said it.
#[derive(Debug)]
struct Setting {
    key: String,
    value: Option<String>,
    from: From,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum From {
    Flag,
    Environment(String),
    File,
    Default,
}

impl Config {
    /// What `serve` runs by with these flags and variables, and the file they name.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or everything that is wrong with it.
    pub(crate) fn of(given: &ArgMatches) -> anyhow::Result<Self> {
        let file = match path(given.get_one(CONFIG)) {
            Some(path) => Some(File::read(&path)?),
            None => None,
        };
        let mut words: Vec<OsString> = vec!["tollgate serve".into()];
        let mut settings = Vec::new();
        for flag in flags() {
            let said = match given.value_source(flag.id().as_str()) {
                Some(ValueSource::CommandLine) => Some((flag.raw(given), From::Flag)),
                Some(ValueSource::EnvVariable) => Some((flag.raw(given), From::Environment(flag.variable()))),
                _ => file
                    .as_ref()
                    .and_then(|file| file.value(&flag))
                    .map(|value| (Some(value.into()), From::File)),
            };
            let (value, from) = said.unwrap_or((None, From::Default));
            words.extend(value.as_ref().and_then(|value| flag.word(value)));
            settings.push(Setting { key: flag.key(), value: value.map(|value| shown(&value)), from });
        }
        let matches = Flags::command().try_get_matches_from(words).unwrap_or_else(|error| error.exit());
        let Flags { serve } = Flags::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        for (setting, flag) in
            settings.iter_mut().zip(flags()).filter(|(setting, _)| setting.from == From::Default)
        {
            setting.value = flag.raw(&matches).map(|value| shown(&value));
        }
        let (table, headers, name) = match file {
            None => (IdentifyConfig::default(), HeaderForm::DEFAULT, None),
            Some(file) => {
                settings.extend(file.sections().map(|(key, value)| Setting {
                    key,
                    value: Some(value),
                    from: From::File,
                }));
                (file.identify, file.headers, Some(file.name))
            }
        };
        let identify = identify::replace(table, given, &mut settings)?;
        Ok(Config { serve, identify, headers, file: name, settings })
    }
}

/// The file that is named, or the usual one if it is there.
fn path(named: Option<&PathBuf>) -> Option<PathBuf> {
    named.cloned().or_else(|| Path::new(USUAL).exists().then(|| PathBuf::from(USUAL)))
}

/// A value as it may be shown: addresses without their passwords, also those whose scheme was forgotten.
fn shown(value: &OsString) -> String {
    let text = value.to_string_lossy();
    match text.rsplit_once('@') {
        _ if text.contains("://") => tollgate::sql::masked(&text),
        Some((login, place)) if login.contains(':') => format!("***@{place}"),
        _ => text.into_owned(),
    }
}

/// Between the values of a flag that has several.
const LIST_DELIMITER: &str = ",";

/// A flag of `serve` that is also a line of the file.
struct Flag(Arg);

/// All of them.
fn flags() -> Vec<Flag> {
    let command = Flags::command();
    let named = command.get_arguments().filter(|arg| arg.get_long().is_some_and(|long| long != CONFIG));
    named
        .filter(|arg| !matches!(arg.get_action(), ArgAction::Help | ArgAction::Version))
        .filter(|arg| !identify::has_flag(arg.get_id().as_str()))
        .cloned()
        .map(Flag)
        .collect()
}

impl Flag {
    fn id(&self) -> &clap::Id {
        self.0.get_id()
    }

    fn long(&self) -> &str {
        self.0.get_long().unwrap_or_default()
    }

    /// Its name in the file.
    fn key(&self) -> String {
        self.long().replace('-', "_")
    }

    fn variable(&self) -> String {
        self.0.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Whether it is there or not, without a value.
    fn is_a_switch(&self) -> bool {
        matches!(self.0.get_action(), ArgAction::SetTrue)
    }

    /// Whether it has several values.
    fn is_a_list(&self) -> bool {
        self.0.get_value_delimiter().is_some()
    }

    /// Its value as it was given.
    fn raw(&self, given: &ArgMatches) -> Option<OsString> {
        match self.is_a_switch() {
            true => Some(given.get_flag(self.id().as_str()).to_string().into()),
            false => {
                let values: Vec<&OsStr> = given.get_raw(self.id().as_str())?.collect();
                Some(values.join(OsStr::new(LIST_DELIMITER)))
            }
        }
    }

    /// The word that says this value on a command line; a switch that is off needs none.
    fn word(&self, value: &OsString) -> Option<OsString> {
        if self.is_a_switch() {
            return (value == "true").then(|| format!("--{}", self.long()).into());
        }
        let mut word = OsString::from(format!("--{}=", self.long()));
        word.push(value);
        Some(word)
    }

    /// What is wrong with a value, according to what checks the flag.
    fn complaint(&self, value: &str) -> Option<String> {
        use clap::error::ErrorKind::{InvalidValue, ValueValidation};
        let words = [Some("tollgate serve".into()), self.word(&value.into())];
        let error = Flags::command().try_get_matches_from(words.into_iter().flatten()).err()?;
        let about_the_value = matches!(error.kind(), ValueValidation | InvalidValue);
        let reason = std::error::Error::source(&error).map(ToString::to_string);
        about_the_value.then(|| format!("`{value}`: {}", reason.as_deref().unwrap_or("not a value for this")))
    }
}

/// Reads a file that somebody named or that is there.
fn text(path: &Path) -> anyhow::Result<String> {
    let way_out = "name another with --config, or leave it out";
    load::text(path)
        .map_err(|error| anyhow!("cannot read the configuration {}: {error}; {way_out}", path.display()))
}

#[cfg(test)]
mod tests;
