//! The table of violations in either database.

use super::hash::Pseudonyms;
use crate::sql::{Database, Pool};

/// Violations in a database: where they are written and found again.
///
/// ```no_run
/// use tollgate::audit::{ViolationFilter, ViolationLog};
/// use tollgate::sql::Database;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let log = ViolationLog::new(Database::open("sqlite://tollgate.db").await?);
/// let filter = ViolationFilter { user_id: Some("42".to_owned()), ..ViolationFilter::default() };
/// for found in log.find(&filter).await?.violations {
///     println!("{} {} times", found.violation.bucket_key, found.violation.count);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct ViolationLog {
    pub(super) database: Database,
    pub(super) pseudonyms: Option<Pseudonyms>,
}

impl ViolationLog {
    /// The log in a database.
    pub const fn new(database: Database) -> Self {
        ViolationLog { database, pseudonyms: None }
    }

    /// The same log with user ids and addresses hashed, in what is written and in what is looked for.
    #[must_use]
    pub fn with_pseudonyms(self, pseudonyms: Pseudonyms) -> Self {
        ViolationLog { pseudonyms: Some(pseudonyms), ..self }
    }

    pub(super) fn dialect(&self) -> &'static Dialect {
        match self.database.pool() {
            Pool::Sqlite(_) => &Dialect {
                instant: "",
                requested_at: "requested_at",
                address: "ip_address",
                is_address: "ip_address = ?",
                is_no_address: "ip_address = ?",
                tokens: "CASE WHEN tokens_at_time IS NOT NULL THEN printf('%.6f', tokens_at_time) END",
                skip_locked: "",
            },
            Pool::Postgres(_) => &Dialect {
                instant: "::timestamptz",
                requested_at: r#"to_char(requested_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"#,
                address: "coalesce(host(ip_address), ip_text)",
                is_address: "ip_address = ?::inet",
                is_no_address: "ip_text = ?",
                tokens: "CAST(tokens_at_time AS text)",
                skip_locked: "FOR UPDATE SKIP LOCKED",
            },
        }
    }
}

/// The differences between the databases. Instants go in and out as text, `2026-11-15T23:01:02.123456Z`.
pub(super) struct Dialect {
    /// What makes an instant of a text.
    pub(super) instant: &'static str,
    /// What makes a text of the instant.
    pub(super) requested_at: &'static str,
    /// The address, or the text recorded instead, as text.
    pub(super) address: &'static str,
    /// Finds the rows of an address.
    pub(super) is_address: &'static str,
    /// Finds the rows of a text that was recorded instead of an address: a pseudonym, or anything else that a caller sent.
    pub(super) is_no_address: &'static str,
    /// The tokens as decimal text.
    pub(super) tokens: &'static str,
    /// Skips rows that another node is deleting.
    pub(super) skip_locked: &'static str,
}
