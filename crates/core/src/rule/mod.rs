//! Rules: whom a limit applies to, and what happens beside counting.

mod cost;
mod draft;

use std::borrow::Cow;
use std::fmt;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::condition::Condition;
use crate::descriptor::{Attribute, Descriptor, Value};
use crate::key::{AD_HOC_KEY, Key, KeyPattern, Scope, Space};
use crate::limit::{Limit, Rank};
use crate::tier::Enforcement;

pub use cost::{CostRule, InvalidCost};
pub use draft::{CostDraft, Draft, Field, FieldError, FieldInfo, FieldKind, FieldProblem, FieldValue};

/// One entry an operator wrote, validated and compiled.
///
/// Made from a [`Draft`], whatever it came from: a file, a row, a JSON body.
#[derive(Debug)]
pub struct Rule {
    /// The attributes that a request must have, by their bits in the set's presence mask.
    needs: u64,
    space: Arc<Space>,
    conditions: Arc<[Condition]>,
    action: Action,
    limit_number: LimitNumber,
    draft: Arc<Draft>,
    id: Option<i64>,
    label: Arc<str>,
    cost: CostRule,
    missing: Missing,
    consistency: Consistency,
    on_store_failure: FailurePolicy,
    mode: Mode,
}

/// A place for the number under which a store has interned a rule's limit, so that it need not be looked up again. What is
/// in it means something to that store only.
#[derive(Debug, Default)]
pub struct LimitNumber(pub AtomicU64);

impl Clone for Rule {
    fn clone(&self) -> Self {
        Rule {
            needs: self.needs,
            space: Arc::clone(&self.space),
            conditions: Arc::clone(&self.conditions),
            action: self.action.clone(),
            limit_number: LimitNumber::default(),
            draft: Arc::clone(&self.draft),
            id: self.id,
            label: Arc::clone(&self.label),
            cost: self.cost.clone(),
            missing: self.missing,
            consistency: self.consistency,
            on_store_failure: self.on_store_failure,
            mode: self.mode,
        }
    }
}

/// What a matching rule does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Counts against a limit.
    Limit(Limit),
    /// Refuses immediately.
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
    /// What happens to a request while the store is unavailable.
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
    /// Whether a rule refuses, only counts, or is disabled.
    Mode {
        /// It refuses.
        #[default] Enforce = "enforce",
        /// It is evaluated and counted, and never refuses.
        Shadow = "shadow",
        /// It is disabled.
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
    /// The rule for a limit without rules: it counts by a key of the caller's own. It applies to [`Rule::naming`] a key.
    pub fn ad_hoc(limit: Limit) -> Self {
        let space = Space::ad_hoc(&limit);
        Self::without_rules(limit, space)
    }

    /// The same for trying a limit out, in buckets that nothing else reaches.
    pub fn playground(limit: Limit) -> Self {
        let space = Space::playground(&limit);
        Self::without_rules(limit, space)
    }

    fn without_rules(limit: Limit, space: Space) -> Self {
        let key = space.pattern().as_str().to_owned();
        Rule {
            needs: 0,
            label: key.as_str().into(),
            draft: Arc::new(Draft { key, ..Draft::default() }),
            id: None,
            space: Arc::new(space),
            conditions: Arc::default(),
            action: Action::Limit(limit),
            limit_number: LimitNumber::default(),
            cost: CostRule::Times(1),
            missing: Missing::default(),
            consistency: Consistency::default(),
            on_store_failure: FailurePolicy::default(),
            mode: Mode::default(),
        }
    }

    /// The same rule with another failure policy.
    #[must_use]
    pub fn with_failure_policy(self, on_store_failure: FailurePolicy) -> Self {
        Rule { on_store_failure, ..self }
    }

    /// The same rule, decided elsewhere.
    #[must_use]
    pub fn with_consistency(self, consistency: Consistency) -> Self {
        Rule { consistency, ..self }
    }

    /// The same rule with one node's share of its limit; without a limit where the node has no share.
    #[must_use]
    pub fn divided(&self, rank: Rank) -> Self {
        let action = match &self.action {
            Action::Limit(limit) => limit.share_of(rank).map_or(Action::Deny, Action::Limit),
            action => action.clone(),
        };
        Rule { action, ..self.clone() }
    }

    /// Whether it stands for a limit without rules; answers name its key instead of a label.
    pub fn is_ad_hoc(&self) -> bool {
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

    /// What answers call it: the label, or for a limit without rules the key that the request names.
    pub fn label_in<'a>(&'a self, request: Option<&'a Descriptor<'_>>) -> &'a str {
        let key = request.filter(|_| self.is_ad_hoc()).and_then(|request| request.get(AD_HOC_KEY));
        key.and_then(Value::as_text).unwrap_or(&self.label)
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
    pub fn draft(&self) -> &Draft {
        &self.draft
    }

    /// The key pattern.
    pub fn pattern(&self) -> &KeyPattern {
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
    #[inline]
    pub const fn limit(&self) -> Option<&Limit> {
        match &self.action {
            Action::Limit(limit) => Some(limit),
            Action::Deny | Action::Allow => None,
        }
    }

    /// Where a store keeps the number of the limit.
    #[inline]
    pub const fn limit_number(&self) -> &AtomicU64 {
        &self.limit_number.0
    }

    /// All its keys.
    #[inline]
    pub fn space(&self) -> &Space {
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

    /// The failure policy as written.
    pub const fn on_store_failure(&self) -> FailurePolicy {
        self.on_store_failure
    }

    /// The failure policy in effect. A rule that counts against a local share does so whether or not the store is
    /// available.
    pub const fn without_store(&self) -> FailurePolicy {
        match self.consistency {
            Consistency::Local => FailurePolicy::Local,
            Consistency::Exact | Consistency::Leased | Consistency::Auto => self.on_store_failure,
        }
    }

    /// Whether it refuses, only counts, or is disabled.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The labels of the rules it stands in for.
    pub fn replaces(&self) -> &[String] {
        &self.draft.replaces
    }

    /// The key of a request's bucket.
    #[inline]
    pub fn key<'a>(&'a self, request: &'a Descriptor<'a>) -> Key<'a> {
        self.space.key(request)
    }

    /// Whether its refusals count.
    #[inline]
    pub const fn enforcement(&self) -> Enforcement {
        match self.mode {
            Mode::Shadow => Enforcement::Shadow,
            Mode::Enforce | Mode::Off => Enforcement::Enforce,
        }
    }

    /// The attributes without which it does not apply.
    pub(crate) fn needed_attributes(&self) -> impl Iterator<Item = &Attribute> {
        let by_key = self.space.pattern().names().filter(|_| self.missing == Missing::Skip);
        by_key.chain(self.conditions.iter().map(Condition::name))
    }

    pub(crate) fn set_needs(&mut self, needs: u64) {
        self.needs = needs;
    }

    /// Whether it applies to a request with these attributes; [`applies_to`](Self::applies_to) says why not.
    #[inline]
    pub(crate) fn matches(&self, request: &Descriptor<'_>, present: u64) -> bool {
        self.needs & !present == 0
            && (self.conditions.is_empty() || self.conditions_hold(request))
            && (!matches!(self.action, Action::Allow) || self.ambiguous_condition(request).is_none())
    }

    #[inline(never)] // most rules have none
    fn conditions_hold(&self, request: &Descriptor<'_>) -> bool {
        self.conditions.iter().all(|condition| condition.holds(request))
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
            CostRule::Attribute(name) => self.cost_in(name, request, cost),
        }
    }

    #[inline(never)] // most rules count
    fn cost_in(&self, name: &str, request: &Descriptor<'_>, cost: u64) -> Result<u64, Box<InvalidCost>> {
        let Some(value) = request.get(name) else { return Ok(cost) };
        cost::read(&value.text()).ok_or_else(|| InvalidCost::new(self.label(), name, &value.text()))
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
            && let Some(absent) = self.pattern().names().find(|name| request.value(name).is_none())
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
        matches!(self.action, Action::Deny)
            || self.missing == Missing::Deny && !self.key(request).is_complete()
    }
}
