//! `tollgate check`: decide a request, or the same one again and again.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use clap::builder::FalseyValueParser;
use tollgate::core::Enforcement;
use tollgate::{Answer, Bounds, Clock, Descriptor, Limiter, MemoryStore, Micros, Status};
use tollgate_server::DecisionBody;

use crate::client::Client;
use crate::decided::{Decided, body};
use crate::load;
use crate::request::RequestArgs;
use crate::rules::{PlaceArgs, is_server};
use crate::terminal::{Terminal, Tone};
use crate::words::{grouped, printable, wait};

/// What `check` says when a request was refused.
const REFUSED: u8 = 1;

#[derive(Debug, clap::Args)]
#[command(after_help = "Exits with 0 when every request was allowed, 1 when one was refused, 2 on errors.")]
pub(crate) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// How often to send it; without a server, all at one instant
    #[arg(long, value_name = "TIMES", env = "TOLLGATE_REPEAT", default_value_t = 1)]
    repeat: u64,
    /// Print one JSON object per request
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
    #[command(flatten)]
    request: RequestArgs,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let place = args.place.named()?;
    let any_refused = match place.as_deref().filter(|place| is_server(place)) {
        Some(server) => there(args, &args.place.reach.client(server)?, terminal)?,
        None => here(args, place.as_deref().map(Path::new), terminal)?,
    };
    terminal.out().flush()?;
    Ok(if any_refused { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS })
}

/// Decides with nothing counted before, all requests at one instant: the answers do not depend on the machine's speed.
/// Returns whether any was refused.
fn here(args: &Args, place: Option<&Path>, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let now = Clock::manual(Clock::system().now());
    let limiter = Limiter::new(load::rules(place)?, MemoryStore::with(now, Bounds::default()));
    let request = args.request.descriptor();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let mut any_refused = false;
    runtime.block_on(async {
        for _ in 0..args.repeat {
            let answer = limiter.request(&request).cost(args.request.cost).check().await;
            if let Some(error) = answer.invalid_cost() {
                bail!("{}", printable(&error.to_string()));
            }
            any_refused |= !answer.allowed();
            let line = match args.json {
                true => serde_json::to_string(&DecisionBody::new(&answer, &request, None))?,
                false => Said::of(&answer, &request, args.request.cost).sentence(terminal),
            };
            writeln!(terminal.out(), "{line}")?;
        }
        Ok(any_refused)
    })
}

/// Has a server decide and charge; whether any was refused.
fn there(args: &Args, client: &Client, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let body = body(&args.request.descriptor(), args.request.cost);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut any_refused = false;
    runtime.block_on(async {
        for _ in 0..args.repeat {
            let (decided, text) = client.check(&body).await?;
            any_refused |= !decided.allowed;
            let line = if args.json { text } else { Said::from(&decided).sentence(terminal) };
            writeln!(terminal.out(), "{line}")?;
        }
        Ok(any_refused)
    })
}

/// A decision, for one line.
struct Said {
    outcome: Status,
    speaker: Option<Speaker>,
    retry_after: Option<Micros>,
    delay: Micros,
    failed_open: bool,
    /// Rules on trial that would have refused.
    on_trial: Vec<String>,
}

struct Speaker {
    rule: String,
    key: String,
    limit: u64,
    /// `None` where the rule failed open.
    remaining: Option<u64>,
    /// What the request takes from it, where that is known.
    cost: Option<u64>,
}

impl Said {
    fn of(answer: &Answer, request: &Descriptor<'_>, cost: u64) -> Self {
        let rule = |tier: &tollgate::Tier| answer.rules().rule(tier.rule);
        let would_refuse =
            |tier: &&tollgate::Tier| tier.enforcement == Enforcement::Shadow && !tier.verdict().allowed;
        Said {
            outcome: answer.status(),
            speaker: answer.binding_limit().map(|tier| Speaker {
                rule: rule(tier).label().to_owned(),
                key: rule(tier).key(request).to_string(),
                limit: tier.verdict().limit,
                remaining: Some(tier.verdict().remaining),
                cost: rule(tier).cost(request, cost).ok(),
            }),
            retry_after: answer.retry_after(),
            delay: answer.delay(),
            failed_open: false, // a store in memory is always available
            on_trial: answer
                .tiers()
                .iter()
                .filter(would_refuse)
                .map(|tier| rule(tier).label().to_owned())
                .collect(),
        }
    }

    /// The decision in one line.
    fn sentence(&self, terminal: &Terminal) -> String {
        let by = self.speaker.as_ref().map_or_else(String::new, |Speaker { rule, key, .. }| {
            terminal.paint(Tone::Faint, &format!("  [{}: {}]", printable(rule), printable(key)))
        });
        let (tone, word) = match self.outcome {
            Status::Allowed => (Tone::Good, "allowed"),
            _ => (Tone::Bad, "refused"),
        };
        format!("{}  {}{by}{}", terminal.paint(tone, word), self.reason(), self.trial(terminal))
    }

    fn reason(&self) -> String {
        match (self.outcome, &self.speaker) {
            (Status::Allowed, None | Some(Speaker { remaining: None, .. })) if self.failed_open => {
                "not counted: the store is unavailable and the rule fails open".to_owned()
            }
            (Status::Allowed, None | Some(Speaker { remaining: None, .. })) => "no limit applies".to_owned(),
            (Status::Allowed, Some(Speaker { remaining: Some(remaining), limit, .. })) => {
                let held = match self.delay {
                    Micros::ZERO => String::new(),
                    delay => format!("in {}, ", wait(delay)),
                };
                format!("{held}{} of {} left", grouped(*remaining), grouped(*limit))
            }
            (Status::Refused, speaker) => match (self.retry_after, speaker) {
                (None, Some(Speaker { limit, cost: Some(cost), .. })) => {
                    format!("a cost of {} never fits a limit of {}", grouped(*cost), grouped(*limit))
                }
                (None, _) => "it costs more than the limit ever has to give".to_owned(),
                (Some(after), _) => format!("try again in {}", wait(after)),
            },
            (Status::Unavailable, _) => "the store is unavailable and the rule fails closed".to_owned(),
            (Status::Denied, _) => "blocked by a rule, no wait helps".to_owned(),
            (Status::Invalid, _) => "the cost is invalid".to_owned(),
        }
    }

    /// What the rules on trial would have done.
    fn trial(&self, terminal: &Terminal) -> String {
        if self.on_trial.is_empty() {
            return String::new();
        }
        let labels = printable(&self.on_trial.join(", "));
        terminal.paint(Tone::Faint, &format!("  [shadow: {labels} would refuse]"))
    }
}

impl From<&Decided> for Said {
    fn from(decided: &Decided) -> Self {
        let would_refuse = decided.limits.iter().filter(|limit| limit.is_on_trial() && !limit.allowed);
        Said {
            outcome: decided.outcome(),
            speaker: decided.speaker().map(|limit| Speaker {
                rule: limit.rule.clone(),
                key: limit.key.clone(),
                limit: limit.limit,
                remaining: limit.remaining,
                cost: None,
            }),
            retry_after: decided.retry_after_ms.map(millis),
            delay: millis(decided.delay_ms),
            failed_open: decided.failed_open(),
            on_trial: would_refuse.map(|limit| limit.rule.clone()).collect(),
        }
    }
}

fn millis(count: u64) -> Micros {
    Micros::new(count.saturating_mul(1_000))
}
