//! A request whose rows lie in several slots of a Cluster: all or nothing in at most two round trips.
//!
//! ```text
//! charge every part, concurrently ---> every part passes: decided
//!                                 |--> one refuses: undo those that were charged, concurrently
//!                                 '--> one gives no answer: those that were charged are held until `finish`
//! ```
//!
//! Until then others see the parts that passed as charged. The exchange runs in a task of its own: if the decision is
//! dropped, what is not final is undone. A process that dies in between leaves the parts of that one request charged;
//! nothing is admitted twice for it. Rows in shadow mode are charged independently and stay charged.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tollgate_core::algorithm::Demand;
use tollgate_core::{Holder, Micros, Op, Outcome, StoreError, Tier, Timestamp};

use super::part::{Part, Row};
use super::script::{Done, Effect, Header};
use super::{RedisStore, Shared};
use crate::store::Call;

/// The charges of all parts. Unless they are final, dropping it undoes them.
#[derive(Debug)]
struct Exchange {
    shared: Arc<Shared>,
    header: Header,
    parts: Vec<(Part, Result<Done, StoreError>)>,
    is_final: bool,
}

/// What an undo changed.
type Undone = Vec<(Part, Option<Done>)>;

impl RedisStore {
    /// Charges all parts or none, and answers the latest instant.
    pub(super) async fn charge_parts(
        &self,
        call: &mut Call<'_>,
        parts: Vec<Part>,
        header: Header,
        deadline: Instant,
    ) -> Timestamp {
        let was_lost = call.tiers.iter().any(is_lost);
        let (shared, owned) = (Arc::clone(&self.shared), parts);
        // In a task of its own: a dropped decision does not leave it half done.
        let exchange = tokio::spawn(async move {
            let mut exchange = Exchange::charge(shared, owned, header, deadline).await;
            let undone = exchange.refuses().then(|| exchange.undo()).flatten();
            exchange.is_final |= !was_lost && exchange.parts.iter().all(|(_, reply)| reply.is_ok());
            (exchange, undone)
        });
        let Ok((mut exchange, undone)) = exchange.await else {
            call.lose(StoreError::Unreachable);
            return self.redis_time();
        };
        let undone = match undone {
            Some(undone) => timeout_at(deadline, undone).await.map_or(Vec::new(), Result::unwrap_or_default),
            None => Vec::new(),
        };
        exchange.is_final = true; // from here on `finish` ends what is held
        exchange.conclude(call, was_lost);
        correct_logs(call, &undone);
        let instants = exchange.parts.iter().filter_map(|(_, reply)| reply.as_ref().ok());
        instants.map(|done| done.ran.now).max().unwrap_or_else(|| self.redis_time())
    }

    /// Ends what is held by a charge: it stands, or is undone in the background.
    pub(super) fn finish_held(&self, call: &mut Call<'_>, passes: bool) {
        let is_held = |tier: &Tier| matches!(tier.outcome, Outcome::Held { holder: Holder::Charge, .. });
        let held: Vec<bool> = call.tiers.iter().map(is_held).collect();
        if !held.contains(&true) {
            return;
        }
        if !passes {
            let parts = self.parts(call, |index| held[index]);
            spawn_undo(&self.shared, parts, self.header(Op::Undo, Micros::MAX, false));
        }
        for (tier, _) in call.tiers.iter_mut().zip(held).filter(|(_, is_held)| *is_held) {
            if let Outcome::Held { if_passed, .. } = tier.outcome {
                let limit = call.rules.rule(tier.rule).limit();
                tier.outcome =
                    Outcome::Decided(if passes { if_passed } else { if_passed.given_back(tier.cost, limit) });
            }
        }
    }
}

impl Exchange {
    /// Charges all parts concurrently. Those of a node that is known to be unavailable are not sent.
    async fn charge(shared: Arc<Shared>, parts: Vec<Part>, header: Header, deadline: Instant) -> Self {
        let charge = async |part: &Part| {
            if shared.topology.is_down(part.slot) {
                return Err(StoreError::Unreachable.unsent());
            }
            shared.ask(Op::Charge, part, header, deadline).await
        };
        let replies = join_all(parts.iter().map(charge)).await;
        let parts = parts.into_iter().zip(replies).collect();
        Exchange { shared, header, parts, is_final: false }
    }

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

    /// Begins to undo every charge of an enforcing row.
    fn undo(&mut self) -> Option<JoinHandle<Undone>> {
        self.is_final = true;
        let max_wait = self.header.max_wait;
        let charged = self.parts.iter().filter_map(|(part, reply)| {
            let done = reply.as_ref().ok().filter(|done| self.passed(part, done))?;
            let charged = part.charged(done, |row| Demand { cost: row.cost, max_wait });
            (!charged.rows.is_empty()).then_some(charged)
        });
        spawn_undo(&self.shared, charged.collect(), Header { op: Op::Undo as u8, ..self.header })
    }

    /// Gives every row its outcome.
    fn conclude(&self, call: &mut Call<'_>, was_lost: bool) {
        let is_refused = self.refuses();
        let is_held = was_lost || self.parts.iter().any(|(_, reply)| reply.is_err());
        for (part, reply) in &self.parts {
            let done = match reply {
                Ok(done) => done,
                Err(error) => {
                    part.lose(call, *error);
                    continue;
                }
            };
            let charged = self.passed(part, done);
            if charged && !is_refused && part.rows.iter().any(|row| row.cost > 0) {
                self.shared.topology.wrote(part.slot);
            }
            for (index, row) in part.rows.iter().enumerate() {
                let effect = match part.effect(Op::Charge, done, index, charged) {
                    Effect::Charged if is_refused && row.can_be_undone() => Effect::Undone,
                    effect => effect,
                };
                decide(call, row, index, done, effect, is_held);
            }
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if !self.is_final {
            let _in_the_background = self.undo();
        }
    }
}

/// Gives a row the outcome that a script answered. While another row is lost, a charge is held.
pub(super) fn decide(
    call: &mut Call<'_>,
    row: &Row,
    index: usize,
    done: &Done,
    effect: Effect,
    is_held: bool,
) {
    let (op, max_wait) = (call.op, call.max_wait);
    let bucket = (&row.place.limit, row.place.window);
    let (verdict, mark) = done.verdict(index, bucket, op, Demand { cost: row.cost, max_wait }, effect);
    let tier = &mut call.tiers[row.tier];
    if effect == Effect::Charged {
        tier.mark = mark;
    }
    tier.outcome = if is_held && effect == Effect::Charged && row.can_be_undone() {
        Outcome::Held { if_passed: verdict, holder: Holder::Charge }
    } else {
        Outcome::Decided(verdict)
    };
}

/// Whether a row has no answer.
pub(super) const fn is_lost(tier: &Tier) -> bool {
    matches!(tier.outcome, Outcome::Lost(_))
}

/// The numbers of a log are those of the answer to its charge; that to its undo has the later ones.
fn correct_logs(call: &mut Call<'_>, undone: &Undone) {
    for (part, done) in undone {
        let Some(done) = done else { continue };
        for (index, row) in part.rows.iter().enumerate().filter(|(_, row)| row.is_log()) {
            let bucket = (&row.place.limit, row.place.window);
            let demand = Demand { cost: row.cost, max_wait: Micros::MAX };
            let (verdict, _) = done.verdict(index, bucket, Op::Undo, demand, Effect::None);
            call.tiers[row.tier].outcome = Outcome::Decided(verdict);
        }
    }
}

/// Undoes charges in the background, all parts concurrently. A part that cannot be undone stays charged and is counted.
fn spawn_undo(shared: &Arc<Shared>, parts: Vec<Part>, header: Header) -> Option<JoinHandle<Undone>> {
    if parts.is_empty() {
        return None;
    }
    let Ok(runtime) = Handle::try_current() else {
        shared.stranded.fetch_add(u64::try_from(parts.len()).unwrap_or(0), Ordering::Relaxed);
        return None;
    };
    let shared = Arc::clone(shared);
    Some(runtime.spawn(async move {
        let deadline = Instant::now() + shared.timeout;
        let undo = async |part: Part| {
            let done = shared.ask(Op::Undo, &part, header, deadline).await;
            if let Err(error) = &done {
                tracing::warn!("a part of a refused request stays charged: {error}");
                shared.stranded.fetch_add(1, Ordering::Relaxed);
            }
            (part, done.ok())
        };
        join_all(parts.into_iter().map(undo)).await
    }))
}
