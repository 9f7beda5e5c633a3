//! Tokens that a node has borrowed of one bucket, and what it does with them.
//!
//! One call answers all who wait for it. Those whom its loan covers pass. If the store refused, or had less left than a
//! request costs, the others are refused too, however late they come to look: a crowd makes no more calls than one
//! caller would.
//!
//! All instants are of one clock of the node, which never stands still and never jumps: it need not agree with
//! anybody else's.

use super::pace::Pace;
use super::purse::Taken;
use super::{Call, DRIFT, Loan, NodeId, TERM};
use crate::tier::{Growth, Mark, Verdict};
use crate::time::{Micros, Timestamp};

/// Tokens for so long are borrowed.
const AHEAD: u64 = 50_000;
/// The longest time a refusal is remembered.
pub(super) const LONGEST_REFUSAL: Micros = Micros::new(1_000_000);
/// A bucket that lent less than was wanted is asked again after this time, unless a request needs it sooner.
const SCARCE: Micros = Micros::new(10_000);
/// A lease that nobody has spent from for so long is given back.
const IDLE: Micros = Micros::new(200_000);
const SECOND: u64 = 1_000_000;

/// When a key is worth a lease: from so many tokens a second on, and until it falls below so many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Temper {
    /// A cold key gets hot here.
    pub hot: u64,
    /// A hot key gets cold here.
    pub cold: u64,
}

impl Temper {
    /// `consistency: leased`: a key that is asked for a few times in a tenth of a second.
    pub const LEASED: Temper = Temper { hot: 40, cold: 10 };
    /// `consistency: auto`: a key that is worth it, and does not flutter.
    pub const AUTO: Temper = Temper { hot: 400, cold: 100 };
}

/// What to do with a request: [`Step`](super::Step), without what is told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spend {
    Pass(Taken),
    Refuse(Verdict),
    Call,
    Wait,
    Exact,
}

/// What a node holds of one bucket.
#[derive(Debug, Clone)]
pub(super) struct Holding {
    /// Unspent, and good until `ends`.
    tokens: u64,
    ends: Timestamp,
    /// How long the lease was good for, when it was lent.
    lasts: u64,
    /// Begins anew when what was taken before is lost to this node: a call tells the store that it is spent, or an answer
    /// says that the store had forgotten it.
    epoch: u64,
    flight: Option<Flight>,
    pace: Pace,
    hot: bool,
    refusal: Option<Refusal>,
    /// What the store said last.
    told: Told,
    /// No call without need before this.
    quiet_until: Timestamp,
    /// The store lends to no more nodes until about then, though it has something left.
    unlent_until: Timestamp,
    /// Tokens that went to waste, until somebody asks.
    stranded: u64,
}

/// A call under way.
#[derive(Debug, Clone, Copy)]
struct Flight {
    sequence: u64,
    /// Read before it was sent.
    sent: Timestamp,
    left: u64,
    returned: u64,
    want: u64,
}

#[derive(Debug, Clone, Copy)]
struct Refusal {
    cost: u64,
    verdict: Verdict,
    at: Timestamp,
    until: Timestamp,
}

#[derive(Debug, Clone, Copy, Default)]
struct Told {
    remaining: u64,
    reset_after: Micros,
    at: Timestamp,
    /// Where a charge of then would stand, on the store's clock.
    mark: Mark,
}

impl Holding {
    /// Nothing is held yet.
    pub(super) fn new() -> Self {
        let never = Timestamp::from_micros(i64::MIN);
        Holding {
            tokens: 0,
            ends: never,
            lasts: 0,
            epoch: 0,
            flight: None,
            pace: Pace::default(),
            hot: false,
            refusal: None,
            told: Told::default(),
            quiet_until: never,
            unlent_until: never,
            stranded: 0,
        }
    }

    /// Counts a request towards the key's pace. Once for each, however often it then [`spend`](Self::spend)s.
    #[inline]
    pub(super) fn note(&mut self, cost: u64, temper: Temper, now: Timestamp) {
        self.pace.note(cost, now);
        let pace = self.pace.per_second(now);
        self.hot = if self.hot { pace >= temper.cold } else { pace >= temper.hot };
    }

    /// What to do with a request of this cost that was first looked at then.
    #[inline]
    pub(super) fn spend(&mut self, cost: u64, asked: Timestamp, now: Timestamp) -> Spend {
        let tokens = self.tokens_at(now);
        if cost <= tokens {
            self.tokens -= cost;
            return Spend::Pass(Taken { cost, ticket: self.epoch });
        }
        // The store is asked only for what is missing.
        if let Some(refusal) = self.refusal.filter(|refusal| refusal.holds(cost - tokens, asked, now)) {
            return Spend::Refuse(refusal.verdict_at(now));
        }
        match self.flight {
            Some(_) => Spend::Wait,
            None if self.hot && now >= self.unlent_until => Spend::Call,
            None => Spend::Exact,
        }
    }

    /// Puts tokens back that a request took and, refused elsewhere, did not need. They are lost when the store was told
    /// meanwhile that they are spent, or has let go of the lease they are from.
    pub(super) fn put_back(&mut self, taken: Taken) {
        if taken.ticket == self.epoch {
            self.tokens += taken.cost;
        }
    }

    /// The call to send now, for a request of this cost that waits for it: what it needs beside what is left.
    pub(super) fn call(&mut self, node: NodeId, sequence: u64, cost: u64, now: Timestamp) -> Call {
        let left = self.tokens_at(now);
        let least = cost.saturating_sub(left);
        let want = self.target(now).saturating_sub(left).max(least);
        self.send(Call { node, sequence, left, returned: 0, least, want, term: TERM }, now)
    }

    /// The call to send although nobody waits for it: before the lease runs dry or ends.
    #[inline]
    pub(super) fn renewal(
        &mut self,
        node: NodeId,
        sequence: impl FnOnce() -> u64,
        now: Timestamp,
    ) -> Option<Call> {
        if self.flight.is_some() || !self.hot || now < self.quiet_until.max(self.unlent_until) {
            return None;
        }
        let left = self.tokens_at(now);
        let target = self.target(now);
        // Of the time that it was lent for: near the end of a window that is short, and no call makes it longer.
        let ends_soon = until(self.ends, now) < self.lasts / 3;
        (left * 2 < target || ends_soon).then(|| self.call(node, sequence(), 0, now))
    }

    /// Whether nobody has asked for a while or nobody will, and no call is under way.
    pub(super) fn parts(&self, parting: Parting, now: Timestamp) -> bool {
        self.flight.is_none() && (parting == Parting::Final || self.pace.silence(now) >= IDLE)
    }

    /// The call that gives everything back, when nobody has asked for a while or nobody will.
    pub(super) fn farewell(
        &mut self,
        node: NodeId,
        sequence: impl FnOnce() -> u64,
        parting: Parting,
        now: Timestamp,
    ) -> Option<Call> {
        let left = self.tokens_at(now);
        if left == 0 || !self.parts(parting, now) {
            return None;
        }
        self.tokens = 0;
        let call =
            Call { node, sequence: sequence(), left: 0, returned: left, least: 0, want: 0, term: TERM };
        Some(self.send(call, now))
    }

    /// The store answered a call; anything but the one that is waited for is too late, and is not spent. Answers when the
    /// call was sent, if it was waited for.
    pub(super) fn answered(
        &mut self,
        sequence: u64,
        loan: Loan,
        verdict: &Verdict,
        mark: Mark,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let Some(flight) = self.flight.take_if(|flight| flight.sequence == sequence) else {
            self.strand(loan.granted);
            return None;
        };
        // From before the call was sent, and not to the end: this node stops before the store forgets.
        self.lasts = loan.term.get() - loan.term.get().div_ceil(DRIFT);
        self.ends = flight.sent.after(Micros::new(self.lasts));
        self.tokens = self.tokens.min(loan.kept).saturating_add(loan.granted);
        if loan.kept < flight.left {
            self.epoch += 1; // the lease had ended there, with all that was taken of it
        }
        self.lapse(now);
        if loan.granted < flight.want {
            self.quiet_until = now.after(SCARCE);
        }
        self.told = Told { remaining: verdict.remaining, reset_after: verdict.reset_after, at: now, mark };
        self.refuse_who_waited(verdict, now);
        Some(flight.sent)
    }

    /// Whoever waited for this answer and costs more than the store had left is refused by it. Whoever comes later is not:
    /// by then there may be more.
    fn refuse_who_waited(&mut self, left: &Verdict, now: Timestamp) {
        let remembered = self.refusal.is_some_and(|refusal| now < refusal.until);
        // A wait until all leases are over is a guess: the next call, which tells what was spent, will know better.
        let is_known = left.more_after(None).is_some_and(|wait| wait < left.reset_after);
        if is_known && !remembered {
            let (retry_after, delay) = (left.more_after(None), Micros::ZERO);
            let verdict = Verdict { allowed: false, retry_after, delay, ..*left };
            self.refusal = Some(Refusal { cost: left.remaining + 1, verdict, at: now, until: now });
        }
    }

    /// The size of the block to take of a queue, for a request of this cost: no more than a part of what was left.
    pub(super) fn places(&self, cost: u64, want: u64) -> u64 {
        want.min(self.told.remaining / 4).max(cost)
    }

    /// Nobody waits any more for the answer to a call; if it comes, it is not spent.
    pub(super) fn gave_up(&mut self, sequence: u64, now: Timestamp) {
        if let Some(flight) = self.flight.take_if(|flight| flight.sequence == sequence) {
            self.quiet_until = now.after(SCARCE);
            self.strand(flight.returned);
        }
    }

    /// Tokens went to waste.
    pub(super) fn strand(&mut self, tokens: u64) {
        self.stranded = self.stranded.saturating_add(tokens);
    }

    /// How many have, since this was asked last.
    pub(super) fn stranded(&mut self, now: Timestamp) -> u64 {
        self.lapse(now);
        std::mem::take(&mut self.stranded)
    }

    /// What has ended does not come back to life.
    fn lapse(&mut self, now: Timestamp) {
        if now >= self.ends {
            self.strand(self.tokens);
            self.tokens = 0;
        }
    }

    /// The store has something left and does not lend it, having lent to so many: it decides for a while.
    pub(super) fn unlent(&mut self, now: Timestamp) {
        self.unlent_until = now.after(TERM);
    }

    /// The store refused a request of this cost: the same need not be asked again for a while.
    pub(super) fn refused(&mut self, cost: u64, verdict: Verdict, now: Timestamp) {
        let wait = verdict.retry_after.unwrap_or(LONGEST_REFUSAL).min(LONGEST_REFUSAL);
        self.refusal = Some(Refusal { cost, verdict, at: now, until: now.after(wait) });
    }

    /// Something was refunded or reset: what was refused may pass now.
    pub(super) fn forget_refusal(&mut self) {
        self.refusal = None;
    }

    /// The verdict on a request that passed here: what the store said last, and what is held.
    pub(super) fn verdict(&self, limit: u64, now: Timestamp) -> Verdict {
        let elapsed = Micros::new(now.as_micros().abs_diff(self.told.at.as_micros()));
        Verdict {
            allowed: true,
            limit,
            remaining: self.told.remaining.saturating_add(self.tokens).min(limit),
            retry_after: Some(Micros::ZERO),
            reset_after: self.told.reset_after.saturating_sub(elapsed),
            delay: Micros::ZERO,
            growth: Growth::Full,
        }
    }

    /// Where a charge at the last answer would stand, on the store's clock.
    pub(super) const fn mark(&self) -> Mark {
        self.told.mark
    }

    /// Tokens that may be spent.
    #[inline]
    pub(super) fn tokens_at(&self, now: Timestamp) -> u64 {
        if now < self.ends { self.tokens } else { 0 }
    }

    /// Whether a call is under way.
    pub(super) const fn is_calling(&self) -> bool {
        self.flight.is_some()
    }

    /// Whether its decisions are made here.
    pub(super) const fn is_hot(&self) -> bool {
        self.hot
    }

    /// Whether nothing would be lost by forgetting it.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        let refuses = self.refusal.is_some_and(|refusal| now < refusal.until);
        self.flight.is_none() && self.tokens_at(now) == 0 && !refuses && self.pace.silence(now) >= IDLE
    }

    /// Tokens to hold at this pace.
    fn target(&mut self, now: Timestamp) -> u64 {
        (self.pace.per_second(now).saturating_mul(AHEAD) / SECOND).max(1)
    }

    fn send(&mut self, call: Call, now: Timestamp) -> Call {
        self.lapse(now);
        let Call { sequence, left, returned, want, .. } = call;
        self.epoch = 2 * sequence; // of this key and of any that takes its place, there is none like it
        self.flight = Some(Flight { sequence, sent: now, left, returned, want });
        call
    }
}

/// Why a lease is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parting {
    /// If nobody has asked for a while.
    Idle,
    /// At once: the node stops, or the limit has changed.
    Final,
}

impl Refusal {
    /// Whether it answers a request of this cost: it was given since that asked, or is still remembered.
    fn holds(&self, cost: u64, asked: Timestamp, now: Timestamp) -> bool {
        cost >= self.cost && (asked <= self.at || now < self.until)
    }

    /// The same refusal, some time later.
    fn verdict_at(&self, now: Timestamp) -> Verdict {
        let elapsed = Micros::new(now.as_micros().abs_diff(self.at.as_micros()));
        let later = |wait: Micros| wait.saturating_sub(elapsed);
        Verdict {
            retry_after: self.verdict.retry_after.map(|wait| later(wait).max(Micros::new(1))),
            reset_after: later(self.verdict.reset_after),
            growth: match self.verdict.more_after(None) {
                Some(wait) => Growth::After(later(wait).max(Micros::new(1))),
                None => Growth::Full,
            },
            ..self.verdict
        }
    }
}

fn until(instant: Timestamp, now: Timestamp) -> u64 {
    u64::try_from(instant.as_micros().saturating_sub(now.as_micros())).unwrap_or(0)
}
