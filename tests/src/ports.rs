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
    // Suites run side by side: each process begins elsewhere and takes steps of its own, so that two of them never try the
    // same ports one after the other. A step that is coprime with COUNT reaches every port.
    let mixed = process::id().wrapping_mul(2_654_435_761);
    let (start, mut stride) = (mixed % u32::from(COUNT), ((mixed >> 16) % u32::from(COUNT)) | 1);
    while stride.is_multiple_of(5) {
        stride += 2;
    }
    let ports = (0..COUNT).map(|_| {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        FIRST + u16::try_from((start + step * stride) % u32::from(COUNT)).expect("below COUNT")
    });
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.into_iter().find(is_free).expect("one of 16,000 ports is free")
}
