//! The bound on the memory of requests in progress and unread answers of a listener.
//!
//! ```text
//! head, body     counted while they are read, until their request is answered
//! hyper          counted while it serves a connection, over HTTP/2 until its end
//! answer         counted until the socket has taken it
//! ```
//!
//! What does not fit is answered 503 before anything is charged. The first [`UNCOUNTED`] bytes of each connection are not
//! counted, so a small request is answered whatever other connections hold, and the last eighth of the budget is for
//! connections that hold at most [`SMALL`]: large requests do not keep others from being served by hyper. Beyond [`Budget::is_short`], connections that
//! hold counted bytes and wait for their client are closed after [`SHORT_WAIT`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;

/// Bytes of each connection that are not counted.
pub(super) const UNCOUNTED: usize = 8 << 10;
/// Connections with at most so many counted bytes may use the whole budget.
const SMALL: usize = 32 << 10;
/// One connection may use this part of the budget.
const CONNECTION_PART: usize = 4;
/// How long a connection with counted bytes may wait for its client while the budget is short.
pub(super) const SHORT_WAIT: Duration = Duration::from_secs(1);

/// The bytes of one listener.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicUsize,
    max: usize,
}

impl Budget {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Budget { used: AtomicUsize::new(0), max })
    }

    /// Whether so little is left that waiting connections are closed.
    fn is_short(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.max - self.max / 4
    }

    /// Takes more bytes for a connection that then has `counted`.
    fn try_take(&self, bytes: usize, counted: usize) -> bool {
        let max = if counted <= SMALL { self.max } else { self.max - self.max / 8 };
        let fitting = |used: usize| used.checked_add(bytes).filter(|used| *used <= max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fitting).is_ok()
    }
}

/// The bytes of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionBudget {
    listener: Arc<Budget>,
    used: Mutex<usize>,
    requests: AtomicUsize,
}

impl ConnectionBudget {
    pub(crate) fn new(listener: &Arc<Budget>) -> Arc<Self> {
        let (used, requests) = (Mutex::default(), AtomicUsize::default());
        Arc::new(ConnectionBudget { listener: Arc::clone(listener), used, requests })
    }

    /// Nothing yet, of a request.
    pub(crate) fn request(self: &Arc<Self>) -> Arc<Reservation> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Arc::new(Reservation { connection: Arc::clone(self), bytes: AtomicUsize::new(0), is_request: true })
    }

    /// Nothing yet, of the connection itself.
    pub(super) fn own(self: &Arc<Self>) -> Reservation {
        Reservation { connection: Arc::clone(self), bytes: AtomicUsize::new(0), is_request: false }
    }

    /// Requests that have arrived and are not yet answered, or whose answers are not yet taken.
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether this connection should be closed if it only waits for its client.
    pub(super) fn is_evicted(&self) -> bool {
        self.listener.is_short() && *self.used.lock() > UNCOUNTED
    }

    /// Replaces `before` bytes by `after`, unless they do not fit and may not exceed the budget.
    fn replace(&self, before: usize, after: usize, excess: Excess) -> bool {
        let mut used = self.used.lock();
        let total = *used - before + after;
        let (counted, taken) = (total.saturating_sub(UNCOUNTED), used.saturating_sub(UNCOUNTED));
        let fits = match counted.checked_sub(taken) {
            None | Some(0) => {
                self.listener.used.fetch_sub(taken - counted, Ordering::Relaxed);
                true
            }
            Some(more) if excess == Excess::Allowed => {
                self.listener.used.fetch_add(more, Ordering::Relaxed);
                true
            }
            Some(more) => {
                counted <= self.listener.max / CONNECTION_PART && self.listener.try_take(more, counted)
            }
        };
        if fits {
            *used = total;
        }
        fits
    }
}

/// Whether bytes may be taken that are not left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Excess {
    Refused,
    Allowed,
}

/// Bytes of one request, or of the connection itself; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    connection: Arc<ConnectionBudget>,
    bytes: AtomicUsize,
    is_request: bool,
}

impl Reservation {
    /// Takes more bytes, if they are left.
    pub(crate) fn try_grow(&self, more: usize) -> bool {
        self.try_set(self.bytes() + more)
    }

    /// Holds so many bytes from now on, if they are left.
    pub(crate) fn try_set(&self, bytes: usize) -> bool {
        let fits = self.connection.replace(self.bytes(), bytes, Excess::Refused);
        if fits {
            self.bytes.store(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// Holds so many bytes from now on, also if they are not left: what was charged is answered.
    pub(crate) fn set(&self, bytes: usize) {
        self.connection.replace(self.bytes(), bytes, Excess::Allowed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Done when the connection has to stop waiting for its client.
    pub(crate) async fn evicted(&self) {
        loop {
            sleep(SHORT_WAIT).await;
            if self.connection.is_evicted() {
                return;
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.set(0);
        if self.is_request {
            self.connection.requests.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 400 << 10;

    fn used(budget: &Budget) -> usize {
        budget.used.load(Ordering::Relaxed)
    }

    #[test]
    fn the_first_bytes_of_a_connection_are_not_counted_and_all_others_are_given_back() {
        let budget = Budget::new(MAX);
        let connection = ConnectionBudget::new(&budget);
        let (own, request) = (connection.own(), connection.request());
        assert!(own.try_grow(UNCOUNTED - 1) && request.try_grow(1));
        assert_eq!(used(&budget), 0);
        assert!(request.try_grow(100) && own.try_grow(50));
        assert_eq!(used(&budget), 150);
        drop(own);
        assert_eq!(used(&budget), 0, "what is left is less than what is not counted");
        request.set(2 * UNCOUNTED);
        assert_eq!((used(&budget), connection.requests()), (UNCOUNTED, 1));
        drop(request);
        assert_eq!((used(&budget), connection.requests()), (0, 0));
    }

    #[test]
    fn small_requests_fit_when_nothing_is_left_and_charged_answers_exceed_the_budget() {
        let budget = Budget::new(MAX);
        let greedy: Vec<_> = (0..CONNECTION_PART).map(|_| ConnectionBudget::new(&budget).own()).collect();
        let (last, others) = greedy.split_last().unwrap();
        for reservation in others {
            assert!(reservation.try_grow(UNCOUNTED + MAX / CONNECTION_PART));
            assert!(!reservation.try_grow(1), "one connection has its part at most");
        }
        assert!(last.try_grow(UNCOUNTED + MAX / 8) && !last.try_grow(1), "the last eighth is for others");
        assert!(greedy[0].connection.is_evicted());
        let small = [SMALL, MAX / 8 - SMALL].map(|bytes| {
            let reservation = ConnectionBudget::new(&budget).own();
            assert!(reservation.try_set(UNCOUNTED + bytes));
            reservation
        });
        assert_eq!(used(&budget), MAX);
        let modest = ConnectionBudget::new(&budget);
        let request = modest.request();
        assert!(request.try_set(UNCOUNTED));
        assert!(!request.try_grow(1));
        assert!(!modest.is_evicted(), "it holds nothing that is counted");
        request.set(UNCOUNTED + 1);
        assert_eq!(used(&budget), MAX + 1);
        drop((greedy, small, request));
        assert_eq!(used(&budget), 0);
    }
}
