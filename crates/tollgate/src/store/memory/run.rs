//! The decision itself: every bucket of a request is asked, then all are charged or none.
//!
//! The rows of a call are visited in the order of their shards, each row one level of recursion deeper than the row before:
//! on the way down a row locks its shard, if the row before has not, and asks its bucket; on the way up, when all have
//! answered, it charges the bucket and unlocks. So no other call sees half a request, no two calls deadlock, and an open
//! bucket stays where it is, in the frame of its row. The most common row, a token bucket that is present and whose limit has
//! not changed, reads and writes 16 bytes.
//!
//! The overflow buckets have one lock for all shards. A call that holds it may wait for a shard, so no call waits for it while it
//! holds a shard: it gives up, unlocks everything, and decides again with that lock taken first.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::algorithm::{Answer, Bucket, Demand};
use tollgate_core::{
    Descriptor, Enforcement, Key, Micros, Op, Outcome, Rule, RuleSet, StoreError, Tier, Timestamp, Verdict,
};

use super::bucket::{Named, Opened, Write};
use super::limits::Limits;
use super::packed::Content;
use super::reservations::ReservedBucket;
use super::table::Table;
use super::{MemoryStore, Overflow};
use crate::reserve::{ReservationId, SettleError, Settled};
use crate::store::{Call, window};
use crate::sync::MutexGuard;

/// More rows are decided on a thread of their own, with a stack for them: each is a level of recursion, of less than 2 KiB.
const MAX_DEPTH: usize = 128;
const STACK_PER_ROW: usize = 4 << 10;
const MIN_STACK: usize = 1 << 20;

/// A row to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    shard: usize,
    /// Among the rows of the call.
    index: usize,
}

/// A call while its rows are decided.
#[derive(Debug)]
struct Run<'r, 's> {
    op: Op,
    max_wait: Micros,
    request: &'r Descriptor<'r>,
    rules: &'r RuleSet,
    tiers: &'r mut [Tier],
    /// Read before the locks are taken, so that they are held for a shorter time; read again where that was too early.
    now: Timestamp,
    /// Whether no enforcing row refuses so far.
    passes: bool,
    /// A charge that is not given back.
    is_plain: bool,
    charged: Option<&'r mut Charged>,
    overflow: Option<MutexGuard<'s, Overflow>>,
    /// Buckets that are open and may still need a new slot.
    opened: usize,
}

/// Rows that were charged, and from when time repays each charge.
pub(crate) type Charged = SmallVec<[(usize, Timestamp); 4]>;

impl MemoryStore {
    /// Gives the pending rows that `selects` their outcomes. `rules` has the same indices as the call's rules, and the
    /// limits to decide by. Adds to `charged` what may be given back later.
    #[inline]
    pub(crate) fn run_rows(
        &self,
        call: &mut Call<'_>,
        rules: &RuleSet,
        selects: impl Fn(usize) -> bool,
        charged: Option<&mut Charged>,
    ) -> Timestamp {
        let (mut few, mut many) = ([Row { shard: 0, index: 0 }; 4], Vec::new());
        let rows = if call.tiers.len() <= few.len() {
            &mut few[..]
        } else {
            many.resize(call.tiers.len(), few[0]);
            &mut many[..]
        };
        let (mut count, mut passes) = (0, true);
        for (index, tier) in call.tiers.iter().enumerate() {
            if !tier.is_pending() {
                passes &= !tier.refuses();
            } else if selects(index) {
                rows[count] = Row { shard: self.shard_of(tier.hash), index };
                count += 1;
            }
        }
        let rows = &mut rows[..count];
        if rows.len() > 1 {
            rows.sort_unstable();
        }
        if rows.len() <= MAX_DEPTH {
            self.run_all(call, rules, passes, charged, rows)
        } else {
            self.run_on_own_stack(call, rules, passes, charged, rows)
        }
    }

    #[cold]
    fn run_on_own_stack(
        &self,
        call: &mut Call<'_>,
        rules: &RuleSet,
        passes: bool,
        charged: Option<&mut Charged>,
        rows: &[Row],
    ) -> Timestamp {
        let stack = MIN_STACK + rows.len() * STACK_PER_ROW;
        let on_own_stack = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(stack);
            let run = || self.run_all(call, rules, passes, charged, rows);
            thread.spawn_scoped(scope, run).map(|thread| thread.join().expect("the decision does not panic"))
        });
        on_own_stack.unwrap_or_else(|error| {
            tracing::error!(%error, rows = rows.len(), "cannot start a thread for a request that matches this many limits");
            call.lose(StoreError::Overloaded);
            self.clock.now()
        })
    }

    /// Gives these rows their outcomes.
    #[inline(always)]
    fn run_all(
        &self,
        call: &mut Call<'_>,
        rules: &RuleSet,
        passes: bool,
        charged: Option<&mut Charged>,
        rows: &[Row],
    ) -> Timestamp {
        let mut run = Run {
            op: call.op,
            max_wait: call.max_wait,
            request: call.request,
            rules,
            passes,
            tiers: &mut call.tiers[..],
            now: self.clock.now(),
            is_plain: call.op == Op::Charge && charged.is_none(),
            charged,
            overflow: None,
            opened: 0,
        };
        if call.op == Op::Reset {
            self.reset(&mut run, rows);
        } else if !self.run_row(&mut run, None, rows) {
            run.overflow = Some(self.overflow.lock());
            (run.passes, run.opened, run.now) = (passes, 0, self.clock.now());
            self.run_row(&mut run, None, rows);
        }
        let now = run.now;
        drop(run);
        if self.limits.is_full() {
            self.collect_limits(now);
        }
        now
    }

    /// Decides rows that are in the order of their shards. The row before has locked the table of the first, if that is
    /// `held`. `false`, and nothing done, where the overflow buckets are locked by another call.
    fn run_row<'s>(&'s self, run: &mut Run<'_, 's>, held: Option<&mut Table>, rows: &[Row]) -> bool {
        let [row, rest @ ..] = rows else { return true };
        let is_next_here = rest.first().is_some_and(|next| next.shard == row.shard);
        let (mut locked, is_alone) = (None, held.is_none() && !is_next_here);
        let table = match held {
            Some(table) => table,
            None => {
                let table = locked.insert(self.lock(row.shard));
                if is_next_here {
                    self.make_rooms(run, table, rows);
                }
                table
            }
        };
        let tier = &run.tiers[row.index];
        let (rule, hash, cost, enforces) = (run.rules.rule(tier.rule), tier.hash, tier.cost, tier.enforces());
        if run.is_plain
            && let Some(mut opened) = self.open_token(table, hash, rule, run.now)
        {
            let answer = opened.bucket.ask(Demand { cost, max_wait: Micros::MAX });
            run.answered(enforces, answer);
            if !rest.is_empty() && !self.run_row(run, is_next_here.then_some(&mut *table), rest) {
                return false;
            }
            if run.charges(enforces, answer) && cost > 0 {
                opened.bucket.take(cost);
                let named = || Named::new(hash, rule, rule.key(run.request));
                self.close_token(table, &mut run.overflow, hash, &opened, named);
            }
            run.tiers[row.index].outcome = Outcome::Decided(opened.bucket.verdict(answer));
            return true;
        }
        if is_alone {
            self.make_room(table, hash, run.now);
        }
        self.run_any(run, table, *row, rest)
    }

    /// The same, whatever the bucket and the operation. There is room for the row in its table.
    #[inline(never)]
    fn run_any<'s>(&'s self, run: &mut Run<'_, 's>, table: &mut Table, row: Row, rest: &[Row]) -> bool {
        let (tier, op) = (&run.tiers[row.index], run.op);
        let (rule, cost, enforces) = (run.rules.rule(tier.rule), tier.cost, tier.enforces());
        let named = Named::new(tier.hash, rule, rule.key(run.request));
        let Some(mut opened) = self.open(table, &mut run.overflow, named, &mut run.now, run.opened) else {
            return false;
        };
        run.opened += 1;
        let bucket = &mut opened.bucket;
        let answer = if op.decides() {
            bucket.ask(Demand { cost, max_wait: run.max_wait })
        } else {
            Answer::Pass { delay: Micros::ZERO }
        };
        run.answered(enforces, answer);
        let is_next_here = rest.first().is_some_and(|next| next.shard == row.shard);
        if !self.run_row(run, is_next_here.then_some(&mut *table), rest) {
            self.close(table, &mut run.overflow, named, opened, Write::Nothing);
            return false;
        }
        let write = match op {
            Op::Charge if run.charges(enforces, answer) => {
                bucket.take(cost);
                Write::of(cost)
            }
            Op::Charge if bucket.stepped() => Write::of_step(cost),
            Op::Refund if opened.is_known => {
                bucket.refund(cost);
                Write::of(cost)
            }
            Op::Charge | Op::Peek | Op::Refund | Op::Reset => Write::Nothing,
        };
        run.tiers[row.index].outcome = Outcome::Decided(bucket.verdict(answer));
        if let Some(charged) = run.charged.as_deref_mut().filter(|_| write == Write::Change) {
            charged.push((row.index, bucket.repaid_from(cost)));
        }
        self.close(table, &mut run.overflow, named, opened, write);
        true
    }

    /// Makes room for all rows of a shard before the first of them is opened: this evicts buckets.
    #[cold]
    fn make_rooms(&self, run: &Run<'_, '_>, table: &mut Table, rows: &[Row]) {
        for row in rows.iter().take_while(|row| row.shard == rows[0].shard) {
            self.make_room(table, run.tiers[row.index].hash, run.now);
        }
    }

    fn reset(&self, run: &mut Run<'_, '_>, rows: &[Row]) {
        for Row { shard, index } in rows {
            let tier = &mut run.tiers[*index];
            let mut table = self.lock(*shard);
            if let Some(at) = table.find(tier.hash) {
                table.remove(at);
            }
            let rule = run.rules.rule(tier.rule);
            tier.outcome = Outcome::Decided(fresh(rule, rule.key(run.request), run.now));
        }
    }

    /// Does something to one bucket, under its shard's lock.
    fn change<T>(&self, named: Named<'_>, change: impl FnOnce(&mut Opened<'_>) -> (T, Write)) -> T {
        let mut overflow = None;
        loop {
            let mut table = self.lock(self.shard_of(named.hash));
            let mut now = self.clock.now();
            self.make_room(&mut table, named.hash, now);
            let Some(mut opened) = self.open(&mut table, &mut overflow, named, &mut now, 0) else {
                drop(table);
                overflow = Some(self.overflow.lock());
                continue;
            };
            let (done, write) = change(&mut opened);
            self.close(&mut table, &mut overflow, named, opened, write);
            return done;
        }
    }

    /// Gives the whole cost of a charge back, as far as time has not repaid it.
    pub(crate) fn give_back(&self, tier: &Tier, rule: &Rule, key: Key<'_>, since: Timestamp) {
        self.change(Named::new(tier.hash, rule, key), |opened| {
            let is_given = opened.is_known && opened.bucket.give_back(tier.cost, tier.cost, since);
            ((), if is_given { Write::Change } else { Write::Nothing })
        });
    }

    /// A charge that is settled later: the same, and its record.
    #[cold]
    pub(super) fn run_reserving(&self, call: &mut Call<'_>) -> Timestamp {
        let (rules, mut charged) = (call.rules, Charged::new());
        let at = self.run_rows(call, rules, |_| true, Some(&mut charged));
        self.record(call, rules, &charged);
        at
    }

    /// Writes down what a reservation was charged, unless it is refused or counts nowhere by the request's cost.
    pub(crate) fn record(&self, call: &mut Call<'_>, rules: &RuleSet, charged: &Charged) {
        let refused = call.refuses();
        let (request, tiers) = (call.request, &*call.tiers);
        let Some(reservation) = call.reservation.as_deref_mut().filter(|_| !refused) else { return };
        let buckets = charged.iter().filter_map(|(row, since)| {
            let (tier, rule) = (&tiers[*row], rules.rule(tiers[*row].rule));
            let (limit, price) = (rule.limit()?, rule.unit_cost(request));
            let kept = self.limits.intern(limit).and_then(|number| self.limits.get(number).clone());
            Some(ReservedBucket {
                hash: tier.hash,
                limit: kept.filter(|kept| **kept == *limit).unwrap_or_else(|| Arc::new(limit.clone())),
                space: rule.space().digest(),
                spread_seed: rule.key(request).spread_seed(),
                enforcement: tier.enforcement,
                price,
                since: *since,
            })
            .filter(|bucket| bucket.price > 0)
        });
        let buckets: Vec<ReservedBucket> = buckets.collect();
        if !buckets.is_empty() {
            reservation.is_recorded = true;
            self.reservations.lock().record(reservation, buckets, self.clock.now());
        }
    }

    /// Settles a reservation: all its buckets, one after the other.
    pub(super) fn settle_reservation(&self, id: ReservationId, actual: u64) -> Result<Settled, SettleError> {
        self.reservations.lock().settle(id, actual, self.clock.now(), |reserved, buckets| {
            let unpaid = buckets.iter().map(|bucket| self.settle_bucket(bucket, reserved, actual));
            unpaid.max().unwrap_or(0)
        })
    }

    /// Gives back or charges the difference; answers what did not fit, in the cost of the request. A rule in shadow mode
    /// leaves nothing unpaid.
    fn settle_bucket(&self, reserved_bucket: &ReservedBucket, reserved: u64, actual: u64) -> u64 {
        let ReservedBucket { price, since, enforcement, .. } = *reserved_bucket;
        let cost = price.saturating_mul(reserved.abs_diff(actual));
        self.change(Named::from(reserved_bucket), |Opened { bucket, is_known, .. }| {
            if actual <= reserved {
                let charged = price.saturating_mul(reserved);
                let is_given = *is_known && bucket.give_back(cost, charged, since);
                return (0, if is_given { Write::Change } else { Write::Nothing });
            }
            let fits = cost.min(bucket.remaining());
            if fits > 0 {
                bucket.take(fits);
            }
            let unpaid = if enforcement == Enforcement::Enforce { (cost - fits).div_ceil(price) } else { 0 };
            (unpaid, Write::of(fits))
        })
    }

    /// Frees limits that nothing uses any more, if the table of limits is full.
    #[cold]
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

impl Run<'_, '_> {
    #[inline]
    fn answered(&mut self, enforces: bool, answer: Answer) {
        self.passes &= answer.allowed() || !enforces;
    }

    /// Whether a row is charged, now that all rows have answered.
    #[inline]
    const fn charges(&self, enforces: bool, answer: Answer) -> bool {
        answer.allowed() && (self.passes || !enforces)
    }
}

/// The verdict of a bucket that does not exist.
fn fresh(rule: &Rule, key: Key<'_>, now: Timestamp) -> Verdict {
    let limit = rule.limit().expect("rows are made for rules with a limit");
    let bucket = Bucket::open(limit, None, now, window(key, limit));
    bucket.verdict(Answer::Pass { delay: Micros::ZERO })
}
