//! The metrics, gathered when somebody asks. Names are a contract: docs/reference/metrics.md.
//!
//! Everything is counted elsewhere, where it happens; this only reads. Labels are names of rules and fixed words.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tollgate::core::rule::{Consistency, Rule};
use tollgate::{AnyStore, CLASSES_US, HistogramCounts, LeaseStats, RedisStore};

use super::format;
pub(crate) use super::format::TextFormat;
use super::process::Process;
use crate::api::RuleStats;
use crate::http::App;

/// Rules with series of their own; the others share one, of this name.
const MOST_RULES: usize = 1_000;
const OTHER: &str = "other";

/// All metrics as text.
pub(crate) fn text(app: &App, format: TextFormat) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(All(app.clone())));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(match format {
        TextFormat::OpenMetrics => text,
        TextFormat::Prometheus => format::prometheus(&text),
    })
}

#[derive(Debug)]
struct All(App);

impl Collector for All {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        let app = &self.0;
        decisions(app, &mut out)?;
        store(app, &mut out)?;
        rules(app, &mut out)?;
        violations(app, &mut out)?;
        listeners(app, &mut out)?;
        let rejected = app.gate().rejected().map(|(reason, count)| ([("reason", reason)], count));
        out.counters(
            "tollgate_authz_rejected",
            "Forward-auth requests rejected before a decision",
            rejected,
        )?;
        process(app, &mut out)
    }
}

fn decisions(app: &App, out: &mut Out<'_>) -> fmt::Result {
    let totals = app.recorder().totals();
    let outcomes = [
        ("allowed", totals.allowed),
        ("refused", totals.refused),
        ("denied", totals.denied),
        ("unavailable", totals.unavailable),
    ];
    out.counters(
        "tollgate_requests",
        "Requests decided",
        outcomes.map(|(word, count)| ([("outcome", word)], count)),
    )?;
    let counts = told(app.rule_counts());
    let said = counts.iter().flat_map(|count| {
        let outcomes = [
            ("allowed", count.allowed),
            ("refused", count.refused),
            ("shadow_refused", count.shadow_refused),
        ];
        outcomes.map(|(outcome, times)| ([("rule", count.rule.as_str()), ("outcome", outcome)], times))
    });
    out.counters("tollgate_decisions", "What each rule said", said)?;
    out.histogram(
        "tollgate_decision_seconds",
        "Time of a decision, store included",
        &app.recorder().times(),
    )?;
    let degraded = app
        .limiter()
        .degraded_decisions()
        .into_iter()
        .map(|count| ([("policy", count.policy.as_str()), ("reason", count.reason)], count.decisions));
    out.counters("tollgate_degraded_decisions", "Requests decided without the store", degraded)
}

/// The counts that have series of their own, which are those of the first rules: a rule does not come and go with what it
/// says. The others are told together, and with them a rule of that very name.
fn told(counts: Vec<RuleStats>) -> Vec<RuleStats> {
    let (mut own, others): (Vec<_>, Vec<_>) =
        counts.into_iter().enumerate().partition(|(place, count)| *place < MOST_RULES && count.rule != OTHER);
    let sum = others.into_iter().map(|(_, count)| count).reduce(|sum, count| RuleStats {
        rule: OTHER.to_owned(),
        allowed: sum.allowed + count.allowed,
        refused: sum.refused + count.refused,
        shadow_refused: sum.shadow_refused + count.shadow_refused,
    });
    let other = sum.map(|sum| (MOST_RULES, RuleStats { rule: OTHER.to_owned(), ..sum }));
    own.extend(other);
    own.into_iter().map(|(_, count)| count).collect()
}

const UP: (&str, &str) = ("tollgate_store_up", "Whether the store decides; if not, the breaker is open");
const STEPS: (&str, &str) =
    ("tollgate_clock_steps", "Buckets moved because a clock was set back by more than a second");

fn store(app: &App, out: &mut Out<'_>) -> fmt::Result {
    match app.limiter().store() {
        AnyStore::Memory(memory) => {
            let stats = memory.stats();
            out.gauge(UP.0, UP.1, 1)?;
            out.counter(STEPS.0, STEPS.1, stats.clock_steps)?;
            out.gauge("tollgate_buckets", "Buckets in memory", stats.buckets as u64)?;
            out.gauge("tollgate_bucket_bytes", "Their bytes", stats.bytes as u64)?;
            out.counter(
                "tollgate_buckets_dropped",
                "Buckets forgotten because they were as good as new",
                stats.evicted,
            )?;
            out.counter(
                "tollgate_overflowed",
                "Decisions on new keys that were counted together because the store is full, allowed or refused",
                stats.overflowed,
            )
        }
        any => any.redis().map_or(Ok(()), |redis| over_redis(app, redis, out)),
    }
}

fn over_redis(app: &App, redis: &RedisStore, out: &mut Out<'_>) -> fmt::Result {
    let (stats, calls) = (redis.stats(), app.limiter().store_calls());
    out.gauge(UP.0, UP.1, u64::from(stats.up))?;
    out.counter(STEPS.0, STEPS.1, stats.clock_steps)?;
    out.histogram("tollgate_store_seconds", "Time of a call to Redis, retries included", &calls.took)?;
    let errors = calls.errors.into_iter().map(|(reason, count)| ([("reason", reason)], count));
    out.counters("tollgate_store_errors", "Calls to Redis without an answer of use", errors)?;
    out.gauge("tollgate_store_in_flight", "Calls that wait for Redis", stats.in_flight as u64)?;
    out.counter("tollgate_store_outages", "Times that Redis was lost", stats.outages)?;
    out.counter("tollgate_store_connections", "Connections made to Redis", stats.connections)?;
    out.counter("tollgate_store_uploads", "Uploads of the script", stats.uploads)?;
    out.counter(
        "tollgate_store_foreign",
        "Values under our keys that were not ours, and replaced",
        stats.foreign,
    )?;
    out.counter(
        "tollgate_store_stranded",
        "Parts of refused requests that stay charged in a Cluster",
        stats.stranded,
    )?;
    let Some(leased) = app.limiter().store().leased() else { return Ok(()) };
    leases_by_rule(app, &leased.leases(), out)?;
    leases(&leased.stats(), out)
}

/// For each rule with leases, how many of its keys have one here.
fn leases_by_rule(app: &App, leases: &HashMap<[u64; 2], usize>, out: &mut Out<'_>) -> fmt::Result {
    let rules = app.limiter().rules();
    let is_leased = |rule: &Rule| matches!(rule.consistency(), Consistency::Leased | Consistency::Auto);
    let with_limits = rules.rules().iter().filter(|rule| rule.limit().is_some()).enumerate();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (place, rule) in with_limits.filter(|(_, rule)| is_leased(rule)) {
        let label = if place < MOST_RULES { rule.label() } else { OTHER };
        let count = leases.get(&rule.space().digest()).copied().unwrap_or(0) as u64;
        *counts.entry(label).or_default() += count;
    }
    let counts = counts.into_iter().map(|(rule, count)| ([("rule", rule)], count));
    out.gauges("tollgate_leases", "Keys whose decisions are made here", counts)
}

fn leases(stats: &LeaseStats, out: &mut Out<'_>) -> fmt::Result {
    let decisions = [
        ("held", stats.local_decisions),
        ("remembered", stats.remembered_refusals),
        ("store", stats.exact_decisions),
        ("share", stats.share_decisions),
    ];
    let decisions = decisions.map(|(word, count)| ([("by", word)], count));
    out.counters(
        "tollgate_lease_decisions",
        "Decisions that need not go to Redis, by what made them",
        decisions,
    )?;
    out.counter("tollgate_lease_calls", "Calls that get, renew and return leases", stats.lease_calls)?;
    out.counter("tollgate_lease_calls_failed", "Such calls that were not answered", stats.failed_calls)?;
    out.gauge("tollgate_lease_tokens", "Tokens held here", stats.tokens_held)?;
    let stranded = stats.tokens_stranded;
    out.counter("tollgate_lease_tokens_stranded", "Tokens that ended unspent, or came too late", stranded)?;
    let debited = stats.tokens_debited;
    out.counter(
        "tollgate_debited_tokens",
        "Tokens charged after an outage for what was admitted in it",
        debited,
    )?;
    out.gauge("tollgate_fleet_nodes", "Nodes of the fleet, as last heard", u64::from(stats.nodes))
}

fn rules(app: &App, out: &mut Out<'_>) -> fmt::Result {
    let now = app.limiter().clock().now();
    let report = app.report();
    let since = |at: tollgate::Timestamp| {
        u64::try_from(now.as_micros().saturating_sub(at.as_micros())).unwrap_or(0) / 1_000_000
    };
    let age = report.as_ref().map_or_else(|| since(app.started_at()), |report| report.age.get() / 1_000_000);
    let version = report.as_ref().map_or(0, |report| number_of(&report.version));
    let stale = report.and_then(|report| report.stale_since).map_or(0, since);
    out.gauge("tollgate_rules", "Rules in effect", app.limiter().rules().rules().len() as u64)?;
    out.gauge("tollgate_rules_version", "Their version, the same on every node that has them", version)?;
    out.gauge("tollgate_rules_age_seconds", "Since they took effect", age)?;
    out.gauge("tollgate_rules_stale_seconds", "Since when their source cannot be read or is refused", stale)
}

/// A version as a number: that of a file is twelve hexadecimal digits, that of a database counts.
fn number_of(version: &str) -> u64 {
    let radix = if version.len() == 12 { 16 } else { 10 };
    u64::from_str_radix(version, radix).unwrap_or(0)
}

fn violations(app: &App, out: &mut Out<'_>) -> fmt::Result {
    let Some(violations) = app.limiter().violations() else { return Ok(()) };
    let stats = violations.stats();
    let results = [("written", stats.written), ("dropped", stats.dropped)];
    let results = results.map(|(word, count)| ([("result", word)], count));
    out.counters("tollgate_violations", "Refusals put on record, or not", results)?;
    out.gauge("tollgate_violations_pending", "Refusals that wait to be written", stats.pending)
}

fn listeners(app: &App, out: &mut Out<'_>) -> fmt::Result {
    use std::sync::atomic::{AtomicU64, Ordering};

    let traffic = app.traffic();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    out.counter("tollgate_connections", "Connections accepted", read(&traffic.accepted))?;
    out.counter("tollgate_connections_refused", "Connections rejected", read(&traffic.rejected))?;
    let failed = read(&traffic.handshakes_failed);
    out.counter("tollgate_tls_handshakes_failed", "TLS handshakes that failed or took too long", failed)?;
    out.counter("tollgate_panics", "Requests that met a bug", read(&traffic.panics))
}

fn process(app: &App, out: &mut Out<'_>) -> fmt::Result {
    let version = [([("version", env!("CARGO_PKG_VERSION"))], 1)];
    out.family("tollgate_build_info", "What is running", MetricType::Gauge, version, gauge)?;
    let started = u64::try_from(app.started_at().as_micros()).unwrap_or(0) / 1_000_000;
    out.gauge("process_start_time_seconds", "When the process started", started)?;
    let Some(process) = Process::now() else { return Ok(()) };
    out.gauge("process_resident_memory_bytes", "Memory of the process", process.resident_bytes)?;
    out.gauge("process_open_fds", "Its descriptors", process.open_files)?;
    let mut cpu =
        out.0.encode_descriptor("process_cpu_seconds", "Its processor time", None, MetricType::Counter)?;
    cpu.encode_counter::<NoLabelSet, f64, f64>(&process.cpu_seconds, None)
}

/// Where metrics are written.
struct Out<'e>(DescriptorEncoder<'e>);

impl Out<'_> {
    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        counter(&mut metric, value)
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        gauge(&mut metric, value)
    }

    /// One counter for each set of labels.
    fn counters<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'l str, &'l str); N], u64)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Counter, values, counter)
    }

    /// One gauge for each set of labels.
    fn gauges<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'l str, &'l str); N], u64)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Gauge, values, gauge)
    }

    fn family<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        values: impl IntoIterator<Item = ([(&'l str, &'l str); N], u64)>,
        write: fn(&mut MetricEncoder<'_>, u64) -> fmt::Result,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in values {
            write(&mut metric.encode_family(&labels)?, value)?;
        }
        Ok(())
    }

    fn histogram(&mut self, name: &str, help: &str, times: &HistogramCounts) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        let ends = CLASSES_US.iter().map(|end| Some(*end)).chain([None]);
        #[expect(clippy::cast_precision_loss, reason = "classes are small, and sums are told as floats")]
        let seconds = |micros: Option<u64>| micros.map_or(f64::INFINITY, |micros| micros as f64 / 1e6);
        let classes: Vec<(f64, u64)> = ends.map(seconds).zip(times.counts).collect();
        #[expect(clippy::cast_precision_loss, reason = "the same")]
        let sum = times.sum_ns as f64 / 1e9;
        metric.encode_histogram::<NoLabelSet>(sum, times.counts.iter().sum(), &classes, None)
    }
}

fn counter(metric: &mut MetricEncoder<'_>, value: u64) -> fmt::Result {
    metric.encode_counter::<NoLabelSet, u64, f64>(&value, None)
}

fn gauge(metric: &mut MetricEncoder<'_>, value: u64) -> fmt::Result {
    metric.encode_gauge(&value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(rule: &str, refused: u64) -> RuleStats {
        RuleStats { rule: rule.to_owned(), allowed: 1, refused, shadow_refused: 0 }
    }

    #[test]
    fn which_rules_have_series_does_not_change_with_what_they_say() {
        let rules = |refused: &dyn Fn(usize) -> u64| -> Vec<RuleStats> {
            told((0..MOST_RULES + 5).map(|rule| count(&format!("r{rule}"), refused(rule))).collect())
        };
        let (quiet, busy) = (rules(&|_| 0), rules(&|rule| rule as u64));
        let names = |counts: &[RuleStats]| counts.iter().map(|count| count.rule.clone()).collect::<Vec<_>>();
        assert_eq!(names(&quiet), names(&busy));
        assert_eq!(quiet.len(), MOST_RULES + 1);
        assert_eq!(busy.last(), Some(&RuleStats { allowed: 5, ..count(OTHER, 5_010) }));
    }

    #[test]
    fn a_rule_named_like_all_others_is_told_with_them() {
        assert_eq!(told(vec![count(OTHER, 2), count("a", 1)]), [count("a", 1), count(OTHER, 2)]);
        let mut many: Vec<RuleStats> =
            (0..MOST_RULES + 1).map(|rule| count(&format!("r{rule}"), 0)).collect();
        many[7].rule = OTHER.to_owned();
        let told = told(many);
        assert_eq!(told.iter().filter(|count| count.rule == OTHER).count(), 1);
        assert_eq!(told.iter().map(|count| count.allowed).sum::<u64>(), MOST_RULES as u64 + 1);
    }

    #[test]
    fn a_version_of_a_file_or_a_database_is_a_number() {
        assert_eq!(number_of("17"), 17);
        assert_eq!(number_of("00ff00000001"), 0xff_0000_0001);
        assert_eq!(number_of("no version"), 0);
    }
}
