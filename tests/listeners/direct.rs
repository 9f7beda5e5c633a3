//! Checks that are answered straight from the bytes say what hyper's say, and whatever else comes is hyper's.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tollgate_tests::poll::PATIENCE;

use crate::server::{Options, Running, ask, read_to_end};

const CLOSE: &str = "connection: close\r\n";

fn check(head: &str, body: &str) -> String {
    let length = body.len();
    format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\n{head}content-length: {length}\r\n\r\n{body}")
}

/// One answer, of a connection that stays open.
pub(crate) async fn read_one(stream: &mut TcpStream) -> String {
    let read = async {
        let (mut answer, mut length) = (Vec::new(), None);
        while length.is_none_or(|length| answer.len() < length) {
            answer.push(stream.read_u8().await.unwrap());
            if length.is_none() && answer.ends_with(b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&answer);
                let (_, rest) = head.split_once("content-length: ").unwrap();
                let body: usize = rest.split("\r\n").next().unwrap().parse().unwrap();
                length = Some(answer.len() + body);
            }
        }
        String::from_utf8(answer).unwrap()
    };
    timeout(PATIENCE, read).await.expect("an answer")
}

/// What two answers to the same request have in common: all but names, numbers and times.
fn in_common(answer: &str) -> (String, Vec<String>, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let (status, fields) = head.split_once("\r\n").unwrap();
    let without_numbers = |text: &str| -> String { text.split(|c: char| c.is_ascii_digit()).collect() };
    let is_telling =
        |field: &&str| !["date", "connection", "content-length"].contains(&field.split(':').next().unwrap());
    let mut fields: Vec<String> = fields.split("\r\n").filter(is_telling).map(without_numbers).collect();
    fields.sort();
    let id = body.split("\"decision_id\":\"").nth(1).and_then(|rest| rest.split('"').next());
    let body = id.map_or_else(|| body.to_owned(), |id| body.replace(id, ""));
    (status.to_owned(), fields, without_numbers(&body))
}

#[tokio::test]
async fn a_check_is_answered_the_same_on_both_ways() {
    let server = Running::start(Options::default()).await;
    let mut stream = server.connect().await;
    let cases = [
        ("", r#"{"attributes": {"user_id": "NAME"}}"#),
        ("", r#"{"attributes": {}}"#),
        ("", r#"{"attributes": {"banned": "NAME"}}"#), // denied
        ("", r#"{"key": "NAME", "limit": "1/h"}"#),
        ("", r#"{"key": "NAME", "limit": "1/h"}"#), // refused
        ("prefer: status=200\r\n", r#"{"key": "NAME", "limit": "1/h"}"#),
        ("", r#"{"key": "NAME", "limit": "1/h", "cost": 2}"#), // never
        ("x-unknown: 1\r\n", r#"{"key": "NAME-queue", "limit": "1/h", "algorithm": "leaky_bucket"}"#),
        ("", r#"{"attributes": {"tenant": "NAME", "tokens": 5e3}}"#),
        ("", r#"{"attributes": {"user_id": "NAME"}, "costs": 1}"#),
        ("", "[]"),
        ("", ""),
    ];
    for (head, body) in cases {
        let direct = check(head, &body.replace("NAME", "direct"));
        stream.write_all(direct.as_bytes()).await.unwrap();
        let direct = read_one(&mut stream).await;
        let request = check(&format!("{head}{CLOSE}"), &body.replace("NAME", "hypers"));
        let hypers = server.ask(&request).await.replace("hypers", "direct");
        assert_eq!(in_common(&direct), in_common(&hypers), "{body}");
        assert!(direct.contains("\r\ndate: "), "{direct}");
    }
    server.stop().await;
}

#[tokio::test]
async fn an_invalid_cost_attribute_is_400_on_both_ways_and_charges_nothing() {
    let server = Running::start(Options::default()).await;
    let body = |tokens: &str| format!(r#"{{"attributes": {{"tenant": "a", "tokens": {tokens}}}}}"#);
    for (tokens, left) in [("\"5000 \"", 9_900), ("-5000", 9_800), ("1e308", 9_700), ("0", 9_600)] {
        // A new connection is answered from its bytes until the first request that is not plain.
        let mut stream = server.connect().await;
        stream.write_all(check("", &body("100")).as_bytes()).await.unwrap();
        let allowed = read_one(&mut stream).await;
        assert!(allowed.contains(&format!("\r\nx-ratelimit-remaining: {left}\r\n")), "{tokens}: {allowed}");
        stream.write_all(check("prefer: status=200\r\n", &body(tokens)).as_bytes()).await.unwrap();
        let direct = read_one(&mut stream).await;
        assert!(direct.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{tokens}: {direct}");
        let hypers = server.ask(&check(CLOSE, &body(tokens))).await;
        assert_eq!(in_common(&direct), in_common(&hypers), "{tokens}");
    }
    server.stop().await;
}

#[tokio::test]
async fn many_checks_at_once_are_answered_in_their_order_and_what_follows_them_too() {
    const MANY: usize = 300;
    let server = Running::start(Options::default()).await;
    let mut requests: String =
        (0..MANY).map(|number| check("", &format!(r#"{{"key": "n{number}", "limit": "5/s"}}"#))).collect();
    requests.push_str("GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n");
    requests.push_str(&check(CLOSE, r#"{"key": "last", "limit": "5/s"}"#));
    let answers = ask(server.connect().await, &requests).await;
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), MANY + 2, "{answers}");
    let mut rest = answers.as_str();
    let names =
        (0..MANY).map(|number| format!("\"n{number}\"")).chain(["ok".to_owned(), "\"last\"".to_owned()]);
    for name in names {
        rest = rest.split_once(&name).unwrap_or_else(|| panic!("{name} in its place")).1;
    }
    server.stop().await;
}

#[tokio::test]
async fn a_request_may_come_in_any_two_pieces() {
    let server = Running::start(Options::default()).await;
    let request = check("", r#"{"key": "pieces", "limit": "1000/s burst 100000"}"#);
    let mut stream = server.connect().await;
    stream.set_nodelay(true).unwrap();
    for place in 1..request.len() {
        let (first, second) = request.as_bytes().split_at(place);
        stream.write_all(first).await.unwrap();
        tokio::task::yield_now().await;
        stream.write_all(second).await.unwrap();
        let answer = read_one(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "cut at {place}: {answer}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_stop_closes_connections_that_wait_for_their_next_check() {
    let server = Running::start(Options::default()).await;
    let mut stream = server.connect().await;
    stream.write_all(check("", r#"{"key": "one", "limit": "1/h"}"#).as_bytes()).await.unwrap();
    read_one(&mut stream).await;
    let silent = server.connect().await;
    server.stop().await;
    for mut stream in [stream, silent] {
        assert_eq!(read_to_end(&mut stream).await, "");
    }
}
