//! `tollgate rules lint`: everything that is wrong, at once.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::builder::FalseyValueParser;
use serde::Serialize;
use tollgate::rules::{self, Problem};

use crate::ERROR;
use crate::load;
use crate::terminal::Terminal;
use crate::words::count;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The rules files; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print one JSON object per file, with its problems
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// What became of one file.
#[derive(Debug, Serialize)]
struct Report<'a> {
    file: &'a str,
    ok: bool,
    rules: Option<usize>,
    problems: &'a [Problem],
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let mut all_good = true;
    for path in &args.files {
        let name = load::name(path);
        let text = load::text(path)
            .map_err(|error| anyhow!("cannot read the rules {name}: {error}; name a YAML file, or `-`"))?;
        let parsed = rules::parse(&name, &text);
        all_good &= parsed.is_ok();
        match &parsed {
            _ if args.json => {
                let report = Report {
                    file: &name,
                    ok: parsed.is_ok(),
                    rules: parsed.as_ref().ok().map(|rules| rules.rules().len()),
                    problems: parsed.as_ref().err().map_or(&[], |error| error.problems()),
                };
                writeln!(terminal.out(), "{}", serde_json::to_string(&report)?)?;
            }
            Ok(rules) => {
                let file = if args.files.len() > 1 { format!("{name}: ") } else { String::new() };
                let number = u64::try_from(rules.rules().len()).unwrap_or(u64::MAX);
                writeln!(terminal.out(), "{file}ok: {}", count(number, "rule"))?;
            }
            Err(error) => {
                terminal.draw(error);
                let number = u64::try_from(error.problems().len()).unwrap_or(u64::MAX);
                terminal.remark(&format!("\n{name}: {}", count(number, "problem")));
            }
        }
    }
    Ok(if all_good { ExitCode::SUCCESS } else { ExitCode::from(ERROR) })
}
