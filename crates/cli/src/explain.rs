//! `tollgate explain`: which rules a request meets, which not, and why.

use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use serde::Serialize;
use tollgate::core::rule::{Action, Mismatch};
use tollgate::core::{Enforcement, RuleIndex};
use tollgate::{Answer, Descriptor, Limiter, MemoryStore, Outcome, RuleSet, Tier};
use tollgate_server::DecisionBody;

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

/// Everything there is to say about a request.
#[derive(Debug, Serialize)]
struct Report<'a> {
    attributes: serde_json::Map<String, serde_json::Value>,
    cost: u64,
    decision: DecisionBody<'a>,
    rules: Vec<Line<'a>>,
}

/// What one rule has to do with it.
#[derive(Debug, Serialize)]
struct Line<'a> {
    rule: &'a str,
    applies: bool,
    /// Why not, or what it did where it has no numbers.
    reason: Option<String>,
    key: Option<String>,
    speaks: bool,
    #[serde(skip)]
    tier: Option<Tier>,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let limiter = Limiter::new(args.rules.load()?, MemoryStore::new());
    let request = args.request.descriptor();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let answer = runtime.block_on(limiter.peek(&request, args.request.cost));
    let rules = lines(&limiter, &answer, &request);
    if args.json {
        let text = |value: &tollgate::core::Value<'_>| value.to_string().into();
        let report = Report {
            attributes: request.facts().map(|(name, value)| (name.to_owned(), text(value))).collect(),
            cost: args.request.cost,
            decision: DecisionBody::new(&answer, &request, None),
            rules,
        };
        writeln!(terminal.out(), "{}", serde_json::to_string(&report)?)?;
    } else {
        print(&answer, &request, &rules, terminal)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn lines<'a>(limiter: &Limiter<MemoryStore>, answer: &'a Answer, request: &Descriptor<'_>) -> Vec<Line<'a>> {
    let rules = answer.rules();
    let explained = limiter.explain(rules, request);
    let applies = |index: RuleIndex| {
        explained.iter().any(|one| one.rule == index && one.mismatch.is_none() && !one.replaced)
    };
    let line = |index: RuleIndex, mismatch: Option<&Mismatch<'_>>| {
        let rule = rules.rule(index);
        let tier = answer.tiers().iter().find(|tier| tier.rule == index).copied();
        let reason = match mismatch {
            Some(mismatch) => Some(reason(mismatch, request)),
            None if !applies(index) => Some(replaced_by(rules, index, applies)),
            None if tier.is_none() => Some(beside(rules, index, answer)),
            None => None,
        };
        Line {
            rule: rule.label(),
            applies: applies(index),
            reason,
            key: applies(index).then(|| rule.key(request).to_string()),
            speaks: answer.speaker().is_some_and(|speaker| speaker.rule == index),
            tier,
        }
    };
    explained.iter().map(|one| line(one.rule, one.mismatch.as_ref())).collect()
}

fn reason(mismatch: &Mismatch<'_>, request: &Descriptor<'_>) -> String {
    match mismatch {
        Mismatch::Condition(condition) => {
            let attribute = condition.attribute();
            let here = match request.text(attribute) {
                Some(value) => format!("here it is {value}"),
                None => format!("the request has no {attribute}"),
            };
            format!("only where {}; {here}", condition.describe())
        }
        other => other.to_string(),
    }
}

fn replaced_by(rules: &RuleSet, index: RuleIndex, applies: impl Fn(RuleIndex) -> bool) -> String {
    let label = rules.rule(index).label();
    let replaces = |(other, rule): &(RuleIndex, &tollgate::Rule)| {
        applies(*other) && rule.replaces().iter().any(|name| name == label)
    };
    match (0..).zip(rules.rules()).find(replaces) {
        Some((_, rule)) => format!("replaced by {}", rule.label()),
        None => "replaced by another rule".to_owned(),
    }
}

/// Why a rule that applies has no numbers.
fn beside(rules: &RuleSet, index: RuleIndex, answer: &Answer) -> String {
    match (rules.rule(index).action(), answer.outcome()) {
        (_, Outcome::Denied) => "not asked: another rule denies the request".to_owned(),
        (Action::Allow, _) => "exempts the request from every limit".to_owned(),
        _ => "not asked: another rule exempts the request".to_owned(),
    }
}

fn print(
    answer: &Answer,
    request: &Descriptor<'_>,
    rules: &[Line<'_>],
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
        let chosen: Vec<&Line<'_>> = rules.iter().filter(|line| line.applies == applies).collect();
        if chosen.is_empty() {
            continue;
        }
        let heading = terminal.paint(Tone::Strong, heading);
        writeln!(terminal.out(), "\n{heading}")?;
        let rule_width = widest(chosen.iter().map(|line| line.rule));
        let key_width = widest(chosen.iter().map(|line| line.key()));
        for line in &chosen {
            let speaks =
                if line.speaks { terminal.paint(Tone::Strong, "  <- speaks") } else { String::new() };
            let key = if applies { format!("{:<key_width$}  ", line.key()) } else { String::new() };
            writeln!(terminal.out(), "  {:<rule_width$}  {key}{}{speaks}", line.rule, line.says())?;
        }
    }
    Ok(())
}

fn widest<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(|text| text.chars().count()).max().unwrap_or(0).min(WIDEST)
}

impl Line<'_> {
    fn key(&self) -> &str {
        self.key.as_deref().unwrap_or_default()
    }

    fn says(&self) -> String {
        match (&self.reason, &self.tier) {
            (Some(reason), _) => reason.clone(),
            (None, Some(tier)) => numbers(tier),
            (None, None) => String::new(),
        }
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
