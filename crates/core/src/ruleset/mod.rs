//! A rule set: one immutable snapshot of all rules, with an index that finds the matching ones.

mod index;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use crate::descriptor::{Attribute, Descriptor};
use crate::key::KeySeeds;
use crate::limit::Rank;
use crate::rule::{Action, InvalidCost, Mode, Rule};
use crate::suggest::closest;
use crate::tier::{Enforcement, KeyHash, Outcome, Tier, Tiers, Verdict};
use index::Index;

/// The most attributes that the rules of one set may name: a request's presence mask has this many bits.
const MAX_ATTRIBUTES: usize = 64;
/// The most unknown names in `replaces` for which the closest known one is looked up.
const MAX_SUGGESTIONS: usize = 10;

/// The place of a rule in its set.
pub type RuleIndex = u32;

/// The rules that match a request, in the order of the set; the usual handful is stored inline. Unlike a `SmallVec`, it does
/// not ask for each rule where the others are.
#[derive(Debug, Clone, Default)]
pub struct Matched {
    few: [RuleIndex; 8],
    len: usize,
    /// All of them, if there are more.
    many: Vec<RuleIndex>,
}

/// What the rules say about a request before any bucket is asked.
#[derive(Debug)]
pub enum Ruling {
    /// A `deny` rule refuses it.
    Denied(RuleIndex),
    /// An `allow` rule exempts it from every limit.
    Exempt,
    /// It is invalid: the cost under this rule is unknown.
    Invalid(RuleIndex, Box<InvalidCost>),
    /// The buckets of the rows decide.
    Limited,
}

/// One snapshot of all rules. A request sees one set from beginning to end.
#[derive(Debug, Default)]
pub struct RuleSet {
    rules: Vec<Rule>,
    index: Index,
    /// The bits of attributes without a fixed number in a presence mask.
    others: HashMap<Box<str>, u64, FixedState>,
    /// For each rule, those it replaces where it matches.
    replaced: Vec<SmallVec<[RuleIndex; 1]>>,
    any_replaces: bool,
    /// The same rules with one node's shares of their limits, as last asked for.
    divided: Mutex<Option<(Rank, Arc<RuleSet>)>>,
}

/// Why rules that are valid by themselves do not make a set.
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
    /// Rules that replace each other would leave requests without a limit.
    #[error("rule `{label}` replaces itself, directly or through others, so none of them would apply")]
    ReplacesItself {
        /// The rule.
        rule: usize,
        /// How it is shown.
        label: String,
    },
    /// The rules name too many attributes.
    #[error("the rules name more than {MAX_ATTRIBUTES} attributes; `{attribute}` is one too many")]
    TooManyAttributes {
        /// The first rule that names one too many.
        rule: usize,
        /// That attribute.
        attribute: String,
    },
}

impl SetError {
    /// The index of the rule that causes the error, in the order given.
    pub const fn rule(&self) -> usize {
        match self {
            SetError::Duplicate { rule, .. }
            | SetError::UnknownReplaced { rule, .. }
            | SetError::ReplacesItself { rule, .. }
            | SetError::TooManyAttributes { rule, .. } => *rule,
        }
    }
}

impl RuleSet {
    /// Puts rules together and indexes them.
    ///
    /// # Errors
    ///
    /// Every identity that is there twice and every `replaces` that leads nowhere or in a circle.
    pub fn new(mut rules: Vec<Rule>) -> Result<Self, Vec<SetError>> {
        let mut errors = Vec::new();
        let others = number_attributes(&mut rules, &mut errors);
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
        let mut suggestions = MAX_SUGGESTIONS;
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
        let divided = Mutex::default();
        Ok(RuleSet { index: Index::new(&rules), rules, others, replaced, any_replaces, divided })
    }

    /// A set of one rule, which replaces none.
    ///
    /// # Panics
    ///
    /// The rule names too many attributes.
    pub fn of(rule: Rule) -> Self {
        let (mut rules, mut errors) = (vec![rule], Vec::new());
        let others = number_attributes(&mut rules, &mut errors);
        assert!(errors.is_empty(), "one rule names at most {MAX_ATTRIBUTES} attributes");
        let replaced = vec![SmallVec::new()];
        RuleSet { index: Index::new(&rules), rules, others, replaced, ..RuleSet::default() }
    }

    /// The same rules with one node's share of each limit; a rule of which the node has no share has no limit. The
    /// indices are the same, and the set is built again only when the rank changes.
    pub fn divided(&self, rank: Rank) -> Arc<RuleSet> {
        let mut divided = self.divided.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match &*divided {
            Some((known, rules)) if *known == rank => Arc::clone(rules),
            _ => {
                let rules = self.rules.iter().map(|rule| rule.divided(rank)).collect();
                let rules = Arc::new(RuleSet { rules, ..RuleSet::default() });
                *divided = Some((rank, Arc::clone(&rules)));
                rules
            }
        }
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
        let present = self.presence(request);
        let mut search = Search { rules: &self.rules, request, present, matched: Matched::default() };
        self.index.search(&mut search);
        let mut matched = search.matched;
        matched.many.sort_unstable();
        matched.many.dedup();
        if self.any_replaces {
            self.drop_replaced(request, &mut matched);
        }
        matched
    }

    /// The attributes of a request that rules of this set name, one bit each.
    #[inline]
    fn presence(&self, request: &Descriptor<'_>) -> u64 {
        let fixed = request.fixed_mask().into();
        if self.others.is_empty() {
            return fixed;
        }
        let bits = request.others().filter_map(|(name, _)| self.others.get(&**name));
        bits.fold(fixed, |mask, bit| mask | bit)
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
        let kept = matched.iter().copied().filter(|rule| !gone.contains(rule));
        *matched = kept.collect();
    }

    /// What the rules say about a request: denied, exempt, invalid, or decided by the rows that this adds to `tiers`.
    /// `deny` overrides `allow`, which overrides limits; only a limit reads the cost.
    #[inline]
    pub fn tiers(&self, request: &Descriptor<'_>, cost: u64, seeds: &KeySeeds, tiers: &mut Tiers) -> Ruling {
        let mut blocked = None;
        for &place in self.matching(request).iter() {
            let rule = self.rule(place);
            match (rule.action(), rule.cost(request, cost)) {
                (Action::Limit(_), Ok(cost)) if !rule.denies(request) => {
                    let hash = seeds.hash(rule.key(request));
                    tiers.push(Tier::new(place, rule.enforcement(), cost, hash));
                }
                (_, cost) => self.block(place, request, cost.err(), &mut blocked, tiers),
            }
        }
        blocked.unwrap_or(Ruling::Limited)
    }

    /// A rule that is not a limit which counts the request: what the rules say is at least that.
    #[cold]
    fn block(
        &self,
        place: RuleIndex,
        request: &Descriptor<'_>,
        error: Option<Box<InvalidCost>>,
        blocked: &mut Option<Ruling>,
        tiers: &mut Tiers,
    ) {
        let rule = self.rule(place);
        let enforced = rule.enforcement() == Enforcement::Enforce;
        let allows = matches!(rule.action(), Action::Allow) && !rule.denies(request);
        *blocked = match (blocked.take(), error) {
            // Of several `deny` rules the first by label.
            (Some(Ruling::Denied(known)), _) if enforced && rule.denies(request) => {
                let first = if self.rule(known).label() <= rule.label() { known } else { place };
                Some(Ruling::Denied(first))
            }
            (_, _) if enforced && rule.denies(request) => Some(Ruling::Denied(place)),
            (known @ Some(Ruling::Denied(_)), _) => known,
            (known, _) if allows => {
                if enforced {
                    Some(Ruling::Exempt)
                } else {
                    known
                }
            }
            // A rule in shadow mode that would refuse the request whatever was counted.
            (known, _) if !enforced => {
                let outcome = Outcome::Decided(Verdict::DENIED);
                tiers.push(Tier { outcome, ..Tier::new(place, Enforcement::Shadow, 0, KeyHash(0)) });
                known
            }
            (None, Some(error)) => Some(Ruling::Invalid(place, error)),
            (known, _) => known,
        };
    }

    /// A row for every bucket of a request, whether or not a rule denies or exempts it or its cost attribute is invalid:
    /// for operations that charge nothing.
    pub fn buckets(&self, request: &Descriptor<'_>, cost: u64, seeds: &KeySeeds) -> Tiers {
        let matched = self.matching(request);
        let rows = matched.iter().filter_map(|&place| {
            let rule = self.rule(place);
            rule.limit()?;
            let cost = rule.cost(request, cost).unwrap_or(cost);
            Some(Tier::new(place, rule.enforcement(), cost, seeds.hash(rule.key(request))))
        });
        rows.collect()
    }
}

/// A search for the rules that apply to a request.
pub(crate) struct Search<'r> {
    rules: &'r [Rule],
    request: &'r Descriptor<'r>,
    /// The attributes that it has, one bit each.
    present: u64,
    matched: Matched,
}

impl Search<'_> {
    /// Adds those of these rules that apply.
    #[inline]
    fn look_at(&mut self, candidates: &[RuleIndex]) {
        if !candidates.is_empty() {
            self.look_at_each(candidates);
        }
    }

    #[inline(never)]
    fn look_at_each(&mut self, candidates: &[RuleIndex]) {
        for candidate in candidates {
            if self.rules[*candidate as usize].matches(self.request, self.present) {
                self.matched.push(*candidate);
            }
        }
    }
}

impl Matched {
    /// Adds a rule in its place; the index may find one in two ways.
    #[inline]
    fn push(&mut self, rule: RuleIndex) {
        if self.len == self.few.len() {
            return self.push_more(rule);
        }
        let after = self.few[..self.len].iter().rposition(|known| *known <= rule);
        let place = after.map_or(0, |after| after + 1);
        if after.is_none_or(|after| self.few[after] != rule) {
            self.few.copy_within(place..self.len, place + 1);
            self.few[place] = rule;
            self.len += 1;
        }
    }

    #[cold]
    fn push_more(&mut self, rule: RuleIndex) {
        if self.many.is_empty() {
            self.many.extend(self.few);
        }
        self.many.push(rule);
    }
}

impl Deref for Matched {
    type Target = [RuleIndex];

    #[inline]
    fn deref(&self) -> &[RuleIndex] {
        if self.many.is_empty() { &self.few[..self.len] } else { &self.many }
    }
}

impl FromIterator<RuleIndex> for Matched {
    fn from_iter<T: IntoIterator<Item = RuleIndex>>(rules: T) -> Self {
        let mut matched = Matched::default();
        rules.into_iter().for_each(|rule| matched.push(rule));
        matched
    }
}

impl PartialEq for Matched {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

/// Numbers the attributes that rules name, and gives each rule the mask of those it needs.
fn number_attributes(rules: &mut [Rule], errors: &mut Vec<SetError>) -> HashMap<Box<str>, u64, FixedState> {
    let mut others: HashMap<Box<str>, u64, FixedState> = HashMap::default();
    for (place, rule) in rules.iter_mut().enumerate() {
        let mut needs = 0;
        for attribute in rule.needed_attributes() {
            needs |= match attribute.number() {
                Some(number) => 1 << number,
                None if others.contains_key(attribute.as_str()) => others[attribute.as_str()],
                None if Attribute::FIXED + others.len() < MAX_ATTRIBUTES => {
                    let bit = 1 << (Attribute::FIXED + others.len());
                    others.insert(attribute.as_str().into(), bit);
                    bit
                }
                None => {
                    let attribute = attribute.as_str().to_owned();
                    if !errors.iter().any(|error| matches!(error, SetError::TooManyAttributes { .. })) {
                        errors.push(SetError::TooManyAttributes { rule: place, attribute });
                    }
                    0
                }
            };
        }
        rule.set_needs(needs);
    }
    others
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
