//! `GET /v1/stats`: what the server has done and how it is.

use std::net::SocketAddr;

use axum::Json;
use axum::extract::State;
use tollgate::audit::instant_text;
use tollgate::core::rule::{FailurePolicy, Mode};
use tollgate::{AnyStore, RuleSet, Violations};

use super::App;
use super::decisions::millis;
use crate::api::{
    DegradedStats, FailurePolicyRules, PerSecond, RuleSetStats, Stats, StoreStats, View, ViolationStats,
};
use crate::record::{SECONDS, second_of};

/// The most rules and keys that are listed.
const MOST: usize = 50;

/// See what the server has done and how it is.
#[utoipa::path(get, path = "/v1/stats", tag = "operating",
    responses((status = 200, description = "counts, times, the store, the rules", body = Stats)))]
pub(super) async fn stats(State(app): State<App>) -> Json<Stats> {
    let (now, recorder) = (app.limiter.clock().now(), &app.recorder);
    let rules = recorder.rules_by_refusals(MOST, &app.limiter.rules());
    let counted = app.limiter.degraded_decisions().into_iter().filter(|count| count.decisions > 0);
    Json(Stats {
        version: env!("CARGO_PKG_VERSION").into(),
        checks_at: app.checks_at.get().map(SocketAddr::to_string),
        view: View::Node,
        started_at: instant_text(app.started_at),
        uptime_s: second_of(now).saturating_sub(second_of(app.started_at)),
        now_ms: millis(now),
        totals: recorder.totals(),
        per_second: per_second(&app, second_of(now)),
        latency_us: recorder.latency(now),
        rules,
        top_refused: recorder.top_refused(MOST),
        store: store(&app),
        rule_set: rule_set(&app),
        violations: app.limiter.violations().map(violations),
        degraded: counted
            .map(|count| DegradedStats {
                policy: count.policy.as_str().into(),
                reason: count.reason.into(),
                decisions: count.decisions,
            })
            .collect(),
    })
}

fn violations(violations: &Violations) -> ViolationStats {
    let stats = violations.stats();
    ViolationStats {
        written: stats.written,
        dropped: stats.dropped,
        waiting: stats.pending,
        error: violations.write_error(),
    }
}

/// Since the server started, or as far as is looked back.
fn per_second(app: &App, last: u64) -> PerSecond {
    let start_s = (last + 1).saturating_sub(SECONDS).max(second_of(app.started_at)).min(last);
    let seconds: Vec<_> = (start_s..=last).map(|second| app.recorder.second(second)).collect();
    PerSecond {
        start_s,
        allowed: seconds.iter().map(|second| second.allowed).collect(),
        refused: seconds.iter().map(|second| second.refused).collect(),
        degraded: seconds.iter().map(|second| second.degraded).collect(),
    }
}

fn store(app: &App) -> StoreStats {
    let shown = app.store_shown.to_string();
    match (app.limiter.store(), app.limiter.store().redis()) {
        (AnyStore::Memory(store), _) => {
            let stats = store.stats();
            StoreStats {
                kind: "memory".into(),
                shown,
                up: true,
                buckets: Some(stats.buckets as u64),
                bytes: Some(stats.bytes as u64),
                evictions: Some(stats.evicted),
                overflow: Some(stats.overflowed),
                clock_steps: Some(stats.clock_steps),
                ..StoreStats::default()
            }
        }
        (_, Some(store)) => {
            let stats = store.stats();
            StoreStats {
                kind: "redis".into(),
                shown,
                up: stats.up,
                in_flight: Some(stats.in_flight as u64),
                outages: Some(stats.outages),
                overflow: Some(stats.overloaded),
                clock_steps: Some(stats.clock_steps),
                ..StoreStats::default()
            }
        }
        _ => StoreStats { kind: "other".into(), shown, up: true, ..StoreStats::default() },
    }
}

fn rule_set(app: &App) -> RuleSetStats {
    let report = app.report();
    RuleSetStats {
        source: app.rules.shown().to_owned(),
        count: app.limiter.rules().rules().len() as u64,
        version: report.as_ref().map(|report| report.version.clone()),
        age_s: report.as_ref().map(|report| report.age.get() / 1_000_000),
        error: report.and_then(|report| report.error),
        on_store_failure: by_failure_policy(&app.limiter.rules()),
    }
}

fn by_failure_policy(rules: &RuleSet) -> Vec<FailurePolicyRules> {
    let with = |policy: FailurePolicy| {
        let is_enforced = |rule: &&tollgate::Rule| {
            rule.limit().is_some() && rule.mode() == Mode::Enforce && rule.without_store() == policy
        };
        let enforced = || rules.rules().iter().filter(is_enforced);
        FailurePolicyRules {
            policy: policy.as_str().into(),
            count: enforced().count() as u64,
            rules: enforced().take(MOST).map(|rule| rule.label().to_owned()).collect(),
        }
    };
    let policies = [FailurePolicy::Open, FailurePolicy::Closed, FailurePolicy::Local].map(with);
    policies.into_iter().filter(|group| group.count > 0).collect()
}
