//! The store's side: a bucket, and the sums of what is out of it.
//!
//! Leases of a key start and end on common boundaries, so the ledger has a few sums for this period and the next, whatever
//! the number of holders. Let D be the usage of the bucket (it decays) and O what is out (it does not):
//!
//! | what happens | D | O |
//! |---|---|---|
//! | time passes | less at `r - sum(rho)`, not below 0 | |
//! | an exact request passes, because `D + O + cost <= C` | `+ cost` | |
//! | a lease (x, c) is granted that starts now | `- (c - x)`, not below 0 | `+ c` |
//! | a lease (x, c) of the next period is granted, or a request is held (`c = x`) | | `+ x` |
//! | a node returns y tokens | | `- y` |
//! | a held cost is spent | `+ cost` | `- cost` |
//! | a boundary: O was `o`, the next period's leases have capacities `c'` | `+ o - sum(c')`, not below 0 | `= sum(c')` |

use super::{Grant, Lease, LeaseCall, MAX_DEMAND, Terms, Wants, is_lent, share};
use crate::algorithm::{Answer, Bucket, Demand, Instant, State, Window};
use crate::limit::{Algorithm, Limit};
use crate::tier::{Growth, Verdict};
use crate::time::{Micros, Timestamp};

/// What is out of one bucket, in sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ledger {
    this: Period,
    /// No end: nothing is granted for it yet.
    next: Period,
    /// Of the next period's capacity, what has been taken from the parent already.
    ahead: u64,
    /// What the refill since the last write left below one unit, in parts of it.
    rest: u64,
    /// Tokens that were asked for in the last period, and in this one.
    demand: [Asked; 2],
    /// The lease time of periods that are not fixed yet, and the longest that was asked for in this one.
    lease_time: Micros,
    longest_asked: Micros,
    /// What the amounts are in.
    terms: Terms,
}

/// The leases that end at one boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Period {
    end: Option<Timestamp>,
    /// The sum of their capacities, in units.
    out: u64,
    /// The sum of their rates, in parts.
    rate: u64,
}

/// Tokens that were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Asked {
    /// Of nodes with leases, as their calls report it.
    leased: u64,
    /// At the store, by callers without a lease.
    exact: u64,
}

impl Asked {
    const fn all(self) -> u64 {
        self.leased + self.exact
    }
}

/// The store's own part of one bucket at one instant: what is not out on its ledger.
#[derive(Debug, Clone)]
pub struct ParentBucket<'l> {
    limit: &'l Limit,
    window: Window,
    /// At `at`, and not late: what is late is in `lag`.
    bucket: Bucket<'l>,
    ledger: Option<Ledger>,
    terms: Terms,
    at: Timestamp,
    lag: u64,
    stepped: bool,
    changed: bool,
}

/// What a store has to write when it is done with a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "it lives for one call")]
pub enum Written {
    /// Nothing.
    Nothing,
    /// The state and its ledger; `None` deletes the key.
    All(Option<(State, Option<Ledger>)>),
}

impl Ledger {
    /// How many [`numbers`](Self::numbers) it has.
    pub const NUMBERS: usize = 17;
    /// The number of a period without an end.
    pub const NO_END: i64 = -(1 << 55);

    fn new(lease_time: Micros, terms: Terms) -> Self {
        Ledger {
            this: Period::default(),
            next: Period::default(),
            ahead: 0,
            rest: 0,
            demand: [Asked::default(); 2],
            lease_time,
            longest_asked: Micros::ZERO,
            terms,
        }
    }

    /// Capacity that is out, in units.
    pub const fn out(&self) -> u64 {
        self.this.out + self.ahead
    }

    /// Parts of the refill rate that are lent.
    pub const fn rate(&self) -> u64 {
        self.this.rate
    }

    /// The end of this period and of the next, where they are fixed.
    pub const fn boundaries(&self) -> [Option<Timestamp>; 2] {
        [self.this.end, self.next.end]
    }

    /// The sums of this period and of the next: capacity in units, rate in parts.
    pub const fn sums(&self) -> [(u64, u64); 2] {
        [(self.this.out, self.this.rate), (self.next.out, self.next.rate)]
    }

    /// Everything in it, in a fixed order: as a store keeps it.
    pub fn numbers(&self) -> [i64; Self::NUMBERS] {
        let end = |period: &Period| period.end.map_or(Self::NO_END, Timestamp::as_micros);
        let [last, this] = self.demand;
        let Terms { units, refill, parts } = self.terms;
        let number = u64::cast_signed;
        [
            end(&self.this),
            number(self.this.out),
            number(self.this.rate),
            end(&self.next),
            number(self.next.out),
            number(self.next.rate),
            number(self.ahead),
            number(self.rest),
            number(last.leased),
            number(last.exact),
            number(this.leased),
            number(this.exact),
            number(self.lease_time.get()),
            number(self.longest_asked.get()),
            number(units),
            number(refill),
            number(parts),
        ]
    }

    /// A ledger of such [`numbers`](Self::numbers); `None` if one of them is negative that cannot be.
    pub fn from_numbers(numbers: [i64; Self::NUMBERS]) -> Option<Self> {
        let number = |place: usize| u64::try_from(numbers[place]).ok();
        let period = |place: usize| {
            let end = (numbers[place] != Self::NO_END).then(|| Timestamp::from_micros(numbers[place]));
            Some(Period { end, out: number(place + 1)?, rate: number(place + 2)? })
        };
        let asked = |place: usize| Some(Asked { leased: number(place)?, exact: number(place + 1)? });
        Some(Ledger {
            this: period(0)?,
            next: period(3)?,
            ahead: number(6)?,
            rest: number(7)?,
            demand: [asked(8)?, asked(10)?],
            lease_time: Micros::new(number(12)?),
            longest_asked: Micros::new(number(13)?),
            terms: Terms { units: number(14)?.max(1), refill: number(15)?, parts: number(16)?.max(1) },
        })
    }

    fn shift(&mut self, by: i64) {
        for end in [&mut self.this.end, &mut self.next.end].into_iter().flatten() {
            *end = Timestamp::from_micros(end.as_micros() + by);
        }
    }

    /// The same sums in the terms of another limit, rounded up.
    fn convert(&mut self, terms: Terms) {
        let from = std::mem::replace(&mut self.terms, terms);
        if from == terms {
            return;
        }
        for period in [&mut self.this, &mut self.next] {
            period.out = terms.convert_up(period.out, &from);
            period.rate = terms.convert_rate(period.rate, &from);
        }
        self.ahead = terms.convert_up(self.ahead, &from).min(self.next.out);
        self.rest = 0;
    }

    /// The next period becomes this one. Nothing is left of a ledger without one.
    fn rotate(mut self) -> Option<Self> {
        self.next.end?;
        self.this = std::mem::take(&mut self.next);
        self.ahead = 0;
        self.demand = [self.demand[1], Asked::default()];
        if self.longest_asked > Micros::ZERO {
            self.lease_time = std::mem::take(&mut self.longest_asked);
        }
        Some(self)
    }

    /// The sums that end at this boundary, unless it is over.
    fn at_boundary(&mut self, boundary: Timestamp) -> Option<(&mut Period, Option<&mut u64>)> {
        if self.this.end == Some(boundary) {
            Some((&mut self.this, None))
        } else if self.next.end == Some(boundary) {
            Some((&mut self.next, Some(&mut self.ahead)))
        } else {
            None
        }
    }

    /// Whether it says nothing that a bucket without a ledger does not: nothing is out, and no node with a lease reported
    /// demand.
    const fn is_unused(&self) -> bool {
        let [last, this] = &self.demand;
        self.this.out == 0
            && self.this.rate == 0
            && self.next.out == 0
            && self.next.rate == 0
            && last.leased == 0
            && this.leased == 0
    }

    /// Takes capacity off the sums of a boundary; answers how much was there.
    fn take_off(&mut self, boundary: Timestamp, units: u64, rate: u64) -> u64 {
        let Some((period, ahead)) = self.at_boundary(boundary) else { return 0 };
        period.rate -= rate.min(period.rate);
        let units = units.min(period.out).min(ahead.as_deref().copied().unwrap_or(u64::MAX));
        period.out -= units;
        if let Some(ahead) = ahead {
            *ahead -= units;
        }
        // Leases without a rate keep tokens for the next period: no more than are out.
        if self.terms.refill == 0 {
            self.next.out = self.next.out.min(self.ahead.saturating_add(self.this.out));
        }
        units
    }
}

impl<'l> ParentBucket<'l> {
    /// Brings a bucket and its ledger to `now`, as [`Bucket::open`] does.
    pub fn open(
        limit: &'l Limit,
        state: Option<State>,
        ledger: Option<Ledger>,
        now: Timestamp,
        window: Window,
    ) -> Self {
        let state = state.filter(|state| state.is_of(limit));
        // A ledger without a state was that of another algorithm.
        let mut ledger = ledger.filter(|_| state.is_some());
        let terms = Terms::of(limit);
        if let Some(ledger) = &mut ledger {
            ledger.convert(terms);
        }
        let last = state.as_ref().map(State::last);
        let Instant { at, step, .. } = Instant::of(last, now);
        let at = Timestamp::from_micros(at);
        let opened_at = match (step, last) {
            (Some(by), _) => {
                if let Some(ledger) = &mut ledger {
                    ledger.shift(by);
                }
                now
            }
            (None, Some(last)) => last,
            (None, None) => now,
        };
        let mut parent = ParentBucket {
            limit,
            window,
            bucket: Bucket::open(limit, state, opened_at, window),
            ledger,
            terms,
            at: opened_at,
            lag: at.since(now).get(),
            stepped: step.is_some(),
            changed: false,
        };
        parent.advance(at);
        parent
    }

    /// Brings the bucket to a later instant, across the boundaries before it.
    fn advance(&mut self, to: Timestamp) {
        while let Some(end) = self.ledger.as_ref().and_then(|ledger| ledger.this.end).filter(|end| *end <= to)
        {
            self.refill(end);
            self.cross_boundary();
        }
        self.refill(to);
    }

    /// Time passes within a period.
    fn refill(&mut self, to: Timestamp) {
        let elapsed = to.since(self.at).get();
        if elapsed == 0 {
            return;
        }
        let mut state = self.bucket.clone().into_state();
        if let (Some(ledger), State::TokenBucket(debt)) = (&mut self.ledger, &mut state)
            && ledger.this.rate > 0
        {
            let kept_parts = self.terms.parts.saturating_sub(ledger.this.rate);
            let credit = u128::from(elapsed) * u128::from(self.terms.refill) * u128::from(kept_parts)
                + u128::from(ledger.rest);
            let units = credit / u128::from(self.terms.parts);
            let left = debt.repay(u64::try_from(units).unwrap_or(u64::MAX), to);
            let rest = u64::try_from(credit % u128::from(self.terms.parts)).expect("below the parts");
            ledger.rest = if left { rest } else { 0 };
        }
        self.bucket = Bucket::open(self.limit, Some(state), to, self.window);
        self.at = to;
    }

    /// The leases of this period end, and those of the next start. What is not renewed counts as spent.
    fn cross_boundary(&mut self) {
        let Some(ledger) = self.ledger.take() else { return };
        let (before, after) = (ledger.out(), ledger.next.out);
        self.bucket.settle_units(before.saturating_sub(after));
        self.bucket.forgive_units(after.saturating_sub(before));
        self.ledger = ledger.rotate();
    }

    fn out(&self) -> u64 {
        self.ledger.as_ref().map_or(0, Ledger::out)
    }

    /// Units that are in the parent.
    fn content(&self) -> u64 {
        self.bucket.room_units().saturating_sub(self.out())
    }

    /// The capacity of the limit, in units.
    fn capacity(&self) -> u64 {
        self.limit.capacity().saturating_mul(self.terms.units)
    }

    /// What the bucket would do with a demand. A cost of 0 always passes. A wait counts leases as ending unreturned.
    pub fn ask(&self, demand: Demand) -> Answer {
        let Demand { cost, max_wait } = demand;
        if self.ledger.is_none() || cost == 0 || cost > self.limit.capacity() {
            return self.late(self.bucket.ask(demand));
        }
        if cost.saturating_mul(self.terms.units) > self.content() {
            return self.late(match self.log_window() {
                Some(window) => self.log_wait(cost, window),
                None => self.wait(|parent| parent.wait_within_period(cost)),
            });
        }
        // The delay of a queue counts what is held as debt.
        let mut all_spent = self.bucket.clone();
        all_spent.settle_units(self.out());
        self.late(all_spent.ask(Demand { cost, max_wait }))
    }

    /// The window of a log.
    fn log_window(&self) -> Option<Micros> {
        match self.limit.algorithm() {
            Algorithm::SlidingWindowLog { window, .. } => Some(*window),
            _ => None,
        }
    }

    /// The wait for a cost in a log. What is out counts until a window after its boundary, as tokens or as entries.
    fn log_wait(&self, cost: u64, window: Micros) -> Answer {
        let tokens = cost.saturating_add(self.out());
        if tokens <= self.limit.capacity() {
            return self.bucket.ask(Demand { cost: tokens, max_wait: Micros::MAX });
        }
        Answer::Wait(self.last_boundary().after(window).since(self.at))
    }

    /// The end of everything that is out.
    fn last_boundary(&self) -> Timestamp {
        let ends = self.ledger.as_ref().map(Ledger::boundaries).unwrap_or_default();
        ends.into_iter().flatten().max().unwrap_or(self.at)
    }

    /// The wait until `within` answers with one that ends in its period.
    fn wait(&self, within: impl Fn(&Self) -> Option<u64>) -> Answer {
        let mut later = self.clone();
        loop {
            let end = later.ledger.as_ref().and_then(|ledger| ledger.this.end);
            let passes = within(&later).map(|wait| later.at.after(Micros::new(wait)));
            match (passes, end) {
                (Some(passes), Some(end)) if passes >= end => later.advance(end),
                (Some(passes), _) => return Answer::Wait(passes.since(self.at)),
                (None, Some(end)) => later.advance(end),
                (None, None) => return Answer::Never,
            }
        }
    }

    /// The wait for a cost if no boundary came; `None` if waiting does not help.
    fn wait_within_period(&self, cost: u64) -> Option<u64> {
        let price = cost.saturating_mul(self.terms.units);
        let missing = price.saturating_sub(self.content());
        if missing == 0 {
            return Some(0);
        }
        let (rate, rest) = self.ledger.as_ref().map_or((0, 0), |ledger| (ledger.this.rate, ledger.rest));
        if rate == 0 {
            let tokens = cost.saturating_add(self.out().div_ceil(self.terms.units));
            return match self.bucket.ask(Demand { cost: tokens, max_wait: Micros::MAX }) {
                Answer::Pass { .. } => Some(0),
                Answer::Wait(wait) => Some(wait.get()),
                Answer::Never => None,
            };
        }
        if price > self.capacity().saturating_sub(self.out()) {
            return None; // the parent never has so much in this period
        }
        let kept_parts = self.terms.parts.saturating_sub(rate);
        let speed = u128::from(self.terms.refill) * u128::from(kept_parts);
        let credit = (u128::from(missing) * u128::from(self.terms.parts)).saturating_sub(rest.into());
        (speed > 0).then(|| u64::try_from(credit.div_ceil(speed)).unwrap_or(u64::MAX))
    }

    fn late(&self, answer: Answer) -> Answer {
        match answer {
            Answer::Wait(wait) => Answer::Wait(Micros::new(wait.get().saturating_add(self.lag))),
            answer => answer,
        }
    }

    /// Charges a cost that [`ask`](Self::ask) let pass.
    pub fn take(&mut self, cost: u64) {
        self.bucket.take(cost);
        self.changed |= cost > 0;
    }

    /// Counts what a caller without a lease asked for, whether it passed or not. Only a bucket with leases counts it.
    pub fn note_exact_demand(&mut self, cost: u64) {
        if let Some(ledger) = &mut self.ledger
            && cost > 0
        {
            add_demand(&mut ledger.demand[1].exact, cost);
            self.changed = true;
        }
    }

    /// Gives back a cost; never beyond full.
    pub fn refund(&mut self, cost: u64) {
        self.bucket.refund(cost);
        self.changed |= cost > 0;
    }

    /// Gives back the unused part of a charge, as [`Bucket::give_back`]; what is out is not touched.
    pub fn give_back(&mut self, unused: u64, price: u64, since: Timestamp) -> bool {
        let given = self.bucket.give_back(unused, price, since);
        self.changed |= given;
        given
    }

    /// As [`Bucket::repaid_from`].
    pub fn repaid_from(&self, cost: u64) -> Timestamp {
        self.bucket.repaid_from(cost)
    }

    /// Tokens in the parent: the largest cost that would pass now.
    pub fn remaining(&self) -> u64 {
        self.content() / self.terms.units
    }

    /// What is out.
    pub const fn ledger(&self) -> Option<&Ledger> {
        self.ledger.as_ref()
    }

    /// Whether the clock went back by more than a second, so that all instants were shifted.
    pub const fn stepped(&self) -> bool {
        self.stepped
    }

    /// The verdict on a demand, with the numbers of the bucket as it is now.
    pub fn verdict(&self, answer: Answer) -> Verdict {
        let verdict = self.bucket.verdict(answer);
        let late = |wait: Micros| Micros::new(if wait == Micros::ZERO { 0 } else { wait.get() + self.lag });
        if self.ledger.is_none() {
            let growth = match verdict.growth {
                _ if self.lag == 0 => verdict.growth,
                _ => verdict
                    .more_after(Some(self.limit))
                    .map_or(Growth::Full, |wait| Growth::After(late(wait))),
            };
            return Verdict { reset_after: late(verdict.reset_after), growth, ..verdict };
        }
        let remaining = self.remaining();
        let growth = match self.ask(Demand { cost: remaining + 1, max_wait: Micros::MAX }) {
            Answer::Wait(wait) => Growth::After(wait),
            Answer::Pass { .. } | Answer::Never => Growth::Full,
        };
        Verdict { remaining, growth, reset_after: self.reset_after(), ..verdict }
    }

    /// The wait until nothing is out and the bucket equals a fresh one.
    fn reset_after(&self) -> Micros {
        if let Some(window) = self.log_window() {
            let entries = self.bucket.reset_after().get();
            let wait = if self.out() > 0 {
                self.last_boundary().after(window).since(self.at).get()
            } else {
                entries
            };
            return Micros::new(if wait > 0 { wait + self.lag } else { 0 });
        }
        let fresh = self.wait(|parent| parent.ledger.is_none().then(|| parent.bucket.reset_after().get()));
        match self.late(fresh) {
            Answer::Wait(wait) => wait,
            Answer::Pass { .. } | Answer::Never => Micros::ZERO,
        }
    }

    /// Answers a node: takes what it gives back, counts its demand, and grants a lease.
    pub fn lend(&mut self, call: &LeaseCall) -> Grant {
        if let (Some(ledger), Some(boundary)) = (&mut self.ledger, call.boundary) {
            let rate = if call.wants == Wants::Nothing { call.rate } else { 0 };
            ledger.take_off(boundary, call.returned, rate);
            self.changed = true;
        }
        let lends = call.wants != Wants::Nothing && is_lent(self.limit);
        let lease = if lends { self.grant(call) } else { None };
        self.grant_of(lease)
    }

    /// What a node is told of the bucket as it is now, with its lease.
    pub fn grant_of(&self, lease: Option<Lease>) -> Grant {
        let wait = match self.ask(Demand { cost: 1, max_wait: Micros::MAX }) {
            Answer::Pass { .. } => Micros::ZERO,
            Answer::Wait(wait) => wait,
            Answer::Never => Micros::MAX,
        };
        let (now, at) = (Timestamp::from_micros(self.at.as_micros() - self.lag.cast_signed()), self.at);
        Grant { now, at, lease, remaining: self.remaining(), wait, reset_after: self.reset_after() }
    }

    fn grant(&mut self, call: &LeaseCall) -> Option<Lease> {
        let at = self.at;
        let mut ledger = self.ledger.unwrap_or_else(|| Ledger::new(call.lease_time, self.terms));
        ledger.longest_asked = ledger.longest_asked.max(call.lease_time);
        add_demand(&mut ledger.demand[1].leased, call.demand);
        let has_lease = call.boundary.is_some() && call.boundary == ledger.this.end;
        let this_end = ledger.this.end.or_else(|| self.boundary_after(at, ledger.lease_time))?;
        ledger.this.end = Some(this_end);
        let lease = match call.wants {
            Wants::Lease if has_lease => {
                let next_end = ledger.next.end.or_else(|| self.boundary_after(this_end, ledger.lease_time));
                next_end.and_then(|end| self.grant_next(&mut ledger, call, end))
            }
            // The lease that was to be more has ended.
            Wants::More if !has_lease => None,
            _ => self.grant_now(&mut ledger, call, this_end),
        };
        // A ledger without leases is kept as well: it knows the demand.
        self.bucket.touch();
        (self.ledger, self.changed) = (Some(ledger), true);
        lease
    }

    /// A lease for the rest of this period, or what makes the lease that the node has larger: what it will ask for at this pace
    /// until the boundary, where more than the next lease holds would be lost.
    fn grant_now(&mut self, ledger: &mut Ledger, call: &LeaseCall, ends: Timestamp) -> Option<Lease> {
        let is_more = call.wants == Wants::More;
        let (has, has_rate) = if is_more { (call.has, call.rate) } else { (0, 0) };
        let time_left = |amount: u64| share(amount, ends.since(self.at).get(), ledger.lease_time.get());
        let left = self.bucket.room_units().saturating_sub(ledger.out());
        let part = self.part(ledger, call, (ledger.this.rate, has_rate));
        if !part.is_worth_a_lease(self.terms.refill) {
            return None;
        }
        let (content, capacity, rate) = if self.terms.refill > 0 {
            let room = self.capacity().saturating_sub(ledger.out() + part.reserved(self.terms.units));
            let whole = part.capacity(self.capacity(), &self.terms);
            let wanted = if is_more { time_left(whole / 2).saturating_sub(has) } else { whole };
            let capacity = wanted.min(room);
            // What the parent holds above its new capacity moves with the lease.
            let debt = self.capacity().saturating_sub(self.bucket.room_units());
            let least = capacity.saturating_sub(debt);
            let fair = share(left, part.demand, part.total);
            (fair.max(least).min(capacity).min(left), capacity, part.rate)
        } else {
            let demand = if is_more { time_left(part.demand) } else { 2 * part.demand };
            let tokens = part.tokens(left, demand.saturating_sub(has));
            (tokens, tokens, 0)
        };
        if capacity < self.terms.units {
            return None; // no request could be decided on it
        }
        self.bucket.forgive_units(capacity - content);
        let lease = Lease { starts: None, ends, content, capacity, rate };
        ledger.this.out += lease.capacity;
        ledger.this.rate += lease.rate;
        Some(lease)
    }

    /// A lease for the next period. What the node has at the boundary is added to its content there.
    fn grant_next(&mut self, ledger: &mut Ledger, call: &LeaseCall, ends: Timestamp) -> Option<Lease> {
        let starts = ledger.this.end;
        let content = self.bucket.room_units().saturating_sub(ledger.out());
        let part = self.part(ledger, call, (ledger.next.rate, 0));
        let lease = if self.terms.refill > 0 {
            let room = self.capacity().saturating_sub(ledger.next.out + part.reserved(self.terms.units));
            let capacity = part.capacity(self.capacity(), &self.terms).min(room);
            let fair = share(content, part.rate, self.terms.parts.saturating_sub(ledger.next.rate));
            let moved = fair.min(capacity.saturating_sub(call.has)).min(content);
            Lease { starts, ends, content: moved, capacity, rate: part.rate }
        } else {
            // No more is kept than is out and not kept by another node.
            let kept = ledger.next.out - ledger.ahead;
            let keeps = call.has.min(ledger.this.out.saturating_sub(kept));
            let tokens = part.tokens(content, (2 * part.demand).saturating_sub(keeps));
            Lease { starts, ends, content: tokens, capacity: keeps + tokens, rate: 0 }
        };
        if lease.capacity < self.terms.units {
            return None; // no request could be decided on it
        }
        ledger.next.end = Some(ends);
        ledger.next.out += lease.capacity;
        ledger.next.rate += lease.rate;
        ledger.ahead += lease.content;
        Some(lease)
    }

    /// The node's part of what can be lent for a period, of whose rate `lent` parts are lent, `has` of them to the node.
    fn part(&self, ledger: &Ledger, call: &LeaseCall, (lent, has): (u64, u64)) -> Part {
        let Terms { units, refill, parts } = self.terms;
        let [last, this] = ledger.demand;
        let refilled = share(refill, ledger.lease_time.get(), units).min(MAX_DEMAND);
        // Of a bucket that is not used up, at most twice the demand is lent.
        let total = last.all().max(this.all()).max(refilled / 2).max(1);
        let (demand, exact) = (call.own_demand.min(MAX_DEMAND), last.exact.max(this.exact));
        let kept = share(parts, exact, total).max(u64::from(exact > 0));
        let free = parts.saturating_sub(lent).saturating_sub(kept);
        // The demand of nodes that come next is not known yet: half is for them, unless half is less than a token.
        let is_useful = share(refilled.min(self.limit.capacity()), free / 2, parts) > 0;
        let free = if call.boundary.is_none() && is_useful { free / 2 } else { free };
        let rate = share(parts, demand, total).saturating_sub(has).min(free);
        let whole_rate = has.saturating_add(rate).min(parts);
        Part { rate, whole_rate, demand, exact, total, tokens: share(refilled, whole_rate, parts) }
    }

    /// The first boundary that is at least half a lease time away; `None` if the window ends before.
    fn boundary_after(&self, at: Timestamp, lease_time: Micros) -> Option<Timestamp> {
        let time = lease_time.get().clamp(1, super::MAX_LEASE_TIME.get()).cast_signed();
        let boundary = (at.as_micros() + time / 2).div_euclid(time) * time + time;
        let boundary = Timestamp::from_micros(boundary);
        match self.bucket.last_instant_of_window() {
            Some(last) if last <= at => None,
            Some(last) => Some(boundary.min(last)),
            None => Some(boundary),
        }
    }

    /// Takes a cost out for one request that is decided elsewhere too. Answers the boundary at which it counts as spent if
    /// neither [`spend`](Self::spend) nor [`release`](Self::release) comes before; `None` when the cost does not fit.
    pub fn hold(&mut self, cost: u64, lease_time: Micros) -> Option<Timestamp> {
        let units = cost.saturating_mul(self.terms.units);
        if units > self.content() {
            return None;
        }
        let mut ledger = self.ledger.unwrap_or_else(|| Ledger::new(lease_time, self.terms));
        ledger.longest_asked = ledger.longest_asked.max(lease_time);
        // In the last microsecond of a window the boundary is its end: a hold that is lost counts in the next window.
        let window_end = || self.bucket.last_instant_of_window().map(|last| last.after(Micros::new(1)));
        let this_end = ledger.this.end;
        let this_end = this_end.or_else(|| self.boundary_after(self.at, ledger.lease_time));
        let this_end = this_end.or_else(window_end)?;
        ledger.this.end = Some(this_end);
        let next_end = ledger.next.end.or_else(|| self.boundary_after(this_end, ledger.lease_time));
        // Leases of the next period may have all of its capacity already. Then the hold ends with this one.
        let fits_next = ledger.next.out.saturating_add(units) <= self.capacity();
        let boundary = if let Some(end) = next_end.filter(|_| fits_next) {
            ledger.next.end = Some(end);
            ledger.next.out += units;
            ledger.ahead += units;
            end
        } else {
            ledger.this.out += units;
            this_end
        };
        self.bucket.touch();
        (self.ledger, self.changed) = (Some(ledger), true);
        Some(boundary)
    }

    /// The request of a hold passes: its cost is used. After the boundary it is used already, and the answer is `false`.
    pub fn spend(&mut self, cost: u64, boundary: Timestamp) -> bool {
        let units = self.take_off(cost, boundary);
        self.bucket.settle_units(units);
        units > 0
    }

    /// The request of a hold is refused elsewhere: its cost is back. After the boundary it is not, and the answer is `false`.
    pub fn release(&mut self, cost: u64, boundary: Timestamp) -> bool {
        self.take_off(cost, boundary) > 0
    }

    fn take_off(&mut self, cost: u64, boundary: Timestamp) -> u64 {
        let units = cost.saturating_mul(self.terms.units);
        let taken = self.ledger.as_mut().map_or(0, |ledger| ledger.take_off(boundary, units, 0));
        if taken > 0 {
            self.changed = true;
            self.ledger = self.ledger.filter(|ledger| !ledger.is_unused());
        }
        taken
    }

    /// What to remember; `None` when there is nothing that a fresh bucket does not know.
    pub fn close(self) -> Option<(State, Option<Ledger>)> {
        match self.ledger {
            Some(ledger) => Some((self.bucket.into_state(), Some(ledger))),
            None => self.bucket.close().map(|state| (state, None)),
        }
    }

    /// What to write after a request: what changed, and where nothing did, that the clock went back.
    pub fn written(mut self) -> Written {
        if self.changed && self.ledger.is_some() {
            self.bucket.touch();
        }
        match (self.changed, self.stepped) {
            (true, _) => Written::All(self.close()),
            (false, true) => Written::All(Some((self.bucket.close_shifted(), self.ledger))),
            (false, false) => Written::Nothing,
        }
    }

    /// What is left after a reset: only the ledger.
    pub fn reset(mut self) -> Option<(State, Option<Ledger>)> {
        self.bucket = Bucket::open(self.limit, None, self.at, self.window);
        self.bucket.touch();
        if let Some(ledger) = &mut self.ledger {
            ledger.rest = 0;
        }
        self.close()
    }
}

/// What one node may get.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// Parts of the refill rate that it may get, and these with what it has in this period.
    rate: u64,
    whole_rate: u64,
    demand: u64,
    exact: u64,
    total: u64,
    /// What the whole rate refills in a lease time, in whole tokens.
    tokens: u64,
}

fn add_demand(sum: &mut u64, tokens: u64) {
    *sum = sum.saturating_add(tokens).min(MAX_DEMAND);
}

impl Part {
    /// Whether a node without a lease gets one: less than a token in a lease time is decided at the store. A lease is renewed
    /// with less, since it keeps its content.
    const fn is_worth_a_lease(&self, refill: u64) -> bool {
        refill == 0 || self.tokens > 0
    }

    /// The capacity of a lease with a rate: the same part of the bucket's, but no more than the node needs for its demand and
    /// for what the rate refills until it is renewed. The rest of a burst is the parent's, for whichever node needs it.
    fn capacity(&self, of: u64, terms: &Terms) -> u64 {
        let need = 2 * (self.demand + self.tokens + 1);
        share(of, self.whole_rate, terms.parts).min(need.saturating_mul(terms.units))
    }

    /// Units of capacity that stay with the parent: one token while there are exact callers.
    fn reserved(&self, units: u64) -> u64 {
        if self.exact > 0 { units } else { 0 }
    }

    /// Tokens of a limit without rate: as many as the node wants, up to its part of half of those that are left. The other
    /// half is for requests that leases do not cover before they are renewed.
    fn tokens(&self, content: u64, wants: u64) -> u64 {
        let kept = share(content, self.exact, self.total).max(u64::from(self.exact > 0));
        share(content / 2, self.demand, self.total).min(content.saturating_sub(kept)).min(wants)
    }
}
