//! A rule set: one immutable snapshot of all rules, with an index that finds the matching ones.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::algorithm::Demand;
use crate::descriptor::Descriptor;
use crate::index::Index;
use crate::key::Key;
use crate::limit::Limit;
use crate::rule::{Action, InvalidCost, Mode, Rule};
use crate::suggest::closest;
use crate::time::Micros;

/// For so many unknown names in `replaces` the closest known one is looked up.
const MOST_SUGGESTIONS: usize = 10;

/// The place of a rule in its set.
pub type RuleIndex = u32;

/// The rules that match a request, in the order of the set; the usual handful lives inline.
pub type Matched = SmallVec<[RuleIndex; 6]>;

/// The hits of one request; the usual handful lives inline.
pub type Hits<'a> = SmallVec<[Hit<'a>; 4]>;

/// One bucket to charge.
#[derive(Debug, Clone)]
pub struct Hit<'a> {
    /// Which bucket.
    pub key: Key<'a>,
    /// Its limit.
    pub limit: &'a Limit,
    /// What is asked of it.
    pub demand: Demand,
    /// Whether its refusal refuses the request.
    pub enforcement: Enforcement,
}

/// Whether a refusal counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Enforcement {
    /// It refuses the request.
    Enforce,
    /// It is noted; the bucket is charged on its own, and nobody is stopped.
    Shadow,
}

impl Enforcement {
    /// The word for it in answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Enforcement::Enforce => "enforce",
            Enforcement::Shadow => "shadow",
        }
    }
}

/// What the rules say about a request before any bucket is asked.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the usual answer is the large one, and a box would be an allocation"
)]
pub enum Ruling<'r> {
    /// A `deny` rule refuses it.
    Denied(RuleIndex),
    /// An `allow` rule exempts it from every limit.
    Exempt,
    /// It is invalid: nothing tells what this rule would charge.
    Invalid(RuleIndex, Box<InvalidCost>),
    /// The buckets decide.
    Limited(Limited<'r>),
}

/// The buckets of a request, and the rules they belong to.
#[derive(Debug, Default)]
pub struct Limited<'r> {
    /// The rule of each hit.
    pub rules: SmallVec<[RuleIndex; 4]>,
    /// The buckets to charge.
    pub hits: Hits<'r>,
    /// Rules in shadow mode that would refuse the request whatever was counted: `deny` rules, and those whose cost
    /// attribute is invalid.
    pub shadow_denials: SmallVec<[RuleIndex; 1]>,
}

impl<'r> Limited<'r> {
    /// Adds the bucket of a rule, if it has one.
    #[inline]
    fn add(&mut self, place: RuleIndex, rule: &'r Rule, request: &'r Descriptor<'_>, demand: Demand) {
        let Some(hit) = rule.hit(request, demand) else { return };
        self.rules.push(place);
        self.hits.push(hit);
    }
}

/// All the rules of a moment. A request sees one set from beginning to end.
#[derive(Debug, Default)]
pub struct RuleSet {
    rules: Vec<Rule>,
    index: Index,
    /// For each rule, those it replaces where it matches.
    replaced: Vec<SmallVec<[RuleIndex; 1]>>,
    any_replaces: bool,
}

/// Why rules that are fine by themselves make no set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// Two rules with one identity would share their buckets.
    #[error("rule `{label}` is there twice; give one of them another `name`")]
    Duplicate {
        /// How both are shown.
        label: String,
        /// The later one.
        rule: usize,
        /// The earlier one.
        first: usize,
    },
    /// A rule replaces one that does not exist.
    #[error("replaces `{given}`, but there is no rule of that name{}", .closest.as_ref().map(|name| format!("; did you mean `{name}`?")).unwrap_or_default())]
    UnknownReplaced {
        /// The rule.
        rule: usize,
        /// What it wants to replace.
        given: String,
        /// What was probably meant.
        closest: Option<String>,
    },
    /// Rules that replace each other would leave nobody limited.
    #[error("rule `{label}` replaces itself, directly or through others, so none of them would apply")]
    ReplacesItself {
        /// The rule.
        rule: usize,
        /// How it is shown.
        label: String,
    },
}

impl SetError {
    /// The place of the rule to blame, in the order given.
    pub const fn rule(&self) -> usize {
        match self {
            SetError::Duplicate { rule, .. }
            | SetError::UnknownReplaced { rule, .. }
            | SetError::ReplacesItself { rule, .. } => *rule,
        }
    }
}

impl RuleSet {
    /// Puts rules together and indexes them.
    ///
    /// # Errors
    ///
    /// Every identity that is there twice and every `replaces` that leads nowhere or in a circle.
    pub fn new(rules: Vec<Rule>) -> Result<Self, Vec<SetError>> {
        let mut errors = Vec::new();
        let mut first_by_identity = HashMap::new();
        let mut by_label: HashMap<&str, usize> = HashMap::new();
        for (place, rule) in rules.iter().enumerate() {
            let identity = (
                rule.draft().name.as_deref(),
                rule.label(),
                rule.limit().is_some(),
                rule.action() == &Action::Deny,
            );
            // Names are unique among themselves; unnamed rules by key, plan and period.
            let identity = if identity.0.is_some() { (identity.0, "", true, true) } else { identity };
            let first = *first_by_identity.entry(identity).or_insert(place);
            if first != place {
                errors.push(SetError::Duplicate { label: rule.label().to_owned(), rule: place, first });
            }
            by_label.entry(rule.label()).or_insert(place);
        }
        let mut replaced = Vec::with_capacity(rules.len());
        let mut suggestions = MOST_SUGGESTIONS;
        for (place, rule) in rules.iter().enumerate() {
            let mut targets = SmallVec::new();
            for name in rule.replaces() {
                match by_label.get(name.as_str()) {
                    Some(target) => targets.push(index(*target)),
                    None => {
                        let closest = (suggestions > 0)
                            .then(|| closest(name, by_label.keys().copied()).map(str::to_owned))
                            .flatten();
                        suggestions = suggestions.saturating_sub(1);
                        errors.push(SetError::UnknownReplaced { rule: place, given: name.clone(), closest });
                    }
                }
            }
            replaced.push(targets);
        }
        errors.extend(circles(&rules, &replaced));
        if !errors.is_empty() {
            errors.sort_by_key(SetError::rule);
            return Err(errors);
        }
        let any_replaces = replaced.iter().any(|targets| !targets.is_empty());
        Ok(RuleSet { index: Index::new(&rules), rules, replaced, any_replaces })
    }

    /// Every rule, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule at a place.
    #[inline]
    pub fn rule(&self, index: RuleIndex) -> &Rule {
        &self.rules[index as usize]
    }

    /// The rules that apply to a request, in order.
    #[inline]
    pub fn matching(&self, request: &Descriptor<'_>) -> Matched {
        let mut matched = Matched::new();
        self.index.candidates(request, |candidate| {
            if self.rule(candidate).applies_to(request).is_ok() && !matched.contains(&candidate) {
                matched.push(candidate);
            }
        });
        matched.sort_unstable();
        if self.any_replaces {
            self.drop_replaced(request, &mut matched);
        }
        matched
    }

    /// Where a rule matches, those it replaces do not apply. A rule in shadow mode, or one that matches only one reading
    /// of the path, replaces none.
    fn drop_replaced(&self, request: &Descriptor<'_>, matched: &mut Matched) {
        let replaces =
            |rule: &Rule| rule.mode() == Mode::Enforce && rule.ambiguous_condition(request).is_none();
        let gone: SmallVec<[RuleIndex; 4]> = matched
            .iter()
            .filter(|rule| replaces(self.rule(**rule)))
            .flat_map(|rule| self.replaced[*rule as usize].iter().copied())
            .collect();
        matched.retain(|rule| !gone.contains(rule));
    }

    /// What the rules say about a request: denied, exempt, invalid, or these buckets. `deny` beats `allow`
    /// beats limits; only a limit reads the cost.
    #[inline]
    pub fn ruling<'a>(&'a self, request: &'a Descriptor<'_>, cost: u64, patience: Micros) -> Ruling<'a> {
        let matched = self.matching(request);
        let mut limited = Limited::default();
        let (mut denied, mut exempt, mut invalid) = (None, false, None);
        for place in matched {
            let rule = self.rule(place);
            let enforced = rule.mode() == Mode::Enforce;
            match rule.action() {
                _ if rule.denies(request) && enforced => denied = self.first_by_label(denied, place),
                _ if rule.denies(request) => limited.shadow_denials.push(place),
                Action::Allow => exempt |= enforced,
                Action::Limit(_) | Action::Deny => match rule.cost(request, cost) {
                    Ok(cost) => limited.add(place, rule, request, Demand { cost, patience }),
                    Err(_) if !enforced => limited.shadow_denials.push(place),
                    Err(error) => invalid = invalid.or(Some((place, error))),
                },
            }
        }
        match (denied, invalid) {
            (Some(rule), _) => Ruling::Denied(rule),
            (None, _) if exempt => Ruling::Exempt,
            (None, Some((rule, error))) => Ruling::Invalid(rule, error),
            (None, None) => Ruling::Limited(limited),
        }
    }

    /// The buckets of a request, whether or not a rule denies or exempts it, or its cost attribute is invalid: for
    /// operations that charge nothing.
    pub fn limited<'a>(&'a self, request: &'a Descriptor<'_>, cost: u64, patience: Micros) -> Limited<'a> {
        let mut limited = Limited::default();
        for place in self.matching(request) {
            let rule = self.rule(place);
            let cost = rule.cost(request, cost).unwrap_or(cost);
            limited.add(place, rule, request, Demand { cost, patience });
        }
        limited
    }

    fn first_by_label(&self, known: Option<RuleIndex>, other: RuleIndex) -> Option<RuleIndex> {
        known.into_iter().chain([other]).min_by_key(|rule| self.rule(*rule).label())
    }
}

/// The rules that `replaces` leads around in a circle: what is left once those that lead nowhere, and those that
/// nothing leads to, are peeled off again and again.
fn circles(rules: &[Rule], replaced: &[SmallVec<[RuleIndex; 1]>]) -> Vec<SetError> {
    let forward: Vec<Vec<usize>> =
        replaced.iter().map(|targets| targets.iter().map(|target| *target as usize).collect()).collect();
    let mut backward = vec![Vec::new(); rules.len()];
    for (from, targets) in forward.iter().enumerate() {
        targets.iter().for_each(|target| backward[*target].push(from));
    }
    let mut left = vec![true; rules.len()];
    peel(&mut left, &forward, &backward);
    peel(&mut left, &backward, &forward);
    (0..rules.len())
        .filter(|place| left[*place])
        .map(|place| SetError::ReplacesItself { rule: place, label: rules[place].label().to_owned() })
        .collect()
}

/// Drops every place without a way `out` to another that is left.
fn peel(left: &mut [bool], out: &[Vec<usize>], back: &[Vec<usize>]) {
    let mut ways: Vec<usize> = out.iter().map(|ways| ways.iter().filter(|to| left[**to]).count()).collect();
    let mut ends: Vec<usize> = (0..left.len()).filter(|place| left[*place] && ways[*place] == 0).collect();
    while let Some(end) = ends.pop() {
        left[end] = false;
        for from in back[end].iter().copied().filter(|from| left[*from]) {
            ways[from] -= 1;
            if ways[from] == 0 {
                ends.push(from);
            }
        }
    }
}

fn index(place: usize) -> RuleIndex {
    RuleIndex::try_from(place).expect("a set has fewer than 2^32 rules")
}

#[cfg(test)]
mod tests;
