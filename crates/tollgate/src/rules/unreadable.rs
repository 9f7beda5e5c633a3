//! Rows that plain SQL wrote and that are not rules.
//!
//! Such a row must not hide the others: what can be read of it is read, and what cannot is named.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::value::RawValue;

use super::errors::clip;
use super::row::RuleRow;
use super::rows::problems_of;

/// The name for a row of which nothing can be trusted.
const WHOLE_ROW: &str = "rule";

/// A column of a row whose value no rule can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableColumn {
    /// Its name, or `rule` if nothing of the row can be read.
    pub column: String,
    /// What is wrong with the value.
    pub reason: String,
    /// The value as JSON, clipped.
    pub value: String,
}

impl UnreadableColumn {
    /// The field of a rules file and of the HTTP API that the column belongs to.
    pub fn field(&self) -> &str {
        match &*self.column {
            "key_pattern" => "key",
            "rate_per_second" | "burst_capacity" | "limit_text" => "limit",
            "conditions" => "when",
            "is_active" => "mode",
            column => column,
        }
    }

    /// Whether nothing of the row can be trusted.
    pub fn is_whole_row(&self) -> bool {
        self.column == WHOLE_ROW
    }
}

impl fmt::Display for UnreadableColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`: {}", self.column, self.value, self.reason)
    }
}

impl RuleRow {
    /// A row from its JSON in the database.
    pub(super) fn read(rule_id: i64, json: &[u8]) -> Self {
        let text = String::from_utf8_lossy(json);
        let is_utf8 = matches!(text, std::borrow::Cow::Borrowed(_));
        match serde_json::from_str::<RuleRow>(&text) {
            // An array would be read as the columns in their order.
            Ok(_) if !text.trim_start().starts_with('{') => {
                let unreadable = vec![whole(&text, "it is not an object")];
                RuleRow { rule_id, unreadable, ..RuleRow::default() }
            }
            Ok(row) if is_utf8 => RuleRow { rule_id, ..row },
            Ok(row) => RuleRow { rule_id, unreadable: vec![whole(&text, "it is not UTF-8")], ..row },
            Err(error) => RuleRow { rule_id, ..readable_part(&text, &error) },
        }
    }

    /// What keeps this row from being a rule, apart from the other rows; empty if nothing does.
    pub fn problems(&self) -> Vec<String> {
        problems_of(self).map(|problem| problem.message).collect()
    }
}

/// The row with the columns that can be read; the others are named.
fn readable_part(text: &str, error: &serde_json::Error) -> RuleRow {
    let Ok(mut columns) = serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(text) else {
        return RuleRow { unreadable: vec![whole(text, &reason(error))], ..RuleRow::default() };
    };
    let mut unreadable = Vec::new();
    columns.retain(|column, value| {
        let alone = BTreeMap::from([(column.as_str(), &*value)]);
        let read = serde_json::to_string(&alone).and_then(|json| serde_json::from_str::<RuleRow>(&json));
        let Err(error) = read else { return true };
        let (column, value) = (column.clone(), clip(value.get()));
        unreadable.push(UnreadableColumn { column, reason: reason(&error), value });
        false
    });
    let row = serde_json::to_string(&columns).and_then(|json| serde_json::from_str(&json));
    match row {
        Ok(row) => RuleRow { unreadable, ..row },
        Err(error) => RuleRow { unreadable: vec![whole(text, &reason(&error))], ..RuleRow::default() },
    }
}

fn whole(text: &str, reason: &str) -> UnreadableColumn {
    UnreadableColumn { column: WHOLE_ROW.to_owned(), reason: reason.to_owned(), value: clip(text) }
}

/// The error without its place, which is one in our own JSON.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_can_be_read_are_read_and_the_others_are_named() {
        let json =
            br#"{"rule_id": 7, "name": "a", "key_pattern": "global", "limit_text": "1/s", "is_active": true,
            "conditions": {"a": {"b": 1}}, "replaces": [null], "version": 3}"#;
        let row = RuleRow::read(7, json);
        assert_eq!((row.rule_id, row.version, row.name.as_deref()), (7, 3, Some("a")));
        let fields: Vec<&str> = row.unreadable.iter().map(UnreadableColumn::field).collect();
        assert_eq!(fields, ["when", "replaces"]);
        let problems = row.problems();
        assert!(problems[0].starts_with("conditions `{\"a\": {\"b\": 1}}`: "), "{problems:?}");
        assert!(!problems[0].contains(" at line "), "{problems:?}");
    }

    #[test]
    fn rows_that_are_not_json_objects_or_not_utf8_are_named_as_a_whole() {
        for json in [&b"5"[..], b"null", b"[1]", b"{", b"", b"{\"name\": \"\xff\", \"version\": 2}"] {
            let row = RuleRow::read(9, json);
            assert_eq!((row.rule_id, row.unreadable.len()), (9, 1), "{row:?}");
            assert_eq!(row.unreadable[0].column, "rule");
        }
    }
}
