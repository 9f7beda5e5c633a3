//! Closing a listening socket without losing the connections in its backlog.
//!
//! The kernel completes handshakes by itself and keeps the connections in a backlog until they are accepted. Closing the
//! socket resets those that are still there, with the requests that their clients have sent. Accepting them all first is
//! not enough, because the next connection can arrive between the last `accept` and `close`. So the socket is told to
//! ignore new handshakes; then the backlog can only shrink. A client whose handshake is ignored repeats it a second later
//! and is refused by the closed port.

use std::io;
use std::time::Duration;

use tokio::net::TcpListener;

/// How long the backlog may take at most.
pub(super) const DEADLINE: Duration = Duration::from_secs(1);
/// A handshake that has begun is completed within this time, or its client is too far away to wait for.
const HANDSHAKE: Duration = Duration::from_millis(100);
/// Without the filter, the backlog is empty when nothing arrives for this time.
pub(super) const UNFILTERED: Duration = Duration::from_millis(5);

/// Stops the kernel from beginning handshakes. Returns how long nothing may arrive before the backlog is empty.
pub(super) fn refuse_handshakes(socket: &TcpListener) -> Duration {
    match ignore_new_connections(socket) {
        Ok(()) => HANDSHAKE,
        Err(error) => {
            tracing::debug!(%error, "the kernel cannot ignore new connections; the last ones may be reset");
            UNFILTERED
        }
    }
}

/// Drops the segments that open a connection (SYN without ACK) and no others.
#[cfg(target_os = "linux")]
fn ignore_new_connections(socket: &TcpListener) -> io::Result<()> {
    use socket2::{SockFilter, SockRef};

    const LOAD_BYTE: u16 = 0x30;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const TCP_FLAGS: u32 = 13; // where they are in the TCP header
    const SYN: u32 = 0x02;
    const ACK: u32 = 0x10;
    const DROP: u32 = 0;
    const PASS: u32 = u32::MAX;

    SockRef::from(socket).attach_filter(&[
        SockFilter::new(LOAD_BYTE, 0, 0, TCP_FLAGS),
        SockFilter::new(AND, 0, 0, SYN | ACK),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, SYN),
        SockFilter::new(RETURN, 0, 0, DROP),
        SockFilter::new(RETURN, 0, 0, PASS),
    ])
}

#[cfg(not(target_os = "linux"))]
fn ignore_new_connections(_: &TcpListener) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn connections_in_the_backlog_are_kept_and_new_ones_are_ignored() {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let waiting = TcpStream::connect(address).await.unwrap();
        assert_eq!(refuse_handshakes(&socket), HANDSHAKE);
        let ignored = timeout(HANDSHAKE, TcpStream::connect(address)).await;
        assert!(ignored.is_err(), "{ignored:?}");
        let (_, peer) = socket.accept().await.unwrap();
        assert_eq!(peer, waiting.local_addr().unwrap());
        assert!(timeout(HANDSHAKE, socket.accept()).await.is_err(), "the backlog is empty");
    }
}
