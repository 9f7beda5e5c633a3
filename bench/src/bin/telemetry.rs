//! What do metrics, remembered decisions and violations cost a decision?
//!
//! The same million requests are decided by a bare limiter, and by one whose refusals are written to SQLite and whose
//! decisions are timed, counted and remembered as `tollgate serve` does it; one after the other, five times. Three
//! rules match each request, and one in twenty is refused. The process's time on its processors is divided by the
//! decisions, the writer's included.
//!
//! Known bias: there is no protocol around a decision here, so that the ratio is the worst there can be. What a served
//! decision takes altogether is measured by `bench/telemetry-cost`, which puts the difference beside it.

#![expect(clippy::print_stdout, reason = "it prints a table")]

use std::fs;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tokio::runtime::Runtime;
use tollgate::audit::{ViolationLog, Writer, WriterOptions};
use tollgate::sql::Database;
use tollgate::{Limiter, MemoryStore, Violations, rules};
use tollgate_bench::contender::Caller;
use tollgate_bench::processor::processor_time;
use tollgate_server::{App, RulesHome};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const DECISIONS: u32 = 1_000_000;
const ROUNDS: usize = 5;
const CALLERS: u32 = 1_000;
/// One caller in twenty has spent what there is.
const REFUSED_EVERY: u32 = 20;
const RULES: &str = r#"rules:
  - { name: per-user, key: "user:{user_id}", limit: 1000000/s burst 100000000, when: { lane: open } }
  - { name: spent, key: "user:{user_id}", limit: 1/d, when: { lane: shut } }
  - { name: per-address, key: "ip:{ip}", limit: 1000000/s burst 100000000 }
  - { name: everybody, key: global, limit: 1000000/s burst 100000000 }"#;
/// As long as the name of a decision.
const NAME: &str = "0123456789abcdef01234567";

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("tollgate-bench-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let measured = rounds(&folder);
    fs::remove_dir_all(&folder)?;
    let (mut off, mut on) = measured?;
    let mut ratios: Vec<f64> = off.iter().zip(&on).map(|(off, on)| on / off).collect();
    let (off, on, ratio) = (median(&mut off), median(&mut on), median(&mut ratios));
    println!("| in process | ns per decision |");
    println!("|---|---:|");
    println!("| metrics, decisions and violations off | {off:.0} |");
    println!("| on | {on:.0} |");
    println!("| difference | {:.0} |", on - off);
    println!("| ratio | {ratio:.2} ({:.2} to {:.2}) |", ratios[0], ratios[ratios.len() - 1]);
    Ok(())
}

/// Nanoseconds per decision, without and with.
fn rounds(folder: &Path) -> Result<(Vec<f64>, Vec<f64>)> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (mut off, mut on) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        off.push(without()?);
        on.push(with(&runtime, &format!("sqlite://{}/{round}.db", folder.display()))?);
    }
    Ok((off, on))
}

fn without() -> Result<f64> {
    let limiter = Limiter::new(rules::parse("rules.yaml", RULES)?, MemoryStore::new());
    let callers: Vec<Caller> = (0..CALLERS).map(Caller::new).collect();
    let before = processor_time()?;
    for (number, caller) in (0..DECISIONS).zip(callers.iter().cycle()) {
        let request = caller.request().with("lane", lane(number));
        at_once(limiter.check(&request))?;
    }
    Ok(per_decision(processor_time()?.saturating_sub(before)))
}

fn with(runtime: &Runtime, url: &str) -> Result<f64> {
    let _inside = runtime.enter();
    let violations = Violations::default();
    let log = ViolationLog::new(runtime.block_on(Database::open(url))?);
    let writer = Writer::start(violations.clone(), log, WriterOptions::default());
    let limiter = Limiter::new(rules::parse("rules.yaml", RULES)?, MemoryStore::new().into());
    let limiter = Arc::new(limiter.with_violations(violations));
    let app = App::new(Arc::clone(&limiter), RulesHome::Fixed("bench".to_owned()));
    let callers: Vec<Caller> = (0..CALLERS).map(Caller::new).collect();
    let clock = limiter.clock();

    let before = processor_time()?;
    for (number, caller) in (0..DECISIONS).zip(callers.iter().cycle()) {
        let request = caller.request().with("lane", lane(number));
        let started = clock.stopwatch_nanos();
        let answer = at_once(limiter.check(&request))?;
        let took = Duration::from_nanos(clock.stopwatch_nanos().saturating_sub(started));
        app.record(&request, &answer, NAME, 1, took);
    }
    let stats = runtime.block_on(writer.shutdown(Duration::from_secs(30)));
    let spent = processor_time()?.saturating_sub(before);
    ensure!(stats.produced == stats.written + stats.dropped, "the books are wrong: {stats:?}");
    ensure!(stats.written > 0, "nothing was written: {stats:?}");
    Ok(per_decision(spent))
}

fn lane(number: u32) -> &'static str {
    if number.is_multiple_of(REFUSED_EVERY) { "shut" } else { "open" }
}

/// What a store in memory answers, which it does without waiting.
fn at_once<T>(decision: impl Future<Output = T>) -> Result<T> {
    match pin!(decision).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Ok(answer),
        Poll::Pending => bail!("a decision waits"),
    }
}

fn per_decision(spent: Duration) -> f64 {
    spent.as_secs_f64() * 1e9 / f64::from(DECISIONS)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
