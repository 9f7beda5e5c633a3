//! Rates with decimals, from SQL to a rule and back, and what becomes of a database from before they had any.

use std::borrow::Cow;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, Connection as _, SqlSafeStr as _};
use tollgate::rules::{self, RuleBook, RuleSource};
use tollgate::sql::{Database, Pool};
use tollgate::{AlgorithmName, Decimal};
use tollgate_core::Draft;
use tollgate_tests::postgres::Postgres;
use tollgate_tests::scratch::Scratch;

use crate::tables::{run, text};

/// Rates as they are written in SQL, the limit that each is, and the rate as it is read back.
const RATES: [(&str, &str, &str); 10] = [
    ("10", "10/s burst 7", "10"),
    ("2.5", "5/2s burst 7", "2.5"),
    ("0.5", "1/2s burst 7", "0.5"),
    ("0.1", "1/10s burst 7", "0.1"),
    ("'0.3'", "3/10s burst 7", "0.3"),
    ("2.500000", "5/2s burst 7", "2.5"),
    ("0.000001", "1/1000000s burst 7", "0.000001"),
    ("12345.678901", "12345678901/1000000s burst 7", "12345.678901"),
    ("999999999.999999", "999999999999999/1000000s burst 7", "999999999.999999"),
    ("900719925474099", "900719925474099/s burst 7", "900719925474099"),
];

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_keeps_rates_with_decimals_exact() {
    let folder = Scratch::new("numbers");
    let url = format!("sqlite://{}", folder.path().join("rules.db").display());
    keeps_rates_with_decimals_exact(&url).await;
    refuses_other_rates(&url, "the nearest accepted value is round(rate_per_second, 6)").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_keeps_rates_with_decimals_exact() {
    let server = Postgres::start();
    keeps_rates_with_decimals_exact(&server.url()).await;
    refuses_other_rates(&server.url(), "the nearest accepted value is 0.123457").await;
}

async fn keeps_rates_with_decimals_exact(url: &str) {
    let book = RuleBook::new(Database::open(url).await.unwrap());
    for (number, (written, limit, read)) in (1..).zip(RATES) {
        let name = format!("rule-{number}");
        run(book.database(), &insert(&name, written)).await.unwrap();
        let row = book.get(number).await.unwrap();
        let rate: Decimal = read.parse().unwrap();
        assert_eq!((row.rate_per_second, row.draft().limit.as_deref()), (Some(rate), Some(limit)));

        // The rule is edited with its draft, as the API does; the rate stays a rate.
        let draft = Draft { description: Some("edited".to_owned()), ..row.draft() };
        let edited = book.update("me", number, row.version, draft.clone()).await.unwrap();
        assert_eq!((edited.rate_per_second, edited.fields.limit), (Some(rate), None));
        assert_eq!(rate_in_sql(book.database(), number).await, read);

        // History and undo, of a change and of a removal.
        let faster = Draft { limit: Some("7/4s burst 7".to_owned()), ..draft };
        book.update("me", number, edited.version, faster).await.unwrap();
        let change = book.history(Some(number), 1).await.unwrap().remove(0);
        let of = |row: Option<rules::RuleRow>| row.and_then(|row| row.rate_per_second);
        assert_eq!(of(change.before), Some(rate));
        assert_eq!(of(change.after), Some("1.75".parse().unwrap()));
        let back = book.undo("me", change.history_id).await.unwrap().unwrap();
        assert_eq!(back.rate_per_second, Some(rate));
        book.remove("me", number, back.version).await.unwrap();
        let removal = book.history(Some(number), 1).await.unwrap().remove(0);
        book.undo("me", removal.history_id).await.unwrap();
        assert_eq!(rate_in_sql(book.database(), number).await, read);
    }
    let loaded = RuleSource::database(url).load(None).await.unwrap().unwrap();
    let limits = loaded.rules.rules().iter().map(|rule| rule.limit().unwrap());
    for (limit, (_, expected, _)) in limits.zip(RATES) {
        assert_eq!(limit, &expected.parse().unwrap());
        assert_eq!((limit.algorithm_name(), limit.capacity()), (AlgorithmName::TokenBucket, 7));
    }
    // The same rules from their text, as export and import have it.
    let drafts: Vec<Draft> = loaded.rules.rules().iter().map(|rule| rule.draft().clone()).collect();
    let rows: Vec<_> = drafts.iter().map(|draft| rules::RuleRow::from(draft).rate_per_second).collect();
    assert_eq!(rows, RATES.map(|(.., read)| Some(read.parse().unwrap())));
    book.database().close().await;
}

async fn refuses_other_rates(url: &str, told: &str) {
    let database = Database::open(url).await.unwrap();
    let error = run(&database, &insert("x", "0.1234567")).await.unwrap_err().to_string();
    assert!(error.contains(told), "{error}");
    for rate in ["0", "-1", "0.0000001", "1234567890.5", "9007199254740992", "'fast'", "'NaN'"] {
        assert!(run(&database, &insert("x", rate)).await.is_err(), "{rate}");
    }
    // Unnamed rules are told apart by their periods: 2.5 is 5 per 2 s.
    run(&database, &insert_unnamed("10")).await.unwrap();
    run(&database, &insert_unnamed("2.5")).await.unwrap();
    run(&database, &insert_unnamed("0.04")).await.unwrap();
    for rate in ["20", "0.5", "0.08"] {
        let error = run(&database, &insert_unnamed(rate)).await.unwrap_err();
        assert!(error.as_database_error().unwrap().is_unique_violation(), "{rate}: {error}");
    }
    let same = "INSERT INTO rate_limit_rule (key_pattern, limit_text) VALUES ('user:{user_id}', '5/2s')";
    assert!(run(&database, same).await.unwrap_err().as_database_error().unwrap().is_unique_violation());
    // Too fine for its burst: the row is refused, with a rate that is not.
    run(
        &database,
        "UPDATE rate_limit_rule SET rate_per_second = 0.123457, burst_capacity = 10000 WHERE name = 'rule-1'",
    )
    .await
    .unwrap();
    let error = RuleSource::database(url).load(None).await.unwrap_err().to_string();
    assert!(error.contains("rule `rule-1`") && error.contains("with this burst is 0.123456"), "{error}");
    database.close().await;
}

fn insert(name: &str, rate: &str) -> String {
    format!(
        "INSERT INTO rate_limit_rule (name, key_pattern, rate_per_second, burst_capacity) \
         VALUES ('{name}', 'global', {rate}, 7)"
    )
}

fn insert_unnamed(rate: &str) -> String {
    format!(
        "INSERT INTO rate_limit_rule (key_pattern, rate_per_second, burst_capacity) \
         VALUES ('user:{{user_id}}', {rate}, 7)"
    )
}

/// The rate as a client of the database reads it.
async fn rate_in_sql(database: &Database, rule_id: i64) -> String {
    match database.pool() {
        Pool::Sqlite(pool) => {
            let sql = format!("SELECT rate_per_second FROM rate_limit_rule WHERE rule_id = {rule_id}");
            let rate: f64 = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await.unwrap();
            rate.to_string()
        }
        Pool::Postgres(_) => {
            let sql = format!(
                "SELECT trim_scale(rate_per_second)::text FROM rate_limit_rule WHERE rule_id = {rule_id}"
            );
            text(database, &sql).await.unwrap()
        }
    }
}

/// The tables as they were at first.
fn first_tables(sql: &'static str) -> Migrator {
    let first = Migration::new(1, Cow::Borrowed("tables"), MigrationType::Simple, sql.into_sql_str(), false);
    let mut migrator = Migrator::with_migrations(vec![first]);
    migrator.dangerous_set_table_name("tollgate_migration");
    migrator
}

const BEFORE: [&str; 7] = [
    "INSERT INTO rate_limit_rule (name, key_pattern, rate_per_second, burst_capacity) VALUES ('a', 'global', 10, 50)",
    "INSERT INTO rate_limit_rule (key_pattern, limit_text) VALUES ('user:{user_id}', '5/2s burst 9')",
    "INSERT INTO rate_limit_rule (key_pattern, rate_per_second, burst_capacity) VALUES ('ip:{ip}', 9, 9)",
    "DELETE FROM rate_limit_rule WHERE key_pattern = 'ip:{ip}'",
    "INSERT INTO rate_limit_violation (bucket_key, ip_address, requested_at, tokens_at_time, rule_name) \
     VALUES ('k1', '2001:db8::1', '2026-11-15T12:00:00.000000Z', 3, 'a')",
    "INSERT INTO rate_limit_violation (bucket_key, ip_address, requested_at, tokens_at_time, rule_name) \
     VALUES ('k2', '10.0.0.0/8', '2026-11-15T12:00:01.000000Z', NULL, 'a')",
    "INSERT INTO rate_limit_violation (bucket_key, ip_address, requested_at, tokens_at_time, rule_name) \
     VALUES ('k3', 'da39a3ee5e6b4b0d3255bfef95601890afd80709da39a3ee5e6b4b0d3255bfef', '2026-11-15T12:00:02.000000Z', 0, 'a')",
];

#[tokio::test(flavor = "multi_thread")]
async fn an_sqlite_database_from_before_is_updated_with_everything_in_it() {
    let folder = Scratch::new("upgrade");
    let path = folder.path().join("rules.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    let sql = include_str!("../../crates/tollgate/migrations/sqlite/0001_rules.sql");
    first_tables(sql).run_direct(None, &mut connection, false).await.unwrap();
    for sql in BEFORE {
        sqlx::query(sql).execute(&mut connection).await.unwrap();
    }
    connection.close().await.unwrap();
    let url = format!("sqlite://{}", path.display());
    // Who may only read is told how the tables are updated.
    let error = Database::open(&format!("{url}?mode=ro")).await.unwrap_err().to_string();
    assert!(error.contains("`tollgate serve` updates older ones"), "{error}");
    is_updated_with_everything_in_it(&url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_database_from_before_is_updated_with_everything_in_it() {
    let server = Postgres::start();
    let mut connection = sqlx::PgConnection::connect(&server.url()).await.unwrap();
    let sql = include_str!("../../crates/tollgate/migrations/postgres/0001_rules.sql");
    first_tables(sql).run_direct(None, &mut connection, false).await.unwrap();
    for sql in
        BEFORE.into_iter().chain(["CREATE ROLE reader", "GRANT SELECT ON rate_limit_rule_json TO reader"])
    {
        sqlx::query(sql).execute(&mut connection).await.unwrap();
    }
    connection.close().await.unwrap();
    let database = is_updated_with_everything_in_it(&server.url()).await;
    let granted = "SELECT has_table_privilege('reader', 'rate_limit_rule_json', 'SELECT')::text";
    assert_eq!(text(&database, granted).await.as_deref(), Some("true"));
    let addresses = "SELECT string_agg(concat_ws(' ', host(ip_address), left(ip_text, 10)), ', ' ORDER BY bucket_key) \
                     FROM rate_limit_violation";
    assert_eq!(text(&database, addresses).await.as_deref(), Some("2001:db8::1, 10.0.0.0/8, da39a3ee5e"));
    let inside = "SELECT bucket_key FROM rate_limit_violation WHERE ip_address <<= inet '2001:db8::/32'";
    assert_eq!(text(&database, inside).await.as_deref(), Some("k1"));
    database.close().await;
}

async fn is_updated_with_everything_in_it(url: &str) -> Database {
    use tollgate::audit::{ViolationFilter, ViolationLog};

    let book = RuleBook::new(Database::open(url).await.unwrap());
    let rows = book.list().await.unwrap();
    let limits: Vec<_> =
        rows.iter().map(|row| (row.rule_id, row.version, row.draft().limit.unwrap())).collect();
    assert_eq!(limits, [(1, 1, "10/s burst 50".to_owned()), (2, 1, "5/2s burst 9".to_owned())]);
    // The number of the removed rule is not used again, and the history goes on, also over the update.
    run(book.database(), &insert("b", "2.5")).await.unwrap();
    run(book.database(), "UPDATE rate_limit_rule SET rate_per_second = 0.5 WHERE name = 'b'").await.unwrap();
    let history = book.history(None, 10).await.unwrap();
    let rates: Vec<_> = history
        .iter()
        .map(|change| {
            let rate = |row: &Option<rules::RuleRow>| {
                row.as_ref()
                    .and_then(|row| row.rate_per_second)
                    .map_or("-".to_owned(), |rate| rate.to_string())
            };
            format!("{}: {} {}", change.rule_id, rate(&change.before), rate(&change.after))
        })
        .collect();
    assert_eq!(rates, ["4: 2.5 0.5", "4: - 2.5", "3: 9 -", "3: - 9", "2: - -", "1: - 10"]);
    book.undo("me", history[2].history_id).await.unwrap();
    assert_eq!(book.get(3).await.unwrap().rate_per_second, Some(9.into()));
    // Violations are found by what they were written with.
    let log = ViolationLog::new(book.database().clone());
    for (ip, key, tokens) in [("2001:db8::1", "k1", 3), ("10.0.0.0/8", "k2", 0)] {
        let filter = ViolationFilter { ip: Some(ip.to_owned()), ..ViolationFilter::default() };
        let found = log.find(&filter).await.unwrap().violations;
        assert_eq!(found.len(), 1, "{ip}");
        assert_eq!(
            (found[0].violation.bucket_key.as_str(), found[0].violation.ip_address.as_deref()),
            (key, Some(ip))
        );
        assert_eq!(found[0].violation.tokens_at_time, tokens.into());
    }
    book.database().clone()
}
