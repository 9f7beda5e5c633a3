//! An application that says hello, and how often it was asked.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// It lives as long as the test program.
pub(crate) struct Application {
    pub(crate) address: String,
    calls: Arc<AtomicU64>,
}

impl Application {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let calls = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&calls);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(stream, &counted);
            }
        });
        Application { address, calls }
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }
}

/// Counts a request and answers it, in this order: who has the answer may look at the count. A proxy may also only look
/// whether the port is open.
fn answer(mut stream: TcpStream, counted: &AtomicU64) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    counted.fetch_add(1, Ordering::SeqCst);
    let text = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";
    let _ = stream.write_all(text);
}
