//! `tollgate rules`: look at rules, change them, and see what was changed.
//!
//! Rules are in a file, a database or a running server ([`place`]); each command asks the API, which is the server's own or
//! runs in this process. A file is only read: people edit it with an editor, and the server loads it.

mod diff;
mod edit;
mod entries;
mod fields;
mod history;
mod import_export;
mod lint;
mod list;
mod place;
mod show;
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
    Add(edit::AddArgs),
    /// Change some fields of a rule
    Edit(edit::EditArgs),
    /// Remove a rule
    Remove(edit::RemoveArgs),
    /// Switch a rule on, in the mode it had
    Enable(edit::RuleArgs),
    /// Switch a rule off
    Disable(edit::RuleArgs),
    /// Report everything that is wrong with rules
    Lint(lint::Args),
    /// Compare the rules of two places
    Diff(diff::Args),
    /// Take the rules of a file, a database or a server over into another
    Import(import_export::ImportArgs),
    /// Print rules as a rules file
    Export(import_export::ExportArgs),
    /// List what was changed, newest first
    History(history::Args),
    /// Take a change back
    Undo(history::UndoArgs),
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match &args.command {
            Command::List(args) => list::run(args, terminal).await,
            Command::Show(args) => show::run(args, terminal).await,
            Command::Add(args) => edit::add(args, terminal).await,
            Command::Edit(args) => edit::edit(args, terminal).await,
            Command::Remove(args) => edit::remove(args, terminal).await,
            Command::Enable(args) => edit::switch(args, edit::To::On, terminal).await,
            Command::Disable(args) => edit::switch(args, edit::To::Off, terminal).await,
            Command::Lint(args) => lint::run(args, terminal).await,
            Command::Diff(args) => diff::run(args, terminal).await,
            Command::Import(args) => import_export::import(args, terminal).await,
            Command::Export(args) => import_export::export(args, terminal).await,
            Command::History(args) => history::run(args, terminal).await,
            Command::Undo(args) => history::undo(args, terminal).await,
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
