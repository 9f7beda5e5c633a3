//! A step as a line of JSON.

use std::fmt::Display;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use tollgate_core::{Enforcement, Micros, Tier};

use super::{Event, Step};
use crate::limiter::Answer;

impl Step<'_, '_> {
    /// Appends the step as one JSON object, without a newline.
    #[inline]
    pub fn write_json(&self, out: &mut Vec<u8>) {
        serde_json::to_writer(out, self).expect("keys are text, and writing to memory never fails");
    }
}

impl Serialize for Step<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_map(None)?;
        line.serialize_entry("t_us", &self.event.at.as_micros().unsigned_abs())?;
        line.serialize_entry("op", self.event.op.as_str())?;
        if let Some(answer) = &self.answer {
            let numbers = Numbers {
                allowed: answer.allowed(),
                limit: answer.limit(),
                remaining: answer.remaining(),
                retry_after: answer.retry_after(),
                reset_after: answer.reset_after(),
                delay: answer.delay(),
            };
            numbers.write(self.event.op.always_passes(), &mut line)?;
            line.serialize_entry("rule", &answer.rule())?;
            line.serialize_entry("limits", &Limits(self.event, answer))?;
        }
        line.end()
    }
}

/// What a decision and a verdict have in common.
struct Numbers {
    allowed: bool,
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after: Option<Micros>,
    reset_after: Micros,
    delay: Micros,
}

impl Numbers {
    fn write<M: SerializeMap>(self, passes: bool, map: &mut M) -> Result<(), M::Error> {
        let retry_after = if passes { Some(0) } else { self.retry_after.map(Micros::get) };
        map.serialize_entry("allowed", &(self.allowed || passes))?;
        map.serialize_entry("limit", &self.limit)?;
        map.serialize_entry("remaining", &self.remaining)?;
        map.serialize_entry("retry_after_us", &retry_after)?;
        map.serialize_entry("reset_after_us", &self.reset_after.get())?;
        map.serialize_entry("delay_us", &if passes { 0 } else { self.delay.get() })
    }
}

struct Limits<'s, 'a>(&'s Event<'a>, &'s Answer);

impl Serialize for Limits<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Limits(event, answer) = self;
        serializer.collect_seq(answer.tiers().iter().map(|tier| Limit { event, answer, tier }))
    }
}

struct Limit<'s, 'a> {
    event: &'s Event<'a>,
    answer: &'s Answer,
    tier: &'s Tier,
}

impl Serialize for Limit<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (rule, verdict) = (self.answer.rules().rule(self.tier.rule), *self.tier.verdict());
        let mut limit = serializer.serialize_map(None)?;
        limit.serialize_entry("rule", rule.label())?;
        limit.serialize_entry("key", &Text(rule.key(&self.event.request)))?;
        let numbers = Numbers {
            allowed: verdict.allowed,
            limit: Some(verdict.limit),
            remaining: Some(verdict.remaining),
            retry_after: verdict.retry_after,
            reset_after: verdict.reset_after,
            delay: verdict.delay,
        };
        numbers.write(self.event.op.always_passes(), &mut limit)?;
        let mode = match self.tier.enforcement {
            Enforcement::Enforce => "enforce",
            Enforcement::Shadow => "shadow",
        };
        limit.serialize_entry("mode", mode)?;
        limit.end()
    }
}

/// Writes what a value displays.
struct Text<T>(T);

impl<T: Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}
