//! How fast does the store in Redis decide, next to redis-benchmark calling the same script at the same concurrency? Do
//! two primaries of a Cluster decide more than one? What does a decision over four tiers cost Redis, and a key in memory?
//! How long does a decision take once Redis is gone?
//!
//! Known bias: client and Redis share the machine's cores, and redis-benchmark is the cheaper client: it sends the same
//! bytes over and over and reads nothing of the answers but their end. See `bench/README.md`.

#![expect(clippy::print_stdout, reason = "it prints tables")]
#![expect(clippy::disallowed_methods, reason = "it reads the clock to measure")]

mod load;
mod memory;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use mimalloc::MiMalloc;
use tollgate::{Descriptor, Limiter, RedisStore, rules};

use load::{Figures, Lane};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Measures the store in Redis.
#[derive(Debug, Parser)]
struct Arguments {
    /// A Redis of our own: it is flushed
    #[arg(long)]
    url: String,
    /// Its port on 127.0.0.1, for redis-benchmark
    #[arg(long)]
    port: u16,
    /// The ports on 127.0.0.1 of the two primaries of a Cluster of our own
    #[arg(long, value_delimiter = ',', num_args = 2)]
    cluster: Vec<u16>,
    /// One short round: only to see that it works
    #[arg(long)]
    quick: bool,
}

/// Nobody is refused, and no bucket becomes as good as new meanwhile.
const ONE: &str = "rules: [{ name: user, key: 'user:{user_id}', limit: 100/h burst 10000000 }]";
const FOUR: &str = "rules:
  - { name: user, key: 'user:{user_id}', limit: 100/h burst 10000000 }
  - { name: endpoint, key: 'endpoint:{endpoint}', limit: 100/h burst 100000000 }
  - { name: ip, key: 'ip:{ip}', limit: 100/h burst 10000000 }
  - { name: all, key: global, limit: 100/h burst 100000000 }";
const CONCURRENCY: usize = 50;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let (rounds, decisions) = if arguments.quick { (1, 5_000) } else { (5, 200_000) };
    let redis = [load::Redis::connect(&arguments.url).await?];
    let mut primaries = Vec::new();
    for port in &arguments.cluster {
        primaries.push(load::Redis::connect(&format!("redis://127.0.0.1:{port}")).await?);
    }
    let (one, many) = (&redis[..], &primaries[..]);
    let [first, second] = arguments.cluster[..] else { anyhow::bail!("--cluster takes two ports") };
    let cluster = format!("redis-cluster://127.0.0.1:{first},127.0.0.1:{second}");
    let ours = async |url: &str, rules: &str, calls| {
        anyhow::Ok(Lane::Limiter { limiter: limiter(url, rules).await?, calls })
    };
    let lanes = [
        ("redis-benchmark, 1 tier", one, Lane::Benchmark { port: arguments.port }),
        ("tollgate, 1 tier", one, ours(&arguments.url, ONE, 1).await?),
        ("tollgate, 4 tiers in one call", one, ours(&arguments.url, FOUR, 1).await?),
        ("tollgate, 4 calls of 1 tier", one, ours(&arguments.url, ONE, 4).await?),
        ("tollgate, 1 tier, Cluster of two primaries", many, ours(&cluster, ONE, 1).await?),
        ("tollgate, 4 tiers in 4 slots, Cluster of two primaries", many, ours(&cluster, FOUR, 1).await?),
    ];
    let mut figures = vec![Vec::<Figures>::new(); lanes.len()];
    for _ in 0..rounds {
        for ((name, servers, lane), figures) in lanes.iter().zip(&mut figures) {
            let measured = lane.measure(servers, decisions, CONCURRENCY).await;
            figures.push(measured.with_context(|| (*name).to_owned())?);
        }
    }
    println!(
        "{CONCURRENCY} concurrent callers, {decisions} decisions a round, {rounds} rounds: median (range)\n"
    );
    println!("| | decisions/s | p50 µs | p99 µs | Redis µs/decision |");
    println!("|---|---:|---:|---:|---:|");
    for ((name, ..), figures) in lanes.iter().zip(&figures) {
        println!("| {name} | {}", load::row(figures));
    }
    let of = |lane: usize, pick: fn(&Figures) -> f64| load::median(&figures[lane], pick);
    let rate = |f: &Figures| f.per_second;
    let server = |f: &Figures| f.server_us;
    println!("\n- 1 tier: {:.2}x the decisions/s of redis-benchmark (wanted 0.9)", of(1, rate) / of(0, rate));
    println!("- 4 tiers: {:.2}x Redis' time of 1 tier (wanted at most 2.5)", of(2, server) / of(1, server));
    println!("- 4 tiers: {:.2}x Redis' time of 4 calls (wanted at most 0.65)", of(2, server) / of(3, server));
    println!("- two primaries: {:.2}x the decisions/s of one", of(4, rate) / of(1, rate));
    memory::report(&redis[0], &arguments, if arguments.quick { 1_000 } else { 100_000 }).await?;
    gone(arguments.quick).await
}

async fn limiter(url: &str, text: &str) -> Result<Arc<Limiter<RedisStore>>> {
    let store = RedisStore::builder(url).deadline(Duration::from_secs(5)).connect().await?;
    store.ready().await?;
    Ok(Arc::new(Limiter::new(rules::parse("rules.yaml", text)?, store)))
}

/// Decisions against somebody who accepts connections and never answers.
async fn gone(quick: bool) -> Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("redis://{}", listener.local_addr()?);
    let hole = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok(connection) = listener.accept().await {
            held.push(connection);
        }
    });
    let store = RedisStore::builder(&url).connect().await?;
    let limiter = Limiter::new(rules::parse("rules.yaml", ONE)?, store);
    let request = Descriptor::new().with("user_id", "1");
    let mut times = load::histogram();
    for _ in 0..if quick { 1_000 } else { 100_000 } {
        let before = std::time::Instant::now();
        let answer = limiter.check(&request).await;
        ensure!(answer.degraded().is_some(), "nobody can have answered");
        times.record(u64::try_from(before.elapsed().as_nanos())?)?;
    }
    hole.abort();
    println!(
        "\nRedis gone, breaker open: p50 {:.1} µs, p99 {:.1} µs, max {:.1} µs a decision (wanted p99 below 1,000)",
        times.value_at_quantile(0.5) as f64 / 1e3,
        times.value_at_quantile(0.99) as f64 / 1e3,
        times.max() as f64 / 1e3
    );
    Ok(())
}
