//! The limits that packed states refer to by a small number.
//!
//! A state of 16 bytes has no room for the numbers it was written under, but needs them: to convert when a rule
//! changes, and to tell when it is idle. There are few distinct limits, so each is kept once and named by its number in
//! this table. A rule remembers the number of its limit ([`Rule::limit_number`]), together with the epoch in which it was
//! given, so a decision does not look it up.
//!
//! When the table is full, one pass over the buckets frees the limits that no state uses. The pass starts a new epoch:
//! numbers given before have to be looked up again, which marks them as used, so a number is never freed while a writer
//! may still use it. A writer reads the epoch under the lock of its shard, and the pass locks every shard once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwapOption, Guard};
use foldhash::quality::RandomState;
use parking_lot::Mutex;
use tollgate_core::{Limit, Micros, Rule, Timestamp};

/// How many distinct limits are kept; states have 16 bits to name them.
const MAX_LIMITS: usize = PAGES * PAGE;
const PAGES: usize = 256;
/// Places in a page. Pages are made one after the other, when they are needed.
const PAGE: usize = 64;
/// The shortest time between two passes that free limits.
const COLLECT_INTERVAL: Micros = Micros::new(60_000_000);

/// Every table and every pass has an epoch of its own.
static EPOCHS: AtomicU64 = AtomicU64::new(1);

/// The number of a limit within one store.
pub(super) type LimitId = u16;

type Page = Box<[ArcSwapOption<Limit>; PAGE]>;

#[derive(Debug)]
pub(super) struct Limits {
    pages: Box<[OnceLock<Page>]>,
    numbers: Mutex<Numbers>,
    epoch: AtomicU64,
    /// Whether a limit found no place.
    is_full: AtomicBool,
    last_pass: Mutex<Option<Timestamp>>,
    /// Whether a pass is under way.
    is_collecting: AtomicBool,
}

#[derive(Debug, Default)]
struct Numbers {
    by_digest: HashMap<u64, LimitId, RandomState>,
    /// For each number that was ever given: whether it was looked up in this epoch.
    used: Vec<bool>,
    /// Those that are not given at present.
    free: Vec<LimitId>,
}

impl Limits {
    pub(super) fn new() -> Self {
        Limits {
            pages: (0..PAGES).map(|_| OnceLock::new()).collect(),
            numbers: Mutex::default(),
            epoch: AtomicU64::new(EPOCHS.fetch_add(1, Ordering::Relaxed)),
            is_full: AtomicBool::new(false),
            last_pass: Mutex::new(None),
            is_collecting: AtomicBool::new(false),
        }
    }

    /// The number of a rule's limit, if the rule remembers one of this epoch. Call it under the lock of a shard.
    #[inline]
    pub(super) fn known(&self, rule: &Rule) -> Option<LimitId> {
        let number = rule.limit_number().load(Ordering::Relaxed);
        #[expect(clippy::cast_possible_truncation, reason = "the low half is the number")]
        (number >> 16 == self.epoch.load(Ordering::Relaxed)).then_some(number as LimitId)
    }

    /// The number of a rule's limit; `None` when no place is free. Call it under the lock of a shard.
    #[inline]
    pub(super) fn number(&self, rule: &Rule, limit: &Limit) -> Option<LimitId> {
        self.known(rule).or_else(|| {
            let epoch = self.epoch.load(Ordering::Relaxed);
            let number = self.intern(limit)?;
            rule.limit_number().store(epoch << 16 | u64::from(number), Ordering::Relaxed);
            Some(number)
        })
    }

    /// The number of a limit that no rule remembers.
    #[cold]
    pub(super) fn intern(&self, limit: &Limit) -> Option<LimitId> {
        let Numbers { by_digest, used, free } = &mut *self.numbers.lock();
        if let Some(id) = by_digest.get(&limit.digest()) {
            used[usize::from(*id)] = true;
            return self.get(*id).as_ref().filter(|kept| ***kept == *limit).map(|_| *id);
        }
        let next = || LimitId::try_from(used.len()).ok().filter(|_| used.len() < MAX_LIMITS);
        let Some(id) = free.pop().or_else(next) else {
            self.is_full.store(true, Ordering::Relaxed);
            return None;
        };
        self.place(id).store(Some(Arc::new(limit.clone())));
        by_digest.insert(limit.digest(), id);
        used.resize(used.len().max(usize::from(id) + 1), false);
        used[usize::from(id)] = true;
        Some(id)
    }

    /// The limit of a number that a state holds.
    #[inline]
    pub(super) fn get(&self, id: LimitId) -> Guard<Option<Arc<Limit>>> {
        self.place(id).load()
    }

    #[inline]
    fn place(&self, id: LimitId) -> &ArcSwapOption<Limit> {
        let (page, at) = (usize::from(id) / PAGE, usize::from(id) % PAGE);
        &self.pages[page].get_or_init(|| Box::new([const { ArcSwapOption::const_empty() }; PAGE]))[at]
    }

    /// Whether a limit found no place.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Whether the last pass is long enough ago. Then a new epoch begins, and the caller scans every shard and calls
    /// [`free_unused`](Self::free_unused).
    pub(super) fn starts_pass(&self, now: Timestamp) -> bool {
        let mut last = self.last_pass.lock();
        if last.is_some_and(|last| last.after(COLLECT_INTERVAL) > now)
            || self.is_collecting.swap(true, Ordering::Acquire)
        {
            return false;
        }
        *last = Some(now);
        self.is_full.store(false, Ordering::Relaxed);
        self.numbers.lock().used.fill(false);
        self.epoch.store(EPOCHS.fetch_add(1, Ordering::Relaxed), Ordering::Release);
        true
    }

    /// Frees every limit that neither a state nor a decision of this epoch uses.
    pub(super) fn free_unused(&self, in_states: &[bool]) {
        let Numbers { by_digest, used, free } = &mut *self.numbers.lock();
        by_digest.retain(|_, id| {
            let is_used = used[usize::from(*id)] || in_states[usize::from(*id)];
            if !is_used {
                self.place(*id).store(None);
                free.push(*id);
            }
            is_used
        });
        self.is_collecting.store(false, Ordering::Release);
    }

    /// A mark for each number, none set.
    pub(super) fn marks() -> Vec<bool> {
        vec![false; MAX_LIMITS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(count: u64) -> Limit {
        Limit::new(count, Micros::new(1_000_000)).unwrap()
    }

    fn rule(count: u64) -> Rule {
        Rule::ad_hoc(limit(count))
    }

    fn is_kept(limits: &Limits, id: LimitId, count: u64) -> bool {
        limits.get(id).as_ref().is_some_and(|kept| **kept == limit(count))
    }

    #[test]
    fn a_limit_has_one_number_and_a_number_one_limit() {
        let limits = Limits::new();
        let rules: Vec<Rule> = (1..=10_000).map(rule).collect();
        let number = |rule: &Rule| limits.number(rule, rule.limit().unwrap()).unwrap();
        let numbers: Vec<LimitId> = rules.iter().map(number).collect();
        for ((count, rule_of_count), id) in (1..).zip(&rules).zip(numbers) {
            assert_eq!(limits.known(rule_of_count), Some(id));
            assert_eq!(number(&rule(count)), id);
            assert!(is_kept(&limits, id, count));
        }
    }

    #[test]
    fn a_rule_of_another_store_is_looked_up() {
        let (limits, other) = (Limits::new(), Limits::new());
        let rule = rule(7);
        assert!(limits.number(&rule, &limit(7)).is_some());
        assert_eq!(other.known(&rule), None);
        assert!(other.number(&rule, &limit(7)).is_some());
    }

    #[test]
    fn a_full_table_gives_no_number_until_a_pass_has_freed_unused_limits() {
        let limits = Limits::new();
        let all = (1..=100_000).map(|count| limits.number(&rule(count), &limit(count)));
        let refused = all.filter(Option::is_none).count();
        assert!(refused >= 100_000 - MAX_LIMITS);
        let kept = (1..=100_000).filter_map(|count| Some((count, limits.intern(&limit(count))?)));
        let (count, in_use) = kept.last().expect("some were given a number");
        assert!(limits.starts_pass(Timestamp::from_micros(0)));
        assert!(!limits.starts_pass(Timestamp::from_micros(1)), "one pass at a time");
        let mut in_states = Limits::marks();
        in_states[usize::from(in_use)] = true;
        let during = rule(200_000);
        let looked_up = limits.number(&during, &limit(200_000));
        limits.free_unused(&in_states);
        assert!(is_kept(&limits, in_use, count), "a state uses it");
        if let Some(id) = looked_up {
            assert!(is_kept(&limits, id, 200_000), "a decision uses it");
        }
        let given = (300_000..301_000).filter(|count| limits.number(&rule(*count), &limit(*count)).is_some());
        assert!(given.count() > 990, "there is room again");
    }
}
