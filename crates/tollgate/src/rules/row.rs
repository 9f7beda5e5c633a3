//! A rule as a row of `rate_limit_rule`.
//!
//! Rows come from and go to the database as JSON, which is also how the history keeps them: one shape for both
//! databases, and what a rules file can express converts both ways without loss.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use tollgate_core::rule::{CostDraft, Mode};
use tollgate_core::{Draft, Rule};

use super::unreadable::UnreadableColumn;
use crate::Decimal;

/// One row of `rate_limit_rule`, with the columns' names. What is `None` is NULL.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleRow {
    /// The rule's number; 0 before it has one.
    pub rule_id: i64,
    /// Unique; without it a rule is its key, plan and period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The key pattern.
    pub key_pattern: String,
    /// What it counts by; must agree with the pattern.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// The plan it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// A token bucket's rate, together with `burst_capacity`: 2.5 is 5 tokens per 2 s.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "rate")]
    pub rate_per_second: Option<Decimal>,
    /// A token bucket's capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_capacity: Option<u64>,
    /// Any other limit, in the notation of rules files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_text: Option<String>,
    /// How it counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<String>,
    /// Where windows begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    /// The zone of a calendar window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// Ticks on the clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aligned: Option<bool>,
    /// `when` of a rules file.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "conditions")]
    pub conditions: BTreeMap<String, Vec<String>>,
    /// Digits are a factor, anything else is the name of an attribute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<String>,
    /// When an attribute of the key is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// Where decisions are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistency: Option<String>,
    /// What it says when the store cannot be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_store_failure: Option<String>,
    /// `enforce` or `shadow`, when it is active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// `deny` or `allow` instead of a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Labels of rules that do not apply where this one does.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "texts_or_null")]
    pub replaces: Vec<String>,
    /// How many bits of an IPv6 address make a bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6_prefix: Option<u64>,
    /// Whether it is on.
    pub is_active: bool,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// When it was made, in ISO 8601.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub created_at: String,
    /// When it was last changed, in ISO 8601.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub updated_at: String,
    /// Grows with every change of this rule.
    pub version: i64,
    /// The columns whose values no rule can have, written by plain SQL. Here they have their defaults, so a row that has
    /// any is not a rule: it can be replaced or deleted.
    #[serde(skip)]
    pub unreadable: Vec<UnreadableColumn>,
}

impl RuleRow {
    /// The columns that a rule's author fills in, in the order of the table.
    pub(super) const WRITTEN: &[&str] = &[
        "name",
        "key_pattern",
        "scope",
        "plan",
        "rate_per_second",
        "burst_capacity",
        "limit_text",
        "algorithm",
        "window",
        "time_zone",
        "aligned",
        "conditions",
        "cost",
        "missing",
        "consistency",
        "on_store_failure",
        "mode",
        "action",
        "replaces",
        "ipv6_prefix",
        "is_active",
        "description",
    ];

    /// The name, or the key pattern of an unnamed rule.
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.key_pattern)
    }

    /// The rule as a rules file would have it.
    pub fn draft(&self) -> Draft {
        let mode = if self.is_active { self.mode.clone() } else { Some(Mode::Off.as_str().to_owned()) };
        Draft {
            name: self.name.clone(),
            key: self.key_pattern.clone(),
            plan: self.plan.clone(),
            limit: self.limit(),
            algorithm: self.algorithm.clone(),
            window: self.window.clone(),
            time_zone: self.time_zone.clone(),
            aligned: self.aligned,
            when: self.conditions.clone(),
            cost: self.cost.as_deref().map(cost),
            missing: self.missing.clone(),
            consistency: self.consistency.clone(),
            on_store_failure: self.on_store_failure.clone(),
            mode,
            action: self.action.clone(),
            replaces: self.replaces.clone(),
            ipv6_prefix: self.ipv6_prefix,
            description: self.description.clone(),
        }
    }

    fn limit(&self) -> Option<String> {
        match (self.rate_per_second, self.burst_capacity) {
            (Some(rate), Some(burst)) => Some(rate_and_burst(rate, burst)),
            _ => self.limit_text.clone(),
        }
    }
}

impl From<&Draft> for RuleRow {
    fn from(draft: &Draft) -> Self {
        let numbers = draft.limit.as_deref().and_then(|limit| numbers(limit, draft));
        let is_active = draft.mode.as_deref() != Some(Mode::Off.as_str());
        RuleRow {
            name: draft.name.clone(),
            key_pattern: draft.key.clone(),
            plan: draft.plan.clone(),
            rate_per_second: numbers.map(|(rate, _)| rate),
            burst_capacity: numbers.map(|(_, burst)| burst),
            limit_text: draft.limit.clone().filter(|_| numbers.is_none()),
            algorithm: draft.algorithm.clone(),
            window: draft.window.clone(),
            time_zone: draft.time_zone.clone(),
            aligned: draft.aligned,
            conditions: draft.when.clone(),
            cost: draft.cost.as_ref().map(|cost| match cost {
                CostDraft::Times(factor) => factor.to_string(),
                CostDraft::Attribute(name) => name.clone(),
            }),
            missing: draft.missing.clone(),
            consistency: draft.consistency.clone(),
            on_store_failure: draft.on_store_failure.clone(),
            mode: draft.mode.clone().filter(|_| is_active),
            action: draft.action.clone(),
            replaces: draft.replaces.clone(),
            ipv6_prefix: draft.ipv6_prefix,
            is_active,
            description: draft.description.clone(),
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

/// Reads the rate from the text of its JSON, digit by digit: a database's number may have more digits than a double.
fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Decimal>, D::Error> {
    let raw = Option::<Box<RawValue>>::deserialize(deserializer)?;
    let problem = |error| D::Error::custom(format_args!("rate_per_second {error}"));
    raw.map(|raw| raw.get().parse().map_err(problem)).transpose()
}

fn cost(text: &str) -> CostDraft {
    match text.parse() {
        Ok(factor) if text.bytes().all(|byte| byte.is_ascii_digit()) => CostDraft::Times(factor),
        _ => CostDraft::Attribute(text.to_owned()),
    }
}

/// Attribute to value or values, as a rules file has them; numbers and booleans are text.
fn conditions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Vec<String>>, D::Error> {
    let raw = Option::<BTreeMap<String, Box<RawValue>>>::deserialize(deserializer)?.unwrap_or_default();
    raw.into_iter().map(|(name, value)| Ok((name, texts(&value)?))).collect()
}

fn texts_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let raw = Option::<Box<RawValue>>::deserialize(deserializer)?;
    raw.map_or(Ok(Vec::new()), |raw| texts(&raw))
}

/// A text, or a list of texts.
fn texts<E: serde::de::Error>(value: &RawValue) -> Result<Vec<String>, E> {
    let items: Vec<&RawValue> = match value.get() {
        "null" => Vec::new(),
        list if list.starts_with('[') => serde_json::from_str(list).map_err(E::custom)?,
        _ => vec![value],
    };
    let text = |item: &&RawValue| crate::json::scalar(item.get()).map(Into::into);
    items.iter().map(text).collect::<Option<_>>().ok_or_else(|| {
        E::custom(
            "conditions are text, numbers, true or false, or lists of these, as in {\"method\": [\"GET\"]}",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(json: &str) -> RuleRow {
        serde_json::from_str(json).unwrap()
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
            assert_eq!((row.limit_text.as_deref(), row.rate_per_second), (Some(limit), None));
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
            let error = serde_json::from_str::<RuleRow>(&json).unwrap_err().to_string();
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
        assert_eq!(row.conditions["method"], ["GET"]);
        assert_eq!(row.conditions["beta"], ["true"]);
        assert_eq!(row.conditions["n"], ["1.50", "x\n"]);
        assert_eq!(row.replaces, ["a"]);
        assert!(serde_json::from_str::<RuleRow>(r#"{"conditions": {"a": {"b": 1}}}"#).is_err());
    }
}
