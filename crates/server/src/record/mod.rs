//! What is remembered of decisions: the last of them, counts of all, who is refused most, and news of it all.
//!
//! ```text
//! a decision -> ring (the last so many, to be looked at)
//!            -> stats, latency, rules (counts) -> GET /v1/stats
//!            -> sketch (refusals by key)
//! now and then: the newest of the ring and the counts -> events -> GET /v1/events
//! ```
//!
//! A decision pays about a microsecond for it and allocates nothing. Everything has a bound.

mod latency;
mod ring;
mod rules;
mod sketch;
mod stats;

pub(crate) mod events;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tollgate::{Answer, Descriptor, Histogram, HistogramCounts, RuleSet, Snapshot, Status, Timestamp};

pub(crate) use ring::Recorded;
pub(crate) use stats::{SECONDS, Second, second_of};

use crate::api::{Latency, RuleStats, TopRefused, Totals};
use latency::RecentTimes;
use ring::{Noted, Ring};
use rules::RuleCounts;
use sketch::Sketch;
use stats::Stats;

/// Decisions that are kept unless somebody wants another number.
pub(crate) const USUAL_CAPACITY: usize = 10_000;

/// Remembers decisions.
#[derive(Debug)]
pub(crate) struct Recorder {
    ring: Ring,
    stats: Stats,
    recent_times: RecentTimes,
    times: Histogram,
    rules: RuleCounts,
    sketch: Mutex<Sketch>,
    /// The number of the newest refusal by a rule.
    newest_violation: AtomicU64,
}

/// A decision to be remembered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Happened<'a, 'd> {
    pub(crate) id: &'a str,
    /// The request as it was decided.
    pub(crate) request: &'a Descriptor<'d>,
    pub(crate) answer: &'a Answer,
    pub(crate) cost: u64,
    /// How long the limiter took.
    pub(crate) took: Duration,
    pub(crate) now: Timestamp,
}

impl Recorder {
    /// Remembers so many decisions, made by these rules to begin with.
    pub(crate) fn new(capacity: usize, rules: &Arc<RuleSet>) -> Self {
        Recorder {
            ring: Ring::new(capacity),
            stats: Stats::new(),
            recent_times: RecentTimes::new(),
            times: Histogram::default(),
            rules: RuleCounts::new(rules),
            sketch: Mutex::default(),
            newest_violation: AtomicU64::new(0),
        }
    }

    /// Remembers a decision. `current` are the rules in effect, which is asked only when they seem to have changed.
    pub(crate) fn note(&self, happened: &Happened<'_, '_>, current: impl FnOnce() -> Snapshot) {
        let Happened { id, request, answer, cost, took, now } = *happened;
        let rules = self.rules.note(answer, current);
        self.stats.note(answer, now);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.recent_times.note(nanos, second_of(now));
        self.times.note(nanos);
        let number = self.ring.push(Noted { id, request, answer, cost, rules });
        if matches!(answer.status(), Status::Refused | Status::Denied)
            && let Some(binding) = answer.binding_limit()
        {
            let rule = answer.rules().rule(binding.rule);
            self.sketch.lock().note(rule.label(), &rule.key(request));
            if !rule.is_ad_hoc() {
                self.newest_violation.fetch_max(number, Ordering::Relaxed);
            }
        }
    }

    /// How many decisions can be looked at.
    pub(crate) const fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// How many decisions there were.
    pub(crate) fn recorded(&self) -> u64 {
        self.ring.recorded()
    }

    /// The decisions that can be looked at, newest first, of these outcomes.
    pub(crate) fn newest<'s>(
        &'s self,
        of_interest: impl Fn(Status) -> bool + 's,
    ) -> impl Iterator<Item = Recorded> + 's {
        self.ring.newest(of_interest, |generation| self.rules.set(generation))
    }

    /// The decision with this id.
    pub(crate) fn find(&self, id: &str) -> Option<Recorded> {
        self.ring.find(id, |generation| self.rules.set(generation))
    }

    /// The decision with this number.
    pub(crate) fn get(&self, number: u64) -> Option<Recorded> {
        self.ring.get(number, |generation| self.rules.set(generation))
    }

    /// The number of the newest refusal by a rule; 0 before there was one.
    pub(crate) fn newest_violation(&self) -> u64 {
        self.newest_violation.load(Ordering::Relaxed)
    }

    pub(crate) fn totals(&self) -> Totals {
        self.stats.totals()
    }

    pub(crate) fn second(&self, second: u64) -> Second {
        self.stats.second(second)
    }

    pub(crate) fn latency(&self, now: Timestamp) -> Latency {
        self.recent_times.quantiles(second_of(now))
    }

    /// How long decisions took since the start.
    pub(crate) fn times(&self) -> HistogramCounts {
        self.times.counts()
    }

    pub(crate) fn rules_by_refusals(&self, most: usize, current: &Snapshot) -> Vec<RuleStats> {
        self.rules.follow(current);
        self.rules.most_refused(most)
    }

    /// What every rule said, in their order.
    pub(crate) fn rules(&self, current: &Snapshot) -> Vec<RuleStats> {
        self.rules.follow(current);
        self.rules.all()
    }

    pub(crate) fn top_refused(&self, most: usize) -> Vec<TopRefused> {
        self.sketch.lock().top(most)
    }
}

#[cfg(test)]
mod tests;
