//! Nodes, and what is asked of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;
use tollgate::{Descriptor, LeasedStore, Limiter, RedisStore, rules};

/// The Redis that is asked, to be asked about itself.
#[derive(Debug)]
pub(crate) struct Redis(MultiplexedConnection);

impl Redis {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        Ok(Redis(redis::Client::open(url)?.get_multiplexed_async_connection().await?))
    }

    /// Empties it and forgets its statistics.
    pub(crate) async fn clear(&self) -> Result<()> {
        let mut connection = self.0.clone();
        redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await?;
        redis::cmd("CONFIG").arg("RESETSTAT").query_async::<()>(&mut connection).await?;
        Ok(())
    }

    /// Calls of the script since then.
    pub(crate) async fn script_calls(&self) -> Result<u64> {
        let stats: String = redis::cmd("INFO").arg("commandstats").query_async(&mut self.0.clone()).await?;
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        Ok(line.and_then(|line| line.split(',').next()).map_or(Ok(0), str::parse)?)
    }
}

/// Nodes with one rule.
pub(crate) struct Fleet(Vec<Arc<Limiter<LeasedStore>>>);

/// A node is asked more often than this only after a ramp.
const RAMPED: u128 = 10_000;
const RAMP_MICROS: u128 = 500_000;

/// How often a node is asked in this time.
fn due(micros: u128, per_second: u128) -> u128 {
    let ramp = if per_second > RAMPED { RAMP_MICROS } else { 0 };
    let since = if micros < ramp { micros * micros / (2 * ramp) } else { micros - ramp / 2 };
    since * per_second / 1_000_000
}

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) decisions: u64,
    pub(crate) admitted: u64,
    /// How long it took.
    pub(crate) time: Duration,
    pub(crate) stranded: u64,
}

/// Whether a node dies on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dies {
    None,
    First,
}

#[derive(Debug, Default)]
struct Counts {
    decisions: AtomicU64,
    admitted: AtomicU64,
    degraded: AtomicU64,
}

impl Counts {
    async fn ask(&self, node: &Limiter<LeasedStore>) {
        let answer = node.check(&Descriptor::new()).await;
        self.decisions.fetch_add(1, Ordering::Relaxed);
        self.admitted.fetch_add(u64::from(answer.allowed()), Ordering::Relaxed);
        self.degraded.fetch_add(u64::from(answer.degraded().is_some()), Ordering::Relaxed);
    }
}

impl Run {
    pub(crate) fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.time.as_secs_f64()
    }
}

impl Fleet {
    pub(crate) async fn start(url: &str, nodes: usize, limit: &str, consistency: &str) -> Result<Self> {
        let text =
            format!("rules: [{{ name: all, key: global, limit: {limit}, consistency: {consistency} }}]");
        let mut fleet = Vec::new();
        for _ in 0..nodes {
            let store = RedisStore::builder(url).deadline(Duration::from_secs(5)).connect().await?;
            store.ready().await?;
            fleet.push(Arc::new(Limiter::new(rules::parse("rules.yaml", &text)?, LeasedStore::new(store))));
        }
        // Shares are known when everybody has heard of everybody.
        let everybody = || fleet.iter().all(|node| node.store().stats().nodes as usize == nodes);
        for _ in 0..1_000 {
            if everybody() {
                return Ok(Fleet(fleet));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::bail!("the nodes do not find each other")
    }

    /// Every caller asks again as soon as it has its answer.
    pub(crate) async fn flat_out(self, time: Duration, callers: usize) -> Result<Run> {
        let counts = Arc::new(Counts::default());
        let began = Instant::now();
        let tasks: Vec<_> = (0..callers)
            .flat_map(|_| &self.0)
            .map(|node| {
                let (node, counts) = (Arc::clone(node), Arc::clone(&counts));
                tokio::spawn(async move {
                    while began.elapsed() < time {
                        for _ in 0..64 {
                            counts.ask(&node).await;
                        }
                        tokio::task::yield_now().await; // local answers never wait, so give way now and then
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await?;
        }
        self.end(&counts, began).await
    }

    /// Sends requests to every node at a fixed rate, whether or not it has answered. A rate above what Redis can decide is
    /// reached after a ramp. If `dies`, the first is gone without a
    /// word after half of the time.
    pub(crate) async fn paced(mut self, time: Duration, per_second: &[u64], dies: Dies) -> Result<Run> {
        let counts = Arc::new(Counts::default());
        let began = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        let dying = if dies == Dies::First { Some(self.0.remove(0)) } else { None };
        let nodes = dying.into_iter().map(|node| (node, time / 2));
        let nodes = nodes.chain(self.0.iter().map(|node| (Arc::clone(node), time)));
        for ((node, time), per_second) in nodes.zip(per_second.iter().copied()) {
            let counts = Arc::clone(&counts);
            tasks.spawn(async move {
                let mut asked = 0;
                let mut asking = tokio::task::JoinSet::new();
                let mut tick = tokio::time::interval(Duration::from_millis(1));
                while began.elapsed() < time {
                    tick.tick().await;
                    let due = due(began.elapsed().as_micros(), per_second.into());
                    while asked < due {
                        let (node, counts) = (Arc::clone(&node), Arc::clone(&counts));
                        asking.spawn(async move { counts.ask(&node).await });
                        asked += 1;
                    }
                    while asking.try_join_next().is_some() {}
                }
                asking.join_all().await;
                // What the one that dies holds is nobody's any more; the others have stopped by then and close.
                if dies == Dies::First { node.store().stats().tokens_held } else { 0 }
            });
        }
        let mut held = Vec::new();
        while let Some(tokens) = tasks.join_next().await {
            held.push(tokens?);
        }
        let lost = held[0]; // of the first to end: that is the one which dies
        let run = self.end(&counts, began).await?;
        Ok(Run { stranded: run.stranded + lost, ..run })
    }

    async fn end(self, counts: &Counts, began: Instant) -> Result<Run> {
        let time = began.elapsed();
        let stranded = self.0.iter().map(|node| node.store().stats().tokens_stranded).sum();
        for node in &self.0 {
            node.store().close().await;
        }
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ensure!(read(&counts.degraded) == 0, "{} decisions were made without Redis", read(&counts.degraded));
        let (decisions, admitted) = (read(&counts.decisions), read(&counts.admitted));
        Ok(Run { decisions, admitted, time, stranded })
    }
}
