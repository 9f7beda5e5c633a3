//! Counts for each rule, by its place in the set that decided: no label is looked up for a decision.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tollgate::core::Enforcement;
use tollgate::{Answer, RuleSet, Snapshot};

/// Counts of the rules in effect. What a rule counted stays when the set changes and the rule is still in it.
#[derive(Debug)]
pub(super) struct RuleCounts {
    table: ArcSwap<Table>,
    /// Held by whoever makes a new table.
    changing: Mutex<()>,
}

/// The counts of one set.
#[derive(Debug)]
struct Table {
    /// Weak, so that whoever changes the rules may drop the old ones; and no other set gets its address meanwhile.
    rules: Weak<RuleSet>,
    labels: Vec<Box<str>>,
    generation: u64,
    counts: Vec<Arc<Count>>,
}

#[derive(Debug, Default)]
struct Count {
    allowed: AtomicU64,
    refused: AtomicU64,
    shadow_refused: AtomicU64,
}

/// How often a rule said what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleCount {
    pub(crate) rule: String,
    pub(crate) allowed: u64,
    pub(crate) refused: u64,
    pub(crate) shadow_refused: u64,
}

impl RuleCounts {
    pub(super) fn new(rules: &Arc<RuleSet>) -> Self {
        let counts = rules.rules().iter().map(|_| Arc::default()).collect();
        let table = Table { rules: Arc::downgrade(rules), labels: labels(rules), generation: 1, counts };
        RuleCounts { table: ArcSwap::from_pointee(table), changing: Mutex::new(()) }
    }

    /// Counts what every rule said; answers the generation of the set that decided. Sets are numbered from 1, and 0
    /// is one that has gone, or never was in effect.
    pub(super) fn note(&self, answer: &Answer, current: impl FnOnce() -> Snapshot) -> u64 {
        let mut table = self.table.load();
        if !table.is_of(answer.rules()) {
            if answer.tiers().iter().any(|tier| answer.rules().rule(tier.rule).is_ad_hoc()) {
                return 0;
            }
            self.follow(&current());
            table = self.table.load();
            if !table.is_of(answer.rules()) {
                return 0;
            }
        }
        for tier in answer.tiers() {
            let Some(count) = table.counts.get(tier.rule as usize) else { continue };
            let counter = match (tier.verdict().allowed, tier.enforcement) {
                (true, _) => &count.allowed,
                (false, Enforcement::Enforce) => &count.refused,
                (false, Enforcement::Shadow) => &count.shadow_refused,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        table.generation
    }

    /// The generation of the rules that are in effect now.
    pub(super) fn generation(&self, current: &Snapshot) -> u64 {
        self.follow(current);
        self.table.load().generation
    }

    /// Those that refused most first.
    pub(super) fn most_refused(&self, most: usize) -> Vec<RuleCount> {
        let mut counts = self.all();
        counts.sort_by_key(|count| std::cmp::Reverse((count.refused, count.shadow_refused, count.allowed)));
        counts.truncate(most);
        counts
    }

    /// All of them, in the order of the rules.
    pub(super) fn all(&self) -> Vec<RuleCount> {
        let table = self.table.load();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let count = |(label, count): (&str, &Arc<Count>)| RuleCount {
            rule: label.to_owned(),
            allowed: read(&count.allowed),
            refused: read(&count.refused),
            shadow_refused: read(&count.shadow_refused),
        };
        table.labels.iter().map(|label| &**label).zip(&table.counts).map(count).collect()
    }

    /// Makes the table that of the rules in effect.
    #[cold]
    fn follow(&self, current: &Snapshot) {
        let _changing = self.changing.lock();
        let old = self.table.load();
        if old.is_of(current) {
            return;
        }
        let known: HashMap<&str, &Arc<Count>> =
            old.labels.iter().map(|label| &**label).zip(&old.counts).collect();
        let rules = current.to_arc();
        let carried = |rule: &tollgate::Rule| known.get(rule.label()).map(|count| Arc::clone(count));
        let counts = rules.rules().iter().map(|rule| carried(rule).unwrap_or_default()).collect();
        let (generation, labels) = (old.generation + 1, labels(&rules));
        self.table.store(Arc::new(Table { rules: Arc::downgrade(&rules), labels, generation, counts }));
    }
}

impl Table {
    fn is_of(&self, rules: &RuleSet) -> bool {
        std::ptr::eq(self.rules.as_ptr(), rules)
    }
}

fn labels(rules: &RuleSet) -> Vec<Box<str>> {
    rules.rules().iter().map(|rule| rule.label().into()).collect()
}
