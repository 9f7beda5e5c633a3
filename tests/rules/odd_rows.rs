//! Rows that plain SQL wrote before the tables refused them: listed with their error, and no harm to the others.

use serde_json::Value;
use tollgate::Descriptor;
use tollgate::sql::{Database, Pool};
use tollgate_tests::poll;
use tollgate_tests::postgres::Postgres;
use tollgate_tests::scratch::Scratch;

use crate::server::Running;
use crate::tables::run;

const ODD: [&str; 3] = [
    "INSERT INTO rate_limit_rule (rule_id, name, key_pattern, action, conditions) \
     VALUES (101, 'odd conditions', 'global', 'deny', '{\"a\": {\"b\": 1}}')",
    "INSERT INTO rate_limit_rule (rule_id, name, key_pattern, limit_text, replaces) \
     VALUES (102, 'odd replaces', 'global', '1/s', '[null]')",
    "INSERT INTO rate_limit_rule (rule_id, name, key_pattern, action) \
     VALUES (-9223372036854775808, 'odd number', 'global', 'deny')",
];
const ODD_NUMBER: &str = "/v1/rules/-9223372036854775808";

/// Brings the tables back to what they were before they refused such rows, and writes some.
async fn write_odd_rows(database: &Database, url: &str) {
    let undo: &[&str] = match database.pool() {
        Pool::Postgres(_) => &[
            "ALTER TABLE rate_limit_rule DROP CONSTRAINT conditions_are_values_or_lists_of_values, \
             DROP CONSTRAINT replaces_are_names",
            "DROP TRIGGER rate_limit_rule_numbered ON rate_limit_rule",
            "DROP FUNCTION rate_limit_rule_numbered",
        ],
        Pool::Sqlite(_) => &[
            "DROP TRIGGER rate_limit_rule_inserting_conditions",
            "DROP TRIGGER rate_limit_rule_updating_conditions",
            "DROP TRIGGER rate_limit_rule_inserting_replaces",
            "DROP TRIGGER rate_limit_rule_updating_replaces",
            "DROP TRIGGER rate_limit_rule_inserted_number",
            "DROP TRIGGER rate_limit_rule_updated_number",
        ],
    };
    for sql in undo.iter().chain(&ODD) {
        run(database, sql).await.unwrap();
    }
    run(database, "DELETE FROM tollgate_migration WHERE version = 3").await.unwrap();
    // The update succeeds in spite of them, and refuses new ones.
    Database::open(url).await.unwrap().close().await;
    for sql in ODD {
        assert!(run(database, &sql.replace("101", "201").replace("102", "202")).await.is_err(), "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_lists_odd_rows_with_their_error_and_the_api_can_change_and_delete_them() {
    let folder = Scratch::new("odd");
    let url = format!("sqlite://{}", folder.path().join("rules.db").display());
    odd_rows(&url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_lists_odd_rows_with_their_error_and_the_api_can_change_and_delete_them() {
    let server = Postgres::start();
    odd_rows(&server.url()).await;
}

/// The error of a listed rule.
fn error<'l>(list: &'l Value, name: &str) -> Option<&'l str> {
    let entry = list["rules"].as_array().unwrap().iter().find(|entry| entry["label"] == name);
    entry.unwrap_or_else(|| panic!("no `{name}` in {list}"))["error"].as_str()
}

async fn odd_rows(url: &str) {
    let database = Database::open(url).await.unwrap();
    let server = Running::start(url).await;
    let allowed = async || server.limiter.check(&Descriptor::new()).await.allowed();
    server.expect(201, "POST", "/v1/rules", r#"{"name": "good", "key": "global", "limit": "1000/s"}"#).await;
    write_odd_rows(&database, url).await;

    // What is listed is what is enforced, or says that it is not and why.
    let list = server.expect(200, "GET", "/v1/rules", "").await;
    assert_eq!(error(&list, "good"), None);
    assert!(error(&list, "odd conditions").unwrap().contains(r#"conditions `{"a""#), "{list}");
    assert!(error(&list, "odd replaces").unwrap().contains("replaces `[null]`"), "{list}");
    assert!(error(&list, "odd number").unwrap().starts_with("not in effect"), "{list}");
    assert!(list["error"].as_str().unwrap().contains("rule_id 101"), "{list}");
    assert!(allowed().await, "the last valid rules are in effect");
    let one = server.expect(200, "GET", "/v1/rules/101", "").await;
    assert!(one["error"].as_str().unwrap().contains("conditions"), "{one}");

    // Others can be added and changed meanwhile, and the answer says that they wait.
    let new = server.expect(201, "POST", "/v1/rules", r#"{"name": "new", "key": "ip:{ip}", "limit": "9/s"}"#);
    assert!(new.await["error"].as_str().unwrap().starts_with("not in effect"));
    server.expect(200, "PATCH", "/v1/rules/1", r#"{"limit": "900/s"}"#).await;

    // A patch never drops what cannot be read: without its conditions the rule would deny everything.
    let refused = server.expect(422, "PATCH", "/v1/rules/101", r#"{"description": "x"}"#).await;
    assert_eq!(refused["errors"][0]["field"], "when", "{refused}");
    let without = r#"{"name": "odd conditions", "key": "global", "action": "deny"}"#;
    server.expect(422, "PUT", "/v1/rules/101", without).await;
    server.expect(200, "PATCH", "/v1/rules/101", r#"{"when": {"method": "TRACE"}}"#).await;
    server.expect(204, "DELETE", "/v1/rules/102", "").await;
    let list = server.expect(200, "GET", "/v1/rules", "").await;
    for name in ["good", "new", "odd conditions", "odd number"] {
        assert_eq!(error(&list, name), None, "{list}");
    }
    assert_eq!(list["error"], Value::Null);
    assert!(!allowed().await, "the rule with the smallest number denies");
    server.expect(200, "PATCH", ODD_NUMBER, r#"{"description": "also with this number"}"#).await;
    server.expect(204, "DELETE", ODD_NUMBER, "").await;
    assert!(allowed().await);

    // The history has all of it, and does not bring back what is not a rule.
    let history = server.expect(200, "GET", "/v1/rules/history", "").await;
    let changes = history["history"].as_array().unwrap();
    let deletion = changes.iter().find(|change| change["rule_id"] == 102 && change["action"] == "remove");
    let deletion = deletion.unwrap_or_else(|| panic!("{history}"));
    assert!(deletion["error"].as_str().unwrap().starts_with("before: replaces `[null]`"), "{deletion}");
    let undo = format!("/v1/rules/history/{}/undo", deletion["id"]);
    let refused = server.expect(422, "POST", &undo, "").await;
    assert!(refused["errors"][0]["message"].as_str().unwrap().contains("replaces"), "{refused}");
    database.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_rows_that_are_not_utf8_are_listed_and_deleted() {
    let folder = Scratch::new("bytes");
    let url = format!("sqlite://{}", folder.path().join("rules.db").display());
    let database = Database::open(&url).await.unwrap();
    let server = Running::start(&url).await;
    let insert =
        "INSERT INTO rate_limit_rule (name, key_pattern, limit_text) VALUES ('bytes', 'global', '1/s')";
    run(&database, insert).await.unwrap();
    run(&database, "UPDATE rate_limit_rule SET description = CAST(x'ff' AS TEXT)").await.unwrap();
    let list = server.expect(200, "GET", "/v1/rules", "").await;
    assert!(error(&list, "bytes").unwrap().contains("UTF-8"), "{list}");
    server.expect(200, "GET", "/v1/rules/history", "").await;
    server.expect(422, "PATCH", "/v1/rules/1", r#"{"limit": "2/s"}"#).await;
    let whole = r#"{"name": "bytes", "key": "global", "limit": "2/s"}"#;
    let replaced = server.expect(200, "PUT", "/v1/rules/1", whole).await;
    assert_eq!(replaced["error"], Value::Null, "{replaced}");
    server.expect(204, "DELETE", "/v1/rules/1", "").await;
    let history = server.expect(200, "GET", "/v1/rules/history", "").await;
    assert_eq!(history["history"].as_array().unwrap().len(), 4, "{history}");
    database.close().await;
}

/// A number given by hand is not given again.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_numbers_new_rules_past_those_that_were_given_by_hand() {
    let server = Postgres::start();
    let url = server.url();
    let database = Database::open(&url).await.unwrap();
    let by_hand = |rule_id: i64, name: &str| {
        format!(
            "INSERT INTO rate_limit_rule (rule_id, name, key_pattern, limit_text) \
             VALUES ({rule_id}, '{name}', 'global', '1/s')"
        )
    };
    run(&database, &by_hand(1, "one")).await.unwrap();
    let api = Running::start(&url).await;
    let add = async |name: &str| {
        let rule = format!(r#"{{"name": "{name}", "key": "global", "limit": "1/s"}}"#);
        api.expect(201, "POST", "/v1/rules", &rule).await["rule_id"].as_i64().unwrap()
    };
    assert_eq!(add("two").await, 2);
    run(&database, &by_hand(77, "many")).await.unwrap();
    assert_eq!(add("next").await, 78);
    poll::until("all of them to be in effect", async || {
        (api.limiter.rules().rules().len() == 4).then_some(())
    })
    .await;
    database.close().await;
}
