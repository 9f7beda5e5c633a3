//! Settling a reservation: all its buckets, and one receipt for them.

use tollgate_core::{Micros, StoreError};

use super::MemoryStore;
use super::bucket::Write;
use crate::reserve::ReservationId;
use crate::store::{About, Difference, Due, NoteName};

/// The bytes of a receipt for one bucket: the digest of its rule's keys, and how much was moved.
const LINE: usize = 24;

impl MemoryStore {
    pub(super) fn settle_once(
        &self,
        reservation: ReservationId,
        due: &[Due<'_>],
        ttl: Micros,
    ) -> Result<Vec<u64>, StoreError> {
        let name = NoteName { reservation, about: About::Receipt };
        let settle = || due.iter().flat_map(|due| line(due, self.settle_one(due))).collect();
        let receipt = self.notes.once(name, self.clock.now(), ttl, settle)?;
        // A rule that did not exist when it was settled is left alone, and has nothing unpaid.
        let moved = |due: &Due<'_>| found(&receipt, due).unwrap_or(due.cost);
        Ok(due.iter().map(moved).collect())
    }

    fn settle_one(&self, due: &Due<'_>) -> u64 {
        self.change(due.rule, due.key(), |bucket| match due.difference {
            // As much of the cost as there is.
            Difference::Missing => {
                let cost = due.cost.min(bucket.remaining());
                if cost > 0 {
                    bucket.take(cost);
                }
                (cost, Write::of(cost))
            }
            Difference::Rest(mark) => {
                let changed = bucket.is_known() && bucket.undo(due.cost, mark);
                (due.cost, if changed { Write::Change } else { Write::Nothing })
            }
        })
    }
}

fn line(due: &Due<'_>, moved: u64) -> [u8; LINE] {
    let [first, second] = due.rule.space().digest();
    let mut line = [0; LINE];
    for (part, number) in line.chunks_exact_mut(8).zip([first, second, moved]) {
        part.copy_from_slice(&number.to_le_bytes());
    }
    line
}

/// What a receipt says of a bucket.
fn found(receipt: &[u8], due: &Due<'_>) -> Option<u64> {
    let rule = line(due, 0);
    let (rule, _) = rule.split_at(16);
    let mut lines = receipt.chunks_exact(LINE).map(|line| line.split_at(16));
    let (_, moved) = lines.find(|(of, _)| *of == rule)?;
    moved.try_into().ok().map(u64::from_le_bytes)
}
