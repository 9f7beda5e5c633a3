//! A rule as written, and the one place where it becomes a [`Rule`].

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::{Action, Consistency, CostRule, FailurePolicy, LimitNumber, Missing, Mode, Rule};
use crate::condition::{Condition, ConditionError};
use crate::descriptor;
use crate::key::{KeyPattern, PatternError, Space, check_name};
use crate::lease::is_lent;
use crate::limit::notation::{Notation, Options, Part};
use crate::limit::{Algorithm, AlgorithmName, Limit, LimitError, MAX_EXACT, Opening, Phase, Ticks};
use crate::suggest::closest;

/// Defines [`Draft`] and its table of fields together, so that a field cannot be in one of them only.
macro_rules! draft {
    (
        $(#[$meta:meta])*
        pub struct Draft {
            $($(#[doc = $line:literal])+ $name:ident: $type:ty = $kind:expr, $example:literal;)+
        }
    ) => {
        $(#[$meta])*
        pub struct Draft {
            $($(#[doc = $line])+ pub $name: $type,)+
        }

        impl Draft {
            /// Every field, in the order of the documentation.
            pub const FIELDS: &'static [FieldInfo] = &[$(FieldInfo {
                name: stringify!($name),
                kind: $kind,
                example: $example,
                description: concat!($($line),+).trim_ascii_start(),
            },)+];

            /// The value of a field, if it is given.
            pub fn get(&self, name: &str) -> Option<FieldValue> {
                match name {
                    $(stringify!($name) => FieldType::get(&self.$name),)+
                    _ => None,
                }
            }

            /// Sets a field. A value of another kind, or for a field that does not exist, changes nothing.
            pub fn set(&mut self, name: &str, value: FieldValue) {
                match name {
                    $(stringify!($name) => FieldType::set(&mut self.$name, value),)+
                    _ => {}
                }
            }
        }
    };
}

draft! {
    /// A rule as somebody wrote it: text in every field, nothing checked yet.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Draft {
        /// Unique; shown in headers, metrics and violations. Without it the rule is shown as key, plan and period.
        name: Option<String> = FieldKind::Name, "per-user";
        /// The key pattern: `user:{user_id}`, `endpoint:/api/search`, `ip:{ip}`, `api:{endpoint}:{user_id}`, `global`.
        key: String = FieldKind::Text, "user:{user_id}";
        /// The plan it is for; without one it applies to all.
        plan: Option<String> = FieldKind::Text, "free";
        /// The limit: `10/s burst 50`, `100/min`, `60 every 60s`, `5/s queue 20 free 5`.
        limit: Option<String> = FieldKind::Text, "100/min burst 20";
        /// How it counts. Default: what the limit implies, else `token_bucket`.
        algorithm: Option<String> = FieldKind::Word(ALGORITHMS), "token_bucket";
        /// Where windows begin. fixed_window: all four; sliding_window_counter: `epoch` or `first`. Default: `epoch`.
        window: Option<String> = FieldKind::Word(&["epoch", "first", "spread", "calendar"]), "epoch";
        /// The zone of a calendar window, a name of the IANA database. Default: `UTC`.
        time_zone: Option<String> = FieldKind::Text, "Europe/Berlin";
        /// Interval refill only: ticks on the clock rather than from the first take. Default: false.
        aligned: Option<bool> = FieldKind::Boolean, "true";
        /// Conditions that must all hold: attribute to value, or to a list of which one must fit. `endpoint` takes
        /// globs (`*` within a segment, `**` across), `ip` addresses and networks, `method` any case.
        when: BTreeMap<String, Vec<String>> = FieldKind::Conditions, "{ method: [GET, POST] }";
        /// Absent: the request's cost; a number: so many times it; a name: the value of that attribute.
        cost: Option<CostDraft> = FieldKind::Cost, "2";
        /// When an attribute of the key is absent. Default: `skip`.
        missing: Option<String> = FieldKind::Word(Missing::WORDS), "skip";
        /// Where decisions are made. Default: `exact`.
        consistency: Option<String> = FieldKind::Word(Consistency::WORDS), "exact";
        /// The answer when the store is unavailable. Default: `open`.
        on_store_failure: Option<String> = FieldKind::Word(FailurePolicy::WORDS), "open";
        /// Default: `enforce`; `shadow` counts and never refuses, `off` is not there.
        mode: Option<String> = FieldKind::Word(Mode::WORDS), "enforce";
        /// Instead of a limit: `deny` refuses immediately, `allow` exempts from every limit.
        action: Option<String> = FieldKind::Word(ACTIONS), "deny";
        /// Names of rules that do not apply where this one does.
        replaces: Vec<String> = FieldKind::Texts, "[per-user]";
        /// How many bits of an IPv6 address make a bucket. Default: 64.
        ipv6_prefix: Option<u64> = FieldKind::Number { min: 1, max: 128 }, "56";
        /// For people.
        description: Option<String> = FieldKind::Text, "a few words";
    }
}

const ACTIONS: &[&str] = &["deny", "allow"];
const ALGORITHMS: &[&str] = &{
    let mut words = [""; AlgorithmName::ALL.len()];
    let mut place = 0;
    while place < words.len() {
        words[place] = AlgorithmName::ALL[place].as_str();
        place += 1;
    }
    words
};

/// One field of a rule: a row of the table that the reader of rules files, the SQL row, the command line and the JSON
/// Schema use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldInfo {
    /// The name in rules files and in JSON.
    pub name: &'static str,
    /// Which values it takes.
    pub kind: FieldKind,
    /// What a value looks like in a rules file.
    pub example: &'static str,
    /// What it is for.
    pub description: &'static str,
}

/// Which values a field takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldKind {
    /// Text of 1 to 128 characters.
    Name,
    /// Text.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// True or false.
    Boolean,
    /// A whole number in a range.
    Number {
        /// The least.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A whole number, or the name of an attribute.
    Cost,
    /// A text, or a list of them.
    Texts,
    /// Attributes, each with a value or a list of values.
    Conditions,
}

/// The value of a field, whatever its kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum FieldValue {
    /// Text, a word, or a cost that is the name of an attribute.
    Text(String),
    /// True or false.
    Boolean(bool),
    /// A number, or a cost that is a factor.
    Number(u64),
    /// Several texts.
    Texts(Vec<String>),
    /// Values by attribute.
    Conditions(BTreeMap<String, Vec<String>>),
}

/// A factor, or the name of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CostDraft {
    /// So many times the request's cost.
    Times(u64),
    /// The value of an attribute.
    Attribute(String),
}

impl Draft {
    /// The field of a name.
    pub fn field(name: &str) -> Option<&'static FieldInfo> {
        Self::FIELDS.iter().find(|field| field.name == name)
    }

    /// The names of all fields.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::FIELDS.iter().map(|field| field.name)
    }
}

impl Serialize for Draft {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Self::names().filter_map(|name| Some((name, self.get(name)?))))
    }
}

/// A type of a field: to and from its value.
trait FieldType {
    fn get(&self) -> Option<FieldValue>;
    fn set(&mut self, value: FieldValue);
}

macro_rules! field_type {
    ($type:ty, $field:ident => $get:expr, $($value:pat => $set:expr),+) => {
        impl FieldType for $type {
            fn get(&self) -> Option<FieldValue> {
                let $field = self;
                $get
            }

            fn set(&mut self, value: FieldValue) {
                match value {
                    $($value => *self = $set,)+
                    _ => {}
                }
            }
        }
    };
}

field_type!(String, field => Some(FieldValue::Text(field.clone())), FieldValue::Text(text) => text);
field_type!(Option<String>, field => field.clone().map(FieldValue::Text), FieldValue::Text(text) => Some(text));
field_type!(Option<bool>, field => field.map(FieldValue::Boolean), FieldValue::Boolean(yes) => Some(yes));
field_type!(Option<u64>, field => field.map(FieldValue::Number), FieldValue::Number(number) => Some(number));
field_type!(
    Option<CostDraft>,
    field => field.clone().map(|cost| match cost {
        CostDraft::Times(factor) => FieldValue::Number(factor),
        CostDraft::Attribute(name) => FieldValue::Text(name),
    }),
    FieldValue::Number(factor) => Some(CostDraft::Times(factor)),
    FieldValue::Text(name) => Some(CostDraft::Attribute(name))
);
field_type!(
    Vec<String>,
    field => (!field.is_empty()).then(|| FieldValue::Texts(field.clone())),
    FieldValue::Texts(texts) => texts
);
field_type!(
    BTreeMap<String, Vec<String>>,
    field => (!field.is_empty()).then(|| FieldValue::Conditions(field.clone())),
    FieldValue::Conditions(conditions) => conditions
);

/// A field of a rule, for errors that point at it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Field {
    /// The field's name in a rules file.
    pub name: &'static str,
    /// The key below it, for `when`.
    pub key: Option<String>,
}

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// Which field.
    pub field: Field,
    /// What is wrong, and what to write.
    pub problem: FieldProblem,
}

/// What is wrong with a field, and what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldProblem {
    /// A bad limit.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A bad key pattern.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A bad condition.
    #[error(transparent)]
    Condition(#[from] ConditionError),
    /// Not one of a handful of words.
    #[error("`{given}` is not one of {}{}", accepted.join(", "), .closest.map(|word| format!("; did you mean `{word}`?")).unwrap_or_default())]
    Word {
        /// What was written.
        given: String,
        /// What is accepted.
        accepted: Vec<&'static str>,
        /// What was probably meant.
        closest: Option<&'static str>,
    },
    /// Neither limit nor action.
    #[error("a rule needs a `limit`, such as `limit: 100/min`, or an `action`: deny or allow")]
    NoLimit,
    /// Both limit and action.
    #[error("`action: {action}` takes no `{with}`; drop one of the two")]
    LimitAndAction {
        /// The action.
        action: String,
        /// The field that contradicts it.
        with: &'static str,
    },
    /// A name that cannot be shown.
    #[error("a name has 1 to 128 characters and no control characters")]
    Name,
    /// An empty text where one is needed.
    #[error("is empty; drop the field or give it a value")]
    Empty,
    /// A cost factor out of range.
    #[error("a cost is a number from 1 to {MAX_EXACT}, or the name of an attribute")]
    Cost,
    /// A consistency that needs leases, with a limit that is not leased.
    #[error(
        "`{consistency}` needs a limit that can be leased: a queue is always decided at the store, and a token bucket \
             needs a smaller burst or period; write `exact` or `local`"
    )]
    NotLeased {
        /// What was written.
        consistency: &'static str,
    },
    /// A prefix length out of range.
    #[error("an IPv6 prefix has 1 to 128 bits, not {given}")]
    Ipv6Prefix {
        /// What was written.
        given: u64,
    },
}

impl Draft {
    /// Checks every field and makes the rule.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, not only the first.
    pub fn build(self) -> Result<Rule, Vec<FieldError>> {
        let mut check = Checker::default();
        let name_is_good =
            |name: &String| (1..=128).contains(&name.chars().count()) && !name.chars().any(char::is_control);
        if self.name.as_ref().is_some_and(|name| !name_is_good(name)) {
            check.fail("name", FieldProblem::Name);
        }
        if self.plan.as_ref().is_some_and(String::is_empty) {
            check.fail("plan", FieldProblem::Empty);
        }
        let pattern = check.keep("key", KeyPattern::parse(&self.key));
        let missing = check.word("missing", self.missing.as_deref(), Missing::parse, Missing::WORDS);
        let consistency =
            check.word("consistency", self.consistency.as_deref(), Consistency::parse, Consistency::WORDS);
        let on_store_failure = check.word(
            "on_store_failure",
            self.on_store_failure.as_deref(),
            FailurePolicy::parse,
            FailurePolicy::WORDS,
        );
        let mode = check.word("mode", self.mode.as_deref(), Mode::parse, Mode::WORDS);
        let action = self.action(&mut check);
        if let Some(Action::Limit(limit)) = &action
            && matches!(consistency, Consistency::Leased | Consistency::Auto)
            && !is_lent(limit)
        {
            check.fail("consistency", FieldProblem::NotLeased { consistency: consistency.as_str() });
        }
        let cost = self.cost(&mut check);
        let mut conditions = self.plan_condition();
        conditions.extend(pattern.iter().flat_map(|pattern| pattern.conditions().iter().cloned()));
        for (attribute, values) in &self.when {
            let named = check_name(attribute).map_err(FieldProblem::from);
            let condition =
                named.and_then(|()| Ok(Condition::new(attribute, values.iter().map(String::as_str))?));
            match condition {
                Ok(condition) => conditions.push(condition),
                Err(problem) => check.errors.push(FieldError {
                    field: Field { name: "when", key: Some(attribute.clone()) },
                    problem,
                }),
            }
        }
        let ipv6_prefix = u8::try_from(self.ipv6_prefix.unwrap_or(64)).unwrap_or(u8::MAX);
        if !(1..=128).contains(&ipv6_prefix) {
            check.fail("ipv6_prefix", FieldProblem::Ipv6Prefix { given: self.ipv6_prefix.unwrap_or(0) });
        }
        match (pattern, action, cost) {
            (Some(pattern), Some(action), Some(cost)) if check.errors.is_empty() => {
                let (label, space) = self.identity(pattern, &action, ipv6_prefix);
                Ok(Rule {
                    needs: 0,
                    label: label.into(),
                    space: Arc::new(space),
                    conditions: conditions.into(),
                    action,
                    limit_number: LimitNumber::default(),
                    cost,
                    missing,
                    consistency,
                    on_store_failure,
                    mode,
                    id: None,
                    draft: Arc::new(self),
                })
            }
            _ => Err(check.errors),
        }
    }

    fn action(&self, check: &mut Checker) -> Option<Action> {
        let Some(action) = &self.action else { return self.limit(check).map(Action::Limit) };
        let beside = [
            ("limit", self.limit.is_some()),
            ("algorithm", self.algorithm.is_some()),
            ("window", self.window.is_some()),
            ("time_zone", self.time_zone.is_some()),
            ("aligned", self.aligned.is_some()),
            ("cost", self.cost.is_some()),
        ];
        for (field, _) in beside.iter().filter(|(_, given)| *given) {
            check.fail(field, FieldProblem::LimitAndAction { action: action.clone(), with: field });
        }
        match action.as_str() {
            "deny" => Some(Action::Deny),
            "allow" => Some(Action::Allow),
            given => {
                check.fail("action", unknown_word(given, ACTIONS));
                None
            }
        }
    }

    fn limit(&self, check: &mut Checker) -> Option<Limit> {
        let algorithm = match self.algorithm.as_deref() {
            None => None,
            Some(word) => match AlgorithmName::parse(word) {
                Some(name) => Some(name),
                None => {
                    check.fail("algorithm", unknown_word(word, ALGORITHMS));
                    // The limit's own mistakes are still worth telling.
                    if let Some(Err(error)) = self.limit.as_ref().map(|text| text.parse::<Notation>()) {
                        check.fail("limit", LimitError::from(error).into());
                    }
                    return None;
                }
            },
        };
        let Some(text) = &self.limit else {
            check.fail("limit", FieldProblem::NoLimit);
            return None;
        };
        let options = Options {
            algorithm,
            window: self.window.as_deref(),
            time_zone: self.time_zone.as_deref(),
            aligned: self.aligned,
        };
        let limit = text.parse::<Notation>().map_err(LimitError::from).and_then(|text| text.limit(&options));
        match limit {
            Ok(limit) => Some(limit),
            Err(error) => {
                let field = match error.part() {
                    Part::Limit => "limit",
                    Part::Algorithm => "algorithm",
                    Part::Window => "window",
                    Part::TimeZone => "time_zone",
                    Part::Aligned => "aligned",
                };
                check.fail(field, error.into());
                None
            }
        }
    }

    fn cost(&self, check: &mut Checker) -> Option<CostRule> {
        match &self.cost {
            None => Some(CostRule::Times(1)),
            Some(CostDraft::Times(factor)) if (1..=MAX_EXACT).contains(factor) => {
                Some(CostRule::Times(*factor))
            }
            // What begins otherwise was meant as a number: `-1`, `1.5`, `.inf`.
            Some(CostDraft::Attribute(name))
                if name.starts_with(|first: char| first.is_alphabetic() || first == '_')
                    && check_name(name).is_ok() =>
            {
                Some(CostRule::Attribute(name.as_str().into()))
            }
            Some(_) => {
                check.fail("cost", FieldProblem::Cost);
                None
            }
        }
    }

    fn plan_condition(&self) -> Vec<Condition> {
        let plan = self.plan.as_deref().map(|plan| Condition::new(descriptor::PLAN, [plan]));
        plan.into_iter().flatten().collect()
    }

    /// How the rule is shown, and what its buckets are told apart by.
    fn identity(&self, pattern: KeyPattern, action: &Action, ipv6_prefix: u8) -> (String, Space) {
        let (period, counts_by) = match action {
            Action::Limit(limit) => (Some(limit.period_text()), limit.identity()),
            Action::Deny => (None, "deny".to_owned()),
            Action::Allow => (None, "allow".to_owned()),
        };
        if let Some(name) = &self.name {
            return (name.clone(), Space::new(&["named", name, &counts_by], pattern, ipv6_prefix));
        }
        let mut label = self.key.clone();
        if let Some(plan) = &self.plan {
            label.push_str(" plan=");
            label.push_str(plan);
        }
        if let Some(period) = &period {
            label.push(' ');
            label.push_str(period);
        }
        let plan = self.plan.as_deref().map_or(["any plan", ""], |plan| ["plan", plan]);
        let period = period.unwrap_or_default();
        (label, Space::new(&["unnamed", plan[0], plan[1], &period, &counts_by], pattern, ipv6_prefix))
    }
}

/// Collects what is wrong while the rest is looked at.
#[derive(Default)]
struct Checker {
    errors: Vec<FieldError>,
}

impl Checker {
    fn fail(&mut self, field: &'static str, problem: FieldProblem) {
        self.errors.push(FieldError { field: Field { name: field, key: None }, problem });
    }

    fn keep<T, E: Into<FieldProblem>>(&mut self, field: &'static str, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.fail(field, error.into())).ok()
    }

    fn word<T: Default>(
        &mut self,
        field: &'static str,
        given: Option<&str>,
        parse: fn(&str) -> Option<T>,
        accepted: &[&'static str],
    ) -> T {
        given
            .and_then(|word| {
                parse(word).or_else(|| {
                    self.fail(field, unknown_word(word, accepted));
                    None
                })
            })
            .unwrap_or_default()
    }
}

fn unknown_word(given: &str, accepted: &[&'static str]) -> FieldProblem {
    FieldProblem::Word {
        given: given.to_owned(),
        accepted: accepted.to_vec(),
        closest: closest(given, accepted.iter().copied()),
    }
}

impl From<&Limit> for Draft {
    /// A rule with one shared bucket and this limit, as written; building it gives the same limit.
    fn from(limit: &Limit) -> Self {
        let (window, time_zone) = match limit.algorithm() {
            Algorithm::FixedWindow { phase, .. } => match phase {
                Phase::Epoch => (Some("epoch"), None),
                Phase::First => (Some("first"), None),
                Phase::Spread => (Some("spread"), None),
                Phase::Calendar(calendar) => (Some("calendar"), Some(calendar.name.to_string())),
            },
            Algorithm::SlidingWindowCounter { opens: Opening::First, .. } => (Some("first"), None),
            _ => (None, None),
        };
        let aligned = match limit.algorithm() {
            Algorithm::TokenBucketInterval(refill) => Some(refill.ticks() == Ticks::Aligned),
            _ => None,
        };
        Draft {
            key: "global".to_owned(),
            limit: Some(limit.to_string()),
            algorithm: Some(limit.algorithm_name().as_str().to_owned()),
            window: window.map(str::to_owned),
            time_zone,
            aligned,
            ..Draft::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(key: &str, limit: &str) -> Draft {
        Draft { key: key.into(), limit: Some(limit.into()), ..Draft::default() }
    }

    #[test]
    fn an_unnamed_rule_is_shown_as_key_plan_and_period() {
        let rule =
            Draft { plan: Some("free".into()), ..draft("user:{user_id}", "10/s burst 50") }.build().unwrap();
        assert_eq!(rule.label(), "user:{user_id} plan=free 1s");
        assert_eq!(draft("ip:{ip}", "100/min").build().unwrap().label(), "ip:{ip} 1min");
        let deny = Draft { key: "user:{user_id}".into(), action: Some("deny".into()), ..Draft::default() };
        assert_eq!(deny.build().unwrap().label(), "user:{user_id}");
    }

    #[test]
    fn everything_wrong_is_reported_at_once() {
        let errors = Draft {
            name: Some(String::new()),
            algorithm: Some("token_buket".into()),
            mode: Some("shadw".into()),
            missing: Some("explode".into()),
            cost: Some(CostDraft::Times(0)),
            ipv6_prefix: Some(129),
            when: [("ip".to_owned(), vec!["x".to_owned()]), ("method".to_owned(), vec![])].into(),
            ..draft("user:{", "10/s")
        }
        .build()
        .unwrap_err();
        let fields: Vec<&str> = errors.iter().map(|error| error.field.name).collect();
        assert_eq!(
            fields,
            ["name", "key", "missing", "mode", "algorithm", "cost", "when", "when", "ipv6_prefix"]
        );
        assert!(errors[4].problem.to_string().ends_with("did you mean `token_bucket`?"));
    }

    #[test]
    fn an_action_takes_no_limit() {
        let errors = Draft { action: Some("deny".into()), ..draft("global", "1/s") }.build().unwrap_err();
        assert_eq!(errors[0].problem.to_string(), "`action: deny` takes no `limit`; drop one of the two");
        let errors = Draft { key: "global".into(), ..Draft::default() }.build().unwrap_err();
        assert_eq!(errors[0].problem, FieldProblem::NoLimit);
    }

    #[test]
    fn a_limit_that_is_written_down_and_built_is_the_same() {
        for (limit, algorithm, window, time_zone, aligned) in [
            ("10/s burst 50", None, None, None, None),
            ("3 every 7s burst 9", None, None, None, Some(true)),
            ("3 every 7s", None, None, None, None),
            ("5/s queue 20 free 5", None, None, None, None),
            ("5/min", Some("fixed_window"), None, None, None),
            ("5/min", Some("fixed_window"), Some("first"), None, None),
            ("5/min", Some("fixed_window"), Some("spread"), None, None),
            ("5/month", Some("fixed_window"), Some("calendar"), Some("Europe/Berlin"), None),
            ("5/90s", Some("sliding_window_log"), None, None, None),
            ("5/s", Some("sliding_window_counter"), Some("first"), None, None),
        ] {
            let text = |text: &str| text.to_owned();
            let draft = Draft {
                key: "global".to_owned(),
                limit: Some(limit.to_owned()),
                algorithm: algorithm.map(text),
                window: window.map(text),
                time_zone: time_zone.map(text),
                aligned,
                ..Draft::default()
            };
            let rule = draft.build().unwrap();
            let limit = rule.limit().unwrap();
            assert_eq!(Draft::from(limit).build().unwrap().limit(), Some(limit), "{limit}");
        }
    }

    #[test]
    fn leases_need_a_limit_that_can_be_leased() {
        let built = |limit: &str, consistency: &str| {
            let (key, limit) = ("global".to_owned(), Some(limit.to_owned()));
            Draft { key, limit, consistency: Some(consistency.to_owned()), ..Draft::default() }.build()
        };
        for limit in ["100/s queue 50", "1/d burst 1000"] {
            for consistency in ["leased", "auto"] {
                let errors = built(limit, consistency).expect_err("it is not leased");
                assert_eq!(errors[0].field.name, "consistency", "{limit}");
                assert!(errors[0].problem.to_string().contains("write `exact` or `local`"), "{limit}");
            }
            assert!(built(limit, "exact").is_ok() && built(limit, "local").is_ok(), "{limit}");
        }
        assert!(built("1000 every 1d", "leased").is_ok());
        assert!(built("50000/s burst 100000", "leased").is_ok());
    }
}
