//! What the database itself refuses, remembers and tells.

use sqlx::AssertSqlSafe;
use tollgate::sql::{Database, Pool};
use tollgate_tests::postgres::Postgres;
use tollgate_tests::scratch::Scratch;

/// The statement of the design, to the letter.
const INSERT: &str = "INSERT INTO rate_limit_rule (key_pattern, scope, rate_per_second, burst_capacity, plan) \
                      VALUES ('user:{user_id}', 'user', 10, 50, 'free')";

pub(crate) async fn run(database: &Database, sql: &str) -> Result<u64, sqlx::Error> {
    let sql = AssertSqlSafe(sql.to_owned());
    Ok(match database.pool() {
        Pool::Sqlite(pool) => sqlx::query(sql).execute(pool).await?.rows_affected(),
        Pool::Postgres(pool) => sqlx::query(sql).execute(pool).await?.rows_affected(),
    })
}

pub(crate) async fn text(database: &Database, sql: &str) -> Option<String> {
    let sql = AssertSqlSafe(sql.to_owned());
    match database.pool() {
        Pool::Sqlite(pool) => sqlx::query_scalar(sql).fetch_one(pool).await,
        Pool::Postgres(pool) => sqlx::query_scalar(sql).fetch_one(pool).await,
    }
    .unwrap_or_else(|error| panic!("{error}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_refuses_what_validation_refuses_and_remembers_every_change() {
    let folder = Scratch::new("tables").keep();
    let path = folder.join("rules.db");
    let database = Database::open(&format!("sqlite://{}", path.display())).await.unwrap();
    refuses_what_validation_refuses(&database).await;
    remembers_every_change(&database, "sql").await;
    use std::os::unix::fs::PermissionsExt as _;
    for file in ["rules.db", "rules.db-wal"] {
        assert_eq!(
            std::fs::metadata(folder.join(file)).unwrap().permissions().mode() & 0o777,
            0o600,
            "{file}"
        );
    }
    database.close().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_refuses_what_validation_refuses_and_remembers_every_change() {
    let server = Postgres::start();
    let database = Database::open(&server.url()).await.unwrap();
    refuses_what_validation_refuses(&database).await;
    remembers_every_change(&database, "postgres").await;
    run(&database, "TRUNCATE rate_limit_rule").await.unwrap();
    let truncated =
        "SELECT changed_by FROM rate_limit_rule_history WHERE rule_after IS NULL ORDER BY 1 DESC LIMIT 1";
    assert_eq!(text(&database, truncated).await.as_deref(), Some("postgres"));
    database.close().await;
}

async fn refuses_what_validation_refuses(database: &Database) {
    run(database, INSERT).await.unwrap();
    let refused = [
        INSERT,
        "INSERT INTO rate_limit_rule (key_pattern, limit_text, plan) VALUES ('user:{user_id}', '20/s', 'free')",
        "INSERT INTO rate_limit_rule (key_pattern) VALUES ('global')",
        "INSERT INTO rate_limit_rule (key_pattern, rate_per_second) VALUES ('global', 1)",
        "INSERT INTO rate_limit_rule (key_pattern, rate_per_second, burst_capacity) VALUES ('global', 0, 1)",
        "INSERT INTO rate_limit_rule (key_pattern, rate_per_second, burst_capacity, limit_text) VALUES ('global', 1, 1, '1/s')",
        "INSERT INTO rate_limit_rule (key_pattern, limit_text, action) VALUES ('global', '1/s', 'deny')",
        "INSERT INTO rate_limit_rule (key_pattern, action, cost) VALUES ('global', 'deny', '2')",
        "INSERT INTO rate_limit_rule (key_pattern, limit_text, mode) VALUES ('global', '1/s', 'off')",
        "INSERT INTO rate_limit_rule (key_pattern, limit_text, algorithm) VALUES ('global', '1/s', 'magic')",
        "INSERT INTO rate_limit_rule (key_pattern, limit_text, scope) VALUES ('global', '1/s', 'galaxy')",
        "INSERT INTO rate_limit_rule (key_pattern, limit_text, conditions) VALUES ('global', '1/s', '[1]')",
        "INSERT INTO rate_limit_rule (key_pattern, limit_text, time_zone) VALUES ('global', '1/d', 'UTC')",
        "INSERT INTO rate_limit_rule (key_pattern, limit_text, ipv6_prefix) VALUES ('global', '1/s', 129)",
        "INSERT INTO rate_limit_rule (key_pattern, rate_per_second, burst_capacity, algorithm) VALUES ('global', 1, 1, 'leaky_bucket')",
        "INSERT INTO rate_limit_rule (key_pattern, limit_text, plan) VALUES ('global', '1/s', '')",
        r#"INSERT INTO rate_limit_rule (key_pattern, limit_text, conditions) VALUES ('global', '1/s', '{"a": {"b": 1}}')"#,
        r#"INSERT INTO rate_limit_rule (key_pattern, limit_text, conditions) VALUES ('global', '1/s', '{"a": null}')"#,
        r#"INSERT INTO rate_limit_rule (key_pattern, limit_text, conditions) VALUES ('global', '1/s', '{"a": [["b"]]}')"#,
        r#"INSERT INTO rate_limit_rule (key_pattern, limit_text, conditions) VALUES ('global', '1/s', '{"a": ["b", null]}')"#,
        "INSERT INTO rate_limit_rule (key_pattern, limit_text, replaces) VALUES ('global', '1/s', '[null]')",
        "INSERT INTO rate_limit_rule (key_pattern, limit_text, replaces) VALUES ('global', '1/s', '[[\"a\"]]')",
        "INSERT INTO rate_limit_rule (rule_id, key_pattern, limit_text) VALUES (0, 'global', '1/s')",
        "INSERT INTO rate_limit_rule (rule_id, key_pattern, limit_text) VALUES (-9223372036854775808, 'global', '1/s')",
        "INSERT INTO rate_limit_rule (rule_id, key_pattern, limit_text) VALUES (9007199254740992, 'global', '1/s')",
        r#"UPDATE rate_limit_rule SET conditions = '{"a": {}}'"#,
        "UPDATE rate_limit_rule SET replaces = '[{}]'",
        "UPDATE rate_limit_rule SET rule_id = -1",
    ];
    for sql in refused {
        assert!(run(database, sql).await.is_err(), "{sql}");
    }
    // The same identity twice, without a plan too; another period is another rule.
    run(
        database,
        "INSERT INTO rate_limit_rule (key_pattern, limit_text) VALUES ('ip:{ip}', '9/min burst 20')",
    )
    .await
    .unwrap();
    run(database, "INSERT INTO rate_limit_rule (key_pattern, limit_text) VALUES ('ip:{ip}', '9 every 1h')")
        .await
        .unwrap();
    run(database, "INSERT INTO rate_limit_rule (key_pattern, action) VALUES ('ip:{ip}', 'allow')")
        .await
        .unwrap();
    run(
        database,
        "INSERT INTO rate_limit_rule (name, key_pattern, limit_text) VALUES ('n', 'ip:{ip}', '5/min')",
    )
    .await
    .unwrap();
    for sql in [
        "INSERT INTO rate_limit_rule (key_pattern, limit_text) VALUES ('ip:{ip}', '5 / min')",
        "INSERT INTO rate_limit_rule (key_pattern, limit_text) VALUES ('ip:{ip}', '5/1h queue 4')",
        "INSERT INTO rate_limit_rule (key_pattern, action) VALUES ('ip:{ip}', 'allow')",
        "INSERT INTO rate_limit_rule (name, key_pattern, limit_text) VALUES ('n', 'global', '1/h')",
    ] {
        let error = run(database, sql).await.unwrap_err();
        assert!(error.as_database_error().unwrap().is_unique_violation(), "{error}");
    }
}

async fn remembers_every_change(database: &Database, who: &str) {
    let version = "SELECT CAST(version AS TEXT) FROM rate_limit_rule_set";
    let before: i64 = text(database, version).await.unwrap().parse().unwrap();
    run(database, "UPDATE rate_limit_rule SET rate_per_second = 11, is_active = FALSE WHERE plan = 'free'")
        .await
        .unwrap();
    assert!(text(database, version).await.unwrap().parse::<i64>().unwrap() > before);
    let newest = "SELECT changed_by FROM rate_limit_rule_history ORDER BY history_id DESC LIMIT 1";
    assert_eq!(text(database, newest).await.as_deref(), Some(who));
    for (column, rate, active, row_version) in [("rule_before", 10, true, 1), ("rule_after", 11, false, 2)] {
        let sql = format!(
            "SELECT CAST({column} AS TEXT) FROM rate_limit_rule_history ORDER BY history_id DESC LIMIT 1"
        );
        let rule: serde_json::Value = serde_json::from_str(&text(database, &sql).await.unwrap()).unwrap();
        assert_eq!((&rule["rate_per_second"], &rule["is_active"]), (&rate.into(), &active.into()), "{rule}");
        assert_eq!(rule["version"], row_version, "{rule}");
    }
    run(database, "DELETE FROM rate_limit_rule WHERE plan = 'free'").await.unwrap();
    let after =
        "SELECT CAST(rule_after AS TEXT) FROM rate_limit_rule_history ORDER BY history_id DESC LIMIT 1";
    assert_eq!(text(database, after).await, None);
    let rows = "SELECT CAST(count(*) AS TEXT) FROM rate_limit_rule_history WHERE rule_before IS NULL";
    assert_eq!(text(database, rows).await.as_deref(), Some("5"), "insertions");
}
