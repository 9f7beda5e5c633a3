//! Which Redis to ask.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use rustls::ClientConfig;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::address::Address;
use super::cluster::{Cluster, Node};
use super::config::RedisBuilder;
use super::link::{Counters, Kind, Link, Target};
use super::read;
use super::sentinel::{Dialer, Sentinels};
use super::slots;
use super::stream::Dial;
use crate::store::StoreError;

/// How many keys to look for at once.
const SCAN_COUNT: usize = 500;

/// One Redis, or many.
#[derive(Debug)]
pub(super) enum Topology {
    /// A Redis at a fixed address, or the one that sentinels name.
    One {
        link: Arc<Link>,
        /// Of the sentinels. They end with the store.
        listeners: JoinSet<()>,
    },
    Cluster(Cluster),
}

impl Topology {
    /// Begins to connect.
    pub(super) async fn start(
        config: &RedisBuilder,
        address: Address,
        tls: Option<Arc<ClientConfig>>,
        counters: &Arc<Counters>,
    ) -> Self {
        let dial = |info| Dial { info, tls: tls.clone() };
        let whole = |dialer| {
            let target = Target { shown: config.shown(), dialer, kind: Kind::Whole };
            Arc::new(Link::start(config, target, Arc::clone(counters)))
        };
        match address {
            Address::One(info) => {
                let link = whole(Dialer::Fixed(Box::new(dial(info))));
                Topology::One { link, listeners: JoinSet::new() }
            }
            Address::Sentinel { sentinels, name, node } => {
                let sentinels = sentinels.into_iter().map(&dial).collect();
                let timeout = config.connect_timeout;
                let known = Default::default();
                let sentinels = Arc::new(Sentinels { sentinels, name, node: dial(node), timeout, known });
                let link = whole(Dialer::Sentinels(Arc::clone(&sentinels)));
                Topology::One { listeners: sentinels.listen(&link), link }
            }
            Address::Cluster(nodes) => {
                let seeds = nodes.into_iter().map(dial).collect();
                let cluster = Cluster::start(config, seeds, Arc::clone(counters)).await;
                Topology::Cluster(cluster)
            }
        }
    }

    /// Sends a command about keys of one slot, and waits for its answer until the deadline.
    pub(super) async fn call<T>(
        &self,
        slot: u16,
        command: &Cmd,
        deadline: Instant,
        read: impl Fn(Value) -> Option<T>,
    ) -> Result<T, StoreError> {
        match self {
            Topology::One { link, listeners } => match link.call(command, deadline, &read).await {
                // It was the primary, and has done nothing; the link asks the sentinels for the new one.
                Err(StoreError::Rejected { code: "READONLY" }) if !listeners.is_empty() => {
                    link.call(command, deadline, read).await
                }
                answer => answer,
            },
            Topology::Cluster(cluster) => cluster.call(slot, command, deadline, read).await,
        }
    }

    /// The slot of a key; 0 where all keys are in one place.
    pub(super) fn slot(&self, key: &[u8]) -> u16 {
        if self.is_cluster() { slots::slot(key) } else { 0 }
    }

    /// Whether keys are on several nodes.
    pub(super) const fn is_cluster(&self) -> bool {
        matches!(self, Topology::Cluster(_))
    }

    /// Whether it is known that a call for a slot would fail.
    pub(super) fn is_down(&self, slot: u16) -> bool {
        match self {
            Topology::One { link, .. } => link.is_down(),
            Topology::Cluster(cluster) => cluster.is_down(slot),
        }
    }

    /// A charge was written in a slot.
    pub(super) fn wrote(&self, slot: u16) {
        match self {
            Topology::One { link, .. } => link.wrote(),
            Topology::Cluster(cluster) => cluster.wrote(slot),
        }
    }

    /// Waits for the outcome of the first attempt to connect, to all there are.
    pub(super) async fn settled(&self) -> Result<(), StoreError> {
        match self {
            Topology::One { link, .. } => link.settled().await,
            Topology::Cluster(cluster) => {
                for node in cluster.nodes() {
                    node.link.settled().await?;
                }
                if cluster.is_covered() { Ok(()) } else { Err(StoreError::Unreachable) }
            }
        }
    }

    /// Whether decisions are made everywhere.
    pub(super) fn is_up(&self) -> bool {
        match self {
            Topology::One { link, .. } => link.is_up(),
            Topology::Cluster(cluster) => {
                cluster.is_covered() && cluster.nodes().iter().all(|node| node.link.is_up())
            }
        }
    }

    /// Whether decisions are made where a slot is.
    pub(super) fn reaches(&self, slot: u16) -> bool {
        match self {
            Topology::One { link, .. } => link.is_reachable(),
            Topology::Cluster(cluster) => cluster.reaches(slot),
        }
    }

    /// How many decisions wait.
    pub(super) fn in_flight(&self) -> usize {
        match self {
            Topology::One { link, .. } => link.in_flight(),
            Topology::Cluster(cluster) => cluster.nodes().iter().map(|node| node.link.in_flight()).sum(),
        }
    }

    /// Deletes every key of a pattern, wherever it is.
    pub(super) async fn delete(&self, pattern: &str, timeout: Duration) -> Result<(), StoreError> {
        match self {
            Topology::One { link, .. } => self.delete_at(link, pattern, timeout).await,
            Topology::Cluster(cluster) => {
                for node in cluster.nodes() {
                    let node: &Node = &node;
                    self.delete_at(&node.link, pattern, timeout).await?;
                }
                Ok(())
            }
        }
    }

    async fn delete_at(&self, link: &Link, pattern: &str, timeout: Duration) -> Result<(), StoreError> {
        let mut cursor = "0".to_owned();
        loop {
            let deadline = Instant::now() + timeout;
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
            let (next, mut keys): (String, Vec<Vec<u8>>) = link.call(&scan, deadline, read).await?;
            keys.sort_by_key(|key| self.slot(key));
            for keys in keys.chunk_by(|a, b| self.slot(a) == self.slot(b)) {
                let unlink = redis::cmd("UNLINK").arg(keys).take();
                let _: u64 = self.call(self.slot(&keys[0]), &unlink, deadline, read).await?;
            }
            if next == "0" {
                return Ok(());
            }
            cursor = next;
        }
    }
}
