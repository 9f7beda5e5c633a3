//! Four processes on one Redis, through proxies that fail: what they admit together, by their own logs.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tollgate::Limit;
use tollgate::core::limit::Algorithm;
use tollgate_tests::fault_proxy::{FaultProxy, Mode};
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;
use tollgate_tests::scratch::Scratch;
use tollgate_tests::sentinels::Sentinels;
use tollgate_tests::signals::Signal;

use crate::process;

const LIMIT: &str = "400/s burst 150";
/// What was lost is not earned back while a test runs.
const SLOW: &str = "10/s burst 300";
/// Tokens that have come back by then.
const FEW: u64 = 5;
/// The bytes of an admission in a log.
const LINE: u64 = 34;

struct Fleet {
    limit: &'static str,
    /// Where each node finds its Redis.
    urls: Vec<String>,
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
    async fn start(limit: &'static str, urls: Vec<String>) -> Self {
        let logs = Scratch::new("leases");
        let mut fleet = Fleet { limit, urls, nodes: Vec::new(), logs, started: 0 };
        for place in 0..fleet.urls.len() {
            let node = fleet.node(place).await;
            fleet.nodes.push(node);
        }
        fleet
    }

    /// A new node at this place, that asks already.
    async fn node(&mut self, place: usize) -> Node {
        self.started += 1;
        let log = self.logs.path().join(format!("{}.log", self.started));
        let rules = format!(
            "rules: [{{ key: global, limit: {}, consistency: leased, on_store_failure: closed }}]",
            self.limit
        );
        let mut process = process::command(&[&self.urls[place], log.to_str().unwrap(), &rules])
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

    fn logs(&self) -> impl Iterator<Item = PathBuf> {
        (1..=self.started).map(|number| self.logs.path().join(format!("{number}.log")))
    }

    /// How many each node has admitted so far.
    fn admitted_by_each(&self) -> Vec<u64> {
        self.logs().map(|file| fs::metadata(file).map_or(0, |file| file.len() / LINE)).collect()
    }

    fn admitted(&self) -> u64 {
        self.admitted_by_each().iter().sum()
    }

    /// Waits until every node has admitted something more.
    async fn until_all_admit(&self) {
        let before = self.admitted_by_each();
        poll::until("all nodes to admit", async || {
            let now = self.admitted_by_each();
            now.iter().zip(&before).all(|(now, before)| now > before).then_some(())
        })
        .await;
    }

    async fn until_admitted(&self, count: u64) {
        poll::until("the fleet to admit", async || (self.admitted() >= count).then_some(())).await;
    }

    /// Lets it go on for at least so long: until as many are admitted as the limit lets pass in no less.
    async fn go_on_for(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap();
        self.until_admitted(self.admitted() + promised(self.limit, micros)).await;
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
        self.logs().flat_map(read).collect()
    }
}

fn read(file: PathBuf) -> Vec<Admission> {
    let text = fs::read_to_string(file).unwrap();
    let number = |text: &str| text.parse().unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(asked, knew)| Admission { asked: number(asked), knew: number(knew) }).collect()
}

/// The most that a limit admits in so many microseconds.
fn promised(limit: &str, micros: u64) -> u64 {
    let limit: Limit = limit.parse().unwrap();
    let Algorithm::TokenBucket(refill) = limit.algorithm() else { panic!("a token bucket") };
    refill.capacity() + micros * refill.rate() / refill.units()
}

/// Every interval, from one's asking to another's knowing: all that certainly happened in it is within the bound.
fn check(limit: &str, admissions: &mut [Admission], losses: u64) {
    let allowance = losses * promised(limit, 0);
    admissions.sort_unstable_by_key(|admission| admission.knew);
    for first in admissions.iter() {
        let mut inside = 0;
        for last in admissions.iter().filter(|last| last.asked >= first.asked) {
            inside += 1;
            let most = allowance + promised(limit, last.knew - first.asked);
            assert!(inside <= most, "{inside} from {} to {}: {most} promised", first.asked, last.knew);
        }
    }
}

const MOMENT: Duration = Duration::from_millis(700);

/// Four nodes on one Redis, each behind a proxy of its own.
async fn four_behind_proxies(server: &RedisServer) -> (Vec<FaultProxy>, Fleet) {
    let mut proxies = Vec::new();
    for _ in 0..4 {
        proxies.push(FaultProxy::start(server.port()).await);
    }
    let urls = proxies.iter().map(FaultProxy::url).collect();
    (proxies, Fleet::start(LIMIT, urls).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_stay_within_the_bound_though_they_are_stopped_killed_and_cut_off() {
    let server = RedisServer::start().await;
    let (proxies, mut fleet) = four_behind_proxies(&server).await;
    fleet.go_on_for(MOMENT).await;
    // Stopped for longer than a lease lasts.
    fleet.signal(0, Signal::Stop);
    fleet.go_on_for(2 * MOMENT).await;
    fleet.signal(0, Signal::Continue);
    // Cut off for five seconds; others die and are replaced meanwhile.
    proxies[2].set(Mode::Blackhole).await;
    fleet.go_on_for(MOMENT).await;
    fleet.replace(1).await;
    fleet.go_on_for(MOMENT).await;
    fleet.replace(3).await;
    fleet.signal(3, Signal::Stop);
    fleet.go_on_for(Duration::from_secs(3)).await;
    proxies[2].set(Mode::Pass).await;
    fleet.signal(3, Signal::Continue);
    fleet.go_on_for(MOMENT).await;
    // And all at once, until everybody has given up and tries to connect anew.
    for proxy in &proxies {
        proxy.set(Mode::DropReplies).await;
    }
    for proxy in &proxies {
        let before = proxy.accepted();
        poll::until("a new connection", async || (proxy.accepted() >= before + 2).then_some(())).await;
    }
    for proxy in &proxies {
        proxy.set(Mode::Pass).await;
    }
    fleet.go_on_for(2 * MOMENT).await;
    let mut admissions = fleet.end().await;
    check(LIMIT, &mut admissions, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_forgets_costs_at_most_one_capacity_each_time() {
    let mut server = RedisServer::start().await;
    let (_proxies, fleet) = four_behind_proxies(&server).await;
    fleet.go_on_for(MOMENT).await;
    server.command(&["FLUSHALL"]).await;
    fleet.go_on_for(MOMENT).await;
    // It comes back with what was on its disk.
    server.command(&["SAVE"]).await;
    fleet.go_on_for(MOMENT).await;
    server.restart().await;
    fleet.go_on_for(2 * MOMENT).await;
    server.command(&["FLUSHALL"]).await;
    fleet.go_on_for(MOMENT).await;
    let mut admissions = fleet.end().await;
    check(LIMIT, &mut admissions, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_that_was_behind_and_a_flush_cost_one_capacity_each() {
    let capacity = promised(SLOW, 0);
    let mut sentinels = Sentinels::start().await;
    sentinels.leave_the_replica_behind().await;
    let fleet = Fleet::start(SLOW, vec![sentinels.url(); 4]).await;
    fleet.until_admitted(capacity).await;
    sentinels.servers[0].server.kill();
    sentinels.until_role(1, "master").await;
    // It has heard of nothing, so all nodes find everything there once more. A few tokens later it is seen to be all.
    fleet.until_all_admit().await;
    fleet.until_admitted(2 * capacity + FEW).await;
    sentinels.servers[1].server.command(&["FLUSHALL"]).await;
    fleet.until_admitted(3 * capacity + 2 * FEW).await;
    let mut admissions = fleet.end().await;
    check(SLOW, &mut admissions, 2);
    let asked = admissions.iter().map(|admission| admission.asked).min().unwrap();
    let knew = admissions.iter().map(|admission| admission.knew).max().unwrap();
    let (total, exact) = (admissions.len() as u64, promised(SLOW, knew - asked));
    assert!(total > exact + capacity, "two losses show: {total}, where {exact} would be without");
    println!("{total} admitted in {} ms, {exact} without the losses", (knew - asked) / 1_000);
}
