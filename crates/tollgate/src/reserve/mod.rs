//! Work whose cost is known only afterwards: reserve first, settle later.
//!
//! ```text
//! reserve: check, charged with an estimate ---> a note in the store, for a time to live
//! settle:  the note ---> the first settlement gives the rest back, or charges what is missing
//!                   '--> a later one is answered what the first did
//! no settle: the note expires, and what was reserved counts as spent
//! ```
//!
//! The note is in the store, so any node that shares it can settle. It says what was charged where and when, so what
//! time has given back already is not given a second time. Each bucket is settled once, with a receipt
//! ([`Store::settle`]): a settlement without an answer is repeated, and neither charges twice nor too little.

mod id;
mod note;
mod settle;

use tollgate_core::{Descriptor, Micros, Op, StoreError};

pub use self::id::{ReservationId, ReservationIdError};
use self::note::Note;
pub use self::settle::{SettleError, Settled};
use crate::limiter::{Answer, Limiter, Purpose};
use crate::request::Request;
use crate::store::{About, MAX_NOTE_BYTES, Store};

/// The shortest and the longest time of a reservation: a millisecond and a day.
const MIN_TTL: Micros = Micros::new(1_000);
const MAX_TTL: Micros = Micros::new(86_400_000_000);

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
    #[error("the reservation cannot be kept: its facts have {size} bytes, and {longest} are kept; send shorter ones", longest = MAX_NOTE_BYTES)]
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
    /// Decides a request as a check does, and keeps a note of what it was charged. A settlement knows only the limiter's
    /// rules, and limits without a rule ([`Rule::ad_hoc`](crate::Rule::ad_hoc)); what other rules charged stays spent.
    pub(crate) async fn reserve(
        &self,
        request: Request<'_, S>,
        ttl: Micros,
    ) -> Result<Reserved, ReserveError> {
        let id = match request.cost {
            0 => return Err(ReserveError::Nothing),
            _ => ReservationId::random().map_err(|_| ReserveError::Unnamed)?,
        };
        let (descriptor, cost) = (request.descriptor, request.cost);
        let answer = self.decide(request, Op::Charge, Purpose::Reservation).await;
        self.keep(id, answer, descriptor, cost, ttl).await
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
        let ttl = ttl.clamp(MIN_TTL, MAX_TTL);
        let Some(note) = Note::of(&answer, &answer.request(request), cost, ttl) else {
            return Ok(Reserved { answer, reservation: None });
        };
        let bytes = note.to_bytes();
        let kept = match bytes.len() {
            ..=MAX_NOTE_BYTES => self.store().keep(id.note(About::Reserved), &bytes, ttl).await,
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

#[cfg(test)]
mod tests;
