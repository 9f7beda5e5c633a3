//! SIGTERM under load, on real processes: every request that the kernel has accepted is answered.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use support::Served;
use tollgate_tests::poll;
use tollgate_tests::signals::Signal;

#[path = "support/http2.rs"]
mod http2;
mod support;

/// Servers that are stopped concurrently.
const SIDE_BY_SIDE: usize = 5;
const CLIENTS: usize = 10;
/// A handshake of TCP that takes longer was ignored by the kernel: the connection was not accepted.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const BODY: &str = r#"{"key": "load", "limit": "1000000/s burst 1000000"}"#;

/// What a client asks, again and again: a check on a connection that stays, another route on one, a check on a connection
/// of its own.
fn request(client: usize) -> String {
    let check = |head: &str| {
        let length = BODY.len();
        format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\n{head}content-length: {length}\r\n\r\n{BODY}")
    };
    match client % 3 {
        0 => check(""),
        1 => "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
        _ => check("connection: close\r\n"),
    }
}

/// Reads one answer. Whether it says that the connection is closed.
fn is_last(stream: &mut BufReader<TcpStream>) -> io::Result<bool> {
    let (mut length, mut is_last) = (0, false);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end().to_lowercase();
        if let Some(text) = line.strip_prefix("content-length: ") {
            length = text.parse().unwrap();
        }
        is_last |= line == "connection: close";
        if line.is_empty() {
            stream.read_exact(&mut vec![0; length])?;
            return Ok(is_last);
        }
    }
}

/// Connects again and again, until no connection is accepted. The requests that were lost, and how.
fn reconnecting(
    address: SocketAddr,
    mut ask: impl FnMut(BufReader<TcpStream>) -> io::Result<()>,
) -> Vec<io::Error> {
    let mut lost = Vec::new();
    loop {
        let stream = match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => stream,
            Err(error) if [ErrorKind::ConnectionRefused, ErrorKind::TimedOut].contains(&error.kind()) => {
                return lost;
            }
            Err(error) => {
                lost.push(error); // it was accepted, and reset
                continue;
            }
        };
        stream.set_read_timeout(Some(poll::PATIENCE)).unwrap();
        lost.extend(ask(BufReader::new(stream)).err());
    }
}

/// A closed-loop client of HTTP/1.
fn http1_client(address: SocketAddr, number: usize, answered: &AtomicU64) -> Vec<io::Error> {
    let request = request(number);
    reconnecting(address, |mut stream| {
        loop {
            stream.get_mut().write_all(request.as_bytes())?;
            let is_last = is_last(&mut stream)?;
            answered.fetch_add(1, Ordering::Relaxed);
            if is_last {
                return Ok(());
            }
        }
    })
}

/// A client with this number, which counts the requests that are answered and returns those that are lost.
type Client = fn(SocketAddr, usize, &AtomicU64) -> Vec<io::Error>;

/// Stops a server under load: how many requests it answered, and those that were lost.
fn stop_under_load(client: Client) -> (u64, Vec<io::Error>) {
    let served = Served::start(&[]);
    let (address, answered) = (served.http.parse().unwrap(), &AtomicU64::new(0));
    let lost = thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || client(address, number, answered))).collect();
        poll::blocking("the load", poll::PATIENCE, || answered.load(Ordering::Relaxed) > 500);
        Signal::Terminate.send(served.pid());
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    assert_eq!(served.wait(), Some(0), "the server stops in order");
    (answered.load(Ordering::Relaxed), lost)
}

fn stops_lose_no_request(stops: usize, client: Client) {
    let lanes: Vec<(u64, Vec<io::Error>)> = thread::scope(|scope| {
        let stops = || (0..stops / SIDE_BY_SIDE).map(|_| stop_under_load(client)).collect::<Vec<_>>();
        let lanes: Vec<_> = (0..SIDE_BY_SIDE).map(|_| scope.spawn(stops)).collect();
        lanes.into_iter().flat_map(|lane| lane.join().unwrap()).collect()
    });
    let answered: u64 = lanes.iter().map(|(answered, _)| answered).sum();
    let lost: Vec<_> = lanes.iter().flat_map(|(_, lost)| lost).collect();
    assert!(lost.is_empty(), "{} of {answered} requests were lost: {lost:?}", lost.len());
}

#[test]
fn fifty_stops_under_load_lose_no_request() {
    stops_lose_no_request(50, http1_client);
}

/// A server that stops says GOAWAY, answers every request that was sent before a client has read that, and then closes the
/// connection.
#[test]
fn stops_under_load_over_http_2_lose_no_request() {
    stops_lose_no_request(20, http2::client);
}
