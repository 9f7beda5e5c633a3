//! News for everybody who listens: each event is written once, whoever reads it, and nobody is waited for.
//!
//! Publishing puts an event into a short memory and into a channel with a bound. A listener that falls behind by more
//! than the channel holds has lost something and is let go; it may come back and say what it saw last.
//!
//! The number of listeners has a bound too. The kernels on both sides take some hundred kilobytes for a client that does
//! not read, so it may look like one that does for a long time. When all places are taken, a new listener therefore gets
//! the place of another that has had it for [`TENURE`]: of one that is behind if there is one, else of the oldest. A client
//! that reads comes back with what it saw last and misses nothing.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;

/// The most listeners there may be.
pub(crate) const MOST_LISTENERS: usize = 256;
/// A listener that is found behind more often, at intervals of a second, and takes no event in between, does not read.
const MAX_TIMES_BEHIND: u32 = 30;
/// For how long a listener keeps its place in any case.
const TENURE: Duration = Duration::from_secs(30);
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
    since: Instant,
    /// How often it was found behind since it last took an event.
    behind: AtomicU32,
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
    /// there are too many, all of them new.
    pub(crate) fn listen(self: &Arc<Self>, last: Option<u64>, hangup: Hangup) -> Option<Listener> {
        let recent = self.recent.lock();
        let newest = recent.back().map_or(0, |event| event.id);
        let (seen, behind) = (AtomicU64::new(newest), AtomicU32::new(0));
        let place = Arc::new(Place { seen, since: Instant::now(), behind, hangup });
        let mut listeners = self.listeners.lock();
        if listeners.len() >= MOST_LISTENERS {
            let replaced = replaceable(&listeners)?;
            listeners.remove(replaced).hangup.now();
        }
        listeners.push(Arc::clone(&place));
        let missed = match last {
            Some(last) => recent.iter().filter(|event| event.id > last).cloned().collect(),
            None => VecDeque::new(),
        };
        let (receiver, closed) = (self.sender.subscribe(), self.closed.subscribe());
        Some(Listener { hub: Arc::clone(self), place, missed, receiver, closed })
    }

    /// Disconnects the listeners that take no events. Called once a second.
    pub(crate) fn drop_stragglers(&self) {
        let newest = self.recent.lock().back().map_or(0, |event| event.id);
        for place in self.listeners.lock().iter() {
            if place.seen.load(Ordering::Relaxed) < newest
                && place.behind.fetch_add(1, Ordering::Relaxed) >= MAX_TIMES_BEHIND
            {
                place.hangup.now();
            }
        }
    }
}

/// Which of the listeners, in the order of their coming, gives its place to a new one.
fn replaceable(listeners: &[Arc<Place>]) -> Option<usize> {
    let tenured = listeners.iter().enumerate().filter(|(_, place)| place.since.elapsed() >= TENURE);
    tenured.min_by_key(|(_, place)| place.seen.load(Ordering::Relaxed)).map(|(number, _)| number)
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
        self.place.behind.store(0, Ordering::Relaxed);
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
    use futures_util::FutureExt as _;

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
        (0..=MAX_TIMES_BEHIND).for_each(|_| hub.drop_stragglers());
        assert!(is_hung_up(&hangup));
        assert!(deaf.next().await.is_none());
        assert_eq!(hub.recent.lock().len(), REMEMBERED);
    }

    #[tokio::test]
    async fn a_listener_that_takes_events_slowly_is_kept_and_one_that_takes_none_is_not() {
        let hub = Arc::new(Hub::new());
        let [slow, deaf] = [Hangup::default(), Hangup::default()];
        let mut reads = hub.listen(None, slow.clone()).unwrap();
        let _does_not = hub.listen(None, deaf.clone()).unwrap();
        (0..3).for_each(|n| hub.publish(Kind::Stats, &n));
        for _ in 0..2 {
            assert!(!is_hung_up(&deaf));
            reads.next().await.unwrap();
            (0..MAX_TIMES_BEHIND).for_each(|_| hub.drop_stragglers());
        }
        assert!(is_hung_up(&deaf) && !is_hung_up(&slow));
    }

    fn full(hub: &Arc<Hub>) -> Vec<(Listener, Hangup)> {
        let listen = |_| {
            let hangup = Hangup::default();
            (hub.listen(None, hangup.clone()).unwrap(), hangup)
        };
        (0..MOST_LISTENERS).map(listen).collect()
    }

    fn is_hung_up(hangup: &Hangup) -> bool {
        hangup.asked().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_listener_gets_the_place_of_one_that_does_not_read() {
        let hub = Arc::new(Hub::new());
        let mut all = full(&hub);
        hub.publish(Kind::Stats, &1);
        for (number, (listener, _)) in all.iter_mut().enumerate() {
            if number != 7 {
                listener.next().await.unwrap();
            }
        }
        assert!(hub.listen(None, Hangup::default()).is_none(), "all are new");
        tokio::time::advance(TENURE).await;
        let mut late = hub.listen(None, Hangup::default()).expect("a place");
        let hung_up: Vec<usize> = (0..all.len()).filter(|number| is_hung_up(&all[*number].1)).collect();
        assert_eq!(hung_up, [7], "the one that has not read");
        hub.publish(Kind::Stats, &2);
        assert!(late.next().await.is_some());
        drop(all);
        assert_eq!(hub.listeners.lock().len(), 1, "the place that was given away is not freed twice");
    }

    #[tokio::test(start_paused = true)]
    async fn of_listeners_that_all_read_the_oldest_makes_room_and_comes_back_with_what_it_saw() {
        let hub = Arc::new(Hub::new());
        let mut oldest = hub.listen(None, Hangup::default()).unwrap();
        tokio::time::advance(TENURE).await;
        let others: Vec<Listener> =
            (1..MOST_LISTENERS).map(|_| hub.listen(None, Hangup::default()).unwrap()).collect();
        hub.publish(Kind::Stats, &1);
        let seen = oldest.next().await.unwrap().id;
        let new = hub.listen(None, Hangup::default()).expect("the place of the oldest");
        assert!(hub.listen(None, Hangup::default()).is_none(), "the others are new");
        hub.publish(Kind::Stats, &2);
        drop((others, new));
        let mut back = hub.listen(Some(seen), Hangup::default()).unwrap();
        assert_eq!(back.next().await.unwrap().id, seen + 1);
    }

    #[tokio::test]
    async fn there_is_room_for_so_many_and_a_place_is_free_again() {
        let hub = Arc::new(Hub::new());
        let mut all: Vec<Listener> =
            (0..MOST_LISTENERS).map(|_| hub.listen(None, Hangup::default()).unwrap()).collect();
        assert!(hub.listen(None, Hangup::default()).is_none());
        all.pop();
        assert!(hub.listen(None, Hangup::default()).is_some());
    }
}
