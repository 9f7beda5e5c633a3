//! From drafts to a rule set, with core's errors put where they were written.

use std::collections::HashMap;
use std::mem;

use tollgate_core::rule::{FieldError, FieldProblem};
use tollgate_core::{ConditionError, Rule, RuleSet, SetError};

use super::errors::{Finding, Findings, Span, clip};
use super::read::Written;
use super::yaml::{Node, Value, find};

/// Builds every rule and puts them together. There is a set only if nothing was found, here or before.
pub(super) fn set(mut written: Vec<Written<'_>>, findings: &mut Findings) -> Option<RuleSet> {
    // Rules that build, and the place of each among all that were written.
    let (mut rules, mut places) = (Vec::with_capacity(written.len()), Vec::with_capacity(written.len()));
    for (place, rule) in written.iter_mut().enumerate() {
        if findings.is_full() {
            break;
        }
        if let Some(rule) = build(rule, findings) {
            rules.push(rule);
            places.push(place);
        }
    }
    let built = if findings.is_full() { None } else { join(rules, &places, &written, findings) };
    label(&written, findings);
    built.filter(|_| findings.is_empty())
}

/// Makes one rule of its draft.
pub(super) fn build(rule: &mut Written<'_>, findings: &mut Findings) -> Option<Rule> {
    let mark = findings.len();
    let built = match mem::take(&mut rule.draft).build() {
        Ok(built) => Some(built),
        Err(errors) => {
            let news = errors.into_iter().filter(|error| !is_a_consequence(rule, error));
            news.for_each(|error| findings.add(locate(rule, &error)));
            None
        }
    };
    if let Some(label) = &rule.label {
        findings.label_since(mark, label);
    }
    built
}

/// Whether what core says of a field only follows from what was reported before.
fn is_a_consequence(rule: &Written<'_>, error: &FieldError) -> bool {
    let field = error.field.name;
    if matches!(error.problem, FieldProblem::Word { .. }) {
        return rule.is_broken(field); // a misspelt word is a mistake of its own
    }
    const OF_THE_LIMIT: [&str; 5] = ["limit", "algorithm", "window", "time_zone", "aligned"];
    rule.is_broken(field)
        || (field == "limit" && rule.value("limit").is_none() && rule.is_broken("action"))
        // What the algorithm is decides what the others may be.
        || (field != "limit" && OF_THE_LIMIT.contains(&field) && OF_THE_LIMIT.iter().any(|of| rule.is_broken(of)))
}

fn locate(rule: &Written<'_>, error: &FieldError) -> Finding {
    let Some(node) = rule.value(error.field.name).filter(|node| !node.is_null()) else {
        return Finding::from_text(rule.head, &error.problem.to_string());
    };
    let place = match &error.field.key {
        Some(key) => condition(node, key, &error.problem),
        None => node.span,
    };
    Finding::from_text(place, &worded(error, node.text()))
}

/// What is wrong with a field that was given, in words that name the field and, if it is text, what was written.
pub(super) fn worded(error: &FieldError, given: Option<&str>) -> String {
    let field = error.field.name;
    let text = error.problem.to_string();
    let names_the_field = text.starts_with(field) || text.contains(&format!("`{field}`"));
    match given {
        _ if error.field.key.is_some() => format!("{field}: {text}"),
        _ if names_the_field => text,
        _ if error.problem == FieldProblem::Empty => format!("{field} {text}"),
        Some(value) if !text.contains(&format!("`{value}`")) => {
            format!("{field} `{}`: {text}", clip(value))
        }
        _ => format!("{field}: {text}"),
    }
}

/// The place of a condition: the value that is wrong if there is one, else the attribute.
fn condition(when: &Node<'_>, attribute: &str, problem: &FieldProblem) -> Span {
    let Value::Map(entries) = &when.value else { return when.span };
    let Some(entry) = find(entries, attribute) else { return when.head() };
    let culprit = match problem {
        FieldProblem::Condition(ConditionError::Network { text }) => item(&entry.value, text),
        _ => None,
    };
    culprit.unwrap_or(entry.key.span)
}

/// The place of a text, in a list or alone.
fn item(node: &Node<'_>, text: &str) -> Option<Span> {
    let items = match &node.value {
        Value::List(items) => &items[..],
        _ => std::slice::from_ref(node),
    };
    items.iter().find(|item| item.text() == Some(text)).map(|item| item.span)
}

/// Puts the rules together. A rule that did not build still has its name: another cannot have it, and may replace it.
fn join(
    rules: Vec<Rule>,
    places: &[usize],
    written: &[Written<'_>],
    findings: &mut Findings,
) -> Option<RuleSet> {
    let is_broken = |place: &usize| places.binary_search(place).is_err();
    let mut names = HashMap::new();
    for (place, rule) in written.iter().enumerate() {
        let Some(name) = rule.value("name").and_then(Node::text) else { continue };
        let first = *names.entry(name).or_insert(place);
        if first != place && (is_broken(&first) || is_broken(&place)) {
            findings.add(duplicate(rule, &written[first], name));
        }
    }
    let errors = match RuleSet::new(rules) {
        Ok(set) => return Some(set),
        Err(errors) => errors,
    };
    // The label of a broken rule without a name is not known, only that it begins with its key.
    let may_be_broken = |name: &str| {
        let broken = (0..written.len()).filter(is_broken).filter_map(|place| written[place].label.as_deref());
        broken.into_iter().any(|label| name.starts_with(label))
    };
    for error in errors {
        if !matches!(&error, SetError::UnknownReplaced { given, .. } if may_be_broken(given)) {
            findings.add(between(&error, places, written));
        }
    }
    None
}

fn between(error: &SetError, places: &[usize], written: &[Written<'_>]) -> Finding {
    let rule = &written[places[error.rule()]];
    let replaces = rule.value("replaces");
    let finding = match error {
        SetError::Duplicate { first, label, .. } => return duplicate(rule, &written[places[*first]], label),
        SetError::UnknownReplaced { given, .. } => {
            let place = replaces.and_then(|node| item(node, given)).unwrap_or(rule.head);
            Finding::from_text(place, &error.to_string())
        }
        SetError::ReplacesItself { .. } => {
            let message = "it replaces itself, directly or through others, so none of them would apply";
            Finding::new(replaces.map_or(rule.head, |node| node.span), message).help("drop one `replaces`")
        }
        _ => Finding::from_text(rule.head, &error.to_string()),
    };
    Finding { rule: rule.label.clone(), ..finding }
}

fn duplicate(rule: &Written<'_>, first: &Written<'_>, label: &str) -> Finding {
    let what = if rule.value("name").is_some() { "name" } else { "rule" };
    let finding = Finding::new(title(rule), format!("the {what} `{}` is given twice", clip(label)));
    let finding = finding.earlier(title(first)).help("give one of them another `name`");
    Finding { rule: rule.label.clone(), ..finding }
}

/// Where a rule is named.
fn title(rule: &Written<'_>) -> Span {
    ["name", "key"]
        .into_iter()
        .filter_map(|field| rule.value(field))
        .find(|value| !value.is_null())
        .map_or(rule.head, |value| value.span)
}

/// Assigns the findings of the YAML stage to the rules around them.
pub(super) fn label(written: &[Written<'_>], findings: &mut Findings) {
    for finding in findings.unlabelled() {
        let at = finding.span.start;
        let next = written.partition_point(|rule| rule.span.start <= at);
        let around = next.checked_sub(1).map(|place| &written[place]).filter(|rule| at < rule.span.end);
        finding.rule = around.and_then(|rule| rule.label.clone());
    }
}
