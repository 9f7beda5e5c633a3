//! Rules and their changes, as the API has them.

use anyhow::{Context as _, anyhow, bail};
use http::StatusCode;
use serde_json::value::to_raw_value;
use tollgate::Rule;
use tollgate::core::Draft;
use tollgate::core::rule::FieldError;
use tollgate::core::suggest::closest;
use tollgate_server::api::{RuleChange, RuleEdit, RuleEdits, RuleEntry, RuleHistory, RuleList, RulesEdited};

use super::yaml::braces;
use crate::client::{Client, Refused};

/// The most changes that the API lists in one answer.
const PAGE: usize = 1_000;

/// Every rule.
pub(super) async fn list(client: &Client) -> anyhow::Result<Vec<RuleEntry>> {
    let list: RuleList = client.get("/v1/rules").await?;
    Ok(list.rules)
}

/// A rule by its label, name or number.
pub(super) async fn find(client: &Client, name: &str) -> anyhow::Result<RuleEntry> {
    find_in(list(client).await?, name)
}

/// The rule that a label, a name or a number means; else which was probably meant.
pub(super) fn find_in(entries: Vec<RuleEntry>, name: &str) -> anyhow::Result<RuleEntry> {
    let number: Option<i64> = name.parse().ok();
    let is_called = |entry: &RuleEntry| entry.label == name || entry.rule.name.as_deref() == Some(name);
    let is_numbered = |entry: &RuleEntry| number.is_some() && entry.rule_id == number;
    let by_label: Vec<&RuleEntry> = entries.iter().filter(|entry| is_called(entry)).collect();
    let by_number = entries.iter().find(|entry| is_numbered(entry));
    match (&by_label[..], by_number) {
        ([one], None) => Ok((*one).clone()),
        ([one], Some(other)) if one.rule_id == other.rule_id => Ok((*one).clone()),
        ([], Some(one)) => Ok(one.clone()),
        ([], None) => Err(unknown(name, entries.iter().map(|entry| &*entry.label))),
        _ => bail!("several rules are called `{name}`; name one by another name or by its number"),
    }
}

/// There is no such rule, and which was probably meant.
pub(super) fn unknown<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> anyhow::Error {
    let way_out = match closest(name, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`tollgate rules list` shows their names".to_owned(),
    };
    anyhow!("there is no rule `{name}`; {way_out}")
}

/// The rule that an entry makes, or why it makes none.
pub(super) fn built(entry: &RuleEntry) -> Result<Rule, String> {
    if let Some(problem) = entry.problem() {
        return Err(problem.to_owned());
    }
    let told = |error: &FieldError| format!("{}: {}", error.field.name, error.problem);
    let built = entry.rule.clone().build();
    built.map_err(|errors| errors.iter().map(told).collect::<Vec<_>>().join("; "))
}

/// The label with its number and version, where it has them.
pub(super) fn title(entry: &RuleEntry) -> String {
    match (entry.rule_id, entry.version) {
        (Some(rule_id), Some(version)) => format!("{} (rule {rule_id}, version {version})", entry.label),
        _ => entry.label.clone(),
    }
}

/// A new rule.
pub(super) fn add(draft: &Draft) -> anyhow::Result<RuleEdit> {
    Ok(RuleEdit::Add { rule: to_raw_value(draft)? })
}

/// A rule as it shall be, unless it was changed since `version`.
pub(super) fn update(entry: &RuleEntry, version: Option<i64>, draft: &Draft) -> anyhow::Result<RuleEdit> {
    let (rule_id, version) = seen(entry, version)?;
    Ok(RuleEdit::Update { rule_id, version, rule: to_raw_value(draft)? })
}

/// No such rule any more, unless it was changed since `version`.
pub(super) fn remove(entry: &RuleEntry, version: Option<i64>) -> anyhow::Result<RuleEdit> {
    let (rule_id, version) = seen(entry, version)?;
    Ok(RuleEdit::Remove { rule_id, version })
}

fn seen(entry: &RuleEntry, version: Option<i64>) -> anyhow::Result<(i64, i64)> {
    entry
        .rule_id
        .zip(version.or(entry.version))
        .with_context(|| format!("rule `{}` is not in a database, so it cannot be changed here", entry.label))
}

/// Makes all of these changes or none, and gives back the rules that were added or changed. `yours` is what the caller made
/// of a rule, to be shown beside a concurrent change.
pub(super) async fn apply(
    client: &Client,
    edits: Vec<RuleEdit>,
    yours: Option<&Draft>,
) -> anyhow::Result<Vec<RuleEntry>> {
    let edited: anyhow::Result<RulesEdited> = client.post("/v1/rules/edits", &RuleEdits { edits }).await;
    edited.map(|edited| edited.rules).map_err(|error| match error.downcast::<Refused>() {
        Ok(refused) if refused.status == StatusCode::PRECONDITION_FAILED => {
            let theirs = refused.problem.current.as_ref().map(|current| &current.rule);
            let rule = |draft: Option<&Draft>| draft.map_or_else(|| "none".to_owned(), braces);
            anyhow!("{}\n  yours:  {}\n  theirs: {}", refused.problem.detail, rule(yours), rule(theirs))
        }
        Ok(refused) => refused.into(),
        Err(error) => error,
    })
}

/// The newest changes, of one rule or of all.
pub(super) async fn history(
    client: &Client,
    rule_id: Option<i64>,
    limit: usize,
) -> anyhow::Result<Vec<RuleChange>> {
    let (mut changes, mut before) = (Vec::new(), None);
    while changes.len() < limit {
        let mut path = format!("/v1/rules/history?limit={}", (limit - changes.len()).min(PAGE));
        path.extend(rule_id.map(|rule_id| format!("&rule_id={rule_id}")));
        path.extend(before.map(|before: i64| format!("&before={before}")));
        let page: RuleHistory = client.get(&path).await?;
        changes.extend(page.history);
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    Ok(changes)
}
