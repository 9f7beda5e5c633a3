//! A closed-loop client of HTTP/2 that knows which of its requests were sent before the server said GOAWAY. It writes
//! frames itself: clients that can be had queue requests, and cannot tell one that was lost from one that was not sent.

use std::collections::HashSet;
use std::io::{self, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{BODY, reconnecting};

/// Requests in flight on one connection.
const IN_FLIGHT: usize = 4;

const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const RESET: u8 = 0x3;
const SETTINGS: u8 = 0x4;
const PING: u8 = 0x6;
const GOAWAY: u8 = 0x7;
const WINDOW_UPDATE: u8 = 0x8;
const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
/// `:status 200` in the static table; it is the first field of an answer.
const STATUS_200: u8 = 0x88;

/// Asks over HTTP/2, until no connection is accepted.
pub(crate) fn client(address: SocketAddr, number: usize, answered: &AtomicU64) -> Vec<io::Error> {
    reconnecting(address, |stream| Connection::open(stream, number)?.ask_until_closed(answered))
}

struct Connection {
    stream: BufReader<TcpStream>,
    /// Which request it sends.
    number: usize,
    next_stream: u32,
    /// Streams whose answer has not ended.
    unanswered: HashSet<u32>,
}

impl Connection {
    fn open(stream: BufReader<TcpStream>, number: usize) -> io::Result<Self> {
        let mut connection = Connection { stream, number, next_stream: 1, unanswered: HashSet::new() };
        let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        hello.extend(frame(SETTINGS, 0, 0, &[]));
        // Room for all answers of a test.
        hello.extend(frame(WINDOW_UPDATE, 0, 0, &0x7fff_0000_u32.to_be_bytes()));
        connection.stream.get_mut().write_all(&hello)?;
        Ok(connection)
    }

    /// Keeps requests in flight until the server says GOAWAY, then waits for their answers.
    fn ask_until_closed(mut self, answered: &AtomicU64) -> io::Result<()> {
        // Every third client has many connections of a few requests each.
        let mut left = if self.number % 3 == 2 { IN_FLIGHT } else { usize::MAX };
        loop {
            while left > 0 && self.unanswered.len() < IN_FLIGHT {
                self.send_request()?;
                left -= 1;
            }
            if self.unanswered.is_empty() {
                return Ok(());
            }
            let Frame { kind, flags, stream, payload } = self.read_frame()?;
            if kind == HEADERS && payload.first() != Some(&STATUS_200) {
                return Err(io::Error::other(format!("stream {stream} is not answered 200: {payload:?}")));
            }
            match kind {
                SETTINGS if flags & ACK == 0 => self.write(&frame(SETTINGS, ACK, 0, &[]))?,
                PING if flags & ACK == 0 => self.write(&frame(PING, ACK, 0, &payload))?,
                GOAWAY => {
                    self.check_goaway(&payload)?;
                    left = 0;
                }
                RESET => return Err(io::Error::other(format!("stream {stream} was reset: {payload:?}"))),
                DATA | HEADERS if flags & END_STREAM != 0 => {
                    self.unanswered.remove(&stream);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                _ => {}
            }
        }
    }

    /// Fails where a GOAWAY is an error, or disowns a request that was sent before it.
    fn check_goaway(&self, payload: &[u8]) -> io::Result<()> {
        let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        let (last, reason) = (number(0), number(4));
        match reason == 0 && self.unanswered.iter().all(|stream| *stream <= last) {
            true => Ok(()),
            false => Err(io::Error::other(format!("GOAWAY {last}, {reason}: {:?}", self.unanswered))),
        }
    }

    /// A check with a body, or another route without one.
    fn send_request(&mut self) -> io::Result<()> {
        let stream = self.next_stream;
        let request = match self.number % 2 {
            0 => {
                let head = frame(HEADERS, END_HEADERS, stream, &head(0x83, "/v1/check"));
                [head, frame(DATA, END_STREAM, stream, BODY.as_bytes())].concat()
            }
            _ => frame(HEADERS, END_HEADERS | END_STREAM, stream, &head(0x82, "/livez")),
        };
        self.next_stream += 2;
        self.unanswered.insert(stream);
        self.write(&request)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    fn read_frame(&mut self) -> io::Result<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head)?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload)?;
        Ok(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// Pseudo-header fields: the method by its place in the static table, `http`, the path and the host as literals.
fn head(method: u8, path: &str) -> Vec<u8> {
    let mut head = vec![method, 0x86];
    for (name, value) in [(0x04, path), (0x01, "localhost")] {
        head.extend([name, u8::try_from(value.len()).unwrap()]);
        head.extend(value.as_bytes());
    }
    head
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
