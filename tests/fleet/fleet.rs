//! Nodes as processes.

use std::fs;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;
use tollgate_tests::scratch::Scratch;

use crate::node;

/// What became of requests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
    /// Decided without the store.
    pub(crate) degraded: u64,
}

/// Processes that are ready to send.
pub(crate) struct Fleet {
    nodes: Vec<Node>,
    _rules: Scratch,
}

struct Node {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Fleet {
    /// One node for each clock, with so many requests each.
    pub(crate) async fn start(
        server: &RedisServer,
        rules: &str,
        clocks_off_us: &[i64],
        requests: u32,
        attributes: &[&str],
    ) -> Self {
        let nodes: Vec<(&str, i64)> = clocks_off_us.iter().map(|off_us| (rules, *off_us)).collect();
        Self::start_each(server, &nodes, requests, attributes).await
    }

    /// One node for each pair of rules and clock, with so many requests each.
    pub(crate) async fn start_each(
        server: &RedisServer,
        rules_and_clocks: &[(&str, i64)],
        requests: u32,
        attributes: &[&str],
    ) -> Self {
        let folder = Scratch::new("fleet");
        let mut nodes = Vec::new();
        for (number, (rules, off_us)) in rules_and_clocks.iter().enumerate() {
            let file = folder.path().join(format!("rules-{number}.yaml"));
            fs::write(&file, rules).unwrap();
            let (url, requests, off_us) = (server.url(), requests.to_string(), off_us.to_string());
            let orders = [&url, file.to_str().unwrap(), &requests, &off_us];
            let mut process = node::command(&[&orders[..], attributes].concat())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .unwrap();
            let input = process.stdin.take().unwrap();
            let output = BufReader::new(process.stdout.take().unwrap()).lines();
            nodes.push(Node { process, input, output });
        }
        for node in &mut nodes {
            while node.line().await != "ready" {} // what the test runner says comes first
        }
        Fleet { nodes, _rules: folder }
    }

    /// Lets them all go at once and adds up what they say.
    pub(crate) async fn run(self) -> Tally {
        self.run_and_kill(0, async {}).await
    }

    /// Lets them all go at once, kills the first few without a word when that moment has come, and adds up what the
    /// others say.
    pub(crate) async fn run_and_kill(mut self, victims: usize, moment: impl Future<Output = ()>) -> Tally {
        for node in &mut self.nodes {
            node.input.write_all(b"go\n").await.unwrap();
        }
        moment.await;
        for mut victim in self.nodes.drain(..victims) {
            victim.process.kill().await.unwrap();
        }
        self.total().await
    }

    async fn total(mut self) -> Tally {
        let mut total = Tally::default();
        for node in &mut self.nodes {
            let said: serde_json::Value = serde_json::from_str(&node.line().await).unwrap();
            let count = |name: &str| said[name].as_u64().unwrap();
            total.admitted += count("admitted");
            total.refused += count("refused");
            total.degraded += count("degraded");
            assert!(node.process.wait().await.unwrap().success());
        }
        total
    }
}

impl Node {
    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(3 * poll::PATIENCE, self.output.next_line()).await;
        line.expect("a node says something").unwrap().expect("a node says what became of its requests")
    }
}
