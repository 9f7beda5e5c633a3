//! A primary, a replica and three sentinels, as real processes. Both servers are behind fault proxies, and known to the
//! sentinels by their ports.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tollgate::{Clock, Micros, Timestamp};

use crate::fault_proxy::FaultProxy;
use crate::poll;
use crate::ports::Port;
use crate::redis_server::{Options, RedisServer, Tls, did_not_start, patient, program, text};
use crate::scratch::Scratch;

/// What the sentinels call the primary.
pub const NAME: &str = "main";
/// What they must agree on, of three.
const QUORUM: u32 = 2;
const COUNT: usize = 3;
/// They look for each other every two seconds, and a busy machine takes its time.
const TOGETHER_WITHIN: Duration = Duration::from_secs(60);
/// For how long a replica without a link to its primary can still be promoted.
const BEHIND_FOR: Duration = Duration::from_secs(40);

/// A server, and what stands between it and whoever asks it.
#[derive(Debug)]
pub struct Behind {
    /// The server.
    pub server: RedisServer,
    /// The proxy.
    pub proxy: FaultProxy,
}

/// The servers and who watches them.
#[derive(Debug)]
pub struct Sentinels {
    /// The primary at first, and its replica.
    pub servers: [Behind; 2],
    sentinels: Vec<Sentinel>,
}

/// One sentinel, killed when it is dropped.
#[derive(Debug)]
pub struct Sentinel {
    process: Child,
    port: Port,
    folder: Scratch,
}

/// What a sentinel demands of those who ask it.
#[derive(Debug, Default, Clone, Copy)]
pub struct Guard<'a> {
    /// A password.
    pub password: Option<&'a str>,
    /// Lines for its configuration.
    pub lines: &'a [String],
    /// Whether its port speaks TLS; the certificates are in the lines.
    pub tls: Tls,
}

impl Sentinels {
    /// Starts all five and waits until everybody knows everybody.
    ///
    /// # Panics
    ///
    /// There is no redis-server, or they do not find each other.
    pub async fn start() -> Self {
        let user = ["--user", "replication", "on", ">r", "+psync", "+replconf", "+ping"];
        // A primary waits for further replicas before it sends anything, unless it is told not to.
        let login = ["--masteruser", "replication", "--masterauth", "r", "--repl-diskless-sync-delay", "0"];
        let primary = Behind::start(&[&user[..], &login].concat()).await;
        let replica = Behind::start(&[&user[..], &login].concat()).await;
        replica.follow(primary.proxy.port()).await;
        let sentinels =
            (0..COUNT).map(|_| Sentinel::start(primary.proxy.port(), QUORUM, Guard::default())).collect();
        let all = Sentinels { servers: [primary, replica], sentinels };
        for sentinel in &all.sentinels {
            poll::within(TOGETHER_WITHIN, "the sentinels to know each other", async || {
                let facts = sentinel.primary().await?;
                let knows = |name: &str, number: &str| {
                    facts.iter().zip(facts.iter().skip(1)).any(|(a, b)| a == name && b == number)
                };
                (knows("num-slaves", "1") && knows("num-other-sentinels", "2")).then_some(())
            })
            .await;
        }
        all
    }

    /// Where clients find the primary.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
        format!("redis-sentinel://{}/{NAME}", hosts.join(","))
    }

    /// Has the replica promoted as for an upgrade, while the primary is well.
    ///
    /// # Panics
    ///
    /// The sentinels refuse.
    pub async fn failover(&self) {
        poll::within(TOGETHER_WITHIN, "a sentinel that begins a failover", async || {
            self.sentinels[0].ask(&["SENTINEL", "FAILOVER", NAME]).await.ok()
        })
        .await;
    }

    /// Gives all sentinels a command.
    ///
    /// # Panics
    ///
    /// One refuses it.
    pub async fn command(&self, words: &[&str]) {
        for sentinel in &self.sentinels {
            sentinel.command(words).await;
        }
    }

    /// Cuts replication: the primary refuses the user that the replica logs in as.
    ///
    /// Sentinels promote no replica whose link was down for more than ten times `down-after-milliseconds` when the primary
    /// fails. So that value is raised: a test has 40 s between this call and the loss of the primary.
    ///
    /// # Panics
    ///
    /// The link of the replica stays up.
    pub async fn leave_the_replica_behind(&self) {
        let down_after = (BEHIND_FOR.as_millis() / 10).to_string();
        self.command(&["SENTINEL", "SET", NAME, "down-after-milliseconds", &down_after]).await;
        let [primary, replica] = &self.servers;
        primary.server.command(&["ACL", "SETUSER", "replication", "off"]).await;
        primary.server.command(&["CLIENT", "KILL", "TYPE", "replica"]).await;
        poll::until("the replica to be alone", async || {
            let status = replica.server.info("replication", "master_link_status").await;
            (status.as_deref() == Some("down")).then_some(())
        })
        .await;
    }

    /// Ends one of the sentinels.
    ///
    /// # Panics
    ///
    /// There is none left.
    pub fn lose_a_sentinel(&mut self) {
        self.sentinels.pop().expect("one is left");
    }

    /// Waits until a server is a replica that has all that its primary has.
    ///
    /// # Panics
    ///
    /// It does not come to that.
    pub async fn until_in_step(&self, server: usize) {
        poll::within(TOGETHER_WITHIN, "the replica to be in step", async || {
            is_in_step(&self.servers[server].server).await.then_some(())
        })
        .await;
    }

    /// Waits until a server calls itself `master` or `slave`.
    ///
    /// # Panics
    ///
    /// It does not come to that.
    pub async fn until_role(&self, server: usize, role: &str) {
        poll::within(TOGETHER_WITHIN, "a server to change its role", async || {
            // Whoever asks while the role changes is hung up on.
            let info = self.servers[server].server.try_command(&["INFO", "replication"]).await.ok()?;
            text(&info).contains(&format!("role:{role}")).then_some(())
        })
        .await;
    }
}

impl Behind {
    async fn start(args: &[&str]) -> Self {
        let server = RedisServer::with(Options { args, ..Options::default() }).await;
        let proxy = FaultProxy::start(server.port()).await;
        server.command(&["CONFIG", "SET", "replica-announce-ip", "127.0.0.1"]).await;
        server.command(&["CONFIG", "SET", "replica-announce-port", &proxy.port().to_string()]).await;
        Behind { server, proxy }
    }

    /// Makes it a replica of whoever is on that port, and waits until it is in step. A first attempt that goes wrong would
    /// be given up only after a minute, so it is told again.
    async fn follow(&self, port: u16) {
        let port = port.to_string();
        let (clock, patience) = (Clock::system(), Micros::new(12_000_000));
        let mut told: Option<Timestamp> = None;
        poll::within(TOGETHER_WITHIN, "the replica to be in step", async || {
            if told.is_none_or(|told| clock.now() > told.after(patience)) {
                self.server.command(&["REPLICAOF", "NO", "ONE"]).await;
                self.server.command(&["REPLICAOF", "127.0.0.1", &port]).await;
                told = Some(clock.now());
            }
            is_in_step(&self.server).await.then_some(())
        })
        .await;
    }
}

/// Whether a replica has all that its primary has.
pub async fn is_in_step(replica: &RedisServer) -> bool {
    // Whoever asks while the role changes is hung up on.
    let info = replica.try_command(&["INFO", "replication"]).await;
    info.is_ok_and(|info| text(&info).contains("master_link_status:up"))
}

impl Sentinel {
    /// Starts one that watches a primary on that port.
    ///
    /// # Panics
    ///
    /// There is no redis-server.
    pub fn start(primary: u16, quorum: u32, guard: Guard<'_>) -> Self {
        let folder = Scratch::new("sentinel");
        let port = Port::reserve();
        let number = port.get();
        let listen = if guard.tls == Tls::Off {
            format!("port {number}")
        } else {
            format!("port 0\ntls-port {number}")
        };
        let password = guard.password.map(|word| format!("requirepass {word}\n")).unwrap_or_default();
        let file = folder.path().join("sentinel.conf");
        let text = format!(
            "{listen}\nbind 127.0.0.1\ndir .\nlogfile sentinel.log\n{password}{lines}\n\
             sentinel monitor {NAME} 127.0.0.1 {primary} {quorum}\n\
             sentinel down-after-milliseconds {NAME} 500\n\
             sentinel failover-timeout {NAME} 5000\n{after}\n",
            lines = guard
                .lines
                .iter()
                .filter(|line| !line.starts_with("sentinel "))
                .cloned()
                .collect::<Vec<_>>()
                .join("\n"),
            after = guard
                .lines
                .iter()
                .filter(|line| line.starts_with("sentinel "))
                .cloned()
                .collect::<Vec<_>>()
                .join("\n"),
        );
        fs::write(&file, text).expect("a folder of our own");
        let process = Command::new(program())
            .args(["sentinel.conf", "--sentinel"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| did_not_start(&error));
        Sentinel { process, port, folder }
    }

    /// The port on 127.0.0.1.
    pub const fn port(&self) -> u16 {
        self.port.get()
    }

    /// Makes it name another primary, without a word to those who listen to it.
    ///
    /// # Panics
    ///
    /// It refuses.
    pub async fn watch(&self, primary: u16) {
        self.command(&["SENTINEL", "REMOVE", NAME]).await;
        self.command(&["SENTINEL", "MONITOR", NAME, "127.0.0.1", &primary.to_string(), "1"]).await;
    }

    async fn command(&self, words: &[&str]) {
        self.ask(words).await.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    }

    /// What it has written about itself.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("sentinel.log")).unwrap_or_default()
    }

    /// What it knows of the primary, names and values in turn; none while it does not answer.
    async fn primary(&self) -> Option<Vec<String>> {
        let facts = self.ask(&["SENTINEL", "MASTER", NAME]).await.ok()?;
        redis::from_redis_value(facts).ok()
    }

    async fn ask(&self, words: &[&str]) -> redis::RedisResult<redis::Value> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port()))?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&patient()).await?;
        let mut command = redis::Cmd::new();
        words.iter().for_each(|word| {
            command.arg(word);
        });
        command.query_async(&mut connection).await
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
