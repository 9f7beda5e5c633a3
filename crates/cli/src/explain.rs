//! `tollgate explain`: which rules a request meets, which not, and why.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use clap::builder::FalseyValueParser;
use tollgate::{Limiter, MemoryStore, Micros, Status};
use tollgate_server::Report;

use crate::decided::{self, Explained, body};
use crate::load;
use crate::request::{RequestArgs, shown};
use crate::rules::{PlaceArgs, is_server};
use crate::terminal::{Terminal, Tone};
use crate::words::{grouped, printable, wait};

/// Longer names and keys push the rest of their line to the right.
const WIDEST: usize = 40;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// A decision that the server made before, by its decision_id
    #[arg(long, value_name = "ID", env = "TOLLGATE_DECISION")]
    decision: Option<String>,
    /// Print one JSON object
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
    #[command(flatten)]
    request: RequestArgs,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let place = args.place.named()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = place.as_deref().filter(|place| is_server(place));
    let server = server.map(|server| args.place.reach.client(server)).transpose()?;
    let (explained, text) = match (&server, &args.decision) {
        (Some(server), Some(id)) => runtime.block_on(server.decision(id))?,
        (Some(server), None) => {
            let body = body(&args.request.descriptor(), args.request.cost);
            runtime.block_on(server.explain(&body))?
        }
        (None, Some(_)) => {
            bail!("only a server remembers decisions; name it: --server http://127.0.0.1:8081")
        }
        (None, None) => {
            let text = runtime.block_on(here(args, place.as_deref().map(Path::new)))?;
            (serde_json::from_str(&text)?, text)
        }
    };
    if args.json {
        writeln!(terminal.out(), "{text}")?;
    } else {
        // A past decision knows of its request only by itself.
        let request = match args.decision {
            Some(_) => request(&explained),
            None => printable(&shown(&args.request.descriptor())),
        };
        print(&request, &explained, terminal)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What the rules say of a request before which nothing was counted, as JSON.
async fn here(args: &Args, place: Option<&Path>) -> anyhow::Result<String> {
    let limiter = Limiter::new(load::rules(place)?, MemoryStore::new());
    let (request, cost) = (args.request.descriptor(), args.request.cost);
    let answer = limiter.request(&request).cost(cost).peek().await;
    let report = Report::of(&limiter, &answer, &request, cost).await;
    Ok(serde_json::to_string(&report)?)
}

fn print(request: &str, explained: &Explained, terminal: &mut Terminal) -> anyhow::Result<()> {
    let tone = if explained.decision.allowed { Tone::Good } else { Tone::Bad };
    let verdict = terminal.paint(tone, &verdict(explained));
    writeln!(terminal.out(), "{request}\n{verdict}")?;
    if explained.rules_changed {
        let note = "the rules were changed since; rules that did not apply are explained as they are now";
        let note = terminal.paint(Tone::Faint, note);
        writeln!(terminal.out(), "{note}")?;
    }
    for (heading, applies) in [("applies", true), ("does not apply", false)] {
        let chosen: Vec<&decided::Line> =
            explained.rules.iter().filter(|line| line.applies == applies).collect();
        if chosen.is_empty() {
            continue;
        }
        let heading = terminal.paint(Tone::Strong, heading);
        writeln!(terminal.out(), "\n{heading}")?;
        let rule_width = widest(chosen.iter().map(|line| &*line.rule));
        let key_width = widest(chosen.iter().map(|line| line.key.as_deref().unwrap_or_default()));
        for line in &chosen {
            let speaks =
                if line.speaks { terminal.paint(Tone::Strong, "  <- speaks") } else { String::new() };
            let key = printable(line.key.as_deref().unwrap_or_default());
            let key = if applies { format!("{key:<key_width$}  ") } else { String::new() };
            let (rule, says) = (printable(&line.rule), printable(&says(line, explained)));
            writeln!(terminal.out(), "  {rule:<rule_width$}  {key}{says}{speaks}")?;
        }
    }
    Ok(())
}

/// The request of a past decision in one line: `plan=free user_id=42`.
fn request(explained: &Explained) -> String {
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let facts = explained.attributes.iter().map(|(name, value)| format!("{name}={}", text(value)));
    match facts.collect::<Vec<_>>().join(" ") {
        facts if facts.is_empty() => "a request about which nothing is known".to_owned(),
        facts => printable(&facts),
    }
}

/// Which way it goes, or went, and by whom.
fn verdict(explained: &Explained) -> String {
    let decision = &explained.decision;
    let when = match (&explained.decision_id, &explained.at) {
        (Some(id), Some(at)) => format!("{id} at {at}: was"),
        _ => "would be".to_owned(),
    };
    let speaker = explained.rules.iter().find(|line| line.speaks);
    let rule = speaker.map(|line| printable(&line.rule));
    let by = rule.as_deref().unwrap_or("a rule");
    match decision.outcome() {
        Status::Allowed => match &rule {
            _ if decision.failed_open()
                && decision.speaker().is_none_or(|limit| limit.remaining.is_none()) =>
            {
                format!("{when} allowed and not counted: the store is unavailable and its rules fail open")
            }
            None => format!("{when} allowed; no limit speaks"),
            Some(rule) => format!("{when} allowed; {rule} speaks, having the least left"),
        },
        Status::Refused => format!("{when} refused by {by}"),
        Status::Unavailable => {
            format!("{when} refused by {by}: the store is unavailable and the rule fails closed")
        }
        // A `deny` rule has no reason beside itself.
        Status::Denied | Status::Invalid => match speaker.and_then(|line| line.reason.as_ref()) {
            None => format!("{when} denied by {by}"),
            Some(_) => format!("{when} refused by {by}: the cost is invalid"),
        },
    }
}

fn widest<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(|text| text.chars().count()).max().unwrap_or(0).min(WIDEST)
}

/// Why a rule does not apply, or what its bucket said.
fn says(line: &decided::Line, explained: &Explained) -> String {
    let limit = explained.decision.limits.iter().find(|limit| limit.rule == line.rule);
    match (&line.reason, limit) {
        (Some(reason), _) => reason.clone(),
        (None, Some(limit)) => numbers(limit),
        (None, None) => String::new(),
    }
}

fn numbers(limit: &decided::Limit) -> String {
    let trial = if limit.is_on_trial() { " (shadow)" } else { "" };
    let Some(remaining) = limit.remaining else {
        return format!("not counted: the store is unavailable and the rule fails open{trial}");
    };
    let left = format!("{} of {} left", grouped(remaining), grouped(limit.limit));
    let says = match limit.retry_after_ms {
        _ if limit.allowed => left,
        Some(after) => format!("refuses for {}, {left}", wait(Micros::new(after.saturating_mul(1_000)))),
        None if limit.limit == 0 => "denies".to_owned(),
        None => format!("refuses for ever, {left}"),
    };
    format!("{says}{trial}")
}
