use tollgate_core::algorithm::State;
use tollgate_core::{Hit, Micros, Timestamp, Verdict, Verdicts};

use crate::clock::Clock;
use crate::reserve::ReservationId;
use crate::store::{Due, MemoryStore, NoteName, Store, StoreError};

/// A store in memory that takes a second to peek, on a clock that tests turn.
#[derive(Debug)]
pub(super) struct SlowToPeek(pub(super) MemoryStore);

impl Store for SlowToPeek {
    async fn charge(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.0.charge(hits, verdicts).await
    }

    async fn peek(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.clock().advance(Micros::new(1_000_000));
        self.0.peek(hits, verdicts).await
    }

    async fn refund(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.0.refund(hits, verdicts).await
    }

    async fn undo(
        &self,
        hits: &[Hit<'_>],
        charged: &[Verdict],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        self.0.undo(hits, charged, verdicts).await
    }

    async fn reset(&self, hits: &[Hit<'_>], verdicts: &mut Verdicts) -> Result<Timestamp, StoreError> {
        self.0.reset(hits, verdicts).await
    }

    fn clock(&self) -> &Clock {
        self.0.clock()
    }

    async fn inspect(&self, hit: &Hit<'_>) -> Result<Option<State>, StoreError> {
        self.0.inspect(hit).await
    }

    async fn keep(&self, name: NoteName, note: &[u8], ttl: Micros) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.keep(name, note, ttl).await
    }

    async fn recall(&self, name: NoteName) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.recall(name).await
    }

    async fn settle(
        &self,
        reservation: ReservationId,
        due: &[Due<'_>],
        ttl: Micros,
    ) -> Result<Vec<u64>, StoreError> {
        self.0.settle(reservation, due, ttl).await
    }
}
