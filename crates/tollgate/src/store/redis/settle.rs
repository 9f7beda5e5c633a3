//! Settling a reservation: a call of the script for each bucket, which writes its receipt as well.
//!
//! ```text
//! tg:receipt:4b1f…:tg:{kQ3x}Zt0_5yqN1vXw8aLe:42   how much was moved
//! ```
//!
//! A receipt lies in the slot of its bucket, so that both are written together, in a Cluster too.

use futures_util::future::join_all;
use redis::Cmd;
use tokio::time::Instant;
use tollgate_core::Micros;

use super::script::{self, Reply};
use super::{RedisStore, part, slots};
use crate::reserve::ReservationId;
use crate::store::{About, Difference, Due, StoreError};

/// How much longer than a reservation its receipts are kept: a call that was sent just before its end, and arrives after
/// it, still finds them.
const GRACE: Micros = Micros::new(60_000_000);

impl RedisStore {
    /// Settles every bucket; all that can be asked are, also where one cannot.
    pub(super) async fn settle_each(
        &self,
        reservation: ReservationId,
        due: &[Due<'_>],
        ttl: Micros,
    ) -> Result<Vec<u64>, StoreError> {
        let deadline = self.deadline();
        let settled = due.iter().map(|due| self.settle_one(reservation, due, ttl, deadline));
        join_all(settled).await.into_iter().collect()
    }

    async fn settle_one(
        &self,
        reservation: ReservationId,
        due: &Due<'_>,
        ttl: Micros,
        deadline: Instant,
    ) -> Result<u64, StoreError> {
        let bucket = self.key(&due.hit);
        let slot = slots::slot(&bucket);
        for _ in 0..2 {
            let call = self.settle_call(reservation, due, &bucket, ttl);
            match self.topology.call(slot, &call, deadline, |value| Reply::read(value, 1)).await? {
                Reply::Done(done) => {
                    self.note(&done);
                    self.topology.wrote(slot);
                    return done.moved().ok_or(StoreError::Unreachable);
                }
                // The calendar windows that were sent are not those of Redis' clock.
                Reply::OtherTime(now) => self.note_time(now),
            }
        }
        Err(StoreError::Unreachable)
    }

    fn settle_call(&self, reservation: ReservationId, due: &Due<'_>, bucket: &[u8], ttl: Micros) -> Cmd {
        let injected = self.clock.injected();
        let mut packed = Vec::with_capacity(64);
        script::pack(&due.hit, injected.unwrap_or_else(|| self.redis_time()), &mut packed);
        let mut receipt = format!("{}:{}:{reservation}:", self.prefix, About::Receipt.as_str()).into_bytes();
        receipt.extend_from_slice(bucket);
        let (verb, mark) = match due.difference {
            Difference::Missing => ("debit once", None),
            Difference::Rest(mark) => ("undo once", Some(mark)),
        };
        let mut call = Cmd::new();
        call.arg("EVALSHA").arg(&self.sha).arg(2).arg(bucket).arg(receipt).arg(verb);
        match injected {
            Some(now) => call.arg(now.as_micros()),
            None => call.arg(""),
        };
        call.arg(packed);
        part::add_marks(&mut call, mark.as_slice());
        let ttl = Micros::new(ttl.get().saturating_add(GRACE.get()));
        call.arg(ttl.ceil_millis());
        call
    }
}
