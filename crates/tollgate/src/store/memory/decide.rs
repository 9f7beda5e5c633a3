//! The decision itself: every bucket of a request is asked, then all are charged or none.

use smallvec::SmallVec;
use tollgate_core::algorithm::{Answer, TokenBucket};
use tollgate_core::limit::{Algorithm, Refill};
use tollgate_core::{Enforcement, Hit, Timestamp, Verdict, Verdicts};

use super::limits::LimitId;
use super::packed::Packed;
use super::place::{Place, Write};
use super::shard::{KeyHash, Shard};
use super::{MemoryStore, Operation};
use crate::sync::MutexGuard;

impl MemoryStore {
    /// The commonest decision by the shortest way: a token bucket that is there and whose limit has not changed.
    /// Only reading and writing its 16 bytes is done under the lock. `None` where [`one`](Self::one) has to look.
    #[inline]
    pub(super) fn charge_token_bucket(
        &self,
        refill: &Refill,
        hash: KeyHash,
        hit: &Hit<'_>,
    ) -> Option<(Verdict, Timestamp)> {
        // Read before the lock is taken: if that took so long that it looks like a step, `one` reads it again.
        let now = self.clock.now();
        let id = self.limits.id(hit.limit)?;
        let mut shard = self.lock(self.shard_of(hash));
        let at = shard.find(hash)?;
        let mut bucket = TokenBucket::open(refill, shard.content(at).debt(id, refill)?, now)?;
        let answer = bucket.ask(hit.demand);
        if answer.allowed() && hit.demand.cost > 0 {
            bucket.take(hit.demand.cost);
            let packed = bucket.close().and_then(|debt| Packed::of_debt(debt, id))?;
            shard.overwrite(at, packed);
        }
        drop(shard);
        Some((bucket.verdict(answer), now))
    }

    /// One bucket of any kind under its shard's lock.
    pub(super) fn one(
        &self,
        shard: &mut Shard,
        hash: KeyHash,
        hit: &Hit<'_>,
        operation: Operation,
    ) -> (Verdict, Timestamp) {
        // Under the lock: an instant from before it would be behind what others wrote meanwhile.
        let now = self.clock.now();
        let cost = hit.demand.cost;
        let mut overflow = None;
        self.prepare(shard, hash, now);
        let mut place = self.open(shard, &mut overflow, hash, hit, now, 0);
        let answer = place.ask(operation, hit.demand);
        match operation {
            Operation::Charge if answer.allowed() => {
                place.bucket.take(cost);
                place.write = Write::of(cost);
            }
            Operation::Charge if place.bucket.stepped() => place.write = Write::of_step(cost),
            Operation::Refund if place.known => {
                place.bucket.refund(cost);
                place.write = Write::of(cost);
            }
            Operation::Undo(mark) if place.known && place.bucket.undo(cost, mark) => {
                place.write = Write::Change;
            }
            _ => {}
        }
        let verdict = place.bucket.verdict(answer);
        self.close(shard, &mut overflow, hash, hit, place);
        (verdict, now)
    }

    /// Several buckets: all their shards are locked, in order, until the last one is written.
    pub(super) fn many(&self, hits: &[Hit<'_>], operation: Operation, verdicts: &mut Verdicts) -> Timestamp {
        let hashes: SmallVec<[KeyHash; 4]> = hits.iter().map(|hit| self.hash(&hit.key)).collect();
        let mut numbers: SmallVec<[usize; 4]> = hashes.iter().map(|hash| self.shard_of(*hash)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        // Fetch every slot into the cache first, so that nobody waits for memory while all locks are held.
        for hash in &hashes {
            std::hint::black_box(self.lock(self.shard_of(*hash)).find(*hash));
        }
        let mut guards: SmallVec<[MutexGuard<'_, Shard>; 4]> =
            numbers.iter().map(|number| self.lock(*number)).collect();
        let guard_of = |hash: KeyHash| {
            numbers.binary_search(&self.shard_of(hash)).expect("every hit's shard was locked")
        };
        if operation == Operation::Refund {
            let mut at = Timestamp::default();
            for (hit, hash) in hits.iter().zip(&hashes) {
                let (verdict, now) = self.one(&mut guards[guard_of(*hash)], *hash, hit, operation);
                verdicts.push(verdict);
                at = now;
            }
            return at;
        }

        let now = self.clock.now(); // under the locks, as in `one`
        if operation == Operation::Charge {
            let shards = hashes.iter().map(|hash| guard_of(*hash)).collect();
            if self.charge_token_buckets(&mut guards, shards, &hashes, hits, now, verdicts).is_some() {
                return now;
            }
        }

        // Ask everybody first. A key that comes twice is asked for the sum: its second hit shares the place.
        hashes.iter().for_each(|hash| self.prepare(&mut guards[guard_of(*hash)], *hash, now));
        let mut overflow = None;
        let mut places: SmallVec<[Place<'_>; 4]> = SmallVec::new();
        let mut asked: SmallVec<[(usize, Answer); 4]> = SmallVec::new();
        for (index, (hit, hash)) in hits.iter().zip(&hashes).enumerate() {
            let same = |earlier: &usize| {
                let place: &Place<'_> = &places[asked[*earlier].0];
                let space = hits[*earlier].key.space().digest();
                hashes[*earlier] == *hash
                    || place.is_overflow()
                        && space == hit.key.space().digest()
                        && guards[guard_of(*hash)].find(*hash).is_none()
            };
            let place = match (0..index).find(same) {
                Some(earlier) => asked[earlier].0,
                None => {
                    let shard = &mut guards[guard_of(*hash)];
                    places.push(self.open(shard, &mut overflow, *hash, hit, now, places.len()));
                    places.len() - 1
                }
            };
            let answer = places[place].ask(operation, hit.demand);
            if answer.allowed() || hit.enforcement == Enforcement::Enforce {
                places[place].asked_before = places[place].asked_before.saturating_add(hit.demand.cost);
            }
            asked.push((place, answer));
        }
        let refuses = |(hit, (_, answer)): (&Hit<'_>, &(usize, Answer))| {
            hit.enforcement == Enforcement::Enforce && !answer.allowed()
        };
        let passes = !hits.iter().zip(&asked).any(refuses);

        for (hit, (place, answer)) in hits.iter().zip(&asked) {
            let place = &mut places[*place];
            let charged = answer.allowed() && (passes || hit.enforcement == Enforcement::Shadow);
            if operation == Operation::Charge && charged {
                place.bucket.take(hit.demand.cost);
                place.write = place.write.max(Write::of(hit.demand.cost));
            } else if operation == Operation::Charge && place.bucket.stepped() {
                place.write = place.write.max(Write::of_step(hit.demand.cost));
            }
        }
        verdicts.extend(asked.iter().map(|(place, answer)| places[*place].bucket.verdict(*answer)));
        for (number, place) in places.into_iter().enumerate() {
            let opened_by = asked.iter().position(|(place, _)| *place == number).expect("opened by a hit");
            let hash = hashes[opened_by];
            self.close(&mut guards[guard_of(hash)], &mut overflow, hash, &hits[opened_by], place);
        }
        now
    }

    /// The commonest request of several tiers by the shortest way: token buckets that are all there, and whose
    /// limits have not changed. `None`, and nothing done, where [`many`](Self::many) has to look.
    #[inline]
    fn charge_token_buckets(
        &self,
        guards: &mut [MutexGuard<'_, Shard>],
        shards: SmallVec<[usize; 4]>,
        hashes: &[KeyHash],
        hits: &[Hit<'_>],
        now: Timestamp,
        verdicts: &mut Verdicts,
    ) -> Option<()> {
        let mut opened: SmallVec<[(usize, LimitId, TokenBucket<'_>, Answer); 4]> = SmallVec::new();
        let mut passes = true;
        for (index, (hit, hash)) in hits.iter().zip(hashes).enumerate() {
            let Algorithm::TokenBucket(refill) = hit.limit.algorithm() else { return None };
            if hashes[..index].contains(hash) {
                return None;
            }
            let (id, shard) = (self.limits.id(hit.limit)?, &guards[shards[index]]);
            let at = shard.find(*hash)?;
            let bucket = TokenBucket::open(refill, shard.content(at).debt(id, refill)?, now)?;
            let answer = bucket.ask(hit.demand);
            passes &= answer.allowed() || hit.enforcement == Enforcement::Shadow;
            opened.push((at, id, bucket, answer));
        }
        let mut written: SmallVec<[Option<Packed>; 4]> = SmallVec::new();
        for (hit, (_, id, bucket, answer)) in hits.iter().zip(&mut opened) {
            let charged =
                answer.allowed() && hit.demand.cost > 0 && (passes || hit.enforcement == Enforcement::Shadow);
            written.push(if charged {
                bucket.take(hit.demand.cost);
                Some(bucket.close().and_then(|debt| Packed::of_debt(debt, *id))?)
            } else {
                None
            });
        }
        for ((shard, packed), (at, ..)) in shards.iter().zip(written).zip(&opened) {
            if let Some(packed) = packed {
                guards[*shard].overwrite(*at, packed);
            }
        }
        verdicts.extend(opened.iter().map(|(.., bucket, answer)| bucket.verdict(*answer)));
        Some(())
    }
}
