//! What do leases save, and what do they cost? One hot key on two nodes and one Redis, exact and leased; four nodes that
//! want twice the limit, two of them more than the others; four that want 1.2 and 3 times a limit; one that dies with what it holds; a hot key that is refused; answers over a network with a delay, and
//! over two slots of a Cluster.
//!
//! Known bias: nodes and Redis share the machine's cores, and the nodes are tasks of one process, each with a store and a
//! connection of its own. See `bench/README.md`.

#![expect(clippy::print_stdout, reason = "it prints tables")]
#![expect(clippy::disallowed_methods, reason = "it reads the clock to measure")]

mod load;
mod network;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use mimalloc::MiMalloc;
use std::time::Duration;

use load::{Dies, Fleet, Redis};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Measures leases.
#[derive(Debug, Parser)]
struct Arguments {
    /// A Redis of our own: it is flushed
    #[arg(long)]
    url: String,
    /// Short rounds: only to see that it works
    #[arg(long)]
    quick: bool,
    /// Only answers over a network with a delay, and over two slots
    #[arg(long)]
    network: bool,
}

/// So much that the limit is not in the way.
const ROOMY: &str = "100000000/s burst 10000000";
const CROWDED: &str = "1000/s burst 1000";
/// A limit, its tokens per second, its capacity, and how often each of four nodes is asked: 1.2 times the limit, and 3 times.
const SATURATED: [(&str, u64, u64, u64); 3] = [
    ("2000/s burst 500", 2_000, 500, 600),
    ("2000/s burst 500", 2_000, 500, 1_500),
    ("50000/s burst 100000", 50_000, 100_000, 37_500),
];
const TIGHT: &str = "10/s burst 10";

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let (rounds, time) = if arguments.quick { (1, 500) } else { (5, 4_000) };
    let time = Duration::from_millis(time);
    if !arguments.network {
        measure_leases(&arguments, rounds, time).await?;
    }
    let port = redis::Client::open(arguments.url)?.get_connection_info().addr().to_string();
    let port = port.rsplit(':').next().and_then(|port| port.parse().ok()).context("a URL with a port")?;
    network::delayed(port, time).await?;
    network::two_slots(time).await
}

async fn measure_leases(arguments: &Arguments, rounds: usize, time: Duration) -> Result<()> {
    let redis = Redis::connect(&arguments.url).await?;

    println!(
        "One hot key, `{ROOMY}`, 2 nodes of 8 callers, {time:?} a round, {rounds} rounds: median (range)\n"
    );
    println!("| consistency | decisions/s | store calls per decision |");
    println!("|---|---:|---:|");
    const CONSISTENCIES: [&str; 3] = ["exact", "leased", "auto"];
    let mut measured = [const { (Vec::new(), Vec::new()) }; CONSISTENCIES.len()];
    for _ in 0..rounds {
        for (consistency, (rates, calls)) in CONSISTENCIES.iter().zip(&mut measured) {
            redis.clear().await?;
            let fleet = Fleet::start(&arguments.url, 2, ROOMY, consistency).await?;
            let run = fleet.flat_out(time, 8).await?;
            rates.push(run.per_second(run.decisions));
            calls.push(redis.script_calls().await? as f64 / run.decisions as f64);
        }
    }
    for (consistency, (rates, calls)) in CONSISTENCIES.iter().zip(&measured) {
        println!("| {consistency} | {} | {} |", cell(rates, 0), cell(calls, 4));
    }
    let [exact, leased, _] = &measured;
    println!("\n- leased: {:.1}x the decisions/s of exact (wanted 20)", median(&leased.0) / median(&exact.0));
    println!("- leased: {:.4} store calls per decision (wanted at most 0.05)", median(&leased.1));

    let twice = 2 * time;
    println!(
        "\nTwice the limit, `{CROWDED}`, 4 nodes that ask 800, 800, 200 and 200 times a second, {twice:?}\n"
    );
    println!(
        "| consistency | asked | admitted | over the bound | under it | store calls/s | tokens stranded |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for consistency in ["exact", "leased", "local"] {
        redis.clear().await?;
        let fleet = Fleet::start(&arguments.url, 4, CROWDED, consistency).await?;
        let run = fleet.paced(twice, &[800, 800, 200, 200], Dies::None).await?;
        let bound = 1_000 + u64::try_from(run.time.as_millis())?;
        println!(
            "| {consistency} | {} | {} | {} | {:.2} % | {:.0} | {} |",
            run.decisions,
            run.admitted,
            run.admitted.saturating_sub(bound),
            100.0 * bound.saturating_sub(run.admitted) as f64 / bound as f64,
            run.per_second(redis.script_calls().await?),
            run.stranded
        );
        ensure!(run.admitted <= bound, "{consistency}: {} admitted, and {bound} are promised", run.admitted);
    }
    println!("\n- wanted: nothing over the bound, and leased at most 2 % under it");

    println!("\nMore than the limit, leased, 4 nodes, {twice:?}\n");
    println!("| limit | asked/s | admitted | over the bound | under it | store calls/s | per decision |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    // A debug build is too slow for the last one.
    let count = if arguments.quick { SATURATED.len() - 1 } else { SATURATED.len() };
    for (limit, rate, capacity, pace) in SATURATED.into_iter().take(count) {
        redis.clear().await?;
        let fleet = Fleet::start(&arguments.url, 4, limit, "leased").await?;
        let run = fleet.paced(twice, &[pace; 4], Dies::None).await?;
        let (bound, calls) =
            (capacity + rate * u64::try_from(run.time.as_millis())? / 1_000, redis.script_calls().await?);
        println!(
            "| `{limit}` | {:.0} | {} | {} | {:.2} % | {:.0} | {:.5} |",
            run.per_second(run.decisions),
            run.admitted,
            run.admitted.saturating_sub(bound),
            100.0 * bound.saturating_sub(run.admitted) as f64 / bound as f64,
            run.per_second(calls),
            calls as f64 / run.decisions as f64
        );
        ensure!(run.admitted <= bound, "{limit}: {} admitted, and {bound} are promised", run.admitted);
    }
    println!(
        "\n- wanted: nothing over, at most 2 % under; 60 calls a second for the first two, 0.001 per decision for the third"
    );

    println!("\nA node that dies half-way with what it holds, `{CROWDED}`, 4 nodes, {twice:?}\n");
    println!("| asked a second | asked | refused | tokens stranded |");
    println!("|---|---:|---:|---:|");
    for paces in [[200, 200, 50, 50], [360, 360, 90, 90]] {
        redis.clear().await?;
        let fleet = Fleet::start(&arguments.url, 4, CROWDED, "leased").await?;
        let run = fleet.paced(twice, &paces, Dies::First).await?;
        let refused = run.decisions - run.admitted;
        println!(
            "| {} | {} | {refused} | {} |",
            paces.map(|pace| pace.to_string()).join(" + "),
            run.decisions,
            run.stranded
        );
    }

    println!("\nA refused hot key, `{TIGHT}`, one node asked 50,000 times a second, {time:?}\n");
    println!("| consistency | asked/s | admitted/s | store calls/s |");
    println!("|---|---:|---:|---:|");
    for consistency in ["leased", "auto"] {
        redis.clear().await?;
        let fleet = Fleet::start(&arguments.url, 1, TIGHT, consistency).await?;
        let run = fleet.paced(time, &[50_000], Dies::None).await?;
        println!(
            "| {consistency} | {:.0} | {:.1} | {:.1} |",
            run.per_second(run.decisions),
            run.per_second(run.admitted),
            run.per_second(redis.script_calls().await?)
        );
    }
    println!("\n- exact is one call for each; wanted of leased: at most 40 store calls a second");
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn cell(values: &[f64], digits: usize) -> String {
    let least = values.iter().copied().fold(f64::MAX, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    format!("{:.digits$} ({least:.digits$}-{most:.digits$})", median(values))
}
