//! `tollgate rules undo`: a change taken back, which is a change, too.

use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use tollgate_server::api::RuleUndone;

use super::entries::title;
use super::place::{Access, PlaceArgs};
use super::report;
use super::yaml::braces;
use crate::terminal::Terminal;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The change, as `rules history` numbers it
    id: i64,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print the rule as JSON, or null if it is gone
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

pub(super) async fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
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
