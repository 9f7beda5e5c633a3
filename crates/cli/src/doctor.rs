//! `tollgate doctor`: what a store is like, before a fleet relies on it.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::builder::FalseyValueParser;
use serde::Serialize;
use tollgate::doctor::{self, Demands, Finding, Level};

use crate::ERROR;
use crate::load::RulesArgs;
use crate::store::StoreArgs;
use crate::terminal::{Terminal, Tone};
use crate::words::count;

#[derive(Debug, clap::Args)]
#[command(after_help = "Exits with 0 when nothing fails, 2 otherwise; warnings do not count.")]
pub(crate) struct Args {
    #[command(flatten)]
    rules: RulesArgs,
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON object
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// Everything that was found.
#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    store: String,
    findings: Vec<Finding>,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let mut findings = vec![rules(args)];
    findings.extend(store(&args.store)?);
    let ok = findings.iter().all(|finding| finding.level < Level::Fail);
    let report = Report { ok, store: args.store.shown(), findings };
    if args.json {
        writeln!(terminal.out(), "{}", serde_json::to_string(&report)?)?;
    } else {
        print(&report, terminal)?;
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(ERROR) })
}

/// Whether the rules load.
fn rules(args: &Args) -> Finding {
    match args.rules.load() {
        Ok(rules) => {
            let number = u64::try_from(rules.rules().len()).unwrap_or(u64::MAX);
            let from = args.rules.shown().unwrap_or_else(|| "the built-in starter set".to_owned());
            Finding::ok("rules", format!("{}, {from}", count(number, "rule")))
        }
        Err(error) => {
            Finding::fail("rules", format!("{error:#}")).with_advice("see `tollgate rules lint FILE`")
        }
    }
}

/// What is found at the store.
fn store(args: &StoreArgs) -> anyhow::Result<Vec<Finding>> {
    let redis = match args.redis() {
        Ok(Some(redis)) => redis,
        Ok(None) => {
            let found = "in this process: nodes do not share their counts, and a restart forgets them";
            return Ok(vec![Finding::ok("store", found)]);
        }
        Err(error) => return Ok(vec![Finding::fail("store", format!("{error:#}"))]),
    };
    let demands = Demands { key_prefix: args.key_prefix().to_owned(), deadline: args.deadline() };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    Ok(runtime.block_on(doctor::examine(&redis, &demands)))
}

/// One line for each finding, and what to do beneath it.
fn print(report: &Report, terminal: &mut Terminal) -> anyhow::Result<()> {
    let title = terminal.paint(Tone::Strong, &report.store);
    writeln!(terminal.out(), "store {title}\n")?;
    for Finding { check, level, found, advice, .. } in &report.findings {
        let (word, tone) = match level {
            Level::Ok => ("ok  ", Tone::Good),
            Level::Warn => ("warn", Tone::Strong),
            Level::Fail => ("fail", Tone::Bad),
        };
        let word = terminal.paint(tone, word);
        writeln!(terminal.out(), "  {word}  {check:<12} {found}")?;
        if let Some(advice) = advice {
            let advice = terminal.paint(Tone::Faint, advice);
            writeln!(terminal.out(), "{:21}{advice}", "")?;
        }
    }
    writeln!(terminal.out(), "\n{}", summary(report))?;
    terminal.out().flush()?;
    Ok(())
}

fn summary(report: &Report) -> String {
    let number = |level| {
        let such = report.findings.iter().filter(|finding| finding.level == level).count();
        u64::try_from(such).unwrap_or(u64::MAX)
    };
    let warnings = count(number(Level::Warn), "warning");
    match number(Level::Fail) {
        0 => format!("nothing fails, {warnings}"),
        1 => format!("1 check fails, {warnings}"),
        more => format!("{more} checks fail, {warnings}"),
    }
}
