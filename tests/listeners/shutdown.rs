//! A stop while clients connect and ask: whatever the kernel has accepted is answered.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tollgate_server::ListenerLimits;
use tollgate_tests::certificates::Certificates;
use tollgate_tests::poll::{PATIENCE, until};
use tollgate_tests::scratch::Scratch;

use crate::server::{Options, Running, check, read_to_end};
use crate::tls;

const CLIENTS: usize = 10;
/// A handshake of TCP that takes longer was ignored by the kernel: the connection was not accepted.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// What a client asks, again and again: from the bytes, by hyper on a connection that stays, by hyper on one that does not.
fn request(client: usize) -> String {
    match client % 3 {
        0 => check("").replace("connection: close\r\n", ""),
        1 => "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
        _ => check(""),
    }
}

/// One answer; none where the connection ends before it.
async fn answer(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let (mut read, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&read);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.split("content-length: ").nth(1)?.split("\r\n").next()?.parse().ok()?;
            if body.len() >= length {
                return Some(text.into_owned());
            }
        }
        match timeout(PATIENCE, stream.read(&mut chunk)).await {
            Ok(Ok(count @ 1..)) => read.extend_from_slice(&chunk[..count]),
            _ => return None,
        }
    }
}

/// Asks on one connection until the server says that it closes it. Whether every request was answered.
async fn ask_until_closed(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    request: &str,
    answered: &AtomicU64,
) -> bool {
    loop {
        if stream.write_all(request.as_bytes()).await.is_err() {
            return false;
        }
        let Some(answer) = answer(stream).await else { return false };
        answered.fetch_add(1, Ordering::Relaxed);
        if answer.to_lowercase().contains("\r\nconnection: close\r\n") {
            return true;
        }
    }
}

/// A closed-loop client, until no connection is accepted. The number of its requests that were lost.
async fn client(
    address: std::net::SocketAddr,
    tls: Option<TlsConnector>,
    request: String,
    answered: Arc<AtomicU64>,
) -> u64 {
    let mut lost = 0;
    loop {
        let mut stream = match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) if error.kind() != ErrorKind::ConnectionRefused => {
                lost += 1; // it was accepted, and reset
                continue;
            }
            _ => return lost,
        };
        let is_answered = match &tls {
            None => ask_until_closed(&mut stream, &request, &answered).await,
            Some(tls) => match tls.connect("localhost".try_into().unwrap(), stream).await {
                Ok(mut stream) => ask_until_closed(&mut stream, &request, &answered).await,
                Err(_) => false,
            },
        };
        lost += u64::from(!is_answered);
    }
}

/// Stops a server under load. How many requests were lost.
async fn stop_under_load(options: Options, tls: Option<TlsConnector>) -> u64 {
    let server = Running::start(options).await;
    let answered = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            tokio::spawn(client(server.address, tls.clone(), request(number), Arc::clone(&answered)))
        })
        .collect();
    let is_busy = async || (answered.load(Ordering::Relaxed) > 100).then_some(());
    until("the load", is_busy).await;
    server.stop().await;
    let mut lost = 0;
    for client in clients {
        lost += client.await.unwrap();
    }
    lost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stops_under_load_lose_no_request() {
    for stop in 0..5 {
        assert_eq!(stop_under_load(Options::default(), None).await, 0, "requests lost in stop {stop}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stops_under_load_over_tls_lose_no_request() {
    let scratch = Scratch::new("listener-stop-tls");
    let certificates = Certificates::make(scratch.path());
    let connector = tls::client(&certificates, None, rustls::ALL_VERSIONS);
    for stop in 0..5 {
        let options = Options { tls: Some(tls::files(&certificates)), ..Options::default() };
        let lost = stop_under_load(options, Some(connector.clone())).await;
        assert_eq!(lost, 0, "requests lost in stop {stop}");
    }
}

/// A server that has been told to stop and no longer accepts connections.
async fn stopping(limits: ListenerLimits) -> (Vec<TcpStream>, tokio::task::JoinHandle<()>) {
    let server = Running::start(Options { limits, ..Options::default() }).await;
    let address = server.address;
    // Silent; idle after a check that was answered from its bytes; idle after a request that hyper answered.
    let mut streams = vec![server.connect().await, server.connect().await, server.connect().await];
    for (stream, number) in streams.iter_mut().zip([2, 0, 1]).skip(1) {
        stream.write_all(request(number).as_bytes()).await.unwrap();
        assert!(answer(stream).await.unwrap().starts_with("HTTP/1.1 200 OK"));
    }
    let stopped = tokio::spawn(server.stop());
    let is_closed = async || {
        let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
        matches!(connected, Ok(Err(_))).then_some(())
    };
    until("the server to stop accepting", is_closed).await;
    (streams, stopped)
}

#[tokio::test]
async fn a_connection_without_a_request_may_send_one_during_the_grace_period() {
    let limits = ListenerLimits {
        farewell: Duration::ZERO,
        grace: Duration::from_secs(3_600),
        ..ListenerLimits::default()
    };
    let (streams, stopped) = stopping(limits).await;
    for (number, mut stream) in streams.into_iter().enumerate() {
        let request = check("").replace("connection: close\r\n", "");
        // The second request comes too late for an answer, and does not cost the first one its answer.
        stream.write_all(format!("{request}{request}").as_bytes()).await.unwrap();
        let answer = read_to_end(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "connection {number}: {answer}");
        assert!(answer.contains("\r\nconnection: close\r\n"), "connection {number}: {answer}");
        assert!(answer.ends_with('}'), "connection {number}: {answer}");
    }
    timeout(PATIENCE, stopped).await.expect("the stop ends with the last connection").unwrap();
}

#[tokio::test]
async fn connections_without_a_request_are_closed_in_order_after_the_grace_period() {
    let limits = ListenerLimits {
        farewell: Duration::ZERO,
        grace: Duration::from_millis(50),
        drain: Duration::from_secs(3_600),
        ..ListenerLimits::default()
    };
    let (streams, stopped) = stopping(limits).await;
    for mut stream in streams {
        let mut rest = Vec::new();
        let read = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it is closed");
        assert_eq!(read.expect("no reset"), 0);
    }
    timeout(PATIENCE, stopped).await.expect("the stop waits for nothing else").unwrap();
}
