//! A request whose rows lie in several slots of a Cluster: all or nothing in one round trip.
//!
//! ```text
//! hold the cost in every slot, concurrently ---> every slot passes: spend, in the background
//!                                           |--> one refuses: return, in the background
//!                                           '--> one gives no answer: `finish` says which, once the policy has answered
//! ```
//!
//! A hold is on the ledger of its bucket ([`tollgate_core::lease`]): until it is spent or returned, it counts as used and
//! does not decay. The exchange runs in a task of its own, so that holds of a decision that is dropped are returned. A
//! process that dies in between leaves them until their boundary, where they count as spent. Rows in shadow mode are
//! charged independently.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tollgate_core::{Holder, Micros, Op, Outcome, StoreError, Tier, Timestamp};

use super::part::Part;
use super::script::{self, Done, Effect, HOLD, Header, RELEASE, SPEND};
use super::{RedisStore, Shared};
use crate::store::Call;

/// The holds of all parts. Unless the decision ends them, dropping it returns them.
#[derive(Debug)]
struct Holds {
    shared: Arc<Shared>,
    header: Header,
    parts: Vec<(Part, Result<Done, StoreError>)>,
    is_taken: bool,
}

impl RedisStore {
    /// Takes all costs out or none, and answers the latest instant.
    pub(super) async fn hold_parts(
        &self,
        call: &mut Call<'_>,
        parts: Vec<Part>,
        header: Header,
        deadline: Instant,
    ) -> Timestamp {
        let was_lost = call.tiers.iter().any(is_lost);
        let header = Header { op: HOLD, ..header };
        let holding = tokio::spawn(Holds::ask(Arc::clone(&self.shared), parts, header, deadline));
        let Ok(mut holds) = holding.await else {
            call.lose(StoreError::Unreachable);
            return self.redis_time();
        };
        holds.is_taken = true;
        let passes = !holds.refuses();
        let is_open = passes && (was_lost || holds.parts.iter().any(|(_, reply)| reply.is_err()));
        if !is_open {
            holds.end(passes);
        }
        holds.conclude(call, passes, is_open);
        if let Some(reservation) = call.reservation.as_deref_mut() {
            reservation.is_recorded |= passes && holds.is_recorded();
            if is_open {
                reservation.records = holds.records();
            }
        }
        let instants = holds.parts.iter().filter_map(|(_, reply)| reply.as_ref().ok());
        instants.map(|done| done.ran.now).max().unwrap_or_else(|| self.redis_time())
    }

    /// Ends what is held: it is spent or returned, in the background. The records of a reservation keep the instants of the
    /// holds, or are deleted.
    pub(super) fn finish_held(&self, call: &mut Call<'_>, passes: bool) {
        let records =
            call.reservation.as_deref_mut().map(|reservation| std::mem::take(&mut reservation.records));
        for record in records.into_iter().flatten().filter(|_| !passes) {
            self.shared.delete(record);
        }
        let is_held = |tier: &Tier| matches!(tier.outcome, Outcome::Held { holder: Holder::Hold(_), .. });
        if !call.tiers.iter().any(is_held) {
            return;
        }
        for part in self.parts(call, |index| is_held(&call.tiers[index])) {
            let op = if passes { SPEND } else { RELEASE };
            self.shared.end(part, self.shared.header(op, Micros::MAX, false));
        }
        for tier in call.tiers.iter_mut() {
            if let Outcome::Held { if_passed, holder: Holder::Hold(_) } = tier.outcome {
                let limit = call.rules.rule(tier.rule).limit();
                tier.outcome =
                    Outcome::Decided(if passes { if_passed } else { if_passed.given_back(tier.cost, limit) });
            }
        }
    }
}

impl Holds {
    /// Asks all parts concurrently. Those of a node that is known to be unavailable are not sent.
    async fn ask(shared: Arc<Shared>, parts: Vec<Part>, header: Header, deadline: Instant) -> Self {
        let ask = async |part: &Part| {
            if shared.topology.is_down(part.slot) {
                return Err(StoreError::Unreachable.unsent());
            }
            shared.ask(part, header, deadline).await
        };
        let replies = join_all(parts.iter().map(ask)).await;
        let parts = parts.into_iter().zip(replies).collect();
        Holds { shared, header, parts, is_taken: false }
    }

    /// Whether the rows of a part were held.
    fn passed(&self, part: &Part, done: &Done) -> bool {
        !self.header.refused && part.passes(done)
    }

    /// Whether an enforcing row refuses the request.
    fn refuses(&self) -> bool {
        let refused = |(part, reply): &(Part, Result<Done, StoreError>)| match reply {
            Ok(done) => !self.passed(part, done),
            Err(_) => false,
        };
        self.header.refused || self.parts.iter().any(refused)
    }

    /// Whether the record that describes a reservation was written, and there is something to settle.
    fn is_recorded(&self) -> bool {
        let has_record = matches!(self.parts.first(), Some((Part { record: Some(_), .. }, Ok(_))));
        let charges = |(part, reply): &(Part, Result<Done, StoreError>)| {
            reply.as_ref().is_ok_and(|done| part.charges(done))
        };
        has_record && self.parts.iter().any(charges)
    }

    /// The keys of the records that were written.
    fn records(&self) -> Vec<Vec<u8>> {
        let written = self.parts.iter().filter(|(_, reply)| reply.is_ok());
        written.filter_map(|(part, _)| part.record.as_ref()).map(|record| record.key.clone()).collect()
    }

    /// Spends or returns everything that is held.
    fn end(&self, passes: bool) {
        let op = if passes { SPEND } else { RELEASE };
        let replies = self.parts.iter().filter_map(|(part, reply)| Some((part, reply.as_ref().ok()?)));
        let held = replies.filter(|(part, done)| self.passed(part, done)).map(|(part, done)| part.held(done));
        for part in held.filter(|part| part.has_to_end(passes)) {
            self.shared.end(part, self.shared.header(op, Micros::MAX, false));
        }
    }

    /// Gives every row its outcome. While a row is lost, those that passed stay held.
    fn conclude(&self, call: &mut Call<'_>, passes: bool, is_open: bool) {
        for (part, reply) in &self.parts {
            let done = match reply {
                Ok(done) => done,
                Err(error) => {
                    part.lose(call, *error);
                    continue;
                }
            };
            let held = self.passed(part, done);
            if held && passes && part.rows.iter().any(|row| row.cost > 0) {
                self.shared.topology.wrote(part.slot);
            }
            for (index, row) in part.rows.iter().enumerate() {
                let effect = part.effect(Op::Charge, done, index, held, passes);
                let verdict = part.verdict(call, done, index, effect);
                call.tiers[row.tier].outcome = match done.boundary(index) {
                    Some(boundary) if is_open && effect == Effect::Spent => {
                        Outcome::Held { if_passed: verdict, holder: Holder::Hold(boundary) }
                    }
                    _ => Outcome::Decided(verdict),
                };
            }
        }
    }
}

impl Drop for Holds {
    fn drop(&mut self) {
        if !self.is_taken {
            self.end(false);
        }
    }
}

impl Shared {
    /// Ends holds without waiting for the answer. The command is on the connection before this returns, so this node's next
    /// call for these buckets comes after it. A hold that cannot be returned counts as spent at its boundary.
    fn end(self: &Arc<Self>, part: Part, header: Header) {
        let shared = Arc::clone(self);
        let ending = async move {
            let deadline = Instant::now() + shared.timeout;
            let command = |header: &Header| part.call(header);
            let ended = shared.run_script(part.slot, header, deadline, command, script::read_ended).await;
            let late = *ended.as_ref().unwrap_or(&1);
            if header.op == RELEASE && late > 0 {
                let error = ended
                    .err()
                    .map_or_else(|| "it was returned too late".to_owned(), |error| error.to_string());
                tracing::warn!("a part of a refused request stays charged: {error}");
                shared.stranded.fetch_add(late, Ordering::Relaxed);
            }
        };
        if !spawn_started(ending) && header.op == RELEASE {
            self.stranded.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Deletes a record without waiting for that. One that stays expires.
    fn delete(self: &Arc<Self>, record: Vec<u8>) {
        let shared = Arc::clone(self);
        spawn_started(async move {
            let (slot, deadline) = (shared.topology.slot(&record), Instant::now() + shared.timeout);
            let _ = shared.topology.call(slot, redis::cmd("DEL").arg(record), deadline, |_| Some(())).await;
        });
    }
}

/// Polls a future once and spawns the rest of it; `false` outside of a runtime.
fn spawn_started(future: impl Future<Output = ()> + Send + 'static) -> bool {
    let Ok(runtime) = Handle::try_current() else { return false };
    let mut future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(future);
    if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        runtime.spawn(future);
    }
    true
}

/// Whether a row has no answer.
pub(super) const fn is_lost(tier: &Tier) -> bool {
    matches!(tier.outcome, Outcome::Lost(_))
}
