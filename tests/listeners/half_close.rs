//! Clients that close their side once their request is sent: they are charged, so they are answered.

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tollgate_tests::certificates::Certificates;
use tollgate_tests::scratch::Scratch;

use crate::server::{Options, Running, read_to_end};
use crate::tls;

const BODY: &str = r#"{"attributes": {"user_id": "42"}}"#;

/// Requests of every kind of route, each answered 200: from the bytes, by hyper, with a body in chunks.
fn requests() -> Vec<String> {
    let with_body = |path: &str, head: &str| {
        let length = BODY.len();
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{head}content-length: {length}\r\n\r\n{BODY}")
    };
    vec![
        with_body("/v1/check", ""),
        with_body("/v1/check", "connection: close\r\n"),
        with_body("/v1/peek", ""),
        with_body("/v1/reserve", ""),
        format!(
            "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{BODY}\r\n0\r\n\r\n",
            BODY.len()
        ),
        "GET /v1/authz HTTP/1.1\r\nhost: localhost\r\nx-forwarded-method: GET\r\nx-forwarded-uri: /\r\n\r\n"
            .to_owned(),
        "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
        "GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
        "GET /livez HTTP/1.0\r\n\r\n".to_owned(),
    ]
}

/// Sends a request, closes our side and reads the whole answer.
async fn ask_and_close(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    read_to_end(&mut stream).await
}

#[tokio::test]
async fn a_client_that_half_closes_after_its_request_is_answered_on_every_route() {
    let server = Running::start(Options::default()).await;
    for request in requests() {
        let answer = ask_and_close(server.connect().await, &request).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 OK") || answer.starts_with("HTTP/1.0 200 OK"),
            "{request}: {answer}"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn pipelined_requests_before_a_half_close_are_all_answered() {
    let server = Running::start(Options::default()).await;
    let check = &requests()[0];
    let livez = "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let answers =
        ask_and_close(server.connect().await, &format!("{check}{check}{livez}{check}{livez}")).await;
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 5, "{answers}");
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_half_closes_a_tls_session_is_answered_on_every_route() {
    let scratch = Scratch::new("listener-half-close");
    let certificates = Certificates::make(scratch.path());
    let server = Running::start(Options { tls: Some(tls::files(&certificates)), ..Options::default() }).await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let client = tls::client(&certificates, None, &[version]);
        for request in requests() {
            let stream = tls::dial(&server, &client).await.unwrap();
            let answer = ask_and_close(stream, &request).await;
            assert!(
                answer.starts_with("HTTP/1.1 200 OK") || answer.starts_with("HTTP/1.0 200 OK"),
                "{request}: {answer}"
            );
        }
    }
    server.stop().await;
}

/// A handler that takes its time: the end of the client's side is seen while the request is in progress.
#[tokio::test]
async fn a_request_that_is_held_in_a_queue_is_answered_after_a_half_close() {
    let server = Running::start(Options::default()).await;
    let request = "GET /v1/authz HTTP/1.1\r\nhost: localhost\r\nx-forwarded-method: GET\r\nx-forwarded-uri: /held\r\n\r\n";
    let (first, second) =
        tokio::join!(async { ask_and_close(server.connect().await, request).await }, async {
            ask_and_close(server.connect().await, request).await
        },);
    for answer in [first, second] {
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }
    server.stop().await;
}
