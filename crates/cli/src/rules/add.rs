//! `tollgate rules add`: a new rule, in the notation of rules files.

use std::process::ExitCode;

use anyhow::ensure;
use serde_json::Map;

use super::book::{Edit, Entry};
use super::fields::{FieldArgs, checked, whole};
use super::place::{Access, PlaceArgs, actor};
use super::report;
use crate::terminal::Terminal;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// A whole rule instead of fields: '{"key": "global", "limit": "10/s"}', or `-` for standard input; with or without
    /// one, the answer is JSON
    #[arg(long, value_name = "RULE", num_args = 0..=1, default_missing_value = "")]
    json: Option<String>,
    #[command(flatten)]
    fields: FieldArgs,
}

pub(super) async fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
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
    let book = args.place.open(Access::Make).await?;
    let added = book.apply(&actor(), vec![Edit::Add(draft.clone())]).await?.pop();
    let added = added.unwrap_or_else(|| Entry::of(draft));
    report(&added, args.json.is_some(), &format!("added {}", added.title()), terminal)?;
    Ok(ExitCode::SUCCESS)
}
