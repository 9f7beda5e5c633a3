//! `tollgate rules add`, `edit`, `remove`, `enable` and `disable`: changes of one rule.

use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::builder::FalseyValueParser;
use serde_json::Map;
use tollgate_server::api::RuleEdit;

use super::entries::{self, apply, find, history, title, update};
use super::fields::{FieldArgs, changes, checked, field, in_a_line, object, whole};
use super::place::{Access, PlaceArgs};
use super::report;
use super::yaml::braces;
use crate::terminal::Terminal;

#[derive(Debug, clap::Args)]
pub(super) struct AddArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// A whole rule instead of fields: '{"key": "global", "limit": "10/s"}', or `-` for standard input; with or without
    /// one, the answer is JSON
    #[arg(long, value_name = "RULE", num_args = 0..=1, default_missing_value = "")]
    json: Option<String>,
    #[command(flatten)]
    fields: FieldArgs,
}

/// A rule that is there.
#[derive(Debug, clap::Args)]
pub(super) struct RuleArgs {
    /// The rule's name, its number, or for an unnamed rule what `rules list` shows
    #[arg(value_name = "NAME|ID")]
    rule: String,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print the rule as JSON
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct EditArgs {
    #[command(flatten)]
    rule: RuleArgs,
    /// A field to drop; may be given several times
    #[arg(long, value_name = "FIELD")]
    unset: Vec<String>,
    /// Only if the rule is still this version; without it, the version found now
    #[arg(long, value_name = "N")]
    if_version: Option<i64>,
    #[command(flatten)]
    fields: FieldArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct RemoveArgs {
    #[command(flatten)]
    rule: RuleArgs,
    /// Only if the rule is still this version; without it, the version found now
    #[arg(long, value_name = "N")]
    if_version: Option<i64>,
}

/// Whether a rule shall be on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    On,
    Off,
}

pub(super) async fn add(args: &AddArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let mut given = Map::new();
    args.fields.set(&mut given);
    let draft = match args.json.as_deref() {
        Some(rule) if !rule.is_empty() => {
            ensure!(
                given.is_empty(),
                "a rule is given as a whole or field by field; drop --json or the fields"
            );
            whole(rule)?
        }
        _ => checked(&given)?,
    };
    let client = args.place.open(Access::Make).await?;
    let added = apply(&client, vec![entries::add(&draft)?], Some(&draft)).await?;
    let added = added.first().context("the rule was removed again already")?;
    report(added, args.json.is_some(), &format!("added {}", title(added)), terminal)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn edit(args: &EditArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = args.rule.place.open(Access::Change).await?;
    let entry = find(&client, &args.rule.rule).await?;
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
    report(edited, args.rule.json, &sentence, terminal)?;
    Ok(ExitCode::SUCCESS)
}

/// Removes a rule, and says how to bring it back.
pub(super) async fn remove(args: &RemoveArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = args.rule.place.open(Access::Change).await?;
    let mut entry = find(&client, &args.rule.rule).await?;
    apply(&client, vec![entries::remove(&entry, args.if_version)?], None).await?;
    entry.version = args.if_version.or(entry.version);
    let sentence = format!("removed {}: {}", title(&entry), braces(&entry.rule));
    report(&entry, args.rule.json, &sentence, terminal)?;
    // The rule is removed: a history that cannot be read now is not a failure.
    let change = history(&client, entry.rule_id, 1).await.ok().and_then(|mut changes| changes.pop());
    terminal.remark(&change.map_or_else(
        || "`tollgate rules history` has it, and `tollgate rules undo` brings it back".to_owned(),
        |change| format!("`tollgate rules undo {}` brings it back", change.id),
    ));
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn switch(args: &RuleArgs, to: To, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = args.place.open(Access::Change).await?;
    let entry = find(&client, &args.rule).await?;
    let is_so = entry.active == (to == To::On);
    let rule_id = entry.rule_id.context("the rule has no number, so it cannot be switched here")?;
    let edit = match to {
        To::On => RuleEdit::Enable { rule_id },
        To::Off => RuleEdit::Disable { rule_id },
    };
    // A rule that is so already stays as it is, version and all.
    let switched = if is_so { None } else { apply(&client, vec![edit], None).await?.pop() };
    let switched = switched.unwrap_or(entry);
    let mode = switched.rule.mode.as_deref().unwrap_or("enforce");
    let already = if is_so { "already " } else { "" };
    let sentence = match to {
        To::On => format!("{} is {already}on, mode {mode}", title(&switched)),
        To::Off => format!("{} is {already}off", title(&switched)),
    };
    report(&switched, args.json, &sentence, terminal)?;
    Ok(ExitCode::SUCCESS)
}
