//! Counts for each rule, by its place in the set that decided: no label is looked up for a decision.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tollgate::core::Enforcement;
use tollgate::{Answer, RuleSet, Snapshot};

use super::ring::DecidedBy;
use crate::api::RuleStats;

/// The rules of earlier sets that are kept together, so that decisions by them can be read. Older sets are dropped.
const MAX_EARLIER_RULES: usize = 10_000;

/// Counts of the rules in effect. What a rule counted stays when the set changes and the rule is still in it.
#[derive(Debug)]
pub(super) struct RuleCounts {
    table: ArcSwap<Table>,
    /// Earlier sets with their generations, the oldest first; the lock is held while a new table is made.
    earlier: Mutex<VecDeque<(u64, Arc<RuleSet>)>>,
}

/// The counts of one set.
#[derive(Debug)]
struct Table {
    rules: Arc<RuleSet>,
    generation: u64,
    counts: Vec<Arc<Count>>,
}

#[derive(Debug, Default)]
struct Count {
    allowed: AtomicU64,
    refused: AtomicU64,
    shadow_refused: AtomicU64,
}

impl RuleCounts {
    pub(super) fn new(rules: &Arc<RuleSet>) -> Self {
        let counts = rules.rules().iter().map(|_| Arc::default()).collect();
        let table = Table { rules: Arc::clone(rules), generation: 1, counts };
        RuleCounts { table: ArcSwap::from_pointee(table), earlier: Mutex::default() }
    }

    /// Counts what every rule said; answers which set decided.
    pub(super) fn note(&self, answer: &Answer, current: impl FnOnce() -> Snapshot) -> DecidedBy {
        let mut table = self.table.load();
        if !table.is_of(answer.rules()) {
            if answer.tiers().iter().any(|tier| answer.rules().rule(tier.rule).is_ad_hoc()) {
                return DecidedBy::Own(answer.rules_to_arc());
            }
            self.follow(&current());
            table = self.table.load();
            if !table.is_of(answer.rules()) {
                return DecidedBy::Own(answer.rules_to_arc());
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
        DecidedBy::Generation(table.generation)
    }

    /// The set of a generation, unless it has been dropped.
    pub(super) fn set(&self, generation: u64) -> Option<Arc<RuleSet>> {
        let table = self.table.load();
        if table.generation == generation {
            return Some(Arc::clone(&table.rules));
        }
        let earlier = self.earlier.lock();
        earlier.iter().find(|(known, _)| *known == generation).map(|(_, rules)| Arc::clone(rules))
    }

    /// Those that refused most first.
    pub(super) fn most_refused(&self, most: usize) -> Vec<RuleStats> {
        let mut counts = self.all();
        counts.sort_by_key(|count| std::cmp::Reverse((count.refused, count.shadow_refused, count.allowed)));
        counts.truncate(most);
        counts
    }

    /// All of them, in the order of the rules.
    pub(super) fn all(&self) -> Vec<RuleStats> {
        let table = self.table.load();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let count = |(label, count): (&str, &Arc<Count>)| RuleStats {
            rule: label.to_owned(),
            allowed: read(&count.allowed),
            refused: read(&count.refused),
            shadow_refused: read(&count.shadow_refused),
        };
        table.by_label().map(count).collect()
    }

    /// Makes the table that of the rules in effect.
    #[cold]
    pub(super) fn follow(&self, current: &Snapshot) {
        let mut earlier = self.earlier.lock();
        let old = self.table.load();
        if old.is_of(current) {
            return;
        }
        let known: HashMap<&str, &Arc<Count>> = old.by_label().collect();
        let rules = current.to_arc();
        let carried = |rule: &tollgate::Rule| known.get(rule.label()).map(|count| Arc::clone(count));
        let counts = rules.rules().iter().map(|rule| carried(rule).unwrap_or_default()).collect();
        earlier.push_back((old.generation, Arc::clone(&old.rules)));
        let generation = old.generation + 1;
        self.table.store(Arc::new(Table { rules, generation, counts }));
        drop_oldest(&mut earlier);
    }
}

/// Drops the oldest sets beyond [`MAX_EARLIER_RULES`]. A large set takes a while to drop: not on a thread that decides.
fn drop_oldest(earlier: &mut VecDeque<(u64, Arc<RuleSet>)>) {
    let rules: usize = earlier.iter().map(|(_, set)| set.rules().len()).sum();
    let mut excess = rules.saturating_sub(MAX_EARLIER_RULES);
    while excess > 0
        && let Some((_, oldest)) = earlier.pop_front()
    {
        excess = excess.saturating_sub(oldest.rules().len());
        // Without a thread it is dropped here.
        let _ = std::thread::Builder::new().spawn(move || drop(oldest));
    }
}

impl Table {
    fn is_of(&self, rules: &RuleSet) -> bool {
        std::ptr::eq(&*self.rules, rules)
    }

    fn by_label(&self) -> impl Iterator<Item = (&str, &Arc<Count>)> {
        self.rules.rules().iter().map(tollgate::Rule::label).zip(&self.counts)
    }
}
