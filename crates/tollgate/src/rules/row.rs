//! A rule as a row of `rate_limit_rule`.
//!
//! Rows come from and go to the database as JSON, which is also how the history keeps them: one shape for both
//! databases, and what a rules file can express converts both ways without loss. Plain SQL can write rows that are not
//! rules. Such a row must not hide the others: what can be read of it is read, and what cannot is named.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use tollgate_core::rule::{FieldKind, FieldValue, Mode};
use tollgate_core::{Draft, Rule};

use super::errors::clip;
use super::rows::problems_of;
use crate::Decimal;

/// The name for a row of which nothing can be trusted.
const WHOLE_ROW: &str = "rule";

/// One row of `rate_limit_rule`. What is `None` is NULL.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuleRow {
    /// The rule's number; 0 before it has one.
    pub rule_id: i64,
    /// What it counts by; must agree with the pattern.
    pub scope: Option<String>,
    /// A token bucket's rate, together with `burst_capacity`: 2.5 is 5 tokens per 2 s.
    pub rate_per_second: Option<Decimal>,
    /// A token bucket's capacity.
    pub burst_capacity: Option<u64>,
    /// Whether it is on.
    pub is_active: bool,
    /// When it was made, in ISO 8601.
    pub created_at: String,
    /// When it was last changed, in ISO 8601.
    pub updated_at: String,
    /// Grows with every change of this rule.
    pub version: i64,
    /// The other columns, which are fields of a rules file; `key_pattern` is `key`, `limit_text` is `limit` and
    /// `conditions` is `when`. For the whole rule see [`draft`](Self::draft).
    pub fields: Draft,
    /// The columns whose values no rule can have, written by plain SQL. Here they have their defaults, so a row that has
    /// any is not a rule: it can be replaced or deleted.
    pub unreadable: Vec<UnreadableColumn>,
}

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
    fn new(column: &str, json: &str, reason: &str) -> Self {
        UnreadableColumn { column: column.to_owned(), reason: reason.to_owned(), value: clip(json) }
    }

    /// The field of a rules file and of the HTTP API that the column belongs to.
    pub fn field(&self) -> &str {
        match &*self.column {
            "rate_per_second" | "burst_capacity" => "limit",
            "is_active" => "mode",
            column => field(column),
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

/// The columns that are named differently in a rules file.
const RENAMED: [(&str, &str); 3] = [("key_pattern", "key"), ("limit_text", "limit"), ("conditions", "when")];

fn field(column: &str) -> &str {
    RENAMED.iter().find(|(renamed, _)| *renamed == column).map_or(column, |(_, field)| field)
}

fn column(field: &'static str) -> &'static str {
    RENAMED.iter().find(|(_, renamed)| *renamed == field).map_or(field, |(column, _)| column)
}

impl RuleRow {
    /// The columns that a rule's author fills in.
    #[cfg(feature = "sql")]
    pub(super) fn written() -> impl Iterator<Item = &'static str> {
        ["scope", "rate_per_second", "burst_capacity", "is_active"]
            .into_iter()
            .chain(Draft::names().map(column))
    }

    /// A row from its number and its JSON in the database.
    #[cfg(feature = "sql")]
    pub(super) fn read(rule_id: i64, json: &[u8]) -> Self {
        RuleRow { rule_id, ..Self::from_json(json) }
    }

    /// A row from JSON that has its number.
    pub(super) fn from_json(json: &[u8]) -> Self {
        let text = String::from_utf8_lossy(json);
        let mut row = RuleRow::default();
        match serde_json::from_str::<BTreeMap<String, &RawValue>>(&text) {
            Ok(columns) => {
                for (column, value) in columns {
                    if let Err(reason) = row.set(&column, value.get()) {
                        row.unreadable.push(UnreadableColumn::new(&column, value.get(), &reason));
                    }
                }
            }
            Err(error) => row.unreadable.push(UnreadableColumn::new(WHOLE_ROW, &text, &reason(&error))),
        }
        if matches!(text, Cow::Owned(_)) {
            row.unreadable = vec![UnreadableColumn::new(WHOLE_ROW, &text, "it is not UTF-8")];
        }
        row
    }

    fn set(&mut self, column: &str, json: &str) -> Result<(), String> {
        match column {
            "rule_id" => self.rule_id = parse(json)?,
            "scope" => self.scope = parse(json)?,
            // Digit by digit: a database's number may have more digits than a double.
            "rate_per_second" if json == "null" => {}
            "rate_per_second" => {
                let rate = json.parse::<Decimal>().map_err(|error| format!("rate_per_second {error}"))?;
                self.rate_per_second = Some(rate);
            }
            "burst_capacity" => self.burst_capacity = parse(json)?,
            "is_active" => self.is_active = parse(json)?,
            "created_at" => self.created_at = parse(json)?,
            "updated_at" => self.updated_at = parse(json)?,
            "version" => self.version = parse(json)?,
            _ if json == "null" => {}
            column => {
                if let Some(field) = Draft::field(field(column)) {
                    self.fields.set(field.name, value(field.kind, json)?);
                }
            }
        }
        Ok(())
    }

    /// What keeps this row from being a rule, apart from the other rows; empty if nothing does.
    pub fn problems(&self) -> Vec<String> {
        problems_of(self).map(|problem| problem.message).collect()
    }

    /// The name, or the key pattern of an unnamed rule.
    pub fn label(&self) -> &str {
        self.fields.name.as_deref().unwrap_or(&self.fields.key)
    }

    /// The rule as a rules file would have it.
    pub fn draft(&self) -> Draft {
        let mut draft = self.fields.clone();
        if let (Some(rate), Some(burst)) = (self.rate_per_second, self.burst_capacity) {
            draft.limit = Some(rate_and_burst(rate, burst));
        }
        if !self.is_active {
            draft.mode = Some(Mode::Off.as_str().to_owned());
        }
        draft
    }
}

impl From<&Draft> for RuleRow {
    fn from(draft: &Draft) -> Self {
        let numbers = draft.limit.as_deref().and_then(|limit| numbers(limit, draft));
        let is_active = draft.mode.as_deref() != Some(Mode::Off.as_str());
        let mut fields = draft.clone();
        fields.limit = fields.limit.filter(|_| numbers.is_none());
        fields.mode = fields.mode.filter(|_| is_active);
        RuleRow {
            rate_per_second: numbers.map(|(rate, _)| rate),
            burst_capacity: numbers.map(|(_, burst)| burst),
            is_active,
            fields,
            ..RuleRow::default()
        }
    }
}

impl From<&Rule> for RuleRow {
    fn from(rule: &Rule) -> Self {
        RuleRow {
            rule_id: rule.id().unwrap_or_default(),
            scope: Some(rule.scope().as_str().to_owned()),
            ..RuleRow::from(rule.draft())
        }
    }
}

impl Serialize for RuleRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_map(None)?;
        row.serialize_entry("rule_id", &self.rule_id)?;
        row.serialize_entry("scope", &self.scope)?;
        row.serialize_entry("rate_per_second", &self.rate_per_second)?;
        row.serialize_entry("burst_capacity", &self.burst_capacity)?;
        for field in Draft::FIELDS {
            match self.fields.get(field.name) {
                // The column is text.
                Some(FieldValue::Number(factor)) if field.kind == FieldKind::Cost => {
                    row.serialize_entry(field.name, &factor.to_string())?;
                }
                Some(value) => row.serialize_entry(column(field.name), &value)?,
                None => {}
            }
        }
        row.serialize_entry("is_active", &self.is_active)?;
        for (column, at) in [("created_at", &self.created_at), ("updated_at", &self.updated_at)] {
            if !at.is_empty() {
                row.serialize_entry(column, at)?;
            }
        }
        row.serialize_entry("version", &self.version)?;
        row.end()
    }
}

/// The limit in the notation of rules files. A rate with decimals is a fraction in lowest terms over whole seconds.
pub(super) fn rate_and_burst(rate: Decimal, burst: u64) -> String {
    match rate.fraction() {
        (count, 1) => format!("{count}/s burst {burst}"),
        (count, seconds) => format!("{count}/{seconds}s burst {burst}"),
    }
}

/// The numbers of a limit that the two number columns spell exactly as it was written.
fn numbers(limit: &str, draft: &Draft) -> Option<(Decimal, u64)> {
    let is_plain = draft.algorithm.as_deref().is_none_or(|name| name == "token_bucket")
        && draft.window.is_none()
        && draft.aligned.is_none();
    let (rate, burst) = limit.split_once("s burst ").filter(|_| is_plain)?;
    let (count, seconds) = rate.split_once('/')?;
    let seconds = if seconds.is_empty() { 1 } else { seconds.parse().ok()? };
    let (rate, burst) = (Decimal::ratio(count.parse().ok()?, seconds)?, burst.parse().ok()?);
    (rate_and_burst(rate, burst) == limit).then_some((rate, burst))
}

/// The value of a column that is a field.
fn value(kind: FieldKind, json: &str) -> Result<FieldValue, String> {
    Ok(match kind {
        FieldKind::Boolean => FieldValue::Boolean(parse(json)?),
        FieldKind::Number { .. } => FieldValue::Number(parse(json)?),
        FieldKind::Cost => {
            let text: String = parse(json)?;
            let is_factor = text.bytes().all(|byte| byte.is_ascii_digit());
            match text.parse() {
                Ok(factor) if is_factor => FieldValue::Number(factor),
                _ => FieldValue::Text(text),
            }
        }
        FieldKind::Texts => FieldValue::Texts(texts(json)?),
        FieldKind::Conditions => {
            let raw: BTreeMap<String, Box<RawValue>> = parse(json)?;
            let condition = |(name, values): (String, Box<RawValue>)| Ok((name, texts(values.get())?));
            FieldValue::Conditions(raw.into_iter().map(condition).collect::<Result<_, String>>()?)
        }
        _ => FieldValue::Text(parse(json)?),
    })
}

fn parse<T: DeserializeOwned>(json: &str) -> Result<T, String> {
    serde_json::from_str(json).map_err(|error| reason(&error))
}

/// The error without its position, which is one in generated JSON.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason).to_owned()
}

/// A text, or a list of texts; numbers and booleans are text, as in a rules file.
fn texts(json: &str) -> Result<Vec<String>, String> {
    let items: Vec<&RawValue> = match json {
        "null" => Vec::new(),
        list if list.starts_with('[') => serde_json::from_str(list).map_err(|error| reason(&error))?,
        _ => return text(json).map(|text| vec![text]),
    };
    items.into_iter().map(|item| text(item.get())).collect()
}

fn text(json: &str) -> Result<String, String> {
    let message =
        "conditions are text, numbers, true or false, or lists of these, as in {\"method\": [\"GET\"]}";
    crate::json::scalar(json).map(Cow::into_owned).ok_or_else(|| message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(json: &str) -> RuleRow {
        let row = RuleRow::read(1, json.as_bytes());
        assert_eq!(row.unreadable, []);
        row
    }

    #[test]
    fn a_rate_and_a_burst_are_the_limit_they_spell_and_back() {
        let row = row(
            r#"{"rule_id": 1, "key_pattern": "global", "rate_per_second": 10, "burst_capacity": 50, "is_active": true}"#,
        );
        let draft = row.draft();
        assert_eq!(draft.limit.as_deref(), Some("10/s burst 50"));
        assert_eq!(RuleRow { rule_id: 1, ..RuleRow::from(&draft) }, row);
        for limit in [
            "10/s",
            "010/s burst 50",
            "10/s burst 50 ",
            "10/min burst 50",
            "10/1s burst 50",
            "10/4s burst 50",
            "1/3s burst 1",
            "5/2ms burst 1",
            "5/s2s burst 1",
        ] {
            let draft = Draft { limit: Some(limit.to_owned()), ..draft.clone() };
            let row = RuleRow::from(&draft);
            assert_eq!((row.fields.limit.as_deref(), row.rate_per_second), (Some(limit), None));
            assert_eq!(row.draft(), draft);
        }
    }

    #[test]
    fn a_rate_with_decimals_is_a_fraction_over_whole_seconds_and_back() {
        for (rate, limit) in [
            ("2.5", "5/2s burst 50"),
            ("0.5", "1/2s burst 50"),
            ("0.1", "1/10s burst 50"),
            ("0.000001", "1/1000000s burst 50"),
            ("12.345678", "6172839/500000s burst 50"),
        ] {
            let json =
                format!(r#"{{"key_pattern": "global", "rate_per_second": {rate}, "burst_capacity": 50}}"#);
            let row = row(&json);
            assert_eq!(row.draft().limit.as_deref(), Some(limit));
            assert_eq!(RuleRow::from(&row.draft()).rate_per_second, row.rate_per_second);
            assert!(row.draft().build().is_ok(), "{limit}");
            let written = serde_json::to_string(&row).unwrap();
            assert!(written.contains(&format!(r#""rate_per_second":{rate},"#)), "{written}");
            assert_eq!(super::tests::row(&written), row);
        }
    }

    #[test]
    fn a_rate_with_more_decimals_is_an_error_with_the_nearest_accepted_rate() {
        // Further digits than a double has are not overlooked.
        for (rate, nearest) in [("0.1234567", "0.123457"), ("2.50000000000000000001", "2.5")] {
            let json = format!(r#"{{"rate_per_second": {rate}}}"#);
            let error = &RuleRow::read(1, json.as_bytes()).problems()[0];
            assert!(error.contains(&format!("the nearest accepted value is {nearest}")), "{error}");
        }
    }

    #[test]
    fn an_inactive_rule_is_off_and_keeps_the_mode_it_has_when_it_is_on() {
        let row =
            row(r#"{"key_pattern": "global", "limit_text": "1/s", "mode": "shadow", "is_active": false}"#);
        assert_eq!(row.draft().mode.as_deref(), Some("off"));
        assert_eq!(RuleRow { is_active: true, ..row }.draft().mode.as_deref(), Some("shadow"));
    }

    #[test]
    fn conditions_are_read_as_a_rules_file_reads_them() {
        let row = row(
            r#"{"conditions": {"method": "GET", "beta": true, "n": [1.50, "x\n"]}, "replaces": "a", "name": null}"#,
        );
        assert_eq!(row.fields.when["method"], ["GET"]);
        assert_eq!(row.fields.when["beta"], ["true"]);
        assert_eq!(row.fields.when["n"], ["1.50", "x\n"]);
        assert_eq!(row.fields.replaces, ["a"]);
        assert_eq!(RuleRow::read(1, br#"{"conditions": {"a": {"b": 1}}}"#).unreadable.len(), 1);
    }

    #[test]
    fn columns_that_can_be_read_are_read_and_the_others_are_named() {
        let json =
            br#"{"rule_id": 7, "name": "a", "key_pattern": "global", "limit_text": "1/s", "is_active": true,
            "conditions": {"a": {"b": 1}}, "replaces": [null], "version": 3}"#;
        let row = RuleRow::read(7, json);
        assert_eq!((row.rule_id, row.version, row.fields.name.as_deref()), (7, 3, Some("a")));
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
