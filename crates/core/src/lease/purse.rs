//! What a node holds of one key: tokens of its bucket, or places in its queue.
//!
//! ```text
//! request -> ask -> Pass      what is held covers it
//!                   Refuse    the store refused the same a moment ago
//!                   Call      send `call`; when the answer is here, ask again
//!                   Wait      a call is under way; when it is over, ask again
//!                   Exact     too cold to borrow for: the store decides this one
//! ```
//!
//! Everything that a node decides is decided here; what is left to whoever has a purse is to send calls, to wait, and to
//! tell the time.

use super::block::{Block, Turn};
use super::holding::{Holding, LONGEST_REFUSAL, Parting, Spend, Temper};
use super::{Call, Loan, NodeId, TERM, is_lent};
use crate::algorithm::Demand;
use crate::limit::{Algorithm, Limit};
use crate::tier::{Growth, Mark, Verdict};
use crate::time::{Micros, Timestamp};

/// So often a request looks at what is held, before the store decides it.
pub const ROUNDS: usize = 3;

/// Places that leave in this time are taken together, in microseconds: less than a block lasts.
const LASTS: u64 = 400_000;

/// What a node holds of one key. Under another limit it is another purse.
#[derive(Debug, Clone)]
pub struct Purse {
    limit: Limit,
    holding: Holding,
    /// Places in the queue, of a leaky bucket.
    block: Option<Block>,
    /// How long the queue was at an instant, for somebody who would not wait that long.
    queue: Option<(Micros, Verdict, Timestamp)>,
}

/// What to do with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It passes on what is held.
    Pass(Taken, Verdict),
    /// It is refused, as the store did a moment ago.
    Refuse(Verdict),
    /// Ask the store for what it needs.
    Call,
    /// Wait for the call that is under way.
    Wait,
    /// Let the store decide.
    Exact,
}

/// What a request took, in case it has to be put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    pub(super) cost: u64,
    /// Of tokens, the [`Holding::epoch`] they were taken in; of places, where they stand in their block.
    pub(super) ticket: u64,
}

impl Taken {
    /// What a request of this cost took under this ticket.
    pub const fn new(cost: u64, ticket: u64) -> Self {
        Taken { cost, ticket }
    }

    /// The number under which the purse knows it.
    pub const fn ticket(&self) -> u64 {
        self.ticket
    }
}

impl Purse {
    /// Nothing is held yet.
    pub fn new(limit: Limit) -> Self {
        Purse { limit, holding: Holding::new(), block: None, queue: None }
    }

    /// The limit that is borrowed under.
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// What to do with a request. Its first look also counts it towards the key's pace, and is when it `asked`.
    #[inline]
    pub fn ask(
        &mut self,
        demand: Demand,
        temper: Temper,
        asked: &mut Option<Timestamp>,
        now: Timestamp,
    ) -> Step {
        let cost = demand.cost;
        if cost == 0 {
            return Step::Exact;
        }
        let asked = *asked.get_or_insert_with(|| {
            self.holding.note(cost, temper, now);
            now
        });
        if let Some(step) = self.place_for(demand, now).or_else(|| self.too_long(demand, now)) {
            return step;
        }
        match self.holding.spend(cost, asked, now) {
            Spend::Pass(taken) => Step::Pass(taken, self.verdict(now)),
            Spend::Refuse(verdict) => Step::Refuse(verdict),
            Spend::Call => Step::Call,
            Spend::Wait => Step::Wait,
            Spend::Exact => Step::Exact,
        }
    }

    /// The same for a caller that does not wait. Where neither what is held nor a cached refusal answers the request, the
    /// step is [`Step::Exact`], and the request is not counted.
    #[inline]
    pub fn ask_now(&mut self, demand: Demand, temper: Temper, now: Timestamp) -> Step {
        let step = self.ask(demand, temper, &mut Some(now), now);
        if !matches!(step, Step::Pass(..) | Step::Refuse(_)) {
            return Step::Exact;
        }
        self.holding.note(demand.cost, temper, now);
        step
    }

    /// What the block that is held has for a request; nothing where there is none.
    fn place_for(&mut self, Demand { cost, max_wait }: Demand, now: Timestamp) -> Option<Step> {
        match self.block.as_mut()?.take(cost, max_wait, now) {
            Turn::Place { delay, ticket } => {
                Some(Step::Pass(Taken { cost, ticket }, Verdict { delay, ..self.verdict(now) }))
            }
            Turn::TooLate(wait) => {
                Some(Step::Refuse(Verdict { allowed: false, retry_after: Some(wait), ..self.verdict(now) }))
            }
            Turn::None => None,
        }
    }

    /// The refusal of somebody who would not wait as long as the queue was a moment ago: it has only moved on since.
    fn too_long(&self, demand: Demand, now: Timestamp) -> Option<Step> {
        let (delay, verdict, then) = self.queue?;
        let elapsed = Micros::new(now.as_micros().abs_diff(then.as_micros()));
        let wait = delay.saturating_sub(elapsed).saturating_sub(demand.max_wait);
        let holds = wait > Micros::ZERO && elapsed < LONGEST_REFUSAL && demand.cost <= verdict.remaining;
        let reset_after = verdict.reset_after.saturating_sub(elapsed);
        let growth = match verdict.more_after(None) {
            Some(wait) => Growth::After(wait.saturating_sub(elapsed).max(Micros::new(1))),
            None => Growth::Full,
        };
        holds.then_some(Step::Refuse(Verdict { retry_after: Some(wait), reset_after, growth, ..verdict }))
    }

    fn verdict(&self, now: Timestamp) -> Verdict {
        self.holding.verdict(self.limit.capacity(), now)
    }

    /// Puts back what a request took and, refused elsewhere, did not need. It is lost when the store was told meanwhile
    /// that it is spent, or has let go of the lease it is from; a place, when somebody stands behind it already.
    pub fn put_back(&mut self, taken: Taken) {
        if is_lent(&self.limit) {
            self.holding.put_back(taken);
        } else if let Some(block) = &mut self.block {
            block.put_back(taken);
        }
    }

    /// The call to send now, for a request of this cost that waits for it; with none, to tell what was spent.
    pub fn call(&mut self, node: NodeId, sequence: u64, cost: u64, now: Timestamp) -> Call {
        let mut call = self.holding.call(node, sequence, cost, now);
        if let Algorithm::LeakyBucket { refill, .. } = self.limit.algorithm() {
            // No more than leave while the block lasts: nobody may want a place before its turn is near.
            let leave = refill.rate().saturating_mul(LASTS) / refill.units();
            call.want = self.holding.places(cost, call.want).min(leave.max(cost));
        }
        call
    }

    /// The call to send although nobody waits for it: before the lease runs dry or ends.
    #[inline]
    pub fn renewal(&mut self, node: NodeId, sequence: impl FnOnce() -> u64, now: Timestamp) -> Option<Call> {
        if is_lent(&self.limit) { self.holding.renewal(node, sequence, now) } else { None }
    }

    /// Whether there is something to give back, and nobody has asked for a while or nobody will.
    pub fn parts(&self, parting: Parting, now: Timestamp) -> bool {
        self.held_at(now) > 0 && self.holding.parts(parting, now)
    }

    /// The call that gives everything back, when nobody has asked for a while or nobody will. Places are not given back:
    /// they pass by themselves.
    pub fn farewell(
        &mut self,
        node: NodeId,
        sequence: impl FnOnce() -> u64,
        parting: Parting,
        now: Timestamp,
    ) -> Option<Call> {
        if parting == Parting::Final {
            self.strand_places(now);
        }
        self.holding.farewell(node, sequence, parting, now)
    }

    /// The store answered a call to lend, with its verdict on a request of the least cost, and with the mark of a charge at
    /// that instant. An answer to any other call than the one under way is too late, and is not spent.
    pub fn lent(&mut self, call: &Call, loan: Loan, verdict: &Verdict, mark: Mark, now: Timestamp) {
        let verdict = &verdict.resolved(Some(&self.limit));
        let waited_for = self.holding.answered(call.sequence, loan, verdict, mark, now).is_some();
        // One that is too late may be about another limit.
        if waited_for && loan.granted < call.least {
            if verdict.allowed {
                self.holding.unlent(now);
            } else {
                self.holding.refused(call.least, *verdict, now);
            }
        }
    }

    /// The store answered a call for places, with its verdict on all of them: what that means for the request of this
    /// max_wait that waits. Nothing, if there was no room for a block: perhaps there is for one.
    pub fn placed(
        &mut self,
        call: &Call,
        max_wait: Micros,
        verdict: &Verdict,
        now: Timestamp,
    ) -> Option<Step> {
        let nothing = Loan { granted: 0, kept: 0, term: TERM };
        let verdict = &verdict.resolved(Some(&self.limit));
        let sent = self.holding.answered(call.sequence, nothing, verdict, Mark::default(), now);
        if !verdict.allowed && sent.is_none() {
            return Some(Step::Refuse(*verdict)); // of nobody else: it may be about another limit
        }
        if !verdict.allowed {
            let demand = Demand { cost: call.want, max_wait };
            if self.note_queue(demand, verdict, now) {
                return Some(Step::Refuse(*verdict));
            }
            if call.want > call.least {
                return None;
            }
            self.holding.refused(call.least, *verdict, now);
            return Some(Step::Refuse(*verdict));
        }
        let Some(sent) = sent else {
            self.holding.strand(call.want);
            return None;
        };
        self.strand_places(now);
        self.block = Block::new(&self.limit, call.want, call.least, verdict, sent, now);
        let ticket = self.block.as_ref()?.first_ticket();
        Some(Step::Pass(Taken { cost: call.least, ticket }, *verdict))
    }

    /// Nobody waits any more for the answer to a call; if it comes, it is not spent.
    pub fn gave_up(&mut self, call: &Call, now: Timestamp) {
        self.holding.gave_up(call.sequence, now);
    }

    /// The store itself refused a request: the same need not be asked again for a while.
    pub fn refused(&mut self, demand: Demand, verdict: Verdict, now: Timestamp) {
        let verdict = verdict.resolved(Some(&self.limit));
        if !self.note_queue(demand, &verdict, now) {
            self.holding.refused(demand.cost, verdict, now);
        }
    }

    /// Whether the store refused although there is room: then the queue is too long for this max_wait, and for any less.
    fn note_queue(&mut self, Demand { cost, max_wait }: Demand, verdict: &Verdict, now: Timestamp) -> bool {
        let wait = verdict.retry_after.filter(|_| !is_lent(&self.limit) && verdict.remaining >= cost);
        if let Some(wait) = wait {
            self.queue = Some((Micros::new(wait.get().saturating_add(max_wait.get())), *verdict, now));
        }
        wait.is_some()
    }

    /// Something was refunded: what was refused may pass now.
    pub fn forget_refusal(&mut self) {
        self.queue = None;
        self.holding.forget_refusal();
    }

    /// What went to waste since this was asked last: tokens that ended unspent or came too late, and places that passed
    /// by. Whatever a fault costs a fleet shows here.
    pub fn stranded(&mut self, now: Timestamp) -> u64 {
        if let Some(block) = &mut self.block {
            self.holding.strand(block.lapsed(now));
        }
        self.holding.stranded(now)
    }

    fn strand_places(&mut self, now: Timestamp) {
        if let Some(mut block) = self.block.take() {
            self.holding.strand(block.lapsed(now) + block.places_at(now));
        }
    }

    /// Where a charge at the last answer of the store would stand, on its clock.
    pub const fn mark(&self) -> Mark {
        self.holding.mark()
    }

    /// Tokens that may be spent, or places that may be taken.
    pub fn held_at(&self, now: Timestamp) -> u64 {
        self.holding.tokens_at(now) + self.block.map_or(0, |block| block.places_at(now))
    }

    /// Whether a call is under way.
    pub const fn is_calling(&self) -> bool {
        self.holding.is_calling()
    }

    /// Whether its decisions are made here.
    pub const fn is_hot(&self) -> bool {
        self.holding.is_hot()
    }

    /// Whether nothing would be lost by forgetting it.
    pub fn is_idle(&self, now: Timestamp) -> bool {
        self.holding.is_idle(now) && self.held_at(now) == 0
    }
}
