//! `tollgate rules undo`: a change taken back, which is a change, too.

use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;

use super::place::{Access, PlaceArgs, actor};
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
    let book = args.place.open(Access::Change).await?;
    match book.undo(&actor(), args.id).await? {
        Some(entry) => {
            let sentence = format!("{} is back to {}", entry.title(), braces(&entry.draft));
            report(&entry, args.json, &sentence, terminal)?;
        }
        None if args.json => writeln!(terminal.out(), "null")?,
        None => writeln!(terminal.out(), "the rule that change {} added is gone again", args.id)?,
    }
    Ok(ExitCode::SUCCESS)
}
