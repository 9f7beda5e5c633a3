//! Leaky buckets: a hot key takes its places in the queue by the block.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;
use tollgate_core::lease::{Block, Loan, Step, TERM, Temper, Turn};
use tollgate_core::{Hit, Micros, Timestamp, Verdict};

use super::Shared;
use super::charge::{Deadline, Next, Part, ROUNDS, is_over};
use super::desk::{Desk, KeyHash, Outgoing};
use crate::store::StoreError;

impl Shared {
    /// A place for a hit: of the block that is held, or of a new one.
    pub(super) async fn take_place(
        self: &Arc<Self>,
        hash: KeyHash,
        hit: &Hit<'_>,
        temper: Temper,
        deadline: &mut Deadline,
    ) -> Result<Part, StoreError> {
        let mut asked = None;
        for _ in 0..ROUNDS {
            match self.look_in_line(hash, hit, temper, &mut asked) {
                Ok(part) => return Ok(part),
                Err(Next::Wait(over)) => is_over(over, deadline.of(self)).await?,
                Err(Next::Call(outgoing)) => {
                    let block = Arc::clone(self).take_block(outgoing, hit.demand.patience, deadline.of(self));
                    let call = tokio::spawn(block);
                    match call.await.unwrap_or(Err(StoreError::Unreachable))? {
                        Some(part) => return Ok(part),
                        None => break, // too little room for a block: perhaps there is for one
                    }
                }
            }
        }
        self.counters.exact.fetch_add(1, Ordering::Relaxed);
        Ok(Part::Exact)
    }

    fn look_in_line(
        self: &Arc<Self>,
        hash: KeyHash,
        hit: &Hit<'_>,
        temper: Temper,
        asked: &mut Option<Timestamp>,
    ) -> Result<Part, Next> {
        let (cost, patience) = (hit.demand.cost, hit.demand.patience);
        let mut shard = self.desks.shard(hash);
        let desk = match Desk::of(&mut shard, hash, hit, self) {
            Some(desk) if cost > 0 => desk,
            _ => return Ok(Part::Exact),
        };
        let now = self.now();
        let asked = *asked.get_or_insert_with(|| {
            desk.holding.note(cost, temper, now);
            now
        });
        let turn = desk.block.as_mut().map_or(Turn::None, |block| block.take(cost, patience, now));
        let verdict = desk.holding.verdict(hit.limit.capacity(), now);
        match turn {
            Turn::Place { delay, ticket } => {
                self.counters.local.fetch_add(1, Ordering::Relaxed);
                return Ok(Part::Placed { hash, ticket, verdict: Verdict { delay, ..verdict } });
            }
            Turn::TooLate(wait) => {
                self.counters.remembered.fetch_add(1, Ordering::Relaxed);
                let refused = Verdict { allowed: false, retry_after: Some(wait), ..verdict };
                return Ok(Part::Refused(refused));
            }
            Turn::None => {}
        }
        match desk.holding.spend(cost, asked, now) {
            // One that would not wait as long as another might is no reason to refuse.
            Step::Refuse(verdict) if patience == Micros::MAX => {
                self.counters.remembered.fetch_add(1, Ordering::Relaxed);
                Ok(Part::Refused(verdict))
            }
            Step::Call => Err(Next::Call(desk.call(hash, hit, self, now))),
            Step::Wait => Err(Next::Wait(Arc::clone(&desk.over).notified_owned())),
            Step::Pass(_) | Step::Refuse(_) | Step::Exact => {
                self.counters.exact.fetch_add(1, Ordering::Relaxed);
                Ok(Part::Exact)
            }
        }
    }

    /// Charges a block of places, of which the first are for the request that waits; none when there is no room for it.
    async fn take_block(
        self: Arc<Self>,
        outgoing: Outgoing,
        patience: Micros,
        deadline: Instant,
    ) -> Result<Option<Part>, StoreError> {
        let Outgoing { hash, place, call } = outgoing;
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        let places = {
            let shard = self.desks.shard(hash);
            shard.get(&hash).map_or(call.least, |desk| desk.holding.places(call.least, call.want))
        };
        let answer = self.redis.charge_place(&place, places, deadline).await;
        let mut shard = self.desks.shard(hash);
        let Some(desk) = shard.get_mut(&hash) else { return answer.map(|_| None) };
        let now = self.now();
        let mut part = None;
        match &answer {
            Ok(verdict) => {
                let nothing = Loan { granted: 0, kept: 0, term: TERM };
                let sent = desk.holding.answered(call.sequence, nothing, verdict, now);
                let wait = verdict.delay.saturating_sub(patience);
                let own = if wait == Micros::ZERO { call.least } else { 0 };
                if let Some(sent) = sent.filter(|_| verdict.allowed) {
                    desk.block = Block::new(&place.limit, places, own, verdict, sent, now);
                    part = Some(if own > 0 {
                        let ticket = desk.block.as_ref().map_or(0, Block::first_ticket);
                        Part::Placed { hash, ticket, verdict: *verdict }
                    } else {
                        Part::Refused(Verdict {
                            allowed: false,
                            retry_after: Some(wait),
                            delay: Micros::ZERO,
                            ..*verdict
                        })
                    });
                }
            }
            Err(_) => {
                self.counters.failed_calls.fetch_add(1, Ordering::Relaxed);
                desk.holding.gave_up(call.sequence, now);
            }
        }
        desk.over.notify_waiters();
        drop(shard);
        answer.map(|_| part)
    }
}
