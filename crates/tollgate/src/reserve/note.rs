//! What is noted of a reservation: enough to settle it on any node, and no more.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tollgate_core::rule::{Consistency, Mode};
use tollgate_core::{Descriptor, Draft, Limit, Mark, Micros, Rule, RuleSet, Timestamp};

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
    /// Where its decisions are made.
    consistency: String,
}

impl Note {
    /// What to remember of an answer; nothing where the store charged nothing that a settlement could change.
    pub(super) fn of(answer: &Answer, request: &Descriptor<'_>, cost: u64, ttl: Micros) -> Option<Self> {
        if !answer.allowed() {
            return None;
        }
        // Where a policy stands in for the store, there is nothing to come back to.
        let at_store =
            answer.tiers().iter().filter(|tier| tier.instead().is_none() && tier.verdict().allowed);
        let mut facts = BTreeMap::new();
        let mut charged = Vec::new();
        for tier in at_store {
            let rule = answer.rules().rule(tier.rule);
            let bucket = Charged::of(rule, request, tier.mark).filter(|bucket| bucket.price > 0);
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
    pub(super) fn buckets<'a>(&'a self, rules: &'a RuleSet) -> Vec<Reserved<'a>> {
        let bucket = |charged: &'a Charged| {
            let rule = charged.rule(rules)?;
            let same = rule.mode() != Mode::Off
                && rule.limit()?.algorithm_name().as_str() == charged.algorithm
                && rule.space().digest() == charged.space;
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

    /// Its rule as it is now.
    pub(super) fn rule(&self) -> &Rule {
        &self.rule
    }

    /// What so much more or less of the request's cost is under its rule; none where the cost makes no difference.
    pub(super) fn cost_of(&self, difference: u64) -> Option<u64> {
        Some(self.charged.price.saturating_mul(difference)).filter(|cost| *cost > 0)
    }

    /// What names its charge.
    pub(super) const fn mark(&self) -> Mark {
        Mark { at: Timestamp::from_micros(self.charged.at_us), rest: self.charged.rest }
    }
}

impl Charged {
    fn of(rule: &Rule, request: &Descriptor<'_>, mark: Mark) -> Option<Self> {
        let limit = rule.limit()?;
        Some(Charged {
            rule: rule.label().to_owned(),
            space: rule.space().digest(),
            algorithm: limit.algorithm_name().as_str().to_owned(),
            price: rule.unit_cost(request),
            at_us: mark.at.as_micros(),
            rest: mark.rest,
            own: rule.is_ad_hoc().then(|| OwnLimit::of(limit, rule.consistency())),
        })
    }

    fn rule<'r>(&self, rules: &'r RuleSet) -> Option<Cow<'r, Rule>> {
        match &self.own {
            Some(own) => Some(Cow::Owned(own.rule(&self.algorithm)?)),
            None => rules.rules().iter().find(|rule| rule.label() == self.rule).map(Cow::Borrowed),
        }
    }
}

impl OwnLimit {
    fn of(limit: &Limit, consistency: Consistency) -> Self {
        let Draft { window, time_zone, aligned, .. } = Draft::from(limit);
        let consistency = consistency.as_str().to_owned();
        OwnLimit { limit: limit.to_string(), window, time_zone, aligned, consistency }
    }

    fn rule(&self, algorithm: &str) -> Option<Rule> {
        let OwnLimit { limit, window, time_zone, aligned, consistency } = self;
        let draft = Draft {
            key: "global".to_owned(),
            limit: Some(limit.clone()),
            algorithm: Some(algorithm.to_owned()),
            window: window.clone(),
            time_zone: time_zone.clone(),
            aligned: *aligned,
            consistency: Some(consistency.clone()),
            ..Draft::default()
        };
        let written = draft.build().ok()?;
        Some(Rule::ad_hoc(written.limit()?.clone()).with_consistency(written.consistency()))
    }
}
