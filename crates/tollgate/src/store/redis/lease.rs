//! Lending: the store's side of leases, for one bucket at a time.

use redis::Cmd;
use tokio::time::Instant;
use tollgate_core::algorithm::{Demand, Window};
use tollgate_core::lease::{Call, Loan, NodeId};
use tollgate_core::{Enforcement, Hit, Limit, Micros, Timestamp, Verdict};

use super::script::{self, LeaseReply, Reply};
use super::{RedisStore, read, slots, state};
use crate::store::{StoreError, window};

/// A bucket that outlives the request which named it.
#[derive(Debug)]
pub(crate) struct Place {
    key: Vec<u8>,
    pub(crate) limit: Limit,
    window: Window,
}

impl RedisStore {
    pub(crate) fn place(&self, hit: &Hit<'_>) -> Place {
        Place { key: self.key(hit), limit: hit.limit.clone(), window: window(hit, hit.limit) }
    }

    /// Sends one call for the bucket of a hit, as nodes do among themselves.
    ///
    /// # Errors
    ///
    /// Redis could not be asked.
    #[doc(hidden)]
    pub async fn lend(&self, hit: &Hit<'_>, call: &Call) -> Result<Option<(Loan, Verdict)>, StoreError> {
        self.lease(&self.place(hit), call, self.deadline()).await
    }

    /// Tells what became of a lease and asks for more; the verdict is on a request of the least cost. `None` when the
    /// script has heard a later call of this node.
    pub(crate) async fn lease(
        &self,
        place: &Place,
        call: &Call,
        deadline: Instant,
    ) -> Result<Option<(Loan, Verdict)>, StoreError> {
        let injected = self.clock.injected();
        let mut around = injected.unwrap_or_else(|| self.redis_time());
        let slot = slots::slot(&place.key);
        for _ in 0..2 {
            let demand = Demand { cost: call.least, patience: Micros::MAX };
            let mut command = self.command_on(place, "lease", demand, around);
            let mut packed = Vec::with_capacity(64);
            state::put_call(call, &mut packed);
            command.arg(packed);
            match self.topology.call(slot, &command, deadline, LeaseReply::read).await? {
                LeaseReply::OtherTime(now) => {
                    self.note_time(now);
                    around = now;
                }
                LeaseReply::Done { loan: None, .. } => return Ok(None),
                LeaseReply::Done { done, loan: Some(loan) } => {
                    self.note(&done);
                    if loan.granted > 0 {
                        self.topology.wrote(slot);
                    }
                    let verdict = done.verdict_on_loan(&place.limit, place.window, call, loan);
                    return verdict.map(|verdict| Some((loan, verdict))).ok_or(StoreError::Unreachable);
                }
            }
        }
        Err(StoreError::Unreachable)
    }

    /// Whether a place can be asked, as far as is known.
    pub(crate) fn reaches(&self, place: &Place) -> bool {
        self.topology.reaches(slots::slot(&place.key))
    }

    /// Takes what was admitted without the store, or as much of it as there is; answers how much that was.
    pub(crate) async fn debit(&self, place: &Place, cost: u64) -> Result<u64, StoreError> {
        let (slot, deadline) = (slots::slot(&place.key), self.deadline());
        let mut around = self.clock.injected().unwrap_or_else(|| self.redis_time());
        for _ in 0..2 {
            let demand = Demand { cost, patience: Micros::MAX };
            let command = self.command_on(place, "debit", demand, around);
            match self.topology.call(slot, &command, deadline, |value| Reply::read(value, 1)).await? {
                Reply::Done(done) => {
                    self.topology.wrote(slot);
                    return done.moved().ok_or(StoreError::Unreachable);
                }
                Reply::OtherTime(now) => around = now,
            }
        }
        Err(StoreError::Unreachable)
    }

    /// Charges a place and answers the verdict, as [`charge`](crate::Store::charge) does a hit.
    pub(crate) async fn charge_place(
        &self,
        place: &Place,
        demand: Demand,
        deadline: Instant,
    ) -> Result<Verdict, StoreError> {
        let command = self.command_on(place, "charge", demand, self.redis_time());
        let slot = slots::slot(&place.key);
        let reply = self.topology.call(slot, &command, deadline, |value| Reply::read(value, 1)).await?;
        let Reply::Done(done) = reply else { return Err(StoreError::Unreachable) };
        self.note_time(done.now);
        if done.passes {
            self.topology.wrote(slot);
        }
        done.verdict_on_charge(&place.limit, place.window, demand).ok_or(StoreError::Unreachable)
    }

    /// The script's call for one bucket.
    fn command_on(&self, place: &Place, verb: &str, demand: Demand, around: Timestamp) -> Cmd {
        let mut hit = Vec::with_capacity(64);
        script::pack_parts(&place.limit, place.window, demand, Enforcement::Enforce, around, &mut hit);
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&self.sha).arg(1).arg(&place.key).arg(verb);
        match self.clock.injected() {
            Some(now) => command.arg(now.as_micros()),
            None => command.arg(""),
        };
        command.arg(hit);
        command
    }

    /// Says that a node is there for so long, or with no time that it leaves; answers how many there are, and how many of
    /// them come before it.
    pub(crate) async fn roll_call(&self, node: NodeId, term: Micros) -> Result<(u32, u32), StoreError> {
        let mut member = node.0.to_le_bytes().to_vec();
        state::put(term.get().cast_signed(), &mut member);
        let mut command = Cmd::new();
        let key = format!("{}:nodes", self.prefix);
        let slot = slots::slot(key.as_bytes());
        command.arg("EVALSHA").arg(&self.sha).arg(1).arg(key).arg("roll");
        match self.clock.injected() {
            Some(now) => command.arg(now.as_micros()),
            None => command.arg(""),
        };
        command.arg(member);
        let answer = self.topology.call(slot, &command, self.deadline(), read::<(i64, u32, u32)>).await?;
        Ok((answer.1, answer.2))
    }
}
