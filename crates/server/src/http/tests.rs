use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json};
use tollgate::{AnyStore, Bounds, Clock, MemoryStore, Timestamp, rules};
use tower::ServiceExt as _;

use super::ask::MAX_BODY_BYTES;
use super::*;

mod cost_attribute;
mod document;
mod operating;
mod reserve;
mod without_rules;

const RULES: &str = r#"
rules:
  - { name: per-user-free, key: "user:{user_id}", plan: free, limit: 10/s burst 3 }
  - { name: global, key: global, limit: 1000/s burst 2000 }
  - { name: watched, key: "endpoint:{endpoint}", limit: 1/min, mode: shadow }
  - { name: banned, key: "user:{user_id}", action: deny, when: { user_id: ["666"] } }
"#;

fn app() -> Router {
    both_planes(app_with(RULES))
}

/// An application on a clock that stands still.
pub(super) fn app_with(rules: &str) -> App {
    let clock = Clock::manual(Timestamp::from_micros(1_800_000_000_500_000));
    let store = AnyStore::from(MemoryStore::with(clock, Bounds::default()));
    let limiter = Limiter::new(rules::parse("rules.yaml", rules).unwrap(), store);
    App::new(Arc::new(limiter), RulesHome::Fixed("code".to_owned()))
}

/// A server over these rules, and what it decides with.
struct Served {
    router: Router,
    app: App,
    limiter: Arc<Limiter<AnyStore>>,
}

impl Served {
    fn with(rules: &str) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_800_000_000_500_000));
        Self::over(rules, AnyStore::from(MemoryStore::with(clock, Bounds::default())))
    }

    fn over(rules: &str, store: AnyStore) -> Self {
        let limiter = Arc::new(Limiter::new(rules::parse("rules.yaml", rules).unwrap(), store));
        let app = App::new(Arc::clone(&limiter), RulesHome::Fixed("code".to_owned())).with_decisions(100);
        Served { router: both_planes(app.clone()), app, limiter }
    }

    fn request(line: &str, body: &str) -> Request<Body> {
        let (method, path) = line.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        request.extensions_mut().unwrap().insert(Peer("127.0.0.1:50000".parse().unwrap()));
        request.body(Body::from(body.to_owned())).unwrap()
    }

    /// Sends a request from this machine, and holds the answer against the document.
    async fn send(&self, line: &str, body: impl ToString) -> (StatusCode, HeaderMap, Value) {
        let request = Self::request(line, &body.to_string());
        let (parts, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let bytes = to_bytes(body, 64 << 20).await.unwrap();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        document::holds(line, parts.status, &parts.headers, &body);
        (parts.status, parts.headers, body)
    }

    /// The body of an answer that is expected to be a good one.
    async fn ok(&self, line: &str, body: impl ToString) -> Value {
        let (status, _, answer) = self.send(line, body).await;
        assert_eq!(status, StatusCode::OK, "{line}: {answer}");
        answer
    }
}

async fn post_to(
    app: &Router,
    path: &str,
    body: &str,
    headers: &[(&str, &str)],
) -> (StatusCode, HeaderMap, Value) {
    let mut request = Request::post(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = app.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, 1 << 20).await.unwrap();
    (parts.status, parts.headers, serde_json::from_slice(&bytes).unwrap())
}

const FREE: &str = r#"{"attributes": {"user_id": 42, "plan": "free", "endpoint": "/a/"}}"#;

#[tokio::test]
async fn a_check_answers_the_whole_body_and_all_headers() {
    let app = app();
    let (status, headers, mut body) = post_to(&app, "/v1/check", FREE, &[]).await;
    assert_eq!(status, StatusCode::OK);
    let id = body.as_object_mut().unwrap().remove("decision_id").unwrap();
    assert_eq!(id.as_str().unwrap().len(), 24);
    assert_eq!(
        body,
        json!({
            "allowed": true, "limit": 3, "remaining": 2, "retry_after_ms": 0, "reset_after_ms": 100, "delay_ms": 0,
            "violated_tier": null, "violated_rule": null, "degraded": null,
            "limits": [
                {"rule": "per-user-free", "pattern": "user:{user_id}", "key": "user:42", "scope": "user", "plan": "free", "allowed": true, "limit": 3,
                 "remaining": 2, "retry_after_ms": 0, "reset_after_ms": 100, "mode": "enforce"},
                {"rule": "global", "pattern": "global", "key": "global", "scope": "global", "plan": null, "allowed": true, "limit": 2000,
                 "remaining": 1999, "retry_after_ms": 0, "reset_after_ms": 1, "mode": "enforce"},
                {"rule": "watched", "pattern": "endpoint:{endpoint}", "key": "endpoint:/a", "scope": "endpoint", "plan": null, "allowed": true, "limit": 1,
                 "remaining": 0, "retry_after_ms": 0, "reset_after_ms": 60000, "mode": "shadow"},
            ],
        })
    );
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    assert_eq!(header("x-ratelimit-limit"), "3");
    assert_eq!(header("x-ratelimit-remaining"), "2");
    assert_eq!(header("x-ratelimit-reset"), "1800000001");
    assert_eq!(header("ratelimit-policy"), r#""per-user-free";q=3;w=1, "global";q=2000;w=2"#);
    assert_eq!(header("ratelimit"), r#""per-user-free";r=2;t=1, "global";r=1999;t=1"#);
    assert_eq!(header("content-type"), "application/json");
    assert!(!headers.contains_key("retry-after"));
}

#[tokio::test]
async fn the_fourth_request_is_429_with_retry_after_and_the_rule_that_refused() {
    let app = app();
    for _ in 0..3 {
        assert_eq!(post_to(&app, "/v1/check", FREE, &[]).await.0, StatusCode::OK);
    }
    let (status, headers, body) = post_to(&app, "/v1/check", FREE, &[]).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(headers["retry-after"], "1");
    assert_eq!((&body["violated_tier"], &body["violated_rule"]), (&json!("user"), &json!("per-user-free")));
    assert_eq!(body["retry_after_ms"], 100);
    assert_eq!(body["limits"][1]["remaining"], 1997, "a refused request charges nobody");
    let (status, headers, body) = post_to(&app, "/v1/check", FREE, &[("prefer", "status=200")]).await;
    assert_eq!((status, &body["allowed"]), (StatusCode::OK, &json!(false)));
    assert_eq!(headers["preference-applied"], "status=200");
}

#[tokio::test]
async fn a_peek_charges_nothing() {
    let app = app();
    for _ in 0..9 {
        let (status, _, body) = post_to(&app, "/v1/peek", FREE, &[]).await;
        assert_eq!((status, &body["remaining"]), (StatusCode::OK, &json!(3)));
    }
}

#[tokio::test]
async fn a_denied_caller_gets_403_and_a_limit_of_zero() {
    let (status, headers, body) =
        post_to(&app(), "/v1/check", r#"{"attributes": {"user_id": "666"}}"#, &[]).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert_eq!((&body["violated_rule"], &body["limit"]), (&json!("banned"), &json!(0)));
    assert_eq!(body["retry_after_ms"], Value::Null);
    assert_eq!(headers["x-ratelimit-limit"], "0");
    assert_eq!(headers["x-ratelimit-remaining"], "0");
    assert_eq!(headers["ratelimit-policy"], r#""banned";q=0"#);
    assert_eq!(headers["ratelimit"], r#""banned";r=0"#);
    assert!(
        !headers.contains_key("x-ratelimit-reset") && !headers.contains_key("retry-after"),
        "{headers:?}"
    );
}

#[tokio::test]
async fn bad_bodies_are_400_with_the_path_and_what_was_expected() {
    let app = app();
    let many: String = (0..70).map(|n| format!("\"a{n}\": 1,")).collect();
    for (body, path, part) in [
        ("", Value::Null, "expected a JSON object"),
        ("{", Value::Null, "EOF"),
        ("[]", Value::Null, "expected a JSON object"),
        (
            r#"{"attributes": {"user_id": ["x"]}}"#,
            json!("attributes.user_id"),
            "expected a string, a number, true or false",
        ),
        (r#"{"attributes": 5}"#, json!("attributes"), "an object of attributes"),
        (r#"{"attribute": {}}"#, json!("attribute"), "unknown field"),
        (r#"{"attributes": {"a": 1, "a": 2}}"#, json!("attributes"), "given twice"),
        (r#"{"attributes": {}, "cost": -1}"#, json!("cost"), "a whole number"),
        (r#"{"attributes": {}, "cost": 9007199254740992}"#, json!("cost"), "9007199254740991"),
        (r#"{"attributes": {}} x"#, Value::Null, "trailing"),
        (
            &format!("{{\"attributes\": {{{}}}}}", many.trim_end_matches(',')),
            json!("attributes"),
            "more than 64",
        ),
    ] {
        let (status, headers, problem) = post_to(&app, "/v1/check", body, &[]).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        assert_eq!(headers["content-type"], "application/problem+json");
        assert_eq!(problem.get("path").unwrap_or(&Value::Null), &path, "{body}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(part), "{body}: {problem}");
    }
}

#[tokio::test]
async fn costs_that_are_no_whole_number_below_2_to_the_53_are_400_on_every_route() {
    let app = app();
    let odd = [
        "-1",
        "1.5",
        "1e400",
        "9223372036854775808",
        "18446744073709551616",
        "\"1\"",
        "null",
        "NaN",
        "Infinity",
    ];
    for odd in odd {
        for route in ["/v1/check", "/v1/peek", "/v1/refund", "/v1/reserve"] {
            let body = format!(r#"{{"attributes": {{"user_id": "42"}}, "cost": {odd}}}"#);
            let (status, _, problem) = post_to(&app, route, &body, &[]).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{route} {body}: {problem}");
        }
        for limit in [format!("{odd}/s"), format!("1/s burst {odd}"), format!("1/{odd}s")] {
            let body = json!({"key": "k", "limit": limit}).to_string();
            let (status, _, problem) = post_to(&app, "/v1/check", &body, &[]).await;
            assert_eq!((status, &problem["path"]), (StatusCode::BAD_REQUEST, &json!("limit")), "{body}");
        }
    }
}

#[tokio::test]
async fn a_cost_above_capacity_is_refused_at_once_as_never() {
    let served = Served::with(RULES);
    for cost in [4, 1_u64 << 52, (1 << 53) - 1] {
        let body = json!({"attributes": {"user_id": "42", "plan": "free"}, "cost": cost});
        let (status, headers, answer) = served.send("POST /v1/check", body).await;
        assert_eq!(
            (status, &answer["retry_after_ms"]),
            (StatusCode::TOO_MANY_REQUESTS, &Value::Null),
            "{answer}"
        );
        assert!(!headers.contains_key("retry-after"), "no wait helps");
        assert_eq!(answer["remaining"], answer["limit"], "nothing is taken");
    }
}

#[tokio::test]
async fn nesting_beyond_32_is_400_with_the_path_wherever_a_body_is_read() {
    let app = app();
    let lists = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    for route in ["/v1/check", "/v1/peek", "/v1/refund"] {
        let body = format!("{{\"attributes\": {{\"a\": {}}}}}", lists(40));
        let (status, _, problem) = post_to(&app, route, &body, &[]).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{route}: {problem}");
        assert!(problem["path"].as_str().unwrap().starts_with("attributes.a"), "{route}: {problem}");
    }
    let batch = format!("{{\"requests\": [{}]}}", lists(40));
    for (route, body) in [("/v1/check/batch", &batch), ("/v1/check", &"[".repeat(60_000))] {
        let (status, _, problem) = post_to(&app, route, body, &[]).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{route}: {problem}");
    }
}

#[tokio::test]
async fn what_is_too_large_elsewhere_or_of_another_method_is_said_so() {
    let app = app();
    let large = format!("{{\"attributes\": {{\"x\": \"{}\"}}}}", "y".repeat(MAX_BODY_BYTES));
    assert_eq!(post_to(&app, "/v1/check", &large, &[]).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(post_to(&app, "/v1/chekc", "{}", &[]).await.0, StatusCode::NOT_FOUND);
    assert_eq!(post_to(&app, "/livez", "{}", &[]).await.0, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn no_limit_no_headers() {
    let clock = Clock::manual(Timestamp::from_micros(0));
    let store = AnyStore::from(MemoryStore::with(clock, Bounds::default()));
    let limiter = Limiter::new(rules::parse("rules.yaml", "rules: []").unwrap(), store);
    let (status, headers, body) = post_to(
        &both_planes(App::new(Arc::new(limiter), RulesHome::Fixed("code".to_owned()))),
        "/v1/check",
        "{}",
        &[],
    )
    .await;
    assert_eq!((status, &body["limit"], &body["limits"]), (StatusCode::OK, &Value::Null, &json!([])));
    assert!(headers.keys().all(|name| !name.as_str().contains("ratelimit")));
}
