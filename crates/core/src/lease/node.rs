//! The node's side: a token bucket with an end.
//!
//! A node refills its lease at `rho * (1 - 1/256)`, never above the lease's capacity, and stops before the store counts
//! the lease as spent, whatever the network did to the reply. Tokens of a request in flight count in the lease until the
//! request is decided.
//!
//! A node does not know exactly when the store passes a boundary. From the instant at which the boundary may have passed
//! ([`Part::stops`] of the old lease) to the instant at which it certainly has ([`Part::starts`] of the new one), it spends
//! only what both leases allow. At the first of these instants the new lease takes over with
//! `min(c', x' + old content)`; of that, what the old lease did not have is locked until the second. Until then it refills
//! at the smaller of the two rates, up to the smaller of the two capacities. So a renewal leaves no gap.

use super::{DRIFT, Grant, LEASE_TIME, Lease, LeaseCall, MAX_LEASE_TIME, Terms, Wants, share};
use crate::limit::Limit;
use crate::tier::{Growth, Verdict};
use crate::time::{Micros, Timestamp};

/// Demand is counted in steps of this length.
const DEMAND_STEP: u64 = 100_000;
/// After a refusal, how long a request that asks the store keeps others from asking.
const PROBE: Micros = Micros::new(10_000);
/// A node with a lease does not ask a parent that has no more than capacity / `FEW` tokens.
const FEW: u64 = 64;
/// A demand is extrapolated from requests in no less than this.
const SHORTEST_STEP: u64 = 1_000;
/// A refusal is cached for at most this long.
const LONGEST_REFUSAL: Micros = Micros::new(1_000_000);

/// From which demand a key is leased, in tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heat {
    /// A key without a lease gets one.
    pub hot: u64,
    /// A key with a lease loses it.
    pub cold: u64,
}

impl Heat {
    /// `consistency: leased`: a few requests in a tenth of a second.
    pub const LEASED: Heat = Heat { hot: 40, cold: 10 };
    /// `consistency: auto`.
    pub const AUTO: Heat = Heat { hot: 400, cold: 100 };
    /// A store that is far away: every key, from the first request.
    pub const ANY: Heat = Heat { hot: 1, cold: 1 };
}

/// What a node does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It passes on the lease, unless another limit refuses it: [`NodeBucket::finish`] has to follow.
    Pass(Ticket),
    /// It is refused: the store has refused such a cost recently.
    Refuse(Verdict),
    /// The store decides, from the parent.
    Store,
}

/// Tokens that a request has taken from a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    units: u64,
    epoch: u64,
}

/// A call under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Called {
    /// The instant before it was sent, on the node's clock.
    sent: Timestamp,
    number: u64,
    wants: Wants,
}

impl Called {
    /// The instant before it was sent, on the node's clock.
    pub const fn sent(self) -> Timestamp {
        self.sent
    }
}

/// One bucket on a node: its lease, what was asked for, and what the store said last.
#[derive(Debug, Clone)]
pub struct NodeBucket {
    limit: u64,
    terms: Terms,
    this: Option<Part>,
    next: Option<Part>,
    /// Units of requests in flight; they count in the lease.
    held: u64,
    /// Changes when a lease ends without another: its tickets are void from then on.
    epoch: u64,
    called: Option<Called>,
    calls: u64,
    /// No call before this: the last one was lost, or nothing could be lent.
    quiet_until: Timestamp,
    /// The period in which nothing more could be lent.
    exhausted: Option<Timestamp>,
    demand: DemandCount,
    refusal: Option<Refusal>,
    told: Told,
    /// Tokens that ended unspent, until they are counted.
    stranded: u64,
}

/// A lease on the node's own clock.
#[derive(Debug, Clone, Copy)]
struct Part {
    content: u64,
    capacity: u64,
    rate: u64,
    /// On the store's clock: names it.
    boundary: Timestamp,
    /// From here on the store has certainly started it.
    starts: Timestamp,
    /// From here on the store may have ended it.
    stops: Timestamp,
    refilled: Timestamp,
    /// What the last refill left below one unit.
    rest: u64,
    /// Until it certainly started: what binds it beside its own numbers.
    overlap: Option<Overlap>,
}

/// The lease before, which may not have ended yet.
#[derive(Debug, Clone, Copy)]
struct Overlap {
    rate: u64,
    capacity: u64,
    /// Units of the new lease that the old one does not have.
    locked: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct DemandCount {
    step: i64,
    /// The first request of this step.
    since: Timestamp,
    /// Tokens in this step and in the one before.
    asked: [u64; 2],
    /// Since the last call.
    unreported: u64,
    /// Reported in the period that ends at this boundary.
    reported: (Option<Timestamp>, u64),
}

#[derive(Debug, Clone, Copy)]
struct Refusal {
    cost: u64,
    verdict: Verdict,
    at: Timestamp,
    until: Timestamp,
}

/// What the store said last of the parent.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    remaining: u64,
    reset_after: Micros,
    at: Timestamp,
}

impl Ticket {
    /// The epoch of the lease.
    pub const fn epoch(self) -> u64 {
        self.epoch
    }
}

impl DemandCount {
    fn add(&mut self, cost: u64, now: Timestamp) {
        self.roll(now);
        self.asked[0] = self.asked[0].saturating_add(cost);
        self.unreported = self.unreported.saturating_add(cost);
    }

    fn roll(&mut self, now: Timestamp) {
        let step = now.as_micros().div_euclid(DEMAND_STEP.cast_signed());
        self.asked = match step - self.step {
            0 => return,
            1 => [0, self.asked[0]],
            _ => [0, 0],
        };
        (self.step, self.since) = (step, now);
    }

    /// What a call reports: since the last one, and in the period that ends at this boundary. Without a lease it is what the
    /// last two steps counted, and the node's part of a rate is what a lease time at this pace will ask for.
    fn report(&mut self, boundary: Option<Timestamp>, has_rate: bool, now: Timestamp) -> (u64, u64) {
        let unreported = std::mem::take(&mut self.unreported);
        if boundary.is_none() {
            let demand = unreported.min(self.asked[0].saturating_add(self.asked[1]));
            self.reported = (None, demand);
            let elapsed = now.since(self.since).get().max(SHORTEST_STEP);
            let soon = if has_rate { share(self.asked[0], DEMAND_STEP, elapsed) } else { 0 };
            return (demand, demand.max(soon));
        }
        let before = if boundary == self.reported.0 { self.reported.1 } else { 0 };
        let own = unreported.saturating_add(before);
        self.reported = (boundary, own);
        (unreported, own)
    }

    /// Tokens per second, from the larger of the last two steps.
    fn per_second(&mut self, now: Timestamp) -> u64 {
        self.roll(now);
        self.asked[0].max(self.asked[1]).saturating_mul(1_000_000 / DEMAND_STEP)
    }
}

impl NodeBucket {
    /// A bucket of this limit without a lease. Its epochs count from `first_epoch`, so that a ticket of a bucket that was
    /// evicted or replaced is not one of this.
    pub fn new(limit: &Limit, first_epoch: u64) -> Self {
        let never = Timestamp::from_micros(i64::MIN);
        NodeBucket {
            limit: limit.capacity(),
            terms: Terms::of(limit),
            this: None,
            next: None,
            held: 0,
            epoch: first_epoch,
            called: None,
            calls: 0,
            quiet_until: never,
            exhausted: None,
            demand: DemandCount::default(),
            refusal: None,
            told: Told::default(),
            stranded: 0,
        }
    }

    /// Decides a request of this cost, if it can be decided here.
    pub fn ask(&mut self, cost: u64, now: Timestamp) -> Step {
        self.ask_now(cost, now).unwrap_or_else(|| {
            self.demand.add(cost, now);
            // After a refusal one request at a time asks the store, and the others stay refused meanwhile.
            self.refusal = self.refusal.filter(|refusal| now < refusal.until.after(LONGEST_REFUSAL));
            if let Some(refusal) = self.refusal.as_mut().filter(|refusal| cost >= refusal.cost) {
                refusal.until = now.after(PROBE);
            }
            Step::Store
        })
    }

    /// The store admitted a request: after a refusal, the next request asks it again.
    pub fn admitted(&mut self, now: Timestamp) {
        if let Some(refusal) = &mut self.refusal {
            refusal.until = refusal.until.min(now);
        }
    }

    /// The same; `None`, and nothing is counted, where the store would decide.
    #[inline]
    pub fn ask_now(&mut self, cost: u64, now: Timestamp) -> Option<Step> {
        self.roll(now);
        let price = cost.saturating_mul(self.terms.units);
        let step = match self.take(price) {
            Some(ticket) => Step::Pass(ticket),
            None => {
                let refusal = self.refusal.filter(|refusal| refusal.holds(cost, now))?;
                Step::Refuse(self.refuse(&refusal, price, now))
            }
        };
        self.demand.add(cost, now);
        Some(step)
    }

    /// The ticket of a cost that was taken in an epoch.
    pub fn ticket(&self, cost: u64, epoch: u64) -> Ticket {
        Ticket { units: cost.saturating_mul(self.terms.units), epoch }
    }

    #[inline]
    fn take(&mut self, units: u64) -> Option<Ticket> {
        let part = self.this.as_mut().filter(|part| part.spendable() >= units)?;
        part.content -= units;
        self.held += units;
        Some(Ticket { units, epoch: self.epoch })
    }

    /// The request of a ticket is decided: its tokens are spent, or back in the lease if that has not ended.
    pub fn finish(&mut self, ticket: Ticket, passes: bool, now: Timestamp) {
        if ticket.epoch == self.epoch {
            self.roll(now);
        }
        if ticket.epoch != self.epoch {
            self.stranded += if passes { 0 } else { ticket.units / self.terms.units };
            return;
        }
        self.held = self.held.saturating_sub(ticket.units);
        if let Some(part) = self.this.as_mut().filter(|_| !passes) {
            let lost = part.put(ticket.units, self.held);
            self.stranded += lost / self.terms.units;
        }
    }

    /// Brings the lease to `now`: refills it, has the next one take over, drops one that has ended.
    fn roll(&mut self, now: Timestamp) {
        if self.this.is_none() {
            // Its predecessor is gone, so it waits until it has certainly started.
            self.this = self.next.take_if(|next| now >= next.starts);
        }
        let (terms, held) = (self.terms, self.held);
        while let Some(this) = &mut self.this {
            this.roll(&terms, held, now.min(this.stops));
            if now < this.stops {
                return;
            }
            match self.next.take() {
                Some(next) => {
                    let lost = this.be_taken_over(next, held);
                    self.stranded += lost / terms.units;
                }
                None => return self.drop_lease(),
            }
        }
    }

    fn drop_lease(&mut self) {
        self.stranded += self.this.take().map_or(0, |part| part.content / self.terms.units);
        self.held = 0;
        self.epoch += 1;
    }

    /// The call to send now, if one is due: for a first lease of a hot key, for the next period when no more than `lead` is
    /// left of this one, or for more when this one runs dry while the parent has tokens.
    pub fn call(
        &mut self,
        heat: Heat,
        lead: Micros,
        round_trip: Micros,
        now: Timestamp,
    ) -> Option<(LeaseCall, Called)> {
        self.roll(now);
        if self.called.is_some() || now < self.quiet_until {
            return None;
        }
        let per_second = self.demand.per_second(now);
        let wants = match &self.this {
            Some(part) if part.overlap.is_some() || per_second < heat.cold => return None,
            Some(part) if self.next.is_none() && part.stops.since(now) <= lead => Wants::Lease,
            Some(part) if self.needs_more(part, per_second, round_trip) => Wants::More,
            None if self.next.is_none() && per_second >= heat.hot => Wants::Lease,
            _ => return None,
        };
        Some(self.send(wants, round_trip, now))
    }

    /// Whether the lease will soon be dry while the parent has tokens.
    fn needs_more(&self, part: &Part, per_second: u64, round_trip: Micros) -> bool {
        let soon = share(per_second, LEASE_TIME.get() / 8 + round_trip.get(), 1_000_000);
        part.content / self.terms.units < soon
            && self.told.remaining > self.limit / FEW
            && self.exhausted != Some(part.boundary)
    }

    /// The call that gives the lease back, if the node stops or the key has become cold.
    pub fn give_back(
        &mut self,
        heat: Heat,
        stops: bool,
        round_trip: Micros,
        now: Timestamp,
    ) -> Option<(LeaseCall, Called)> {
        self.roll(now);
        let is_cold = self.demand.per_second(now) < heat.cold;
        if self.called.is_some() || !(stops || is_cold) {
            return None;
        }
        if let Some(next) = self.next.take_if(|_| stops) {
            // This period's lease is returned by the next call.
            let this = self.this.replace(next);
            let call = self.send(Wants::Nothing, round_trip, now);
            self.this = this;
            return Some(call);
        }
        if self.next.is_some() {
            return None;
        }
        // Without a lease, or while the store may not have started it.
        self.this.as_ref().filter(|part| part.overlap.is_none())?;
        let call = self.send(Wants::Nothing, round_trip, now);
        self.this = None;
        self.drop_lease();
        Some(call)
    }

    fn send(&mut self, wants: Wants, round_trip: Micros, now: Timestamp) -> (LeaseCall, Called) {
        let boundary = self.this.map(|part| part.boundary);
        let (demand, own_demand) = self.demand.report(boundary, self.terms.refill > 0, now);
        let returned = match (wants, &mut self.this) {
            (Wants::Nothing, Some(part)) => part.content,
            (Wants::Lease, Some(part)) => part.give_up_surplus(demand.saturating_mul(2 * self.terms.units)),
            _ => 0,
        };
        let this = self.this;
        let call = LeaseCall {
            boundary,
            returned,
            rate: this.map_or(0, |part| part.rate),
            has: this.map_or(0, |part| self.content_of(&part)),
            demand,
            own_demand,
            wants,
            lease_time: lease_time(round_trip),
        };
        self.calls += 1;
        let called = Called { sent: now, number: self.calls, wants };
        self.called = (wants != Wants::Nothing).then_some(called);
        (call, called)
    }

    /// The store's reply. One that comes after [`gave_up`](Self::gave_up) is not used.
    pub fn granted(&mut self, called: Called, grant: &Grant, now: Timestamp) {
        if self.called.take_if(|waits| *waits == called).is_none() {
            return self.strand(grant.lease);
        }
        self.roll(now);
        self.told = Told { remaining: grant.remaining, reset_after: grant.reset_after, at: now };
        let lease = grant.lease.map(|lease| Part::new(&lease, grant, called.sent, now));
        // A reply may come after the end of its lease.
        let lease = lease.filter(|part| now < part.stops);
        self.renew_refusal(grant, lease, now);
        match (lease, grant.lease) {
            (Some(part), Some(Lease { starts: Some(_), .. })) => self.next = Some(part),
            (Some(part), _) if called.wants == Wants::More => match &mut self.this {
                Some(this) if this.boundary == part.boundary => this.add(&part),
                _ => self.strand(grant.lease),
            },
            (Some(part), _) => {
                // A lease that the store does not know is void.
                self.drop_lease();
                self.demand.reported.0 = Some(part.boundary);
                self.this = Some(part);
            }
            (None, late) if called.wants == Wants::More => {
                self.strand(late);
                self.exhausted = self.this.map(|part| part.boundary);
            }
            (None, late) => {
                self.strand(late);
                self.quiet_until = now.after(super::LEASE_TIME);
            }
        }
    }

    /// Counts the tokens of a lease that is not used.
    fn strand(&mut self, lease: Option<Lease>) {
        self.stranded += lease.map_or(0, |lease| lease.content / self.terms.units);
    }

    /// The reply to a call is not waited for any longer.
    pub fn gave_up(&mut self, called: Called, now: Timestamp) {
        if self.called.take_if(|waits| *waits == called).is_some() {
            self.quiet_until = now.after(super::LEASE_TIME);
        }
    }

    /// The store refused a request of this cost: the same is not asked again for a while.
    pub fn refused(&mut self, cost: u64, verdict: Verdict, now: Timestamp) {
        let until = self.refusal_end(verdict.retry_after, self.this, now);
        self.refusal = Some(Refusal { cost, verdict, at: now, until });
    }

    /// Until when a refusal is cached. What the parent gains meanwhile is in the next lease of a node with a rate, so such
    /// a node asks for the parent's tokens at most once in a lease.
    fn refusal_end(&self, wait: Option<Micros>, lease: Option<Part>, now: Timestamp) -> Timestamp {
        let end = now.after(wait.unwrap_or(LONGEST_REFUSAL).min(LONGEST_REFUSAL));
        lease
            .filter(|part| part.rate > 0)
            .map_or(end, |part| end.max(part.stops.min(now.after(LONGEST_REFUSAL))))
    }

    /// A refund or a reset: what was refused may pass.
    pub fn forget_refusal(&mut self) {
        self.refusal = None;
    }

    /// Each reply says how long the parent needs for one token, which renews the cached refusal.
    fn renew_refusal(&mut self, grant: &Grant, lease: Option<Part>, now: Timestamp) {
        // The few tokens that rounding leaves in the parent are not worth a call of a node with a lease.
        let few = if lease.is_some() { self.limit / FEW } else { 0 };
        if grant.remaining > few {
            self.refusal = self.refusal.filter(|refusal| refusal.cost > grant.remaining);
            return;
        }
        let until = self.refusal_end(Some(grant.wait), lease, now);
        let verdict = Verdict {
            allowed: false,
            limit: self.limit,
            remaining: 0,
            retry_after: Some(grant.wait),
            reset_after: grant.reset_after,
            delay: Micros::ZERO,
            growth: Growth::After(grant.wait),
        };
        self.refusal = Some(Refusal { cost: 1, verdict, at: now, until });
    }

    /// The numbers of a cached refusal now. The lease may admit such a cost before the parent does.
    fn refuse(&self, refusal: &Refusal, price: u64, now: Timestamp) -> Verdict {
        let elapsed = now.since(refusal.at);
        let parent = refusal.verdict.retry_after.map(|wait| {
            let left = wait.saturating_sub(elapsed);
            if left > Micros::ZERO { left } else { refusal.until.since(now) }
        });
        let own = self.this.as_ref().and_then(|part| part.wait(price, &self.terms, now));
        let retry_after = match (parent, own) {
            (Some(parent), Some(own)) => Some(parent.min(own)),
            (None, own) => own,
            (parent, None) => parent,
        };
        let growth = retry_after.map_or(Growth::Full, Growth::After);
        let reset_after = refusal.verdict.reset_after.saturating_sub(elapsed);
        Verdict { retry_after, growth, reset_after, remaining: self.remaining(0), ..refusal.verdict }
    }

    /// The answer to a request that another limit refuses: nothing is taken.
    pub fn peek(&mut self, cost: u64, now: Timestamp) -> Verdict {
        self.roll(now);
        let verdict = self.verdict(now);
        let allowed = cost <= verdict.remaining;
        let retry_after = Some(if allowed { Micros::ZERO } else { verdict.reset_after.max(Micros::new(1)) });
        Verdict { allowed, retry_after, ..verdict }
    }

    /// A request that was counted is asked again: it was decided in part, and that is taken back.
    pub fn uncount(&mut self, cost: u64) {
        self.demand.asked[0] = self.demand.asked[0].saturating_sub(cost);
        self.demand.unreported = self.demand.unreported.saturating_sub(cost);
    }

    /// The verdict on a request that passed on the lease.
    pub fn verdict(&self, now: Timestamp) -> Verdict {
        Verdict {
            allowed: true,
            limit: self.limit,
            remaining: self.remaining(self.told.remaining),
            retry_after: Some(Micros::ZERO),
            reset_after: self.told.reset_after.saturating_sub(now.since(self.told.at)),
            delay: Micros::ZERO,
            growth: Growth::Full,
        }
    }

    fn remaining(&self, parent: u64) -> u64 {
        let own = self.this.as_ref().map_or(0, |part| part.spendable() / self.terms.units);
        parent.saturating_add(own).min(self.limit)
    }

    /// Units in the lease, with those that requests in flight may give back.
    pub fn content(&mut self, now: Timestamp) -> u64 {
        self.roll(now);
        self.this.as_ref().map_or(0, |part| self.content_of(part))
    }

    /// Tokens that a request may take.
    pub fn tokens(&mut self, now: Timestamp) -> u64 {
        self.roll(now);
        self.remaining(0)
    }

    /// Of more than its capacity that was taken in the period before, a lease gets back no more than its capacity.
    fn content_of(&self, part: &Part) -> u64 {
        part.content.saturating_add(self.held).min(part.capacity)
    }

    /// Tokens that ended unspent since this was asked last.
    pub fn take_stranded(&mut self) -> u64 {
        std::mem::take(&mut self.stranded)
    }

    /// Whether a call is under way.
    pub const fn is_calling(&self) -> bool {
        self.called.is_some()
    }

    /// Whether it has a lease, so that its calls report what requests ask for.
    pub const fn is_leased(&self) -> bool {
        self.this.is_some() || self.next.is_some()
    }

    /// Whether nothing would be lost by forgetting the bucket.
    pub fn is_idle(&mut self, now: Timestamp) -> bool {
        self.roll(now);
        let refuses = self.refusal.is_some_and(|refusal| now < refusal.until);
        !self.is_leased() && self.called.is_none() && !refuses && self.demand.per_second(now) == 0
    }
}

impl Part {
    /// A lease on the clock of a node that sent its call and received the reply at these instants.
    fn new(lease: &Lease, grant: &Grant, sent: Timestamp, now: Timestamp) -> Self {
        let shorter = |time: Micros| Micros::new(time.get() - time.get().div_ceil(DRIFT));
        let longer = |time: Micros| Micros::new(time.get() + time.get().div_ceil(DRIFT - 1));
        let starts = lease.starts.map_or(now, |starts| now.after(longer(starts.since(grant.now))));
        Part {
            content: lease.content,
            capacity: lease.capacity,
            rate: lease.rate,
            boundary: lease.ends,
            starts,
            stops: sent.after(shorter(lease.ends.since(grant.at))),
            refilled: starts,
            rest: 0,
            overlap: None,
        }
    }

    /// Units that a request may take.
    fn spendable(&self) -> u64 {
        self.content - self.overlap.map_or(0, |overlap| overlap.locked)
    }

    /// Another lease of the same period: they are one.
    fn add(&mut self, other: &Part) {
        self.content += other.content;
        self.capacity += other.capacity;
        self.rate += other.rate;
    }

    /// Takes what exceeds a need out of the lease, tokens and capacity: the next leases of all nodes share it by demand.
    fn give_up_surplus(&mut self, need: u64) -> u64 {
        let surplus = self.content.saturating_sub(need);
        self.content -= surplus;
        self.capacity -= surplus;
        surplus
    }

    /// The next lease takes over at the instant from which this one may have ended. Answers how many units do not fit it.
    fn be_taken_over(&mut self, next: Part, held: u64) -> u64 {
        let before = std::mem::replace(self, next);
        let lost = self.put(before.content, held);
        let locked = self.content.saturating_sub(before.spendable());
        self.refilled = before.stops;
        self.overlap = Some(Overlap { rate: before.rate, capacity: before.capacity, locked });
        lost
    }

    /// Adds units, as many as fit beside those of requests in flight. Answers how many do not.
    fn put(&mut self, units: u64, held: u64) -> u64 {
        let all = self.content.saturating_add(units);
        self.content = all.min(self.capacity.saturating_sub(held));
        all - self.content
    }

    /// Time passes up to an instant.
    fn roll(&mut self, terms: &Terms, held: u64, to: Timestamp) {
        if let Some(overlap) = self.overlap {
            let room =
                self.capacity.min(overlap.capacity.saturating_add(overlap.locked)).saturating_sub(held);
            self.refill(terms, self.rate.min(overlap.rate), room, to.min(self.starts));
            if to < self.starts {
                return;
            }
            self.overlap = None;
        }
        self.refill(terms, self.rate, self.capacity.saturating_sub(held), to);
    }

    /// Refills at a rate, up to the room that capacity and requests in flight leave.
    fn refill(&mut self, terms: &Terms, rate: u64, room: u64, to: Timestamp) {
        let elapsed = to.since(self.refilled).get();
        if elapsed == 0 {
            return;
        }
        self.refilled = to;
        let slower = u128::from(terms.parts) * u128::from(DRIFT);
        let credit = u128::from(elapsed) * u128::from(speed(terms, rate)) + u128::from(self.rest);
        let units = u64::try_from(credit / slower).unwrap_or(u64::MAX);
        let full = units >= room.saturating_sub(self.content);
        self.content = if full { self.content.max(room) } else { self.content + units };
        self.rest = if full { 0 } else { u64::try_from(credit % slower).expect("below the parts") };
    }

    /// The wait until it has these units; `None` if it ends before.
    fn wait(&self, units: u64, terms: &Terms, now: Timestamp) -> Option<Micros> {
        let speed = u128::from(speed(terms, self.rate));
        let missing = u128::from(units.saturating_sub(self.spendable()));
        if units > self.capacity || speed == 0 {
            return None;
        }
        let credit = missing * u128::from(terms.parts) * u128::from(DRIFT);
        let wait = Micros::new(u64::try_from(credit.div_ceil(speed)).ok()?.max(1));
        (now.after(wait) < self.stops).then_some(wait)
    }
}

/// The lease time for a store at this distance.
pub fn lease_time(round_trip: Micros) -> Micros {
    Micros::new(super::LEASE_TIME.get().max(4 * round_trip.get())).min(MAX_LEASE_TIME)
}

/// Units that a rate refills in a microsecond, in 1/256 of its parts.
fn speed(terms: &Terms, rate: u64) -> u64 {
    terms.refill.saturating_mul(rate).saturating_mul(DRIFT - 1)
}

impl Refusal {
    fn holds(&self, cost: u64, now: Timestamp) -> bool {
        cost >= self.cost && now < self.until
    }
}
