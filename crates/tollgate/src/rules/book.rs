//! Changing the rules of a database, and what was changed.
//!
//! Every change is one transaction: it holds the set's row, so that changes are made one after the other; the whole
//! resulting set is validated before it is written; and the database's triggers write its history, as they do for
//! changes made with plain SQL.

use std::collections::BTreeMap;

use serde::Serialize;
use sqlx::AssertSqlSafe;
use tollgate_core::Draft;

use super::row::RuleRow;
use super::rows::{Builder, RowProblem, RowsError};
use crate::sql::{Database, DatabaseError, Pool, each};

/// Rules that are inserted by one statement.
const BATCH: usize = 1_000;

/// The rules of a database, to be read and changed.
#[derive(Debug, Clone)]
pub struct RuleBook {
    database: Database,
}

/// One change to make.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Edit {
    /// A new rule.
    Add(Draft),
    /// Another text for a rule, unless it was changed since `version`.
    Update {
        /// Which rule.
        rule_id: i64,
        /// The version that was edited.
        version: i64,
        /// The rule as it shall be.
        draft: Draft,
    },
    /// The rule is removed, unless it was changed since `version`.
    Remove {
        /// Which rule.
        rule_id: i64,
        /// The version that was looked at.
        version: i64,
    },
    /// The rule is on.
    Enable {
        /// Which rule.
        rule_id: i64,
    },
    /// The rule is off.
    Disable {
        /// Which rule.
        rule_id: i64,
    },
}

/// One change that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Its number, for [`RuleBook::undo`].
    pub history_id: i64,
    /// Which rule.
    pub rule_id: i64,
    /// When, in ISO 8601.
    pub changed_at: String,
    /// Who: the name given, or for plain SQL the database's user (`sql` in SQLite, which has none).
    pub changed_by: String,
    /// The rule before; none when it was added.
    pub before: Option<RuleRow>,
    /// The rule after; none when it was removed.
    pub after: Option<RuleRow>,
}

/// Why rules were not changed. Nothing was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BookError {
    /// The database cannot be asked.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The set would be invalid.
    #[error(transparent)]
    Invalid(#[from] RowsError),
    /// No such rule.
    #[error("there is no rule {rule_id}; `tollgate rules list` shows all rules")]
    NoRule {
        /// The number that was given.
        rule_id: i64,
    },
    /// No such change.
    #[error("there is no change {history_id}; `tollgate rules history` shows all changes")]
    NoChange {
        /// The number that was given.
        history_id: i64,
    },
    /// The rule was changed concurrently.
    #[error("rule {rule_id} was changed meanwhile: {}; look at it and try again", said(*version, theirs.as_deref()))]
    Conflict {
        /// Which rule.
        rule_id: i64,
        /// The version that was edited.
        version: i64,
        /// What the edit would have made of it; none for a removal.
        yours: Option<Box<RuleRow>>,
        /// What it is now; none if it is gone.
        theirs: Option<Box<RuleRow>>,
    },
    /// The row is not a rule, so it cannot be switched or brought back as it is.
    #[error("rule_id {rule_id} is not a rule: {reason}; replace or delete it")]
    Row {
        /// The row.
        rule_id: i64,
        /// Why.
        reason: String,
    },
}

fn said(version: i64, theirs: Option<&RuleRow>) -> String {
    match theirs {
        Some(theirs) => format!("you saw version {version}, it is version {} now", theirs.version),
        None => format!("you saw version {version}, it is gone now"),
    }
}

/// What is done to the table.
#[derive(Debug)]
enum Step {
    Insert(RuleRow),
    /// A removed rule comes back under its number.
    Restore(RuleRow),
    Update(RuleRow),
    Delete(i64),
}

/// A change as it was asked for, with the row that it would write.
#[derive(Debug)]
enum Wish {
    Add(Draft),
    /// Unless the rule was changed since `version`.
    Put {
        version: i64,
        row: RuleRow,
    },
    Remove {
        rule_id: i64,
        version: i64,
    },
    Switch {
        rule_id: i64,
        is_active: bool,
    },
    /// A removed rule comes back under its number.
    Restore(RuleRow),
}

impl From<Edit> for Wish {
    fn from(edit: Edit) -> Self {
        match edit {
            Edit::Add(draft) => Wish::Add(draft),
            Edit::Update { rule_id, version, draft } => {
                Wish::Put { version, row: RuleRow { rule_id, ..complete(&draft) } }
            }
            Edit::Remove { rule_id, version } => Wish::Remove { rule_id, version },
            Edit::Enable { rule_id } => Wish::Switch { rule_id, is_active: true },
            Edit::Disable { rule_id } => Wish::Switch { rule_id, is_active: false },
        }
    }
}

type Rows = BTreeMap<i64, RuleRow>;

impl RuleBook {
    /// The rules of a database.
    pub const fn new(database: Database) -> Self {
        RuleBook { database }
    }

    /// The database.
    pub const fn database(&self) -> &Database {
        &self.database
    }

    /// Every rule, by number.
    ///
    /// Rows that are not rules are among them, with what is wrong: see [`RuleRow::unreadable`].
    ///
    /// # Errors
    ///
    /// The database cannot be asked.
    pub async fn list(&self) -> Result<Vec<RuleRow>, BookError> {
        let all = select(&self.database, "ORDER BY rule_id");
        let rows: Vec<(i64, Vec<u8>)> = each!(self.database, pool => {
            self.database.run(sqlx::query_as(AssertSqlSafe(all)).fetch_all(pool)).await
        })?;
        Ok(read(rows).into_values().collect())
    }

    /// Everything that keeps rows from being a valid set.
    pub fn problems(&self, rows: &[RuleRow]) -> Vec<RowProblem> {
        let checked = check(self.database.shown(), rows.iter());
        checked.err().map_or_else(Vec::new, |error| error.problems.into_iter().collect())
    }

    /// One rule by its number.
    ///
    /// # Errors
    ///
    /// There is none, or as [`list`](Self::list).
    pub async fn get(&self, rule_id: i64) -> Result<RuleRow, BookError> {
        let one = select(&self.database, "WHERE rule_id = $1");
        let rows: Vec<(i64, Vec<u8>)> = each!(self.database, pool => {
            self.database.run(sqlx::query_as(AssertSqlSafe(one)).bind(rule_id).fetch_all(pool)).await
        })?;
        read(rows).remove(&rule_id).ok_or(BookError::NoRule { rule_id })
    }

    /// Adds a rule and gives it back with its number.
    ///
    /// # Errors
    ///
    /// The set would be invalid, or the database cannot be asked.
    pub async fn add(&self, who: &str, draft: Draft) -> Result<RuleRow, BookError> {
        self.one(who, Edit::Add(draft)).await
    }

    /// Gives a rule another text, unless it was changed since `version`.
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add); the rule is gone or was changed.
    pub async fn update(
        &self,
        who: &str,
        rule_id: i64,
        version: i64,
        draft: Draft,
    ) -> Result<RuleRow, BookError> {
        self.one(who, Edit::Update { rule_id, version, draft }).await
    }

    /// Removes a rule, unless it was changed since `version`.
    ///
    /// # Errors
    ///
    /// As [`update`](Self::update).
    pub async fn remove(&self, who: &str, rule_id: i64, version: i64) -> Result<(), BookError> {
        self.apply(who, vec![Edit::Remove { rule_id, version }]).await.map(|_| ())
    }

    /// Makes all of these changes or none, and gives back the rules added or changed, in order. A rule that is switched on or
    /// off and was so before is not changed.
    ///
    /// # Errors
    ///
    /// As for each of them.
    pub async fn apply(&self, who: &str, edits: Vec<Edit>) -> Result<Vec<RuleRow>, BookError> {
        self.change(who, edits.into_iter().map(Wish::from).collect()).await
    }

    /// Adds rules to a table that never had any; whether it did. Of several concurrent calls one does.
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add).
    pub async fn seed(&self, who: &str, drafts: Vec<Draft>) -> Result<bool, BookError> {
        if !self.is_untouched().await? {
            return Ok(false);
        }
        match self.apply(who, drafts.into_iter().map(Edit::Add).collect()).await {
            Err(BookError::Invalid(_)) if !self.is_untouched().await? => Ok(false),
            added => added.map(|_| true),
        }
    }

    async fn is_untouched(&self) -> Result<bool, BookError> {
        const VERSION: &str = "SELECT version FROM rate_limit_rule_set";
        let version: i64 = each!(self.database, pool => {
            self.database.run(sqlx::query_scalar(VERSION).fetch_one(pool)).await
        })?;
        Ok(version == 0)
    }

    /// What was changed, the newest first: of one rule, or of all.
    ///
    /// # Errors
    ///
    /// The database cannot be asked.
    pub async fn history(&self, rule_id: Option<i64>, limit: u32) -> Result<Vec<Change>, BookError> {
        self.history_before(i64::MAX, rule_id, limit).await
    }

    /// What was changed before the change of a number: the next page of a [`history`](Self::history).
    ///
    /// # Errors
    ///
    /// The database cannot be asked.
    pub async fn history_before(
        &self,
        history_id: i64,
        rule_id: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Change>, BookError> {
        let of_rule = rule_id.map_or_else(String::new, |rule_id| format!(" AND rule_id = {rule_id}"));
        self.changes(&format!("history_id < {history_id}{of_rule}"), limit).await
    }

    /// Restores a rule as it was before a change, unless it was changed since. That is a change, too.
    ///
    /// # Errors
    ///
    /// There is no such change, the rule was changed since, or as [`add`](Self::add).
    pub async fn undo(&self, who: &str, history_id: i64) -> Result<Option<RuleRow>, BookError> {
        let mut found = self.changes(&format!("history_id = {history_id}"), 1).await?;
        let change = found.pop().ok_or(BookError::NoChange { history_id })?;
        let wish = match (change.before, change.after) {
            (Some(before), Some(after)) => Wish::Put { version: after.version, row: before },
            (Some(before), None) => Wish::Restore(before),
            (None, Some(after)) => Wish::Remove { rule_id: change.rule_id, version: after.version },
            (None, None) => return Err(BookError::NoChange { history_id }),
        };
        Ok(self.change(who, vec![wish]).await?.pop())
    }

    async fn changes(&self, which: &str, limit: u32) -> Result<Vec<Change>, BookError> {
        let changed_at = match self.database.pool() {
            Pool::Sqlite(_) => "changed_at",
            Pool::Postgres(_) => "to_jsonb(changed_at)#>>'{}'",
        };
        let (before, after) = (bytes(&self.database, "rule_before"), bytes(&self.database, "rule_after"));
        let sql = format!(
            "SELECT history_id, rule_id, {changed_at}, changed_by, {before}, {after} \
             FROM rate_limit_rule_history WHERE {which} ORDER BY history_id DESC LIMIT {limit}"
        );
        let rows: Vec<ChangeRow> = each!(self.database, pool => {
            self.database.run(sqlx::query_as(AssertSqlSafe(sql)).fetch_all(pool)).await
        })?;
        Ok(rows.into_iter().map(change).collect())
    }

    async fn one(&self, who: &str, edit: Edit) -> Result<RuleRow, BookError> {
        // A rule that was removed by the next change is not found.
        self.apply(who, vec![edit]).await?.pop().ok_or(BookError::NoRule { rule_id: 0 })
    }

    /// Looks, decides and writes, alone.
    async fn change(&self, who: &str, wishes: Vec<Wish>) -> Result<Vec<RuleRow>, BookError> {
        let database = &self.database;
        database.verify()?;
        let (begin, all) = (alone(database), select(database, "ORDER BY rule_id"));
        let ids: Vec<i64> = each!(database, pool => {
            let mut alone = database.run(pool.begin_with(begin)).await?;
            let name = sqlx::query("UPDATE rate_limit_rule_set SET changed_by = $1").bind(who);
            database.run(name.execute(&mut *alone)).await?;
            let rows: Vec<(i64, Vec<u8>)> =
                database.run(sqlx::query_as(AssertSqlSafe(all)).fetch_all(&mut *alone)).await?;
            let shown = database.shown().to_owned();
            let steps = tokio::task::spawn_blocking(move || plan(&shown, read(rows), wishes))
                .await
                .map_err(|_| database.error(sqlx::Error::WorkerCrashed))??;
            let mut ids = Vec::new();
            for (sql, json) in statements(database, &steps) {
                let query = sqlx::query_scalar(AssertSqlSafe(sql));
                let query = if let Some(json) = json { query.bind(json) } else { query };
                let changed: Vec<i64> = database.run(query.fetch_all(&mut *alone)).await?;
                ids.extend(changed);
            }
            let unname = sqlx::query("UPDATE rate_limit_rule_set SET changed_by = NULL");
            database.run(unname.execute(&mut *alone)).await?;
            database.run(alone.commit()).await?;
            ids
        });
        database.verify()?;
        if let [rule_id] = ids[..] {
            // A rule that was removed, or is by now, is none.
            return match self.get(rule_id).await {
                Err(BookError::NoRule { .. }) => Ok(Vec::new()),
                row => row.map(|row| vec![row]),
            };
        }
        let mut rows: Rows = self.list().await?.into_iter().map(|row| (row.rule_id, row)).collect();
        Ok(ids.iter().filter_map(|id| rows.remove(id)).collect())
    }
}

/// Rows as JSON.
fn select(database: &Database, which: &str) -> String {
    let rule = bytes(database, "rule");
    format!("SELECT rule_id, {rule} FROM rate_limit_rule_json {which}")
}

/// JSON as bytes: text in SQLite need not be UTF-8, and one such row must not make the others unreadable.
pub(super) fn bytes(database: &Database, json: &str) -> String {
    match database.pool() {
        Pool::Sqlite(_) => format!("CAST({json} AS BLOB)"),
        Pool::Postgres(_) => format!("convert_to(CAST({json} AS text), 'UTF8')"),
    }
}

/// How a transaction begins that writes. PostgreSQL's waits for the set's row, SQLite's for the file.
fn alone(database: &Database) -> &'static str {
    match database.pool() {
        Pool::Sqlite(_) => "BEGIN IMMEDIATE",
        Pool::Postgres(_) => "BEGIN",
    }
}

fn read(rows: Vec<(i64, Vec<u8>)>) -> Rows {
    rows.into_iter().map(|(rule_id, json)| (rule_id, RuleRow::read(rule_id, &json))).collect()
}

type ChangeRow = (i64, i64, String, String, Option<Vec<u8>>, Option<Vec<u8>>);

fn change((history_id, rule_id, changed_at, changed_by, before, after): ChangeRow) -> Change {
    let read = |json: Option<Vec<u8>>| json.map(|json| RuleRow::read(rule_id, &json));
    Change { history_id, rule_id, changed_at, changed_by, before: read(before), after: read(after) }
}

/// The row, if all of its columns could be read. What is written back is the whole row: a column that could not be read
/// would lose its value, and a rule without its conditions applies to every request.
fn readable(row: RuleRow) -> Result<RuleRow, BookError> {
    match row.unreadable.first() {
        None => Ok(row),
        Some(column) => Err(BookError::Row { rule_id: row.rule_id, reason: column.to_string() }),
    }
}

/// What to do to the table, if the set is then no worse than before.
fn plan(shown: &str, now: Rows, wishes: Vec<Wish>) -> Result<Vec<Step>, BookError> {
    let (mut next, mut added, mut steps) = (now.clone(), Vec::new(), Vec::new());
    for wish in wishes {
        let step = match wish {
            Wish::Add(draft) => Step::Insert(RuleRow { version: 1, ..complete(&draft) }),
            Wish::Put { version, row } => {
                let row = readable(row)?;
                let now = current(&next, row.rule_id, version, Some(&row))?;
                Step::Update(RuleRow { version: now.version, ..row })
            }
            Wish::Remove { rule_id, version } => {
                current(&next, rule_id, version, None)?;
                Step::Delete(rule_id)
            }
            Wish::Switch { rule_id, is_active } => {
                let now = readable(next.get(&rule_id).ok_or(BookError::NoRule { rule_id })?.clone())?;
                if now.is_active == is_active {
                    continue;
                }
                Step::Update(RuleRow { is_active, ..now })
            }
            Wish::Restore(row) => match next.get(&row.rule_id) {
                None => Step::Restore(readable(row)?),
                Some(theirs) => {
                    return Err(conflict(row.version, Some(row.clone()), row.rule_id, Some(theirs)));
                }
            },
        };
        match &step {
            Step::Insert(row) => added.push(row.clone()),
            Step::Restore(row) | Step::Update(row) => drop(next.insert(row.rule_id, row.clone())),
            Step::Delete(rule_id) => drop(next.remove(rule_id)),
        }
        steps.push(step);
    }
    no_worse(shown, now.values(), next.values().chain(&added))?;
    Ok(steps)
}

/// A draft as a row, with its scope.
fn complete(draft: &Draft) -> RuleRow {
    let scope = draft.clone().build().ok().map(|rule| rule.scope().as_str().to_owned());
    RuleRow { scope, ..RuleRow::from(draft) }
}

/// The rule as it is, if it still has this version.
fn current<'r>(
    rows: &'r Rows,
    rule_id: i64,
    version: i64,
    yours: Option<&RuleRow>,
) -> Result<&'r RuleRow, BookError> {
    match rows.get(&rule_id) {
        Some(now) if now.version == version => Ok(now),
        None if yours.is_none() => Err(BookError::NoRule { rule_id }),
        theirs => Err(conflict(version, yours.cloned(), rule_id, theirs)),
    }
}

fn conflict(version: i64, yours: Option<RuleRow>, rule_id: i64, theirs: Option<&RuleRow>) -> BookError {
    let (yours, theirs) = (yours.map(Box::new), theirs.cloned().map(Box::new));
    BookError::Conflict { rule_id, version, yours, theirs }
}

/// Refuses problems that were not there before. Those that were may be mended one by one.
fn no_worse<'r>(
    shown: &str,
    before: impl Iterator<Item = &'r RuleRow>,
    after: impl Iterator<Item = &'r RuleRow>,
) -> Result<(), RowsError> {
    let Err(mut error) = check(shown, after) else { return Ok(()) };
    if let Err(known) = check(shown, before) {
        error.problems.retain(|problem| !known.problems.contains(problem));
    }
    if error.problems.is_empty() { Ok(()) } else { Err(error) }
}

fn check<'r>(shown: &str, rows: impl Iterator<Item = &'r RuleRow>) -> Result<(), RowsError> {
    let mut builder = Builder::default();
    rows.for_each(|row| builder.add(row));
    builder.finish(shown).map(|_| ())
}

/// The SQL of each step, with rows as JSON in `$1`; each returns the numbers of the rules it touched.
fn statements(database: &Database, steps: &[Step]) -> Vec<(String, Option<String>)> {
    let mut statements = Vec::new();
    let mut left = steps;
    while let Some(step) = left.first() {
        let mut taken = 1;
        statements.push(match step {
            Step::Insert(_) => {
                let inserted = left.iter().map_while(|step| match step {
                    Step::Insert(row) => Some(row),
                    _ => None,
                });
                let rows: Vec<&RuleRow> = inserted.take(BATCH).collect();
                taken = rows.len();
                (insert(database, &[]), json(&rows))
            }
            Step::Restore(row) => {
                let row = RuleRow { version: row.version + 1, ..row.clone() };
                (insert(database, &["rule_id", "created_at", "version"]), json(&[&row]))
            }
            Step::Update(row) => {
                let (columns, values, rule_id) = (columns(&[]), values(database, &[]), row.rule_id);
                let update = format!("UPDATE rate_limit_rule SET ({columns}) = (SELECT {values})");
                (format!("{update} WHERE rule_id = {rule_id} RETURNING rule_id"), json(&[row]))
            }
            Step::Delete(rule_id) => {
                (format!("DELETE FROM rate_limit_rule WHERE rule_id = {rule_id} RETURNING rule_id"), None)
            }
        });
        left = &left[taken..];
    }
    statements
}

fn json(rows: &[&RuleRow]) -> Option<String> {
    Some(serde_json::to_string(rows).expect("a row has text for its keys"))
}

fn insert(database: &Database, more: &[&'static str]) -> String {
    let (columns, values) = (columns(more), values(database, more));
    format!("INSERT INTO rate_limit_rule ({columns}) SELECT {values} ORDER BY place RETURNING rule_id")
}

fn columns(more: &[&'static str]) -> String {
    let quoted = |name: &str| format!("\"{name}\"");
    RuleRow::written().chain(more.iter().copied()).map(quoted).collect::<Vec<_>>().join(", ")
}

/// The columns out of a JSON array of rows, and where they are read from.
fn values(database: &Database, more: &[&'static str]) -> String {
    match database.pool() {
        Pool::Sqlite(_) => {
            let value = |name: &str| format!("value ->> '{name}'");
            let values: Vec<String> = RuleRow::written().chain(more.iter().copied()).map(value).collect();
            format!("{} FROM (SELECT value, key AS place FROM json_each($1))", values.join(", "))
        }
        Pool::Postgres(_) => {
            format!(
                "{} FROM jsonb_array_elements($1::jsonb) WITH ORDINALITY AS given (value, place), \
                 LATERAL jsonb_populate_record(NULL::rate_limit_rule, value) AS rule",
                columns(more)
            )
        }
    }
}
