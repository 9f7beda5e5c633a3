//! `tollgate rules enable` and `disable`.

use std::process::ExitCode;

use clap::builder::FalseyValueParser;

use super::book::Edit;
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
    let book = args.place.open(Access::Change).await?;
    let entry = book.find(&args.rule).await?;
    let is_so = entry.is_off() == (to == To::Off);
    let edit = match to {
        To::On => Edit::Enable(entry.clone().into()),
        To::Off => Edit::Disable(entry.clone().into()),
    };
    // What is so already stays as it is, version and all.
    let switched = if is_so { None } else { book.apply(&actor(), vec![edit]).await?.pop() };
    let switched = switched.unwrap_or(entry);
    let mode = switched.draft.mode.as_deref().unwrap_or("enforce");
    let already = if is_so { "already " } else { "" };
    let sentence = match to {
        To::On => format!("{} is {already}on, mode {mode}", switched.title()),
        To::Off => format!("{} is {already}off", switched.title()),
    };
    report(&switched, args.json, &sentence, terminal)?;
    Ok(ExitCode::SUCCESS)
}
