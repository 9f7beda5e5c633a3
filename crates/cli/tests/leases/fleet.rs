//! Nodes, and those who ask them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fs, io};

use serde_json::Value;
use tollgate_tests::poll;
use tollgate_tests::scratch::Scratch;
use tollgate_tests::signals::Signal;

use crate::bucket;
use crate::log::{Admission, Log, now, promised};
use crate::support::{Connection, Served, body, status};

/// Those who ask one node: how many at once, and how long each pauses before its next request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crowd {
    askers: usize,
    pause: Duration,
}

impl Crowd {
    pub(crate) const FEW: Crowd = Crowd { askers: 4, pause: Duration::from_millis(2) };
    pub(crate) const MANY: Crowd = Crowd { askers: 48, pause: Duration::from_millis(20) };
}

/// Some nodes that are asked as fast as they may be.
pub(crate) struct Fleet {
    limit: &'static str,
    crowd: Crowd,
    rules: Scratch,
    /// Where each node finds its Redis.
    urls: Vec<String>,
    nodes: Vec<Node>,
    log: Arc<Log>,
    ends: Arc<AtomicBool>,
    /// Those who ask, also those of nodes that are gone.
    askers: Vec<JoinHandle<()>>,
}

struct Node {
    process: Served,
    /// Its number in the log.
    number: usize,
    /// Whether it is asked.
    asked: Arc<AtomicBool>,
}

impl Fleet {
    pub(crate) async fn start(limit: &'static str, urls: Vec<String>, crowd: Crowd) -> Self {
        let rules = Scratch::new("leases");
        let text = format!(
            "rules: [{{ key: global, limit: {limit}, consistency: leased, on_store_failure: closed }}]"
        );
        fs::write(rules.path().join("rules.yaml"), text).unwrap();
        let (log, ends) = (Arc::default(), Arc::default());
        let mut fleet = Fleet { limit, crowd, rules, urls, nodes: Vec::new(), log, ends, askers: Vec::new() };
        for place in 0..fleet.urls.len() {
            let node = fleet.node(place).await;
            fleet.nodes.push(node);
        }
        fleet.until_all_admit().await;
        fleet
    }

    /// A new node at this place, that is asked already.
    async fn node(&mut self, place: usize) -> Node {
        let (url, rules) = (self.urls[place].clone(), self.rules.path().join("rules.yaml"));
        let start = move || Served::start(&["--rules", rules.to_str().unwrap(), "--store", &url]);
        let process = tokio::task::spawn_blocking(start).await.unwrap();
        let (number, asked) = (self.log.add_node(), Arc::new(AtomicBool::new(true)));
        for _ in 0..self.crowd.askers {
            let (log, ends, asked) = (Arc::clone(&self.log), Arc::clone(&self.ends), Arc::clone(&asked));
            let (mut connection, pause) = (process.keep_alive(), self.crowd.pause);
            self.askers.push(thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    thread::park_timeout(pause);
                    if asked.load(Ordering::Relaxed) && ask(number, &mut connection, &log).is_err() {
                        return; // the node is gone
                    }
                }
            }));
        }
        Node { process, number, asked }
    }

    /// Waits until every node that is there has admitted something more.
    pub(crate) async fn until_all_admit(&self) {
        let before = self.log.by_node();
        poll::until("all nodes to admit", async || {
            let now = self.log.by_node();
            self.nodes.iter().all(|node| now[node.number] > before[node.number]).then_some(())
        })
        .await;
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.log.admitted()
    }

    pub(crate) async fn until_admitted(&self, count: u64) {
        poll::until("the fleet to admit", async || (self.log.admitted() >= count).then_some(())).await;
    }

    /// Lets it go on for at least so long: until as many are admitted as the limit lets pass in no less.
    pub(crate) async fn go_on_for(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap();
        self.until_admitted(self.log.admitted() + promised(self.limit, micros)).await;
    }

    /// Asks these nodes and no others.
    pub(crate) fn ask_only(&self, places: &[usize]) {
        for (place, node) in self.nodes.iter().enumerate() {
            node.asked.store(places.contains(&place), Ordering::Relaxed);
        }
    }

    /// What a node says of the bucket that all of them share.
    pub(crate) fn bucket(&self, place: usize) -> Value {
        bucket(&self.nodes[place].process, "global")
    }

    /// Redis loses something while this is done.
    pub(crate) async fn losing(&self, what: impl Future<Output = ()>) {
        self.log.losing(what).await;
    }

    pub(crate) fn signal(&self, place: usize, signal: Signal) {
        signal.send(self.nodes[place].process.pid());
    }

    /// Kills a node and starts another in its place.
    pub(crate) async fn replace(&mut self, place: usize) {
        self.signal(place, Signal::Kill);
        self.nodes[place] = self.node(place).await;
    }

    /// The requests end, and every node stops as it should. Some decisions were made on leases.
    pub(crate) async fn end(self) -> Arc<Log> {
        self.ends.store(true, Ordering::Relaxed);
        let log = Arc::clone(&self.log);
        let stop = move || {
            self.askers.into_iter().for_each(|asker| asker.join().expect("an asker reads what it expects"));
            let mut on_leases = 0;
            for Node { process, .. } in self.nodes {
                let metrics = body(&process.get("/metrics"));
                let held = r#"tollgate_lease_decisions_total{by="held"} "#;
                let count = metrics.lines().find_map(|line| line.strip_prefix(held)).expect("a counter");
                on_leases += count.parse::<u64>().expect("a number");
                process.stop();
            }
            assert!(on_leases > 0, "no lease was used");
        };
        tokio::task::spawn_blocking(stop).await.unwrap();
        log
    }
}

/// Asks a node once, and writes down what it admits.
fn ask(node: usize, connection: &mut Connection, log: &Log) -> io::Result<()> {
    let asked = now();
    let answer = connection.ask("POST", "/v1/check", r#"{"attributes": {}}"#)?;
    match status(&answer) {
        200 => {
            assert!(body(&answer).contains(r#""degraded":null"#), "closed lets nothing pass: {answer}");
            log.note(node, Admission { asked, knew: now() });
        }
        429 | 503 => {}
        _ => panic!("what is that? {answer}"),
    }
    Ok(())
}
