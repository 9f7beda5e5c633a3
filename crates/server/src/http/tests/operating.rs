//! What an operator asks: explain, decisions, keys, stats, events, replay, preview.

use std::time::Duration;

use http_body_util::BodyExt as _;
use tollgate::Micros;

use super::*;

#[tokio::test]
async fn an_explanation_says_what_every_rule_has_and_would_have() {
    let served = Served::with(RULES);
    served.ok("POST /v1/check", FREE).await;
    let report = served.ok("POST /v1/explain", FREE).await;
    assert_eq!((&report["attributes"]["endpoint"], &report["cost"]), (&json!("/a"), &json!(1)));
    assert_eq!(report["decision"]["remaining"], 2);
    assert_eq!(
        report["rules"][0],
        json!({"rule": "per-user-free", "applies": true, "reason": null, "key": "user:42", "speaks": true,
               "limit": "10/s burst 3", "algorithm": "token_bucket", "mode": "enforce",
               "before": {"remaining": 2, "reset_after_ms": 100}, "after": {"remaining": 1, "reset_after_ms": 200},
               "retry_after_ms": 0})
    );
    let banned = &report["rules"][3];
    assert_eq!((&banned["applies"], &banned["limit"]), (&json!(false), &Value::Null));
    assert!(banned["reason"].as_str().unwrap().contains("here it is 42"), "{banned}");
    let refused = served.ok("POST /v1/explain", FREE.replace("}}", "}, \"cost\": 3}")).await;
    let rule = &refused["rules"][0];
    assert_eq!((&rule["before"], &rule["retry_after_ms"]), (&rule["after"], &json!(100)));
    let own = served.ok("POST /v1/explain", r#"{"key": "k", "limit": "5/s"}"#).await;
    assert_eq!((&own["rules"][0]["rule"], &own["rules"][0]["after"]["remaining"]), (&json!("k"), &json!(4)));
}

#[tokio::test]
async fn decisions_are_listed_newest_first_and_found_by_what_they_are() {
    let served = Served::with(RULES);
    for _ in 0..4 {
        served.send("POST /v1/check", FREE).await;
    }
    served.send("POST /v1/check", r#"{"attributes": {"user_id": "666"}}"#).await;
    served.ok("POST /v1/check", r#"{"key": "k", "limit": "5/s"}"#).await;
    served.send("POST /v1/peek", FREE).await;
    let list = served.ok("GET /v1/decisions", "").await;
    assert_eq!((&list["capacity"], &list["recorded"]), (&json!(100), &json!(6)), "a peek decides nothing");
    let outcomes: Vec<&Value> =
        list["decisions"].as_array().unwrap().iter().map(|one| &one["outcome"]).collect();
    assert_eq!(json!(outcomes), json!(["allowed", "denied", "refused", "allowed", "allowed", "allowed"]));
    let refused =
        served.ok("GET /v1/decisions?outcome=refused&rule=per-user-free&key=user:42&limit=5", "").await;
    let refused = &refused["decisions"][0];
    assert_eq!((&refused["retry_after_ms"], &refused["attributes"]["user_id"]), (&json!(100), &json!("42")));
    assert_eq!(refused["at"], "2027-01-15T08:00:00.500000Z");
    for (query, count) in [("limit=2", 2), ("key=user:43", 0), ("rule=k", 1)] {
        let list = served.ok(&format!("GET /v1/decisions?{query}"), "").await;
        assert_eq!(list["decisions"].as_array().unwrap().len(), count, "{query}");
    }
    for query in ["outcome=lost", "limit=0", "limit=1001", "user=1"] {
        let (status, ..) = served.send(&format!("GET /v1/decisions?{query}"), "").await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}");
    }
}

#[tokio::test]
async fn a_decision_is_looked_at_as_it_was_answered() {
    let served = Served::with(RULES);
    let answered = served.ok("POST /v1/check", FREE).await;
    let path = format!("GET /v1/decisions/{}", answered["decision_id"].as_str().unwrap());
    let detail = served.ok(&path, "").await;
    assert_eq!((&detail["decision"], &detail["rules_changed"]), (&answered, &json!(false)));
    let rule = &detail["rules"][0];
    assert_eq!(rule["before"], json!({"remaining": 3, "reset_after_ms": 0}));
    assert_eq!(rule["after"], json!({"remaining": 2, "reset_after_ms": 100}));
    assert_eq!((&rule["speaks"], &rule["limit"]), (&json!(true), &json!("10/s burst 3")));
    assert_eq!(detail["rules"][3]["applies"], false);

    served.limiter.set_rules(rules::parse("new.yaml", "rules: [{ key: global, limit: 1/s }]").unwrap());
    let detail = served.ok(&path, "").await;
    assert_eq!((&detail["decision"], &detail["rules_changed"]), (&answered, &json!(true)));
    let labels: Vec<&Value> = detail["rules"].as_array().unwrap().iter().map(|line| &line["rule"]).collect();
    assert_eq!(
        json!(labels),
        json!(["per-user-free", "global", "watched", "banned"]),
        "the rules that decided"
    );

    let own = served.ok("POST /v1/check", r#"{"key": "k", "limit": "5/s burst 9", "cost": 4}"#).await;
    let detail = served.ok(&format!("GET /v1/decisions/{}", own["decision_id"].as_str().unwrap()), "").await;
    assert_eq!((&detail["decision"], &detail["rules_changed"]), (&own, &json!(false)));
    assert_eq!(
        (&detail["rules"][0]["limit"], detail["rules"].as_array().unwrap().len()),
        (&json!("5/s burst 9"), 1)
    );
    assert_eq!(detail["rules"][0]["before"]["remaining"], 9);
}

#[tokio::test]
async fn a_decision_that_is_gone_is_404_and_says_how_many_are_kept() {
    let served = Served::with(RULES);
    let (status, _, problem) = served.send("GET /v1/decisions/0123", "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(problem["detail"].as_str().unwrap().contains("among the last 100"), "{problem}");
    let app = served.app.clone().with_decisions(0);
    let none = Served { router: both_planes(app.clone()), app, ..served };
    none.ok("POST /v1/check", FREE).await;
    let list = none.ok("GET /v1/decisions", "").await;
    assert_eq!((&list["capacity"], &list["recorded"]), (&json!(0), &json!(1)));
    assert!(
        none.send("GET /v1/decisions/0123", "").await.2["detail"].as_str().unwrap().contains("--decisions")
    );
}

#[tokio::test]
async fn the_buckets_of_a_key_are_looked_at_and_forgotten() {
    let served = Served::with(RULES);
    served.ok("POST /v1/check", FREE).await;
    served.ok("POST /v1/check", r#"{"key": "user:42", "limit": "5/s"}"#).await;
    let key = served.ok("GET /v1/keys/user%3A42?limit=5/s", "").await;
    assert_eq!(key["key"], "user:42");
    let [rule, own] = key["buckets"].as_array().unwrap().as_slice() else { panic!("{key}") };
    assert_eq!(
        (&rule["rule"], &rule["plan"], &rule["known"]),
        (&json!("per-user-free"), &json!("free"), &json!(true))
    );
    assert_eq!(
        (&rule["remaining"], &rule["reset_after_ms"], &rule["limit"]),
        (&json!(2), &json!(100), &json!("10/s burst 3"))
    );
    assert_eq!(rule["state"]["last_us"], 1_800_000_000_500_000_u64);
    assert_eq!(
        (&own["rule"], &own["remaining"], &own["scope"]),
        (&json!("user:42"), &json!(4), &json!("custom"))
    );

    let (status, _, fresh) = served.send("DELETE /v1/keys/user:42", "").await;
    assert_eq!((status, fresh["buckets"].as_array().unwrap().len()), (StatusCode::OK, 1));
    assert_eq!((&fresh["buckets"][0]["known"], &fresh["buckets"][0]["state"]), (&json!(false), &Value::Null));
    assert_eq!(served.ok("GET /v1/keys/user:42?limit=5/s", "").await["buckets"][1]["remaining"], 4);
    // Where windows begin is part of what a bucket is.
    let first = json!({"key": "w", "limit": "3/min", "algorithm": "fixed_window", "window": "first"});
    served.ok("POST /v1/check", &first).await;
    let reset = "DELETE /v1/keys/w?limit=3/min&algorithm=fixed_window&window=first";
    assert_eq!(served.ok(&reset.replace("DELETE", "GET"), "").await["buckets"][0]["remaining"], 2);
    assert_eq!(served.ok(reset, "").await["buckets"][0]["remaining"], 3);
    assert_eq!(served.ok("POST /v1/check", &first).await["remaining"], 2);
    for (line, status) in [
        ("GET /v1/keys/nobody:1", StatusCode::NOT_FOUND),
        ("DELETE /v1/keys/nobody:1", StatusCode::NOT_FOUND),
        ("GET /v1/keys/user:42?limit=0/s", StatusCode::BAD_REQUEST),
        ("GET /v1/keys/user:42?algorithm=fixed_window", StatusCode::BAD_REQUEST),
        ("GET /v1/keys/user:42?key=1", StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(served.send(line, "").await.0, status, "{line}");
    }
}

#[tokio::test]
async fn stats_count_what_was_decided() {
    let served = Served::with(RULES);
    for _ in 0..5 {
        served.send("POST /v1/check", FREE).await;
    }
    served.send("POST /v1/check", r#"{"attributes": {"user_id": "666"}}"#).await;
    served.limiter.clock().advance(Micros::new(2_000_000));
    served.ok("POST /v1/check", FREE).await;
    let stats = served.ok("GET /v1/stats", "").await;
    assert_eq!(
        stats["totals"],
        json!({"allowed": 4, "refused": 2, "denied": 1, "unavailable": 0, "shadow_refused": 5, "degraded": 0})
    );
    assert_eq!(
        stats["per_second"],
        json!({"start_s": 1_800_000_000, "allowed": [3, 0, 1], "refused": [3, 0, 0], "degraded": [0, 0, 0]})
    );
    assert_eq!(
        stats["rules"][0],
        json!({"rule": "per-user-free", "allowed": 4, "refused": 2, "shadow_refused": 0})
    );
    assert_eq!(
        stats["top_refused"][0],
        json!({"key": "user:42", "rule": "per-user-free", "refused": 2, "at_least": 2})
    );
    assert_eq!((&stats["uptime_s"], &stats["latency_us"]["count"]), (&json!(2), &json!(7)));
    assert_eq!((&stats["store"]["kind"], &stats["store"]["up"]), (&json!("memory"), &json!(true)));
    assert_eq!((&stats["rule_set"]["source"], &stats["rule_set"]["count"]), (&json!("code"), &json!(4)));
    assert_eq!(stats["violations"], Value::Null);
}

#[tokio::test]
async fn stats_name_the_enforced_limits_by_failure_policy() {
    let served = Served::with(
        r#"
rules:
  - { name: search, key: "endpoint:/search", limit: 10/s }
  - { name: login, key: "ip:{ip}", limit: 5/min, on_store_failure: closed }
  - { name: orders, key: "user:{user_id}", limit: 10/s, on_store_failure: open }
  - { name: nearby, key: "user:{user_id}", limit: 100/s, consistency: local }
  - { name: watched, key: global, limit: 1/s, mode: shadow }
  - { name: sleeping, key: global, limit: 1/s, mode: "off" }
  - { name: banned, key: "user:{user_id}", action: deny, when: { user_id: ["666"] } }
"#,
    );
    assert_eq!(
        served.ok("GET /v1/stats", "").await["rule_set"]["on_store_failure"],
        json!([
            {"policy": "open", "count": 2, "rules": ["search", "orders"]},
            {"policy": "closed", "count": 1, "rules": ["login"]},
            {"policy": "local", "count": 1, "rules": ["nearby"]},
        ])
    );
}

#[tokio::test]
async fn the_buckets_of_a_key_have_the_conditions_of_their_rules() {
    let served = Served::with(
        r#"rules: [{ name: writes, key: "user:{user_id}", limit: 5/s, when: { method: [PUT, POST] } }]"#,
    );
    let key = served.ok("GET /v1/keys/user:42", "").await;
    assert_eq!(key["buckets"][0]["when"], json!({"method": ["PUT", "POST"]}));
}

#[tokio::test]
async fn events_tell_what_happens_until_the_server_stops() {
    let served = Served::with(RULES);
    let request = Served::request("GET /v1/events?only=decision,violation,rules,stats", "");
    let response = served.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    for _ in 0..4 {
        served.send("POST /v1/check", FREE).await;
    }
    served.limiter.set_rules(rules::parse("new.yaml", "rules: []").unwrap());
    served.limiter.clock().advance(Micros::new(1_000_000));
    let mut heard = String::new();
    let all = ["event: decision", "event: violation", "event: rules", "event: stats"];
    while !all.iter().all(|event| heard.contains(event)) {
        let frame = tokio::time::timeout(Duration::from_secs(20), body.frame()).await.expect("an event");
        heard += str::from_utf8(&frame.unwrap().unwrap().into_data().unwrap()).unwrap();
    }
    assert!(
        heard.contains(r#""outcome":"refused","rule":"per-user-free","key":"user:42","remaining":0"#),
        "{heard}"
    );
    assert!(heard.contains(r#""user_id":"42","ip":null,"endpoint":"/a""#), "{heard}");
    assert!(heard.contains(r#""second":1800000000,"allowed":3,"refused":1,"#), "{heard}");
    assert!(heard.contains(r#"{"version":null,"count":0,"error":null}"#), "{heard}");
    served.app.events.close();
    while let Some(frame) = body.frame().await {
        frame.unwrap();
    }
    let (status, ..) = served.send("GET /v1/events?only=weather", "").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_trace_is_replayed_and_summed_up() {
    let served = Served::with(RULES);
    let line = |t_us: u64| json!({"t_us": t_us, "attributes": {"user_id": "a"}});
    let rules = json!([{"name": "one", "key": "user:{user_id}", "limit": "1/s"}]);
    let body = served
        .ok("POST /v1/replay", json!({"rules": rules, "trace": [line(0), line(400_000), line(1_000_000)]}))
        .await;
    let allowed: Vec<&Value> =
        body["lines"].as_array().unwrap().iter().map(|line| &line["allowed"]).collect();
    assert_eq!(json!(allowed), json!([true, false, true]));
    assert_eq!(body["lines"][1]["retry_after_us"], 600_000);
    assert_eq!(
        body["summary"],
        json!({"requests": 3, "allowed": 2, "refused": 1, "rules": [{"rule": "one", "allowed": 2, "refused": 1}]})
    );
    for (body, status, path) in [
        (json!({"rules": rules}), 400, Value::Null),
        (json!({"rules": rules, "trace": [line(0), {"t": 1}]}), 400, json!("trace[1]")),
        (json!({"rules": rules, "trace": {}}), 400, json!("trace")),
        (json!({"rules": [{"kee": "x"}], "trace": []}), 400, json!("rules[0].kee")),
        (json!({"rules": [{"key": "x", "limit": "0/s"}], "trace": []}), 422, Value::Null),
        (json!({"rules": rules, "trace": [], "store": "redis"}), 400, json!("store")),
    ] {
        let (found, _, problem) = served.send("POST /v1/replay", &body).await;
        assert_eq!((found.as_u16(), &problem["path"]), (status, &path), "{body}: {problem}");
    }
    let deep = format!("{{\"trace\": {}1{}}}", "[".repeat(40), "]".repeat(40));
    let (status, _, problem) = served.send("POST /v1/replay", deep).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(problem["detail"].as_str().unwrap().contains("at most 32 deep"), "{problem}");
}

#[tokio::test]
async fn a_preview_tries_other_rules_on_what_was_just_decided() {
    let served = Served::with(RULES);
    for _ in 0..4 {
        served.send("POST /v1/check", FREE).await;
    }
    let rules = json!([{"name": "tight", "key": "user:{user_id}", "limit": "1/h"}]);
    let preview = served.ok("POST /v1/rules/preview", json!({"rules": rules, "recent": true})).await;
    assert_eq!(
        preview["recent"],
        json!({"view": "node", "requests": 4, "refused_before": 1, "refused_after": 3, "newly_allowed": [],
               "newly_refused": [{"key": "user:42", "rule": "tight", "count": 2}]})
    );
    let preview = served.ok("POST /v1/rules/preview", json!({"rules": [], "recent": true})).await;
    assert_eq!(
        preview["recent"]["newly_allowed"],
        json!([{"key": "user:42", "rule": "per-user-free", "count": 1}])
    );
    assert_eq!(served.ok("POST /v1/rules/preview", json!({"rules": []})).await.get("recent"), None);
}
