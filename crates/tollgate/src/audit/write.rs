//! Batched inserts.
//!
//! One statement writes a batch, whole or not at all. SQLite takes the rows as JSON. PostgreSQL takes them as arrays,
//! under ids that were drawn beforehand: when a connection is lost after the statement was sent, it is unknown whether
//! it was executed, and a second try under the same ids adds only what is not there.

use std::time::Duration;

use super::{Violation, ViolationLog};
use crate::sql::{DatabaseError, Pool};

/// Rows in one statement. Each statement writes every page of every index that it touches, so more rows write less.
pub(super) const MAX_BATCH_ROWS: usize = 4_000;
/// The longest time for one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// What is written in one statement.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) violations: Vec<Violation>,
    /// PostgreSQL's ids for them, drawn at the first try.
    ids: tokio::sync::OnceCell<Vec<i64>>,
}

impl Batch {
    pub(super) fn new(violations: Vec<Violation>) -> Self {
        Batch { violations, ids: tokio::sync::OnceCell::new() }
    }

    /// How many refusals it counts.
    pub(super) fn refusals(&self) -> u64 {
        self.violations.iter().map(|violation| violation.count).sum()
    }
}

impl ViolationLog {
    /// Writes a batch. After an error it may be tried again: nothing is written twice.
    pub(super) async fn insert(&self, batch: &Batch) -> Result<(), DatabaseError> {
        self.database.verify()?;
        let written = match self.database.pool() {
            Pool::Sqlite(pool) => sqlite::insert(pool, batch).await,
            Pool::Postgres(pool) => postgres::insert(pool, batch).await,
        };
        written.map_err(|source| self.database.error(source))?;
        self.database.verify()
    }
}

/// Whether a database has understood these very rows and refuses them, so that trying again is of no use.
pub(super) fn is_refusal(error: &DatabaseError) -> bool {
    let DatabaseError::Query { source, .. } = error else { return false };
    match source {
        sqlx::Error::Encode(_) => true,
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default();
            match code.len() {
                5 => code.starts_with("22") || code.starts_with("23"), // PostgreSQL: data exception, integrity
                _ => code.parse().is_ok_and(|code: u32| matches!(code & 0xff, 18..=20)), // SQLite: too big, constraint, mismatch
            }
        }
        _ => false,
    }
}

/// An unsigned number for a column of signed ones.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

mod sqlite {
    use sqlx::SqlitePool;

    use super::super::instant_text;
    use super::{Batch, signed};

    const INSERT: &str = "INSERT INTO rate_limit_violation \
        (bucket_key, user_id, ip_address, endpoint, requested_at, tokens_at_time, rule_id, rule_name, count) \
        SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7, value->>8 \
        FROM json_each($1)";

    pub(super) async fn insert(pool: &SqlitePool, batch: &Batch) -> Result<(), sqlx::Error> {
        let rows: Vec<_> = batch
            .violations
            .iter()
            .map(|row| {
                (
                    &row.bucket_key,
                    &row.user_id,
                    &row.ip_address,
                    &row.endpoint,
                    instant_text(row.requested_at),
                    row.tokens_at_time,
                    row.rule_id,
                    &row.rule_name,
                    signed(row.count),
                )
            })
            .collect();
        let json = serde_json::to_string(&rows).map_err(|error| sqlx::Error::Encode(error.into()))?;
        sqlx::query(INSERT).bind(json).execute(pool).await.map(|_| ())
    }
}

mod postgres {
    use std::io;

    use sqlx::{PgConnection, PgPool};
    use tokio::time::timeout;

    use super::super::Violation;
    use super::super::violation::is_address;
    use super::{Batch, WRITE_TIMEOUT, signed};

    const IDS: &str = "SELECT nextval(pg_get_serial_sequence('rate_limit_violation', 'violation_id')) \
        FROM generate_series(1, $1)";
    const INSERT: &str = "INSERT INTO rate_limit_violation (violation_id, bucket_key, user_id, ip_address, ip_text, \
        endpoint, requested_at, tokens_at_time, rule_id, rule_name, count) \
        SELECT id, bucket_key, user_id, ip_address::inet, ip_text, endpoint, \
        timestamptz 'epoch' + requested_at * interval '1 microsecond', tokens_at_time::numeric, rule_id, rule_name, \
        count \
        FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], \
        $8::text[], $9::bigint[], $10::text[], $11::bigint[]) AS row (id, bucket_key, user_id, ip_address, ip_text, \
        endpoint, requested_at, tokens_at_time, rule_id, rule_name, count) \
        ON CONFLICT (violation_id) DO NOTHING";

    pub(super) async fn insert(pool: &PgPool, batch: &Batch) -> Result<(), sqlx::Error> {
        let mut connection = pool.acquire().await?;
        match timeout(WRITE_TIMEOUT, write(&mut connection, batch)).await {
            Ok(written) => written,
            Err(late) => {
                drop(connection.detach()); // a late answer must not be matched to another query
                Err(io::Error::from(late).into())
            }
        }
    }

    async fn write(connection: &mut PgConnection, batch: &Batch) -> Result<(), sqlx::Error> {
        let rows = &batch.violations;
        let draw = async {
            let wanted = i32::try_from(rows.len()).unwrap_or(i32::MAX);
            sqlx::query_scalar(IDS).bind(wanted).fetch_all(&mut *connection).await
        };
        let ids: &Vec<i64> = batch.ids.get_or_try_init(|| draw).await?;
        let texts = |column: fn(&Violation) -> Option<&str>| rows.iter().map(column).collect::<Vec<_>>();
        let numbers = |column: fn(&Violation) -> Option<i64>| rows.iter().map(column).collect::<Vec<_>>();
        sqlx::query(INSERT)
            .bind(ids)
            .bind(texts(|row| Some(&row.bucket_key)))
            .bind(texts(|row| row.user_id.as_deref()))
            .bind(texts(|row| row.ip_address.as_deref().filter(|text| is_address(text))))
            .bind(texts(|row| row.ip_address.as_deref().filter(|text| !is_address(text))))
            .bind(texts(|row| row.endpoint.as_deref()))
            .bind(numbers(|row| Some(row.requested_at.as_micros())))
            .bind(rows.iter().map(|row| row.tokens_at_time.to_string()).collect::<Vec<_>>())
            .bind(numbers(|row| row.rule_id))
            .bind(texts(|row| Some(&row.rule_name)))
            .bind(numbers(|row| Some(signed(row.count))))
            .execute(connection)
            .await
            .map(|_| ())
    }
}
