//! `tollgate rules`: look at rules, change them, and see what was changed.
//!
//! Rules are in a file, a database or a running server ([`place`]); each command asks the API, which is the server's own or
//! runs in this process. A file is only read: people edit it with an editor, and the server loads it.

mod add;
mod diff;
mod edit;
mod entries;
mod export;
mod fields;
mod history;
mod import;
mod lint;
mod list;
mod place;
mod remove;
mod show;
mod switch;
mod undo;
mod yaml;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Subcommand;
use tollgate::Rule;
use tollgate::core::rule::Action;
use tollgate_server::api::RuleEntry;

pub(crate) use place::PlaceArgs;

use crate::terminal::Terminal;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List rules
    List(list::Args),
    /// Show everything about one rule, also in words
    Show(show::Args),
    /// Add a rule
    Add(add::Args),
    /// Change some fields of a rule
    Edit(edit::Args),
    /// Remove a rule
    Remove(remove::Args),
    /// Switch a rule on, in the mode it had
    Enable(switch::Args),
    /// Switch a rule off
    Disable(switch::Args),
    /// Report everything that is wrong with rules
    Lint(lint::Args),
    /// Compare the rules of two places
    Diff(diff::Args),
    /// Take the rules of a file, a database or a server over into another
    Import(import::Args),
    /// Print rules as a rules file
    Export(export::Args),
    /// List what was changed, newest first
    History(history::Args),
    /// Take a change back
    Undo(undo::Args),
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match &args.command {
            Command::List(args) => list::run(args, terminal).await,
            Command::Show(args) => show::run(args, terminal).await,
            Command::Add(args) => add::run(args, terminal).await,
            Command::Edit(args) => edit::run(args, terminal).await,
            Command::Remove(args) => remove::run(args, terminal).await,
            Command::Enable(args) => switch::run(args, switch::To::On, terminal).await,
            Command::Disable(args) => switch::run(args, switch::To::Off, terminal).await,
            Command::Lint(args) => lint::run(args, terminal).await,
            Command::Diff(args) => diff::run(args, terminal).await,
            Command::Import(args) => import::run(args, terminal).await,
            Command::Export(args) => export::run(args, terminal).await,
            Command::History(args) => history::run(args, terminal).await,
            Command::Undo(args) => undo::run(args, terminal).await,
        }
    })
}

/// Prints a rule that was changed: as JSON, or a sentence about it.
fn report(entry: &RuleEntry, json: bool, sentence: &str, terminal: &mut Terminal) -> anyhow::Result<()> {
    if json {
        writeln!(terminal.out(), "{}", serde_json::to_string(entry)?)?;
    } else {
        writeln!(terminal.out(), "{sentence}")?;
    }
    Ok(())
}

/// The limit in the notation, or what the rule does instead.
fn limit_text(rule: &Rule) -> String {
    match rule.action() {
        Action::Limit(limit) => limit.to_string(),
        Action::Deny => "deny".to_owned(),
        Action::Allow => "allow".to_owned(),
    }
}

/// The name of the algorithm, where there is one.
fn algorithm(rule: &Rule) -> Option<&'static str> {
    rule.limit().map(|limit| limit.algorithm_name().as_str())
}
