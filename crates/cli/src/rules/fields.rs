//! The fields of a rule: from the command line, as JSON, and what became of them.

use std::collections::BTreeMap;

use anyhow::{anyhow, bail};
use serde::Serialize;
use serde_json::{Map, Value};
use tollgate::core::Draft;
use tollgate::core::suggest::closest;
use tollgate::rules::{self, RulesError};

use crate::load;

/// The fields of a rules file as flags. They have no variables: one that is set for a check would end up in a rule.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Fields")]
pub(super) struct FieldArgs {
    /// Unique; shown in headers, metrics and violations
    #[arg(long)]
    name: Option<String>,
    /// The key pattern, such as 'user:{user_id}', 'ip:{ip}' or global
    #[arg(long, value_name = "PATTERN")]
    key: Option<String>,
    /// The plan it is for
    #[arg(long)]
    plan: Option<String>,
    /// The limit, such as '10/s burst 50'
    #[arg(long)]
    limit: Option<String>,
    /// How it counts
    #[arg(long)]
    algorithm: Option<String>,
    /// Where windows begin
    #[arg(long)]
    window: Option<String>,
    /// The zone of a calendar window
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// Interval refill: ticks on the clock
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    aligned: Option<bool>,
    /// A condition; several of an attribute are alternatives
    #[arg(long, value_name = "ATTRIBUTE=VALUE", value_parser = condition)]
    when: Vec<(String, String)>,
    /// How many times the request's cost, or the attribute that has it
    #[arg(long, value_name = "TIMES|ATTRIBUTE")]
    cost: Option<String>,
    /// When an attribute of the key is absent: skip, deny or shared
    #[arg(long)]
    missing: Option<String>,
    /// Where decisions are made
    #[arg(long)]
    consistency: Option<String>,
    /// What it says when the store cannot be asked: open, closed or local
    #[arg(long, value_name = "POLICY")]
    on_store_failure: Option<String>,
    /// enforce, shadow or off
    #[arg(long)]
    mode: Option<String>,
    /// Instead of a limit: deny or allow
    #[arg(long)]
    action: Option<String>,
    /// A rule that does not apply where this one does; may be given several times
    #[arg(long, value_name = "RULE")]
    replaces: Vec<String>,
    /// How many bits of an IPv6 address make a bucket
    #[arg(long, value_name = "BITS")]
    ipv6_prefix: Option<u64>,
    /// For people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

fn condition(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it like endpoint=/api/*")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl FieldArgs {
    /// Sets the fields that are given.
    pub(super) fn set(&self, rule: &mut Map<String, Value>) {
        let texts = [
            ("name", &self.name),
            ("key", &self.key),
            ("plan", &self.plan),
            ("limit", &self.limit),
            ("algorithm", &self.algorithm),
            ("window", &self.window),
            ("time_zone", &self.time_zone),
            ("missing", &self.missing),
            ("consistency", &self.consistency),
            ("on_store_failure", &self.on_store_failure),
            ("mode", &self.mode),
            ("action", &self.action),
            ("description", &self.description),
        ];
        for (field, text) in texts {
            rule.extend(text.clone().map(|text| (field.to_owned(), text.into())));
        }
        let cost = self.cost.clone().map(|cost| cost.parse::<u64>().map_or(cost.into(), Value::from));
        let others = [
            ("aligned", self.aligned.map(Value::from)),
            ("cost", cost),
            ("ipv6_prefix", self.ipv6_prefix.map(Value::from)),
            ("replaces", (!self.replaces.is_empty()).then(|| self.replaces.clone().into())),
            ("when", (!self.when.is_empty()).then(|| self.conditions())),
        ];
        for (field, value) in others {
            rule.extend(value.map(|value| (field.to_owned(), value)));
        }
    }

    fn conditions(&self) -> Value {
        let mut conditions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (attribute, value) in &self.when {
            conditions.entry(attribute).or_default().push(value);
        }
        conditions
            .into_iter()
            .map(|(attribute, values)| (attribute.to_owned(), Value::from(values)))
            .collect()
    }
}

/// A rule out of fields.
///
/// # Errors
///
/// Everything that is wrong with them.
pub(super) fn checked(rule: &Map<String, Value>) -> anyhow::Result<Draft> {
    let text = Value::from(rule.clone()).to_string();
    match rules::parse_rule("the rule", &text) {
        Ok(rule) => Ok(rule.draft().clone()),
        // Nobody wrote that text, so nobody wants to see a place in it.
        Err(error) => bail!(without_places(&error)),
    }
}

fn without_places(error: &RulesError) -> String {
    let line = |problem: &rules::Problem| {
        let rule = problem.rule.as_ref().map_or_else(String::new, |rule| format!("rule `{rule}`: "));
        let help = problem.help.as_ref().map_or_else(String::new, |help| format!("; {help}"));
        format!("{rule}{}{help}", problem.message)
    };
    error.problems().iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A whole rule as somebody gave it: JSON or YAML, or `-` for standard input.
///
/// # Errors
///
/// It cannot be read, or everything that is wrong with it.
pub(super) fn whole(text: &str) -> anyhow::Result<Draft> {
    let (name, text) = match text {
        "-" => ("<stdin>", load::text("-".as_ref())?),
        text => ("--json", text.to_owned()),
    };
    Ok(rules::parse_rule(name, &text)?.draft().clone())
}

/// A rule as JSON has it, whether it makes one or not.
///
/// # Errors
///
/// Its fields are not those of a rule.
pub(crate) fn from_json(shown: &str, json: &str) -> anyhow::Result<Draft> {
    let mut drafts = rules::parse_drafts(shown, &format!("{{\"rules\": [{json}]}}"))?;
    drafts.pop().ok_or_else(|| anyhow!("{shown} gave no rule where one belongs"))
}

/// A rule as a JSON object.
pub(super) fn object(draft: &Draft) -> Map<String, Value> {
    match serde_json::to_value(draft) {
        Ok(Value::Object(fields)) => fields,
        _ => unreachable!("a draft is a struct with text for its keys"),
    }
}

/// The fields that are given, in the order of the reference.
pub(super) fn fields(draft: &Draft) -> impl Iterator<Item = (&'static str, Value)> {
    let mut given = object(draft);
    Draft::FIELDS.iter().filter_map(move |name| Some((*name, given.remove(*name)?)))
}

/// The field of a name.
///
/// # Errors
///
/// There is none, and which was probably meant.
pub(super) fn field(name: &str) -> anyhow::Result<&'static str> {
    let wanted = name.replace('-', "_");
    Draft::FIELDS.iter().find(|field| **field == wanted).copied().ok_or_else(|| {
        match closest(&wanted, Draft::FIELDS.iter().copied()) {
            Some(near) => anyhow!("a rule has no field `{name}`; did you mean `{near}`?"),
            None => anyhow!("a rule has no field `{name}`; it has {}", Draft::FIELDS.join(", ")),
        }
    })
}

/// A field that is not what it was.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Changed {
    pub(super) field: &'static str,
    pub(super) before: Option<Value>,
    pub(super) after: Option<Value>,
}

/// The fields in which two rules differ.
pub(super) fn changes(before: &Draft, after: &Draft) -> Vec<Changed> {
    let (mut before, mut after) = (object(before), object(after));
    let changed = |field: &&'static str| {
        let (before, after) = (before.remove(*field), after.remove(*field));
        (before != after).then_some(Changed { field, before, after })
    };
    Draft::FIELDS.iter().filter_map(changed).collect()
}

impl std::fmt::Display for Changed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let said = |value: &Option<Value>| match value {
            None => "none".to_owned(),
            Some(value) => super::yaml::bracket_value(value),
        };
        write!(f, "{}: {} -> {}", self.field, said(&self.before), said(&self.after))
    }
}

/// Changes in a line.
pub(super) fn in_a_line(changes: &[Changed]) -> String {
    changes.iter().map(Changed::to_string).collect::<Vec<_>>().join("; ")
}
