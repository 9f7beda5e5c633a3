//! From rows to a rule set, or to everything that is wrong with them.

use std::collections::BTreeSet;
use std::fmt;

use tollgate_core::rule::{FieldError, FieldValue};
use tollgate_core::{Limit, Rule, RuleSet, SetError};

use super::assemble::worded;
use super::errors::{MAX_PROBLEMS, clip};
use super::row::{RuleRow, rate_and_burst};
use crate::Decimal;

/// Everything that is wrong with the rows of a database.
///
/// Its `Display` is one line for each problem, as in
/// ``postgres://db/rules: rule_id 7: rule `search`: limit `0/min`: count is zero; the least is 1``.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowsError {
    pub(super) shown: String,
    pub(super) problems: BTreeSet<RowProblem>,
}

/// One thing that is wrong with one row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[non_exhaustive]
pub struct RowProblem {
    /// The row.
    pub rule_id: i64,
    /// The name of the rule, or its key if it has no name.
    pub rule: String,
    /// What is wrong, and what to write instead.
    pub message: String,
}

impl RowsError {
    /// Where the rows are from, without a password.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// What is wrong, by row. There is at least one.
    pub fn problems(&self) -> impl Iterator<Item = &RowProblem> {
        self.problems.iter()
    }
}

impl std::error::Error for RowsError {}

impl fmt::Display for RowsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem) in self.problems.iter().enumerate() {
            let newline = if place == 0 { "" } else { "\n" };
            write!(f, "{newline}{}: {problem}", self.shown)?;
        }
        Ok(())
    }
}

impl fmt::Display for RowProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A rule that is only about to be added has no number yet.
        if self.rule_id != 0 {
            write!(f, "rule_id {}: ", self.rule_id)?;
        }
        write!(f, "rule `{}`: {}", self.rule, self.message)
    }
}

/// Everything that is wrong with a row, apart from the others.
pub(super) fn problems_of(row: &RuleRow) -> impl Iterator<Item = RowProblem> {
    let mut builder = Builder::default();
    builder.add(row);
    builder.problems.into_iter()
}

/// Rules on their way from rows to a set.
#[derive(Debug, Default)]
pub(super) struct Builder {
    rules: Vec<Rule>,
    /// The number and the label of each.
    known: Vec<(i64, Box<str>)>,
    problems: BTreeSet<RowProblem>,
}

impl Builder {
    /// Takes rows as JSON.
    #[cfg(feature = "sql")]
    pub(super) fn add_json(&mut self, rows: &[(i64, Vec<u8>)]) {
        for (rule_id, json) in rows {
            self.add(&RuleRow::read(*rule_id, json));
        }
    }

    /// Takes a row.
    pub(super) fn add(&mut self, row: &RuleRow) {
        if !row.unreadable.is_empty() {
            let problems = row.unreadable.iter().map(ToString::to_string);
            problems.for_each(|problem| self.blame(row.rule_id, row.label(), problem));
            return;
        }
        match row.draft().build() {
            Ok(rule) => {
                let scope = rule.scope().as_str();
                if let Some(given) = row.scope.as_deref().filter(|given| *given != scope) {
                    let key = clip(&row.fields.key);
                    let message = format!("scope `{given}`: `{key}` counts by {scope}; leave scope out");
                    self.blame(row.rule_id, row.label(), message);
                }
                self.known.push((row.rule_id, rule.label().into()));
                self.rules.push(rule.with_id(row.rule_id));
            }
            Err(errors) => {
                errors.iter().for_each(|error| self.blame(row.rule_id, row.label(), explain(row, error)));
            }
        }
    }

    /// The set, if nothing is wrong with it.
    pub(super) fn finish(mut self, shown: &str) -> Result<RuleSet, RowsError> {
        if self.problems.is_empty() {
            match RuleSet::new(std::mem::take(&mut self.rules)) {
                Ok(set) => return Ok(set),
                Err(errors) => errors.iter().for_each(|error| self.between(error)),
            }
        }
        Err(RowsError { shown: shown.to_owned(), problems: self.problems })
    }

    fn between(&mut self, error: &SetError) {
        let message = match error {
            SetError::Duplicate { first, .. } => {
                let (first, _) = self.known[*first];
                format!("it is there twice, first as rule_id {first}; give one of them another `name`")
            }
            SetError::ReplacesItself { .. } => {
                "it replaces itself, directly or through others, so none of them would apply; drop one `replaces`"
                    .to_owned()
            }
            error => error.to_string(),
        };
        let (rule_id, label) = self.known[error.rule()].clone();
        self.blame(rule_id, &label, message);
    }

    fn blame(&mut self, rule_id: i64, label: &str, message: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.insert(RowProblem { rule_id, rule: clip(label), message });
        }
    }
}

/// What core says of a field, in the words of a rules file.
fn explain(row: &RuleRow, error: &FieldError) -> String {
    let given = match row.draft().get(error.field.name) {
        Some(FieldValue::Text(text)) => Some(text),
        Some(FieldValue::Boolean(yes)) => Some(yes.to_string()),
        Some(FieldValue::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let explained = match given {
        None if error.field.key.is_none() => error.problem.to_string(),
        given => worded(error, given.as_deref()),
    };
    let nearest = match (row.rate_per_second, row.burst_capacity) {
        (Some(rate), Some(burst)) if error.field.name == "limit" => nearest_rate(rate, burst),
        _ => None,
    };
    match nearest {
        None => explained,
        Some(nearest) => {
            format!("{explained}; the nearest rate_per_second accepted with this burst is {nearest}")
        }
    }
}

/// The rate nearest to one that is too fine for its burst. How fine a rate is depends on what divides its millionths, and
/// those are counted over 10^12 microseconds: the nearest multiples of each divisor of 10^12 are all there is to try.
fn nearest_rate(rate: Decimal, burst: u64) -> Option<Decimal> {
    let wanted = rate.millionths();
    let divisors = (0..=12).flat_map(|twos| (0..=12).map(move |fives| 2_u128.pow(twos) * 5_u128.pow(fives)));
    let multiples = divisors.flat_map(|divisor| {
        let below = wanted - wanted % divisor;
        [below, below + divisor]
    });
    let is_accepted = |rate: &Decimal| rate_and_burst(*rate, burst).parse::<Limit>().is_ok();
    let accepted = multiples.map(Decimal::from_millionths).filter(is_accepted);
    accepted.min_by_key(|rate| (rate.millionths().abs_diff(wanted), *rate))
}

#[cfg(test)]
mod tests {
    use tollgate_core::Draft;

    use super::*;

    #[test]
    fn a_rate_too_fine_for_its_burst_is_refused_with_the_nearest_that_is_not() {
        for (rate, burst, nearest) in [
            ("0.123457", 10_000, "0.123456"),
            ("0.123457", 10_000_000, "0.1232"),
            ("0.000001", 9_008, "0.000002"),
        ] {
            let row = RuleRow {
                fields: Draft { key: "global".to_owned(), ..Draft::default() },
                rate_per_second: Some(rate.parse().unwrap()),
                burst_capacity: Some(burst),
                is_active: true,
                ..RuleRow::default()
            };
            let mut builder = Builder::default();
            builder.add(&row);
            let error = builder.finish("db").unwrap_err().to_string();
            assert!(error.ends_with(&format!("accepted with this burst is {nearest}")), "{error}");
        }
    }
}
