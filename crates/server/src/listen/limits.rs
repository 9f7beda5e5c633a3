//! The bounds of a listener.

use std::time::Duration;

use crate::http::Plane;

/// Connections on the admin plane, and on the listener of the metrics.
const MAX_ADMIN_CONNECTIONS: usize = 1_024;
/// Connections of one client address on these.
const MAX_ADMIN_CONNECTIONS_PER_ADDRESS: usize = 64;

/// How many connections a listener serves, how much memory they may use, and how long it waits for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Connections to the data plane, and at most 1,024 of them to each other listener. Further ones are rejected.
    pub connections: usize,
    /// Connections of one client address to the data plane; each other listener has at most 64. Loopback addresses and
    /// trusted proxies have no such bound.
    pub connections_per_address: Option<usize>,
    /// Bytes of requests in progress and of unread answers, for each listener. What does not fit is answered 503.
    pub memory: usize,
    /// Time for a TLS handshake.
    pub handshake: Duration,
    /// Time for the head of a request, from its first byte, and for the preface of HTTP/2.
    pub head: Duration,
    /// Time that a connection may be without a request. Over HTTP/2, answers to PINGs do not count.
    pub idle: Duration,
    /// Time for a request to be answered, from the end of its head.
    pub request: Duration,
    /// Time without progress while an answer waits to be read.
    pub unread: Duration,
    /// Before it stops accepting connections, a server that is told to stop says so in every answer for this time, so
    /// that clients move elsewhere before the port is closed.
    pub farewell: Duration,
    /// After it has stopped accepting, connections without a request may still send one for this time. It is longer than
    /// a client that has just connected needs to send its request.
    pub grace: Duration,
    /// Time for requests in progress to be answered after that.
    pub drain: Duration,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        ListenerLimits {
            connections: 10_000,
            connections_per_address: None,
            memory: 64 << 20,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            // Longer than the 60 s after which proxies usually close an idle connection to a server.
            idle: Duration::from_secs(75),
            request: Duration::from_secs(30),
            unread: Duration::from_secs(30),
            farewell: Duration::from_millis(200),
            grace: Duration::from_secs(1),
            drain: Duration::from_secs(10),
        }
    }
}

impl ListenerLimits {
    /// The limits of one listener.
    pub(super) fn of(self, plane: Plane) -> Self {
        match plane {
            Plane::Data => self,
            _ => ListenerLimits {
                connections: self.connections.min(MAX_ADMIN_CONNECTIONS),
                connections_per_address: Some(MAX_ADMIN_CONNECTIONS_PER_ADDRESS),
                ..self
            },
        }
    }
}
