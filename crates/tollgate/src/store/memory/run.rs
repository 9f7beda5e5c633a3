//! The decision itself: every bucket of a request is asked, then all are charged or none.
//!
//! The rows of a call lock their shards in ascending order until the last bucket is written, so no other call sees half a
//! request and no two calls deadlock. The most common call, token buckets that are present and whose limits have not
//! changed, reads and writes 16 bytes per row and nothing else.

use smallvec::SmallVec;
use tollgate_core::algorithm::{Answer, Bucket, Demand, TokenBucket};
use tollgate_core::limit::{Algorithm, Refill};
use tollgate_core::{Key, Mark, Micros, Op, Outcome, Rule, RuleSet, Tier, Timestamp, Verdict};

use super::bucket::{Opened, Write};
use super::limits::{LimitId, Limits};
use super::packed::{Content, Packed};
use super::table::{Place, Table};
use super::{MemoryStore, Overflow};
use crate::store::{Call, window};
use crate::sync::MutexGuard;

impl MemoryStore {
    /// Gives the pending rows that `selects` their outcomes. `rules` has the same indices as the call's rules, and the
    /// limits to decide by.
    #[inline]
    pub(crate) fn run_rows(
        &self,
        call: &mut Call<'_>,
        rules: &RuleSet,
        selects: impl Fn(usize) -> bool,
        needs_marks: bool,
    ) -> Timestamp {
        if call.op == Op::Charge && !needs_marks && (0..call.tiers.len()).all(&selects) {
            let charged = match &mut call.tiers[..] {
                [tier] => self.charge_token_bucket(rules.rule(tier.rule), tier),
                tiers => self.charge_token_buckets(rules, tiers),
            };
            if let Some(now) = charged {
                return now;
            }
        }
        let rows: SmallVec<[usize; 4]> =
            (0..call.tiers.len()).filter(|row| call.tiers[*row].is_pending() && selects(*row)).collect();
        let now = match (call.op, &rows[..]) {
            (_, []) => self.clock.now(),
            (Op::Reset, rows) => self.reset(call, rules, rows),
            (_, rows) => self.run_locked(call, rules, rows, needs_marks),
        };
        self.collect_limits(now);
        now
    }

    /// One token bucket that is present and whose limit has not changed. `None`, and nothing done, where
    /// [`run_locked`](Self::run_locked) has to decide.
    #[inline]
    fn charge_token_bucket(&self, rule: &Rule, tier: &mut Tier) -> Option<Timestamp> {
        let refill = token_bucket(rule).filter(|_| tier.is_pending())?;
        // Read before the lock is taken: if that took so long that it looks like a step, `run_locked` reads it again.
        let now = self.clock.now();
        let mut table = self.lock(self.shard_of(tier.hash));
        let id = self.limits.known(rule)?;
        let (place, packed) = table.look(tier.hash)?;
        let mut bucket = TokenBucket::open(refill, packed.debt(id, refill)?, now)?;
        let answer = bucket.ask(demand(tier));
        if answer.allowed() && tier.cost > 0 {
            bucket.take(tier.cost);
            let packed = bucket.close().and_then(|debt| Packed::of_debt(debt, id))?;
            table.rewrite(place, tier.hash, packed);
        }
        drop(table);
        tier.outcome = Outcome::Decided(bucket.verdict(answer));
        Some(now)
    }

    /// The same for several.
    fn charge_token_buckets(&self, rules: &RuleSet, tiers: &mut [Tier]) -> Option<Timestamp> {
        let (mut rows, mut tables) = (SmallVec::<[TokenRow<'_>; 4]>::new(), SmallVec::<[_; 4]>::new());
        for tier in &*tiers {
            let rule = rules.rule(tier.rule);
            let refill = token_bucket(rule).filter(|_| tier.is_pending())?;
            rows.push(TokenRow::new(self.shard_of(tier.hash), rule, refill));
        }
        // In ascending order, each shard once. Most requests have few rows in as many shards.
        let mut shards: SmallVec<[usize; 4]> = rows.iter().map(|row| row.table).collect();
        shards.sort_unstable();
        shards.dedup();
        for shard in &shards {
            tables.push(self.lock(*shard));
        }
        let now = self.clock.now();
        let mut passes = true;
        for (row, tier) in rows.iter_mut().zip(&*tiers) {
            row.table = shards.iter().position(|shard| *shard == row.table)?;
            row.id = self.limits.known(row.rule)?;
            let (place, packed) = tables[row.table].look(tier.hash)?;
            let bucket = TokenBucket::open(row.refill, packed.debt(row.id, row.refill)?, now)?;
            row.answer = bucket.ask(demand(tier));
            passes &= row.answer.allowed() || !tier.enforces();
            (row.place, row.bucket) = (place, Some(bucket));
        }
        for (row, tier) in rows.iter_mut().zip(&*tiers) {
            if row.answer.allowed() && tier.cost > 0 && (passes || !tier.enforces()) {
                let bucket = row.bucket.as_mut()?;
                bucket.take(tier.cost);
                row.written = Some(bucket.close().and_then(|debt| Packed::of_debt(debt, row.id))?);
            }
        }
        for (row, tier) in rows.iter().zip(tiers) {
            if let Some(packed) = row.written {
                tables[row.table].rewrite_one(row.place, packed);
            }
            let bucket = row.bucket.as_ref().expect("every row was opened");
            tier.outcome = Outcome::Decided(bucket.verdict(row.answer));
        }
        Some(now)
    }

    /// Any rows: all their shards are locked, in order, until the last bucket is written.
    fn run_locked(
        &self,
        call: &mut Call<'_>,
        rules: &RuleSet,
        rows: &[usize],
        needs_marks: bool,
    ) -> Timestamp {
        let shard_of = |row: usize| self.shard_of(call.tiers[row].hash);
        let mut shards: SmallVec<[usize; 4]> = rows.iter().map(|row| shard_of(*row)).collect();
        shards.sort_unstable();
        shards.dedup();
        let mut tables: SmallVec<[MutexGuard<'_, Table>; 4]> =
            shards.iter().map(|shard| self.lock(*shard)).collect();
        let table_of =
            |hash| shards.binary_search(&self.shard_of(hash)).expect("the shard of every row was locked");
        // Under the locks: an instant from before them would be behind what others have written since.
        let now = self.clock.now();
        for row in rows {
            let hash = call.tiers[*row].hash;
            self.make_room(&mut tables[table_of(hash)], hash, now);
        }
        let mut overflow: Option<MutexGuard<'_, Overflow>> = None;
        let mut opened: SmallVec<[(usize, Opened<'_>, Answer); 4]> = SmallVec::new();
        let mut passes = !call.refuses();
        for row in rows {
            let tier = &call.tiers[*row];
            let (rule, table) = (rules.rule(tier.rule), &mut tables[table_of(tier.hash)]);
            let key = rule.key(call.request);
            let bucket = self.open(table, &mut overflow, tier.hash, rule, key, now, opened.len());
            let answer = bucket.ask(call.op, call.demand(tier));
            passes &= answer.allowed() || !tier.enforces();
            opened.push((*row, bucket, answer));
        }
        for (row, mut bucket, answer) in opened {
            let tier = &mut call.tiers[row];
            let charges = answer.allowed() && (passes || !tier.enforces());
            let write = bucket.apply(call.op, tier.cost, tier.mark, charges);
            tier.outcome = Outcome::Decided(bucket.verdict(answer));
            if needs_marks && write == Write::Change {
                tier.mark = bucket.mark(tier.cost);
            }
            let rule = rules.rule(tier.rule);
            self.close(&mut tables[table_of(tier.hash)], &mut overflow, tier.hash, rule, bucket, write);
        }
        now
    }

    fn reset(&self, call: &mut Call<'_>, rules: &RuleSet, rows: &[usize]) -> Timestamp {
        for row in rows {
            let hash = call.tiers[*row].hash;
            let mut table = self.lock(self.shard_of(hash));
            if let Some(at) = table.find(hash) {
                table.remove(at);
            }
        }
        let now = self.clock.now();
        for row in rows {
            let rule = rules.rule(call.tiers[*row].rule);
            let verdict = fresh(rule, rule.key(call.request), now);
            call.tiers[*row].outcome = Outcome::Decided(verdict);
        }
        now
    }

    /// Does something to one bucket, under its shard's lock.
    pub(super) fn change<T>(
        &self,
        rule: &Rule,
        key: Key<'_>,
        change: impl FnOnce(&mut Opened<'_>) -> (T, Write),
    ) -> T {
        let hash = crate::key_seeds().hash(key);
        let mut table = self.lock(self.shard_of(hash));
        let now = self.clock.now();
        let mut overflow = None;
        self.make_room(&mut table, hash, now);
        let mut bucket = self.open(&mut table, &mut overflow, hash, rule, key, now, 0);
        let (done, write) = change(&mut bucket);
        self.close(&mut table, &mut overflow, hash, rule, bucket, write);
        done
    }

    /// Frees limits that nothing uses any more, if the table of limits is full.
    #[inline]
    fn collect_limits(&self, now: Timestamp) {
        if self.limits.starts_pass(now) {
            let mut in_states = Limits::marks();
            for shard in &self.shards {
                shard.0.lock().for_each_state(|packed| {
                    if let Content::Narrow(id) = packed.content() {
                        in_states[usize::from(id)] = true;
                    }
                });
            }
            self.limits.free_unused(&in_states);
        }
    }
}

/// A row whose bucket is a token bucket, while it is decided.
#[derive(Debug)]
struct TokenRow<'r> {
    rule: &'r Rule,
    refill: &'r Refill,
    /// The shard, then the index of its table among those that are locked.
    table: usize,
    id: LimitId,
    place: Place,
    bucket: Option<TokenBucket<'r>>,
    answer: Answer,
    written: Option<Packed>,
}

impl<'r> TokenRow<'r> {
    #[inline]
    fn new(shard: usize, rule: &'r Rule, refill: &'r Refill) -> Self {
        let (answer, place) = (Answer::Never, Place::Hot);
        TokenRow { rule, refill, table: shard, id: 0, place, bucket: None, answer, written: None }
    }
}

/// The refill of a rule whose limit is a token bucket.
#[inline]
fn token_bucket(rule: &Rule) -> Option<&Refill> {
    match rule.limit()?.algorithm() {
        Algorithm::TokenBucket(refill) => Some(refill),
        _ => None,
    }
}

/// What a row asks of a token bucket, which never delays.
#[inline]
const fn demand(tier: &Tier) -> Demand {
    Demand { cost: tier.cost, max_wait: Micros::MAX }
}

impl Opened<'_> {
    /// Does to the bucket what the operation says, and answers what has to be written.
    fn apply(&mut self, op: Op, cost: u64, mark: Mark, charges: bool) -> Write {
        match op {
            Op::Charge if charges => {
                self.take(cost);
                Write::of(cost)
            }
            Op::Charge if self.stepped() => Write::of_step(cost),
            Op::Refund if self.is_known() => {
                self.refund(cost);
                Write::of(cost)
            }
            Op::Undo if self.is_known() && self.undo(cost, mark) => Write::Change,
            Op::Charge | Op::Peek | Op::Refund | Op::Reset | Op::Undo => Write::Nothing,
        }
    }
}

/// The verdict of a bucket that does not exist.
fn fresh(rule: &Rule, key: Key<'_>, now: Timestamp) -> Verdict {
    let limit = rule.limit().expect("rows are made for rules with a limit");
    let bucket = Bucket::open(limit, None, now, window(key, limit));
    bucket.verdict(Answer::Pass { delay: Micros::ZERO })
}
