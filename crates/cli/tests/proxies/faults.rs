//! What clients may provoke, and what happens while tollgate gives no answer.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::{fs, thread};

use tokio::net::TcpStream;
use tokio::time::{Duration, Instant};
use tollgate_tests::poll;
use tollgate_tests::ports::free_port;
use tollgate_tests::redis_server::RedisServer;
use tollgate_tests::scratch::Scratch;
use tollgate_tests::signals::Signal;

use crate::application::Application;
use crate::proxy::{Kind, Proxy, Setup, ask, header, send, status};
use crate::{ONE, OTHER};

/// Requests to `/login` that a tollgate, or the way to it, may have trouble with.
fn hostile() -> Vec<String> {
    let fields = |count: usize| (0..count).map(|n| format!("x-{n}: {n}\r\n")).collect::<String>();
    let mut heads = Vec::new();
    let mut add = |line: &str, host: &str, more: &str| {
        heads.push(format!("{line} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{more}\r\n"));
    };
    for target in ["/login#", "/login#/free", "/login%2F", "/x/..%2flogin", "//login/.", "/%6cogin?a#b"] {
        add(&format!("POST {target}"), "example.com", "");
    }
    for count in [90, 95, 96, 97, 98, 99, 100, 101, 105] {
        add("POST /login", "example.com", &fields(count));
    }
    for control in ['\u{1}', '\u{7f}', '\u{1b}'] {
        add("POST /login", "example.com", &format!("x-user-id: a{control}b\r\n"));
    }
    let long = "a".repeat(4_000);
    add("POST /login", &long, &format!("x-user-id: {long}\r\n"));
    add("POST /login", &"a".repeat(7_000), &format!("x-user-id: {}\r\n", "b".repeat(7_500)));
    add(&format!("POST /login?{}", "a".repeat(7_500)), &"a".repeat(7_000), "");
    add(
        "POST /login",
        "example.com",
        &format!("x-user-id: {}\r\nx-other: {}\r\n", "a".repeat(7_500), "b".repeat(7_500)),
    );
    add("POST /login", "a b", "");
    add("POST /login", "example.com", "x-original-uri: /free\r\nx-forwarded-uri: /free\r\n");
    heads
}

/// Headers that `[identify]` reads are sent on; they are the client's.
const IDENTIFY: [(&str, &str); 2] = [
    ("# proxy_set_header X-User-Id        $http_x_user_id;", "proxy_set_header X-User-Id $http_x_user_id;"),
    ("local IDENTIFY = {}", "local IDENTIFY = { \"x-user-id\" }"),
];

async fn used_up_limit_holds(kind: Kind, changes: &[(&str, &str)]) {
    let rules = "rules: [{ name: login, key: 'ip:{ip}', limit: 1/h, when: { endpoint: /login } }]";
    let flags = ["--identify-headers", "x-user-id=user_id"];
    let application = Application::start();
    let setup = Setup { rules, changes, flags: &flags, ..Setup::new(kind) };
    let mut proxy = Proxy::start(&setup, &application).await;
    assert_eq!(status(&ask(proxy.port, ONE, "POST /login", "").await), 200);
    assert_eq!(status(&ask(proxy.port, ONE, "POST /login", "").await), 429);
    // Caddy sends `#` on as `%23`, which is another path for the application too.
    let hostile = hostile().into_iter().filter(|head| kind != Kind::Caddy || !head.contains('#'));
    for head in hostile {
        for _ in 0..3 {
            let answer = send(proxy.port, ONE, &head).await;
            let shown: String = head.chars().take(300).collect();
            assert!((400..500).contains(&status(&answer)), "{kind:?}: {shown:?}: {answer}");
        }
    }
    proxy.assert_running();
    assert_eq!(application.calls(), 1, "{kind:?}: no request passed");
    assert_eq!(status(&ask(proxy.port, OTHER, "POST /login", "").await), 200, "{kind:?}: others are served");
}

#[tokio::test]
async fn a_client_cannot_provoke_its_way_past_a_used_up_limit_behind_nginx() {
    used_up_limit_holds(Kind::Nginx, &IDENTIFY).await;
}

#[tokio::test]
async fn a_client_cannot_provoke_its_way_past_a_used_up_limit_behind_caddy() {
    used_up_limit_holds(Kind::Caddy, &IDENTIFY).await;
}

#[tokio::test]
async fn a_client_cannot_provoke_its_way_past_a_used_up_limit_behind_haproxy() {
    used_up_limit_holds(Kind::Haproxy, &IDENTIFY).await;
}

/// Also where an operator sends all headers on.
#[tokio::test]
async fn heads_that_tollgate_rejects_are_4xx_for_the_client_of_nginx() {
    let all = [("proxy_pass_request_headers off;", "proxy_pass_request_headers on;")];
    used_up_limit_holds(Kind::Nginx, &all).await;
    let application = Application::start();
    let setup =
        Setup { changes: &all, rules: "rules: [{ key: global, limit: 1000/s }]", ..Setup::new(Kind::Nginx) };
    let proxy = Proxy::start(&setup, &application).await;
    let long = "a".repeat(7_500);
    let many: String = (0..100).map(|n| format!("x-{n}: {n}\r\n")).collect();
    for (headers, expected) in [
        (format!("x-a: {long}\r\nx-b: {long}\r\nx-c: {long}\r\n"), 431),
        (many, 431),
        ("x-a: a\u{1}b\r\n".to_owned(), 400),
        (String::new(), 200),
    ] {
        let answer = ask(proxy.port, ONE, "GET /", &headers).await;
        let shown: String = headers.chars().take(30).collect();
        assert_eq!(status(&answer), expected, "{shown:?}: {answer}");
        if expected != 200 {
            assert_eq!(header(&answer, "content-type"), "application/problem+json", "{answer}");
        }
    }
}

#[tokio::test]
async fn long_names_of_many_rules_do_not_let_requests_pass() {
    let letters: String = (0..18)
        .map(|n| format!("  - {{ name: '{n:02}{}', key: 'ip:{{ip}}', limit: 3/h }}\n", "x".repeat(98)))
        .collect();
    let other: String = (0..4)
        .map(|n| format!("  - {{ name: '{n}{}', key: 'ip:{{ip}}', limit: 3/h }}\n", "\u{1f600}".repeat(100)))
        .collect();
    for kind in Kind::WITH_A_CHOICE {
        for rules in [&letters, &other] {
            let rules = format!("rules:\n{rules}");
            let application = Application::start();
            let proxy = Proxy::start(&Setup { rules: &rules, ..Setup::new(kind) }, &application).await;
            let mut statuses = Vec::new();
            for _ in 0..20 {
                statuses.push(status(&ask(proxy.port, ONE, "GET /", "").await));
            }
            let expected = [&[200; 3][..], &[429; 17]].concat();
            assert_eq!(statuses, expected, "{kind:?}");
            assert_eq!(application.calls(), 3, "{kind:?}");
        }
    }
}

#[tokio::test]
async fn a_tollgate_that_hangs_delays_a_request_by_the_timeout_and_then_it_passes() {
    for kind in Kind::WITH_A_CHOICE {
        let application = Application::start();
        let proxy = Proxy::start(&Setup { timeouts: true, ..Setup::new(kind) }, &application).await;
        proxy.signal_tollgate(Signal::Stop);
        for _ in 0..3 {
            let began = Instant::now();
            let answer = ask(proxy.port, ONE, "GET /", "").await;
            assert_eq!(status(&answer), 200, "{kind:?}: {answer}");
            assert!(began.elapsed() < Duration::from_secs(10), "{kind:?}: {:?}", began.elapsed());
        }
        proxy.signal_tollgate(Signal::Continue);
        poll::until("a limit that holds again", async || {
            (status(&ask(proxy.port, ONE, "GET /", "").await) == 429).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn requests_are_refused_while_tollgate_gives_no_answer_where_that_is_chosen() {
    for kind in Kind::WITH_A_CHOICE {
        let application = Application::start();
        let setup = Setup { timeouts: true, fail_closed: true, ..Setup::new(kind) };
        let mut proxy = Proxy::start(&setup, &application).await;
        proxy.signal_tollgate(Signal::Stop);
        let hangs = ask(proxy.port, ONE, "GET /", "").await;
        proxy.stop_tollgate();
        let down = ask(proxy.port, ONE, "GET /", "").await;
        assert_eq!((status(&hangs), status(&down)), (503, 503), "{kind:?}: {hangs}\n{down}");
        assert_eq!(header(&down, "content-type"), "application/problem+json", "{down}");
        assert_eq!(application.calls(), 0, "{kind:?}");
    }
}

/// A server that answers every request with a head that no proxy takes, or with nothing.
fn broken(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
                head.push(byte[0]);
            }
            let is_check = head.starts_with(b"GET /livez");
            let fine = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            let _ = stream.write_all(if is_check { fine } else { &answer });
        }
    });
    address
}

#[tokio::test]
async fn an_answer_that_a_proxy_cannot_use_never_lets_a_request_pass() {
    let big =
        format!("HTTP/1.1 200 OK\r\nx: {}\r\ncontent-length: 0\r\n\r\n", "a".repeat(20 << 10)).into_bytes();
    let bad_gateway = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec();
    for (kind, answers) in [
        (Kind::Nginx, vec![big.clone(), Vec::new()]),
        (Kind::Haproxy, vec![big, b"what?\r\n\r\n".to_vec()]),
        (Kind::Caddy, vec![Vec::new(), b"what?\r\n\r\n".to_vec()]),
        // The words of a load balancer between the two that met such an answer.
        (Kind::Nginx, vec![bad_gateway.clone()]),
        (Kind::Haproxy, vec![bad_gateway.clone()]),
        (Kind::Caddy, vec![bad_gateway]),
    ] {
        for answer in answers {
            let (application, address) = (Application::start(), broken(answer));
            let proxy =
                Proxy::start(&Setup { instead: Some(&address), ..Setup::new(kind) }, &application).await;
            for _ in 0..3 {
                let answer = ask(proxy.port, ONE, "GET /", "").await;
                assert_eq!(status(&answer), 503, "{kind:?}: {answer}");
            }
            assert_eq!(application.calls(), 0, "{kind:?}");
        }
    }
}

/// A load balancer whose only tollgate is down: it answers 503 itself.
struct LoadBalancer {
    process: Child,
    address: String,
    _folder: Scratch,
}

impl LoadBalancer {
    async fn start() -> Self {
        let (port, down, folder) = (free_port(), free_port(), Scratch::new("load-balancer"));
        let text = format!(
            "defaults\n mode http\n timeout connect 1s\n timeout client 30s\n timeout server 30s\n\
             listen tollgates\n bind 127.0.0.1:{port}\n server one 127.0.0.1:{down}\n"
        );
        fs::write(folder.path().join("haproxy.cfg"), text).unwrap();
        let mut process = Command::new("haproxy")
            .args(["-db", "-f", "haproxy.cfg"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        poll::until("a load balancer that listens", async || {
            assert!(process.try_wait().unwrap().is_none(), "it does not start");
            TcpStream::connect((ONE, port)).await.ok()
        })
        .await;
        LoadBalancer { process, address: format!("127.0.0.1:{port}"), _folder: folder }
    }
}

impl Drop for LoadBalancer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn a_5xx_that_is_not_a_decision_follows_the_failure_choice() {
    let load_balancer = LoadBalancer::start().await;
    // What tollgate answers when a request panics.
    let body = r#"{"type":"about:blank","title":"something went wrong here","status":500}"#;
    let panicked = format!(
        "HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/problem+json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let panics = broken(panicked.into_bytes());
    for kind in Kind::WITH_A_CHOICE {
        for instead in [&load_balancer.address, &panics] {
            for (fail_closed, expected, calls) in [(false, 200, 3), (true, 503, 0)] {
                let application = Application::start();
                let setup = Setup { instead: Some(instead), fail_closed, ..Setup::new(kind) };
                let proxy = Proxy::start(&setup, &application).await;
                for _ in 0..3 {
                    let answer = ask(proxy.port, ONE, "GET /", "").await;
                    assert_eq!(status(&answer), expected, "{kind:?}, closed {fail_closed}: {answer}");
                    if fail_closed {
                        assert_eq!(header(&answer, "content-type"), "application/problem+json", "{answer}");
                    }
                }
                assert_eq!(application.calls(), calls, "{kind:?}, closed {fail_closed}");
            }
        }
    }
}

/// The failure choice of a proxy is for a tollgate that gives no decision. This is a decision.
#[tokio::test]
async fn a_rule_that_fails_closed_refuses_behind_every_proxy_whatever_its_failure_choice() {
    let rules = "rules:
  - { name: login, key: 'ip:{ip}', limit: 100/h, when: { endpoint: /login }, on_store_failure: closed }
  - { name: others, key: 'ip:{ip}', limit: 100/h, when: { endpoint: /free }, on_store_failure: open }";
    for (kind, fail_closed, expected) in [
        (Kind::Nginx, false, 503),
        (Kind::Nginx, true, 503),
        (Kind::Haproxy, false, 503),
        (Kind::Haproxy, true, 503),
        (Kind::Caddy, false, 503),
        (Kind::Caddy, true, 503),
        (Kind::IngressNginx, false, 403),
    ] {
        let mut redis = RedisServer::start().await;
        let application = Application::start();
        let url = redis.url();
        // A busy machine is no reason to decide without Redis.
        let flags = ["--store", &url, "--store-deadline-ms", "5000"];
        let setup = Setup { rules, flags: &flags, fail_closed, ..Setup::new(kind) };
        let proxy = Proxy::start(&setup, &application).await;
        assert_eq!(status(&ask(proxy.port, ONE, "POST /login", "").await), 200, "{kind:?}");
        redis.kill();
        for _ in 0..3 {
            let refused = ask(proxy.port, ONE, "POST /login", "").await;
            assert_eq!(status(&refused), expected, "{kind:?}, closed {fail_closed}: {refused}");
            if expected == 503 {
                assert_eq!(header(&refused, "content-type"), "application/problem+json", "{refused}");
                assert_eq!(header(&refused, "retry-after"), "1", "{refused}");
                assert!(refused.contains("#temporary-reduced-capacity"), "{refused}");
            }
            let passed = ask(proxy.port, ONE, "POST /free", "").await;
            assert_eq!(status(&passed), 200, "{kind:?}, closed {fail_closed}: {passed}");
        }
        assert_eq!(application.calls(), 4, "{kind:?}, closed {fail_closed}");
    }
}

#[tokio::test]
async fn a_proxy_that_is_not_trusted_is_named_in_the_log_and_counted() {
    for kind in Kind::WITH_A_CHOICE {
        let application = Application::start();
        let setup = Setup { flags: &["--trusted-proxies", "192.0.2.1"], ..Setup::new(kind) };
        let proxy = Proxy::start(&setup, &application).await;
        for _ in 0..5 {
            let answer = ask(proxy.port, ONE, "GET /", "").await;
            assert_eq!(status(&answer), 401, "{kind:?}: {answer}");
        }
        assert_eq!(application.calls(), 0, "{kind:?}");
        let rejected = proxy.metric(r#"tollgate_authz_rejected_total{reason="untrusted_proxy"}"#).await;
        assert_eq!(rejected, 5, "{kind:?}");
        let log = proxy.tollgate_log();
        let warnings: Vec<&str> = log.lines().filter(|line| line.contains("not trusted")).collect();
        let names_the_peer = |line: &&str| line.contains("127.0.0.1") && line.contains("WARN");
        assert!(warnings.first().is_some_and(names_the_peer), "{kind:?}: {log}");
        assert!(warnings.len() <= 3, "at most one in ten seconds: {log}");
    }
}

#[tokio::test]
async fn connections_to_tollgate_are_used_again() {
    for kind in Kind::WITH_A_CHOICE {
        let rules = "rules: [{ name: per-address, key: 'ip:{ip}', limit: 5/h }]";
        let application = Application::start();
        // Checks of the server's health are connections of their own.
        let changes = [(" check inter 2s fall 8 rise 1", "")];
        let proxy = Proxy::start(&Setup { rules, changes: &changes, ..Setup::new(kind) }, &application).await;
        let before = proxy.metric("tollgate_connections_total").await;
        for _ in 0..60 {
            ask(proxy.port, ONE, "GET /", "").await;
        }
        let made = proxy.metric("tollgate_connections_total").await - before - 1;
        assert!(made <= 10, "{kind:?}: {made} connections for 60 requests");
        assert_eq!(application.calls(), 5, "{kind:?}");
    }
}
