//! `tollgate rules history` and `undo`: who changed what and when, and back.

use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use tollgate_server::api::{RuleChange, RuleUndone};

use super::entries::{self, find_in, list, title, unknown};
use super::fields::{changes, in_a_line};
use super::place::{Access, PlaceArgs};
use super::report;
use super::yaml::braces;
use crate::client::Client;
use crate::table::table;
use crate::terminal::Terminal;
use crate::words::printable;

/// How far back a rule that is gone is looked for by its name.
const FAR: usize = 10_000;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only of this rule: its name or its number, also of one that is gone
    #[arg(value_name = "NAME|ID")]
    rule: Option<String>,
    #[command(flatten)]
    place: PlaceArgs,
    /// The most to list
    #[arg(long, value_name = "ROWS", env = "TOLLGATE_LIMIT", default_value_t = 20)]
    limit: usize,
    /// Print one JSON object per change
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

pub(super) async fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = args.place.open(Access::Read).await?;
    let rule_id = match &args.rule {
        Some(name) => Some(number(&client, name).await?),
        None => None,
    };
    let changes = entries::history(&client, rule_id, args.limit).await?;
    if args.json {
        for change in &changes {
            writeln!(terminal.out(), "{}", serde_json::to_string(change)?)?;
        }
    } else if changes.is_empty() {
        terminal.remark("nothing was changed yet");
    } else {
        print(&changes, terminal)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The number of a rule that is there, or that was.
async fn number(client: &Client, name: &str) -> anyhow::Result<i64> {
    let rules = list(client).await?;
    let labels: Vec<String> = rules.iter().map(|entry| entry.label.clone()).collect();
    if let Ok(entry) = find_in(rules, name)
        && let Some(rule_id) = entry.rule_id
    {
        return Ok(rule_id);
    }
    if let Ok(rule_id) = name.parse() {
        return Ok(rule_id);
    }
    let changes = entries::history(client, None, FAR).await?;
    let gone = changes.iter().find(|change| label(change) == name);
    gone.map(|change| change.rule_id).ok_or_else(|| unknown(name, labels.iter().map(String::as_str)))
}

/// The label of the rule, as it is or was.
fn label(change: &RuleChange) -> String {
    let Some(draft) = change.after.as_ref().or(change.before.as_ref()) else { return String::new() };
    match draft.clone().build() {
        Ok(rule) => rule.label().to_owned(),
        Err(_) => draft.name.clone().unwrap_or_else(|| draft.key.clone()),
    }
}

fn print(changes: &[RuleChange], terminal: &mut Terminal) -> anyhow::Result<()> {
    let mut table = table(["ID", "TIME", "WHO", "ACTION", "RULE", "CHANGE"], &[0]);
    for change in changes {
        table.add_row([
            change.id.to_string(),
            change.at.clone(),
            printable(&change.who),
            change.action.clone().into_owned(),
            printable(&label(change)),
            printable(&told(change)),
        ]);
    }
    writeln!(terminal.out(), "{}", table.trim_fmt())?;
    Ok(())
}

/// The fields that are different, or all of a rule that came or went.
fn told(change: &RuleChange) -> String {
    match (&change.before, &change.after) {
        (Some(before), Some(after)) => in_a_line(&changes(before, after)),
        (one, other) => one.as_ref().or(other.as_ref()).map(braces).unwrap_or_default(),
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct UndoArgs {
    /// The change, as `rules history` numbers it
    id: i64,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print the rule as JSON, or null if it is gone
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// Takes a change back, which is a change, too.
pub(super) async fn undo(args: &UndoArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = args.place.open(Access::Change).await?;
    let undone: RuleUndone = client.post(&format!("/v1/rules/history/{}/undo", args.id), &()).await?;
    match undone.entry {
        Some(entry) => {
            let sentence = format!("{} is back to {}", title(&entry), braces(&entry.rule));
            report(&entry, args.json, &sentence, terminal)?;
        }
        None if args.json => writeln!(terminal.out(), "null")?,
        None => writeln!(terminal.out(), "the rule that change {} added is gone again", args.id)?,
    }
    Ok(ExitCode::SUCCESS)
}
