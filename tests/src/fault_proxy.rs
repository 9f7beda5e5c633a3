//! A TCP proxy that breaks what passes through it.
//!
//! It stands between a client and a server and does what networks do to them. The [`Mode`] is switched while
//! connections are open, and holds for them at once.

mod connection;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::poll;
use crate::ports::Port;
use connection::connection;

/// What becomes of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They pass.
    Pass,
    /// Replies arrive so much later.
    Delay(Duration),
    /// Nothing moves, in neither direction. Connections can be opened. What was sent meanwhile arrives when the
    /// mode changes, as it does after a network has healed.
    Blackhole,
    /// Connections are forgotten, as by a firewall that was restarted: what is sent over those that were open in this
    /// mode never arrives, not even when it is over. New ones can be opened.
    Forget,
    /// Connections are reset: those that are open at once, new ones as soon as they are accepted.
    Reset,
    /// Open connections are reset, and new ones are refused.
    Refuse,
    /// So many bytes of replies pass on each connection, then it is closed. With 0 the server has executed what it
    /// was asked, and the client only sees that the connection is gone.
    CutAfter(u64),
    /// Requests pass and replies are lost. A connection that has lost one is reset when the mode changes: TCP never
    /// leaves a gap.
    DropReplies,
    /// Requests pass, and whatever the server replies, the client reads this.
    Answer(&'static [u8]),
    /// Requests pass, and whatever the server replies, the client reads one that has no end.
    Giant,
}

impl Mode {
    /// Something that is no Redis answers.
    pub const GARBAGE: Mode = Mode::Answer(b"HTTP/1.1 400 Bad Request\r\n\r\n");
}

/// The mode as connections see it.
type Modes = watch::Receiver<Mode>;

/// What has passed so far.
#[derive(Debug, Default)]
struct Counters {
    accepted: AtomicU64,
    open: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
}

/// The proxy; gone, with all its connections, when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    port: Port,
    mode: watch::Sender<Mode>,
    listening: watch::Receiver<bool>,
    counters: Arc<Counters>,
    acceptor: JoinHandle<()>,
}

impl FaultProxy {
    /// A proxy on a port of its own for the server on that port of loopback.
    ///
    /// # Panics
    ///
    /// No port is free.
    pub async fn start(server_port: u16) -> Self {
        let port = Port::reserve();
        let (mode, mode_changes) = watch::channel(Mode::Pass);
        let (is_listening, listening) = watch::channel(false);
        let counters = Arc::new(Counters::default());
        let acceptor = Acceptor { port: port.get(), server_port, mode: mode_changes, is_listening };
        let acceptor = tokio::spawn(acceptor.run(counters.clone()));
        let mut proxy = FaultProxy { port, mode, listening, counters, acceptor };
        proxy.listening.wait_for(|listening| *listening).await.expect("the proxy listens");
        proxy
    }

    /// Changes the mode, and returns when it holds for whoever knocks from now on.
    ///
    /// # Panics
    ///
    /// The proxy cannot listen on its port any more.
    pub async fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
        let listens = mode != Mode::Refuse;
        self.listening.clone().wait_for(|listening| *listening == listens).await.expect("the proxy runs");
        if matches!(mode, Mode::Refuse | Mode::Reset) {
            poll::until("the connections to be reset", async || (self.open() == 0).then_some(())).await;
        }
    }

    /// The port on 127.0.0.1.
    pub const fn port(&self) -> u16 {
        self.port.get()
    }

    /// Where clients of a Redis behind it find it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.counters.accepted.load(Ordering::Relaxed)
    }

    /// Connections that are open.
    pub fn open(&self) -> u64 {
        self.counters.open.load(Ordering::Relaxed)
    }

    /// Bytes of requests that reached the server.
    pub fn to_server(&self) -> u64 {
        self.counters.to_server.load(Ordering::Relaxed)
    }

    /// Bytes of replies, or of what stood for them, that were sent to clients.
    pub fn to_client(&self) -> u64 {
        self.counters.to_client.load(Ordering::Relaxed)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

struct Acceptor {
    port: u16,
    server_port: u16,
    mode: Modes,
    is_listening: watch::Sender<bool>,
}

impl Acceptor {
    /// Listens and serves until it is aborted, and its connections with it.
    async fn run(mut self, counters: Arc<Counters>) {
        let mut connections = JoinSet::new();
        loop {
            if *self.mode.borrow_and_update() == Mode::Refuse {
                self.is_listening.send_replace(false);
                if self.mode.wait_for(|mode| *mode != Mode::Refuse).await.is_err() {
                    return;
                }
            }
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).await;
            let listener = listener.expect("the port is reserved for this proxy");
            self.is_listening.send_replace(true);
            let mode = self.mode.clone();
            loop {
                tokio::select! {
                    Ok((client, _)) = listener.accept() => {
                        counters.accepted.fetch_add(1, Ordering::Relaxed);
                        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, self.server_port));
                        connections.spawn(connection(client, server, mode.clone(), counters.clone()));
                    }
                    Some(_) = connections.join_next() => {}
                    refused = self.mode.wait_for(|mode| *mode == Mode::Refuse) => match refused {
                        Ok(_) => break,
                        Err(_) => return,
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
