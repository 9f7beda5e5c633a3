//! `tollgate rules import`: the rules of one place into another.

use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use tollgate_server::api::RuleEdit;

use super::diff::Diff;
use super::entries::{add, apply, list, remove, update};
use super::place::{Access, PlaceArgs, open};
use crate::terminal::Terminal;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The rules to take over: a file (`-` is standard input), sqlite://path, postgres://user@host/name or
    /// http://127.0.0.1:8081
    #[arg(value_name = "FILE|URL")]
    from: String,
    #[command(flatten)]
    place: PlaceArgs,
    /// Also remove the rules that are not among them
    #[arg(long, env = "TOLLGATE_REPLACE", value_parser = FalseyValueParser::new())]
    replace: bool,
    /// Only show what would be different
    #[arg(long, env = "TOLLGATE_DRY_RUN", value_parser = FalseyValueParser::new())]
    dry_run: bool,
    /// Print the differences as JSON
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

pub(super) async fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let given = list(&open(&args.from, Access::Read, &args.place.reach).await?).await?;
    let client = args.place.open(Access::Make).await?;
    let known = list(&client).await?;
    let mut diff = Diff::of(&known, &given);
    let removed = std::mem::take(&mut diff.removed);
    if args.replace {
        diff.removed = removed;
    }
    let edits = edits(&diff)?;
    if !args.dry_run && !edits.is_empty() {
        apply(&client, edits, None).await?;
    }
    diff.print(args.json, terminal)?;
    if args.dry_run {
        terminal.remark("nothing was changed: this was a dry run");
    }
    terminal.out().flush()?;
    Ok(ExitCode::SUCCESS)
}

fn edits(diff: &Diff<'_>) -> anyhow::Result<Vec<RuleEdit>> {
    let added = diff.added.iter().map(|entry| add(&entry.rule));
    let changed = diff.changed.iter().map(|rule| update(rule.before, None, &rule.after.rule));
    let removed = diff.removed.iter().map(|entry| remove(entry, None));
    added.chain(changed).chain(removed).collect()
}
