//! The second half: the true cost is known.

use tollgate_core::{Descriptor, Enforcement, Micros, Op, StoreError};

use super::id::ReservationId;
use super::note::{Note, Reserved};
use crate::limiter::Limiter;
use crate::store::{About, Difference, Due, Store};

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
    /// The store gave no answer, and may or may not have settled. Settle again: what was done is not done twice, and what
    /// was not is made up for.
    #[error("the reservation may not be settled; settle it again")]
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

    /// What has to be settled with a bucket, and what a cost of 1 takes there; none where there is no difference.
    fn with<'h>(&self, bucket: &'h Reserved<'_>, request: &'h Descriptor<'h>) -> Option<(Due<'h>, u64)> {
        let (cost, difference) = match self.charged {
            0 => (self.refunded, Difference::Rest(bucket.mark())),
            more => (more, Difference::Missing),
        };
        let (rule, cost) = (bucket.rule(), bucket.cost_of(cost)?);
        Some((Due { rule, request, cost, difference }, bucket.price()))
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
    /// it has something left. Only the first cost counts. Settling again, with whatever cost, answers the same and changes
    /// nothing; if the first was cut short, by a store that went away, it finishes that. Rules that are no longer there,
    /// or count otherwise by now, are left alone.
    ///
    /// # Errors
    ///
    /// [`SettleError::Gone`] once its time is over; then all of it is spent. Or the store gave no answer.
    pub async fn settle(&self, id: ReservationId, actual: u64) -> Result<Settled, SettleError> {
        let kept = self.store().recall(id.note(About::Reserved)).await?;
        let note = kept.as_deref().and_then(Note::read).ok_or(SettleError::Gone)?;
        let (mine, ttl) = (actual.to_string(), Micros::new(note.ttl_us));
        let first = self.store().keep(id.note(About::Settled), mine.as_bytes(), ttl).await?;
        let planned = match &first {
            None => Settled::planned(&note, actual),
            Some(first) => Settled::planned(&note, number(first).ok_or(SettleError::Gone)?),
        };
        let unpaid = self.settle_buckets(id, &note, &planned).await?;
        Ok(Settled { already_settled: first.is_some(), ..planned.with_unpaid(unpaid) })
    }

    /// Gives back or charges the difference, in each bucket on its own and once; answers what did not fit.
    async fn settle_buckets(
        &self,
        id: ReservationId,
        note: &Note,
        planned: &Settled,
    ) -> Result<u64, StoreError> {
        let (rules, request) = (self.rules(), note.request());
        let buckets = note.buckets(&rules);
        let due = buckets.iter().filter_map(|bucket| planned.with(bucket, &request));
        let (due, prices): (Vec<Due<'_>>, Vec<u64>) = due.unzip();
        if due.is_empty() {
            return Ok(0);
        }
        let moved = self.store().settle(id, &due, Micros::new(note.ttl_us)).await?;
        let unpaid = due.iter().zip(prices).zip(moved).map(|((due, price), moved)| due.unpaid(price, moved));
        Ok(unpaid.max().unwrap_or(0))
    }

    /// Gives this cost of a reservation back.
    pub(super) async fn undo_reserved(&self, note: &Note, cost: u64) -> Result<(), StoreError> {
        let (rules, request) = (self.rules(), note.request());
        for bucket in note.buckets(&rules) {
            if let Some(cost) = bucket.cost_of(cost) {
                self.run_rule(Op::Undo, bucket.rule(), &request, cost, bucket.mark()).await?;
            }
        }
        Ok(())
    }
}

impl Due<'_> {
    /// What did not fit, in the cost of the request. A rule in shadow mode leaves nothing unpaid.
    fn unpaid(&self, price: u64, moved: u64) -> u64 {
        match (self.difference, self.enforcement()) {
            (Difference::Missing, Enforcement::Enforce) => self.cost.saturating_sub(moved).div_ceil(price),
            _ => 0,
        }
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    str::from_utf8(bytes).ok()?.parse().ok()
}
