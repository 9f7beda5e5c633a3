//! `tollgate rules remove`: no such rule any more, and the way back.

use std::process::ExitCode;

use clap::builder::FalseyValueParser;

use super::entries::{self, apply, find, history, title};
use super::place::{Access, PlaceArgs};
use super::report;
use super::yaml::braces;
use crate::terminal::Terminal;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The rule's name, its number, or for an unnamed rule what `rules list` shows
    #[arg(value_name = "NAME|ID")]
    rule: String,
    #[command(flatten)]
    place: PlaceArgs,
    /// Only if the rule is still this version; without it, the version found now
    #[arg(long, value_name = "N")]
    if_version: Option<i64>,
    /// Print the rule that was removed as JSON
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

pub(super) async fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = args.place.open(Access::Change).await?;
    let mut entry = find(&client, &args.rule).await?;
    apply(&client, vec![entries::remove(&entry, args.if_version)?], None).await?;
    entry.version = args.if_version.or(entry.version);
    let sentence = format!("removed {}: {}", title(&entry), braces(&entry.rule));
    report(&entry, args.json, &sentence, terminal)?;
    // The rule is removed: a history that cannot be read now is not a failure.
    let change = history(&client, entry.rule_id, 1).await.ok().and_then(|mut changes| changes.pop());
    terminal.remark(&change.map_or_else(
        || "`tollgate rules history` has it, and `tollgate rules undo` brings it back".to_owned(),
        |change| format!("`tollgate rules undo {}` brings it back", change.id),
    ));
    Ok(ExitCode::SUCCESS)
}
