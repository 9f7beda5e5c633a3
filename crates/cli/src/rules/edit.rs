//! `tollgate rules edit`: other values for some fields.

use std::process::ExitCode;

use anyhow::ensure;
use clap::builder::FalseyValueParser;

use super::book::{Edit, Entry};
use super::fields::{FieldArgs, changes, checked, field, in_a_line, object};
use super::place::{Access, PlaceArgs, actor};
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
    let book = args.place.open(Access::Change).await?;
    let entry = book.find(&args.rule).await?;
    let entry = Entry { version: args.if_version.or(entry.version), ..entry };
    let mut rule = object(&entry.draft);
    for name in &args.unset {
        rule.remove(field(name)?);
    }
    args.fields.set(&mut rule);
    let draft = checked(&rule)?;
    let changed = changes(&entry.draft, &draft);
    ensure!(!changed.is_empty(), "nothing would be different; name a field, such as --limit '20/s'");
    let edited = book.apply(&actor(), vec![Edit::Update(entry.into(), draft.clone())]).await?.pop();
    let edited = edited.unwrap_or_else(|| Entry::of(draft));
    let sentence = format!("changed {}: {}", edited.title(), in_a_line(&changed));
    report(&edited, args.json, &sentence, terminal)?;
    Ok(ExitCode::SUCCESS)
}
