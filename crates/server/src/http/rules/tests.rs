use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json};
use tollgate::audit::{ViolationLog, Writer, WriterOptions};
use tollgate::rules::{Follower, RuleBook, RuleSource, parse};
use tollgate::sql::Database;
use tollgate::{AnyStore, Limiter, MemoryStore, Violations};
use tower::ServiceExt as _;

use super::super::{App, Peer, RulesHome, both_planes};

/// A server over a database of its own, which goes away with the test.
struct Server {
    router: Router,
    database: Database,
    violations: Violations,
    folder: PathBuf,
}

impl Server {
    async fn start() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tollgate-api-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let url = format!("sqlite://{}", folder.join("rules.db").display());
        let (rules, follower) = Follower::start(RuleSource::database(&url)).await.unwrap();
        let violations = Violations::default();
        let store = AnyStore::from(MemoryStore::new());
        let limiter = Arc::new(Limiter::new(rules, store).with_violations(violations.clone()));
        let database = Database::later(&url).unwrap();
        let home = RulesHome::Database {
            book: RuleBook::new(database.clone()),
            status: follower.status(),
            refresher: follower.refresher(),
        };
        tokio::spawn(follower.run(Arc::clone(&limiter)));
        let app = App::new(limiter, home).with_violations(ViolationLog::new(database.clone()));
        Server { router: both_planes(app), database, violations, folder }
    }

    async fn send(
        &self,
        line: &str,
        headers: &[(&str, &str)],
        body: impl ToString,
    ) -> (StatusCode, HeaderMap, Value) {
        send(&self.router, line, headers, body).await
    }

    /// Adds a rule that is expected to be one.
    async fn add(&self, rule: Value) -> Value {
        let (status, _, entry) = self.send("POST /v1/rules", &[], rule).await;
        assert_eq!(status, StatusCode::CREATED, "{entry}");
        entry
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Sends a request from this machine.
async fn send(
    router: &Router,
    line: &str,
    headers: &[(&str, &str)],
    body: impl ToString,
) -> (StatusCode, HeaderMap, Value) {
    let (method, path) = line.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(path).header("host", "127.0.0.1:8080");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(Body::from(body.to_string())).unwrap();
    request.extensions_mut().insert(Peer("127.0.0.1:50000".parse().unwrap()));
    let (parts, body) = router.clone().oneshot(request).await.unwrap().into_parts();
    let bytes = to_bytes(body, 1 << 20).await.unwrap();
    let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() };
    (parts.status, parts.headers, body)
}

fn detail(problem: &Value) -> &str {
    problem["detail"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_rule_is_added_read_replaced_patched_and_removed() {
    let server = Server::start().await;
    let rule = json!({"name": "per-user", "key": "user:{user_id}", "limit": "10/s burst 50"});
    let (status, headers, entry) = server.send("POST /v1/rules", &[], &rule).await;
    assert_eq!(status, StatusCode::CREATED);
    assert_eq!(
        (&headers["location"], &headers["etag"]),
        (&"/v1/rules/1".parse().unwrap(), &"\"1\"".parse().unwrap())
    );
    assert_eq!(
        (&entry["rule_id"], &entry["version"], &entry["active"]),
        (&json!(1), &json!(1), &json!(true))
    );
    assert_eq!((&entry["label"], &entry["rule"]), (&json!("per-user"), &rule));
    assert!(entry["created_at"].as_str().unwrap().ends_with('Z'), "{entry}");

    let (status, headers, same) = server.send("GET /v1/rules/1", &[], "").await;
    assert_eq!((status, &headers["etag"], same), (StatusCode::OK, &"\"1\"".parse().unwrap(), entry));

    let other = json!({"name": "per-user", "key": "user:{user_id}", "limit": "5/min", "plan": "free"});
    let (status, headers, entry) = server.send("PUT /v1/rules/1", &[("if-match", "\"1\"")], &other).await;
    assert_eq!(
        (status, &headers["etag"], &entry["rule"]),
        (StatusCode::OK, &"\"2\"".parse().unwrap(), &other)
    );

    let patch = json!({"limit": "6/min", "plan": null, "mode": "off"});
    let (status, _, entry) = server.send("PATCH /v1/rules/1", &[("if-match", "*")], patch).await;
    assert_eq!((status, &entry["active"], &entry["version"]), (StatusCode::OK, &json!(false), &json!(3)));
    let expected = json!({"name": "per-user", "key": "user:{user_id}", "limit": "6/min", "mode": "off"});
    assert_eq!(entry["rule"], expected);

    let (status, _, list) = server.send("GET /v1/rules", &[], "").await;
    assert_eq!((status, &list["writable"], &list["version"]), (StatusCode::OK, &json!(true), &json!(3)));
    assert!(list["source"].as_str().unwrap().starts_with("sqlite://"));
    assert_eq!(list["rules"], json!([entry]));

    let (status, _, _) = server.send("DELETE /v1/rules/1", &[("if-match", "\"3\"")], "").await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert_eq!(server.send("GET /v1/rules/1", &[], "").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_edit_is_obeyed_by_the_very_next_check() {
    let server = Server::start().await;
    for limit in 1..20 {
        let (line, headers) = match limit {
            1 => ("POST /v1/rules", [("x-none", "")]),
            _ => ("PUT /v1/rules/1", [("if-match", "*")]),
        };
        let rule = json!({"name": "all", "key": "global", "limit": format!("{limit}/h")});
        let (status, _, told) = server.send(line, &headers, rule).await;
        assert!(status.is_success(), "{told}");
        let (_, _, decision) = server.send("POST /v1/peek", &[], "{}").await;
        assert_eq!(decision["limit"], json!(limit), "{decision}");
    }
    server.send("DELETE /v1/rules/1", &[("if-match", "*")], "").await;
    assert_eq!(server.send("POST /v1/peek", &[], "{}").await.2["limit"], Value::Null);
}

#[tokio::test]
async fn nobody_overwrites_what_they_have_not_seen() {
    let server = Server::start().await;
    let rule = json!({"name": "a", "key": "global", "limit": "1/s"});
    server.add(rule.clone()).await;
    server.send("PUT /v1/rules/1", &[("if-match", "\"1\"")], &rule).await;
    for (method, headers, wanted) in [
        ("PUT", vec![], StatusCode::PRECONDITION_REQUIRED),
        ("PATCH", vec![], StatusCode::PRECONDITION_REQUIRED),
        ("DELETE", vec![], StatusCode::PRECONDITION_REQUIRED),
        ("PUT", vec![("if-match", "\"1\"")], StatusCode::PRECONDITION_FAILED),
        ("PATCH", vec![("if-match", "W/\"2\"")], StatusCode::PRECONDITION_FAILED),
        ("DELETE", vec![("if-match", "\"9\", \"x\"")], StatusCode::PRECONDITION_FAILED),
        ("DELETE", vec![("if-match", "2")], StatusCode::BAD_REQUEST),
    ] {
        let line = format!("{method} /v1/rules/1");
        let (status, kind, problem) = server.send(&line, &headers, &rule).await;
        assert_eq!(status, wanted, "{line} {headers:?}: {problem}");
        assert_eq!(kind["content-type"], "application/problem+json");
        if status == StatusCode::PRECONDITION_FAILED {
            assert_eq!((&problem["current"]["version"], &problem["current"]["rule"]), (&json!(2), &rule));
        }
    }
    for line in ["PUT /v1/rules/7", "DELETE /v1/rules/7", "PATCH /v1/rules/x"] {
        let (status, _, problem) = server.send(line, &[("if-match", "*")], &rule).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{line}");
        assert!(detail(&problem).contains("GET /v1/rules"), "{problem}");
    }
}

#[tokio::test]
async fn mistakes_are_named_as_in_a_rules_file_with_their_path() {
    let server = Server::start().await;
    for (body, path, told) in [
        ("", Value::Null, "expected a rule such as"),
        ("[]", Value::Null, "expected a rule such as"),
        ("{", Value::Null, "EOF"),
        ("{} x", Value::Null, "trailing"),
        (r#"{"key": "global", "limt": "1/s"}"#, json!("limt"), "unknown field `limt`; did you mean `limit`?"),
        (r#"{"limit": "1/s"}"#, Value::Null, "the field `key` is missing"),
        (r#"{"key": "global", "limit": ["1/s"]}"#, json!("limit"), "limit"),
        (r#"{"key": "global", "key": "ip:{ip}", "limit": "1/s"}"#, json!("key"), "twice"),
    ] {
        let (status, _, problem) = server.send("POST /v1/rules", &[], body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {problem}");
        assert_eq!(problem.get("path").unwrap_or(&Value::Null), &path, "{body}: {problem}");
        assert!(detail(&problem).contains(told), "{body}: {problem}");
    }
    let body = json!({"name": "x", "key": "user:{", "limit": "0/min", "when": {"ip": ["nowhere"]}});
    let (status, _, problem) = server.send("POST /v1/rules", &[], body).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let errors = problem["errors"].as_array().unwrap();
    let fields: Vec<&str> = errors.iter().filter_map(|error| error["field"].as_str()).collect();
    assert_eq!(fields, ["key", "limit", "when.ip[0]"], "{problem}");
    assert!(errors.iter().all(|error| error["rule"] == "x"));
    assert!(errors[1]["message"].as_str().unwrap().contains("count is zero"), "{problem}");

    server.add(json!({"name": "twice", "key": "global", "limit": "1/s"})).await;
    let again = json!({"name": "twice", "key": "ip:{ip}", "limit": "1/s"});
    let (status, _, problem) = server.send("POST /v1/rules", &[], again).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(problem["errors"][0]["message"].as_str().unwrap().contains("it is there twice"), "{problem}");
    let (status, _, problem) =
        server.send("PATCH /v1/rules/1", &[("if-match", "*")], r#"{"mode": "shadw"}"#).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(detail(&problem).contains("did you mean `shadow`?"), "{problem}");
    let large = json!({"key": "global", "limit": "1/s", "description": "x".repeat(64 << 10)});
    assert_eq!(server.send("POST /v1/rules", &[], large).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn history_says_who_did_what_and_takes_it_back() {
    let server = Server::start().await;
    let by = [("if-match", "*")];
    server.add(json!({"name": "a", "key": "global", "limit": "1/h"})).await;
    server.send("PATCH /v1/rules/1", &by, r#"{"limit": "2/h"}"#).await;
    server.send("PATCH /v1/rules/1", &by, r#"{"mode": "off"}"#).await;
    server.send("PATCH /v1/rules/1", &by, r#"{"mode": null}"#).await;
    server.send("DELETE /v1/rules/1", &by, "").await;
    let (status, _, page) = server.send("GET /v1/rules/history?limit=3&rule_id=1", &[], "").await;
    assert_eq!(status, StatusCode::OK);
    let actions = |page: &Value| -> Vec<String> {
        page["history"].as_array().unwrap().iter().map(|change| change["action"].to_string()).collect()
    };
    assert_eq!(actions(&page), ["\"remove\"", "\"enable\"", "\"disable\""]);
    let newest = &page["history"][0];
    assert_eq!(
        (&newest["who"], &newest["before"]["limit"], &newest["after"]),
        (&json!("tester"), &json!("2/h"), &Value::Null)
    );
    let line = format!("GET /v1/rules/history?before={}", page["next"]);
    let (_, _, rest) = server.send(&line, &[], "").await;
    assert_eq!(
        (actions(&rest), &rest["next"]),
        (vec!["\"edit\"".to_owned(), "\"add\"".to_owned()], &Value::Null)
    );
    assert_eq!((&rest["history"][1]["who"], &rest["history"][1]["before"]), (&json!("tester"), &Value::Null));

    let undo = |change: &Value| format!("POST /v1/rules/history/{}/undo", change["id"]);
    let (status, _, undone) = server.send(&undo(newest), &by, "").await;
    assert_eq!((status, &undone["entry"]["rule"]["limit"]), (StatusCode::OK, &json!("2/h")), "{undone}");
    assert_eq!(server.send("POST /v1/peek", &[], "{}").await.2["limit"], json!(2), "and it is in effect");
    let (status, _, problem) = server.send(&undo(&rest["history"][1]), &by, "").await;
    assert_eq!(status, StatusCode::PRECONDITION_FAILED, "{problem}");
    assert_eq!(problem["current"]["rule_id"], json!(1));
    assert_eq!(server.send("POST /v1/rules/history/99/undo", &by, "").await.0, StatusCode::NOT_FOUND);
    let (status, _, problem) = server.send("GET /v1/rules/history?limt=1", &[], "").await;
    assert_eq!((status, &problem["path"]), (StatusCode::BAD_REQUEST, &json!("limt")));
}

#[tokio::test]
async fn a_preview_tells_what_would_change_and_changes_nothing() {
    let server = Server::start().await;
    for name in ["stays", "changes", "goes"] {
        server.add(json!({"name": name, "key": "global", "limit": "1/s"})).await;
    }
    let next = json!({"rules": [
        {"name": "stays", "key": "global", "limit": "1/s"},
        {"name": "changes", "key": "global", "limit": "2/s"},
        {"name": "comes", "key": "global", "limit": "1/s"},
    ]});
    let next = format!("{next}{}", " ".repeat(100 << 10));
    let (status, _, told) = server.send("POST /v1/rules/preview", &[], next).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(told, json!({"valid": true, "added": ["comes"], "changed": ["changes"], "removed": ["goes"]}));
    let bad =
        json!({"rules": [{"name": "a", "key": "global", "limit": "1/s"}, {"key": "global", "limit": "1/x"}]});
    let (status, _, problem) = server.send("POST /v1/rules/preview", &[], bad).await;
    assert_eq!((status, &problem["errors"][0]["field"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("limit")));
    let bad = json!({"rules": [{"name": "a", "key": "global", "limt": "1/s"}]});
    let (status, _, problem) = server.send("POST /v1/rules/preview", &[], bad).await;
    assert_eq!((status, &problem["path"]), (StatusCode::BAD_REQUEST, &json!("rules[0].limt")));
    assert_eq!(server.send("GET /v1/rules", &[], "").await.2["rules"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn rules_of_a_file_are_shown_and_not_changed() {
    let text = "rules: [{ key: 'user:{user_id}', plan: free, limit: 1/min, mode: off }]";
    let limiter = Limiter::new(parse("rules.yaml", text).unwrap(), AnyStore::from(MemoryStore::new()));
    let router = both_planes(App::new(Arc::new(limiter), RulesHome::File("rules.yaml".to_owned())));
    let (status, _, list) = send(&router, "GET /v1/rules", &[], "").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        list,
        json!({"source": "rules.yaml", "version": null, "writable": false, "error": null, "rules": [{
            "rule_id": null, "version": null, "created_at": null, "updated_at": null,
            "label": "user:{user_id} plan=free 1min", "active": false,
            "rule": {"key": "user:{user_id}", "plan": "free", "limit": "1/min", "mode": "off"},
        }]})
    );
    let rule = r#"{"key": "global", "limit": "1/s"}"#;
    for line in [
        "POST /v1/rules",
        "PUT /v1/rules/1",
        "PATCH /v1/rules/1",
        "DELETE /v1/rules/1",
        "POST /v1/rules/history/1/undo",
    ] {
        let (status, _, problem) = send(&router, line, &[("if-match", "*")], rule).await;
        assert_eq!(status, StatusCode::CONFLICT, "{line}");
        assert!(detail(&problem).contains("the file rules.yaml; edit it"), "{problem}");
    }
    for line in ["GET /v1/rules/1", "GET /v1/rules/history"] {
        assert_eq!(send(&router, line, &[], "").await.0, StatusCode::NOT_FOUND, "{line}");
    }
    let (status, _, told) = send(&router, "POST /v1/rules/preview", &[], r#"{"rules": []}"#).await;
    assert_eq!((status, &told["removed"]), (StatusCode::OK, &json!(["user:{user_id} plan=free 1min"])));
    let (status, _, problem) = send(&router, "GET /v1/violations", &[], "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(detail(&problem).contains("this server has no database"), "{problem}");
}

#[tokio::test]
async fn violations_are_listed_newest_first_a_page_at_a_time() {
    let server = Server::start().await;
    server.add(json!({"name": "one", "key": "user:{user_id}", "limit": "1/d"})).await;
    for user in ["a", "b", "c"] {
        for _ in 0..3 {
            let body = json!({"attributes": {"user_id": user, "ip": "2001:DB8::1", "endpoint": "/x y"}});
            server.send("POST /v1/check", &[], body).await;
        }
    }
    let log = ViolationLog::new(server.database.clone());
    let writer = Writer::start(server.violations.clone(), log, WriterOptions::default());
    let stats = writer.shutdown(std::time::Duration::from_secs(60)).await;
    assert_eq!((stats.written, stats.dropped), (6, 0));

    let (status, _, page) = server.send("GET /v1/violations?limit=2", &[], "").await;
    assert_eq!((status, page["violations"].as_array().unwrap().len()), (StatusCode::OK, 2));
    assert_eq!(
        (&page["violations"][0]["user_id"], &page["violations"][0]["count"]),
        (&json!("c"), &json!(2))
    );
    let line = format!("GET /v1/violations?limit=2&cursor={}", page["next"].as_str().unwrap());
    let (_, _, rest) = server.send(&line, &[], "").await;
    assert_eq!((&rest["violations"][0]["user_id"], &rest["next"]), (&json!("a"), &Value::Null));
    let found = async |query: &str| {
        let (status, _, page) = server.send(&format!("GET /v1/violations?{query}"), &[], "").await;
        assert_eq!(status, StatusCode::OK, "{query}: {page}");
        page["violations"].as_array().unwrap().len()
    };
    assert_eq!(found("user_id=b&ip=2001:db8:0::1&endpoint=/x%20y&rule=one&since=1h").await, 1);
    assert_eq!(
        found("until=1h").await + found("since=2999-01-01T00:00:00Z").await + found("rule=two").await,
        0
    );
    for (query, path) in [
        ("limit=1001", "limit"),
        ("limit=0", "limit"),
        ("since=yesterday", "since"),
        ("cursor=1", "cursor"),
        ("ip=here", "ip"),
        ("userid=1", "userid"),
    ] {
        let (status, _, problem) = server.send(&format!("GET /v1/violations?{query}"), &[], "").await;
        assert_eq!((status, &problem["path"]), (StatusCode::BAD_REQUEST, &json!(path)), "{problem}");
    }
}

#[tokio::test]
async fn rules_with_odd_numbers_are_refused() {
    let server = Server::start().await;
    for odd in ["0", "-1", "NaN", "inf", "1e400", "9223372036854775808", "18446744073709551616"] {
        for limit in [format!("{odd}/s"), format!("1/s burst {odd}")] {
            let (status, _, problem) =
                server.send("POST /v1/rules", &[], json!({"key": "global", "limit": limit})).await;
            assert!(status.is_client_error(), "{limit}: {status} {problem}");
        }
    }
    for odd in ["0", "-1", "1.5", "1e400", "9223372036854775808", "18446744073709551616"] {
        let rule = format!(r#"{{"key": "global", "limit": "1/s", "cost": {odd}}}"#);
        let (status, _, problem) = server.send("POST /v1/rules", &[], rule).await;
        assert!(status.is_client_error(), "cost {odd}: {status} {problem}");
    }
}
