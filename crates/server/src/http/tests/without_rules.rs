//! Limits in the body, refunds, batches, the playground.

use tollgate::RedisStore;

use super::*;

const KEY: &str = r#"{"key": "user:123", "limit": "1/s burst 3"}"#;

#[tokio::test]
async fn a_limit_in_the_body_needs_no_rule_and_meets_none() {
    let served = Served::with(RULES);
    let (status, headers, body) = served.send("POST /v1/check", KEY).await;
    assert_eq!((status, &body["limit"], &body["remaining"]), (StatusCode::OK, &json!(3), &json!(2)));
    assert_eq!(
        body["limits"],
        json!([{"rule": "user:123", "pattern": "{key}", "key": "user:123", "scope": "custom", "plan": null, "allowed": true, "limit": 3,
                "remaining": 2, "retry_after_ms": 0, "reset_after_ms": 1000, "mode": "enforce"}])
    );
    assert_eq!(headers["ratelimit-policy"], r#""user:123";q=3;w=3"#);
    served.ok("POST /v1/check", json!({"key": "user:123", "limit": "1/s burst 3", "cost": 2})).await;
    let (status, headers, body) = served.send("POST /v1/check", KEY).await;
    assert_eq!((status, &headers["retry-after"]), (StatusCode::TOO_MANY_REQUESTS, &"1".parse().unwrap()));
    assert_eq!((&body["violated_rule"], &body["violated_tier"]), (&json!("user:123"), &json!("custom")));
}

#[tokio::test]
async fn another_limit_carries_over_and_another_algorithm_begins_anew() {
    let served = Served::with(RULES);
    for _ in 0..3 {
        served.ok("POST /v1/check", KEY).await;
    }
    let larger = served.ok("POST /v1/peek", json!({"key": "user:123", "limit": "1/s burst 5"})).await;
    assert_eq!(larger["remaining"], 2, "what was used stays used");
    let window = json!({"key": "user:123", "limit": "3/min", "algorithm": "fixed_window", "window": "first"});
    assert_eq!(served.ok("POST /v1/check", window).await["remaining"], 2);
    let rules = served.ok("POST /v1/peek", FREE).await;
    assert_eq!(rules["remaining"], 3, "rules have buckets of their own");
}

#[tokio::test]
async fn a_smaller_limit_on_the_same_key_forgives_nothing() {
    let served = Served::with(RULES);
    let large = json!({"key": "user:42", "limit": "100/h burst 100", "cost": 95});
    let mut admitted = 0;
    for _ in 0..10 {
        admitted += u64::from(served.send("POST /v1/check", &large).await.0 == StatusCode::OK) * 95;
        served.send("POST /v1/check", json!({"key": "user:42", "limit": "100/s burst 5"})).await;
    }
    assert_eq!(admitted, 95);
    let hour = json!({"key": "user:7", "limit": "3/h", "algorithm": "sliding_window_log"});
    let day = json!({"key": "user:7", "limit": "2/d", "algorithm": "sliding_window_log"});
    let mut admitted = 0;
    for body in [&hour, &day].into_iter().cycle().take(20) {
        admitted += u64::from(served.send("POST /v1/check", body).await.0 == StatusCode::OK);
    }
    assert_eq!(admitted, 5, "two lengths admit the sum of both limits");
}

#[tokio::test]
async fn a_refund_gives_back_by_rules_and_without() {
    let served = Served::with(RULES);
    for body in [KEY.to_owned(), FREE.to_owned()] {
        served.ok("POST /v1/check", &body).await;
        let refunded = served.ok("POST /v1/refund", &body).await;
        assert_eq!((&refunded["allowed"], &refunded["remaining"]), (&json!(true), &json!(3)), "{body}");
    }
    let (status, ..) = served.send("POST /v1/refund", r#"{"attributes": {"user_id": "666"}}"#).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_batch_decides_each_on_its_own_in_order() {
    let served = Served::with(RULES);
    let free = json!({"attributes": {"user_id": "42", "plan": "free"}, "cost": 2});
    let requests = json!({"requests": [free, free, {"cost": -1}, {"key": "k", "limit": "1/s"}, 7, {}]});
    let body = served.ok("POST /v1/check/batch", requests).await;
    let results = body["results"].as_array().unwrap();
    assert_eq!(results.len(), 6);
    let allowed: Vec<&Value> = results.iter().map(|result| &result["allowed"]).collect();
    assert_eq!(json!(allowed), json!([true, false, null, true, null, true]));
    assert_eq!((&results[2]["status"], &results[2]["path"]), (&json!(400), &json!("requests[2].cost")));
    assert_eq!((&results[4]["status"], &results[4]["path"]), (&json!(400), &json!("requests[4]")));
    let many = format!("{{\"requests\": [{}]}}", vec!["{}"; 1_001].join(","));
    let (status, _, problem) = served.send("POST /v1/check/batch", many).await;
    assert_eq!((status, &problem["path"]), (StatusCode::BAD_REQUEST, &json!("requests")));
    let large = format!("{{\"requests\": [{}]}}", " ".repeat(1 << 20));
    assert_eq!(served.send("POST /v1/check/batch", large).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn the_playground_is_reached_by_nobody_else_and_leaves_no_trace() {
    let served = Served::with(RULES);
    for _ in 0..4 {
        served.send("POST /v1/playground", KEY).await;
    }
    let (status, headers, _) = served.send("POST /v1/playground", KEY).await;
    assert_eq!((status, headers.contains_key("ratelimit")), (StatusCode::TOO_MANY_REQUESTS, true));
    assert_eq!(served.ok("POST /v1/peek", KEY).await["remaining"], 3);
    assert_eq!(served.ok("GET /v1/decisions", "").await["recorded"], 0);
    let stats = served.ok("GET /v1/stats", "").await;
    assert_eq!((&stats["totals"]["refused"], &stats["top_refused"]), (&json!(0), &json!([])));
    let (status, _, problem) = served.send("POST /v1/playground", FREE).await;
    assert_eq!((status, &problem["path"]), (StatusCode::BAD_REQUEST, &json!("key")));
}

#[tokio::test]
async fn what_is_wrong_with_a_limit_in_the_body_is_said_with_its_field() {
    let served = Served::with(RULES);
    let long = "k".repeat(513);
    for (body, path, part) in [
        (json!({"key": "k"}), "limit", "goes with `limit`"),
        (json!({"limit": "1/s"}), "key", "goes with `key`"),
        (json!({"algorithm": "fixed_window"}), "key", "`algorithm` goes with `key`"),
        (json!({"key": "", "limit": "1/s"}), "key", "from 1 to 512 bytes"),
        (json!({"key": long, "limit": "1/s"}), "key", "not 513"),
        (json!({"key": 5, "limit": "1/s"}), "key", "a string"),
        (json!({"key": "k", "limit": "0/s"}), "limit", "count is zero"),
        (
            json!({"key": "k", "limit": "1/s", "algorithm": "token_buket"}),
            "algorithm",
            "did you mean `token_bucket`?",
        ),
        (json!({"key": "k", "limit": "1/s", "window": "first"}), "window", "window"),
        (json!({"key": "k", "limit": "1/s", "attributes": {}}), "key", "one of the two"),
        (json!({"key": "k", "limit": "1/s", "burst": 5}), "burst", "unknown field"),
    ] {
        for route in ["check", "peek", "refund", "explain", "playground"] {
            let (status, _, problem) = served.send(&format!("POST /v1/{route}"), &body).await;
            assert_eq!((status, &problem["path"]), (StatusCode::BAD_REQUEST, &json!(path)), "{body}");
            assert!(problem["detail"].as_str().unwrap().contains(part), "{problem}");
        }
    }
}

#[tokio::test]
async fn a_limit_in_the_body_has_the_failure_policy_that_the_body_says() {
    let store = RedisStore::builder("redis://127.0.0.1:1").connect().await.unwrap();
    let served = Served::over(RULES, AnyStore::from(store));
    let body = |policy: &str| json!({"key": "k", "limit": "2/h", "on_store_failure": policy});
    let (status, _, closed) = served.send("POST /v1/check", body("closed")).await;
    assert_eq!((status, &closed["degraded"]["policy"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("closed")));
    for allowed in [true, true, false] {
        let (_, _, local) = served.send("POST /v1/check", body("local")).await;
        assert_eq!((&local["degraded"]["policy"], &local["allowed"]), (&json!("local"), &json!(allowed)));
    }
    let (_, _, open) = served.send("POST /v1/check", body("open")).await;
    assert_eq!((&open["degraded"]["policy"], &open["allowed"]), (&json!("open"), &json!(true)));
    let (status, _, problem) = served.send("POST /v1/check", body("shut")).await;
    assert_eq!((status, &problem["path"]), (StatusCode::BAD_REQUEST, &json!("on_store_failure")));
    let exact = json!({"key": "k", "limit": "2/h", "consistency": "sometimes"});
    assert_eq!(served.send("POST /v1/check", exact).await.2["path"], "consistency");
    let stray = json!({"on_store_failure": "closed"});
    assert_eq!(served.send("POST /v1/check", stray).await.2["path"], "key");
}

#[tokio::test]
async fn a_closed_rule_without_its_store_is_503_with_retry_after() {
    let store = RedisStore::builder("redis://127.0.0.1:1").connect().await.unwrap();
    let rules = "rules: [{ name: strict, key: global, limit: 5/s, on_store_failure: closed }]";
    let served = Served::over(rules, AnyStore::from(store));
    let (status, headers, body) = served.send("POST /v1/check", "{}").await;
    assert_eq!((status, &headers["retry-after"]), (StatusCode::SERVICE_UNAVAILABLE, &"1".parse().unwrap()));
    assert_eq!(body["degraded"]["policy"], "closed");
    assert_eq!(headers["x-ratelimit-limit"], "5");
    assert_eq!(headers["x-ratelimit-remaining"], "0");
    assert_eq!(headers["ratelimit"], r#""strict";r=0"#);
    assert!(!headers.contains_key("x-ratelimit-reset"), "{headers:?}");
    let (status, headers, problem) = served.send("POST /v1/refund", "{}").await;
    assert_eq!(
        (status, &problem["title"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("the store gave no answer"))
    );
    assert!(headers.contains_key("retry-after"));
    let (status, headers, open) = served.send("POST /v1/check", KEY).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(open["degraded"]["policy"], "open", "without a rule nobody says closed");
    let limit = open["limit"].to_string();
    assert_eq!(
        (&open["remaining"], &open["reset_after_ms"]),
        (&Value::Null, &json!(0)),
        "nothing was counted"
    );
    assert_eq!(headers["x-ratelimit-limit"], limit);
    assert_eq!(headers["x-ratelimit-remaining"], limit);
    let stats = served.ok("GET /v1/stats", "").await;
    assert_eq!((&stats["store"]["up"], &stats["totals"]["degraded"]), (&json!(false), &json!(2)));
    let degraded = stats["per_second"]["degraded"].as_array().unwrap();
    assert_eq!(degraded.iter().map(|count| count.as_u64().unwrap()).sum::<u64>(), 2);
    assert_eq!(
        stats["rule_set"]["on_store_failure"],
        json!([{"policy": "closed", "count": 1, "rules": ["strict"]}])
    );
    let report = served.ok("POST /v1/explain", "{}").await;
    assert_eq!(report["rules"][0]["before"], Value::Null);
}

#[tokio::test]
async fn a_rule_that_failed_open_has_no_remaining() {
    let store = RedisStore::builder("redis://127.0.0.1:1").connect().await.unwrap();
    let rules = "rules: [{ name: lax, key: global, limit: 5/s }, \
         { name: share, key: global, limit: 4/s, on_store_failure: local, mode: shadow }]";
    let served = Served::over(rules, AnyStore::from(store));
    let checked = served.ok("POST /v1/check", "{}").await;
    let id = checked["decision_id"].as_str().unwrap();
    let kept = served.ok(&format!("GET /v1/decisions/{id}"), "").await;
    for body in [&checked, &kept["decision"]] {
        assert_eq!((&body["allowed"], &body["remaining"]), (&json!(true), &Value::Null), "{body}");
        assert_eq!(body["degraded"]["policy"], "open");
        let [lax, share] = [&body["limits"][0], &body["limits"][1]];
        assert_eq!(
            (&lax["rule"], &lax["limit"], &lax["remaining"]),
            (&json!("lax"), &json!(5), &Value::Null)
        );
        assert_eq!(
            (&share["rule"], &share["remaining"]),
            (&json!("share"), &json!(3)),
            "its share was counted"
        );
    }
    let listed = served.ok("GET /v1/decisions", "").await;
    assert_eq!(listed["decisions"][0]["remaining"], Value::Null);
}
