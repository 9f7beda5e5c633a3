//! News for everybody who listens: each event is written once, whoever reads it, and nobody is waited for.
//!
//! Publishing puts an event into a short memory and into a channel with a bound. A listener that falls behind by more
//! than the channel holds has lost something and is let go; it may come back and say what it saw last.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use axum::body::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Notify, broadcast, watch};

/// The most listeners there may be.
pub(crate) const MOST_LISTENERS: usize = 256;
/// How far behind a listener may be, and how much one that comes back may have missed.
const REMEMBERED: usize = 512;

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Stats,
    Decision,
    Violation,
    Rules,
    Store,
}

impl Kind {
    pub(crate) const ALL: [Kind; 5] =
        [Kind::Stats, Kind::Decision, Kind::Violation, Kind::Rules, Kind::Store];

    /// The word on the wire.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Kind::Stats => "stats",
            Kind::Decision => "decision",
            Kind::Violation => "violation",
            Kind::Rules => "rules",
            Kind::Store => "store",
        }
    }
}

/// An event as it goes over the wire.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    pub(crate) text: Bytes,
}

/// Where events are published and heard.
#[derive(Debug)]
pub(crate) struct Hub {
    sender: broadcast::Sender<Arc<Event>>,
    /// The last events, in order; held while one is published, so that nobody misses one or hears it twice.
    recent: Mutex<VecDeque<Arc<Event>>>,
    listeners: Mutex<Vec<Arc<Place>>>,
    begun: AtomicBool,
    closed: watch::Sender<bool>,
}

/// How far a listener is, and how to hang up on it.
#[derive(Debug)]
struct Place {
    seen: AtomicU64,
    hangup: Hangup,
}

/// Ends the connection that a request came by, also when nobody reads at its other end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hangup(Arc<Notify>);

impl Hangup {
    fn now(&self) {
        self.0.notify_one();
    }

    /// Done when the connection is to be dropped.
    pub(crate) async fn asked(&self) {
        self.0.notified().await;
    }
}

/// Somebody who hears events, until it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    hub: Arc<Hub>,
    place: Arc<Place>,
    missed: VecDeque<Arc<Event>>,
    receiver: broadcast::Receiver<Arc<Event>>,
    closed: watch::Receiver<bool>,
}

impl Hub {
    pub(crate) fn new() -> Self {
        Hub {
            sender: broadcast::Sender::new(REMEMBERED),
            recent: Mutex::default(),
            listeners: Mutex::default(),
            begun: AtomicBool::new(false),
            closed: watch::Sender::new(false),
        }
    }

    /// Whether nobody has begun to publish; true once.
    pub(crate) fn begin(&self) -> bool {
        !self.begun.swap(true, Ordering::AcqRel)
    }

    /// Ends every stream.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Done when streams end.
    pub(crate) async fn closing(&self) {
        // An error is a hub that is gone, which is closed as well.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Tells everybody who listens.
    pub(crate) fn publish(&self, kind: Kind, data: &impl Serialize) {
        let Ok(data) = serde_json::to_string(data) else { return }; // text and numbers are always JSON
        let mut recent = self.recent.lock();
        let id = recent.back().map_or(1, |last| last.id + 1);
        let mut text = String::with_capacity(data.len() + 48);
        let _ = write!(text, "id: {id}\nevent: {}\ndata: {data}\n\n", kind.as_str());
        let event = Arc::new(Event { id, kind, text: text.into() });
        if recent.len() == REMEMBERED {
            recent.pop_front();
        }
        recent.push_back(Arc::clone(&event));
        let _ = self.sender.send(event); // an error is that nobody listens
    }

    /// A new listener, who saw everything up to `last`, or nothing of the past where that is not given. None when
    /// there are too many.
    pub(crate) fn listen(self: &Arc<Self>, last: Option<u64>, hangup: Hangup) -> Option<Listener> {
        let recent = self.recent.lock();
        let newest = recent.back().map_or(0, |event| event.id);
        let place = Arc::new(Place { seen: AtomicU64::new(newest), hangup });
        let mut listeners = self.listeners.lock();
        if listeners.len() >= MOST_LISTENERS {
            return None;
        }
        listeners.push(Arc::clone(&place));
        let missed = match last {
            Some(last) => recent.iter().filter(|event| event.id > last).cloned().collect(),
            None => VecDeque::new(),
        };
        let (receiver, closed) = (self.sender.subscribe(), self.closed.subscribe());
        Some(Listener { hub: Arc::clone(self), place, missed, receiver, closed })
    }

    /// Hangs up on those who have not read for so long that they have lost something.
    pub(crate) fn drop_stragglers(&self) {
        let newest = self.recent.lock().back().map_or(0, |event| event.id);
        let far_behind = newest.saturating_sub(u64::try_from(REMEMBERED).unwrap_or(u64::MAX));
        for place in self.listeners.lock().iter() {
            if place.seen.load(Ordering::Relaxed) < far_behind {
                place.hangup.now();
            }
        }
    }
}

impl Listener {
    /// The next event; none when the stream ends, because the server stops or the listener fell behind.
    pub(crate) async fn next(&mut self) -> Option<Arc<Event>> {
        if let Some(event) = self.missed.pop_front() {
            return Some(event);
        }
        let event = tokio::select! {
            biased;
            _ = self.closed.wait_for(|closed| *closed) => return None,
            heard = self.receiver.recv() => heard.ok()?,
        };
        self.place.seen.store(event.id, Ordering::Relaxed);
        Some(event)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.hub.listeners.lock().retain(|place| !Arc::ptr_eq(place, &self.place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(event: Option<Arc<Event>>) -> Option<String> {
        event.map(|event| String::from_utf8(event.text.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn events_are_heard_in_order_and_what_was_missed_first() {
        let hub = Arc::new(Hub::new());
        hub.publish(Kind::Rules, &1);
        hub.publish(Kind::Store, &2);
        let mut late = hub.listen(Some(1), Hangup::default()).unwrap();
        let mut fresh = hub.listen(None, Hangup::default()).unwrap();
        hub.publish(Kind::Stats, &3);
        assert_eq!(text(late.next().await).as_deref(), Some("id: 2\nevent: store\ndata: 2\n\n"));
        for listener in [&mut late, &mut fresh] {
            assert_eq!(text(listener.next().await).as_deref(), Some("id: 3\nevent: stats\ndata: 3\n\n"));
        }
        hub.close();
        assert!(late.next().await.is_none());
    }

    #[tokio::test]
    async fn whoever_does_not_read_is_let_go_and_costs_nobody() {
        let hub = Arc::new(Hub::new());
        let hangup = Hangup::default();
        let mut deaf = hub.listen(None, hangup.clone()).unwrap();
        for n in 0..=REMEMBERED {
            hub.publish(Kind::Stats, &n);
        }
        hub.drop_stragglers();
        hangup.asked().await;
        assert!(deaf.next().await.is_none());
        assert_eq!(hub.recent.lock().len(), REMEMBERED);
    }

    #[test]
    fn there_is_room_for_so_many_and_a_place_is_free_again() {
        let hub = Arc::new(Hub::new());
        let mut all: Vec<Listener> =
            (0..MOST_LISTENERS).map(|_| hub.listen(None, Hangup::default()).unwrap()).collect();
        assert!(hub.listen(None, Hangup::default()).is_none());
        all.pop();
        assert!(hub.listen(None, Hangup::default()).is_some());
    }
}
