//! The rows of a request that lie in one slot: one call of a script.

use redis::Cmd;
use tollgate_core::algorithm::{Demand, Window};
use tollgate_core::limit::AlgorithmName;
use tollgate_core::{Enforcement, Key, Limit, Mark, Op, Outcome, Rule, StoreError, Tier};

use super::RedisStore;
use super::script::{self, Done, Effect, Header, Script};
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
}

/// One row: everything that a call for its bucket needs, and its index in the call's rows.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) tier: usize,
    pub(super) place: Place,
    pub(super) enforcement: Enforcement,
    pub(super) cost: u64,
    pub(super) mark: Mark,
    pub(super) is_reported: bool,
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
            let Tier { enforcement, cost, mark, is_reported, .. } = *tier;
            let row = Row { tier: index, place, enforcement, cost, mark, is_reported };
            match parts.iter_mut().find(|part| part.slot == slot) {
                Some(part) => part.rows.push(row),
                None => parts.push(Part { slot, rows: vec![row] }),
            }
        }
        parts
    }
}

impl Row {
    pub(super) fn is_log(&self) -> bool {
        self.place.limit.algorithm_name() == AlgorithmName::SlidingWindowLog
    }

    /// Whether a refusal of another row takes its charge back.
    pub(super) fn can_be_undone(&self) -> bool {
        self.enforcement == Enforcement::Enforce && self.cost > 0
    }
}

impl Part {
    /// The script's call for its rows.
    pub(super) fn call(&self, op: Op, header: &Header) -> Cmd {
        let mut input = header.input(self.rows.len());
        for Row { place, enforcement, is_reported, cost, .. } in &self.rows {
            let mode = (*enforcement, *is_reported);
            script::put_row(&place.limit, place.window, mode, *cost, header.around, &mut input);
        }
        if op == Op::Undo {
            self.rows.iter().for_each(|row| script::put_mark(row.mark, &mut input));
        }
        let script = if self.rows.iter().any(Row::is_log) { Script::ChargeLogs } else { Script::Charge };
        script.call(self.rows.iter().map(|row| row.place.key.as_slice()), &input)
    }

    /// Whether no enforcing row refuses the request.
    pub(super) fn passes(&self, done: &Done) -> bool {
        let refuses =
            |(index, row): (usize, &Row)| row.enforcement == Enforcement::Enforce && !done.allows(index);
        !self.rows.iter().enumerate().any(refuses)
    }

    /// What a call did to the bucket of a row, given whether enforcing rows were charged.
    pub(super) fn effect(&self, op: Op, done: &Done, index: usize, charged: bool) -> Effect {
        let row = &self.rows[index];
        let counts = charged || row.enforcement == Enforcement::Shadow;
        if op == Op::Charge && row.cost > 0 && done.allows(index) && counts {
            Effect::Charged
        } else {
            Effect::None
        }
    }

    /// The enforcing rows that a call has charged, with their marks.
    pub(super) fn charged(&self, done: &Done, demand: impl Fn(&Row) -> Demand) -> Part {
        let marked = |(index, row): (usize, &Row)| {
            let bucket = (&row.place.limit, row.place.window);
            let (_, mark) = done.verdict(index, bucket, Op::Charge, demand(row), Effect::Charged);
            Row { mark, ..row.clone() }
        };
        let rows = self.rows.iter().enumerate().filter(|(_, row)| row.can_be_undone()).map(marked).collect();
        Part { slot: self.slot, rows }
    }

    /// Its rows have no answer.
    pub(super) fn lose(&self, call: &mut Call<'_>, error: StoreError) {
        for row in &self.rows {
            call.tiers[row.tier].outcome = Outcome::Lost(error);
        }
    }
}
