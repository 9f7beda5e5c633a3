//! `tollgate check`: decide a request, or the same one again and again.

use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use tollgate::Status;
use tollgate_server::api::Decision;

use crate::client::Plane;
use crate::request::RequestArgs;
use crate::rules::PlaceArgs;
use crate::terminal::{Terminal, Tone};
use crate::words::{grouped, millis, printable, wait};

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
    let client = args.place.open_to_decide(Plane::Data)?;
    let body = args.request.body();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut any_refused = false;
    runtime.block_on(async {
        for _ in 0..args.repeat {
            let mut decision = client.check(&body).await?;
            any_refused |= !decision.allowed;
            if !client.is_server() {
                decision.decision_id = None; // it is kept nowhere
            }
            let line = match args.json {
                true => serde_json::to_string(&decision)?,
                false => sentence(&decision, args.request.cost, terminal),
            };
            writeln!(terminal.out(), "{line}")?;
        }
        anyhow::Ok(())
    })?;
    terminal.out().flush()?;
    Ok(if any_refused { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS })
}

/// The decision in one line.
fn sentence(decision: &Decision<'_>, cost: u64, terminal: &Terminal) -> String {
    let by = decision.binding_limit().map_or_else(String::new, |limit| {
        let by = format!("  [{}: {}]", printable(&limit.rule), printable(&limit.key.to_string()));
        terminal.paint(Tone::Faint, &by)
    });
    let (tone, word) = if decision.allowed { (Tone::Good, "allowed") } else { (Tone::Bad, "refused") };
    let word = terminal.paint(tone, word);
    format!("{word}  {}{by}{}", reason(decision, cost), shadow(decision, terminal))
}

fn reason(decision: &Decision<'_>, cost: u64) -> String {
    let limit = decision.binding_limit();
    match decision.status() {
        Status::Allowed => match limit.and_then(|limit| Some((limit.remaining?, limit.limit))) {
            None if decision.failed_open() => {
                "not counted: the store is unavailable and the rule fails open".to_owned()
            }
            None => "no limit applies".to_owned(),
            Some((remaining, limit)) => {
                let held = match decision.delay_ms {
                    0 => String::new(),
                    delay => format!("in {}, ", wait(millis(delay))),
                };
                format!("{held}{} of {} left", grouped(remaining), grouped(limit))
            }
        },
        Status::Refused => match (decision.retry_after_ms, limit) {
            (Some(after), _) => format!("try again in {}", wait(millis(after))),
            (None, Some(limit)) if cost > limit.limit => {
                format!("a cost of {} never fits a limit of {}", grouped(cost), grouped(limit.limit))
            }
            // A rule may take the request for more than its cost.
            (None, _) => "it costs more than the limit ever has to give".to_owned(),
        },
        Status::Unavailable => "the store is unavailable and the rule fails closed".to_owned(),
        Status::Denied | Status::Invalid => "blocked by a rule, no wait helps".to_owned(),
    }
}

/// Which rules in shadow mode would have refused.
fn shadow(decision: &Decision<'_>, terminal: &Terminal) -> String {
    let refusing = decision.limits.iter().filter(|limit| limit.is_shadow() && !limit.allowed);
    let labels: Vec<&str> = refusing.map(|limit| &*limit.rule).collect();
    if labels.is_empty() {
        return String::new();
    }
    let labels = printable(&labels.join(", "));
    terminal.paint(Tone::Faint, &format!("  [shadow: {labels} would refuse]"))
}
