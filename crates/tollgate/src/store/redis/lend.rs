//! Leases and membership: the store's side, for one bucket at a time.

use tokio::time::Instant;
use tollgate_core::algorithm::Demand;
use tollgate_core::lease::{self, Loan, NodeId};
use tollgate_core::{Descriptor, Enforcement, Mark, Micros, Op, Rule, StoreError, Verdict};

use super::part::Place;
use super::script::{self, DEBIT, Done, Effect, Reply, Script};
use super::{RedisStore, state};

/// What a call for a lease was answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lent {
    pub(crate) loan: Loan,
    /// The answer to the request that waited for the loan.
    pub(crate) verdict: Verdict,
    /// What an undo of a charge names that was made on the loan.
    pub(crate) mark: Mark,
}

impl RedisStore {
    /// Sends one call for a lease, as nodes do.
    ///
    /// # Errors
    ///
    /// Redis gave no answer.
    #[doc(hidden)]
    pub async fn lend(
        &self,
        rule: &Rule,
        request: &Descriptor<'_>,
        call: &lease::Call,
    ) -> Result<Option<(Loan, Verdict)>, StoreError> {
        let place = self.place(rule, rule.key(request));
        let lent = self.lease(&place, call, Instant::now() + self.timeout()).await?;
        Ok(lent.map(|lent| (lent.loan, lent.verdict)))
    }

    /// Reports what became of a lease and asks for more; the verdict is on a request of the least cost. `None` if the
    /// store has received a later call of this node.
    pub(crate) async fn lease(
        &self,
        place: &Place,
        call: &lease::Call,
        deadline: Instant,
    ) -> Result<Option<Lent>, StoreError> {
        let put_call = |input: &mut Vec<u8>| state::put_call(call, input);
        let (op, demand) = (Op::Charge as u8, Demand { cost: call.least, max_wait: Micros::MAX });
        let input = (op, demand, put_call);
        let (done, loan) = self.ask_place(Script::Lend, place, input, deadline, script::read_lease).await?;
        self.shared.note(&done.ran);
        let Some(loan) = loan else { return Ok(None) };
        if loan.granted > 0 {
            self.shared.topology.wrote(place.slot);
        }
        let (verdict, mark) = done.verdict_on_loan(&place.limit, place.window, call, loan);
        Ok(Some(Lent { loan, verdict, mark }))
    }

    /// Charges what was admitted without the store, or as much of it as there is room for; answers how much that was.
    pub(crate) async fn debit(&self, place: &Place, cost: u64) -> Result<u64, StoreError> {
        let deadline = Instant::now() + self.timeout();
        let input = (DEBIT, Demand { cost, max_wait: Micros::MAX }, |_: &mut Vec<u8>| {});
        let (ran, charged) =
            self.ask_place(Script::Settle, place, input, deadline, script::read_settled).await?;
        self.shared.note(&ran);
        self.shared.topology.wrote(place.slot);
        Ok(charged)
    }

    /// Charges one bucket.
    pub(crate) async fn charge_place(
        &self,
        place: &Place,
        demand: Demand,
        deadline: Instant,
    ) -> Result<Verdict, StoreError> {
        let input = (Op::Charge as u8, demand, |_: &mut Vec<u8>| {});
        let read = |value| Done::read(value, 1);
        let done = self.ask_place(Script::ChargeLogs, place, input, deadline, read).await?;
        self.shared.note(&done.ran);
        let effect = if done.allows(0) && demand.cost > 0 { Effect::Charged } else { Effect::None };
        if effect == Effect::Charged {
            self.shared.topology.wrote(place.slot);
        }
        let bucket = (&place.limit, place.window);
        Ok(done.verdict(0, bucket, Op::Charge, demand, effect).0)
    }

    /// Whether a place can be asked, as far as is known.
    pub(crate) fn reaches(&self, place: &Place) -> bool {
        self.shared.topology.reaches(place.slot)
    }

    /// Reports that a node is alive for this long, or with no time that it leaves; answers how many nodes there are, and
    /// how many of them come before it.
    pub(crate) async fn heartbeat(&self, node: NodeId, ttl: Micros) -> Result<(u32, u32), StoreError> {
        let mut input = self.header(Op::Charge, Micros::ZERO, false).input(1);
        input.extend_from_slice(&node.0.to_le_bytes());
        state::put(ttl.get().cast_signed(), &mut input);
        let key = format!("{}:nodes", self.prefix).into_bytes();
        let call = Script::Nodes.call([key.as_slice()].into_iter(), &input);
        let (slot, deadline) = (self.shared.topology.slot(&key), Instant::now() + self.timeout());
        self.shared.topology.call(slot, &call, deadline, script::read_nodes).await
    }

    /// Calls a script for one bucket; a second time if the calendar windows that were sent are not those of Redis' clock.
    async fn ask_place<T>(
        &self,
        script: Script,
        place: &Place,
        (op, demand, put_rest): (u8, Demand, impl Fn(&mut Vec<u8>)),
        deadline: Instant,
        read: impl Fn(redis::Value) -> Option<Reply<T>>,
    ) -> Result<T, StoreError> {
        let mut header = self.header(Op::Charge, demand.max_wait, false);
        header.op = op;
        for _ in 0..2 {
            let mut input = header.input(2);
            let Place { limit, window, .. } = place;
            script::put_row(limit, *window, Enforcement::Enforce, demand.cost, header.around, &mut input);
            put_rest(&mut input);
            let call = script.call([place.key.as_slice()].into_iter(), &input);
            match self.shared.topology.call(place.slot, &call, deadline, &read).await? {
                Reply::Done(done) => return Ok(done),
                Reply::OtherTime(now) => {
                    self.shared.note_time(now);
                    header.around = now;
                }
            }
        }
        Err(StoreError::Unreachable)
    }
}
