//! Clients that ask and do not read, and clients that are gone without a word.

use std::time::Duration;

use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollgate_server::ListenerLimits;
use tollgate_tests::fault_proxy::{FaultProxy, Mode};
use tollgate_tests::poll::until;

use crate::server::{Options, Running, check, impatient};

const LARGE: &str = "GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// One place, which a client that does not read soon loses.
fn one_place() -> Options {
    let unread = Duration::from_millis(300);
    let limits = ListenerLimits { connections: 1, unread, ..ListenerLimits::default() };
    Options { limits, ..Options::default() }
}

/// Waits until the only place is somebody else's.
async fn has_its_place_back(server: &Running) {
    until("the place to be free", async || server.serves().await.then_some(())).await;
}

#[tokio::test]
async fn whoever_asks_and_does_not_read_loses_its_place() {
    let server = Running::start(one_place()).await;
    let mut silent = server.connect().await;
    // More than the kernel keeps for a client: it asks until nothing more is taken.
    let asking = tokio::spawn(async move {
        while silent.write_all(LARGE.as_bytes()).await.is_ok() {}
        silent
    });
    has_its_place_back(&server).await;
    drop(asking.await.unwrap());
    server.stop().await;
}

#[tokio::test]
async fn whoever_gives_no_leave_to_send_over_http2_loses_its_place() {
    for window in [0, 1, 100] {
        let server = Running::start(one_place()).await;
        let stream = TokioIo::new(server.connect().await);
        let (mut send, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .handshake::<_, Empty<Bytes>>(stream)
            .await
            .unwrap();
        // It answers pings and reads all that comes, which is no answer.
        let connection = tokio::spawn(async move { drop(connection.await) });
        let request = Request::get("http://localhost/openapi.json").body(Empty::new()).unwrap();
        let answer = send.send_request(request).await.unwrap();
        has_its_place_back(&server).await;
        connection.await.unwrap();
        drop(answer);
        server.stop().await;
    }
}

#[tokio::test]
async fn whoever_reads_slowly_is_served_to_the_end() {
    let server = Running::start(Options { limits: impatient(), ..Options::default() }).await;
    let mut slow = server.connect().await;
    slow.write_all(LARGE.replace("host: ", "connection: close\r\nhost: ").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let mut chunk = [0; 1024];
    while let length @ 1.. = slow.read(&mut chunk).await.unwrap() {
        answer.extend_from_slice(&chunk[..length]);
        assert!(server.serves().await); // meanwhile
    }
    assert!(answer.ends_with(b"}"), "{} bytes", answer.len());
    server.stop().await;
}

/// A firewall that was restarted: neither side hears that the other is gone.
#[tokio::test]
async fn connections_that_are_half_open_are_closed_and_their_places_given_away() {
    const GONE: usize = 4;
    let limits = ListenerLimits { connections: GONE, ..impatient() };
    let server = Running::start(Options { limits, ..Options::default() }).await;
    let proxy = FaultProxy::start(server.address.port()).await;
    let mut gone = Vec::new();
    for said in [
        "",
        "GET /liv",
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
        &*check(""),
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        stream.write_all(said.replace("connection: close\r\n", "").as_bytes()).await.unwrap();
        gone.push(stream);
    }
    proxy.set(Mode::Forget).await;
    has_its_place_back(&server).await;
    drop(gone);
    server.stop().await;
}

#[tokio::test]
async fn a_stop_waits_for_nobody_who_has_not_asked() {
    let server = Running::start(Options {
        limits: ListenerLimits {
            farewell: Duration::ZERO,
            drain: Duration::from_secs(3_600),
            ..ListenerLimits::default()
        },
        ..Options::default()
    })
    .await;
    let _silent = server.connect().await;
    assert!(server.serves().await, "the silent one was accepted before");
    tokio::time::timeout(tollgate_tests::poll::PATIENCE, server.stop())
        .await
        .expect("it does not wait for an hour");
}
