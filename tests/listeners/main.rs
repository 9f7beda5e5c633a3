//! A server among clients that are slow, greedy, hostile or strangers: FAULTS.md "Listeners" and "Input".

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod access;
mod direct;
mod floods;
mod half_close;
mod http2;
mod memory;
mod places;
mod server;
mod shutdown;
mod tls;
mod unread;
