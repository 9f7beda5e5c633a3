//! `tollgate check`: decide a request, or the same one again and again.

use std::io::{StdoutLock, Write as _};
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use tollgate::core::Enforcement;
use tollgate::{Answer, Descriptor, Limiter, MemoryStore, Micros, Outcome};
use tollgate_server::DecisionBody;

use crate::load::RulesArgs;
use crate::request::RequestArgs;
use crate::terminal::{Terminal, Tone};
use crate::words::{grouped, wait};

/// What `check` says when a request was refused.
const REFUSED: u8 = 1;

#[derive(Debug, clap::Args)]
#[command(after_help = "Exits with 0 when every request was allowed, 1 when one was refused, 2 on errors.")]
pub(crate) struct Args {
    #[command(flatten)]
    rules: RulesArgs,
    /// How often to send it
    #[arg(long, value_name = "TIMES", env = "TOLLGATE_REPEAT", default_value_t = 1)]
    repeat: u64,
    /// Print one JSON object per request
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
    #[command(flatten)]
    request: RequestArgs,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let limiter = Limiter::new(args.rules.load()?, MemoryStore::new());
    let request = args.request.descriptor();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let mut any_refused = false;
    runtime.block_on(async {
        for _ in 0..args.repeat {
            let answer = limiter.check(&request, args.request.cost).await;
            any_refused |= !answer.allowed();
            if args.json {
                serde_json::to_writer(&mut *terminal.out(), &DecisionBody::new(&answer, &request, None))?;
                newline(terminal.out())?;
            } else {
                let line = sentence(&answer, &request, args.request.cost, terminal);
                writeln!(terminal.out(), "{line}")?;
            }
        }
        anyhow::Ok(())
    })?;
    terminal.out().flush()?;
    Ok(if any_refused { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS })
}

fn newline(out: &mut StdoutLock<'_>) -> std::io::Result<()> {
    out.write_all(b"\n")
}

/// The decision in one line.
fn sentence(answer: &Answer, request: &Descriptor<'_>, cost: u64, terminal: &Terminal) -> String {
    let rule = answer.rule().unwrap_or_default();
    let key = answer.speaker().map(|tier| answer.rules().rule(tier.rule).key(request).to_string());
    let by = key.map_or_else(String::new, |key| terminal.paint(Tone::Faint, &format!("  [{rule}: {key}]")));
    let line = match (answer.outcome(), answer.speaker()) {
        (Outcome::Allowed, None) => {
            format!("{}  no limit applies", terminal.paint(Tone::Good, "allowed"))
        }
        (Outcome::Allowed, Some(tier)) => {
            let held = match answer.delay().get() {
                0 => String::new(),
                _ => format!("in {}, ", wait(answer.delay())),
            };
            let left = format!("{} of {} left", grouped(tier.verdict.remaining), grouped(tier.verdict.limit));
            format!("{}  {held}{left}{by}", terminal.paint(Tone::Good, "allowed"))
        }
        (Outcome::Refused, tier) => {
            let when = match (answer.retry_after(), tier) {
                (None, Some(tier)) => {
                    let cost = answer.rules().rule(tier.rule).cost(request, cost);
                    format!(
                        "a cost of {} never fits a limit of {}",
                        grouped(cost),
                        grouped(tier.verdict.limit)
                    )
                }
                (after, _) => format!("try again in {}", wait(after.unwrap_or(Micros::MAX))),
            };
            format!("{}  {when}{by}", terminal.paint(Tone::Bad, "refused"))
        }
        (Outcome::Unavailable, _) => {
            format!(
                "{}  the store is away and the rule fails closed{by}",
                terminal.paint(Tone::Bad, "refused")
            )
        }
        (Outcome::Denied, _) => {
            format!("{}  blocked by a rule, no wait helps{by}", terminal.paint(Tone::Bad, "refused"))
        }
    };
    line + &on_trial(answer, terminal)
}

/// What the rules on trial would have done.
fn on_trial(answer: &Answer, terminal: &Terminal) -> String {
    let refusing = answer
        .tiers()
        .iter()
        .filter(|tier| tier.enforcement == Enforcement::Shadow && !tier.verdict.allowed)
        .map(|tier| answer.rules().rule(tier.rule).label());
    let labels: Vec<&str> = refusing.collect();
    if labels.is_empty() {
        return String::new();
    }
    terminal.paint(Tone::Faint, &format!("  [shadow: {} would refuse]", labels.join(", ")))
}
