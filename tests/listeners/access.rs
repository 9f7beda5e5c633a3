//! Who may see and change state once tokens are set.

use std::fs;

use tollgate_server::{Access, Tokens};
use tollgate_tests::poll::until;
use tollgate_tests::scratch::Scratch;

use crate::server::{Options, Running, check};

const READ: &str = "read-0123456789abcdef";
const WRITE: &str = "write-0123456789abcdef";

fn request(method: &str, path: &str, token: Option<&str>) -> String {
    let token = token.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{token}content-length: 0\r\n\r\n"
    )
}

async fn with_tokens(scratch: &Scratch) -> Running {
    let file = scratch.path().join("tokens");
    fs::write(&file, format!("read:{READ}\nwrite:{WRITE}\n")).unwrap();
    let access = Access { admin: Some(Tokens::of(&file).unwrap()), check: None };
    Running::start(Options { access, ..Options::default() }).await
}

/// The status of an answer.
async fn status(server: &Running, method: &str, path: &str, token: Option<&str>) -> u16 {
    let request = request(method, path, token);
    let is_check = path == "/v1/check";
    let answer = if is_check { server.ask(&request).await } else { server.ask_admin(&request).await };
    answer[9..12].parse().unwrap()
}

#[tokio::test]
async fn without_a_token_every_admin_route_is_401_and_a_reader_changes_nothing() {
    let scratch = Scratch::new("listener-tokens");
    let server = with_tokens(&scratch).await;
    let routes = [
        ("GET", "/v1/rules"),
        ("POST", "/v1/rules"),
        ("GET", "/v1/rules/1"),
        ("PUT", "/v1/rules/1"),
        ("PATCH", "/v1/rules/1"),
        ("DELETE", "/v1/rules/1"),
        ("POST", "/v1/rules/preview"),
        ("GET", "/v1/rules/history"),
        ("POST", "/v1/rules/history/1/undo"),
        ("GET", "/v1/violations"),
    ];
    for (method, path) in routes {
        assert_eq!(status(&server, method, path, None).await, 401, "{method} {path}");
        let as_reader = status(&server, method, path, Some(READ)).await;
        let changes = method != "GET" && path != "/v1/rules/preview";
        assert_eq!(as_reader == 403, changes, "{method} {path}: {as_reader}");
        let as_writer = status(&server, method, path, Some(WRITE)).await;
        assert!(as_writer != 401 && as_writer != 403, "{method} {path}: {as_writer}");
    }
    let answer = server.ask_admin(&request("GET", "/v1/rules", None)).await;
    assert!(answer.contains("\r\nwww-authenticate: Bearer\r\n"), "{answer}");
    assert!(server.serves().await, "checks need none");
    server.stop().await;
}

#[tokio::test]
async fn whoever_guesses_tokens_has_to_wait_and_is_told_how_long() {
    let scratch = Scratch::new("listener-guesses");
    let server = with_tokens(&scratch).await;
    for _ in 0..10 {
        assert_eq!(status(&server, "GET", "/v1/rules", Some("guess-guess-guess")).await, 401);
    }
    let answer = server.ask_admin(&request("GET", "/v1/rules", Some("guess-guess-guess"))).await;
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("\r\nretry-after: "), "{answer}");
    let right = status(&server, "GET", "/v1/rules", Some(WRITE)).await;
    assert_eq!(right, 200, "whoever shares the address and knows a token is not shut out");
    assert!(server.serves().await, "checks go on");
    server.stop().await;
}

#[tokio::test]
async fn checks_may_be_given_a_token_of_their_own() {
    let scratch = Scratch::new("listener-check-token");
    let (admin, app) = (scratch.path().join("admin"), scratch.path().join("check"));
    fs::write(&admin, format!("read:{READ}\nwrite:{WRITE}\n")).unwrap();
    fs::write(&app, "check-0123456789abcdef\n").unwrap();
    let access = Access { admin: Some(Tokens::of(&admin).unwrap()), check: Some(Tokens::of(&app).unwrap()) };
    let server = Running::start(Options { access, ..Options::default() }).await;
    let asked = async |token: &str| {
        let head = format!("authorization: Bearer {token}\r\n");
        server.ask(&check(&head)).await[9..12].parse::<u16>().unwrap()
    };
    assert_eq!(server.ask(&check("")).await[9..12], *"401");
    assert_eq!(asked("check-0123456789abcdef").await, 200);
    assert_eq!(asked(WRITE).await, 200);
    assert_eq!(asked(READ).await, 403);
    assert_eq!(status(&server, "GET", "/v1/rules", Some("check-0123456789abcdef")).await, 403);
    assert_eq!(status(&server, "GET", "/livez", None).await, 200);
    server.stop().await;
}

#[tokio::test]
async fn forward_auth_leaves_the_token_of_a_client_to_the_application() {
    let scratch = Scratch::new("listener-forward-auth");
    let file = scratch.path().join("check");
    fs::write(&file, "check-0123456789abcdef\n").unwrap();
    let access = Access { admin: None, check: Some(Tokens::of(&file).unwrap()) };
    let server = Running::start(Options { access, ..Options::default() }).await;
    let head = "x-forwarded-method: GET\r\nx-forwarded-uri: /\r\nauthorization: Bearer of.a.user\r\n";
    let asked = format!("GET /v1/authz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{head}\r\n");
    for _ in 0..12 {
        let answer = server.ask(&asked).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert_eq!(server.ask(&check("")).await[9..12], *"401", "checks are asked for one");
    server.stop().await;
}

#[tokio::test]
async fn a_token_that_is_replaced_is_known_without_a_restart() {
    let scratch = Scratch::new("listener-new-token");
    let server = with_tokens(&scratch).await;
    assert_eq!(status(&server, "GET", "/v1/rules", Some(READ)).await, 200);
    fs::write(scratch.path().join("tokens"), "read:renewed-0123456789abcdef\n").unwrap();
    // The old one costs no try for as long as it is known.
    let forgotten = async || (status(&server, "GET", "/v1/rules", Some(READ)).await == 401).then_some(());
    until("the old token to be forgotten", forgotten).await;
    assert_eq!(status(&server, "GET", "/v1/rules", Some("renewed-0123456789abcdef")).await, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_token_file_that_is_deleted_or_broken_revokes_all_its_tokens() {
    let scratch = Scratch::new("listener-no-file");
    let server = with_tokens(&scratch).await;
    let (file, lines) = (scratch.path().join("tokens"), format!("read:{READ}\nwrite:{WRITE}\n"));
    let reads = async || status(&server, "GET", "/v1/rules", Some(READ)).await;
    for broken in [None, Some("read:short\n"), Some("")] {
        match broken {
            None => fs::remove_file(&file).unwrap(),
            Some(text) => fs::write(&file, text).unwrap(),
        }
        until("the tokens to be revoked", async || (reads().await != 200).then_some(())).await;
        assert!(server.serves().await, "checks go on");
        fs::write(&file, &lines).unwrap();
        // After ten tries an unknown token is answered 429, a known one is not.
        until("the tokens to be known again", async || (reads().await == 200).then_some(())).await;
    }
    server.stop().await;
}

/// They are compared by their digests, all of them and in constant time; so nothing but the whole token is one.
#[tokio::test]
async fn neither_a_part_of_a_token_nor_more_than_it_is_a_token() {
    let scratch = Scratch::new("listener-part-of-token");
    let server = with_tokens(&scratch).await;
    let longer = format!("{WRITE}0");
    let last_differs = format!("{}0", &WRITE[..WRITE.len() - 1]);
    for wrong in [&WRITE[..WRITE.len() - 1], &WRITE[1..], &longer, &last_differs, &WRITE.to_uppercase()] {
        assert_eq!(status(&server, "GET", "/v1/rules", Some(wrong)).await, 401, "{wrong}");
    }
    assert_eq!(status(&server, "GET", "/v1/rules", Some(WRITE)).await, 200);
    server.stop().await;
}
