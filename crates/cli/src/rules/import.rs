//! `tollgate rules import`: the rules of one place into another.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use tollgate::core::Draft;

use super::book::{Book, Edit, Entry};
use super::diff::Diff;
use super::place::{Access, PlaceArgs, actor, open};
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
    let given = open(&args.from, Access::Read, &args.place.reach).await?.list().await?;
    let book = args.place.open(Access::Make).await?;
    let known = book.list().await?;
    let mut diff = Diff::of(&known, &given);
    let removed = std::mem::take(&mut diff.removed);
    if args.replace {
        diff.removed = removed;
    }
    let edits = edits(&diff);
    if !args.dry_run && !edits.is_empty() {
        if let Book::Server(client) = &book {
            client.preview(&result(&known, &diff)).await?; // it takes one rule after the other: ask about all first
        }
        book.apply(&actor(), edits).await?;
    }
    diff.print(args.json, terminal)?;
    if args.dry_run {
        terminal.remark("nothing was changed: this was a dry run");
    }
    terminal.out().flush()?;
    Ok(ExitCode::SUCCESS)
}

/// What to do, in an order in which a rule is there before another replaces it, and goes after that.
fn edits(diff: &Diff<'_>) -> Vec<Edit> {
    let added = replaced_first(&diff.added).into_iter().map(|entry| Edit::Add(entry.draft.clone()));
    let changed = diff.changed.iter();
    let changed = changed.map(|rule| Edit::Update(rule.before.clone().into(), rule.after.draft.clone()));
    let removed =
        replaced_first(&diff.removed).into_iter().rev().map(|entry| Edit::Remove(entry.clone().into()));
    added.chain(changed).chain(removed).collect()
}

/// Rules that others replace before those others; what cannot be sorted comes last, as it was.
fn replaced_first<'e>(entries: &[&'e Entry]) -> Vec<&'e Entry> {
    let mut left: Vec<&Entry> = entries.to_vec();
    let mut sorted = Vec::with_capacity(left.len());
    loop {
        let waiting: BTreeSet<&str> = left.iter().map(|entry| entry.label()).collect();
        let is_ready = |entry: &&Entry| !entry.draft.replaces.iter().any(|name| waiting.contains(&**name));
        let (ready, others): (Vec<&Entry>, Vec<&Entry>) = left.iter().partition(|entry| is_ready(entry));
        if ready.is_empty() {
            sorted.extend(others);
            return sorted;
        }
        sorted.extend(ready);
        left = others;
    }
}

/// The rules there would be.
fn result(known: &[Entry], diff: &Diff<'_>) -> Vec<Draft> {
    let gone: BTreeSet<&str> = diff.removed.iter().map(|entry| entry.label()).collect();
    let changed: BTreeMap<&str, &Entry> =
        diff.changed.iter().map(|rule| (rule.before.label(), rule.after)).collect();
    let mut rules: Vec<Draft> = Vec::new();
    for entry in known.iter().filter(|entry| !gone.contains(entry.label())) {
        rules.push(changed.get(entry.label()).map_or(entry, |after| *after).draft.clone());
    }
    rules.extend(diff.added.iter().map(|entry| entry.draft.clone()));
    rules
}
