//! `tollgate explain`: which rules a request meets, which not, and why.

use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use tollgate::core::Enforcement;
use tollgate::{Answer, Descriptor, Limiter, MemoryStore, Outcome, Tier};
use tollgate_server::{Line, Report};

use crate::load::RulesArgs;
use crate::request::{RequestArgs, shown};
use crate::terminal::{Terminal, Tone};
use crate::words::{grouped, wait};

/// Longer names and keys push the rest of their line to the right.
const WIDEST: usize = 40;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    rules: RulesArgs,
    /// Print one JSON object
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
    #[command(flatten)]
    request: RequestArgs,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let limiter = Limiter::new(args.rules.load()?, MemoryStore::new());
    let request = args.request.descriptor();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let answer = runtime.block_on(limiter.peek(&request, args.request.cost));
    let report = runtime.block_on(Report::of(&limiter, &answer, &request, args.request.cost));
    if args.json {
        writeln!(terminal.out(), "{}", serde_json::to_string(&report)?)?;
    } else {
        print(&answer, &request, &report.rules, terminal)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(
    answer: &Answer,
    request: &Descriptor<'_>,
    rules: &[Line],
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let verdict = match (answer.outcome(), answer.rule()) {
        (Outcome::Allowed, None) => "would be allowed; no limit speaks".to_owned(),
        (Outcome::Allowed, Some(rule)) => format!("would be allowed; {rule} speaks, having the least left"),
        (Outcome::Refused, rule) => format!("would be refused by {}", rule.unwrap_or_default()),
        (Outcome::Unavailable, rule) => {
            format!(
                "would be refused by {}: the store is away and the rule fails closed",
                rule.unwrap_or_default()
            )
        }
        (Outcome::Denied, rule) => format!("would be denied by {}", rule.unwrap_or_default()),
    };
    let tone = if answer.allowed() { Tone::Good } else { Tone::Bad };
    let verdict = terminal.paint(tone, &verdict);
    writeln!(terminal.out(), "{}\n{verdict}", shown(request))?;
    for (heading, applies) in [("applies", true), ("does not apply", false)] {
        let chosen: Vec<&Line> = rules.iter().filter(|line| line.applies == applies).collect();
        if chosen.is_empty() {
            continue;
        }
        let heading = terminal.paint(Tone::Strong, heading);
        writeln!(terminal.out(), "\n{heading}")?;
        let rule_width = widest(chosen.iter().map(|line| line.rule.as_str()));
        let key_width = widest(chosen.iter().map(|line| key(line)));
        for line in &chosen {
            let speaks =
                if line.speaks { terminal.paint(Tone::Strong, "  <- speaks") } else { String::new() };
            let key = if applies { format!("{:<key_width$}  ", key(line)) } else { String::new() };
            writeln!(terminal.out(), "  {:<rule_width$}  {key}{}{speaks}", line.rule, says(line))?;
        }
    }
    Ok(())
}

fn widest<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(|text| text.chars().count()).max().unwrap_or(0).min(WIDEST)
}

fn key(line: &Line) -> &str {
    line.key.as_deref().unwrap_or_default()
}

fn says(line: &Line) -> String {
    match (&line.reason, &line.tier) {
        (Some(reason), _) => reason.clone(),
        (None, Some(tier)) => numbers(tier),
        (None, None) => String::new(),
    }
}

fn numbers(tier: &Tier) -> String {
    let verdict = &tier.verdict;
    let trial = match tier.enforcement {
        Enforcement::Enforce => "",
        Enforcement::Shadow => " (shadow)",
    };
    let left = format!("{} of {} left", grouped(verdict.remaining), grouped(verdict.limit));
    let says = match verdict.retry_after {
        _ if verdict.allowed => left,
        Some(after) => format!("refuses for {}, {left}", wait(after)),
        None if verdict.limit == 0 => "denies".to_owned(),
        None => format!("refuses for ever, {left}"),
    };
    format!("{says}{trial}")
}
