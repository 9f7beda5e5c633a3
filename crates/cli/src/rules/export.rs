//! `tollgate rules export`: rules as a rules file.

use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use serde_json::json;

use super::entries::list;
use super::place::{Access, PlaceArgs};
use super::yaml;
use crate::terminal::Terminal;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// Print JSON, which is a rules file too
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

pub(super) async fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let entries = list(&args.place.open(Access::Read).await?).await?;
    let drafts: Vec<_> = entries.iter().map(|entry| &entry.rule).collect();
    if args.json {
        writeln!(terminal.out(), "{}", json!({ "rules": drafts }))?;
    } else {
        write!(terminal.out(), "{}", yaml::file(drafts))?;
    }
    Ok(ExitCode::SUCCESS)
}
