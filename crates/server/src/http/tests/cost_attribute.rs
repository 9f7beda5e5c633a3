use super::*;

const TOKENS: &str = r#"
rules:
  - { name: model-tokens, key: "user:{user_id}", limit: 10000/h, cost: tokens }
  - { name: requests, key: "user:{user_id}", limit: 100/h }
"#;

/// Values that are not a whole number from 1 to 2^53 - 1, as JSON.
const INVALID: [&str; 17] = [
    r#""5000 ""#,
    r#"" 5000""#,
    "-5000",
    "-0",
    "1e308",
    "1e-1",
    "1.5",
    "0",
    "0.0",
    "0e9",
    "true",
    r#""""#,
    r#""+5""#,
    r#""0x10""#,
    "9007199254740992",
    "18446744073709551616",
    "1e99999999999999999999",
];

fn body(user: &str, tokens: &str) -> String {
    format!(r#"{{"attributes": {{"user_id": "{user}", "tokens": {tokens}}}}}"#)
}

/// What the two limits of a user still have.
async fn remaining(served: &Served, user: &str) -> [Value; 2] {
    let peeked = served.ok("POST /v1/peek", json!({"attributes": {"user_id": user}, "cost": 0})).await;
    [0, 1].map(|tier| peeked["limits"][tier]["remaining"].clone())
}

#[tokio::test]
async fn an_invalid_cost_attribute_is_400_on_every_route_and_charges_nothing() {
    let served = Served::with(TOKENS);
    served.ok("POST /v1/check", body("42", "100")).await;
    let before = remaining(&served, "42").await;
    assert_eq!(before, [json!(9_900), json!(99)]);
    for tokens in INVALID {
        for route in ["POST /v1/check", "POST /v1/peek", "POST /v1/refund", "POST /v1/reserve"] {
            let (status, headers, problem) = served.send(route, body("42", tokens)).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{route} {tokens}: {problem}");
            assert_eq!(headers["content-type"], "application/problem+json");
            assert_eq!(problem["path"], "attributes.tokens", "{route} {tokens}: {problem}");
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains("`tokens`") && detail.contains("`model-tokens`"), "{detail}");
        }
        assert_eq!(remaining(&served, "42").await, before, "{tokens}");
    }
    assert_eq!(served.app.recorder().recorded(), 1, "only the first request was a decision");
}

#[tokio::test]
async fn a_preference_for_200_does_not_hide_an_invalid_cost_attribute() {
    let app = both_planes(app_with(TOKENS));
    let (status, ..) = post_to(&app, "/v1/check", &body("42", "-5000"), &[("prefer", "status=200")]).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn every_notation_of_a_whole_number_is_that_cost() {
    let served = Served::with(TOKENS);
    for (user, tokens) in ["5000", r#""5000""#, "5000.0", "5e3", "5E+3", "0.5e4", "50000e-1", r#""005000""#]
        .into_iter()
        .enumerate()
    {
        let user = user.to_string();
        served.ok("POST /v1/check", body(&user, tokens)).await;
        assert_eq!(remaining(&served, &user).await, [json!(5_000), json!(99)], "{tokens}");
    }
    let (status, _, answer) = served.send("POST /v1/check", body("0", "9007199254740991")).await;
    assert_eq!((status, &answer["retry_after_ms"]), (StatusCode::TOO_MANY_REQUESTS, &Value::Null));
}

#[tokio::test]
async fn an_absent_cost_attribute_means_the_cost_of_the_request() {
    let served = Served::with(TOKENS);
    served.ok("POST /v1/check", json!({"attributes": {"user_id": "42"}, "cost": 7})).await;
    assert_eq!(remaining(&served, "42").await, [json!(9_993), json!(93)]);
}

#[tokio::test]
async fn an_invalid_cost_attribute_fails_only_its_element_of_a_batch() {
    let served = Served::with(TOKENS);
    let requests = ["10", "-5000", "1e1"].map(|tokens| body("42", tokens)).join(",");
    let answer = served.ok("POST /v1/check/batch", format!(r#"{{"requests": [{requests}]}}"#)).await;
    let [first, second, third] = [0, 1, 2].map(|place| &answer["results"][place]);
    assert_eq!((&first["allowed"], &third["allowed"]), (&json!(true), &json!(true)), "{answer}");
    assert_eq!((&second["status"], &second["path"]), (&json!(400), &json!("requests[1].attributes.tokens")));
    assert_eq!(remaining(&served, "42").await, [json!(9_980), json!(98)]);
}

#[tokio::test]
async fn explain_names_the_rule_whose_cost_attribute_is_invalid() {
    let served = Served::with(TOKENS);
    let report = served.ok("POST /v1/explain", body("42", "\"5000 \"")).await;
    assert_eq!(
        (&report["decision"]["allowed"], &report["decision"]["violated_rule"]),
        (&json!(false), &json!("model-tokens"))
    );
    let reason = |place: usize| report["rules"][place]["reason"].as_str().unwrap();
    assert!(reason(0).contains("attribute `tokens` is `5000 `"), "{report}");
    assert!(reason(1).starts_with("not asked"), "{report}");
    assert_eq!((&report["rules"][0]["speaks"], &report["rules"][0]["before"]), (&json!(true), &Value::Null));
}

#[tokio::test]
async fn an_invalid_cost_attribute_of_a_shadow_rule_refuses_nothing_and_is_reported() {
    let shadow = TOKENS.replace("cost: tokens", "cost: tokens, mode: shadow");
    let served = Served::with(&shadow);
    let answer = served.ok("POST /v1/check", body("42", "-5000")).await;
    assert_eq!(
        (&answer["limits"][0]["allowed"], &answer["limits"][0]["mode"]),
        (&json!(false), &json!("shadow"))
    );
    assert_eq!(remaining(&served, "42").await, [json!(10_000), json!(99)]);
    let report = served.ok("POST /v1/explain", body("42", "-5000")).await;
    assert!(report["rules"][0]["reason"].as_str().unwrap().contains("`-5000`"), "{report}");
}

#[tokio::test]
async fn a_deny_and_an_allow_rule_decide_before_any_cost_is_read() {
    let rules = format!(
        "{TOKENS}
  - {{ name: banned, key: 'user:{{user_id}}', action: deny, when: {{ user_id: ['666'] }} }}
  - {{ name: trusted, key: 'user:{{user_id}}', action: allow, when: {{ user_id: ['1'] }} }}"
    );
    let served = Served::with(&rules);
    assert_eq!(served.send("POST /v1/check", body("666", "-5000")).await.0, StatusCode::FORBIDDEN);
    assert_eq!(served.send("POST /v1/check", body("1", "-5000")).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_replay_and_a_preview_treat_an_invalid_cost_attribute_as_an_error() {
    let served = Served::with(r#"rules: [{ name: requests, key: "user:{user_id}", limit: 100/h }]"#);
    let rules =
        json!([{"name": "model-tokens", "key": "user:{user_id}", "limit": "10000/h", "cost": "tokens"}]);
    let trace = json!([{"t_us": 0, "attributes": {"user_id": "42", "tokens": "-5000"}}]);
    let (status, _, problem) = served.send("POST /v1/replay", json!({"rules": rules, "trace": trace})).await;
    assert_eq!((status, &problem["path"]), (StatusCode::BAD_REQUEST, &json!("trace[0]")), "{problem}");

    served.ok("POST /v1/check", body("42", "-5000")).await;
    let preview = served.ok("POST /v1/rules/preview", json!({"rules": rules, "recent": true})).await;
    let refused = json!([{"key": "user:42", "rule": "model-tokens", "count": 1}]);
    assert_eq!(preview["recent"]["newly_refused"], refused, "{preview}");
}
