//! One lane of the table: who calls, how often, and what it took.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use redis::aio::MultiplexedConnection;
use tollgate::core::Enforcement;
use tollgate::{Call, Descriptor, Limit, Limiter, Op, RedisStore, Rule, RuleSet, Tier, Tiers, key_seeds};

/// How many callers there are to be told apart.
pub(crate) const USERS: usize = 100_000;

/// The Redis that is measured, to be asked about itself.
#[derive(Debug)]
pub(crate) struct Redis(MultiplexedConnection);

impl Redis {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        Ok(Redis(redis::Client::open(url)?.get_multiplexed_async_connection().await?))
    }

    pub(crate) async fn command(&self, words: &[&str]) -> Result<String> {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(word);
        });
        Ok(command.query_async(&mut self.0.clone()).await?)
    }

    /// Microseconds that Redis spent in the script since its statistics were reset.
    async fn script_us(&self) -> Result<f64> {
        let stats = self.command(&["INFO", "commandstats"]).await?;
        let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).context("no EVALSHA")?;
        let usec = line.split(',').find_map(|field| field.strip_prefix("usec=")).context("no usec")?;
        Ok(usec.parse()?)
    }
}

/// Who calls.
pub(crate) enum Lane {
    /// redis-benchmark, with the bytes of one decision.
    Benchmark { port: u16 },
    /// Ours, so many checks a decision.
    Limiter { limiter: Arc<Limiter<RedisStore>>, calls: usize },
}

/// What a round measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) server_us: f64,
}

impl Lane {
    /// `servers` are those that the lane leads to.
    pub(crate) async fn measure(
        &self,
        servers: &[Redis],
        decisions: usize,
        concurrency: usize,
    ) -> Result<Figures> {
        for redis in servers {
            redis.command(&["FLUSHALL"]).await?;
            redis.command(&["CONFIG", "RESETSTAT"]).await?;
        }
        let mut figures = match self {
            Lane::Benchmark { port } => benchmark(&servers[0], *port, decisions, concurrency).await?,
            Lane::Limiter { limiter, calls } => load(limiter, decisions, concurrency, *calls).await?,
        };
        for redis in servers {
            figures.server_us += redis.script_us().await? / decisions as f64;
        }
        Ok(figures)
    }
}

/// Callers who each ask, wait for the answer, and ask again.
async fn load(
    limiter: &Arc<Limiter<RedisStore>>,
    decisions: usize,
    concurrency: usize,
    calls: usize,
) -> Result<Figures> {
    let next = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let caller = |limiter: Arc<Limiter<RedisStore>>, next: Arc<AtomicUsize>| async move {
        let mut times = histogram();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= decisions {
                return anyhow::Ok(times);
            }
            let user = number.wrapping_mul(7_919) % USERS;
            let request = Descriptor::new()
                .with("user_id", user.to_string())
                .with("endpoint", "/api/search")
                .with_ip(std::net::Ipv4Addr::from(10 << 24 | u32::try_from(user)?).into());
            let before = Instant::now();
            for _ in 0..calls {
                let answer = limiter.check(&request).await;
                ensure!(answer.allowed() && answer.degraded().is_none(), "{:?}", answer.degraded());
            }
            times.record(u64::try_from(before.elapsed().as_nanos())?)?;
        }
    };
    let callers: Vec<_> =
        (0..concurrency).map(|_| tokio::spawn(caller(Arc::clone(limiter), Arc::clone(&next)))).collect();
    let mut times = histogram();
    for caller in callers {
        times.add(caller.await??)?;
    }
    Ok(Figures {
        per_second: decisions as f64 / began.elapsed().as_secs_f64(),
        p50_us: times.value_at_quantile(0.5) as f64 / 1e3,
        p99_us: times.value_at_quantile(0.99) as f64 / 1e3,
        server_us: 0.0,
    })
}

async fn benchmark(redis: &Redis, port: u16, decisions: usize, concurrency: usize) -> Result<Figures> {
    let store = RedisStore::builder(&format!("redis://127.0.0.1:{port}")).connect().await?;
    store.ready().await?;
    let limit = Limit::token_bucket(100, Duration::from_secs(3_600), 10_000_000)?;
    let rules = RuleSet::of(Rule::ad_hoc(limit));
    let request = Rule::naming("__rand_int__");
    let hash = key_seeds().hash(rules.rule(0).key(&request));
    let mut tiers = Tiers::from_iter([Tier::new(0, Enforcement::Enforce, 1, hash)]);
    let words = store.charge_call(&mut Call::new(Op::Charge, &rules, &request, &mut tiers));
    let packed = words.last().context("a call ends with its packed argument")?;
    let key = std::str::from_utf8(words.get(3).context("a call has a key")?)?;
    // redis-benchmark's arguments cannot hold a zero byte, so the packed argument is a constant of the script instead.
    let literal: String = packed.iter().map(|byte| format!("\\{byte:03}")).collect();
    let script = format!("ARGV[1] = '{literal}'\n{}", RedisStore::charge_script());
    let sha = redis.command(&["SCRIPT", "LOAD", &script]).await?;
    let (numbers, users) = (decisions.to_string(), USERS.to_string());
    let (port, concurrency) = (port.to_string(), concurrency.to_string());
    let output = Command::new("redis-benchmark")
        .args(["-p", &port, "-c", &concurrency, "-n", &numbers, "-r", &users, "--csv"])
        .args(["EVALSHA", &sha, "1", key, "x"])
        .output()
        .context("cannot run redis-benchmark; install redis-tools");
    let text = String::from_utf8(output?.stdout)?;
    let line = text.lines().last().context("redis-benchmark says nothing")?;
    // "test","rps","avg","min","p50","p95","p99","max", in milliseconds; the test has commas of its own
    let fields: Vec<&str> = line.rsplit("\",\"").map(|field| field.trim_matches(['"', '\r', ' '])).collect();
    ensure!(fields.len() >= 8, "redis-benchmark says {text}");
    Ok(Figures {
        per_second: fields[6].parse()?,
        p50_us: fields[3].parse::<f64>()? * 1e3,
        p99_us: fields[1].parse::<f64>()? * 1e3,
        server_us: 0.0,
    })
}

pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are within bounds")
}

pub(crate) fn median(figures: &[Figures], pick: fn(&Figures) -> f64) -> f64 {
    let mut values: Vec<f64> = figures.iter().map(pick).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub(crate) fn row(figures: &[Figures]) -> String {
    let cell = |pick: fn(&Figures) -> f64, digits: usize| {
        let least = figures.iter().map(pick).fold(f64::MAX, f64::min);
        let most = figures.iter().map(pick).fold(0.0, f64::max);
        format!("{:.digits$} ({least:.digits$}-{most:.digits$})", median(figures, pick))
    };
    format!(
        "{} | {} | {} | {} |",
        cell(|f| f.per_second, 0),
        cell(|f| f.p50_us, 0),
        cell(|f| f.p99_us, 0),
        cell(|f| f.server_us, 2)
    )
}
