//! What a Redis is like, before a fleet relies on it.
//!
//! [`examine`] connects as the store would, looks at what decides whether limits hold, and answers with findings: what
//! was found, whether it matters, and what to do. It changes nothing but one key of its own under the prefix, which
//! is gone when it ends.

mod checks;
mod clocks;
mod cluster;
mod probe;
pub(crate) mod reason;
mod sentinel;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use redis::ConnectionInfo;

use crate::store::redis::{Address, RedisBuilder};
use checks::Role;
use probe::Probe;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Limits hold, but not under everything that may happen.
    Warn,
    /// Decisions will not be made there.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, in one word.
    pub check: &'static str,
    /// How much it matters.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub advice: Option<String>,
    /// The numbers behind it, each with its unit last: `p99_us`.
    pub numbers: BTreeMap<&'static str, i64>,
}

/// What the store will be asked to do there.
#[derive(Debug, Clone)]
pub struct Demands {
    /// What our keys begin with.
    pub key_prefix: String,
    /// How long a decision may take.
    pub deadline: Duration,
}

impl Default for Demands {
    fn default() -> Self {
        Demands { key_prefix: "tg".to_owned(), deadline: Duration::from_millis(50) }
    }
}

/// Examines a Redis, the one that sentinels name, or every primary of a Cluster; of replicas, their clocks. If none can be reached there is one
/// finding, which says why.
pub async fn examine(redis: &RedisBuilder, demands: &Demands) -> Vec<Finding> {
    match redis.address() {
        Err(error) => vec![Finding::fail("reachable", error.to_string())],
        Ok(Address::One(info)) => examine_one(redis, info, Role::Alone, demands).await,
        Ok(Address::Sentinel { sentinels, name, node }) => {
            sentinel::examine(redis, &sentinels, &name, &node, demands).await
        }
        Ok(Address::Cluster(seeds)) => cluster::examine(redis, &seeds, demands).await,
    }
}

/// Examines one server.
async fn examine_one(
    redis: &RedisBuilder,
    info: ConnectionInfo,
    role: Role<'_>,
    demands: &Demands,
) -> Vec<Finding> {
    let (mut probe, reachable) = match Probe::connect(redis, info).await {
        Ok(connected) => connected,
        Err(finding) => return vec![finding],
    };
    let mut findings = vec![reachable];
    match probe.info().await {
        Ok(info) => {
            findings.push(checks::version(&info));
            findings.push(checks::role(&info, role));
            findings.push(checks::eviction(&info));
            findings.push(checks::memory(&info));
            findings.push(checks::persistence(&info, probe.setting("save").await.as_deref()));
        }
        Err(error) => findings.push(
            Finding::warn("version", format!("INFO is not answered: {}", reason::words(&error)))
                .with_advice("version, role, eviction and persistence are unknown; permit INFO to see them"),
        ),
    }
    findings.push(probe.round_trip(demands.deadline).await);
    findings.push(probe.clock().await);
    findings.push(probe.script(demands, role).await);
    findings
}

impl Finding {
    /// All is well.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Level::Ok, found.into())
    }

    /// It may matter.
    pub fn warn(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Level::Warn, found.into())
    }

    /// It does not work.
    pub fn fail(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Level::Fail, found.into())
    }

    /// The same with what to do.
    #[must_use]
    pub fn with_advice(self, advice: impl Into<String>) -> Self {
        Finding { advice: Some(advice.into()), ..self }
    }

    /// The same with a number behind it.
    #[must_use]
    pub fn with_number(mut self, name: &'static str, number: i64) -> Self {
        self.numbers.insert(name, number);
        self
    }

    const fn new(check: &'static str, level: Level, found: String) -> Self {
        Finding { check, level, found, advice: None, numbers: BTreeMap::new() }
    }
}
