//! Forward-auth behind real proxies: nginx, Caddy and HAProxy, configured by what the guide says.
//!
//! Each test takes the blocks of its page, puts in ports that are free, and sends requests through the proxy to a small
//! application.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod application;
mod faults;
mod proxy;

use std::net::Ipv4Addr;

use application::Application;
use proxy::{Kind, Proxy, Setup, ask, header, send, status};
use tollgate_tests::poll;

/// Nothing comes back while a test runs, but on one path; one path is free, and on one the second request is held for a second
/// and a half.
const RULES: &str = r#"
rules:
  - { name: per-address, key: "ip:{ip}", limit: 1/h burst 2, when: { endpoint: "/api/**" } }
  - { name: refilled, key: "ip:{ip}", limit: 20/min burst 1, when: { endpoint: /refilled } }
  - { name: banned, key: "ip:{ip}", action: deny, when: { endpoint: /banned } }
  - { name: jobs, key: "jobs:{ip}", limit: 40/min queue 2, when: { endpoint: /jobs } }
"#;

const ONE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Everything a client may try to be somebody else, or elsewhere.
fn lies(n: u8) -> String {
    format!(
        "x-forwarded-for: 198.51.100.{n}\r\nforwarded: for=198.51.100.{n}\r\nx-real-ip: 198.51.100.{n}\r\n\
         x-original-uri: /free\r\nx-forwarded-uri: /free\r\nx-forwarded-method: DELETE\r\nx-original-method: DELETE\r\n\
         x-original-url: http://example.com/free\r\n"
    )
}

/// What holds behind every proxy.
async fn limits_hold(kind: Kind) {
    let application = Application::start();
    let mut proxy = Proxy::start(&Setup { rules: RULES, ..Setup::new(kind) }, &application).await;
    for left in ["1", "0"] {
        let answer = ask(proxy.port, ONE, "GET /api/a?x=1", "").await;
        assert_eq!((status(&answer), header(&answer, "x-ratelimit-remaining")), (200, left), "{answer}");
        assert_eq!(header(&answer, "ratelimit-policy"), r#""per-address";q=2;w=7200"#, "{answer}");
        assert!(answer.ends_with("hello"), "{answer}");
    }
    let answer = ask(proxy.port, ONE, "POST /api/b", "").await;
    assert_eq!((status(&answer), header(&answer, "x-ratelimit-remaining")), (429, "0"), "{answer}");
    assert_eq!(header(&answer, "content-type"), "application/problem+json", "{answer}");
    let wait: u64 = header(&answer, "retry-after").parse().unwrap();
    assert!((3_000..=3_600).contains(&wait) && answer.contains("quota-exceeded"), "{answer}");
    for n in 0..5 {
        let answer = ask(proxy.port, ONE, "GET /api/a", &lies(n)).await;
        assert_eq!(status(&answer), 429, "one client is one bucket: {answer}");
    }
    assert_eq!(application.calls(), 2, "who is refused does not get through");
    assert_eq!(
        status(&ask(proxy.port, OTHER, "GET /api/a", "").await),
        200,
        "others have buckets of their own"
    );
    let free = ask(proxy.port, ONE, "GET /free", "").await;
    assert_eq!((status(&free), header(&free, "x-ratelimit-limit")), (200, ""), "{free}");
    assert!(!free.to_lowercase().contains("ratelimit"), "no empty headers: {free}");
    let old = send(proxy.port, ONE, "GET /free HTTP/1.0\r\n\r\n").await;
    assert_eq!(status(&old), 200, "HTTP/1.0 without a host: {old}");
    assert_eq!(status(&ask(proxy.port, ONE, "GET /banned", "").await), 403);
    for _ in 0..2 {
        let held = ask(proxy.port, ONE, "GET /jobs", "").await;
        assert_eq!(status(&held), 200, "{held}");
        assert!(!header(&held, "x-ratelimit-limit").is_empty(), "it did not wait for the answer: {held}");
    }
    for expected in [429, 200] {
        poll::until("a limit that is used up and refilled", async || {
            (status(&ask(proxy.port, ONE, "GET /refilled", "").await) == expected).then_some(())
        })
        .await;
    }
    proxy.stop_tollgate();
    let passed = ask(proxy.port, ONE, "GET /api/a", "").await;
    assert_eq!(status(&passed), 200, "requests pass while tollgate is down: {passed}");
}

#[tokio::test]
async fn behind_nginx() {
    limits_hold(Kind::Nginx).await;
}

#[tokio::test]
async fn behind_caddy() {
    limits_hold(Kind::Caddy).await;
}

#[tokio::test]
async fn behind_haproxy() {
    limits_hold(Kind::Haproxy).await;
}

/// What the controller's template writes, with the annotations of the page.
#[tokio::test]
async fn behind_ingress_nginx() {
    let rules = "rules: [{ name: login, key: 'ip:{ip}', limit: 2/h, when: { endpoint: /login } }]";
    let application = Application::start();
    let proxy = Proxy::start(&Setup { rules, ..Setup::new(Kind::IngressNginx) }, &application).await;
    let mut statuses = Vec::new();
    for (line, headers) in [
        ("POST /login", ""),
        ("POST /login?x=1", "x-original-url: http://example.com/free\r\n"),
        ("POST /login", ""),
        ("POST /login#", "x-original-method: GET\r\n"),
        ("POST /login", "x-forwarded-uri: /free\r\n"),
        ("POST /login", "x-control: a\u{1}b\r\n"),
        ("GET /free", ""),
    ] {
        statuses.push(status(&ask(proxy.port, ONE, line, headers).await));
    }
    assert_eq!(statuses, [200, 200, 403, 403, 403, 403, 200]);
}

/// Whatever is asked through a proxy in front of the data plane, however it is spelt, is no route of the admin plane.
#[tokio::test]
async fn a_proxy_that_passes_everything_on_reaches_no_admin_route() {
    let application = Application::start();
    let proxy = Proxy::start(&Setup::new(Kind::PlainNginx), &application).await;
    let check =
        "POST /v1/check HTTP/1.1\r\nhost: example.com\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
    let answer = send(proxy.port, ONE, check).await;
    assert_eq!(status(&answer), 200, "{answer}");
    // With the token that opens them all: the routes are not there, whoever asks.
    let token = proxy.token_lines();
    let get =
        |path: &str| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{token}\r\n");
    let document = send(proxy.listener("admin"), ONE, &get("/openapi.json")).await;
    let (_, document) = document.split_once("\r\n\r\n").unwrap();
    let document: serde_json::Value = serde_json::from_str(document).unwrap();
    let mut lines = ["/", "/metrics", "/assets/app.js"].map(|path| format!("GET {path}")).to_vec();
    for (path, operations) in document["paths"].as_object().unwrap() {
        if ["/livez", "/readyz", "/openapi.json"].contains(&path.as_str()) {
            continue;
        }
        let path = path.replace(['{', '}'], "");
        for method in operations.as_object().unwrap().keys().map(|method| method.to_uppercase()) {
            lines.push(format!("{method} {path}"));
            lines.push(format!("{method} /{path}"));
            lines.push(format!("{method} /v1/check/../..{path}"));
            lines.push(format!("{method} {}", path.replacen("/v1/", "/v1/%2e/", 1).replace('r', "%72")));
        }
    }
    assert!(lines.len() > 60, "{}", lines.len());
    for line in lines {
        let answer = ask(proxy.port, ONE, &line, &token).await;
        assert_eq!(status(&answer), 404, "{line}: {answer}");
        assert!(answer.contains("at the address of --admin"), "{line}: {answer}");
    }
}
