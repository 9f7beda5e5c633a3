//! `GET /v1/stats`: what the server has done and how it is.

use std::net::SocketAddr;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use tollgate::audit::{ViolationStats, instant_text};
use tollgate::core::rule::{FailurePolicy, Mode};
use tollgate::{AnyStore, DegradedCount, RuleSet};
use utoipa::ToSchema;

use super::App;
use super::decisions::millis;
use crate::record::{Quantiles, RuleCount, SECONDS, TopRefused, Totals, second_of};

/// The most rules and keys that are listed.
const MOST: usize = 50;

/// What the server has done and how it is.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Stats)]
pub(super) struct StatsBody {
    version: &'static str,
    /// The address at which checks are answered; null for a server without listeners.
    #[schema(required)]
    checks_at: Option<String>,
    view: View,
    started_at: String,
    uptime_s: u64,
    now_ms: i64,
    totals: TotalsBody,
    per_second: PerSecond,
    latency_us: LatencyBody,
    /// Those that refused most first.
    rules: Vec<RuleBody>,
    /// Who was refused most first; how often is between `at_least` and `refused`.
    top_refused: Vec<TopBody>,
    store: StoreBody,
    rule_set: RuleSetBody,
    #[schema(required)]
    violations: Option<ViolationsBody>,
    /// Decisions made without the store.
    degraded: Vec<DegradedCountBody>,
}

/// Whose numbers these are.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum View {
    /// Those of the node that answers, since it started. Other nodes of a fleet count their own.
    Node,
}

/// Decisions since the start; the last two are among the others.
#[derive(Debug, Serialize, ToSchema)]
struct TotalsBody {
    allowed: u64,
    refused: u64,
    denied: u64,
    unavailable: u64,
    shadow_refused: u64,
    degraded: u64,
}

/// The last seconds that are over and the present one, oldest first. Whatever was not allowed is refused here.
#[derive(Debug, Serialize, ToSchema)]
struct PerSecond {
    start_s: u64,
    #[schema(max_items = 900)]
    allowed: Vec<u64>,
    #[schema(max_items = 900)]
    refused: Vec<u64>,
    /// Of both, those decided without the store.
    #[schema(max_items = 900)]
    degraded: Vec<u64>,
}

/// How long the limiter took to decide, in microseconds, over the last one to two minutes.
#[derive(Debug, Serialize, ToSchema)]
struct LatencyBody {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
    count: u64,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RuleStats)]
struct RuleBody {
    rule: String,
    allowed: u64,
    refused: u64,
    shadow_refused: u64,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TopRefused)]
struct TopBody {
    key: String,
    rule: String,
    refused: u64,
    at_least: u64,
}

/// Where buckets are; what a store does not have is not there.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StoreStats)]
struct StoreBody {
    /// `memory` or `redis`.
    kind: &'static str,
    /// Where it is, without a password.
    shown: String,
    up: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    buckets: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<usize>,
    /// Buckets that were as good as new and forgotten.
    #[serde(skip_serializing_if = "Option::is_none")]
    evictions: Option<u64>,
    /// Decisions that found no room for a bucket of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    overflow: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_steps: Option<u64>,
}

/// The rules in effect.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RuleSetStats)]
pub(super) struct RuleSetBody {
    source: String,
    #[schema(required)]
    version: Option<String>,
    count: usize,
    /// How long ago they took effect.
    #[schema(required)]
    age_s: Option<u64>,
    /// Why they are not the newest.
    #[schema(required)]
    error: Option<String>,
    /// What the enforced limits do while the store is unavailable, by policy; policies without rules are left out.
    on_store_failure: Vec<FailurePolicyBody>,
}

/// The enforced limits with one failure policy.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FailurePolicyRules)]
struct FailurePolicyBody {
    /// `open`, `closed` or `local`.
    policy: &'static str,
    count: usize,
    /// Their names, at most 50.
    #[schema(max_items = 50)]
    rules: Vec<String>,
}

/// Refusals put on record.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ViolationStats)]
struct ViolationsBody {
    written: u64,
    dropped: u64,
    waiting: u64,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DegradedStats)]
struct DegradedCountBody {
    policy: &'static str,
    reason: &'static str,
    decisions: u64,
}

/// See what the server has done and how it is.
#[utoipa::path(get, path = "/v1/stats", tag = "operating",
    responses((status = 200, description = "counts, times, the store, the rules", body = StatsBody)))]
pub(super) async fn stats(State(app): State<App>) -> Json<StatsBody> {
    let (now, recorder) = (app.limiter.clock().now(), &app.recorder);
    let rules = recorder.rules_by_refusals(MOST, &app.limiter.rules());
    let counted = app.limiter.degraded_decisions().into_iter().filter(|count| count.decisions > 0);
    Json(StatsBody {
        version: env!("CARGO_PKG_VERSION"),
        checks_at: app.checks_at.get().map(SocketAddr::to_string),
        view: View::Node,
        started_at: instant_text(app.started_at),
        uptime_s: second_of(now).saturating_sub(second_of(app.started_at)),
        now_ms: millis(now),
        totals: recorder.totals().into(),
        per_second: PerSecond::until(&app, second_of(now)),
        latency_us: recorder.latency(now).into(),
        rules: rules.into_iter().map(RuleBody::from).collect(),
        top_refused: recorder.top_refused(MOST).into_iter().map(TopBody::from).collect(),
        store: StoreBody::of(&app),
        rule_set: RuleSetBody::of(&app),
        violations: app.limiter.violations().map(|violations| violations.stats().into()),
        degraded: counted.map(DegradedCountBody::from).collect(),
    })
}

impl PerSecond {
    /// Since the server started, or as far as is looked back.
    fn until(app: &App, last: u64) -> Self {
        let start_s = (last + 1).saturating_sub(SECONDS).max(second_of(app.started_at)).min(last);
        let seconds: Vec<_> = (start_s..=last).map(|second| app.recorder.second(second)).collect();
        PerSecond {
            start_s,
            allowed: seconds.iter().map(|second| second.allowed).collect(),
            refused: seconds.iter().map(|second| second.refused).collect(),
            degraded: seconds.iter().map(|second| second.degraded).collect(),
        }
    }
}

impl StoreBody {
    fn of(app: &App) -> Self {
        let bare = |kind, up| StoreBody {
            kind,
            shown: app.store_shown.to_string(),
            up,
            buckets: None,
            bytes: None,
            evictions: None,
            overflow: None,
            in_flight: None,
            outages: None,
            clock_steps: None,
        };
        match (app.limiter.store(), app.limiter.store().redis()) {
            (AnyStore::Memory(store), _) => {
                let stats = store.stats();
                StoreBody {
                    buckets: Some(stats.buckets),
                    bytes: Some(stats.bytes),
                    evictions: Some(stats.evicted),
                    overflow: Some(stats.overflowed),
                    clock_steps: Some(stats.clock_steps),
                    ..bare("memory", true)
                }
            }
            (_, Some(store)) => {
                let stats = store.stats();
                StoreBody {
                    in_flight: Some(stats.in_flight),
                    outages: Some(stats.outages),
                    overflow: Some(stats.overloaded),
                    clock_steps: Some(stats.clock_steps),
                    ..bare("redis", stats.up)
                }
            }
            _ => bare("other", true),
        }
    }
}

impl RuleSetBody {
    pub(super) fn of(app: &App) -> Self {
        let report = app.report();
        RuleSetBody {
            source: app.rules.shown().to_owned(),
            count: app.limiter.rules().rules().len(),
            version: report.as_ref().map(|report| report.version.clone()),
            age_s: report.as_ref().map(|report| report.age.get() / 1_000_000),
            error: report.and_then(|report| report.error),
            on_store_failure: FailurePolicyBody::of(&app.limiter.rules()),
        }
    }
}

impl FailurePolicyBody {
    fn of(rules: &RuleSet) -> Vec<Self> {
        let enforced =
            rules.rules().iter().filter(|rule| rule.limit().is_some() && rule.mode() == Mode::Enforce);
        let mut groups = [FailurePolicy::Open, FailurePolicy::Closed, FailurePolicy::Local].map(|policy| {
            (policy, FailurePolicyBody { policy: policy.as_str(), count: 0, rules: Vec::new() })
        });
        for rule in enforced {
            for (policy, group) in &mut groups {
                if *policy == rule.without_store() {
                    group.count += 1;
                    if group.rules.len() < MOST {
                        group.rules.push(rule.label().to_owned());
                    }
                }
            }
        }
        groups.into_iter().map(|(_, group)| group).filter(|group| group.count > 0).collect()
    }
}

impl From<Totals> for TotalsBody {
    fn from(totals: Totals) -> Self {
        let Totals { allowed, refused, denied, unavailable, shadow_refused, degraded } = totals;
        TotalsBody { allowed, refused, denied, unavailable, shadow_refused, degraded }
    }
}

impl From<Quantiles> for LatencyBody {
    fn from(Quantiles { p50, p90, p99, p999, max, count }: Quantiles) -> Self {
        LatencyBody {
            p50: in_micros(p50),
            p90: in_micros(p90),
            p99: in_micros(p99),
            p999: in_micros(p999),
            max: in_micros(max),
            count,
        }
    }
}

/// Microseconds with one decimal: decisions in memory take less than one.
pub(super) fn in_micros(nanos: u64) -> f64 {
    let tenths = u32::try_from(nanos.div_ceil(100)).unwrap_or(u32::MAX);
    f64::from(tenths) / 10.0
}

impl From<RuleCount> for RuleBody {
    fn from(RuleCount { rule, allowed, refused, shadow_refused }: RuleCount) -> Self {
        RuleBody { rule, allowed, refused, shadow_refused }
    }
}

impl From<TopRefused> for TopBody {
    fn from(TopRefused { key, rule, refused, at_least }: TopRefused) -> Self {
        TopBody { key, rule, refused, at_least }
    }
}

impl From<ViolationStats> for ViolationsBody {
    fn from(ViolationStats { written, dropped, pending, .. }: ViolationStats) -> Self {
        ViolationsBody { written, dropped, waiting: pending }
    }
}

impl From<DegradedCount> for DegradedCountBody {
    fn from(DegradedCount { policy, reason, decisions }: DegradedCount) -> Self {
        DegradedCountBody { policy: policy.as_str(), reason, decisions }
    }
}
