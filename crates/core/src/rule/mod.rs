//! Rules: whom a limit applies to, and what happens beside counting.

mod cost;
mod draft;

use std::borrow::Cow;
use std::fmt;

use crate::algorithm::Demand;
use crate::condition::Condition;
use crate::descriptor::Descriptor;
use crate::key::{AD_HOC_KEY, Key, KeyPattern, Scope, Space};
use crate::limit::Limit;
use crate::ruleset::{Enforcement, Hit};

pub use cost::{CostRule, InvalidCost};
pub use draft::{CostDraft, Draft, Field, FieldError, FieldInfo, FieldKind, FieldProblem, FieldValue};

/// One line an operator wrote, validated.
///
/// Made from a [`Draft`], whatever it came from: a file, a row, a JSON body.
#[derive(Debug, Clone)]
pub struct Rule {
    draft: Draft,
    id: Option<i64>,
    label: Box<str>,
    space: Space,
    conditions: Vec<Condition>,
    action: Action,
    cost: CostRule,
    missing: Missing,
    consistency: Consistency,
    on_store_failure: FailurePolicy,
    mode: Mode,
}

/// What a matching rule does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Counts against a limit.
    Limit(Limit),
    /// Refuses at once.
    Deny,
    /// Exempts from every limit.
    Allow,
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// The words in rules files, SQL and JSON.
            pub const WORDS: &[&str] = &[$($word),+];

            /// The word in rules files, SQL and JSON.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// Reads such a word.
            pub fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some($name::$variant),)+ _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// What happens when an attribute of the key is absent.
    Missing {
        /// The rule does not apply.
        #[default] Skip = "skip",
        /// The request is refused.
        Deny = "deny",
        /// All such requests share one bucket.
        Shared = "shared",
    }
}

words! {
    /// Where a rule's decisions are made.
    Consistency {
        /// Every one at the store.
        #[default] Exact = "exact",
        /// Locally, with tokens borrowed from the store.
        Leased = "leased",
        /// Locally, with this node's share.
        Local = "local",
        /// Hot keys leased, the others exact.
        Auto = "auto",
    }
}

words! {
    /// What a rule says when the store cannot be asked.
    FailurePolicy {
        /// Let the request pass.
        #[default] Open = "open",
        /// Refuse it.
        Closed = "closed",
        /// Count it against this node's share.
        Local = "local",
    }
}

words! {
    /// Whether a rule refuses, only counts, or sleeps.
    Mode {
        /// It refuses.
        #[default] Enforce = "enforce",
        /// It is evaluated and counted, and never refuses.
        Shadow = "shadow",
        /// It is not there.
        Off = "off",
    }
}

/// Why a rule does not apply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch<'r> {
    /// It is switched off.
    Off,
    /// A condition does not hold.
    Condition(&'r Condition),
    /// An attribute of its key is absent and it skips such requests.
    Missing(&'r str),
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Off => f.write_str("the rule is off"),
            Mismatch::Condition(condition) => write!(f, "needs {}", condition.describe()),
            Mismatch::Missing(attribute) => write!(f, "the request has no {attribute}"),
        }
    }
}

impl Rule {
    /// The rule that a request without rules stands for: one limit, and a key of the caller's own, which is what the
    /// rule is called. It applies to [`Rule::naming`] that key.
    pub fn ad_hoc(key: &str, limit: Limit) -> Self {
        let space = Space::ad_hoc(&limit);
        Self::without_rules(key, limit, space)
    }

    /// The same for trying a limit out, in a bucket that nothing else reaches.
    pub fn playground(key: &str, limit: Limit) -> Self {
        let space = Space::playground(&limit);
        Self::without_rules(key, limit, space)
    }

    fn without_rules(key: &str, limit: Limit, space: Space) -> Self {
        Rule {
            draft: Draft { key: space.pattern().as_str().to_owned(), ..Draft::default() },
            id: None,
            label: key.into(),
            space,
            conditions: Vec::new(),
            action: Action::Limit(limit),
            cost: CostRule::Times(1),
            missing: Missing::default(),
            consistency: Consistency::default(),
            on_store_failure: FailurePolicy::default(),
            mode: Mode::default(),
        }
    }

    /// Whether it stands for a request without rules, so that it is called as the caller pleased.
    pub const fn is_ad_hoc(&self) -> bool {
        self.space.is_without_rule()
    }

    /// The request that names its bucket itself.
    pub fn naming<'a>(key: impl Into<Cow<'a, str>>) -> Descriptor<'a> {
        Descriptor::new().with(AD_HOC_KEY, key)
    }

    /// The name, or for an unnamed rule its key, plan and period: `user:{user_id} plan=free 1s`.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Its number in the database it came from; none of a file's.
    pub const fn id(&self) -> Option<i64> {
        self.id
    }

    /// The same rule, known to a database by this number.
    #[must_use]
    pub fn with_id(self, id: i64) -> Self {
        Rule { id: Some(id), ..self }
    }

    /// The rule as written.
    pub const fn draft(&self) -> &Draft {
        &self.draft
    }

    /// The key pattern.
    pub const fn pattern(&self) -> &KeyPattern {
        self.space.pattern()
    }

    /// What it counts by.
    pub fn scope(&self) -> Scope {
        self.pattern().scope()
    }

    /// The plan it is for; every plan without one.
    pub fn plan(&self) -> Option<&str> {
        self.draft.plan.as_deref()
    }

    /// Everything a request must meet: plan, literals of the key, `when`.
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// What it does.
    pub const fn action(&self) -> &Action {
        &self.action
    }

    /// The limit, unless it denies or allows.
    pub const fn limit(&self) -> Option<&Limit> {
        match &self.action {
            Action::Limit(limit) => Some(limit),
            Action::Deny | Action::Allow => None,
        }
    }

    /// All its keys.
    pub const fn space(&self) -> &Space {
        &self.space
    }

    /// What happens when an attribute of the key is absent.
    pub const fn missing(&self) -> Missing {
        self.missing
    }

    /// Where its decisions are made.
    pub const fn consistency(&self) -> Consistency {
        self.consistency
    }

    /// What is written down for when the store cannot be asked.
    pub const fn on_store_failure(&self) -> FailurePolicy {
        self.on_store_failure
    }

    /// What it says then. A rule that counts against a share does so whether or not the store is there.
    pub const fn without_store(&self) -> FailurePolicy {
        match self.consistency {
            Consistency::Local => FailurePolicy::Local,
            Consistency::Exact | Consistency::Leased | Consistency::Auto => self.on_store_failure,
        }
    }

    /// Whether it refuses, only counts, or sleeps.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The labels of the rules it stands in for.
    pub fn replaces(&self) -> &[String] {
        &self.draft.replaces
    }

    /// The bucket a request falls into.
    #[inline]
    pub fn key<'a>(&'a self, request: &'a Descriptor<'_>) -> Key<'a> {
        self.space.key(request)
    }

    /// A demand on the request's bucket; none where the rule has no bucket. [`Rule::cost`] has what a request costs.
    #[inline]
    pub fn hit<'a>(&'a self, request: &'a Descriptor<'_>, demand: Demand) -> Option<Hit<'a>> {
        let limit = self.limit()?;
        let enforcement = match self.mode {
            Mode::Shadow => Enforcement::Shadow,
            Mode::Enforce | Mode::Off => Enforcement::Enforce,
        };
        Some(Hit { key: self.key(request), limit, demand, enforcement })
    }

    /// The request whose key is shown as this text, if this rule has such keys.
    pub fn read_key(&self, shown: &str) -> Option<Descriptor<'static>> {
        self.space.read(shown)
    }

    /// What a request of this cost is charged.
    ///
    /// # Errors
    ///
    /// The rule takes the cost from an attribute, and its value is not a cost.
    #[inline]
    pub fn cost(&self, request: &Descriptor<'_>, cost: u64) -> Result<u64, Box<InvalidCost>> {
        match &self.cost {
            CostRule::Times(factor) => Ok(cost.saturating_mul(*factor)),
            CostRule::Attribute(name) => match request.get(name) {
                None => Ok(cost),
                Some(value) => cost::read(&value.text())
                    .ok_or_else(|| InvalidCost::new(self.label(), name, &value.text())),
            },
        }
    }

    /// What each unit of a request's cost is charged: 0 where an attribute of the request has the whole cost.
    pub fn unit_cost(&self, request: &Descriptor<'_>) -> u64 {
        match &self.cost {
            CostRule::Times(factor) => *factor,
            CostRule::Attribute(name) => u64::from(request.get(name).is_none()),
        }
    }

    /// Whether it applies to a request, and if not, why. If the path contains `%2F`, a limit or `deny` applies if either
    /// reading of the path matches, an `allow` only if both do.
    ///
    /// # Errors
    ///
    /// The first reason why it does not.
    #[inline]
    pub fn applies_to(&self, request: &Descriptor<'_>) -> Result<(), Mismatch<'_>> {
        if self.mode == Mode::Off {
            return Err(Mismatch::Off);
        }
        if let Some(condition) = self.conditions.iter().find(|condition| !condition.holds(request)) {
            return Err(Mismatch::Condition(condition));
        }
        if self.action == Action::Allow
            && let Some(condition) = self.ambiguous_condition(request)
        {
            return Err(Mismatch::Condition(condition));
        }
        if self.missing == Missing::Skip
            && let Some(absent) = self.pattern().names().find(|name| request.find(name).is_none())
        {
            return Err(Mismatch::Missing(absent.as_str()));
        }
        Ok(())
    }

    /// A condition that holds in one reading of the path and not in the other.
    #[inline]
    pub(crate) fn ambiguous_condition(&self, request: &Descriptor<'_>) -> Option<&Condition> {
        request.encoded_endpoint()?;
        self.conditions.iter().find(|condition| !condition.holds_in_both_readings(request))
    }

    /// Whether it refuses a request to which it applies, whatever was counted.
    #[inline]
    pub(crate) fn denies(&self, request: &Descriptor<'_>) -> bool {
        self.action == Action::Deny
            || self.missing == Missing::Deny
                && self.pattern().names().any(|name| request.find(name).is_none())
    }
}
