//! `tollgate rules show`: everything about one rule, also in words.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::builder::FalseyValueParser;
use serde::Serialize;
use tollgate::core::Draft;
use tollgate::core::limit::{Algorithm, CalendarUnit, Opening, Phase, Ticks};
use tollgate::core::rule::{Action, Consistency, CostDraft, FailurePolicy, Missing, Mode};
use tollgate::{Limit, Rule};

use super::entries::{built, find};
use super::place::{Access, PlaceArgs};
use super::{algorithm, limit_text};
use crate::terminal::{Terminal, Tone};
use crate::words::{grouped, wait};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The rule's name, its number, or for an unnamed rule what `rules list` shows
    #[arg(value_name = "NAME|ID")]
    rule: String,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print one JSON object
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// A rule with every default filled in, and as it was written.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    rule_id: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<&'a str>,
    name: &'a str,
    key: &'a str,
    scope: &'static str,
    plan: Option<&'a str>,
    limit: String,
    algorithm: Option<&'static str>,
    mode: &'static str,
    missing: &'static str,
    consistency: &'static str,
    on_store_failure: &'static str,
    conditions: Vec<String>,
    explanation: String,
    written: &'a Draft,
}

pub(super) async fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let entry = find(&args.place.open(Access::Read).await?, &args.rule).await?;
    let way_out = "`tollgate rules edit` changes its fields";
    let rule = &built(&entry)
        .map_err(|problem| anyhow!("rule `{}` is invalid: {problem}; {way_out}", entry.label))?;
    let shown = Shown {
        rule_id: entry.rule_id,
        version: entry.version,
        updated_at: entry.updated_at.as_deref(),
        name: rule.label(),
        key: rule.pattern().as_str(),
        scope: rule.scope().as_str(),
        plan: rule.plan(),
        limit: limit_text(rule),
        algorithm: algorithm(rule),
        mode: rule.mode().as_str(),
        missing: rule.missing().as_str(),
        consistency: rule.consistency().as_str(),
        on_store_failure: rule.on_store_failure().as_str(),
        conditions: rule.conditions().iter().map(|condition| condition.describe()).collect(),
        explanation: in_words(rule),
        written: rule.draft(),
    };
    if args.json {
        writeln!(terminal.out(), "{}", serde_json::to_string(&shown)?)?;
    } else {
        print(&shown, terminal)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(shown: &Shown<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let draft = shown.written;
    let cost = draft.cost.as_ref().map(|cost| match cost {
        CostDraft::Times(factor) => format!("{factor} times the request's"),
        CostDraft::Attribute(name) => format!("the request's {name}"),
    });
    let name = terminal.paint(Tone::Strong, shown.name);
    let out = terminal.out();
    writeln!(out, "{name}")?;
    if let Some(description) = &draft.description {
        writeln!(out, "{description}")?;
    }
    writeln!(out)?;
    let optional = |text: Option<&str>| text.map(str::to_owned);
    let fields = [
        ("key", Some(shown.key.to_owned())),
        ("scope", optional(Some(shown.scope))),
        ("applies", Some(conditions(&shown.conditions))),
        ("limit", Some(shown.limit.clone())),
        ("algorithm", optional(shown.algorithm)),
        ("window", optional(draft.window.as_deref())),
        ("time zone", optional(draft.time_zone.as_deref())),
        ("cost", cost),
        ("mode", optional(Some(shown.mode))),
        ("missing", optional(Some(shown.missing))),
        ("consistency", optional(Some(shown.consistency))),
        ("on failure", optional(Some(shown.on_store_failure))),
        ("replaces", (!draft.replaces.is_empty()).then(|| draft.replaces.join(", "))),
        ("rule", shown.rule_id.map(|rule_id| rule_id.to_string())),
        ("version", shown.version.map(|version| version.to_string())),
        ("changed", optional(shown.updated_at)),
        ("ipv6 prefix", draft.ipv6_prefix.map(|bits| format!("/{bits}"))),
    ];
    for (field, value) in fields {
        if let Some(value) = value {
            writeln!(out, "  {field:<12} {value}")?;
        }
    }
    writeln!(out, "\n{}", shown.explanation)?;
    Ok(())
}

fn conditions(conditions: &[String]) -> String {
    if conditions.is_empty() { "always".to_owned() } else { format!("where {}", conditions.join(" and ")) }
}

/// What the rule does, for people.
fn in_words(rule: &Rule) -> String {
    let mut sentences = vec![match rule.action() {
        Action::Limit(limit) => format!("{} {}", who(rule), numbers(limit)),
        Action::Deny => "Every request it applies to is refused at once, and no wait helps.".to_owned(),
        Action::Allow => "Every request it applies to is exempt from every limit.".to_owned(),
    }];
    let attributes: Vec<&str> = rule.pattern().attributes().collect();
    if !attributes.is_empty() {
        let absent = attributes.join(" or ");
        sentences.push(match rule.missing() {
            Missing::Skip => format!("Requests without {absent} pass it by."),
            Missing::Deny => format!("Requests without {absent} are refused."),
            Missing::Shared => format!("Requests without {absent} share one bucket."),
        });
    }
    match rule.mode() {
        Mode::Enforce => {}
        Mode::Shadow => sentences.push("It is on trial: it counts, and never refuses.".to_owned()),
        Mode::Off => sentences.push("It is switched off.".to_owned()),
    }
    if rule.limit().is_some() {
        sentences.push(match rule.without_store() {
            _ if rule.consistency() == Consistency::Local => {
                "Each node counts its own share, whether or not the store can be asked.".to_owned()
            }
            FailurePolicy::Open => "When the store cannot be asked, requests pass.".to_owned(),
            FailurePolicy::Closed => "When the store cannot be asked, requests are refused.".to_owned(),
            FailurePolicy::Local => {
                "When the store cannot be asked, this node counts its own share.".to_owned()
            }
        });
    }
    sentences.join("\n")
}

fn who(rule: &Rule) -> String {
    let attributes: Vec<&str> = rule.pattern().attributes().collect();
    if attributes.is_empty() {
        "All requests it applies to together have".to_owned()
    } else {
        format!("Each {} has", attributes.join(" and "))
    }
}

fn numbers(limit: &Limit) -> String {
    let text = limit.to_string();
    let rate = text.split(" burst").next().unwrap_or_default();
    let capacity = grouped(limit.capacity());
    let full = wait(limit.time_to_full());
    let period = limit.period_text();
    match limit.algorithm() {
        Algorithm::TokenBucket(_) => format!(
            "a bucket of {capacity} tokens, to which {rate} come back, one by one.\nAfter a pause {capacity} \
             requests may come at once; a bucket that was used up is full again after {full}."
        ),
        Algorithm::TokenBucketInterval(refill) => {
            let ticks = match refill.ticks() {
                Ticks::Aligned => "on the clock",
                Ticks::FromFirstTake => "counted from the request that finds it full",
            };
            format!(
                "a bucket of {capacity} tokens, to which {rate} come back, all together, {ticks}.\nA bucket that \
                 was used up is full again after {full} at most."
            )
        }
        Algorithm::LeakyBucket { free, .. } => {
            let leave = rate.split(" queue").next().unwrap_or_default();
            let queue = grouped(limit.capacity() - 1);
            let free = match free {
                0 => String::new(),
                free => format!(" The first {} do not wait.", grouped(*free)),
            };
            format!(
                "a queue that requests leave one by one, {leave}; up to {queue} wait their turn and the others \
                 are refused.{free}"
            )
        }
        Algorithm::FixedWindow { phase, .. } => {
            let begins = match phase {
                Phase::Epoch => "on the clock".to_owned(),
                Phase::First => "with the first request".to_owned(),
                Phase::Spread => "at a moment of its own, so that not all reset at once".to_owned(),
                Phase::Calendar(calendar) => {
                    let unit = match calendar.unit() {
                        CalendarUnit::Day => "at midnight",
                        CalendarUnit::Week => "on Monday's midnight",
                        CalendarUnit::Month => "on the first of the month",
                    };
                    format!("{unit} in {}", calendar.time_zone())
                }
            };
            format!("{capacity} in each window of {period}; a window begins {begins}.")
        }
        Algorithm::SlidingWindowLog { .. } => {
            format!("{capacity} in any stretch of {period}, exactly: every request is remembered that long.")
        }
        Algorithm::SlidingWindowCounter { opens, .. } => {
            let begins = match opens {
                Opening::Epoch => "on the clock",
                Opening::First => "with the first request",
            };
            format!(
                "about {capacity} in any stretch of {period}: the last window counts by what of it still \
                 overlaps. Windows begin {begins}."
            )
        }
    }
}
