//! `tollgate rules edit`: other values for some fields.

use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::builder::FalseyValueParser;

use super::entries::{apply, find, title, update};
use super::fields::{FieldArgs, changes, checked, field, in_a_line, object};
use super::place::{Access, PlaceArgs};
use super::report;
use crate::terminal::Terminal;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The rule's name, its number, or for an unnamed rule what `rules list` shows
    #[arg(value_name = "NAME|ID")]
    rule: String,
    #[command(flatten)]
    place: PlaceArgs,
    /// A field to drop; may be given several times
    #[arg(long, value_name = "FIELD")]
    unset: Vec<String>,
    /// Only if the rule is still this version; without it, the version found now
    #[arg(long, value_name = "N")]
    if_version: Option<i64>,
    /// Print the rule as JSON
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
    #[command(flatten)]
    fields: FieldArgs,
}

pub(super) async fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = args.place.open(Access::Change).await?;
    let entry = find(&client, &args.rule).await?;
    let mut rule = object(&entry.rule);
    for name in &args.unset {
        rule.remove(field(name)?);
    }
    args.fields.set(&mut rule);
    let draft = checked(&rule)?;
    let changed = changes(&entry.rule, &draft);
    ensure!(!changed.is_empty(), "nothing would be different; name a field, such as --limit '20/s'");
    let edits = vec![update(&entry, args.if_version, &draft)?];
    let edited = apply(&client, edits, Some(&draft)).await?;
    let edited = edited.first().context("the rule was removed meanwhile")?;
    let sentence = format!("changed {}: {}", title(edited), in_a_line(&changed));
    report(edited, args.json, &sentence, terminal)?;
    Ok(ExitCode::SUCCESS)
}
