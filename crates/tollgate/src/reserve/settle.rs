//! The second half: the true cost is known.

use std::mem;

use tollgate_core::{Descriptor, Enforcement, Hit, Hits, Micros, Verdicts};

use super::id::ReservationId;
use super::note::{Note, Reserved};
use crate::limiter::Limiter;
use crate::store::{About, Store, StoreError};

/// How often what is missing is asked for, where others take what was there a moment ago.
const TRIES: usize = 4;

/// What came of a reservation, in the cost of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// What was reserved.
    pub reserved: u64,
    /// What it took in truth.
    pub actual: u64,
    /// What was given back. Where time did that already, or a window has passed, nobody gets it twice.
    pub refunded: u64,
    /// What was charged on top.
    pub charged: u64,
    /// What was not, because a limit had no more to give; of several limits the most.
    pub unpaid: u64,
    /// Whether it was settled before: then all this is what the first did.
    pub already_settled: bool,
}

/// Why a reservation was not settled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettleError {
    /// There is none of that name, or its time is over and what was reserved is spent.
    #[error("no such reservation; its time is over and it counts as spent, or there never was one")]
    Gone,
    /// The store gave no answer. What was reserved may stay spent, and what is missing unpaid: settling again answers,
    /// but does nothing more once somebody was the first.
    #[error("the reservation may not be settled")]
    Store(#[from] StoreError),
}

impl Settled {
    fn planned(note: &Note, actual: u64) -> Self {
        Settled {
            reserved: note.cost,
            actual,
            refunded: note.cost.saturating_sub(actual),
            charged: actual.saturating_sub(note.cost),
            unpaid: 0,
            already_settled: false,
        }
    }

    fn with_unpaid(self, unpaid: u64) -> Self {
        Settled { charged: self.charged.saturating_sub(unpaid), unpaid, ..self }
    }
}

impl<S: Store> Limiter<S> {
    /// Settles a reservation with what the work took in truth.
    ///
    /// Less than was reserved: the rest is given back where and when it was charged, so that a window that has passed
    /// gives nothing. More: the difference was spent in truth, so it is charged without asking, to each limit as far as
    /// it has something left. Settling again, with whatever cost, changes nothing and answers what the first did; while
    /// the first is still at it, what it set out to do. Rules that are no longer there, or count otherwise by now, are
    /// left alone.
    ///
    /// # Errors
    ///
    /// [`SettleError::Gone`] once its time is over; then all of it is spent. Or the store gave no answer.
    pub async fn settle(&self, id: ReservationId, actual: u64) -> Result<Settled, SettleError> {
        let kept = self.store().recall(id.note(About::Reserved)).await?;
        let note = kept.as_deref().and_then(Note::read).ok_or(SettleError::Gone)?;
        let ttl = Micros::new(note.ttl_us);
        let mine = actual.to_string();
        if let Some(first) = self.store().keep(id.note(About::Settled), mine.as_bytes(), ttl).await? {
            return self.settled_before(id, &note, &first).await;
        }
        let planned = Settled::planned(&note, actual);
        self.undo_reserved(&note, planned.refunded).await?;
        let settled = planned.with_unpaid(self.charge_missing(&note, planned.charged).await?);
        if settled.unpaid > 0 {
            let unpaid = settled.unpaid.to_string();
            self.store().keep(id.note(About::Unpaid), unpaid.as_bytes(), ttl).await?;
        }
        Ok(settled)
    }

    /// What the first did.
    async fn settled_before(
        &self,
        id: ReservationId,
        note: &Note,
        first: &[u8],
    ) -> Result<Settled, SettleError> {
        let planned = Settled::planned(note, number(first).ok_or(SettleError::Gone)?);
        let unpaid = match planned.charged {
            0 => None,
            _ => self.store().recall(id.note(About::Unpaid)).await?,
        };
        let settled = planned.with_unpaid(unpaid.as_deref().and_then(number).unwrap_or(0));
        Ok(Settled { already_settled: true, ..settled })
    }

    /// Gives so much of a reservation back.
    pub(super) async fn undo_reserved(&self, note: &Note, cost: u64) -> Result<(), StoreError> {
        let (rules, request) = (self.rules(), note.request());
        let buckets = note.buckets(&rules, &request);
        let both = buckets.iter().filter_map(|bucket| Some((bucket.hit(&request, cost)?, bucket.verdict())));
        let (hits, charged): (Hits<'_>, Verdicts) = both.unzip();
        if hits.is_empty() {
            return Ok(());
        }
        self.store().undo(&hits, &charged, &mut Verdicts::new()).await.map(drop)
    }

    /// Charges what is missing, each limit on its own and down to nothing at most; answers what did not fit.
    async fn charge_missing(&self, note: &Note, cost: u64) -> Result<u64, StoreError> {
        let (rules, request) = (self.rules(), note.request());
        let buckets = note.buckets(&rules, &request);
        let due = |bucket| Due::of(bucket, &request, cost);
        let (mut due, mut hits): (Vec<Due>, Hits<'_>) = buckets.iter().filter_map(due).unzip();
        let mut unpaid = 0;
        for last in (0..TRIES).map(|try_number| try_number + 1 == TRIES) {
            if hits.is_empty() {
                break;
            }
            let mut verdicts = Verdicts::new();
            self.store().charge(&hits, &mut verdicts).await?;
            let asked = mem::take(&mut due).into_iter().zip(mem::take(&mut hits)).zip(verdicts);
            for ((mut due_here, mut hit), verdict) in asked {
                if verdict.allowed {
                    due_here.left -= hit.demand.cost;
                } else if verdict.remaining > 0 && !last {
                    hit.demand.cost = verdict.remaining.min(hit.demand.cost);
                    due.push(due_here);
                    hits.push(hit);
                    continue;
                }
                unpaid = unpaid.max(due_here.unpaid());
            }
        }
        Ok(unpaid)
    }
}

/// What a limit has still to be charged.
#[derive(Debug)]
struct Due {
    left: u64,
    price: u64,
    enforcement: Enforcement,
}

impl Due {
    /// The whole, and the hit that asks for it: on its own, since it stops nobody.
    fn of<'h>(bucket: &'h Reserved<'_>, request: &'h Descriptor<'_>, cost: u64) -> Option<(Self, Hit<'h>)> {
        let mut hit = bucket.hit(request, cost)?;
        let enforcement = mem::replace(&mut hit.enforcement, Enforcement::Shadow);
        Some((Due { left: hit.demand.cost, price: bucket.price(), enforcement }, hit))
    }

    /// What did not fit, in the cost of the request. A rule on trial has nobody's debts.
    const fn unpaid(&self) -> u64 {
        match self.enforcement {
            Enforcement::Enforce => self.left.div_ceil(self.price),
            Enforcement::Shadow => 0,
        }
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    str::from_utf8(bytes).ok()?.parse().ok()
}
