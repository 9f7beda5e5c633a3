//! Reservations: notes, and settlements that happen once.
//!
//! ```text
//! tg:reserved:4b1f…                               what was charged
//! tg:settled:4b1f…                                which caller settles it
//! tg:receipt:4b1f…:tg:{kQ3x}Zt0_5yqN1vXw:42       how much was moved in one bucket
//! ```
//!
//! A note is a string with a time to live, in a slot of its own. Plain commands suffice, so a user of the ACL needs no
//! more rights than decisions need. A receipt lies in the slot of its bucket: the script writes both together, in a Cluster too.

use futures_util::future::join_all;
use redis::{Cmd, Value};
use tokio::time::Instant;
use tollgate_core::{Micros, Op, StoreError};

use super::RedisStore;
use super::script::{self, DEBIT, Header, Reply, Script};
use crate::reserve::ReservationId;
use crate::store::{About, Difference, Due, NoteName};

/// How much longer than a reservation its receipts are kept: a call that was sent just before its end, and arrives after
/// it, still finds them.
const GRACE: Micros = Micros::new(60_000_000);

impl RedisStore {
    /// Writes a note unless one exists, which is the answer then.
    pub(super) async fn keep_note(
        &self,
        name: NoteName,
        note: &[u8],
        ttl: Micros,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let key = self.note_key(name);
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(note).arg("NX").arg("GET").arg("PX").arg(ttl.ceil_millis().max(1));
        self.ask_note(&key, &set).await
    }

    pub(super) async fn recall_note(&self, name: NoteName) -> Result<Option<Vec<u8>>, StoreError> {
        let key = self.note_key(name);
        self.ask_note(&key, redis::cmd("GET").arg(&key)).await
    }

    async fn ask_note(&self, key: &[u8], command: &Cmd) -> Result<Option<Vec<u8>>, StoreError> {
        let topology = &self.shared.topology;
        topology.call(topology.slot(key), command, Instant::now() + self.timeout(), bytes).await
    }

    fn note_key(&self, name: NoteName) -> Vec<u8> {
        format!("{}:{}:{}", self.prefix, name.about.as_str(), name.reservation).into_bytes()
    }

    /// Settles every bucket that can be reached, also if one cannot.
    pub(super) async fn settle_each(
        &self,
        reservation: ReservationId,
        due: &[Due<'_>],
        ttl: Micros,
    ) -> Result<Vec<u64>, StoreError> {
        let deadline = Instant::now() + self.timeout();
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
        let place = self.place(due.rule, due.key());
        let mut receipt = format!("{}:{}:{reservation}:", self.prefix, About::Receipt.as_str()).into_bytes();
        receipt.extend_from_slice(&place.key);
        let (op, mark) = match due.difference {
            Difference::Missing => (DEBIT, None),
            Difference::Rest(mark) => (Op::Undo as u8, Some(mark)),
        };
        let mut header = Header { op, ..self.header(Op::Undo, Micros::MAX, false) };
        for _ in 0..2 {
            let mut input = header.input(2);
            let (limit, window) = (&place.limit, place.window);
            script::put_row(limit, window, (due.enforcement(), false), due.cost, header.around, &mut input);
            let ttl = Micros::new(ttl.get().saturating_add(GRACE.get()));
            super::state::put(ttl.ceil_millis().cast_signed(), &mut input);
            if let Some(mark) = mark {
                script::put_mark(mark, &mut input);
            }
            let call = Script::Settle.call([place.key.as_slice(), &receipt].into_iter(), &input);
            match self.shared.topology.call(place.slot, &call, deadline, script::read_settled).await? {
                Reply::Done((ran, moved)) => {
                    self.shared.note(&ran);
                    self.shared.topology.wrote(place.slot);
                    return Ok(moved);
                }
                // The calendar windows that were sent are not those of Redis' clock.
                Reply::OtherTime(now) => {
                    self.shared.note_time(now);
                    header.around = now;
                }
            }
        }
        Err(StoreError::Unreachable)
    }
}

/// The content of a note, if there is one; `None` if the answer is not one.
fn bytes(value: Value) -> Option<Option<Vec<u8>>> {
    match value {
        Value::Nil => Some(None),
        Value::BulkString(bytes) => Some(Some(bytes)),
        _ => None,
    }
}
