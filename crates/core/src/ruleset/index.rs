//! Finds the rules that may match a request without looking at the others.
//!
//! Every rule is filed once, under its rarest condition: an exact value, a network, a path pattern. A request
//! then costs one look-up per attribute that rules are filed by, however many rules there are. What is found is
//! a superset; the rule itself has the last word.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use ipnet::IpNet;
use smallvec::SmallVec;

use crate::condition::{Condition, Test};
use crate::descriptor::{Attribute, Value};
use crate::glob::Glob;
use crate::rule::{Missing, Mode, Rule};
use crate::ruleset::{RuleIndex, Search};

// The keys of these maps come from the operator, not from requests, so a fixed seed cannot be attacked.
type Map<K, V> = HashMap<K, V, FixedState>;
type Filed = SmallVec<[RuleIndex; 2]>;

/// The index of a rule set.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Rules that may match any request.
    everywhere: Vec<RuleIndex>,
    /// The attributes with a fixed number under which rules are filed, one bit each.
    filed: u8,
    /// By attribute: those with a fixed number, and the others by name.
    fixed: [Filing; Attribute::FIXED],
    others: Map<Box<str>, Filing>,
    paths: PathNode,
    networks: Networks,
}

/// What is filed under one attribute.
#[derive(Debug, Default)]
struct Filing {
    /// Rules that need it to be there and have no condition.
    present: Filed,
    /// Rules that need it to have this value.
    values: Map<Box<str>, Filed>,
}

/// How many rules share each value: the fewer, the better it files.
type Crowd = Map<(Box<str>, Box<str>), usize>;

impl Index {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let mut crowd = Crowd::default();
        for condition in rules.iter().flat_map(Rule::conditions) {
            for value in values(condition) {
                *crowd.entry((condition.attribute().into(), value.into())).or_default() += 1;
            }
        }
        let mut index = Index::default();
        for (place, rule) in (0..).zip(rules) {
            if rule.mode() != Mode::Off {
                index.file(place, rule, &crowd);
            }
        }
        index
    }

    fn file(&mut self, place: RuleIndex, rule: &Rule, crowd: &Crowd) {
        let crowd_of = |condition: &Condition| {
            let shared = |value: String| crowd[&(condition.attribute().into(), value.into())];
            values(condition).map(shared).max().unwrap_or(usize::MAX)
        };
        let Some(rarest) = rule.conditions().iter().min_by_key(|condition| crowd_of(condition)) else {
            match rule.pattern().names().next().filter(|_| rule.missing() == Missing::Skip) {
                Some(needed) => self.filing(needed).present.push(place),
                None => self.everywhere.push(place),
            }
            return;
        };
        match rarest.test() {
            Test::OneOf(values) => {
                for value in values {
                    self.filing(rarest.name()).values.entry(value.clone()).or_default().push(place);
                }
            }
            Test::Path(globs) => {
                for glob in globs {
                    match glob.literal() {
                        Some(path) => {
                            self.filing(rarest.name()).values.entry(path.into()).or_default().push(place);
                        }
                        None => {
                            self.filed |= 1 << Attribute::ENDPOINT;
                            self.paths.file(glob, place);
                        }
                    }
                }
            }
            Test::Within(networks) => {
                self.filed |= 1 << Attribute::IP;
                networks.iter().for_each(|network| self.networks.file(*network, place));
            }
        }
    }

    fn filing(&mut self, attribute: &Attribute) -> &mut Filing {
        match attribute.number() {
            None => self.others.entry(attribute.as_str().into()).or_default(),
            Some(number) => {
                self.filed |= 1 << number;
                &mut self.fixed[number]
            }
        }
    }

    /// Looks at every rule that may match.
    #[inline]
    pub(crate) fn search(&self, search: &mut Search<'_>) {
        let request = search.request;
        search.look_at(&self.everywhere);
        let mut left = self.filed & request.fixed_mask();
        while left != 0 {
            let number = left.trailing_zeros() as usize;
            left &= left - 1;
            let Some(value) = request.fixed_value(number) else { continue };
            self.fixed[number].search(value, search);
            match value {
                Value::Ip(address) => self.networks.search(*address, search),
                path if number == Attribute::ENDPOINT => {
                    let (path, encoded) = (path.as_text().unwrap_or_default(), request.encoded_endpoint());
                    self.search_paths(&self.fixed[number], path, encoded, search);
                }
                _ => {}
            }
        }
        if !self.others.is_empty() {
            for (name, value) in request.others() {
                if let Some(filing) = self.others.get(&**name) {
                    filing.search(value, search);
                }
            }
        }
    }

    /// Rules filed under a path pattern, in both readings of the path.
    fn search_paths(&self, filing: &Filing, path: &str, encoded: Option<&str>, search: &mut Search<'_>) {
        if !self.paths.is_empty() {
            self.paths.search(Some(path), search);
        }
        if let Some(encoded) = encoded {
            filing.values.get(encoded).into_iter().for_each(|rules| search.look_at(rules));
            self.paths.search(Some(encoded), search);
        }
    }
}

impl Filing {
    #[inline(always)]
    fn search(&self, value: &Value<'_>, search: &mut Search<'_>) {
        search.look_at(&self.present);
        if !self.values.is_empty()
            && let Some(rules) = value.as_text().and_then(|text| self.values.get(text))
        {
            search.look_at(rules);
        }
    }
}

fn values(condition: &Condition) -> impl Iterator<Item = String> {
    let values: Vec<String> = match condition.test() {
        Test::OneOf(values) => values.iter().map(ToString::to_string).collect(),
        Test::Path(globs) => globs.iter().map(|glob| glob.as_str().to_owned()).collect(),
        Test::Within(networks) => networks.iter().map(ToString::to_string).collect(),
    };
    values.into_iter()
}

/// Networks by prefix length: one look-up for each length in use.
#[derive(Debug, Default)]
struct Networks {
    /// The lengths in use, ascending, for both families.
    lengths: Vec<u8>,
    filed: Map<IpNet, Filed>,
}

impl Networks {
    fn file(&mut self, network: IpNet, place: RuleIndex) {
        if let Err(at) = self.lengths.binary_search(&network.prefix_len()) {
            self.lengths.insert(at, network.prefix_len());
        }
        self.filed.entry(network).or_default().push(place);
    }

    fn search(&self, address: std::net::IpAddr, search: &mut Search<'_>) {
        for length in &self.lengths {
            let Ok(network) = IpNet::new(address, *length) else { break };
            if let Some(rules) = self.filed.get(&network.trunc()) {
                search.look_at(rules);
            }
        }
    }
}

/// Path patterns by segment. A segment with a star in it is filed under what stands before the star; from a
/// `**` on, the pattern itself has to look.
#[derive(Debug, Default)]
struct PathNode {
    /// Patterns that end here.
    here: Filed,
    /// Patterns with a `**` from here on.
    deep: Filed,
    literal: Map<Box<str>, PathNode>,
    /// By the text before the first star.
    starred: Map<Box<str>, PathNode>,
    /// The lengths of those texts, ascending.
    lengths: Vec<usize>,
}

impl PathNode {
    fn is_empty(&self) -> bool {
        self.here.is_empty() && self.deep.is_empty() && self.literal.is_empty() && self.starred.is_empty()
    }

    fn file(&mut self, glob: &Glob, place: RuleIndex) {
        let mut node = self;
        for segment in glob.as_str().split('/') {
            if segment.contains("**") {
                node.deep.push(place);
                return;
            }
            node = match segment.split_once('*') {
                None => node.literal.entry(segment.into()).or_default(),
                Some((before, _)) => {
                    if let Err(at) = node.lengths.binary_search(&before.len()) {
                        node.lengths.insert(at, before.len());
                    }
                    node.starred.entry(before.into()).or_default()
                }
            };
        }
        node.here.push(place);
    }

    /// Visits each node at most once: a node has one way to it.
    fn search(&self, path: Option<&str>, search: &mut Search<'_>) {
        search.look_at(&self.deep);
        let Some(path) = path else {
            search.look_at(&self.here);
            return;
        };
        let (segment, rest) = match path.split_once('/') {
            Some((segment, rest)) => (segment, Some(rest)),
            None => (path, None),
        };
        if let Some(node) = self.literal.get(segment) {
            node.search(rest, search);
        }
        for length in &self.lengths {
            if let Some(before) = segment.get(..*length)
                && let Some(node) = self.starred.get(before)
            {
                node.search(rest, search);
            }
        }
    }
}
