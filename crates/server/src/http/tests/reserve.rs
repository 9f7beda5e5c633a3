use super::*;

const HOURLY: &str = r#"
rules:
  - { name: tokens, key: "user:{user_id}", limit: 1000/h }
  - { name: banned, key: "user:{user_id}", action: deny, when: { user_id: ["666"] } }
"#;

fn reserve(cost: u64) -> Value {
    json!({"attributes": {"user_id": "42"}, "cost": cost, "ttl_ms": 5_000})
}

async fn remaining(served: &Served) -> Value {
    served.ok("POST /v1/peek", json!({"attributes": {"user_id": "42"}, "cost": 0})).await["remaining"].clone()
}

#[tokio::test]
async fn a_reservation_is_settled_once_and_told_again() {
    let served = Served::with(HOURLY);
    let (status, headers, body) = served.send("POST /v1/reserve", reserve(300)).await;
    assert_eq!(
        (status, &body["remaining"], &body["expires_in_ms"]),
        (StatusCode::OK, &json!(700), &json!(5_000))
    );
    assert_eq!(headers["x-ratelimit-remaining"], "700");
    let id = body["reservation_id"].as_str().unwrap();
    assert_eq!(id.len(), 32);

    let settle = json!({"reservation_id": id, "actual": 120});
    let settled = json!({"reservation_id": id, "reserved": 300, "actual": 120, "refunded": 180, "charged": 0,
        "unpaid": 0, "already_settled": false});
    assert_eq!(served.ok("POST /v1/settle", &settle).await, settled);
    assert_eq!(remaining(&served).await, 880);
    let again = served.ok("POST /v1/settle", json!({"reservation_id": id, "actual": 0})).await;
    assert_eq!((&again["actual"], &again["already_settled"]), (&json!(120), &json!(true)));
    assert_eq!(remaining(&served).await, 880);
}

#[tokio::test]
async fn what_is_missing_is_charged_and_what_does_not_fit_is_said() {
    let served = Served::with(HOURLY);
    let id = served.ok("POST /v1/reserve", reserve(900)).await["reservation_id"].clone();
    let settled = served.ok("POST /v1/settle", json!({"reservation_id": id, "actual": 1_500})).await;
    assert_eq!((&settled["charged"], &settled["unpaid"]), (&json!(100), &json!(500)));
    assert_eq!(remaining(&served).await, 0);
}

#[tokio::test]
async fn a_reservation_is_a_decision_on_record() {
    let served = Served::with(HOURLY);
    let body = served.ok("POST /v1/reserve", reserve(300)).await;
    let id = body["decision_id"].as_str().unwrap();
    let recorded = served.ok(&format!("GET /v1/decisions/{id}"), "").await;
    assert_eq!(
        (&recorded["cost"], &recorded["decision"]["remaining"]),
        (&json!(300), &json!(700)),
        "{recorded}"
    );
}

#[tokio::test]
async fn a_refusal_has_nothing_to_settle() {
    let served = Served::with(HOURLY);
    for (request, expected) in [
        (reserve(1_001), StatusCode::TOO_MANY_REQUESTS),
        (json!({"attributes": {"user_id": "666"}}), StatusCode::FORBIDDEN),
        (json!({}), StatusCode::OK),
    ] {
        let (status, _, body) = served.send("POST /v1/reserve", request).await;
        let nothing = (&body["reservation_id"], &body["expires_in_ms"]);
        assert_eq!((status, nothing), (expected, (&Value::Null, &Value::Null)), "{body}");
    }
}

#[tokio::test]
async fn what_is_gone_is_not_found_and_stays_spent() {
    let served = Served::with(HOURLY);
    let id = served.ok("POST /v1/reserve", reserve(300)).await["reservation_id"].clone();
    served.limiter.clock().advance(Duration::from_secs(5));
    for gone in [id, json!("8f14e45fceea167a5a36dedd4bea2543")] {
        let (status, _, problem) =
            served.send("POST /v1/settle", json!({"reservation_id": gone, "actual": 0})).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("spent"), "{problem}");
    }
    assert_eq!(remaining(&served).await, 701, "five seconds gave one back");
}

#[tokio::test]
async fn a_limit_that_comes_along_can_be_reserved() {
    let served = Served::with(HOURLY);
    let own = json!({"key": "job", "limit": "5/h", "cost": 4});
    let id = served.ok("POST /v1/reserve", &own).await["reservation_id"].clone();
    served.ok("POST /v1/settle", json!({"reservation_id": id, "actual": 1})).await;
    assert_eq!(served.ok("POST /v1/peek", json!({"key": "job", "limit": "5/h"})).await["remaining"], 4);
}

#[tokio::test]
async fn what_does_not_fit_is_named() {
    let served = Served::with(HOURLY);
    for (line, body, path) in [
        ("POST /v1/reserve", json!({"cost": 0}), "cost"),
        ("POST /v1/reserve", json!({"ttl_ms": 0}), "ttl_ms"),
        ("POST /v1/reserve", json!({"ttl_ms": 86_400_001}), "ttl_ms"),
        ("POST /v1/reserve", json!({"tll_ms": 1}), "tll_ms"),
        ("POST /v1/reserve", json!({"key": "job"}), "limit"),
        ("POST /v1/settle", json!({"reservation_id": "42", "actual": 1}), "reservation_id"),
        (
            "POST /v1/settle",
            json!({"reservation_id": "8f14e45fceea167a5a36dedd4bea2543", "actual": -1}),
            "actual",
        ),
    ] {
        let (status, _, problem) = served.send(line, &body).await;
        assert_eq!((status, &problem["path"]), (StatusCode::BAD_REQUEST, &json!(path)), "{body}: {problem}");
    }
}

#[tokio::test]
async fn a_caller_with_too_many_unsettled_reservations_is_told_the_bound_and_others_reserve() {
    let served = Served::with("rules: []");
    let body = json!({"key": "job", "limit": "1000000/s", "ttl_ms": 86_400_000}).to_string();
    let mut kept = 0;
    let (status, headers, problem) = loop {
        let answer = served.send("POST /v1/reserve", &body).await;
        if answer.0 != StatusCode::OK {
            break answer;
        }
        kept += 1;
    };
    assert_eq!((status, kept), (StatusCode::TOO_MANY_REQUESTS, 6_250));
    assert_eq!(
        (&headers["content-type"], &headers["retry-after"]),
        (&"application/problem+json".parse().unwrap(), &"1".parse().unwrap())
    );
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("this caller has 6250 unsettled reservations"), "{detail}");
    let mut other = Served::request("POST /v1/reserve", &body);
    other.extensions_mut().insert(Peer("192.0.2.7:50000".parse().unwrap()));
    assert_eq!(served.router.clone().oneshot(other).await.unwrap().status(), StatusCode::OK);
}
