//! `tollgate config show`: what `serve` would run by.

use std::io::Write as _;
use std::process::ExitCode;

use clap::ArgMatches;
use clap::builder::FalseyValueParser;
use serde::Serialize;

use super::{Config, From, Setting};
use crate::serve;
use crate::table::table;
use crate::terminal::Terminal;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct Args {
    /// Print one JSON object
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
    #[command(flatten)]
    _serve: serve::Args,
}

/// All of it as JSON.
#[derive(Debug, Serialize)]
struct Report<'a> {
    file: Option<&'a str>,
    settings: Vec<Line<'a>>,
}

#[derive(Debug, Serialize)]
struct Line<'a> {
    key: &'a str,
    value: Option<&'a str>,
    from: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    variable: Option<&'a str>,
}

impl<'a> Line<'a> {
    fn of(setting: &'a Setting) -> Self {
        let (from, variable) = match &setting.from {
            From::Flag => ("flag", None),
            From::Environment(variable) => ("env", Some(variable.as_str())),
            From::File => ("file", None),
            From::Default => ("default", None),
        };
        Line { key: &setting.key, value: setting.value.as_deref(), from, variable }
    }
}

pub(super) fn run(args: &Args, given: &ArgMatches, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let config = Config::of(given)?;
    let settings: Vec<Line<'_>> = config.settings.iter().map(Line::of).collect();
    if args.json {
        let report = Report { file: config.file.as_deref(), settings };
        writeln!(terminal.out(), "{}", serde_json::to_string(&report)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines = table(["KEY", "VALUE", "FROM"], &[]);
    for Line { key, value, from, variable } in settings {
        let from = match (from, variable, &config.file) {
            (_, Some(variable), _) => variable.to_owned(),
            ("file", _, Some(file)) => file.clone(),
            (from, ..) => from.to_owned(),
        };
        lines.add_row([key, value.unwrap_or("-"), &from]);
    }
    writeln!(terminal.out(), "{}", lines.trim_fmt())?;
    Ok(ExitCode::SUCCESS)
}
