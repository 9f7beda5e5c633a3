//! Bounds on connections of one address, and on replays in progress.

use std::net::{IpAddr, UdpSocket};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollgate_server::ListenerLimits;
use tollgate_tests::poll::until;

use crate::access::{WRITE, access};
use crate::server::{Options, Running, ask};

const LIVEZ: &str = "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// An address of this machine that is not a loopback address; connections to it do not leave the machine.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Only looks up the route; nothing is sent.
    socket.connect("198.51.100.1:9").expect("a network interface with an IPv4 address");
    socket.local_addr().unwrap().ip()
}

/// Whether a connection that stays open is served.
async fn is_served(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 15];
    stream.write_all(LIVEZ.as_bytes()).await.is_ok()
        && stream.read_exact(&mut answer).await.is_ok()
        && &answer == b"HTTP/1.1 200 OK"
}

#[tokio::test]
async fn an_address_has_its_number_of_connections_and_loopback_any() {
    let limits = ListenerLimits { connections_per_address: Some(2), ..ListenerLimits::default() };
    let server = Running::start(Options { limits, ip: Some(own_address()), ..Options::default() }).await;
    let mut held = vec![server.connect().await, server.connect().await];
    for stream in &mut held {
        assert!(is_served(stream).await);
    }
    assert!(!is_served(&mut server.connect().await).await, "the third is closed");
    held.pop();
    let is_free = async || {
        let mut stream = server.connect().await;
        is_served(&mut stream).await.then_some(stream)
    };
    until("the place to be free", is_free).await;
    server.stop().await;

    let server = Running::start(Options { limits, ..Options::default() }).await;
    let mut many = Vec::new();
    for _ in 0..5 {
        let mut stream = server.connect().await;
        assert!(is_served(&mut stream).await);
        many.push(stream);
    }
    server.stop().await;
}

#[tokio::test]
async fn an_address_has_64_connections_to_the_admin_plane_and_loopback_more() {
    for (ip, served) in [(Some(own_address()), 64), (None, 70)] {
        let server = Running::start(Options { ip, ..Options::default() }).await;
        let mut held = Vec::new();
        for number in 0..70 {
            let mut stream = server.connect_admin().await;
            assert_eq!(is_served(&mut stream).await, number < served, "{ip:?}: connection {number}");
            held.push(stream);
        }
        server.stop().await;
    }
}

pub(crate) fn replay(path: &str, body: &str) -> String {
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    let credential = format!("authorization: Bearer {WRITE}\r\ncontent-type: application/json\r\n");
    format!("{head}{credential}content-length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn replays_and_previews_beyond_two_are_503_until_a_client_leaves() {
    let server = Running::start(Options { access: access(), ..Options::default() }).await;
    let body = r#"{"rules": [{"key": "global", "limit": "1/s"}], "trace": [{"t_us": 0}]}"#;
    let whole = replay("/v1/replay", body);
    assert!(server.ask_admin(&whole).await.starts_with("HTTP/1.1 200 OK"));
    // A place is taken when the head has arrived.
    let mut begun = Vec::new();
    for path in ["/v1/replay", "/v1/rules/preview"] {
        let mut stream = server.connect_admin().await;
        let request = replay(path, body);
        stream.write_all(&request.as_bytes()[..request.len() - 1]).await.unwrap();
        begun.push(stream);
    }
    let is_refused = async || {
        let answer = server.ask_admin(&whole).await;
        answer.starts_with("HTTP/1.1 503").then_some(answer)
    };
    let refused = until("both places to be taken", is_refused).await;
    assert!(refused.contains("too many replays in progress"), "{refused}");
    assert!(refused.contains("\r\nretry-after: 1\r\n"), "{refused}");
    let mut first = begun.remove(0);
    assert!(ask(&mut first, &whole[whole.len() - 1..]).await.starts_with("HTTP/1.1 200 OK"));
    drop(begun);
    let is_free = async || server.ask_admin(&whole).await.starts_with("HTTP/1.1 200 OK").then_some(());
    until("a place to be free", is_free).await;
    server.stop().await;
}
