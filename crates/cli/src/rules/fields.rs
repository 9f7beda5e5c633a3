//! The fields of a rule: from the command line, as JSON, and what became of them.

use std::collections::BTreeMap;

use anyhow::{anyhow, bail};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde::Serialize;
use serde_json::{Map, Value};
use tollgate::core::Draft;
use tollgate::core::rule::{FieldInfo, FieldKind};
use tollgate::core::suggest::closest;
use tollgate::rules::{self, RulesError};

use crate::load;

/// The fields of a rules file as flags. They have no variables: one that is set for a check would end up in a rule.
#[derive(Debug)]
pub(super) struct FieldArgs(Map<String, Value>);

impl FieldArgs {
    /// Sets the fields that are given.
    pub(super) fn set(&self, rule: &mut Map<String, Value>) {
        rule.extend(self.0.clone());
    }
}

impl clap::Args for FieldArgs {
    fn augment_args(command: Command) -> Command {
        command.next_help_heading("Fields").args(Draft::FIELDS.iter().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for FieldArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given =
            Draft::FIELDS.iter().filter_map(|field| Some((field.name.to_owned(), value(field, matches)?)));
        Ok(FieldArgs(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn flag(field: &FieldInfo) -> Arg {
    let flag = Arg::new(field.name).long(field.name.replace('_', "-")).help(field.description);
    match field.kind {
        FieldKind::Boolean => {
            let flag = flag.value_name("BOOL").value_parser(value_parser!(bool));
            flag.num_args(0..=1).default_missing_value("true")
        }
        FieldKind::Number { .. } => flag.value_name("NUMBER").value_parser(value_parser!(u64)),
        FieldKind::Cost => flag.value_name("TIMES|ATTRIBUTE"),
        FieldKind::Texts => flag.value_name("RULE").action(ArgAction::Append),
        FieldKind::Conditions => {
            flag.value_name("ATTRIBUTE=VALUE").action(ArgAction::Append).value_parser(condition)
        }
        FieldKind::Word(_) => flag.value_name("WORD"),
        _ => flag.value_name("TEXT"),
    }
}

fn condition(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it like endpoint=/api/*")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The value of a flag as JSON, if it is given.
fn value(field: &FieldInfo, matches: &ArgMatches) -> Option<Value> {
    match field.kind {
        FieldKind::Boolean => matches.get_one::<bool>(field.name).copied().map(Value::from),
        FieldKind::Number { .. } => matches.get_one::<u64>(field.name).copied().map(Value::from),
        FieldKind::Texts => Some(matches.get_many::<String>(field.name)?.cloned().collect()),
        FieldKind::Conditions => {
            let mut conditions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for (attribute, value) in matches.get_many::<(String, String)>(field.name)? {
                conditions.entry(attribute).or_default().push(value);
            }
            Some(conditions.into_iter().collect())
        }
        kind => {
            let text = matches.get_one::<String>(field.name)?;
            let factor = (kind == FieldKind::Cost).then(|| text.parse::<u64>().ok()).flatten();
            Some(factor.map_or_else(|| Value::from(text.as_str()), Value::from))
        }
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
        // The text was made from flags, so a place in it means nothing.
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
    Draft::names().filter_map(move |name| Some((name, given.remove(name)?)))
}

/// The field of a name.
///
/// # Errors
///
/// There is none, and which was probably meant.
pub(super) fn field(name: &str) -> anyhow::Result<&'static str> {
    let wanted = name.replace('-', "_");
    Draft::field(&wanted).map(|field| field.name).ok_or_else(|| match closest(&wanted, Draft::names()) {
        Some(near) => anyhow!("a rule has no field `{name}`; did you mean `{near}`?"),
        None => {
            anyhow!("a rule has no field `{name}`; it has {}", Draft::names().collect::<Vec<_>>().join(", "))
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
    let changed = |field: &'static str| {
        let (before, after) = (before.remove(field), after.remove(field));
        (before != after).then_some(Changed { field, before, after })
    };
    Draft::names().filter_map(changed).collect()
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
