//! The rows of a request that lie in one slot: one call of a script.

use redis::Cmd;
use tollgate_core::algorithm::{Demand, Window};
use tollgate_core::limit::AlgorithmName;
use tollgate_core::{Enforcement, Holder, Key, Limit, Op, Outcome, Rule, StoreError, Tier, Timestamp};

use super::RedisStore;
use super::reserve::Record;
use super::script::{self, Done, Effect, HOLD, Header, RELEASE, SPEND, Script};
use super::state;
use crate::store::{Call, window};

/// A bucket that outlives the request which named it.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(super) key: Vec<u8>,
    pub(crate) limit: Limit,
    pub(super) window: Window,
    pub(super) slot: u16,
}

/// The rows of one slot.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) slot: u16,
    pub(super) rows: Vec<Row>,
    /// The record of the reservation in this slot, if the charge is one.
    pub(super) record: Option<Record>,
}

/// One row: everything that a call for its bucket needs, and its index in the call's rows.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) tier: usize,
    pub(super) place: Place,
    pub(super) enforcement: Enforcement,
    pub(super) cost: u64,
    pub(super) is_reported: bool,
    /// When its cost counts as spent, while it is held.
    pub(super) boundary: Option<Timestamp>,
}

impl RedisStore {
    /// The bucket of a rule and a key.
    pub(crate) fn place(&self, rule: &Rule, key: Key<'_>) -> Place {
        let limit = rule.limit().expect("rows are made for rules with a limit");
        let mut encoded = Vec::with_capacity(48);
        key.encode(&self.prefix, &mut encoded);
        let slot = self.shared.topology.slot(&encoded);
        Place { key: encoded, limit: limit.clone(), window: window(key, limit), slot }
    }

    /// Some rows of a call, by slot.
    pub(super) fn parts(&self, call: &Call<'_>, wanted: impl Fn(usize) -> bool) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::with_capacity(1);
        for (index, tier) in call.tiers.iter().enumerate().filter(|(index, _)| wanted(*index)) {
            let place = self.place(call.rule(tier), call.key(tier));
            let slot = place.slot;
            let Tier { enforcement, cost, is_reported, outcome, .. } = *tier;
            let boundary = match outcome {
                Outcome::Held { holder: Holder::Hold(boundary), .. } => Some(boundary),
                _ => None,
            };
            let row = Row { tier: index, place, enforcement, cost, is_reported, boundary };
            match parts.iter_mut().find(|part| part.slot == slot) {
                Some(part) => part.rows.push(row),
                None => parts.push(Part { slot, rows: vec![row], record: None }),
            }
        }
        parts
    }
}

impl Row {
    pub(super) fn is_log(&self) -> bool {
        self.place.limit.algorithm_name() == AlgorithmName::SlidingWindowLog
    }
}

impl Part {
    /// The script's call for its rows.
    pub(super) fn call(&self, header: &Header) -> Cmd {
        let mut input = header.input(self.rows.len(), self.record.is_some());
        for Row { place, enforcement, is_reported, cost, .. } in &self.rows {
            let mode = (*enforcement, *is_reported);
            script::put_row(&place.limit, place.window, mode, *cost, header.around, &mut input);
        }
        let ends_holds = matches!(header.op, SPEND | RELEASE);
        if ends_holds {
            let boundaries = self.rows.iter().map(|row| row.boundary.map_or(0, Timestamp::as_micros));
            boundaries.for_each(|boundary| state::put(boundary, &mut input));
        } else {
            if header.op == HOLD {
                input.extend_from_slice(&header.lease_time_bytes());
            }
            if let Some(record) = &self.record {
                record.put(&mut input);
            }
        }
        let script = match () {
            () if ends_holds => Script::Finish,
            () if self.rows.iter().any(Row::is_log) => Script::ChargeLogs,
            () => Script::Charge,
        };
        let buckets = self.rows.iter().map(|row| row.place.key.as_slice());
        script.call(buckets.chain(self.record.iter().map(|record| record.key.as_slice())), &input)
    }

    /// Whether no enforcing row refuses the request.
    pub(super) fn passes(&self, done: &Done) -> bool {
        let refuses =
            |(index, row): (usize, &Row)| row.enforcement == Enforcement::Enforce && !done.allows(index);
        !self.rows.iter().enumerate().any(refuses)
    }

    /// Whether some row was charged or held, if the request passes.
    pub(super) fn charges(&self, done: &Done) -> bool {
        self.rows.iter().enumerate().any(|(index, row)| row.cost > 0 && done.allows(index))
    }

    /// What a call did to the bucket of a row, given whether the request passes in its slot and everywhere.
    pub(super) fn effect(&self, op: Op, done: &Done, index: usize, charged: bool, passes: bool) -> Effect {
        let row = &self.rows[index];
        let counts = charged || row.enforcement == Enforcement::Shadow;
        match done.boundary(index) {
            Some(_) if passes => Effect::Spent,
            Some(_) => Effect::Returned,
            None if op == Op::Charge && row.cost > 0 && done.allows(index) && counts => Effect::Charged,
            None => Effect::None,
        }
    }

    /// The same with the boundaries of rows whose costs are held.
    pub(super) fn held(&self, done: &Done) -> Part {
        let row = |(index, row): (usize, &Row)| Row { boundary: done.boundary(index), ..row.clone() };
        let rows = self.rows.iter().enumerate().map(row).collect();
        Part { slot: self.slot, rows, record: self.record.clone() }
    }

    /// Whether there is something to end: a cost that is held, or the record of a request that does not pass.
    pub(super) fn has_to_end(&self, passes: bool) -> bool {
        self.rows.iter().any(|row| row.boundary.is_some()) || !passes && self.record.is_some()
    }

    /// What a row asks of its bucket.
    pub(super) fn verdict(
        &self,
        call: &Call<'_>,
        done: &Done,
        index: usize,
        effect: Effect,
    ) -> tollgate_core::Verdict {
        let Row { place, cost, .. } = &self.rows[index];
        let demand = Demand { cost: *cost, max_wait: call.max_wait };
        done.verdict(index, (&place.limit, place.window), call.op, demand, effect)
    }

    /// Its rows have no answer.
    pub(super) fn lose(&self, call: &mut Call<'_>, error: StoreError) {
        for row in &self.rows {
            call.tiers[row.tier].outcome = Outcome::Lost(error);
        }
    }
}
