//! How long answers take over a network with a delay, and over two slots of a Cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tollgate::{Descriptor, LeasedStore, Limiter, RedisStore, Store, rules};
use tollgate_tests::fault_proxy::{FaultProxy, Mode};
use tollgate_tests::redis_cluster::{RedisCluster, Replicas};

/// Twice what is asked for.
const HALF_USED: &str = "10000/s burst 10000";
const PER_SECOND: u64 = 5_000;
const WARM_UP: Duration = Duration::from_secs(1);

/// Asks so many times a second for some time, whether or not there was an answer, and records how long answers took after the
/// warm-up.
async fn paced<S: Store>(
    limiter: &Arc<Limiter<S>>,
    request: impl Fn() -> Descriptor<'static>,
    per_second: u64,
    time: Duration,
) -> Result<Histogram<u64>> {
    let latencies = Arc::new(Mutex::new(Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?));
    let (began, mut asked, mut asking) = (Instant::now(), 0, JoinSet::new());
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    while began.elapsed() < WARM_UP + time {
        tick.tick().await;
        let due = began.elapsed().as_micros() * u128::from(per_second) / 1_000_000;
        while asked < due {
            let (limiter, latencies) = (Arc::clone(limiter), Arc::clone(&latencies));
            let (request, is_measured) = (request(), began.elapsed() >= WARM_UP);
            asking.spawn(async move {
                let sent = Instant::now();
                let answer = limiter.check(&request).await;
                if is_measured {
                    let nanos = u64::try_from(sent.elapsed().as_nanos()).unwrap_or(u64::MAX);
                    latencies.lock().saturating_record(nanos);
                }
                answer.allowed() && answer.degraded().is_none()
            });
            asked += 1;
        }
        while let Some(answered) = asking.try_join_next() {
            ensure!(answered?, "a request was refused, or decided without Redis");
        }
    }
    ensure!(asking.join_all().await.into_iter().all(|passed| passed), "a request was refused");
    Ok(Arc::into_inner(latencies).expect("all requests were answered").into_inner())
}

fn micros(latencies: &Histogram<u64>, quantile: f64) -> f64 {
    latencies.value_at_quantile(quantile) as f64 / 1_000.0
}

/// Exact beside leased decisions on one key, at half of the limit.
pub(crate) async fn delayed(redis_port: u16, time: Duration) -> Result<()> {
    println!("\nHalf of the limit, `{HALF_USED}` asked {PER_SECOND} times a second on one node, {time:?}\n");
    println!("| network | consistency | p50 | p99 |");
    println!("|---|---|---:|---:|");
    let mut ratios = Vec::new();
    for delay in [1, 10] {
        let mut p99 = Vec::new();
        for consistency in ["exact", "leased"] {
            let proxy = FaultProxy::start(redis_port).await;
            proxy.set(Mode::Delay(Duration::from_millis(delay))).await;
            let store = RedisStore::builder(&proxy.url()).deadline(Duration::from_secs(5)).connect().await?;
            store.ready().await?;
            let key = format!("over-{delay}-ms");
            let text = format!(
                "rules: [{{ name: {key}, key: global, limit: {HALF_USED}, consistency: {consistency} }}]"
            );
            let limiter = Arc::new(Limiter::new(rules::parse("rules.yaml", &text)?, LeasedStore::new(store)));
            let latencies = paced(&limiter, Descriptor::new, PER_SECOND, time).await?;
            println!(
                "| {delay} ms | {consistency} | {:.1} µs | {:.1} µs |",
                micros(&latencies, 0.5),
                micros(&latencies, 0.99)
            );
            p99.push(micros(&latencies, 0.99));
            limiter.store().close().await;
        }
        ratios.push(format!("{:.4} of exact over {delay} ms", p99[1] / p99[0]));
    }
    println!("\n- leased p99: {} (wanted at most 0.1)", ratios.join(", "));
    Ok(())
}

/// Requests with limits in two slots of a Cluster, all admitted.
pub(crate) async fn two_slots(time: Duration) -> Result<()> {
    const PACE: u64 = 1_000;
    println!(
        "\nTwo slots of a Cluster of three primaries, {PACE} requests a second that all pass, {time:?}\n"
    );
    println!("| limits | p50 | p99 | commands per decision |");
    println!("|---|---:|---:|---:|");
    let cluster = RedisCluster::start(Replicas::None).await;
    let store = RedisStore::builder(&cluster.url()).deadline(Duration::from_secs(5)).connect().await?;
    store.ready().await?;
    let limiter = Arc::new(Limiter::new(rules::parse("rules.yaml", "rules: []")?, store));
    for (limits, text) in [
        ("one slot", "rules: [{ name: user, key: 'user:{user_id}', limit: 1000000/s }]"),
        (
            "two slots",
            "rules: [{ name: user, key: 'user:{user_id}', limit: 1000000/s }, { name: all, key: global, limit: 1000000/s }]",
        ),
    ] {
        limiter.set_rules(rules::parse("rules.yaml", text)?);
        let calls = async || {
            let mut calls = 0;
            for node in &cluster.nodes {
                calls += node.server.calls("evalsha").await;
            }
            calls
        };
        let before = calls().await;
        let request = || Descriptor::new().with("user_id", "42");
        let latencies = paced(&limiter, request, PACE, time).await?;
        let decisions = PACE as f64 * (WARM_UP + time).as_secs_f64();
        println!(
            "| {limits} | {:.1} µs | {:.1} µs | {:.2} |",
            micros(&latencies, 0.5),
            micros(&latencies, 0.99),
            (calls().await - before) as f64 / decisions
        );
    }
    Ok(())
}
