//! The bound on requests in progress and unread answers.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tollgate_server::ListenerLimits;
use tollgate_tests::poll::until;

use crate::server::{Options, Running, ask, read_to_end};

fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// A thousand requests of one tenant, a token each, with large answers.
fn batch() -> String {
    let tenant = "t".repeat(800);
    let request =
        format!(r#"{{"attributes":{{"tenant":"{tenant}","tokens":1,"user_id":"{}"}}}}"#, "u".repeat(100));
    format!(r#"{{"requests":[{}]}}"#, vec![request; 1_000].join(","))
}

/// Tokens that the tenant has left of 10,000.
async fn remaining(server: &Running) -> u64 {
    let tenant = "t".repeat(800);
    let body = format!(r#"{{"attributes":{{"tenant":"{tenant}","tokens":1}}}}"#);
    let answer = server.ask(&post("/v1/peek", &body)).await;
    let decision: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    decision["limits"].as_array().unwrap().iter().find(|limit| limit["rule"] == "model-tokens").unwrap()
        ["remaining"]
        .as_u64()
        .unwrap()
}

/// A client whose kernel takes few bytes that it does not read.
async fn narrow(server: &Running) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    socket.connect(server.address).await.unwrap()
}

#[tokio::test]
async fn a_batch_is_decided_as_its_answers_are_read() {
    let server = Running::start(Options::default()).await;
    let mut stream = narrow(&server).await;
    // Without chunks, which HTTP/1.0 does not have.
    let request = post("/v1/check/batch", &batch()).replace("HTTP/1.1", "HTTP/1.0");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut begin = [0; 15];
    stream.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin[8..], b" 200 OK");
    let before = remaining(&server).await;
    assert!(before > 9_500 && before < 10_000, "a part of the batch was charged: {before}");
    let answer = read_to_end(&mut stream).await;
    let answer: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    let results = answer["results"].as_array().unwrap();
    assert!(results.len() == 1_000 && results.iter().all(|result| result["allowed"] == true));
    assert!(remaining(&server).await < 9_200, "all of it was charged"); // and little was refilled since
    server.stop().await;
}

#[tokio::test]
async fn a_small_batch_has_a_length_and_results_in_order() {
    let server = Running::start(Options::default()).await;
    let requests: Vec<String> = (0..40)
        .map(|number| match number {
            17 => r#"{"attributes": 1}"#.to_owned(),
            number => format!(r#"{{"attributes": {{"user_id": "{number}"}}}}"#),
        })
        .collect();
    let body = format!(r#"{{"requests": [{}]}}"#, requests.join(","));
    let answer = server.ask(&post("/v1/check/batch", &body)).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("\r\ncontent-length: {}", body.len())), "{head}");
    let answer: serde_json::Value = serde_json::from_str(body).unwrap();
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 40);
    for (number, result) in results.iter().enumerate() {
        match number {
            17 => assert_eq!(result["path"], "requests[17].attributes"),
            _ => assert_eq!(result["limits"][0]["key"], format!("user:{number}")),
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn clients_that_do_not_finish_their_requests_are_503_when_memory_is_short_and_others_are_served() {
    const CLIENTS: usize = 20;
    // Six of these requests are more than three quarters of it.
    let limits = ListenerLimits { memory: 256 << 10, ..ListenerLimits::default() };
    let server = Running::start(Options { limits, ..Options::default() }).await;
    // A check, whose body is waited for before it goes to hyper, and a peek, whose body hyper reads.
    for path in ["/v1/check", "/v1/peek"] {
        let mut flood = JoinSet::new();
        for _ in 0..CLIENTS {
            let mut stream = server.connect().await;
            let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 60000\r\n\r\n");
            let begun = head + &" ".repeat(40 << 10);
            stream.write_all(begun.as_bytes()).await.unwrap();
            flood.spawn(async move {
                let mut answer = [0; 12];
                let _ = stream.read_exact(&mut answer).await;
                answer
            });
        }
        let mut refused = 0;
        while refused < CLIENTS - 6 {
            let answer = tokio::time::timeout(tollgate_tests::poll::PATIENCE, flood.join_next());
            let answer = answer.await.expect("memory is freed").unwrap().unwrap();
            assert_eq!(&answer, b"HTTP/1.1 503", "{path}");
            refused += 1;
            assert!(server.serves().await, "{path}");
            let alive = server.ask("GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
            assert!(alive.starts_with("HTTP/1.1 200 OK"), "{path}: {alive}");
        }
        drop(flood);
        let is_free = async || {
            let body = format!("{}{{}}", " ".repeat(40 << 10));
            server.ask(&post("/v1/peek", &body)).await.starts_with("HTTP/1.1 200 OK").then_some(())
        };
        until("the memory to be free", is_free).await;
    }
    server.stop().await;
}

/// More of them than would fit if each took what hyper takes.
#[tokio::test]
async fn silent_clients_of_http_2_do_not_keep_requests_from_being_served() {
    const CLIENTS: usize = 40;
    let limits = ListenerLimits { memory: 256 << 10, ..ListenerLimits::default() };
    let server = Running::start(Options { limits, ..Options::default() }).await;
    let flood = async |said: &[u8]| {
        let mut flood = Vec::new();
        for _ in 0..CLIENTS {
            let mut stream = server.connect().await;
            stream.write_all(said).await.unwrap();
            flood.push(stream);
        }
        flood
    };
    let peek = async || server.ask(&post("/v1/peek", r#"{"attributes": {}}"#)).await;
    let unfinished = flood(b"PRI ").await;
    for _ in 0..10 {
        let answer = peek().await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }
    // With a whole preface they do take it, for a second.
    let idle = flood(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    until("the memory to be free", async || peek().await.starts_with("HTTP/1.1 200 OK").then_some(())).await;
    drop((unfinished, idle));
    server.stop().await;
}

#[tokio::test]
async fn a_batch_that_does_not_fit_is_503_and_nothing_is_charged() {
    let limits = ListenerLimits { memory: 256 << 10, ..ListenerLimits::default() };
    let server = Running::start(Options { limits, ..Options::default() }).await;
    let answer = ask(server.connect().await, &post("/v1/check/batch", &batch())).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
    assert_eq!(remaining(&server).await, 10_000);
    server.stop().await;
}
