//! `tollgate rules add`: a new rule, in the notation of rules files.

use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use serde_json::Map;

use super::entries::{self, apply, title};
use super::fields::{FieldArgs, checked, whole};
use super::place::{Access, PlaceArgs};
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
    let client = args.place.open(Access::Make).await?;
    let added = apply(&client, vec![entries::add(&draft)?], Some(&draft)).await?;
    let added = added.first().context("the rule was removed again already")?;
    report(added, args.json.is_some(), &format!("added {}", title(added)), terminal)?;
    Ok(ExitCode::SUCCESS)
}
