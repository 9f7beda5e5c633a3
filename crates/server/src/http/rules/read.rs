//! Rules out of a body, with the same words about mistakes as for a rules file.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use tollgate::RuleSet;
use tollgate::core::Draft;
use tollgate::rules::{self, RuleRow, RulesError, UnreadableColumn};

use super::super::json_path::place_at;
use super::super::problem::Problem;
use crate::api::Mistake;

/// What errors would call the text, if they were shown with a line.
const BODY: &str = "body";
/// The path of the one rule within the file that it stands for.
const THE_RULE: &str = "rules[0]";

/// A rule: `{"key": "user:{user_id}", "limit": "10/s burst 50"}`.
pub(super) fn rule(body: &[u8]) -> Result<Draft, Problem> {
    let text = object(body, "a rule such as {\"key\": \"user:{user_id}\", \"limit\": \"10/s burst 50\"}")?;
    let file = format!("{{\"rules\":[{text}]}}");
    let drafts = rules::parse_drafts(BODY, &file).map_err(|error| misshapen(&file, &error, THE_RULE))?;
    rules::parse_rule(BODY, text).map_err(|error| Problem::invalid(&mistakes(text, &error)))?;
    drafts.into_iter().next().ok_or_else(|| Problem::bad_body("", "expected a rule"))
}

/// A rule after a JSON merge patch: what is null goes, what is not there stays.
pub(super) fn patched(draft: &Draft, body: &[u8]) -> Result<Draft, Problem> {
    let patch = object(body, "fields to change such as {\"limit\": \"20/s\"}")?;
    let unreadable = |error: serde_json::Error| Problem::bad_body("", error.to_string());
    let before = serde_json::value::to_raw_value(draft).map_err(unreadable)?;
    let patch: &RawValue = serde_json::from_str(patch).map_err(unreadable)?;
    let after = merged(Some(&before), patch).map_err(unreadable)?;
    rule(after.get().as_bytes())
}

/// Refuses a change of a row that is not a rule, unless the body gives every field whose column cannot be read: clients send
/// back what they were shown, and a rule that lost its conditions would apply to every request.
pub(super) fn gives_what_is_unreadable(row: &RuleRow, change: Change, body: &[u8]) -> Result<(), Problem> {
    if row.unreadable.is_empty() {
        return Ok(());
    }
    let given: BTreeMap<String, &RawValue> = Problem::parse(body, "{\"limit\": \"20/s\"}")?;
    let is_lost = |column: &&UnreadableColumn| match change {
        Change::Replace if column.is_whole_row() => false,
        _ => !given.contains_key(column.field()),
    };
    let mistake = |column: &UnreadableColumn| {
        let (field, rule) = (column.field(), Some(row.label().to_owned()));
        let way_out = if column.is_whole_row() { "replace the rule with PUT" } else { "give this field too" };
        Mistake { rule, field: Some(field.to_owned()), message: format!("{column}; {way_out}") }
    };
    let mistakes: Vec<Mistake> = row.unreadable.iter().filter(is_lost).map(mistake).collect();
    if mistakes.is_empty() { Ok(()) } else { Err(Problem::invalid(&mistakes)) }
}

/// What a body does to a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// It is the new rule.
    Replace,
    /// It has the fields that change.
    Patch,
}

/// A whole set: the value of `rules` in a larger body.
pub(crate) fn set_of(list: &RawValue) -> Result<RuleSet, Problem> {
    let text = &format!("{{\"rules\":{list}}}");
    rules::parse_drafts(BODY, text).map_err(|error| misshapen(text, &error, ""))?;
    rules::parse(BODY, text).map_err(|error| Problem::invalid(&mistakes(text, &error)))
}

/// The text of a JSON object.
fn object<'a>(body: &'a [u8], expected: &str) -> Result<&'a str, Problem> {
    let text = str::from_utf8(body).map_err(|error| Problem::bad_body("", error.to_string()))?.trim_ascii();
    if !text.starts_with('{') {
        return Err(Problem::bad_body("", format!("expected {expected}")));
    }
    Problem::shallow(text)?;
    let checked = serde_json::from_str::<&RawValue>(text);
    checked.map(|_| text).map_err(|error| Problem::bad_body("", error.to_string()))
}

/// Fields that there are not, values of the wrong kind.
fn misshapen(text: &str, error: &RulesError, within: &str) -> Problem {
    let path = error.problems().first().map_or_else(String::new, |first| path(text, first));
    let path = path.strip_prefix(within).unwrap_or(&path).trim_start_matches('.');
    let mistakes = mistakes(text, error);
    let detail = mistakes.first().map_or("", |first| &first.message);
    Problem::bad_body(path, detail).with("errors", &mistakes)
}

fn mistakes(text: &str, error: &RulesError) -> Vec<Mistake> {
    let mistake = |problem: &rules::Problem| {
        let path = path(text, problem);
        let of_a_rule = path.strip_prefix("rules[").and_then(|rest| rest.split_once(']'));
        let field = of_a_rule.map_or(&*path, |(_, field)| field.trim_start_matches('.'));
        let message = match &problem.help {
            Some(help) => format!("{}; {help}", problem.message),
            None => problem.message.clone(),
        };
        let field = (!field.is_empty()).then(|| field.to_owned());
        Mistake { rule: problem.rule.clone(), field, message }
    };
    error.problems().iter().map(mistake).collect()
}

/// Where a problem is. One of a whole rule points at its first field, which it does not name.
fn path(text: &str, problem: &rules::Problem) -> String {
    let place = place_at(text, problem.span.start);
    let field = place.path.rsplit('.').next().unwrap_or_default();
    match place.object {
        Some(object) if !problem.message.contains(&format!("`{field}`")) => object,
        _ => place.path,
    }
}

/// RFC 7396, on the texts: a number stays as it was written.
fn merged(before: Option<&RawValue>, patch: &RawValue) -> Result<Box<RawValue>, serde_json::Error> {
    type Fields<'a> = BTreeMap<String, &'a RawValue>;
    if !patch.get().starts_with('{') {
        return Ok(patch.to_owned());
    }
    let mut after: BTreeMap<String, Box<RawValue>> = match before.map(RawValue::get) {
        Some(text) if text.starts_with('{') => serde_json::from_str(text)?,
        _ => BTreeMap::new(),
    };
    for (name, value) in serde_json::from_str::<Fields<'_>>(patch.get())? {
        match value.get() {
            "null" => drop(after.remove(&name)),
            _ => {
                let field = merged(after.get(&name).map(|field| &**field), value)?;
                after.insert(name, field);
            }
        }
    }
    serde_json::value::to_raw_value(&after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_changes_what_it_names_removes_what_is_null_and_keeps_the_rest() {
        let before = rule(
            br#"{"key": "global", "limit": "1/s", "plan": 1.50, "when": {"method": "GET", "ip": "10.0.0.0/8"}}"#,
        )
        .unwrap();
        let patch = br#"{"limit": "2/s", "plan": null, "when": {"ip": null, "tier": 2.50}, "missing": null}"#;
        let after = patched(&before, patch).unwrap();
        assert_eq!((after.limit.as_deref(), after.plan.as_deref()), (Some("2/s"), None));
        assert_eq!(serde_json::to_string(&after.when).unwrap(), r#"{"method":["GET"],"tier":["2.50"]}"#);
        assert_eq!(patched(&before, b"{}").unwrap(), before);
        let with_a_list = patched(&before, br#"{"when": {"ip": ["::1"]}, "replaces": ["a"]}"#).unwrap();
        assert_eq!(with_a_list.when["ip"], ["::1"]);
    }

    #[test]
    fn texts_are_those_of_json_whatever_their_escapes() {
        let draft = rule(
            "{\"key\": \"global\", \"limit\":\t\"1\\/s\", \"description\": \"\\ud83e\\udd80 \\u00e4 \\\"\"}"
                .as_bytes(),
        );
        let draft = draft.unwrap();
        assert_eq!((draft.limit.as_deref(), draft.description.as_deref()), (Some("1/s"), Some("🦀 ä \"")));
    }
}
