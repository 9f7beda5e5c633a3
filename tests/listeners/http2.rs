//! HTTP/2: requests side by side, and clients that open streams only to take them back.

use std::convert::Infallible;
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Frame};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollgate_tests::poll::{PATIENCE, until};

use crate::access::{WRITE, access};
use crate::places::replay;
use crate::server::{Options, Running, impatient, read_to_end};

fn check() -> Request<Full<Bytes>> {
    let body = Full::from(r#"{"attributes": {"user_id": "42"}}"#);
    Request::post("http://localhost/v1/check").body(body).unwrap()
}

/// A connection, and whether it is still there.
type Connected = (SendRequest<Full<Bytes>>, tokio::task::JoinHandle<()>);

async fn connect(server: &Running) -> Connected {
    over(server.connect().await).await
}

async fn over(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Connected {
    let (send, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    (send, tokio::spawn(async move { drop(connection.await) }))
}

/// A page may sign in under the names of this server only, and whoever shows a token may use any.
pub(crate) async fn only_this_servers_names_sign_in(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) {
    let (mut send, _connection) = over(stream).await;
    for (authority, expected) in [
        ("localhost", StatusCode::OK),
        ("127.0.0.1:8080", StatusCode::OK),
        ("evil.example", StatusCode::MISDIRECTED_REQUEST),
    ] {
        let login = Request::post(format!("http://{authority}/v1/session"))
            .header("content-type", "application/json");
        let login = login.body(Full::from(format!(r#"{{"token": "{WRITE}"}}"#))).unwrap();
        send.ready().await.unwrap();
        assert_eq!(send.send_request(login).await.unwrap().status(), expected, "{authority}");
        let asked = Request::get(format!("http://{authority}/v1/rules"))
            .header("authorization", format!("Bearer {WRITE}"));
        send.ready().await.unwrap();
        let answer = send.send_request(asked.body(Full::default()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{authority}");
    }
}

#[tokio::test]
async fn many_checks_go_side_by_side_over_one_connection() {
    let server = Running::start(Options::default()).await;
    let (mut send, _connection) = connect(&server).await;
    let mut answers = Vec::new();
    for _ in 0..100 {
        send.ready().await.unwrap();
        answers.push(send.send_request(check()));
    }
    for answer in answers {
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert!(answer.headers().contains_key("x-ratelimit-remaining"));
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(body.starts_with(br#"{"allowed":true"#));
    }
    drop(send);
    server.stop().await;
}

#[tokio::test]
async fn an_operator_may_sign_in_over_http_2() {
    let server = Running::start(Options { access: access(), ..Options::default() }).await;
    only_this_servers_names_sign_in(server.connect_admin().await).await;
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_keeps_taking_streams_back_is_cut_off_and_others_are_served() {
    let server = Running::start(Options::default()).await;
    // By hand: a client of hyper's would not reset a stream before the server has seen it.
    let mut stream = server.connect().await;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&frame(0x4, 0, 0, &[])).await.unwrap();
    // :method GET, :scheme http, :path /, :authority from the static table
    let head = [0x82, 0x86, 0x84, 0x41, 0x09, b'l', b'o', b'c', b'a', b'l', b'h', b'o', b's', b't'];
    let mut flood = Vec::new();
    for number in 0..5_000_u32 {
        flood.extend(frame(0x1, 0x5, 2 * number + 1, &head));
        flood.extend(frame(0x3, 0, 2 * number + 1, &8_u32.to_be_bytes()));
    }
    let (mut from, mut to) = stream.split();
    let sent = async {
        let _ = to.write_all(&flood).await; // it may hang up before it has read all
    };
    let (answer, ()) = tokio::join!(read_to_end(&mut from), sent);
    assert!(!answer.is_empty(), "it said goodbye");
    assert!(server.serves().await);
    server.stop().await;
}

/// What a server answers to requests over HTTP/2 with these headers: status, headers and body.
async fn head(
    send: &mut SendRequest<Full<Bytes>>,
    uri: &str,
    fields: &[(String, String)],
) -> (StatusCode, HeaderMap, Bytes) {
    let mut asked = Request::get(format!("http://localhost{uri}"));
    for (name, value) in fields {
        asked = asked.header(name, value);
    }
    send.ready().await.unwrap();
    let answer = send.send_request(asked.body(Full::default()).unwrap()).await.unwrap();
    let (parts, body) = answer.into_parts();
    (parts.status, parts.headers, body.collect().await.unwrap().to_bytes())
}

#[tokio::test]
async fn a_head_over_http_2_beyond_the_bound_is_431_with_a_problem() {
    let server = Running::start(Options::default()).await;
    let (mut send, _connection) = connect(&server).await;
    let many = |count: usize| (0..count).map(|n| (format!("x-{n}"), n.to_string())).collect::<Vec<_>>();
    let long = |bytes: usize| vec![("x-long".to_owned(), "a".repeat(bytes))];
    for fields in [many(95), long(15 << 10)] {
        assert_eq!(head(&mut send, "/livez", &fields).await.0, StatusCode::OK);
    }
    for fields in [many(101), long(16 << 10), long(60 << 10)] {
        let (status, headers, body) = head(&mut send, "/livez", &fields).await;
        assert_eq!(status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        assert_eq!(headers["content-type"], "application/problem+json");
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(problem["status"], 431);
        let (status, headers, body) = head(&mut send, "/v1/authz?deny_status=403", &fields).await;
        assert_eq!((status, &headers["tollgate-status"]), (StatusCode::FORBIDDEN, &"431".parse().unwrap()));
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap(), problem);
    }
    let target = format!("/livez?{}", "a".repeat(16 << 10));
    assert_eq!(head(&mut send, &target, &[]).await.0, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    // Here h2 answers, which has a bound of its own; the connection stays.
    let (status, ..) = head(&mut send, "/livez", &long(100 << 10)).await;
    assert_eq!(status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert_eq!(head(&mut send, "/livez", &[]).await.0, StatusCode::OK);
    drop(send);
    server.stop().await;
}

#[tokio::test]
async fn a_head_without_an_end_is_cut_off() {
    let server = Running::start(Options::default()).await;
    let mut stream = server.connect().await;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&frame(0x4, 0, 0, &[])).await.unwrap();
    // HEADERS that does not end, and CONTINUATION after CONTINUATION: literal fields of 4 KiB, never indexed.
    let mut field = vec![0x10, 0x01, b'x', 0x7f, 0x81, 0x1f];
    field.extend(vec![b'a'; 4096]);
    let mut flood = frame(0x1, 0, 1, &[0x82, 0x86, 0x84]);
    for _ in 0..2_000 {
        flood.extend(frame(0x9, 0, 1, &field));
    }
    let (mut from, mut to) = stream.split();
    let sent = async {
        let _ = to.write_all(&flood).await;
    };
    let ((), ()) = tokio::join!(async { drop(read_to_end(&mut from).await) }, sent);
    assert!(server.serves().await);
    server.stop().await;
}

/// The client answers PINGs, and does not close the connection by itself.
#[tokio::test]
async fn an_idle_connection_is_closed() {
    let server = Running::start(Options { limits: impatient(), ..Options::default() }).await;
    let (mut send, connection) = connect(&server).await;
    assert_eq!(send.send_request(check()).await.unwrap().status(), StatusCode::OK);
    tokio::time::timeout(PATIENCE, connection).await.expect("it is closed").unwrap();
    drop(send);
    server.stop().await;
}

/// A body that does not come.
struct Silent;

impl Body for Silent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

#[tokio::test]
async fn a_replay_stops_when_its_client_closes_the_connection() {
    let server = Running::start(Options { access: access(), ..Options::default() }).await;
    let mut begun = Vec::new();
    for _ in 0..2 {
        let socket = server.connect_admin().await.into_std().unwrap();
        let io = TokioIo::new(TcpStream::from_std(socket.try_clone().unwrap()).unwrap());
        let (mut send, connection) = handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        let replay = Request::post("http://localhost/v1/replay")
            .header("authorization", format!("Bearer {WRITE}"))
            .header("content-type", "application/json");
        let answer = send.send_request(replay.body(Silent).unwrap());
        begun.push((socket, tokio::spawn(answer), send));
    }
    let body = r#"{"rules": [{"key": "global", "limit": "1/s"}], "trace": [{"t_us": 0}]}"#;
    let whole = replay("/v1/replay", body);
    let is_answered = async |status: &str| server.ask_admin(&whole).await.starts_with(status).then_some(());
    until("both places to be taken", async || is_answered("HTTP/1.1 503").await).await;
    for (socket, ..) in &begun {
        socket.shutdown(Shutdown::Write).unwrap(); // what the server sees of a client that closes the socket
    }
    until("a place to be free", async || is_answered("HTTP/1.1 200").await).await;
    server.stop().await;
}

#[tokio::test]
async fn a_stop_lets_streams_finish_and_closes_the_connection() {
    let server = Running::start(Options::default()).await;
    let (mut send, connection) = connect(&server).await;
    assert_eq!(send.send_request(check()).await.unwrap().status(), StatusCode::OK);
    server.stop().await;
    tokio::time::timeout(Duration::from_secs(20), connection).await.expect("it is closed").unwrap();
    until("the sender to notice", async || send.is_closed().then_some(())).await;
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}
