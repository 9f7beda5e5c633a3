//! A real Redis Cluster, each node behind a fault proxy whose port it announces.

use std::time::Duration;

use crate::fault_proxy::FaultProxy;
use crate::poll;
use crate::ports::Port;
use crate::redis_server::{Options, RedisServer, text};

/// How many primaries there are.
const PRIMARIES: u16 = 3;
/// How many slots there are.
const SLOTS: u16 = 16_384;
/// A Cluster takes writes two seconds after it has come together, and a busy machine takes its time.
const TOGETHER_WITHIN: Duration = Duration::from_secs(60);

/// Whether each primary has a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replicas {
    /// It has none.
    None,
    /// It has one.
    One,
}

/// Three primaries with a third of the slots each, and a replica of each where wanted. It goes on without a shard that is
/// lost.
#[derive(Debug)]
pub struct RedisCluster {
    /// The primaries, in the order of their slots; then their replicas, in the same order.
    pub nodes: Vec<Node>,
}

/// One node.
#[derive(Debug)]
pub struct Node {
    /// The server.
    pub server: RedisServer,
    /// What stands between it and whoever asks it.
    pub proxy: FaultProxy,
    /// Its name in the Cluster.
    pub id: String,
    bus_port: Port,
}

impl RedisCluster {
    /// Starts the nodes and waits until all agree.
    ///
    /// # Panics
    ///
    /// There is no redis-server, or they do not come together.
    pub async fn start(replicas: Replicas) -> Self {
        Self::with(replicas, Options::default()).await
    }

    /// The same with more arguments for every node.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn with(replicas: Replicas, options: Options<'_>) -> Self {
        let count = if replicas == Replicas::One { 2 * PRIMARIES } else { PRIMARIES };
        let mut nodes = Vec::new();
        for number in 0..count {
            nodes.push(Node::start(number, options).await);
        }
        let cluster = RedisCluster { nodes };
        for primary in 0..PRIMARIES {
            let [first, last] = cluster.slots(usize::from(primary)).map(|slot| slot.to_string());
            cluster.command(primary, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await;
        }
        cluster.introduce().await;
        for replica in PRIMARIES..count {
            let primary = &cluster.nodes[usize::from(replica - PRIMARIES)].id;
            cluster.command(replica, &["CLUSTER", "REPLICATE", primary]).await;
        }
        for node in &cluster.nodes {
            node.until_in_order(replicas).await;
        }
        cluster
    }

    /// Starts one more node without slots, and waits until all know it. The index of the node.
    ///
    /// # Panics
    ///
    /// There is no redis-server, or the nodes do not come together.
    pub async fn join(&mut self) -> usize {
        let number = u16::try_from(self.nodes.len()).expect("a few");
        self.nodes.push(Node::start(number, Options::default()).await);
        self.introduce().await;
        self.nodes[usize::from(number)].until_in_order(Replicas::None).await;
        usize::from(number)
    }

    /// Where clients find it.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.proxy.port())).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    /// The first and the last slot of a primary.
    pub fn slots(&self, primary: usize) -> [u16; 2] {
        let border = |number: usize| SLOTS / PRIMARIES * u16::try_from(number).expect("a few");
        let last = if primary + 1 == usize::from(PRIMARIES) { SLOTS } else { border(primary + 1) };
        [border(primary), last - 1]
    }

    /// The primary that a slot was given to.
    pub fn primary_of(&self, slot: u16) -> usize {
        usize::from((slot / (SLOTS / PRIMARIES)).min(PRIMARIES - 1))
    }

    /// The primary whose slots a key is in.
    ///
    /// # Panics
    ///
    /// The first node does not answer.
    pub async fn primary_with(&self, key: &[u8]) -> usize {
        let key = std::str::from_utf8(key).expect("keys are text");
        let slot = self.nodes[0].server.command(&["CLUSTER", "KEYSLOT", key]).await;
        self.primary_of(redis::from_redis_value(slot).expect("a number"))
    }

    /// Gives slots from one primary to another, as `redis-cli --cluster reshard` does, but key by key: in between,
    /// requests about several keys of a slot find some here and some there.
    ///
    /// # Panics
    ///
    /// A node does not do what it is told.
    pub async fn migrate(&self, slots: impl Iterator<Item = u16>, from: usize, to: usize) {
        for slot in slots {
            self.begin_to_move(slot, from, to).await;
            while let Some(key) = self.keys(slot, from).await.first() {
                self.move_key(key, from, to).await;
            }
            self.end_to_move(slot, from, to).await;
        }
    }

    /// Both nodes know that a slot is on its way; its keys are still where they were.
    ///
    /// # Panics
    ///
    /// A node does not do what it is told.
    pub async fn begin_to_move(&self, slot: u16, from: usize, to: usize) {
        let (source, target, slot) = (&self.nodes[from], &self.nodes[to], slot.to_string());
        target.server.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source.id]).await;
        source.server.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target.id]).await;
    }

    /// Moves one key.
    ///
    /// # Panics
    ///
    /// A node does not do what it is told.
    pub async fn move_key(&self, key: &str, from: usize, to: usize) {
        let port = self.nodes[to].server.port().to_string();
        self.nodes[from].server.command(&["MIGRATE", "127.0.0.1", &port, key, "0", "10000"]).await;
    }

    /// The slot belongs to its new node.
    ///
    /// # Panics
    ///
    /// A node does not do what it is told.
    pub async fn end_to_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        for node in [to, from] {
            let words = ["CLUSTER", "SETSLOT", &slot, "NODE", &self.nodes[to].id];
            self.nodes[node].server.command(&words).await;
        }
    }

    /// Some keys that a node has in a slot.
    ///
    /// # Panics
    ///
    /// It does not answer.
    pub async fn keys(&self, slot: u16, node: usize) -> Vec<String> {
        let words = ["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"];
        let keys = self.nodes[node].server.command(&words).await;
        redis::from_redis_value(keys).expect("a list of keys")
    }

    async fn command(&self, node: u16, words: &[&str]) {
        self.nodes[usize::from(node)].server.command(words).await;
    }

    /// Makes every node known to every other.
    async fn introduce(&self) {
        for one in &self.nodes {
            for other in self.nodes.iter().filter(|other| other.id != one.id) {
                let (port, bus) = (other.server.port().to_string(), other.bus_port.get().to_string());
                one.server.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await;
            }
        }
        let known = self.nodes.len().to_string();
        for node in &self.nodes {
            poll::within(TOGETHER_WITHIN, "all nodes to know each other", async || {
                let nodes = text(&node.server.command(&["CLUSTER", "NODES"]).await);
                let settled = !nodes.contains("handshake") && nodes.lines().count().to_string() == known;
                settled.then_some(())
            })
            .await;
        }
    }
}

impl Node {
    async fn start(number: u16, options: Options<'_>) -> Self {
        let bus_port = Port::reserve();
        let bus = bus_port.get().to_string();
        let own = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", &bus];
        let rest = ["--cluster-require-full-coverage", "no", "--cluster-replica-validity-factor", "0"];
        let args = [&own[..], &rest, options.args].concat();
        let server = RedisServer::with(Options { args: &args, ..options }).await;
        let proxy = FaultProxy::start(server.port()).await;
        let announced = if options.tls == crate::redis_server::Tls::Off {
            "cluster-announce-port"
        } else {
            "cluster-announce-tls-port"
        };
        server.command(&["CONFIG", "SET", "cluster-announce-ip", "127.0.0.1"]).await;
        server.command(&["CONFIG", "SET", announced, &proxy.port().to_string()]).await;
        server.command(&["CONFIG", "SET", "cluster-announce-bus-port", &bus]).await;
        server.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]).await;
        let id = text(&server.command(&["CLUSTER", "MYID"]).await);
        Node { server, proxy, id, bus_port }
    }

    /// Waits until it takes part, and a replica until it has what its primary has.
    async fn until_in_order(&self, replicas: Replicas) {
        poll::within(TOGETHER_WITHIN, "the Cluster to come together", async || {
            let info = text(&self.server.command(&["CLUSTER", "INFO"]).await);
            let covered = info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384");
            let role = self.server.info("replication", "role").await;
            let linked = match role.as_deref() {
                Some("slave") => {
                    self.server.info("replication", "master_link_status").await.as_deref() == Some("up")
                }
                _ if replicas == Replicas::One => {
                    self.server.info("replication", "connected_slaves").await.as_deref() == Some("1")
                }
                _ => true,
            };
            (covered && linked).then_some(())
        })
        .await;
    }

    /// Whether it is a primary now.
    ///
    /// # Panics
    ///
    /// It does not answer.
    pub async fn is_primary(&self) -> bool {
        self.server.info("replication", "role").await.as_deref() == Some("master")
    }
}
