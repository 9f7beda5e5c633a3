//! What does it cost to put refusals on record? 50,000 refusals a second are offered for ten seconds, with violations
//! written to SQLite and without any, one after the other, five times. The process's time on its processors divided by
//! its decisions is compared: deciding, recording and writing together.
//!
//! Known bias: the thread that decides sleeps between bursts of a millisecond, which is in every figure; SQLite's file is
//! in the temporary folder. A decision here is `Limiter::check` on memory, without any protocol around it: where
//! requests arrive over HTTP, a decision takes tens of microseconds and the difference is the same.

#![expect(clippy::print_stdout, reason = "it prints a table")]
#![expect(clippy::disallowed_methods, reason = "this is what measures time")]

use std::fs;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tollgate::audit::{ViolationLog, ViolationStats, Writer, WriterOptions};
use tollgate::sql::Database;
use tollgate::{Limiter, MemoryStore, Violations, rules};
use tollgate_bench::contender::Caller;
use tollgate_bench::processor::processor_time;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const REFUSALS_PER_SECOND: u32 = 50_000;
const ROUNDS: usize = 5;
const TICK: Duration = Duration::from_millis(1);
/// Everybody with an odd number has one token an hour, the others as many as they like.
const RULES: &str = r#"rules:
  - { name: refused, key: "user:{user_id}", limit: 1/h, when: { lane: refused } }
  - { name: allowed, key: "user:{user_id}", limit: 1000000/s burst 100000000, when: { lane: allowed } }"#;

/// What is offered.
struct Scenario {
    name: &'static str,
    /// Callers who are refused in turn.
    refused_callers: u32,
    /// Requests that pass for each that is refused.
    allowed_per_refused: u32,
}

const SCENARIOS: [Scenario; 3] = [
    Scenario {
        name: "1M decisions/s, 5 % refused, 1,000 callers",
        refused_callers: 1_000,
        allowed_per_refused: 19,
    },
    Scenario { name: "all refused, 1,000 callers", refused_callers: 1_000, allowed_per_refused: 0 },
    Scenario { name: "all refused, 500,000 callers", refused_callers: 500_000, allowed_per_refused: 0 },
];

/// What one run took.
#[derive(Clone, Copy)]
struct Run {
    ns_per_decision: f64,
    stats: Option<ViolationStats>,
}

#[derive(Clone, Copy, PartialEq)]
enum Record {
    Nothing,
    Violations,
}

fn main() -> Result<()> {
    let seconds: u64 = std::env::args().nth(1).map_or(Ok(10), |text| text.parse()).context("seconds")?;
    println!("| offered | without | with | ratio | range of ratios | rows or dropped |");
    println!("|---|---:|---:|---:|---|---|");
    for scenario in &SCENARIOS {
        let mut ratios = Vec::new();
        let (mut without, mut with) = (Vec::new(), Vec::new());
        let mut last = None;
        for _ in 0..ROUNDS {
            without.push(run(scenario, Record::Nothing, seconds)?.ns_per_decision);
            let recorded = run(scenario, Record::Violations, seconds)?;
            with.push(recorded.ns_per_decision);
            ratios.push(with[with.len() - 1] / without[without.len() - 1]);
            last = recorded.stats;
        }
        let stats = last.context("there were rounds")?;
        println!(
            "| {} | {:.0} ns | {:.0} ns | {:.2} | {:.2} to {:.2} | produced {}, written {}, dropped {} |",
            scenario.name,
            median(&mut without),
            median(&mut with),
            median(&mut ratios),
            ratios[0],
            ratios[ratios.len() - 1],
            stats.produced,
            stats.written,
            stats.dropped,
        );
    }
    Ok(())
}

fn run(scenario: &Scenario, record: Record, seconds: u64) -> Result<Run> {
    let folder = std::env::temp_dir().join(format!("tollgate-bench-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut limiter = Limiter::new(rules::parse("rules.yaml", RULES)?, MemoryStore::new());
    let (mut writer, mut open) = (None, None);
    if record == Record::Violations {
        let violations = Violations::default();
        limiter = limiter.with_violations(violations.clone());
        let url = format!("sqlite://{}/violations.db", folder.display());
        let database = runtime.block_on(Database::open(&url))?;
        let _inside = runtime.enter();
        let log = ViolationLog::new(database.clone());
        writer = Some(Writer::start(violations, log, WriterOptions::default()));
        open = Some(database); // until the end: the time of threads that are gone is not counted
    }
    let refused: Vec<Caller> = (0..scenario.refused_callers).map(Caller::new).collect();
    let allowed: Vec<Caller> = (0..1_000).map(Caller::new).collect();
    for caller in &refused {
        check(&limiter, caller, "refused")?; // which takes their only token
    }
    let before = processor_time()?;
    let decisions = offer(&limiter, scenario, [&refused, &allowed], seconds)?;
    let stats = writer.map(|writer| runtime.block_on(writer.shutdown(Duration::from_secs(30))));
    let after = processor_time()?;
    drop(open);
    drop(runtime);
    fs::remove_dir_all(&folder)?;
    if let Some(stats) = stats {
        ensure!(stats.produced == stats.written + stats.dropped, "the books are wrong: {stats:?}");
    }
    let spent = after.saturating_sub(before);
    Ok(Run { ns_per_decision: spent.as_secs_f64() * 1e9 / f64::from(decisions), stats })
}

/// Offers requests in bursts, each when it is due, whatever the last one took.
fn offer(
    limiter: &Limiter<MemoryStore>,
    scenario: &Scenario,
    [refused, allowed]: [&[Caller]; 2],
    seconds: u64,
) -> Result<u32> {
    let per_tick = REFUSALS_PER_SECOND / 1_000;
    let ticks = u32::try_from(seconds * 1_000)?;
    let (mut refused, mut allowed) = (refused.iter().cycle(), allowed.iter().cycle());
    let begun = Instant::now();
    for tick in 0..ticks {
        let due = begun + TICK * tick;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        for _ in 0..per_tick {
            let caller = refused.next().context("callers")?;
            ensure!(!check(limiter, caller, "refused")?, "{caller:?} was let in");
            for caller in allowed.by_ref().take(usize::try_from(scenario.allowed_per_refused)?) {
                check(limiter, caller, "allowed")?;
            }
        }
    }
    Ok(ticks * per_tick * (1 + scenario.allowed_per_refused))
}

fn check(limiter: &Limiter<MemoryStore>, caller: &Caller, lane: &str) -> Result<bool> {
    let request = caller.request().with("lane", lane);
    let decision = pin!(limiter.check(&request));
    match decision.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Ok(answer.allowed()),
        Poll::Pending => anyhow::bail!("a decision waits"),
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
