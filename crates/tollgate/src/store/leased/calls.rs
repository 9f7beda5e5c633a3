//! Lease calls. Each runs in a task of its own: no decision waits for one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate_core::lease::Terms;

use super::Shared;
use super::table::Outgoing;
use crate::store::Deadline;

impl Shared {
    /// Sends a call. A failure is counted, and a later request calls again.
    pub(super) fn send_in_background(self: &Arc<Self>, outgoing: Outgoing) {
        drop(tokio::spawn(Arc::clone(self).send(outgoing)));
    }

    /// Sends a call and enters its answer into the table.
    pub(super) async fn send(self: Arc<Self>, Outgoing { hash, place, call, called }: Outgoing) {
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        let deadline = Deadline::default().within(self.redis.timeout());
        let answer = self.redis.lease(&place, &call, deadline).await;
        let mut shard = self.table.shard(hash);
        let entry = shard.get_mut(&hash).filter(|entry| entry.is_under(&place.limit));
        let now = self.now();
        match &answer {
            Ok(grant) => {
                self.note_round_trip(now.since(called.sent()).get());
                if let Some(entry) = entry {
                    entry.bucket.granted(called, grant, now);
                }
            }
            Err(_) => {
                self.counters.failed_calls.fetch_add(1, Ordering::Relaxed);
                self.count_stranded(call.returned / Terms::of(&place.limit).units);
                if let Some(entry) = entry {
                    entry.bucket.gave_up(called, now);
                }
            }
        }
    }

    /// Smooths the round trip over about eight calls.
    fn note_round_trip(&self, sample: u64) {
        let before = self.round_trip.load(Ordering::Relaxed);
        let after = if before == 0 { sample } else { (7 * before + sample) / 8 };
        self.round_trip.store(after.max(1), Ordering::Relaxed);
    }
}
