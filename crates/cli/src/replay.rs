//! `tollgate replay`: a trace through a rule set, in the trace's own time.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufReader, IsTerminal as _, Read, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::builder::FalseyValueParser;
use indicatif::ProgressBar;
use tollgate::replay::{Replay, Step};
use tollgate::{Bounds, Clock, Store, Timestamp};

use crate::load::{self, RulesArgs};
use crate::progress;
use crate::store::StoreArgs;
use crate::summary::Summary;
use crate::terminal::{Out, Terminal};
use crate::words::count;

/// How much of a trace is read at once, and how much output is collected before it is written.
const CHUNK: usize = 256 << 10;
/// A replay has time to wait for its store.
const PATIENCE: Duration = Duration::from_secs(10);
/// Nothing is forgotten in virtual time, so there is room for a long trace's keys.
const BOUNDS: Bounds = Bounds { buckets: 200_000_000, bytes: 16 << 30 };

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    rules: RulesArgs,
    #[command(flatten)]
    store: StoreArgs,
    /// The trace, one JSON object per line; `-` is standard input
    #[arg(long, value_name = "FILE", env = "TOLLGATE_TRACE")]
    trace: PathBuf,
    /// Print one JSON object per line of the trace instead of a summary
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let name = load::name(&args.trace);
    anyhow::ensure!(
        !(load::is_stdin(&args.trace) && args.rules.read_stdin()),
        "rules and trace cannot both be standard input; put one of them in a file"
    );
    let rules = args.rules.load()?;
    let mut bytes = None;
    let trace: Box<dyn Read> = if load::is_stdin(&args.trace) {
        Box::new(io::stdin())
    } else {
        let file = File::open(&args.trace).map_err(|error| {
            let way_out = "name a file of JSON lines, or `-` for standard input";
            anyhow!("cannot read the trace {name}: {error}; {way_out}")
        })?;
        bytes = file.metadata().ok().map(|data| data.len());
        Box::new(file)
    };
    let lines_on_screen = args.json && io::stdout().is_terminal();
    let bar = progress::bar(bytes.filter(|_| !lines_on_screen));
    let trace = bar.wrap_read(trace);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = match args.store.redis()? {
        Some(redis) => runtime.block_on(async {
            // A private prefix, and time from the trace: nobody's buckets are touched, and nothing is left.
            let prefix = format!("{}:replay-{:016x}", args.store.key_prefix(), unique()?);
            let clock = Clock::manual(Timestamp::from_micros(0));
            let store = redis.key_prefix(prefix).clock(clock).deadline(PATIENCE).connect().await?;
            store.ready().await.with_context(|| args.store.shown())?;
            let replay = Replay::over(rules, store);
            let outcome = show(&replay, args, trace, &bar, terminal).await;
            let forgotten = replay.store().delete_all().await;
            outcome?;
            forgotten.context("the replay's keys could not be deleted; they go by themselves within hours")
        }),
        None => {
            let replay = Replay::with_bounds(rules, BOUNDS);
            let outcome = runtime.block_on(show(&replay, args, trace, &bar, terminal));
            warn_of_overflow(&name, replay.stats().overflowed, terminal);
            outcome
        }
    };
    bar.finish_and_clear();
    outcome.with_context(|| name.clone())?;
    Ok(ExitCode::SUCCESS)
}

/// Replays, and prints lines or a summary.
async fn show<S: Store>(
    replay: &Replay<S>,
    args: &Args,
    trace: impl Read,
    bar: &ProgressBar,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    if args.json {
        return print_lines(replay, trace, terminal).await;
    }
    let mut summary = Summary::default();
    let outcome = replay.run_async(BufReader::with_capacity(CHUNK, trace), |step| {
        summary.add(step);
        Ok(())
    });
    outcome.await?;
    bar.finish_and_clear();
    summary.print(terminal)
}

/// Two replays never share a bucket.
fn unique() -> anyhow::Result<u64> {
    getrandom::u64().map_err(|error| anyhow!("the system has no random numbers: {error}"))
}

fn warn_of_overflow(name: &str, overflowed: u64, terminal: &mut Terminal) {
    if overflowed > 0 {
        terminal.remark(&format!(
            "warning: {name} has more keys than fit in memory; {} shared a bucket with other keys",
            count(overflowed, "decision")
        ));
    }
}

/// Prints what became of each line. What was decided is written even when a later line is bad.
async fn print_lines<S: Store>(
    replay: &Replay<S>,
    trace: impl Read,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let lines = RefCell::new(Lines { out: terminal.out(), pending: Vec::with_capacity(2 * CHUNK) });
    let trace = FlushFirst { trace, lines: &lines };
    let outcome =
        replay.run_async(BufReader::with_capacity(CHUNK, trace), |step| lines.borrow_mut().add(step)).await;
    lines.borrow_mut().flush()?;
    outcome?;
    Ok(())
}

/// Lines on their way out.
struct Lines<'o> {
    out: &'o mut Out,
    pending: Vec<u8>,
}

impl Lines<'_> {
    #[inline]
    fn add(&mut self, step: &Step<'_, '_>) -> io::Result<()> {
        step.write_json(&mut self.pending);
        self.pending.push(b'\n');
        if self.pending.len() >= CHUNK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&self.pending)?;
        self.pending.clear();
        self.out.flush()
    }
}

/// Writes what is known before it waits for more, so that whoever feeds us line by line gets answers in time.
struct FlushFirst<'l, 'o, R> {
    trace: R,
    lines: &'l RefCell<Lines<'o>>,
}

impl<R: Read> Read for FlushFirst<'_, '_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.lines.borrow_mut().flush()?;
        self.trace.read(buffer)
    }
}
