//! Ports that are free, and stay ours while nobody listens.

use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below what the system gives to outgoing connections: on a port of theirs a server that is down for a moment may
/// find somebody else when it comes back, and a client that knocks meanwhile may be connected to itself.
const FIRST: u16 = 16_000;
/// How many there are.
const COUNT: u16 = 16_000;

/// A port on loopback where nobody listens. No two calls in a process get the same one.
///
/// # Panics
///
/// All are taken.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Suites run side by side: each process begins elsewhere.
    let start = u16::try_from(process::id().wrapping_mul(97) % u32::from(COUNT)).expect("below COUNT");
    let ports = (0..COUNT).map(|_| {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        FIRST + u16::try_from((u32::from(start) + step) % u32::from(COUNT)).expect("below COUNT")
    });
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.into_iter().find(is_free).expect("one of 16,000 ports is free")
}
