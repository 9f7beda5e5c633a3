//! What a running server tells of itself.

use serde::Deserialize;

use super::{Ask, Client};

/// What a server has done and how it is: what `GET /v1/stats` tells, as far as it is shown.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Stats {
    pub(crate) version: String,
    pub(crate) uptime_s: u64,
    pub(crate) totals: Totals,
    pub(crate) per_second: PerSecond,
    pub(crate) latency_us: Latency,
    pub(crate) rules: Vec<RuleCount>,
    pub(crate) top_refused: Vec<TopRefused>,
    pub(crate) store: Store,
    pub(crate) rule_set: RuleSet,
    pub(crate) violations: Option<Violations>,
    pub(crate) degraded: Vec<Degraded>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Totals {
    pub(crate) allowed: u64,
    pub(crate) refused: u64,
    pub(crate) denied: u64,
    pub(crate) unavailable: u64,
}

/// The last seconds, the present one at the end.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct PerSecond {
    pub(crate) allowed: Vec<u64>,
    pub(crate) refused: Vec<u64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct RuleCount {
    pub(crate) rule: String,
    pub(crate) allowed: u64,
    pub(crate) refused: u64,
    pub(crate) shadow_refused: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TopRefused {
    pub(crate) key: String,
    pub(crate) rule: String,
    pub(crate) refused: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Store {
    pub(crate) shown: String,
    pub(crate) up: bool,
    pub(crate) buckets: Option<u64>,
    pub(crate) bytes: Option<u64>,
    pub(crate) in_flight: Option<u64>,
    pub(crate) outages: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct RuleSet {
    pub(crate) source: String,
    pub(crate) count: u64,
    pub(crate) age_s: Option<u64>,
    pub(crate) error: Option<String>,
    /// Not told by older servers.
    #[serde(default)]
    pub(crate) on_store_failure: Vec<FailurePolicy>,
}

/// The enforced limits with one failure policy, and the names of the first of them.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct FailurePolicy {
    pub(crate) policy: String,
    pub(crate) count: usize,
    pub(crate) rules: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Violations {
    pub(crate) dropped: u64,
}

/// Decisions made without the store.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Degraded {
    pub(crate) policy: String,
    pub(crate) reason: String,
    pub(crate) decisions: u64,
}

impl Client {
    /// What the server has done and how it is.
    ///
    /// # Errors
    ///
    /// The server cannot be asked.
    pub(crate) async fn stats(&self) -> anyhow::Result<Stats> {
        self.ask(Ask::get("/v1/stats")).await
    }
}
