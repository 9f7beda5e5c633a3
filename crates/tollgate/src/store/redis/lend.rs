//! Leases and membership: the store's side, for one bucket at a time.

use tokio::time::Instant;
use tollgate_core::algorithm::Demand;
use tollgate_core::lease::{Grant, LeaseCall};
use tollgate_core::{Descriptor, Enforcement, Micros, Op, Rule, StoreError};

use super::part::Place;
use super::script::{self, DEBIT, Header, Reply, Script};
use super::{RedisStore, state};

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
        call: &LeaseCall,
    ) -> Result<Grant, StoreError> {
        let place = self.place(rule, rule.key(request));
        self.lease(&place, call, Instant::now() + self.timeout()).await
    }

    /// Gives back what the call says and asks for a lease.
    pub(crate) async fn lease(
        &self,
        place: &Place,
        call: &LeaseCall,
        deadline: Instant,
    ) -> Result<Grant, StoreError> {
        let put_call = |input: &mut Vec<u8>| state::put_call(call, input);
        let input = (Op::Charge as u8, Demand { cost: 0, max_wait: Micros::MAX }, put_call);
        let read = |value| script::read_lease(value, call);
        let (done, lease) = self.ask_place(Script::Lend, place, input, deadline, read).await?;
        if lease.is_some() {
            self.shared.topology.wrote(place.slot);
        }
        Ok(done.grant(&place.limit, place.window, lease))
    }

    /// Charges what was admitted without the store, or as much of it as there is room for; answers how much that was.
    pub(crate) async fn debit(&self, place: &Place, cost: u64) -> Result<u64, StoreError> {
        let deadline = Instant::now() + self.timeout();
        let input = (DEBIT, Demand { cost, max_wait: Micros::MAX }, |_: &mut Vec<u8>| {});
        let charged = self.ask_place(Script::Settle, place, input, deadline, script::read_debited).await?;
        self.shared.topology.wrote(place.slot);
        Ok(charged)
    }

    /// Whether a place can be asked, as far as is known.
    pub(crate) fn reaches(&self, place: &Place) -> bool {
        self.shared.topology.reaches(place.slot)
    }

    /// Reports that a node is alive for this long, or with no time that it leaves; answers how many nodes there are, and
    /// how many of them come before it.
    pub(crate) async fn heartbeat(&self, node: u64, ttl: Micros) -> Result<(u32, u32), StoreError> {
        let mut input = self.header(Op::Charge, Micros::ZERO, false).input(1, false);
        input.extend_from_slice(&node.to_le_bytes());
        // A score has 53 bits; equal ones are ordered by the node itself.
        state::put((node >> 11).cast_signed(), &mut input);
        state::put(ttl.get().cast_signed(), &mut input);
        let keys = ["ends", "ids"].map(|name| format!("{}:{{nodes}}{name}", self.prefix).into_bytes());
        let call = Script::Nodes.call(keys.iter().map(Vec::as_slice), &input);
        let (slot, deadline) = (self.shared.topology.slot(&keys[0]), Instant::now() + self.timeout());
        self.shared.topology.call(slot, &call, deadline, script::read_nodes).await
    }

    /// Calls a script for one bucket.
    async fn ask_place<T>(
        &self,
        script: Script,
        place: &Place,
        (op, demand, put_rest): (u8, Demand, impl Fn(&mut Vec<u8>)),
        deadline: Instant,
        read: impl Fn(redis::Value) -> Option<Reply<T>>,
    ) -> Result<T, StoreError> {
        let command = |header: &Header| {
            let mut input = header.input(2, false);
            let Place { limit, window, .. } = place;
            let mode = (Enforcement::Enforce, false);
            script::put_row(limit, *window, mode, demand.cost, header.around, &mut input);
            put_rest(&mut input);
            script.call([place.key.as_slice()].into_iter(), &input)
        };
        let header = self.shared.header(op, demand.max_wait, false);
        self.shared.run_script(place.slot, header, deadline, command, read).await
    }
}
