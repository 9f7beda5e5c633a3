//! `tollgate rules list`: the rules of a file as a table.

use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use serde::Serialize;
use tollgate::Rule;

use super::{algorithm, limit_text};
use crate::load::RulesArgs;
use crate::table::table;
use crate::terminal::Terminal;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    rules: RulesArgs,
    /// Print one JSON object per rule
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// One line of the list.
#[derive(Debug, Serialize)]
struct Row<'a> {
    name: &'a str,
    key: &'a str,
    scope: &'static str,
    plan: Option<&'a str>,
    limit: String,
    algorithm: Option<&'static str>,
    mode: &'static str,
}

impl<'a> From<&'a Rule> for Row<'a> {
    fn from(rule: &'a Rule) -> Self {
        Row {
            name: rule.label(),
            key: rule.pattern().as_str(),
            scope: rule.scope().as_str(),
            plan: rule.plan(),
            limit: limit_text(rule),
            algorithm: algorithm(rule),
            mode: rule.mode().as_str(),
        }
    }
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let rules = args.rules.load()?;
    let rows = rules.rules().iter().map(Row::from);
    if args.json {
        for row in rows {
            writeln!(terminal.out(), "{}", serde_json::to_string(&row)?)?;
        }
    } else if rules.rules().is_empty() {
        terminal.remark("no rules: every request passes");
    } else {
        let mut table = table(["NAME", "KEY", "SCOPE", "PLAN", "LIMIT", "ALGORITHM", "MODE"], &[]);
        for row in rows {
            table.add_row([
                row.name,
                row.key,
                row.scope,
                row.plan.unwrap_or("any"),
                &row.limit,
                row.algorithm.unwrap_or("-"),
                row.mode,
            ]);
        }
        writeln!(terminal.out(), "{}", table.trim_fmt())?;
    }
    Ok(ExitCode::SUCCESS)
}
