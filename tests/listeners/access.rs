//! Token files: what they open, and that a change to them is in effect within a second.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use tokio::io::AsyncWriteExt as _;
use tollgate_server::{Access, Tokens};
use tollgate_tests::poll::until;
use tollgate_tests::scratch::Scratch;

use crate::direct::read_one;
use crate::server::{Options, Running, ask, check};

pub(crate) const READ: &str = "read-0123456789abcdef";
pub(crate) const WRITE: &str = "write-0123456789abcdef";
const CHECK: &str = "check-0123456789abcdef";

/// One token that may look, and one that may change.
pub(crate) fn access() -> Access {
    let tokens = Tokens::parse(&lines()).unwrap();
    Access { tokens: vec![tokens], hosts: Vec::new() }
}

fn lines() -> String {
    format!("board:read:{READ}\nops:write:{WRITE}\n")
}

fn request(method: &str, path: &str, token: Option<&str>) -> String {
    let token = token.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{token}");
    format!("{head}content-type: application/json\r\ncontent-length: 0\r\n\r\n")
}

/// A server with the tokens of a file.
async fn with_file(scratch: &Scratch, text: &str) -> (Running, PathBuf) {
    let file = scratch.path().join("tokens");
    write(&file, text);
    let access = Access { tokens: vec![Tokens::file(&file).unwrap()], hosts: Vec::new() };
    (Running::start(Options { access, ..Options::default() }).await, file)
}

fn write(file: &PathBuf, text: &str) {
    let unfinished = file.with_extension("unfinished");
    fs::write(&unfinished, text).unwrap();
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(unfinished, file).unwrap();
}

/// The status of an answer.
async fn status(server: &Running, method: &str, path: &str, token: Option<&str>) -> u16 {
    let request = request(method, path, token);
    let is_check = path == "/v1/check";
    let answer = if is_check { server.ask(&request).await } else { server.ask_admin(&request).await };
    answer[9..12].parse().unwrap()
}

async fn reads(server: &Running) -> u16 {
    status(server, "GET", "/v1/rules", Some(READ)).await
}

#[tokio::test]
async fn whoever_guesses_tokens_has_to_wait_and_is_told_how_long() {
    let server = Running::start(Options { access: access(), ..Options::default() }).await;
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
async fn a_token_with_the_role_check_closes_the_checks_also_on_connections_that_are_open() {
    let scratch = Scratch::new("listener-check-token");
    let (server, file) = with_file(&scratch, &lines()).await;
    let mut kept = server.connect().await;
    kept.write_all(check("").replace("connection: close\r\n", "").as_bytes()).await.unwrap();
    let before = read_one(&mut kept).await;
    assert!(before.starts_with("HTTP/1.1 200"), "{before}");
    write(&file, &format!("{}app:check:{CHECK}\n", lines()));
    until("checks to need a token", async || (!server.serves().await).then_some(())).await;
    let asked = async |token: &str| {
        let head = format!("authorization: Bearer {token}\r\n");
        server.ask(&check(&head)).await[9..12].parse::<u16>().unwrap()
    };
    assert_eq!((asked(CHECK).await, asked(WRITE).await, asked(READ).await), (200, 200, 403));
    let after = ask(kept, &check("")).await;
    assert!(after.starts_with("HTTP/1.1 401"), "{after}");
    assert_eq!(status(&server, "GET", "/v1/rules", Some(CHECK)).await, 403);
    write(&file, &lines());
    until("the token to be revoked", async || (asked(CHECK).await != 200).then_some(())).await;
    assert!(!server.serves().await, "the checks stay closed without the last token that opened them");
    server.stop().await;
}

#[tokio::test]
async fn forward_auth_leaves_the_token_of_a_client_to_the_application() {
    let tokens = Tokens::parse(&format!("app:check:{CHECK}\n")).unwrap();
    let access = Access { tokens: vec![tokens], hosts: Vec::new() };
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
async fn a_token_that_is_replaced_is_known_without_a_restart_and_its_session_ends() {
    let scratch = Scratch::new("listener-new-token");
    let (server, file) = with_file(&scratch, &lines()).await;
    let body = format!(r#"{{"token": "{READ}"}}"#);
    let login = format!(
        "POST /v1/session HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = server.ask_admin(&login).await;
    let cookie = answer.split("set-cookie: ").nth(1).unwrap().split(';').next().unwrap();
    let asked =
        format!("GET /v1/rules HTTP/1.1\r\nhost: localhost\r\ncookie: {cookie}\r\nconnection: close\r\n\r\n");
    let by_session = async || server.ask_admin(&asked).await[9..12].parse::<u16>().unwrap();
    assert_eq!((reads(&server).await, by_session().await), (200, 200));
    write(&file, "board:read:renewed-0123456789abcdef\n");
    until("the old token to be revoked", async || (reads(&server).await == 401).then_some(())).await;
    assert_eq!(by_session().await, 401);
    assert_eq!(status(&server, "GET", "/v1/rules", Some("renewed-0123456789abcdef")).await, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_token_file_that_is_deleted_exposed_or_broken_revokes_all_its_tokens() {
    let scratch = Scratch::new("listener-no-file");
    let (server, file) = with_file(&scratch, &lines()).await;
    for broken in [None, Some("read:short\n"), Some(""), Some("exposed")] {
        match broken {
            None => fs::remove_file(&file).unwrap(),
            Some("exposed") => fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap(),
            Some(text) => write(&file, text),
        }
        until("the tokens to be revoked", async || (reads(&server).await != 200).then_some(())).await;
        assert!(server.serves().await, "checks go on");
        write(&file, &lines());
        // After ten tries an unknown token is answered 429, a known one is not.
        until("the tokens to be known again", async || (reads(&server).await == 200).then_some(())).await;
    }
    server.stop().await;
}

/// They are compared by their digests, all of them and in constant time; so nothing but the whole token is one.
#[tokio::test]
async fn neither_a_part_of_a_token_nor_more_than_it_is_a_token() {
    let server = Running::start(Options { access: access(), ..Options::default() }).await;
    let longer = format!("{WRITE}0");
    let last_differs = format!("{}0", &WRITE[..WRITE.len() - 1]);
    for wrong in [&WRITE[..WRITE.len() - 1], &WRITE[1..], &longer, &last_differs, &WRITE.to_uppercase()] {
        assert_eq!(status(&server, "GET", "/v1/rules", Some(wrong)).await, 401, "{wrong}");
    }
    assert_eq!(status(&server, "GET", "/v1/rules", Some(WRITE)).await, 200);
    server.stop().await;
}
