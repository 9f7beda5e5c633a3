//! What clients can make a server keep in memory: floods that do not finish their requests or do not read the answers.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::io::Write as _;
use std::net::TcpStream;

use support::Served;
use tollgate_tests::poll;

mod support;

const CLIENTS: usize = 400;
const MAX_RESIDENT_MB: u64 = 256;

fn resident_mb(server: &Served) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1_024
}

/// Sends as much as the server takes, and keeps the connection.
fn send(address: &str, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut rest = bytes;
    while let Ok(count @ 1..) = stream.write(rest) {
        rest = &rest[count..];
    }
    stream
}

fn post(path: &str, length: usize, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}")
}

#[test]
fn floods_leave_the_server_under_256_mb_and_well_behaved_clients_are_served() {
    let server = Served::start(&["--store", "memory"]);
    let request = format!(r#"{{"key": "{}", "limit": "1/s"}}"#, "k".repeat(500));
    let batch = format!(r#"{{"requests": [{}]}}"#, vec![request; 1_000].join(","));
    let check = post("/v1/check", 2, "{}").repeat(2_000);
    let floods = [
        // Heads and bodies that do not end.
        format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nx: {}", "a".repeat(15 << 10)),
        post("/v1/check", 64 << 10, &" ".repeat(60 << 10)),
        post("/v1/peek", 64 << 10, &" ".repeat(60 << 10)),
        post("/v1/check/batch", 1 << 20, &" ".repeat(1_000 << 10)),
        // Answers that are not read.
        "GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100),
        post("/v1/check/batch", batch.len(), &batch),
        check,
    ];
    for flood in &floods {
        let name: String = flood.chars().take(40).collect();
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            clients.push(send(&server.http, flood.as_bytes()));
            if number % 50 == 0 {
                assert!(server.get("/livez").starts_with("HTTP/1.1 200"), "{name}");
                let checked = server.post("/v1/check", r#"{"key": "me", "limit": "1000000/s"}"#);
                assert!(checked.starts_with("HTTP/1.1 200"), "{name}: {checked}");
                let resident = resident_mb(&server);
                assert!(resident < MAX_RESIDENT_MB, "{name}: {resident} MB with {number} clients");
            }
        }
        eprintln!("{} MB: {name:?}", resident_mb(&server));
        drop(clients);
        poll::blocking("large requests to be served", poll::PATIENCE, || {
            let body = format!("{}{{}}", " ".repeat(60 << 10));
            server.post("/v1/peek", &body).starts_with("HTTP/1.1 200")
        });
    }
    server.stop();
}
