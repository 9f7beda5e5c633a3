//! Ports that are free, and stay reserved while no server listens on them.

use std::net::{Ipv4Addr, SocketAddr};
use std::process;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

use tokio::net::TcpSocket;

/// Usually below the range for outgoing connections: a client that connects to a port of that range while its server is
/// down may be connected to itself.
const FIRST: u16 = 16_000;
/// How many there are.
const COUNT: u16 = 16_000;

/// A port of loopback that is reserved until it is dropped.
///
/// It is held by a socket that is bound and does not listen: connections are refused, the system gives the port to no
/// other socket, and no other test process takes it. A server that sets `SO_REUSEADDR`, as they all do, can listen on it,
/// and listen again after it was down.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _bound: TcpSocket,
}

impl Port {
    /// Reserves a port on which no server listens.
    ///
    /// # Panics
    ///
    /// All are taken.
    pub fn reserve() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        // Suites run in parallel: each process begins elsewhere and takes steps of its own. A step that is coprime with
        // COUNT reaches every port.
        let mixed = process::id().wrapping_mul(2_654_435_761);
        let (start, mut stride) = (mixed % u32::from(COUNT), ((mixed >> 16) % u32::from(COUNT)) | 1);
        while stride.is_multiple_of(5) {
            stride += 2;
        }
        let mut ports = (0..COUNT).map(|_| {
            let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
            FIRST + u16::try_from((start + step * stride) % u32::from(COUNT)).expect("below COUNT")
        });
        ports.find_map(Self::bind).expect("one of 16,000 ports is free")
    }

    /// Binds without `SO_REUSEADDR`, which fails if another socket has the port, and then allows servers to share it.
    fn bind(number: u16) -> Option<Self> {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(false).expect("an option of every socket");
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, number))).ok()?;
        socket.set_reuseaddr(true).expect("an option of every socket");
        Some(Port { number, _bound: socket })
    }

    /// The number.
    pub const fn get(&self) -> u16 {
        self.number
    }
}

/// The number of a port that is reserved until the process ends.
///
/// # Panics
///
/// All are taken.
pub fn free_port() -> u16 {
    static RESERVED: Mutex<Vec<Port>> = Mutex::new(Vec::new());
    let port = Port::reserve();
    let number = port.get();
    RESERVED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(port);
    number
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_reserved_port_refuses_connections_and_only_servers_can_listen_on_it() {
        let port = Port::reserve();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.get()));
        for _ in 0..3 {
            let refused = TcpStream::connect(address).expect_err("no server listens");
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            assert!(Port::bind(port.get()).is_none(), "another process reserved it too");
            let server = TcpListener::bind(address).expect("the port is reserved for this server");
            let client = TcpStream::connect(address).expect("the server listens");
            drop((server, client));
        }
    }
}
