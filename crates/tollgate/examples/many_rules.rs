//! How long 100,000 rules take to load, and what they cost: from a file, from SQLite, and while requests are decided.
//!
//! `cargo run --release -p tollgate --features sql --example many_rules [file | reload | sqlite]`; each alone
//! shows its own memory. On a busy machine compare processor time.

#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate::rules::{self, Edit, Follower, RuleBook, RuleSource};
use tollgate::sql::Database;
use tollgate::{Clock, Descriptor, Limiter, MemoryStore, Timestamp};

const RULES: usize = 100_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("tollgate-many-rules-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("rules.yaml");
    std::fs::write(&path, file(50))?;
    let url = format!("sqlite://{}", folder.join("rules.db").display());
    let clock = Clock::system();
    match std::env::args().nth(1).as_deref() {
        Some("sqlite") => from_sqlite(&clock, &url).await?,
        what => {
            let (begin, before) = (clock.now(), Cost::now());
            let (set, follower) = Follower::start(RuleSource::file(&path)).await?;
            say("file", &clock, begin, before);
            if what == Some("reload") {
                reload_under_load(&clock, set, follower, &path).await?;
            }
        }
    }
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// Writes the rules in a process of its own, so that this one's memory is that of loading them.
async fn from_sqlite(clock: &Clock, url: &str) -> Result<(), Box<dyn Error>> {
    if let Some(written) = std::env::args().nth(2) {
        let book = RuleBook::new(Database::open(&written).await?);
        let drafts = rules::parse_drafts("rules.yaml", &file(50))?;
        book.apply("example", drafts.into_iter().map(Edit::Add).collect()).await?;
        book.database().close().await;
        return Ok(());
    }
    let begin = clock.now();
    let status = std::process::Command::new(std::env::current_exe()?).args(["sqlite", url]).status()?;
    println!("sqlite, written through the book: {} ms, {status}", since(clock, begin) / 1000);
    let (begin, before) = (clock.now(), Cost::now());
    let loaded = RuleSource::database(url).load(None).await?;
    say("sqlite", clock, begin, before);
    drop(loaded);
    Ok(())
}

/// The longest decision while the set is replaced by another of the same size, and without.
async fn reload_under_load(
    clock: &Clock,
    set: tollgate::RuleSet,
    follower: Follower,
    path: &std::path::Path,
) -> Result<(), Box<dyn Error>> {
    let limiter = Arc::new(Limiter::new(set, MemoryStore::new()));
    let status = follower.status();
    let version = status.report().version;
    let task = tokio::spawn(follower.run(Arc::clone(&limiter)));
    let stop = Arc::new(AtomicBool::new(false));
    let load = std::thread::spawn({
        let (limiter, stop, clock) = (Arc::clone(&limiter), Arc::clone(&stop), clock.clone());
        move || decide_until(&limiter, &stop, &clock)
    });
    std::fs::write(path, file(60))?;
    let begin = clock.now();
    while status.report().version == version {
        tokio::task::yield_now().await;
    }
    println!("file, live after: {} ms", since(clock, begin) / 1000);
    stop.store(true, Ordering::Relaxed);
    let mut waits = load.join().map_err(|_| "the load stopped")?;
    waits.sort_unstable();
    let at = |share: usize| waits[(waits.len() - 1) * share / 100_000];
    println!(
        "{} decisions meanwhile: p50 {} us, p99 {} us, p99.9 {} us, longest {} us",
        waits.len(),
        at(50_000),
        at(99_000),
        at(99_900),
        at(100_000)
    );
    task.abort();
    Ok(())
}

fn decide_until(limiter: &Limiter<MemoryStore>, stop: &AtomicBool, clock: &Clock) -> Vec<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers");
    let request = Descriptor::new().with("tenant", "t7").with("user_id", "42");
    let mut waits = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let begin = clock.now();
        runtime.block_on(limiter.check(&request));
        waits.push(since(clock, begin));
    }
    waits
}

fn file(burst: usize) -> String {
    let mut text = String::from("rules:\n");
    for number in 0..RULES {
        let _ = writeln!(
            text,
            "  - {{ name: tenant-{number}, key: \"tenant:{{tenant}}:{{user_id}}\", limit: 10/s burst {burst}, when: {{ tenant: t{number} }} }}"
        );
    }
    text
}

/// What the process has used so far.
struct Cost {
    memory_kb: u64,
    processor_ms: u64,
}

impl Cost {
    fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // Fields 14 and 15, in ticks of 10 ms.
        let ticks = stat.split_whitespace().skip(13).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
        Cost { memory_kb: status_kb("VmRSS:"), processor_ms: ticks.sum::<u64>() * 10 }
    }
}

fn say(what: &str, clock: &Clock, begin: Timestamp, before: Cost) {
    let now = Cost::now();
    println!(
        "{what}: {RULES} rules in {} ms ({} ms of processor), {} MB more, peak {} MB",
        since(clock, begin) / 1000,
        now.processor_ms - before.processor_ms,
        now.memory_kb.saturating_sub(before.memory_kb) / 1024,
        status_kb("VmHWM:") / 1024
    );
}

fn since(clock: &Clock, begin: Timestamp) -> u64 {
    u64::try_from(clock.now().as_micros() - begin.as_micros()).unwrap_or(0)
}

fn status_kb(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
