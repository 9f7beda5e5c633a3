//! A rule as the API shows it.

use serde::Serialize;
use tollgate::Timestamp;
use tollgate::audit::{instant, instant_text};
use tollgate::core::rule::Mode;
use tollgate::core::{Draft, Rule};
use tollgate::rules::RuleRow;
use utoipa::ToSchema;

use super::RuleBody;

/// A rule with what the database knows about it; rules from elsewhere have none of that.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RuleEntry)]
pub(crate) struct Entry {
    #[schema(required)]
    rule_id: Option<i64>,
    #[schema(required)]
    version: Option<i64>,
    #[schema(required)]
    created_at: Option<String>,
    #[schema(required)]
    updated_at: Option<String>,
    label: String,
    active: bool,
    #[schema(value_type = RuleBody)]
    rule: Draft,
}

impl Entry {
    pub(super) fn of_row(row: &RuleRow) -> Self {
        let rule = row.draft();
        Entry {
            rule_id: Some(row.rule_id),
            version: Some(row.version),
            created_at: Some(in_utc(&row.created_at)),
            updated_at: Some(in_utc(&row.updated_at)),
            label: label(&rule),
            active: row.is_active,
            rule,
        }
    }

    pub(super) fn of_rule(rule: &Rule) -> Self {
        Entry {
            rule_id: None,
            version: None,
            created_at: None,
            updated_at: None,
            label: rule.label().to_owned(),
            active: rule.mode() != Mode::Off,
            rule: rule.draft().clone(),
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
