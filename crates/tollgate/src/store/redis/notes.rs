//! Notes in Redis: a string each, with a time to live.
//!
//! ```text
//! tg:reserved:4b1f…   what was charged
//! tg:settled:4b1f…    who came first to settle it
//! ```
//!
//! Plain commands do, so a user of the ACL needs no more rights than decisions take. Each key lies in a slot of its own.

use redis::Value;
use tollgate_core::Micros;

use super::{RedisStore, slots};
use crate::store::{NoteName, StoreError};

impl RedisStore {
    /// Writes a note unless there is one, which is the answer then.
    pub(super) async fn keep_note(
        &self,
        name: NoteName,
        note: &[u8],
        ttl: Micros,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let key = self.note_key(name);
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(note).arg("NX").arg("GET").arg("PX").arg(ttl.ceil_millis().max(1));
        self.topology.call(slots::slot(&key), &set, self.deadline(), bytes).await
    }

    pub(super) async fn recall_note(&self, name: NoteName) -> Result<Option<Vec<u8>>, StoreError> {
        let key = self.note_key(name);
        let get = redis::cmd("GET").arg(&key).take();
        self.topology.call(slots::slot(&key), &get, self.deadline(), bytes).await
    }

    fn note_key(&self, name: NoteName) -> Vec<u8> {
        format!("{}:{}:{}", self.prefix, name.about.as_str(), name.reservation).into_bytes()
    }
}

/// What is there, if anything is; none where the answer makes no sense.
fn bytes(value: Value) -> Option<Option<Vec<u8>>> {
    match value {
        Value::Nil => Some(None),
        Value::BulkString(bytes) => Some(Some(bytes)),
        _ => None,
    }
}
