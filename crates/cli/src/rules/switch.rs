//! `tollgate rules enable` and `disable`.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::builder::FalseyValueParser;
use tollgate_server::api::RuleEdit;

use super::entries::{apply, find, title};
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
    /// Print the rule as JSON
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// What a rule shall be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    On,
    Off,
}

pub(super) async fn run(args: &Args, to: To, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
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
