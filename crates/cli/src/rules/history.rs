//! `tollgate rules history`: who changed what, and when.

use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use serde::Serialize;
use tollgate::core::Draft;

use super::book::{Book, Change, find, unknown};
use super::fields::{changes, in_a_line};
use super::place::{Access, PlaceArgs};
use super::yaml::braces;
use crate::table::table;
use crate::terminal::Terminal;
use crate::words::printable;

/// How far back a rule that is gone is looked for by its name.
const FAR: u32 = 10_000;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only of this rule: its name or its number, also of one that is gone
    #[arg(value_name = "NAME|ID")]
    rule: Option<String>,
    #[command(flatten)]
    place: PlaceArgs,
    /// The most to list
    #[arg(long, value_name = "ROWS", env = "TOLLGATE_LIMIT", default_value_t = 20)]
    limit: u32,
    /// Print one JSON object per change
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// One line of the history.
#[derive(Debug, Serialize)]
struct Line<'c> {
    id: i64,
    rule_id: i64,
    at: &'c str,
    who: &'c str,
    action: &'c str,
    before: Option<&'c Draft>,
    after: Option<&'c Draft>,
}

pub(super) async fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let book = args.place.open(Access::Read).await?;
    let rule_id = match &args.rule {
        Some(name) => Some(number(&book, name).await?),
        None => None,
    };
    let changes = book.history(rule_id, args.limit).await?;
    if args.json {
        for change in &changes {
            let Change { id, rule_id, at, who, action, before, after } = change;
            let (before, after) = (before.as_ref(), after.as_ref());
            let line = Line { id: *id, rule_id: *rule_id, at, who, action, before, after };
            writeln!(terminal.out(), "{}", serde_json::to_string(&line)?)?;
        }
    } else if changes.is_empty() {
        terminal.remark("nothing was changed yet");
    } else {
        print(&changes, terminal)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The number of a rule that is there, or that was.
async fn number(book: &Book, name: &str) -> anyhow::Result<i64> {
    let entries = book.list().await?;
    let labels: Vec<String> = entries.iter().map(|entry| entry.label().to_owned()).collect();
    if let Ok(entry) = find(entries, name)
        && let Some(rule_id) = entry.rule_id
    {
        return Ok(rule_id);
    }
    if let Ok(rule_id) = name.parse() {
        return Ok(rule_id);
    }
    let changes = book.history(None, FAR).await?;
    let gone = changes.iter().find(|change| change.label() == name);
    gone.map(|change| change.rule_id).ok_or_else(|| unknown(name, labels.iter().map(String::as_str)))
}

fn print(changes: &[Change], terminal: &mut Terminal) -> anyhow::Result<()> {
    let mut table = table(["ID", "TIME", "WHO", "ACTION", "RULE", "CHANGE"], &[0]);
    for change in changes {
        table.add_row([
            change.id.to_string(),
            change.at.clone(),
            printable(&change.who),
            change.action.clone(),
            printable(&change.label()),
            printable(&told(change)),
        ]);
    }
    writeln!(terminal.out(), "{}", table.trim_fmt())?;
    Ok(())
}

/// The fields that are different, or all of a rule that came or went.
fn told(change: &Change) -> String {
    match (&change.before, &change.after) {
        (Some(before), Some(after)) => in_a_line(&changes(before, after)),
        (one, other) => one.as_ref().or(other.as_ref()).map(braces).unwrap_or_default(),
    }
}
