//! `tollgate rules import` and `export`: the rules of one place into another, or as a rules file.

use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use serde_json::json;
use tollgate_server::api::RuleEdit;

use super::diff::Diff;
use super::entries::{add, apply, list, remove, update};
use super::place::{Access, PlaceArgs, open};
use super::yaml;
use crate::terminal::Terminal;

#[derive(Debug, clap::Args)]
pub(super) struct ImportArgs {
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

pub(super) async fn import(args: &ImportArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
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

#[derive(Debug, clap::Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Print JSON, which is a rules file too
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

pub(super) async fn export(args: &ExportArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let entries = list(&args.place.open(Access::Read).await?).await?;
    let drafts: Vec<_> = entries.iter().map(|entry| &entry.rule).collect();
    if args.json {
        writeln!(terminal.out(), "{}", json!({ "rules": drafts }))?;
    } else {
        write!(terminal.out(), "{}", yaml::file(drafts))?;
    }
    Ok(ExitCode::SUCCESS)
}
