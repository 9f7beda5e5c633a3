//! Settling a reservation: all its buckets, and one receipt for them.

use std::slice;

use tollgate_core::algorithm::Demand;
use tollgate_core::{Hit, Micros, Verdicts};

use super::{MemoryStore, Operation};
use crate::reserve::ReservationId;
use crate::store::{About, Difference, Due, NoteName, StoreError};

/// The bytes of a receipt for one bucket: its rule's part of the key, and how much.
const LINE: usize = 24;

impl MemoryStore {
    pub(super) fn settle_once(
        &self,
        reservation: ReservationId,
        due: &[Due<'_>],
        ttl: Micros,
    ) -> Result<Vec<u64>, StoreError> {
        let name = NoteName { reservation, about: About::Receipt };
        let settle = || due.iter().flat_map(|due| line(&due.hit, self.settle_one(due))).collect();
        let receipt = self.notes.once(name, self.clock.now(), ttl, settle)?;
        // A rule that was not there when it was settled is left alone, and has nothing unpaid.
        let moved = |due: &Due<'_>| found(&receipt, &due.hit).unwrap_or(due.hit.demand.cost);
        Ok(due.iter().map(moved).collect())
    }

    fn settle_one(&self, due: &Due<'_>) -> u64 {
        match due.difference {
            Difference::Missing => self.debit(&due.hit),
            Difference::Rest(mark) => self.give_back(&due.hit, Operation::Undo(mark)),
        }
    }

    fn give_back(&self, hit: &Hit<'_>, operation: Operation) -> u64 {
        self.run(slice::from_ref(hit), operation, &mut Verdicts::new());
        hit.demand.cost
    }

    /// Takes as much of a hit's cost as there is.
    fn debit(&self, hit: &Hit<'_>) -> u64 {
        let hash = self.hash(&hit.key);
        let mut shard = self.lock(self.shard_of(hash));
        let (there, _) = self.one(&mut shard, hash, hit, Operation::Peek);
        let cost = hit.demand.cost.min(there.remaining);
        let part = Hit { demand: Demand { cost, ..hit.demand }, ..hit.clone() };
        self.one(&mut shard, hash, &part, Operation::Charge);
        cost
    }
}

fn line(hit: &Hit<'_>, moved: u64) -> [u8; LINE] {
    let [first, second] = hit.key.space().digest();
    let mut line = [0; LINE];
    for (part, number) in line.chunks_exact_mut(8).zip([first, second, moved]) {
        part.copy_from_slice(&number.to_le_bytes());
    }
    line
}

/// What a receipt says of a hit's bucket.
fn found(receipt: &[u8], hit: &Hit<'_>) -> Option<u64> {
    let rule = line(hit, 0);
    let (rule, _) = rule.split_at(16);
    let mut lines = receipt.chunks_exact(LINE).map(|line| line.split_at(16));
    let (_, moved) = lines.find(|(of, _)| *of == rule)?;
    moved.try_into().ok().map(u64::from_le_bytes)
}
