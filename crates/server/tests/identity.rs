//! Who a request is from and what it is for, however it is spelt: FAULTS.md, "Identity and keys", over HTTP.

#![expect(clippy::unwrap_used, reason = "a test that is surprised stops there")]

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollgate::{AnyStore, Limiter, MemoryStore, rules};
use tollgate_server::{App, Config, RulesHome, Server};

/// A server with these rules, each of a hundred an hour.
async fn serve(keys: &[&str]) -> SocketAddr {
    let rules: Vec<String> =
        keys.iter().map(|key| format!("  - {{ key: '{key}', limit: 100/h, missing: skip }}")).collect();
    let rules = rules::parse("rules.yaml", &format!("rules:\n{}", rules.join("\n"))).unwrap();
    let limiter = Limiter::new(rules, AnyStore::from(MemoryStore::new()));
    let app = App::new(Arc::new(limiter), RulesHome::Fixed("code".to_owned()));
    let config = Config::new(([127, 0, 0, 1], 0).into(), ([127, 0, 0, 1], 0).into());
    let server = Server::bind(&config, app).await.unwrap();
    let address = server.http();
    tokio::spawn(server.run(std::future::pending()));
    address
}

/// The whole answer to a check.
async fn ask(address: SocketAddr, attributes: &Value) -> (String, Value) {
    let body = json!({ "attributes": attributes }).to_string();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    let sent = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    let _ = stream.write_all(sent.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), serde_json::from_str(body).unwrap())
}

/// What is left in the bucket of each request, one after the other.
async fn left(key: &str, requests: &[Value]) -> Vec<u64> {
    let address = serve(&[key]).await;
    let mut left = Vec::new();
    for request in requests {
        let (head, body) = ask(address, request).await;
        assert!(head.starts_with("HTTP/1.1 200"), "{request}: {head} {body}");
        left.push(body["remaining"].as_u64().unwrap_or(100));
    }
    left
}

fn each(name: &str, values: &[&str]) -> Vec<Value> {
    values.iter().map(|value| json!({ name: value })).collect()
}

fn one_bucket(left: &[u64]) -> bool {
    left.iter().copied().eq((0..100).rev().take(left.len()))
}

fn a_bucket_each(left: &[u64]) -> bool {
    left.iter().all(|left| *left == 99)
}

#[tokio::test]
async fn every_spelling_of_a_path_a_method_a_host_and_an_address_is_one_bucket() {
    for (key, name, spellings) in [
        (
            "endpoint:{endpoint}",
            "endpoint",
            &["/a", "/a/", "//a", "/%61", "/a?x=1", "/./a", "/b/../a", "/%2e/a", "/a%2F", "/b/..%2fa"][..],
        ),
        ("endpoint:/a", "endpoint", &["/a", "/a/", "//a", "/%61", "/a?x=1", "/a#", "/%2Fa"]),
        ("method:{method}", "method", &["GET", "get", "Get"]),
        ("host:{host}", "host", &["example.com", "Example.COM"]),
        ("host:Example.com", "host", &["example.com", "EXAMPLE.com"]),
        ("ip:{ip}", "ip", &["203.0.113.7", "::ffff:203.0.113.7", "::ffff:cb00:7107"]),
        ("ip:{ip}", "ip", &["2001:db8:1:2::1", "2001:db8:1:2:ffff::", "2001:DB8:1:2:3:4:5:6"]),
    ] {
        let left = left(key, &each(name, spellings)).await;
        assert!(one_bucket(&left), "{key} {spellings:?}: {left:?}");
    }
}

#[tokio::test]
async fn other_paths_methods_and_addresses_have_other_buckets() {
    for (key, name, values) in [
        ("endpoint:{endpoint}", "endpoint", &["/", "/A", "/a/b", "/a.", "/%2561", "/a%252F"][..]),
        ("ip:{ip}", "ip", &["2001:db8:1:3::1", "2001:db8:1:2::1", "203.0.113.8", "::cb00:7107"]),
        ("method:{method}", "method", &["GET", "POST", "G ET"]),
    ] {
        let left = left(key, &each(name, values)).await;
        assert!(a_bucket_each(&left), "{key}: {left:?}");
    }
}

#[tokio::test]
async fn hostile_ids_never_share_never_split_and_never_get_into_headers() {
    let long = ["x".repeat(60_000) + "1", "x".repeat(60_000) + "2", "y".repeat(256), "y".repeat(257)];
    let mut ids = vec![
        "",
        "a",
        "a:b",
        "a%3Ab",
        "a%3ab",
        "{a}",
        "{user_id}",
        "a}{b",
        "a\0",
        "\0",
        "a\r\nx-evil: 1",
        "a\n",
        "a\r",
        "%00",
        "%0d%0a",
        "\"",
        "\\",
        "ä",
        "a\u{308}",
        "\u{202e}",
        "null",
        "0",
        "00",
        "-0",
    ];
    ids.extend(long.iter().map(String::as_str));
    let address = serve(&["user:{user_id}"]).await;
    for expected in [99, 98] {
        for id in &ids {
            let (head, body) = ask(address, &json!({ "user_id": id })).await;
            assert_eq!(body["remaining"], expected, "{id:?}");
            assert!(!head.to_lowercase().contains("x-evil"), "{head}");
            let key = body["limits"][0]["key"].as_str().unwrap();
            assert!(key.chars().all(|c| c.is_ascii_graphic()), "{key}");
        }
    }
    let (head, _) = ask(address, &json!({ "user_id": "x".repeat(1 << 20) })).await;
    assert!(head.starts_with("HTTP/1.1 413"), "a megabyte is no id here: {head}");
}

#[tokio::test]
async fn a_pair_of_values_is_no_other_pair_and_types_do_not_matter() {
    let pairs = [("a", "b:c"), ("a:b", "c"), ("", "a:b:c"), ("a:b:c", ""), ("a", ""), ("", "a"), ("a{", "}")];
    let pairs: Vec<Value> = pairs.iter().map(|(one, two)| json!({ "one": one, "two": two })).collect();
    let left_of_pairs = left("pair:{one}:{two}", &pairs).await;
    assert!(a_bucket_each(&left_of_pairs), "{left_of_pairs:?}");
    let same = [json!({ "id": 42 }), json!({ "id": "42" })];
    assert!(one_bucket(&left("id:{id}", &same).await));
}
