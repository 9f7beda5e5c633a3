//! What is noted of a reservation: enough to settle it on any node, and no more.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tollgate_core::algorithm::Demand;
use tollgate_core::rule::Mode;
use tollgate_core::{Descriptor, Draft, Hit, Limit, Mark, Micros, Rule, RuleSet, Timestamp, Verdict};

use crate::limiter::Answer;

/// A reservation: what it cost, and where it was charged.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) cost: u64,
    pub(super) ttl_us: u64,
    /// The facts that the keys of its buckets are made of.
    facts: BTreeMap<String, String>,
    charged: Vec<Charged>,
}

/// One bucket that was charged.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Charged {
    rule: String,
    /// The rule's part of the key.
    space: [u64; 2],
    algorithm: String,
    /// What it takes for a cost of 1; nothing where an attribute says what it takes.
    price: u64,
    at_us: i64,
    #[serde(default)]
    rest: u64,
    /// The limit, where it came with the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    own: Option<OwnLimit>,
}

/// A limit that belongs to no rule.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct OwnLimit {
    limit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aligned: Option<bool>,
}

impl Note {
    /// What to remember of an answer; nothing where the store charged nothing that a settlement could change.
    pub(super) fn of(answer: &Answer, request: &Descriptor<'_>, cost: u64, ttl: Micros) -> Option<Self> {
        if !answer.allowed() {
            return None;
        }
        // Where a policy stands in for the store, there is nothing to come back to.
        let at_store = answer.tiers().iter().filter(|tier| tier.instead.is_none() && tier.verdict.allowed);
        let mut facts = BTreeMap::new();
        let mut charged = Vec::new();
        for tier in at_store {
            let rule = answer.rules().rule(tier.rule);
            let bucket = Charged::of(rule, request, tier.verdict.mark).filter(|bucket| bucket.price > 0);
            let Some(bucket) = bucket else { continue };
            charged.push(bucket);
            let counted = rule.pattern().attributes();
            let known = counted.filter_map(|name| Some((name.to_owned(), request.text(name)?.into_owned())));
            facts.extend(known);
        }
        (!charged.is_empty()).then(|| Note { cost, ttl_us: ttl.get(), facts, charged })
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        // Text and numbers: there is nothing in them that JSON cannot say.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// The request, as far as its buckets are concerned.
    pub(super) fn request(&self) -> Descriptor<'_> {
        let mut request = Descriptor::new();
        self.facts.iter().for_each(|(name, value)| request.set(name.as_str(), value.as_str()));
        request
    }

    /// Its buckets, as far as the rules still have them. A rule that counts otherwise by now has others.
    pub(super) fn buckets<'a>(&'a self, rules: &'a RuleSet, request: &Descriptor<'_>) -> Vec<Reserved<'a>> {
        let bucket = |charged: &'a Charged| {
            let rule = charged.rule(rules)?;
            let same = rule.mode() != Mode::Off
                && rule.limit()?.algorithm_name().as_str() == charged.algorithm
                && rule.key(request).space().digest() == charged.space;
            same.then_some(Reserved { charged, rule })
        };
        self.charged.iter().filter_map(bucket).collect()
    }
}

/// A bucket that was charged, and its rule as it is now.
#[derive(Debug)]
pub(super) struct Reserved<'a> {
    charged: &'a Charged,
    rule: Cow<'a, Rule>,
}

impl Reserved<'_> {
    /// What a cost of 1 takes from it.
    pub(super) const fn price(&self) -> u64 {
        self.charged.price
    }

    /// What so much more or less asks of it; nothing where the cost makes no difference.
    pub(super) fn hit<'h>(&'h self, request: &'h Descriptor<'_>, difference: u64) -> Option<Hit<'h>> {
        let cost = self.charged.price.saturating_mul(difference);
        let hit = self.rule.hit(request, Demand { cost: 0, patience: Micros::MAX })?;
        (cost > 0).then_some(Hit { demand: Demand { cost, patience: Micros::MAX }, ..hit })
    }

    /// The verdict with which it was charged, as far as an undo asks.
    pub(super) fn verdict(&self) -> Verdict {
        let capacity = self.rule.limit().map_or(0, Limit::capacity);
        let mark = Mark { at: Timestamp::from_micros(self.charged.at_us), rest: self.charged.rest };
        Verdict { mark, ..Verdict::open(capacity) }
    }
}

impl Charged {
    fn of(rule: &Rule, request: &Descriptor<'_>, mark: Mark) -> Option<Self> {
        let limit = rule.limit()?;
        Some(Charged {
            rule: rule.label().to_owned(),
            space: rule.key(request).space().digest(),
            algorithm: limit.algorithm_name().as_str().to_owned(),
            price: rule.unit_cost(request),
            at_us: mark.at.as_micros(),
            rest: mark.rest,
            own: rule.is_ad_hoc().then(|| OwnLimit::of(limit)),
        })
    }

    fn rule<'r>(&self, rules: &'r RuleSet) -> Option<Cow<'r, Rule>> {
        match &self.own {
            Some(own) => Some(Cow::Owned(Rule::ad_hoc(&self.rule, own.limit(&self.algorithm)?))),
            None => rules.rules().iter().find(|rule| rule.label() == self.rule).map(Cow::Borrowed),
        }
    }
}

impl OwnLimit {
    fn of(limit: &Limit) -> Self {
        let Draft { window, time_zone, aligned, .. } = Draft::from(limit);
        OwnLimit { limit: limit.to_string(), window, time_zone, aligned }
    }

    fn limit(&self, algorithm: &str) -> Option<Limit> {
        let OwnLimit { limit, window, time_zone, aligned } = self;
        let draft = Draft {
            key: "global".to_owned(),
            limit: Some(limit.clone()),
            algorithm: Some(algorithm.to_owned()),
            window: window.clone(),
            time_zone: time_zone.clone(),
            aligned: *aligned,
            ..Draft::default()
        };
        draft.build().ok()?.limit().cloned()
    }
}
