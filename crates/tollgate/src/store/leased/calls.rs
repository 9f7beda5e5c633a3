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
        let (now, units) = (self.now(), Terms::of(&place.limit).units);
        match (&answer, entry) {
            (Ok(grant), Some(entry)) => entry.bucket.granted(called, grant, now),
            (Ok(grant), None) => self.count_stranded(grant.lease.map_or(0, |lease| lease.content / units)),
            (Err(_), Some(entry)) => entry.bucket.gave_up(called, now),
            (Err(_), None) => {}
        }
        let is_in_time = answer.as_ref().is_ok_and(|grant| call.boundary.is_none_or(|end| grant.at < end));
        if !is_in_time {
            self.count_stranded(call.returned / units);
        }
        match answer {
            Ok(_) => self.note_round_trip(now.since(called.sent()).get()),
            Err(_) => _ = self.counters.failed_calls.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Smooths the round trip over about eight calls.
    fn note_round_trip(&self, sample: u64) {
        let before = self.round_trip.load(Ordering::Relaxed);
        let after = if before == 0 { sample } else { (7 * before + sample) / 8 };
        self.round_trip.store(after.max(1), Ordering::Relaxed);
    }
}
