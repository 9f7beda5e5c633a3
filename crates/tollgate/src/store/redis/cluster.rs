//! A Cluster: which node has which slots, and a link to each.
//!
//! The table of slots is one snapshot, replaced whole. A node that sends us elsewhere corrects it at once; besides, one
//! task reads it anew from any node that answers, when something failed and every few seconds. Each node has its own
//! link, with its own breaker, its own bound on who waits and its own script: one that is slow or gone delays nobody
//! who does not need it.
//!
//! Only what proves that nothing was done is followed by another try, within the deadline of the decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::{Cmd, Value};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::answer::{Outcome, Redirect};
use super::config::RedisBuilder;
use super::connection::Preface;
use super::link::{Counters, Kind, Link, Target};
use super::sentinel::Dialer;
use super::slots::{self, Range, SLOTS};
use super::stream::Dial;
use crate::doctor::reason;
use crate::store::StoreError;

/// Nobody has the slot.
const NOBODY: u16 = u16::MAX;
/// How often a command is sent elsewhere before it waits a moment.
const MOST_HOPS: usize = 5;
/// The pause before it is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(5);
/// The table is read anew no more often than this, and no more rarely than that.
const PACE: Duration = Duration::from_millis(100);
const PERIOD: Duration = Duration::from_secs(5);

/// The nodes of a Cluster. Dropping it ends all links.
pub(super) struct Cluster {
    map: Arc<Map>,
    reader: JoinHandle<()>,
}

/// One node.
#[derive(Debug)]
pub(super) struct Node {
    dial: Dial,
    pub(super) link: Link,
}

/// Who has which slot.
#[derive(Debug)]
struct Table {
    nodes: Vec<Arc<Node>>,
    /// The place of each slot's node among them.
    slots: Vec<u16>,
}

struct Map {
    config: RedisBuilder,
    seeds: Vec<Dial>,
    counters: Arc<Counters>,
    table: ArcSwap<Table>,
    /// One change of the table at a time.
    changing: Mutex<()>,
    /// The table may be out of date.
    doubted: Notify,
    /// Whether the last attempt to read it failed.
    untold: AtomicBool,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Cluster {
    /// Reads the table from one of the seeds and begins to connect to every node.
    pub(super) async fn start(config: &RedisBuilder, seeds: Vec<Dial>, counters: Arc<Counters>) -> Self {
        let nobody = Table { nodes: Vec::new(), slots: vec![NOBODY; usize::from(SLOTS)] };
        let map = Arc::new(Map {
            config: config.clone(),
            seeds,
            counters,
            table: ArcSwap::from_pointee(nobody),
            changing: Mutex::new(()),
            doubted: Notify::new(),
            untold: AtomicBool::new(false),
        });
        map.read().await;
        let reader = tokio::spawn(keep_reading(Arc::clone(&map)));
        Cluster { map, reader }
    }

    /// Sends a command to whoever has a slot, and follows where that node sends us.
    pub(super) async fn call<T>(
        &self,
        slot: u16,
        command: &Cmd,
        deadline: Instant,
        read: impl Fn(Value) -> Option<T>,
    ) -> Result<T, StoreError> {
        let mut asking = None;
        let mut hops = 0;
        loop {
            let (node, preface) = match asking.take() {
                Some(node) => (node, Preface::Asking),
                None => (self.owner(slot).ok_or(StoreError::Unreachable.unsent())?, Preface::None),
            };
            let outcome = node.link.attempt(command, preface, deadline, &read).await;
            let redirect = match outcome {
                Ok(Outcome::Done(answer)) => return Ok(answer),
                Ok(Outcome::Elsewhere(redirect)) => redirect,
                Err(error) => {
                    self.map.doubted.notify_one();
                    return Err(error);
                }
            };
            hops += 1;
            match self.map.follow(slot, &node, redirect) {
                Follow::Again if hops % MOST_HOPS != 0 => {}
                Follow::Asking(there) if hops % MOST_HOPS != 0 => asking = Some(there),
                Follow::Again | Follow::Asking(_) => {
                    wait(deadline, &node, StoreError::rejected("MOVED")).await?
                }
                Follow::Later(error) => wait(deadline, &node, error).await?,
            }
        }
    }

    /// Whether it is known that nobody will answer for a slot.
    pub(super) fn is_down(&self, slot: u16) -> bool {
        self.owner(slot).is_none_or(|node| node.link.is_down())
    }

    /// Whether somebody answers for a slot, as far as is known.
    pub(super) fn reaches(&self, slot: u16) -> bool {
        self.owner(slot).is_some_and(|node| node.link.is_reachable())
    }

    /// A charge was written in a slot.
    pub(super) fn wrote(&self, slot: u16) {
        if let Some(node) = self.owner(slot) {
            node.link.wrote();
        }
    }

    /// Every node.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        self.map.table.load().nodes.clone()
    }

    /// Whether every slot has somebody.
    pub(super) fn is_covered(&self) -> bool {
        !self.map.table.load().slots.contains(&NOBODY)
    }

    fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        let node = self.map.table.load().owner(slot);
        if node.is_none() {
            self.map.doubted.notify_one();
        }
        node
    }
}

/// Waits a moment, if the deadline leaves one.
async fn wait(deadline: Instant, node: &Node, error: StoreError) -> Result<(), StoreError> {
    if Instant::now() + RETRY_DELAY >= deadline {
        return Err(node.link.given_up(error));
    }
    tokio::time::sleep(RETRY_DELAY).await;
    Ok(())
}

/// What to do after a node did nothing.
enum Follow {
    Again,
    Asking(Arc<Node>),
    Later(StoreError),
}

impl Table {
    fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        let place = self.slots[usize::from(slot)];
        self.nodes.get(usize::from(place)).cloned()
    }

    fn node(&self, dial: &Dial) -> Option<usize> {
        self.nodes.iter().position(|node| node.dial.info.addr() == dial.info.addr())
    }
}

impl Map {
    fn follow(self: &Arc<Self>, slot: u16, from: &Node, redirect: Redirect) -> Follow {
        let node = |address: &str| {
            let (host, port) = slots::address(address, from.dial.host())?;
            Some(from.dial.to(host, port))
        };
        match redirect {
            Redirect::Moved(address) => {
                if let Some(dial) = node(&address) {
                    self.assign(slot, &dial);
                }
                self.doubted.notify_one();
                Follow::Again
            }
            Redirect::Ask(address) => match node(&address) {
                Some(dial) => Follow::Asking(self.acquaint(&dial)),
                None => Follow::Again,
            },
            Redirect::Later(error) => {
                self.doubted.notify_one();
                Follow::Later(error)
            }
        }
    }

    /// Somebody said who has a slot.
    fn assign(&self, slot: u16, dial: &Dial) {
        let _one_at_a_time = self.changing.lock();
        let table = self.table.load();
        let (mut nodes, mut slots) = (table.nodes.clone(), table.slots.clone());
        let place = table.node(dial).unwrap_or_else(|| {
            nodes.push(self.node(dial));
            nodes.len() - 1
        });
        slots[usize::from(slot)] = u16::try_from(place).unwrap_or(NOBODY);
        self.table.store(Arc::new(Table { nodes, slots }));
    }

    /// The node at an address, which may have no slots yet.
    fn acquaint(&self, dial: &Dial) -> Arc<Node> {
        let _one_at_a_time = self.changing.lock();
        let table = self.table.load();
        if let Some(place) = table.node(dial) {
            return Arc::clone(&table.nodes[place]);
        }
        let node = self.node(dial);
        let mut nodes = table.nodes.clone();
        nodes.push(Arc::clone(&node));
        self.table.store(Arc::new(Table { nodes, slots: table.slots.clone() }));
        node
    }

    /// The whole table as a node told it. Links to nodes that are still there stay as they are.
    fn replace(&self, ranges: &[Range], asked: &Dial) {
        let _one_at_a_time = self.changing.lock();
        let before = self.table.load();
        let mut dials: Vec<Dial> = Vec::new();
        let mut slots = vec![NOBODY; usize::from(SLOTS)];
        for Range { first, last, host, port, .. } in ranges {
            let dial = asked.to(host, *port);
            let place = dials.iter().position(|known| known.info.addr() == dial.info.addr());
            let place = place.unwrap_or_else(|| {
                dials.push(dial);
                dials.len() - 1
            });
            let place = u16::try_from(place).unwrap_or(NOBODY);
            (*first..=*last).for_each(|slot| slots[usize::from(slot)] = place);
        }
        let node = |dial: &Dial| match before.node(dial) {
            Some(known) => Arc::clone(&before.nodes[known]),
            None => self.node(dial),
        };
        let nodes = dials.iter().map(node).collect();
        self.table.store(Arc::new(Table { nodes, slots }));
    }

    fn node(&self, dial: &Dial) -> Arc<Node> {
        let target =
            Target { shown: dial.shown(), dialer: Dialer::Fixed(Box::new(dial.clone())), kind: Kind::Member };
        let link = Link::start(&self.config, target, Arc::clone(&self.counters));
        Arc::new(Node { dial: dial.clone(), link })
    }

    /// Reads the table from the first that tells it: nodes that answer, then the seeds.
    async fn read(&self) {
        let question = redis::cmd("CLUSTER").arg("SLOTS").take();
        for node in self.table.load_full().nodes.iter().filter(|node| node.link.is_up()) {
            let deadline = Instant::now() + self.config.connect_timeout;
            if let Ok(answer) = node.link.query(&question, deadline).await
                && self.learn(&answer, &node.dial)
            {
                return;
            }
        }
        let mut last = String::new();
        for seed in &self.seeds {
            let ask = async {
                let (mut connection, ..) = seed.connect().await?;
                question.query_async::<Value>(&mut connection).await
            };
            let failed = match timeout(self.config.connect_timeout, ask).await {
                Ok(Ok(answer)) if self.learn(&answer, seed) => return,
                Ok(Ok(_)) => "its answer to CLUSTER SLOTS has no slots".to_owned(),
                Ok(Err(error)) => reason::in_full(&error),
                Err(_) => "no answer in time".to_owned(),
            };
            last = format!(" ({}: {failed})", seed.shown());
        }
        if !self.untold.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                store = self.config.shown(),
                "no node tells who has which slot{last}; see that one can be reached and that CLUSTER SLOTS is permitted"
            );
        }
    }

    /// Whether an answer made sense.
    fn learn(&self, answer: &Value, asked: &Dial) -> bool {
        let ranges = slots::read(answer, asked.host()).unwrap_or_default();
        if !ranges.is_empty() {
            self.replace(&ranges, asked);
            self.untold.store(false, Ordering::Relaxed);
        }
        !ranges.is_empty()
    }
}

/// Reads the table whenever it is doubted, and now and then.
async fn keep_reading(map: Arc<Map>) {
    loop {
        tokio::time::sleep(PACE).await;
        let _ = timeout(PERIOD, map.doubted.notified()).await;
        map.read().await;
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("nodes", &self.map.table.load().nodes).finish_non_exhaustive()
    }
}
