//! Work whose price is known only afterwards: reserve first, settle later.
//!
//! ```text
//! reserve: check, charged with an estimate ---> a note in the store, for so long
//! settle:  the note ---> who comes first gives the rest back, or pays what is missing
//!                   '--> who comes later is told what the first did
//! no settle: the note's time is over, and what was reserved counts as spent
//! ```
//!
//! The note is in the store, so any node that shares it can settle. It says what was charged where and when: what is
//! given back is undone exactly ([`Store::undo`]), and what time has taken back already is not given a second time.
//! Each bucket is settled once, with a receipt ([`Store::settle`]): whoever got no answer settles again, and neither pays
//! twice nor gets away with too little.

mod id;
mod note;
mod settle;

use tollgate_core::{Descriptor, Micros};

pub use self::id::{ReservationId, ReservationIdError};
use self::note::Note;
pub use self::settle::{SettleError, Settled};
use crate::limiter::{Answer, Limiter, Snapshot};
use crate::store::{About, LONGEST_NOTE, Store, StoreError};

/// The shortest and the longest time of a reservation: a millisecond and a day.
const SHORTEST: Micros = Micros::new(1_000);
const LONGEST: Micros = Micros::new(86_400_000_000);

/// The answer to a request that reserves.
#[derive(Debug)]
pub struct Reserved {
    /// The decision, as a check would have made it.
    pub answer: Answer,
    /// What to settle. None where the store charged nothing that a settlement could change: the request may not pass, no
    /// limit applies or none that counts by the request's cost, or the store is away and each rule's policy decided.
    pub reservation: Option<ReservationId>,
}

/// Why a request that could have passed was not let pass. What it was charged was given back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// The store did not keep it; it is full (`OOM`), or away since it decided.
    #[error("the reservation cannot be kept; try again, or check without reserving")]
    Unkept(#[source] StoreError),
    /// What the request's buckets are named by is too long to be kept.
    #[error("the reservation cannot be kept: its facts have {size} bytes, and {longest} are kept; send shorter ones", longest = LONGEST_NOTE)]
    TooLong {
        /// So long.
        size: usize,
    },
    /// It costs nothing, so anybody could have any number of them kept.
    #[error("a reservation of nothing is not kept; reserve at least 1, and what is not needed is given back")]
    Nothing,
    /// The system has no random numbers for its name.
    #[error("no random numbers for the name of a reservation")]
    Unnamed,
}

impl<S: Store> Limiter<S> {
    /// Decides one request as [`check`](Self::check) does, and keeps a note of what it was charged for so long (from a
    /// millisecond to a day), so that it can be [settled](Self::settle) with the true cost. The estimate is at least 1.
    ///
    /// ```
    /// use tollgate::{Descriptor, Limiter, MemoryStore, Micros, rules};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = rules::parse("rules.yaml", "rules: [{ key: 'user:{user_id}', limit: 1000/h }]")?;
    /// let limiter = Limiter::new(rules, MemoryStore::new());
    /// let request = Descriptor::new().with("user_id", "42");
    ///
    /// let reserved = limiter.reserve(&request, 300, Micros::new(60_000_000)).await?;
    /// assert_eq!(reserved.answer.remaining(), Some(700));
    /// let id = reserved.reservation.ok_or("nothing was reserved")?;
    ///
    /// let settled = limiter.settle(id, 120).await?; // it took less
    /// assert_eq!((settled.refunded, settled.charged), (180, 0));
    /// assert_eq!(limiter.peek(&request, 1).await.remaining(), Some(880));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The request could have passed, but not be settled: nobody kept the note. It is charged nothing.
    pub async fn reserve(
        &self,
        request: &Descriptor<'_>,
        cost: u64,
        ttl: Micros,
    ) -> Result<Reserved, ReserveError> {
        self.reserve_within(request, cost, ttl, Micros::MAX).await
    }

    /// As [`reserve`](Self::reserve), but a request that would be held for longer than `patience` is refused and
    /// charged nothing.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    pub async fn reserve_within(
        &self,
        request: &Descriptor<'_>,
        cost: u64,
        ttl: Micros,
        patience: Micros,
    ) -> Result<Reserved, ReserveError> {
        let id = name_for(cost)?;
        let answer = self.check_within(request, cost, patience).await;
        self.keep(id, answer, request, cost, ttl).await
    }

    /// As [`reserve`](Self::reserve), by other rules than the limiter's. Whoever settles knows only the limiter's
    /// rules, and limits without a rule ([`Rule::ad_hoc`](crate::Rule::ad_hoc)); what other rules charged stays spent.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    pub async fn reserve_by(
        &self,
        rules: impl Into<Snapshot>,
        request: &Descriptor<'_>,
        cost: u64,
        ttl: Micros,
    ) -> Result<Reserved, ReserveError> {
        let id = name_for(cost)?;
        let answer = self.check_by(rules, request, cost).await;
        self.keep(id, answer, request, cost, ttl).await
    }

    /// Keeps a note of what an answer charged; if that fails, gives it back.
    async fn keep(
        &self,
        id: ReservationId,
        answer: Answer,
        request: &Descriptor<'_>,
        cost: u64,
        ttl: Micros,
    ) -> Result<Reserved, ReserveError> {
        let ttl = ttl.clamp(SHORTEST, LONGEST);
        let Some(note) = Note::of(&answer, &answer.request(request), cost, ttl) else {
            return Ok(Reserved { answer, reservation: None });
        };
        let bytes = note.to_bytes();
        let kept = match bytes.len() {
            ..=LONGEST_NOTE => self.store().keep(id.note(About::Reserved), &bytes, ttl).await,
            size => {
                self.give_back(&note, cost).await;
                return Err(ReserveError::TooLong { size });
            }
        };
        if let Err(error) = kept {
            self.give_back(&note, cost).await;
            return Err(ReserveError::Unkept(error));
        }
        Ok(Reserved { answer, reservation: Some(id) })
    }

    /// Undoes a reservation that nobody will settle. If this fails, the charge stays; the store counts that.
    async fn give_back(&self, note: &Note, cost: u64) {
        let _ = self.undo_reserved(note, cost).await;
    }
}

/// A name for a reservation of so much.
fn name_for(cost: u64) -> Result<ReservationId, ReserveError> {
    match cost {
        0 => Err(ReserveError::Nothing),
        _ => ReservationId::random().map_err(|_| ReserveError::Unnamed),
    }
}

#[cfg(test)]
mod tests;
