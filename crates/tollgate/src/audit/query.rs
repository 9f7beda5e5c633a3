//! Finding violations again, newest first, a page at a time.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sqlx::AssertSqlSafe;
use tollgate_core::{Descriptor, Timestamp};

use super::instant::written;
use super::log::Dialect;
use super::violation::{is_address, kept};
use super::{Violation, ViolationLog, instant_text};
use crate::sql::{DatabaseError, each};
use crate::{Decimal, DecimalError};

/// The most violations on a page.
pub const MAX_PAGE: usize = 1_000;

/// Which violations to find. What is `None` does not matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViolationFilter {
    /// Who asked.
    pub user_id: Option<String>,
    /// From where.
    pub ip: Option<String>,
    /// For what.
    pub endpoint: Option<String>,
    /// The rule of the binding limit.
    pub rule: Option<String>,
    /// Not before.
    pub since: Option<Timestamp>,
    /// Before.
    pub until: Option<Timestamp>,
    /// Where the last page ended.
    pub cursor: Option<Cursor>,
    /// How many, up to [`MAX_PAGE`].
    pub limit: usize,
}

impl Default for ViolationFilter {
    /// The newest hundred.
    fn default() -> Self {
        ViolationFilter {
            user_id: None,
            ip: None,
            endpoint: None,
            rule: None,
            since: None,
            until: None,
            cursor: None,
            limit: 100,
        }
    }
}

/// A violation in the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundViolation {
    /// Its row.
    pub violation_id: i64,
    /// What it is.
    #[serde(flatten)]
    pub violation: Violation,
}

/// One page of violations, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViolationPage {
    /// Those found.
    pub violations: Vec<FoundViolation>,
    /// Where the next page begins, if there is one.
    pub next: Option<Cursor>,
}

/// Where a page ended: `1762171200123456-42`. What is written meanwhile moves no page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor {
    /// When the last one on the page was requested.
    pub requested_at: Timestamp,
    /// Its row.
    pub violation_id: i64,
}

/// A text that is not a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor; take `next` of the page before, as it is")]
pub struct CursorError;

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.requested_at.as_micros(), self.violation_id)
    }
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let number = |text: &str| text.parse().ok().filter(|_| digits(text)).ok_or(CursorError);
        let (at, id) = text.split_once('-').ok_or(CursorError)?;
        Ok(Cursor { requested_at: Timestamp::from_micros(number(at)?), violation_id: number(id)? })
    }
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A row as both databases give it.
type Row = (
    i64,
    String,
    Option<String>,
    Option<String>,
    Option<String>,
    String,
    Option<String>,
    Option<i64>,
    String,
    i64,
);

impl ViolationLog {
    /// The newest violations that a filter lets through.
    ///
    /// # Errors
    ///
    /// The database could not be asked.
    pub async fn find(&self, filter: &ViolationFilter) -> Result<ViolationPage, DatabaseError> {
        let limit = filter.limit.clamp(1, MAX_PAGE);
        let (conditions, values) = self.conditions(filter);
        let Dialect { address, requested_at, tokens, .. } = self.dialect();
        let statement = format!(
            "SELECT violation_id, bucket_key, user_id, {address}, endpoint, {requested_at}, {tokens}, rule_id, rule_name, \
             count FROM rate_limit_violation {conditions} ORDER BY requested_at DESC, violation_id DESC LIMIT {}",
            limit + 1, // one more tells whether there is another page
        );
        let rows: Vec<Row> = each!(self.database, pool => {
            let query = sqlx::query_as(AssertSqlSafe(statement)).persistent(false);
            let query = values.into_iter().fold(query, |query, value| query.bind(value));
            self.database.run(query.fetch_all(pool)).await
        })?;
        let mut violations: Vec<_> = rows.into_iter().map(FoundViolation::from).collect();
        let more = violations.len() > limit;
        violations.truncate(limit);
        let next = violations.last().filter(|_| more).map(FoundViolation::cursor);
        Ok(ViolationPage { violations, next })
    }

    /// The filter as SQL, and the values of its parameters. Numbers stand in the text.
    fn conditions(&self, filter: &ViolationFilter) -> (String, Vec<String>) {
        let mut conditions: Vec<String> = Vec::new();
        let mut values: Vec<String> = Vec::new();
        let mut add = |condition: &str, value: String| {
            values.push(value);
            conditions.push(condition.replace('?', &format!("${}", values.len())));
        };
        for (column, name, wanted) in [
            ("user_id", "user_id", &filter.user_id),
            ("ip_address", "ip", &filter.ip),
            ("endpoint", "endpoint", &filter.endpoint),
            ("rule_name", "", &filter.rule),
        ] {
            if let Some(wanted) = wanted {
                let recorded = self.recorded(column, name, wanted);
                match column {
                    "ip_address" if is_address(&recorded) => add(self.dialect().is_address, recorded),
                    "ip_address" => add(self.dialect().is_no_address, recorded),
                    _ => add(&format!("{column} = ?"), recorded),
                }
            }
        }
        let instant = self.dialect().instant;
        let bounds = [
            (">=", filter.since),
            ("<", filter.until),
            // Repeated for the index, which does not include ids.
            ("<=", filter.cursor.map(|cursor| cursor.requested_at)),
        ];
        for (comparison, bound) in bounds {
            if let Some(bound) = bound {
                add(&format!("requested_at {comparison} ?{instant}"), instant_text(bound));
            }
        }
        if let Some(Cursor { requested_at, violation_id }) = filter.cursor {
            add(
                &format!("(requested_at, violation_id) < (?{instant}, {violation_id})"),
                instant_text(requested_at),
            );
        }
        let all = conditions.join(" AND ");
        (if all.is_empty() { all } else { format!("WHERE {all}") }, values)
    }

    /// A wanted value as it would have been written.
    fn recorded(&self, column: &str, name: &str, wanted: &str) -> String {
        // A request brings its facts into one form: the filter does as requests do.
        let request = Descriptor::new().with(name, wanted);
        let text = request.text(name).unwrap_or_default();
        match &self.pseudonyms {
            Some(pseudonyms) if matches!(column, "user_id" | "ip_address") => pseudonyms.of(column, &text),
            _ => kept(&text).into_owned(),
        }
    }
}

impl FoundViolation {
    fn cursor(&self) -> Cursor {
        Cursor { requested_at: self.violation.requested_at, violation_id: self.violation_id }
    }
}

impl From<Row> for FoundViolation {
    fn from(row: Row) -> Self {
        let (violation_id, bucket_key, user_id, ip_address, endpoint, at, tokens, rule_id, rule_name, count) =
            row;
        let violation = Violation {
            bucket_key,
            user_id,
            ip_address,
            endpoint,
            requested_at: written(&at).unwrap_or_default(),
            tokens_at_time: tokens.map_or(Decimal::default(), |tokens| {
                tokens.parse().unwrap_or_else(|error: DecimalError| error.nearest.unwrap_or_default())
            }),
            rule_id,
            rule_name,
            count: u64::try_from(count).unwrap_or(0),
        };
        FoundViolation { violation_id, violation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_what_it_writes_and_nothing_else() {
        for (at, violation_id) in [(0, 0), (1_762_171_200_123_456, 42), (i64::MAX, i64::MAX)] {
            let cursor = Cursor { requested_at: Timestamp::from_micros(at), violation_id };
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
            let json = serde_json::to_string(&cursor).unwrap();
            assert_eq!(serde_json::from_str::<Cursor>(&json).unwrap(), cursor);
        }
        for text in
            ["", "-", "1", "1-", "-1", "1-2-3", "+1-2", " 1-2", "1- 2", "1-9223372036854775808", "a-b"]
        {
            assert_eq!(text.parse::<Cursor>(), Err(CursorError), "{text}");
        }
    }
}
