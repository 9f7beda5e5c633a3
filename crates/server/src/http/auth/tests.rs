//! Roles, tokens, login links and sessions, over whole requests.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::super::tests::app_with;
use super::super::{App, guarded_planes};
use super::*;
use crate::http::sessions::{CODE_LIFETIME, SESSION_LIFETIME};

const SECRET: &str = "0123456789abcdef";
const RULES: &str = "rules: [{ key: 'user:{user_id}', limit: 10/s }]";

fn app_of(lines: &[&str]) -> App {
    let text = lines.iter().map(|line| format!("{line}-{SECRET}\n")).collect::<String>();
    let tokens = Tokens::parse(&text).unwrap();
    app_with(RULES).with_access(Access { tokens: vec![tokens], hosts: vec!["gate.example".to_owned()] })
}

fn app() -> App {
    app_of(&["ops:write:w", "board:read:r", "batch:settle:s"])
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Answer {
    fn detail(&self) -> &str {
        self.body["detail"].as_str().unwrap_or_default()
    }

    /// The cookie that was set, as it is sent back.
    fn cookie(&self) -> String {
        self.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned()
    }
}

async fn send(router: &Router, line: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let (method, path) = line.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "127.0.0.1:8081");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(Body::from(body.to_owned())).unwrap();
    request.extensions_mut().insert(Peer("127.0.0.1:50000".parse().unwrap()));
    let (parts, body) = router.clone().oneshot(request).await.unwrap().into_parts();
    let bytes = to_bytes(body, 1 << 20).await.unwrap();
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

fn bearer_of(token: &str) -> String {
    format!("Bearer {token}-{SECRET}")
}

async fn as_token(router: &Router, line: &str, token: &str) -> Answer {
    let headers = [("authorization", &*bearer_of(token)), ("content-type", "application/json")];
    send(router, line, &headers, "{}").await
}

const JSON: (&str, &str) = ("content-type", "application/json");

async fn sign_in(router: &Router, body: Value) -> Answer {
    let headers = [JSON, ("origin", "http://127.0.0.1:8081"), ("sec-fetch-site", "same-origin")];
    send(router, "POST /v1/session", &headers, &body.to_string()).await
}

#[tokio::test]
async fn without_a_credential_admin_routes_are_401_with_what_to_do_also_from_loopback() {
    let router = guarded_planes(app());
    for line in
        ["GET /v1/rules", "POST /v1/rules", "DELETE /v1/keys/global", "GET /v1/events", "GET /metrics"]
    {
        let answer = send(&router, line, &[JSON], "{}").await;
        assert_eq!(answer.status, 401, "{line}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
        assert!(answer.detail().contains("tollgate dashboard"), "{}", answer.detail());
    }
    for line in ["GET /livez", "GET /readyz", "GET /", "POST /v1/check"] {
        assert_eq!(send(&router, line, &[], "{}").await.status, 200, "{line}");
    }
}

#[tokio::test]
async fn a_token_of_another_role_gets_403_with_the_role_that_is_needed() {
    let router = guarded_planes(app());
    for (line, token, status) in [
        ("GET /v1/rules", "r", 200),
        ("GET /v1/rules", "w", 200),
        ("GET /v1/rules", "s", 403),
        ("POST /v1/explain", "r", 200),
        ("DELETE /v1/keys/global", "r", 403),
        ("POST /v1/playground", "r", 403),
        ("POST /v1/refund", "r", 403),
        ("POST /v1/refund", "s", 200),
        ("POST /v1/refund", "w", 200),
    ] {
        assert_eq!(as_token(&router, line, token).await.status, status, "{line} as {token}");
    }
    let answer = as_token(&router, "DELETE /v1/keys/global", "r").await;
    assert_eq!(
        answer.detail(),
        "the token `board` has the role `read`; this needs one with the role `write`"
    );
    assert_eq!(send(&router, "POST /v1/refund", &[JSON], "{}").await.status, 401, "never open");
    assert_eq!(send(&router, "POST /v1/settle", &[JSON], "{}").await.status, 401, "never open");
}

#[tokio::test]
async fn checks_are_open_until_there_is_a_token_with_the_role_check() {
    let open = guarded_planes(app());
    assert_eq!(send(&open, "POST /v1/check", &[("authorization", "Bearer unknown")], "{}").await.status, 200);
    let closed = guarded_planes(app_of(&["app:check:c", "ops:write:w", "board:read:r", "batch:settle:s"]));
    assert_eq!(send(&closed, "POST /v1/check", &[], "{}").await.status, 401);
    for (token, status) in [("c", 200), ("s", 200), ("w", 200), ("r", 403)] {
        assert_eq!(as_token(&closed, "POST /v1/check", token).await.status, status, "{token}");
    }
    assert_eq!(as_token(&closed, "POST /v1/refund", "c").await.status, 403);
}

#[tokio::test]
async fn a_login_link_is_exchanged_once_for_a_session_of_its_token() {
    let app = app();
    let router = guarded_planes(app.clone());
    let path = app.own_login_path().unwrap();
    let code = path.strip_prefix("/#/login/").unwrap();
    let signed_in = sign_in(&router, json!({ "code": code })).await;
    assert_eq!((signed_in.status, &signed_in.body), (200, &json!({"name": "ops", "role": "write"})));
    let cookie = signed_in.headers["set-cookie"].to_str().unwrap();
    assert!(cookie.starts_with("tollgate-session-8081="), "{cookie}");
    assert!(cookie.ends_with("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"), "{cookie}");
    let cookie = signed_in.cookie();
    let session = send(&router, "GET /v1/session", &[("cookie", &cookie)], "").await;
    assert_eq!((session.status, &session.body["name"]), (200, &json!("ops")));
    let again = sign_in(&router, json!({ "code": code })).await;
    assert!(again.status == 401 && again.detail().contains("used up"), "{}", again.detail());

    let own = [("cookie", &*cookie), ("sec-fetch-site", "same-origin")];
    assert_eq!(send(&router, "DELETE /v1/session", &own, "").await.status, 204);
    let ended = send(&router, "GET /v1/session", &own, "").await;
    assert!(ended.status == 401 && ended.detail().contains("has ended"), "{}", ended.detail());
}

#[tokio::test]
async fn links_end_after_ten_minutes_and_sessions_after_twelve_hours() {
    let app = app();
    let (router, clock) = (guarded_planes(app.clone()), app.limiter().clock().clone());
    let start = clock.now();
    let late = as_token(&router, "POST /v1/login-link", "r").await.body;
    assert_eq!(late["expires_in_ms"], 600_000);
    let path = late["path"].as_str().unwrap().strip_prefix("/#/login/").unwrap();
    let cookie = sign_in(&router, json!({ "token": format!("r-{SECRET}") })).await.cookie();
    clock.set(start.after(CODE_LIFETIME));
    assert_eq!(sign_in(&router, json!({ "code": path })).await.status, 401);
    let status = async || send(&router, "GET /v1/rules", &[("cookie", &cookie)], "").await.status;
    assert_eq!(status().await, 200);
    clock.set(start.after(SESSION_LIFETIME));
    assert_eq!(status().await, 401);
}

#[tokio::test]
async fn a_session_has_the_role_of_its_token() {
    let router = guarded_planes(app());
    let cookie = sign_in(&router, json!({ "token": format!("r-{SECRET}") })).await.cookie();
    let own = [JSON, ("cookie", &*cookie), ("sec-fetch-site", "same-origin")];
    assert_eq!(send(&router, "GET /v1/stats", &own, "").await.status, 200);
    assert_eq!(send(&router, "POST /v1/explain", &own, "{}").await.status, 200);
    assert_eq!(send(&router, "POST /v1/playground", &own, "{}").await.status, 403);
    let settle = sign_in(&router, json!({ "token": format!("s-{SECRET}") })).await;
    assert!(settle.status == 403 && settle.detail().contains("`read` or `write`"), "{}", settle.detail());
    assert_eq!(
        send(&router, "POST /v1/refund", &own, "{}").await.status,
        401,
        "the data plane has no sessions"
    );
}

#[tokio::test]
async fn a_session_is_used_by_its_own_page_only() {
    let router = guarded_planes(app());
    let cookie = sign_in(&router, json!({ "token": format!("w-{SECRET}") })).await.cookie();
    let status = async |line: &str, headers: &[(&str, &str)]| {
        let own = [("cookie", &*cookie), JSON];
        send(&router, line, &[&own, headers].concat(), r#"{"key": "k", "limit": "5/s"}"#).await.status
    };
    let (read, change) = ("GET /v1/rules", "POST /v1/playground");
    for (headers, reads, changes) in [
        (&[("sec-fetch-site", "same-origin")][..], 200, 200),
        (&[("origin", "http://127.0.0.1:8081")], 200, 200),
        (&[("sec-fetch-site", "none")], 200, 403),
        (&[], 200, 403),
        (&[("sec-fetch-site", "same-site"), ("origin", "http://127.0.0.1:8081")], 403, 403),
        (&[("sec-fetch-site", "cross-site")], 403, 403),
        (&[("origin", "http://127.0.0.1:3000")], 403, 403),
        (&[("origin", "https://evil.example")], 403, 403),
        (&[("origin", "null")], 403, 403),
    ] {
        assert_eq!(status(read, headers).await, reads, "{headers:?}");
        assert_eq!(status(change, headers).await, changes, "{headers:?}");
    }
}

#[tokio::test]
async fn a_page_whose_name_resolves_to_this_machine_gets_nothing() {
    let router = guarded_planes(app());
    let status = async |host: &str| {
        let body = json!({ "token": format!("w-{SECRET}") }).to_string();
        let page = [JSON, ("host", host), ("origin", &*format!("http://{host}"))];
        let login = send(&router, "POST /v1/session", &page, &body).await;
        if login.status == 200 {
            let page = [("host", host), ("cookie", &*login.cookie())];
            assert_eq!(send(&router, "GET /v1/rules", &page, "").await.status, 200, "{host}");
        }
        login.status
    };
    for host in
        ["localhost", "LocalHost:8081", "127.0.0.1", "[::1]:8081", "192.0.2.7:8081", "gate.example:8081"]
    {
        assert_eq!(status(host).await, 200, "{host}");
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "[::ffff:7f00:1].evil",
        "gate.example.evil",
        "localhost@evil.example",
        "evil@localhost",
        "2130706433",
        "",
    ] {
        assert_eq!(status(host).await, 421, "{host}");
    }
    let token = bearer_of("w");
    let named = [("host", "node-1.internal"), ("authorization", &*token)];
    assert_eq!(send(&router, "GET /v1/rules", &named, "").await.status, 200, "a token is sent on purpose");
}

#[tokio::test]
async fn a_change_is_json() {
    let router = guarded_planes(app());
    let token = bearer_of("w");
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""] {
        let headers = [("authorization", &*token), ("content-type", kind)];
        assert_eq!(send(&router, "POST /v1/playground", &headers, "{}").await.status, 415, "{kind}");
        assert_eq!(
            send(&router, "POST /v1/session", &[("content-type", kind)], "{}").await.status,
            415,
            "{kind}"
        );
    }
    let headers = [("authorization", &*token), ("content-type", "Application/JSON; charset=utf-8")];
    assert_ne!(send(&router, "POST /v1/playground", &headers, "{}").await.status, 415);
}

#[tokio::test]
async fn a_cookie_set_over_https_is_secure() {
    let router = guarded_planes(app());
    let headers = [JSON, ("host", "gate.example"), ("origin", "https://gate.example")];
    let body = json!({ "token": format!("w-{SECRET}") }).to_string();
    let answer = send(&router, "POST /v1/session", &headers, &body).await;
    let cookie = answer.headers["set-cookie"].to_str().unwrap();
    assert!(cookie.starts_with("tollgate-session=") && cookie.ends_with("; Secure"), "{cookie}");
}

#[tokio::test]
async fn after_ten_wrong_secrets_from_one_network_the_next_has_to_wait_and_a_right_one_has_not() {
    let router = guarded_planes(app());
    for _ in 0..5 {
        assert_eq!(as_token(&router, "GET /v1/rules", "wrong").await.status, 401);
        assert_eq!(sign_in(&router, json!({ "code": "wrong" })).await.status, 401);
    }
    let answer = as_token(&router, "GET /v1/rules", "wrong").await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(sign_in(&router, json!({ "token": "wrong" })).await.status, 429);
    assert_eq!(as_token(&router, "GET /v1/rules", "r").await.status, 200);
}
