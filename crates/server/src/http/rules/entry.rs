//! A rule as the API shows it.

use std::collections::HashMap;

use tollgate::audit::{instant, instant_text};
use tollgate::core::rule::Mode;
use tollgate::core::{Draft, Rule};
use tollgate::rules::{RuleBook, RuleRow};
use tollgate::{RuleSet, Timestamp};

use crate::api::{NOT_IN_EFFECT, RuleEntry};

impl RuleEntry {
    /// A row, and whether `enforced` has it as it is.
    pub(super) fn of_row(row: &RuleRow, enforced: &RuleSet) -> Self {
        let is_same = |rule: &&Rule| rule.id() == Some(row.rule_id);
        let error = match (&row.problems()[..], enforced.rules().iter().find(is_same)) {
            ([], Some(rule)) if *rule.draft() == row.draft() => None,
            ([], _) => Some(NOT_IN_EFFECT.to_owned()),
            (problems, _) => Some(problems.join("; ")),
        };
        RuleEntry { error, ..RuleEntry::of_row_alone(row) }
    }

    /// Many rows, with what is wrong with them, and whether `enforced` has them as they are.
    pub(super) fn of_rows(book: &RuleBook, rows: &[RuleRow], enforced: Option<&RuleSet>) -> Vec<Self> {
        let enforced: Option<HashMap<Option<i64>, &Rule>> =
            enforced.map(|rules| rules.rules().iter().map(|rule| (rule.id(), rule)).collect());
        let is_enforced = |row: &RuleRow| match &enforced {
            Some(by_id) => by_id.get(&Some(row.rule_id)).is_some_and(|rule| *rule.draft() == row.draft()),
            None => true, // they take effect elsewhere
        };
        let mut entries: Vec<RuleEntry> = rows.iter().map(RuleEntry::of_row_alone).collect();
        if enforced.is_some() && rows.iter().all(|row| row.unreadable.is_empty() && is_enforced(row)) {
            return entries;
        }
        let mut problems: HashMap<i64, Vec<String>> = HashMap::new();
        for problem in book.problems(rows) {
            problems.entry(problem.rule_id).or_default().push(problem.message);
        }
        for (entry, row) in entries.iter_mut().zip(rows) {
            entry.error = match problems.get(&row.rule_id) {
                Some(problems) => Some(problems.join("; ")),
                None => (!is_enforced(row)).then(|| NOT_IN_EFFECT.to_owned()),
            };
        }
        entries
    }

    /// Whether the rule as listed is not the one that is enforced.
    pub(super) const fn is_not_in_effect(&self) -> bool {
        self.error.is_some()
    }

    /// A row, whether it is enforced or not.
    pub(super) fn of_row_alone(row: &RuleRow) -> Self {
        let rule = row.draft();
        RuleEntry {
            rule_id: Some(row.rule_id),
            version: Some(row.version),
            created_at: Some(in_utc(&row.created_at)),
            updated_at: Some(in_utc(&row.updated_at)),
            label: label(&rule),
            active: row.is_active,
            rule,
            error: None,
        }
    }

    pub(super) fn of_rule(rule: &Rule) -> Self {
        RuleEntry {
            rule_id: None,
            version: None,
            created_at: None,
            updated_at: None,
            label: rule.label().to_owned(),
            active: rule.mode() != Mode::Off,
            rule: rule.draft().clone(),
            error: None,
        }
    }
}

/// The time of a row in one form, whichever its database has.
pub(super) fn in_utc(text: &str) -> String {
    instant(text, Timestamp::default()).map_or_else(|_| text.to_owned(), instant_text)
}

/// What the rule is called; one that does not validate goes by its name or key.
fn label(draft: &Draft) -> String {
    match draft.clone().build() {
        Ok(rule) => rule.label().to_owned(),
        Err(_) => draft.name.clone().unwrap_or_else(|| draft.key.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_one_form_whatever_the_database() {
        for text in [
            "2026-11-16T01:02:14.803319+00:00",
            "2026-11-16T01:02:14.803319Z",
            "2026-11-16T02:02:14.803319+01:00",
        ] {
            assert_eq!(in_utc(text), "2026-11-16T01:02:14.803319Z");
        }
    }
}
