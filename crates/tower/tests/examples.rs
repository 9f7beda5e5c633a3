//! The examples, started as they are: each ends in a refusal.

#![allow(clippy::unwrap_used, reason = "a test that is surprised stops there")]

mod support;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tonic::Code;

use support::wire::{ask, channel, hello, retry_delay, status};

/// An example on a free port, stopped when it is dropped.
struct Example {
    child: Child,
    address: SocketAddr,
}

impl Example {
    fn start(name: &str) -> Self {
        let program = built().join(name);
        assert!(program.exists(), "{name} is not built; run `cargo build -p tollgate-tower --examples`");
        let mut child = Command::new(program)
            .arg("127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address =
            line.trim().strip_prefix("http://").and_then(|rest| rest.split('/').next()?.parse().ok());
        Example { child, address: address.unwrap_or_else(|| panic!("no address: {line}")) }
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where cargo puts examples: beside `deps`, where this test is.
fn built() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples")
}

#[tokio::test]
async fn axum_plans_refuses_the_fourth_request_on_the_free_plan_and_not_on_the_other() {
    let example = Example::start("axum_plans");
    for expected in [200, 200, 200, 429] {
        let answer = ask(example.address, "GET /hello", &[("x-api-key", "alice-key")]).await;
        assert_eq!(status(&answer), expected, "{answer}");
    }
    for _ in 0..10 {
        let answer = ask(example.address, "GET /hello", &[("x-api-key", "bob-key")]).await;
        assert_eq!(status(&answer), 200, "{answer}");
    }
    let nobody = ask(example.address, "GET /hello", &[]).await;
    assert!(nobody.contains("ratelimit-policy: \"per-address\""), "{nobody}");
}

#[tokio::test]
async fn the_walks_of_the_guide_end_as_they_say() {
    for (page, name) in [
        (include_str!("../../../docs/guide/axum.md"), "axum_plans"),
        (include_str!("../../../docs/guide/tokens.md"), "llm_proxy"),
    ] {
        let example = Example::start(name);
        let walk = blocks(page, "sh")[0].replace("127.0.0.1:3000", &example.address.to_string());
        let output = Command::new("bash").args(["-c", &walk]).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap().replace('\r', "");
        assert!(blocks(page, "text")[0].contains(&format!("--example {name}")));
        assert_eq!(printed.trim(), blocks(page, "text")[1], "is `curl` installed?");
    }
}

/// The fenced blocks of a page in one language.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let blocks = page.split("\n```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    blocks.filter(|(of, _)| *of == language).map(|(_, text)| text.trim()).collect()
}

#[tokio::test]
async fn per_route_has_a_limit_for_each_route_and_one_budget_for_all() {
    let example = Example::start("per_route");
    for expected in [200, 200, 429] {
        assert_eq!(status(&ask(example.address, "POST /login", &[]).await), expected);
    }
    for id in 0..5 {
        assert_eq!(status(&ask(example.address, &format!("GET /items/{id}"), &[]).await), 200);
    }
    let sixth = ask(example.address, "GET /items/5", &[]).await;
    assert!(status(&sixth) == 429 && sixth.contains("[\"items\"]"), "{sixth}");
    // 7 of the 20 are spent, and a report costs 10.
    for expected in [200, 429] {
        let report = ask(example.address, "GET /report", &[]).await;
        assert_eq!(status(&report), expected, "{report}");
    }
}

#[tokio::test]
async fn tonic_says_resource_exhausted_and_when_to_return() {
    let example = Example::start("tonic");
    let channel = channel(example.address).await;
    for _ in 0..3 {
        assert_eq!(hello(&channel, "acme").await.unwrap().into_inner(), "hello you");
    }
    let refused = hello(&channel, "acme").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let delay = retry_delay(&refused).unwrap();
    assert!((0..=6).contains(&delay.seconds), "{delay:?}");
    assert!(hello(&channel, "other").await.is_ok(), "each tenant has a bucket of its own");
}
