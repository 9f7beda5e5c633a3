//! `tollgate explain`: which rules a request meets, which not, and why.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::ensure;
use clap::builder::FalseyValueParser;
use serde_json::{Map, Value};
use tollgate::Status;
use tollgate_server::api::{Decision, DecisionDetail, DecisionLimit, Explanation, RuleExplanation};

use crate::client::{Plane, encoded};
use crate::request::{RequestArgs, shown};
use crate::rules::PlaceArgs;
use crate::terminal::{Terminal, Tone};
use crate::words::{grouped, millis, printable, wait};

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
    let client = args.place.open_to_decide(Plane::Admin)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let Some(id) = &args.decision {
        ensure!(
            client.is_server(),
            "only a server remembers decisions; name it: --server http://127.0.0.1:8081"
        );
        let path = format!("/v1/decisions/{}", encoded(id));
        let detail: DecisionDetail<'_> = runtime.block_on(client.get(&path))?;
        if args.json {
            writeln!(terminal.out(), "{}", serde_json::to_string(&detail)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let when = format!("{} at {}: was", detail.decision_id, detail.at);
        let verdict = verdict(&when, &detail.decision, &detail.rules);
        print(&request(&detail.attributes), &verdict, &detail.decision, terminal)?;
        if detail.rules_changed {
            let note = "the rules were changed since; these are those that decided";
            let note = terminal.paint(Tone::Faint, note);
            writeln!(terminal.out(), "{note}")?;
        }
        print_rules(&detail.rules, &detail.decision, terminal)?;
        return Ok(ExitCode::SUCCESS);
    }
    let explanation: Explanation<'_> = runtime.block_on(client.post("/v1/explain", &args.request.body()))?;
    if args.json {
        writeln!(terminal.out(), "{}", serde_json::to_string(&explanation)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Explanation { decision, rules, .. } = &explanation;
    let request = printable(&shown(&args.request.descriptor()));
    print(&request, &verdict("would be", decision, rules), decision, terminal)?;
    print_rules(rules, decision, terminal)?;
    Ok(ExitCode::SUCCESS)
}

fn print(
    request: &str,
    verdict: &str,
    decision: &Decision<'_>,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let verdict = terminal.paint(if decision.allowed { Tone::Good } else { Tone::Bad }, verdict);
    Ok(writeln!(terminal.out(), "{request}\n{verdict}")?)
}

fn print_rules(
    rules: &[RuleExplanation],
    decision: &Decision<'_>,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    for (heading, applies) in [("applies", true), ("does not apply", false)] {
        let chosen: Vec<&RuleExplanation> = rules.iter().filter(|rule| rule.applies == applies).collect();
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
            let (rule, says) = (printable(&line.rule), printable(&says(line, decision)));
            writeln!(terminal.out(), "  {rule:<rule_width$}  {key}{says}{speaks}")?;
        }
    }
    Ok(())
}

/// The request of a past decision in one line: `plan=free user_id=42`.
fn request(attributes: &Map<String, Value>) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let attributes = attributes.iter().map(|(name, value)| format!("{name}={}", text(value)));
    match attributes.collect::<Vec<_>>().join(" ") {
        attributes if attributes.is_empty() => "a request about which nothing is known".to_owned(),
        attributes => printable(&attributes),
    }
}

/// Which way it goes, or went, and by which rule.
fn verdict(when: &str, decision: &Decision<'_>, rules: &[RuleExplanation]) -> String {
    let binding = rules.iter().find(|rule| rule.speaks);
    let rule = binding.map(|rule| printable(&rule.rule));
    let by = rule.as_deref().unwrap_or("a rule");
    match decision.status() {
        Status::Allowed => match &rule {
            _ if decision.failed_open()
                && decision.binding_limit().is_none_or(|limit| limit.remaining.is_none()) =>
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
        Status::Denied | Status::Invalid => match binding.and_then(|rule| rule.reason.as_ref()) {
            None => format!("{when} denied by {by}"),
            Some(_) => format!("{when} refused by {by}: the cost is invalid"),
        },
    }
}

fn widest<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(|text| text.chars().count()).max().unwrap_or(0).min(WIDEST)
}

/// Why a rule does not apply, or what its bucket has.
fn says(rule: &RuleExplanation, decision: &Decision<'_>) -> String {
    let limit = decision.limits.iter().find(|limit| limit.rule == rule.rule);
    rule.reason.clone().or_else(|| limit.map(numbers)).unwrap_or_default()
}

fn numbers(limit: &DecisionLimit<'_>) -> String {
    let shadow = if limit.is_shadow() { " (shadow)" } else { "" };
    let Some(remaining) = limit.remaining else {
        return format!("not counted: the store is unavailable and the rule fails open{shadow}");
    };
    let left = format!("{} of {} left", grouped(remaining), grouped(limit.limit));
    let says = match limit.retry_after_ms {
        _ if limit.allowed => left,
        Some(after) => format!("refuses for {}, {left}", wait(millis(after))),
        None if limit.limit == 0 => "denies".to_owned(),
        None => format!("refuses for ever, {left}"),
    };
    format!("{says}{shadow}")
}
