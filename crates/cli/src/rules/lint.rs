//! `tollgate rules lint`: everything that is wrong, at once.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::builder::FalseyValueParser;
use serde::{Serialize, Serializer};
use tollgate::RuleSet;
use tollgate::rules::{self, RowsError, RuleSource, RulesError, SourceError};

use super::entries::list;
use super::place::{PlaceArgs, is_server};
use super::yaml;
use crate::ERROR;
use crate::client::{Plane, ReachArgs};
use crate::load::{self, for_reading};
use crate::terminal::Terminal;
use crate::words::count;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Rules files, `-` for standard input, databases or servers; without any, --rules or --server
    #[arg(value_name = "FILE|URL", required_unless_present_any = ["rules", "server"])]
    places: Vec<String>,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print one JSON object per place, with its problems
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// What became of one place.
#[derive(Debug, Serialize)]
struct Report<'a> {
    file: &'a str,
    ok: bool,
    rules: Option<usize>,
    #[serde(serialize_with = "or_none")]
    problems: Option<&'a Problems>,
}

/// What is wrong with rules.
#[derive(Debug)]
enum Problems {
    Text(RulesError),
    Rows(RowsError),
}

/// No problems are an empty list.
fn or_none<S: Serializer>(problems: &Option<&Problems>, serializer: S) -> Result<S::Ok, S::Error> {
    match problems {
        Some(problems) => problems.serialize(serializer),
        None => serializer.collect_seq([(); 0]),
    }
}

impl Serialize for Problems {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Problems::Text(error) => error.problems().serialize(serializer),
            Problems::Rows(error) => serializer.collect_seq(error.problems()),
        }
    }
}

impl Problems {
    fn tell(&self, name: &str, terminal: &Terminal) -> anyhow::Result<()> {
        let problems = match self {
            Problems::Text(error) => {
                terminal.draw(error);
                error.problems().len()
            }
            Problems::Rows(error) => {
                error.problems().for_each(|problem| terminal.remark(&format!("error: {problem}")));
                error.problems().count()
            }
        };
        terminal.remark(&format!("\n{name}: {}", count(u64::try_from(problems)?, "problem")));
        Ok(())
    }
}

pub(super) async fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let places = match &args.places[..] {
        [] => args.place.find(Plane::Admin)?.into_iter().collect(),
        places => places.to_vec(),
    };
    let mut all_good = true;
    for place in places {
        let name = load::name(Path::new(&place));
        let linted = lint(&place, &args.place.reach).await?;
        all_good &= linted.is_ok();
        match linted {
            linted if args.json => {
                let report = Report {
                    file: &name,
                    ok: linted.is_ok(),
                    rules: linted.as_ref().ok().copied(),
                    problems: linted.as_ref().err(),
                };
                writeln!(terminal.out(), "{}", serde_json::to_string(&report)?)?;
            }
            Ok(rules) => {
                let file = if args.places.len() > 1 { format!("{name}: ") } else { String::new() };
                writeln!(terminal.out(), "{file}ok: {}", count(u64::try_from(rules)?, "rule"))?;
            }
            Err(problems) => problems.tell(&name, terminal)?,
        }
    }
    Ok(if all_good { ExitCode::SUCCESS } else { ExitCode::from(ERROR) })
}

/// How many rules there are, or what is wrong with them.
async fn lint(place: &str, reach: &ReachArgs) -> anyhow::Result<Result<usize, Problems>> {
    let counted = |rules: RuleSet| rules.rules().len();
    if is_server(place) {
        let client = reach.client(place)?;
        let entries = list(&client).await?;
        let text = yaml::file(entries.iter().map(|entry| &entry.rule));
        return Ok(rules::parse(client.shown(), &text).map(counted).map_err(Problems::Text));
    }
    if place.contains("://") {
        return match RuleSource::database(&for_reading(place)).load(None).await {
            Ok(loaded) => Ok(Ok(loaded.map_or(0, |loaded| counted(loaded.rules)))),
            Err(SourceError::Rows(error)) => Ok(Err(Problems::Rows(error))),
            Err(error) => Err(error.into()),
        };
    }
    let (path, name) = (Path::new(place), load::name(Path::new(place)));
    let text = load::text(path)
        .map_err(|error| anyhow!("cannot read the rules {name}: {error}; name a YAML file, or `-`"))?;
    Ok(rules::parse(&name, &text).map(counted).map_err(Problems::Text))
}
