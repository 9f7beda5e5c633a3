//! `tollgate rules list`: rules as a table.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use serde::Serialize;
use serde_json::Value;
use tollgate_server::api::RuleEntry;

use super::entries::{self, built};
use super::place::{Access, PlaceArgs};
use super::yaml::bracket_value;
use super::{algorithm, limit_text};
use crate::table::table;
use crate::terminal::Terminal;
use crate::words::printable;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// Print one JSON object per rule
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// One line of the list.
#[derive(Debug, Serialize)]
struct Row<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    rule_id: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<i64>,
    name: &'a str,
    key: &'a str,
    scope: Option<&'static str>,
    plan: Option<&'a str>,
    limit: String,
    algorithm: Option<&'a str>,
    mode: &'a str,
    when: &'a BTreeMap<String, Vec<String>>,
    /// Why it is not a rule; only plain SQL can have written one.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl<'a> From<&'a RuleEntry> for Row<'a> {
    fn from(entry: &'a RuleEntry) -> Self {
        let RuleEntry { rule_id, version, label, rule: draft, .. } = entry;
        let written = Row {
            rule_id: *rule_id,
            version: *version,
            name: label,
            key: &draft.key,
            scope: None,
            plan: draft.plan.as_deref(),
            limit: draft.limit.clone().or_else(|| draft.action.clone()).unwrap_or_default(),
            algorithm: draft.algorithm.as_deref(),
            mode: "invalid",
            when: &draft.when,
            problem: None,
        };
        match built(entry) {
            Err(problem) => Row { problem: Some(problem), ..written },
            Ok(rule) => Row {
                scope: Some(rule.scope().as_str()),
                limit: limit_text(&rule),
                algorithm: algorithm(&rule),
                mode: rule.mode().as_str(),
                ..written
            },
        }
    }
}

pub(super) async fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let entries = entries::list(&args.place.open(Access::Read).await?).await?;
    let rows: Vec<Row<'_>> = entries.iter().map(Row::from).collect();
    if args.json {
        for row in rows {
            writeln!(terminal.out(), "{}", serde_json::to_string(&row)?)?;
        }
    } else if rows.is_empty() {
        terminal.remark("no rules: every request passes");
    } else {
        print(&rows, terminal)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(rows: &[Row<'_>], terminal: &mut Terminal) -> anyhow::Result<()> {
    let cells = |row: &Row<'_>| {
        [
            row.name,
            row.key,
            row.scope.unwrap_or("-"),
            row.plan.unwrap_or("any"),
            &row.limit,
            row.algorithm.unwrap_or("-"),
            row.mode,
            &conditions(row.when),
        ]
        .map(printable)
    };
    // Only rules of a database have numbers.
    let numbered = rows.iter().any(|row| row.rule_id.is_some());
    let mut table = match numbered {
        true => table(["ID", "NAME", "KEY", "SCOPE", "PLAN", "LIMIT", "ALGORITHM", "MODE", "WHEN"], &[0]),
        false => table(["NAME", "KEY", "SCOPE", "PLAN", "LIMIT", "ALGORITHM", "MODE", "WHEN"], &[]),
    };
    for row in rows {
        let number = row.rule_id.map(|rule_id| rule_id.to_string());
        table.add_row(number.into_iter().chain(cells(row)));
    }
    writeln!(terminal.out(), "{}", table.trim_fmt())?;
    Ok(())
}

/// Conditions as a rules file has them: `endpoint: /api/*, method: [GET, PUT]`.
fn conditions(when: &BTreeMap<String, Vec<String>>) -> String {
    let condition = |(name, values): (&String, &Vec<String>)| {
        let (name, values) = (Value::from(name.clone()), Value::from(values.clone()));
        format!("{}: {}", bracket_value(&name), bracket_value(&values))
    };
    let all: Vec<String> = when.iter().map(condition).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}
