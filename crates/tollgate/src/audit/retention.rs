//! Deleting violations that are too old, or too many.

use std::time::Duration;

use sqlx::AssertSqlSafe;
use tollgate_core::Timestamp;

use super::instant::written;
use super::{Cursor, ViolationLog, instant_text};
use crate::sql::{DatabaseError, each};

/// Rows deleted by one statement: few, so that its locks are short.
const DELETE_BATCH_ROWS: usize = 1_000;
/// How often to look for rows to delete, at least.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// The same after an error: it also tells whether the database has recovered.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// How long violations are kept. The rows may be a tenth more for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The oldest to keep.
    pub age: Duration,
    /// The most rows to keep; the oldest go first.
    pub rows: usize,
}

impl Default for Retention {
    /// 30 days, a million rows.
    fn default() -> Self {
        Retention { age: Duration::from_secs(30 * 86_400), rows: 1_000_000 }
    }
}

/// When to delete next, and what.
#[derive(Debug)]
pub(super) struct Sweep {
    retention: Retention,
    /// Not before; none before the first look.
    next: Option<Timestamp>,
    written: usize,
    /// The newest row to delete, while there are more.
    through: Option<Cursor>,
}

impl Sweep {
    pub(super) const fn new(retention: Retention) -> Self {
        Sweep { retention, next: None, written: 0, through: None }
    }

    /// Takes note of rows that came.
    pub(super) const fn note(&mut self, rows: usize) {
        self.written += rows;
    }

    /// Deletes a few rows. After an error none are due for a while.
    pub(super) async fn step(&mut self, log: &ViolationLog, now: Timestamp) -> Result<(), DatabaseError> {
        let step = self.try_step(log, now).await;
        if step.is_err() {
            (self.next, self.written, self.through) = (Some(now.after(RETRY_INTERVAL.into())), 0, None);
        }
        step
    }

    async fn try_step(&mut self, log: &ViolationLog, now: Timestamp) -> Result<(), DatabaseError> {
        if self.through.is_none() {
            self.through = log.newest_to_delete(self.retention, now).await?;
            (self.next, self.written) = (Some(now.after(SWEEP_INTERVAL.into())), 0);
        }
        if let Some(through) = self.through
            && log.delete_through(through).await? < DELETE_BATCH_ROWS
        {
            self.through = None;
        }
        Ok(())
    }

    /// Whether there may be rows to delete.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        let many = self.written > 0 && self.written >= self.retention.rows / 10;
        let is_time = self.next.is_none_or(|next| next <= now || now.after(SWEEP_INTERVAL.into()) < next);
        self.through.is_some() || many || is_time
    }
}

impl ViolationLog {
    /// The newest row that is too old or one too many.
    async fn newest_to_delete(
        &self,
        retention: Retention,
        now: Timestamp,
    ) -> Result<Option<Cursor>, DatabaseError> {
        let statement = format!(
            "SELECT {}, violation_id FROM rate_limit_violation ORDER BY requested_at DESC, violation_id DESC \
             LIMIT 1 OFFSET {}",
            self.dialect().requested_at,
            retention.rows,
        );
        let row: Result<Option<(String, i64)>, _> = each!(self.database, pool => {
            sqlx::query_as(AssertSqlSafe(statement)).fetch_optional(pool).await
        });
        let row = row.map_err(|source| self.database.error(source))?;
        let too_many =
            row.and_then(|(at, violation_id)| Some(Cursor { requested_at: written(&at)?, violation_id }));
        let age = i64::try_from(retention.age.as_micros()).unwrap_or(i64::MAX);
        let oldest = Timestamp::from_micros(now.as_micros().saturating_sub(age).max(0));
        let too_old = Cursor { requested_at: oldest, violation_id: 0 };
        Ok(Some(too_many.map_or(too_old, |too_many| too_many.max(too_old))))
    }

    /// Deletes a few of the oldest rows up to one; answers how many.
    async fn delete_through(&self, through: Cursor) -> Result<usize, DatabaseError> {
        let dialect = self.dialect();
        let statement = format!(
            "DELETE FROM rate_limit_violation WHERE violation_id IN (\
             SELECT violation_id FROM rate_limit_violation \
             WHERE requested_at <= $1{instant} AND (requested_at, violation_id) <= ($1{instant}, $2) \
             ORDER BY requested_at, violation_id LIMIT {DELETE_BATCH_ROWS} {})",
            dialect.skip_locked,
            instant = dialect.instant,
        );
        let deleted = each!(self.database, pool => {
            let delete = sqlx::query(AssertSqlSafe(statement));
            let delete = delete.bind(instant_text(through.requested_at)).bind(through.violation_id);
            delete.execute(pool).await.map(|done| done.rows_affected())
        });
        let deleted = deleted.map_err(|source| self.database.error(source))?;
        Ok(usize::try_from(deleted).unwrap_or(usize::MAX))
    }
}
