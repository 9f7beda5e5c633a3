//! Four processes on one Redis, through proxies that fail: what they admit together, by their own logs.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tollgate::{Clock, Limit, Micros};
use tollgate_tests::fault_proxy::{FaultProxy, Mode};
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;
use tollgate_tests::scratch::Scratch;
use tollgate_tests::signals::Signal;

use crate::process;

const LIMIT: &str = "400/s burst 150";

struct Fleet {
    server: RedisServer,
    proxies: Vec<FaultProxy>,
    nodes: Vec<Node>,
    logs: Scratch,
    started: usize,
}

struct Node {
    process: Child,
    input: Option<ChildStdin>,
    /// Kept open: the test runner wants to say how it went.
    _output: Lines<BufReader<ChildStdout>>,
}

/// An admission lies between these instants, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Admission {
    asked: u64,
    knew: u64,
}

impl Fleet {
    async fn start() -> Self {
        let server = RedisServer::start().await;
        let logs = Scratch::new("leases");
        let mut fleet = Fleet { server, proxies: Vec::new(), nodes: Vec::new(), logs, started: 0 };
        for place in 0..4 {
            fleet.proxies.push(FaultProxy::start(fleet.server.port()).await);
            let node = fleet.node(place).await;
            fleet.nodes.push(node);
        }
        fleet
    }

    /// A new node behind the proxy of this place, that asks already.
    async fn node(&mut self, place: usize) -> Node {
        self.started += 1;
        let log = self.logs.path().join(format!("{}.log", self.started));
        let rules = format!(
            "rules: [{{ name: all, key: global, limit: {LIMIT}, consistency: leased, on_store_failure: closed }}]"
        );
        let mut process = process::command(&[&self.proxies[place].url(), log.to_str().unwrap(), &rules])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let input = process.stdin.take();
        let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready =
            async { while output.next_line().await.unwrap().expect("it says when it is") != "ready" {} };
        tokio::time::timeout(3 * poll::PATIENCE, ready).await.expect("a node comes up");
        Node { process, input, _output: output }
    }

    fn signal(&self, place: usize, signal: Signal) {
        signal.send(self.nodes[place].process.id().expect("it runs"));
    }

    /// Kills a node and starts another in its place.
    async fn replace(&mut self, place: usize) {
        self.nodes[place].process.kill().await.unwrap();
        self.nodes[place] = self.node(place).await;
    }

    /// Stops everybody and reads what they wrote.
    async fn end(mut self) -> Vec<Admission> {
        for node in &mut self.nodes {
            node.input = None;
            let ended = tokio::time::timeout(poll::PATIENCE, node.process.wait()).await;
            assert!(ended.expect("it ends with its input").unwrap().success());
        }
        let files = (1..=self.started).map(|number| self.logs.path().join(format!("{number}.log")));
        files.flat_map(read).collect()
    }
}

fn read(file: PathBuf) -> Vec<Admission> {
    let text = fs::read_to_string(file).unwrap();
    let number = |text: &str| text.parse().unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(asked, knew)| Admission { asked: number(asked), knew: number(knew) }).collect()
}

/// Every interval, from one's asking to another's knowing: all that certainly happened in it is within the bound.
fn check(admissions: &mut [Admission], losses: u64) {
    let limit: Limit = LIMIT.parse().unwrap();
    let (capacity, per_second) = (limit.capacity(), 400);
    admissions.sort_unstable_by_key(|admission| admission.knew);
    for first in admissions.iter() {
        let mut inside = 0;
        for last in admissions.iter().filter(|last| last.asked >= first.asked) {
            inside += 1;
            let promised = capacity * (1 + losses) + (last.knew - first.asked) * per_second / 1_000_000;
            assert!(
                inside <= promised,
                "{inside} from {} to {}: {promised} promised",
                first.asked,
                last.knew
            );
        }
    }
}

/// How long something is left to happen.
async fn pass(time: Duration) {
    Clock::system().sleep(Micros::from(time)).await;
}

const MOMENT: Duration = Duration::from_millis(700);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_stay_within_the_bound_though_they_are_stopped_killed_and_cut_off() {
    let mut fleet = Fleet::start().await;
    pass(MOMENT).await;
    // Stopped for longer than a lease lasts.
    fleet.signal(0, Signal::Stop);
    pass(2 * MOMENT).await;
    fleet.signal(0, Signal::Continue);
    // Cut off for five seconds; others die and are replaced meanwhile.
    fleet.proxies[2].set(Mode::Blackhole).await;
    pass(MOMENT).await;
    fleet.replace(1).await;
    pass(MOMENT).await;
    fleet.replace(3).await;
    fleet.signal(3, Signal::Stop);
    pass(Duration::from_secs(3)).await;
    fleet.proxies[2].set(Mode::Pass).await;
    fleet.signal(3, Signal::Continue);
    pass(MOMENT).await;
    // And all at once.
    for proxy in &fleet.proxies {
        proxy.set(Mode::DropReplies).await;
    }
    pass(MOMENT).await;
    for proxy in &fleet.proxies {
        proxy.set(Mode::Pass).await;
    }
    pass(2 * MOMENT).await;
    let mut admissions = fleet.end().await;
    assert!(admissions.len() > 1_500, "only {} were admitted", admissions.len());
    check(&mut admissions, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_forgets_costs_at_most_one_capacity_each_time() {
    let mut fleet = Fleet::start().await;
    pass(MOMENT).await;
    fleet.server.command(&["FLUSHALL"]).await;
    pass(MOMENT).await;
    // What a replica had that did not hear of the last second.
    fleet.server.command(&["SAVE"]).await;
    pass(MOMENT).await;
    fleet.server.restart().await;
    pass(2 * MOMENT).await;
    fleet.server.command(&["FLUSHALL"]).await;
    pass(MOMENT).await;
    let mut admissions = fleet.end().await;
    assert!(admissions.len() > 500, "only {} were admitted", admissions.len());
    check(&mut admissions, 3);
}
