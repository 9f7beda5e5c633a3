//! Clients that close their side once their request is sent: they are charged, so they are answered.

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;
use tollgate_tests::certificates::Certificates;
use tollgate_tests::poll::PATIENCE;
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

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The fields of a request to this host: the method by its place in the static table, the others as literals.
fn fields(method: u8, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let literal = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let mut fields = [&[method, 0x86, 0x04][..], &literal(path), &[0x01], &literal("localhost")].concat();
    for (name, value) in more {
        fields.extend([&[0x00][..], &literal(name), &literal(value)].concat());
    }
    fields
}

/// The second of the requests that are held is in progress when the end of the client's side is seen.
#[tokio::test]
async fn a_client_that_half_closes_an_http_2_connection_is_answered() {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    let server = Running::start(Options::default()).await;
    let held = fields(0x82, "/v1/authz", &[("x-forwarded-method", "GET"), ("x-forwarded-uri", "/held")]);
    let input = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, 1, &fields(0x83, "/v1/check", &[])),
        frame(DATA, END_STREAM, 1, BODY.as_bytes()),
        frame(HEADERS, END_HEADERS | END_STREAM, 3, &held),
        frame(HEADERS, END_HEADERS | END_STREAM, 5, &held),
    ];
    let mut stream = server.connect().await;
    stream.write_all(&input.concat()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut output = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut output)).await.expect("the server hangs up").unwrap();
    let (mut answered, mut ended, mut rest) = (Vec::new(), Vec::new(), &output[..]);
    while let [a, b, c, kind, flags, stream @ ..] = rest {
        let (number, after) = stream.split_at(4);
        let number = u32::from_be_bytes(number.try_into().unwrap());
        let (payload, after) = after.split_at(u32::from_be_bytes([0, *a, *b, *c]) as usize);
        if *kind == HEADERS && payload[0] == 0x88 {
            answered.push(number); // `:status 200` by its place in the static table
        }
        if (*kind == HEADERS || *kind == DATA) && flags & END_STREAM != 0 {
            ended.push(number);
        }
        rest = after;
    }
    answered.sort_unstable();
    ended.sort_unstable();
    assert_eq!((answered, ended), (vec![1, 3, 5], vec![1, 3, 5]), "{output:?}");
    server.stop().await;
}
