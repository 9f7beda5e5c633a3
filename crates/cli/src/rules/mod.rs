//! `tollgate rules`: look at rules files.

mod lint;
mod list;
mod show;

use std::process::ExitCode;

use clap::Subcommand;
use tollgate::Rule;
use tollgate::core::rule::Action;

use crate::terminal::Terminal;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Report everything that is wrong with rules files
    Lint(lint::Args),
    /// List the rules of a file
    List(list::Args),
    /// Show everything about one rule, also in words
    Show(show::Args),
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Lint(args) => lint::run(args, terminal),
        Command::List(args) => list::run(args, terminal),
        Command::Show(args) => show::run(args, terminal),
    }
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
