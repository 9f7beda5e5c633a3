//! A real redis-server or valkey-server, started for one test and gone with it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult, Value};

use crate::certificates::Certificates;
use crate::poll;
use crate::ports::Port;
use crate::scratch::Scratch;
use crate::signals::Signal;

/// Names the server to start, by a name in the path or an absolute path: `TOLLGATE_TEST_REDIS=$(tests/valkey/install)`.
const PROGRAM: &str = "TOLLGATE_TEST_REDIS";
/// Its unix socket and its log, in its folder.
const SOCKET: &str = "redis.sock";
const LOG: &str = "redis.log";
/// The user who may do everything, with any password.
const ADMIN: &str = "tests";
/// What every server is started with.
#[rustfmt::skip]
const ALWAYS: [&str; 21] = [
    "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--enable-debug-command", "yes",
    "--unixsocket", SOCKET, "--dir", ".", "--daemonize", "no",
    "--user", ADMIN, "on", "nopass", "~*", "&*", "+@all",
];
/// How long one command of a test may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// How a server is started; the default is a plain one that keeps nothing on disk.
#[derive(Debug, Default, Clone, Copy)]
pub struct Options<'a> {
    /// More arguments: `--maxmemory 2mb`, `--requirepass secret`, `--user bob on >secret ~* +@all`.
    pub args: &'a [&'a str],
    /// Whether the port speaks TLS, with certificates of its own ([`RedisServer::certificates`]).
    pub tls: Tls,
}

/// Whether a server's port speaks TLS.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// It does not.
    #[default]
    Off,
    /// It does; clients need no certificate.
    On,
    /// It does, and clients must show a certificate of the same authority.
    Mutual,
}

/// A redis-server on a port of its own, killed when it is dropped.
///
/// Tests talk to it with [`command`](Self::command), which goes around the port: over a socket, as a user who may do
/// everything, whatever the port demands.
#[derive(Debug)]
pub struct RedisServer {
    process: Child,
    port: Port,
    args: Vec<String>,
    certificates: Option<Certificates>,
    folder: Scratch,
}

impl RedisServer {
    /// Starts a plain server and waits until it answers.
    ///
    /// # Panics
    ///
    /// As [`with`](Self::with).
    pub async fn start() -> Self {
        Self::with(Options::default()).await
    }

    /// Starts a server and waits until it answers.
    ///
    /// # Panics
    ///
    /// There is no redis-server, or it does not like its arguments.
    pub async fn with(options: Options<'_>) -> Self {
        let folder = Scratch::new("redis");
        let certificates = (options.tls != Tls::Off).then(|| Certificates::make(folder.path()));
        let port = Port::reserve();
        let args = arguments(options, port.get(), certificates.as_ref());
        let process = spawn(&args, &folder);
        let mut server = RedisServer { process, port, args, certificates, folder };
        server.until_up().await;
        server
    }

    /// The port on 127.0.0.1.
    pub const fn port(&self) -> u16 {
        self.port.get()
    }

    /// Where clients find it, without a name or a password.
    pub fn url(&self) -> String {
        let scheme = if self.certificates.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}", self.port())
    }

    /// Its unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join(SOCKET)
    }

    /// The certificates of a server that speaks TLS.
    ///
    /// # Panics
    ///
    /// It does not.
    pub const fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("a server with TLS")
    }

    /// The number of the process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Stands still: connections are open and nobody answers.
    pub fn stop(&self) {
        Signal::Stop.send(self.pid());
    }

    /// Goes on after [`stop`](Self::stop).
    pub fn cont(&self) {
        Signal::Continue.send(self.pid());
    }

    /// Ends at once.
    ///
    /// # Panics
    ///
    /// The system does not let us.
    pub fn kill(&mut self) {
        self.process.kill().expect("our own child");
        self.process.wait().expect("our own child");
    }

    /// Starts again on the same port and waits until it answers, with nothing remembered but what was saved.
    ///
    /// # Panics
    ///
    /// It does not come up.
    pub async fn restart(&mut self) {
        self.begin_restart(&[]);
        self.until_up().await;
    }

    /// Starts again on the same port, with more arguments, and does not wait until it answers. What was saved is loaded.
    pub fn begin_restart(&mut self, args: &[&str]) {
        self.kill();
        self.args.extend(args.iter().map(|&arg| arg.to_owned()));
        self.process = spawn(&self.args, &self.folder);
    }

    /// Waits until it answers after [`begin_restart`](Self::begin_restart).
    ///
    /// # Panics
    ///
    /// It does not come up.
    pub async fn until_up(&mut self) {
        let ended = poll::until("a redis-server that answers", async || {
            let ended = self.process.try_wait().expect("our own child");
            match ended {
                None => self.try_command(&["PING"]).await.ok().map(|_| None),
                ended => Some(ended),
            }
        });
        if let Some(status) = ended.await {
            panic!("{status}: {}", self.log());
        }
    }

    /// Sends a command as a user who may do everything: `command(&["CONFIG", "SET", "maxmemory", "2mb"])`.
    ///
    /// # Panics
    ///
    /// It answers with an error, or not at all.
    pub async fn command(&self, words: &[&str]) -> Value {
        self.try_command(words).await.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// As [`command`](Self::command), where an error is an answer.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn try_command(&self, words: &[&str]) -> RedisResult<Value> {
        let mut connection = self.connect().await?;
        let mut command = redis::Cmd::new();
        words.iter().for_each(|word| {
            command.arg(word);
        });
        command.query_async(&mut connection).await
    }

    /// A line of `INFO`: `info("stats", "evicted_keys")`.
    ///
    /// # Panics
    ///
    /// The server does not answer.
    pub async fn info(&self, section: &str, name: &str) -> Option<String> {
        let text = text(&self.command(&["INFO", section]).await);
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned))
    }

    /// How often a command was called since `CONFIG RESETSTAT`: `calls("evalsha")`, `calls("script|load")`.
    ///
    /// # Panics
    ///
    /// The server does not answer.
    pub async fn calls(&self, command: &str) -> u64 {
        let line = self.info("commandstats", &format!("cmdstat_{command}")).await.unwrap_or_default();
        statistic(&line, "calls")
    }

    /// How often a command succeeded since `CONFIG RESETSTAT`; `None` if the server does not answer.
    pub async fn succeeded(&self, command: &str) -> Option<u64> {
        let info = text(&self.try_command(&["INFO", "commandstats"]).await.ok()?);
        let prefix = format!("cmdstat_{command}:");
        let line = info.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_default();
        let failed = statistic(line, "rejected_calls") + statistic(line, "failed_calls");
        Some(statistic(line, "calls") - failed)
    }

    /// Every key, in order, with its value as `DUMP` gives it.
    ///
    /// # Panics
    ///
    /// The server does not answer.
    pub async fn contents(&self) -> Vec<(String, Vec<u8>)> {
        let mut connection = self.connect().await.expect("the server answers");
        let keys = redis::cmd("KEYS").arg("*").query_async(&mut connection).await;
        let mut keys: Vec<String> = keys.expect("a list of keys");
        keys.sort();
        let mut contents = Vec::with_capacity(keys.len());
        for key in keys {
            let dump = redis::cmd("DUMP").arg(&key).query_async(&mut connection).await.expect("bytes");
            contents.push((key, dump));
        }
        contents
    }

    /// What it has written about itself.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join(LOG)).unwrap_or_default()
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let url = format!("unix://{}?user={ADMIN}&pass=any", self.socket().display());
        Client::open(url)?.get_multiplexed_async_connection_with_config(&patient()).await
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The server's program: `redis-server`, unless `TOLLGATE_TEST_REDIS` names another.
pub fn program() -> OsString {
    std::env::var_os(PROGRAM).unwrap_or_else(|| "redis-server".into())
}

/// Panics with the program that did not start.
pub(crate) fn did_not_start(error: &std::io::Error) -> ! {
    panic!(
        "{}: {error}; install the Debian package `redis-server`, or name a server in {PROGRAM}",
        program().display()
    );
}

/// The words of a reply.
///
/// # Panics
///
/// It is no text.
pub fn text(reply: &Value) -> String {
    redis::from_redis_value_ref(reply).expect("text")
}

/// Connection settings for a busy machine: a server that is merely late is not an error.
pub fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(ANSWER_WITHIN))
        .set_response_timeout(Some(ANSWER_WITHIN))
}

/// A number in a line of `INFO commandstats`; 0 if it is not there.
fn statistic(line: &str, name: &str) -> u64 {
    let value = line.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    value.map_or(0, |value| value.parse().expect("a number"))
}

fn arguments(options: Options<'_>, port: u16, certificates: Option<&Certificates>) -> Vec<String> {
    let port = port.to_string();
    let mut args: Vec<String> = ALWAYS.map(str::to_owned).into();
    if let Some(certificates) = certificates {
        let demand = if options.tls == Tls::Mutual { "yes" } else { "no" };
        args.extend(["--port", "0", "--tls-port", &port, "--tls-auth-clients", demand].map(str::to_owned));
        for (name, file) in [
            ("--tls-ca-cert-file", certificates.authority()),
            ("--tls-cert-file", certificates.certificate("server")),
            ("--tls-key-file", certificates.key("server")),
        ] {
            args.extend([name.to_owned(), file.display().to_string()]);
        }
    } else {
        args.extend(["--port".to_owned(), port]);
    }
    args.extend(options.args.iter().map(|&arg| arg.to_owned()));
    args
}

fn spawn(args: &[String], folder: &Scratch) -> Child {
    let log = File::options().create(true).append(true).open(folder.path().join(LOG)).expect("a log");
    Command::new(program())
        .args(args)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle"))
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| did_not_start(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_comes_back_on_the_same_port_with_nothing() {
        let mut server = RedisServer::start().await;
        server.command(&["SET", "a", "1"]).await;
        assert_eq!(server.contents().await.len(), 1);
        let (port, pid) = (server.port(), server.pid());
        server.restart().await;
        assert_eq!(server.port(), port);
        assert_ne!(server.pid(), pid);
        assert_eq!(server.contents().await, []);
    }

    #[tokio::test]
    async fn a_password_for_everybody_does_not_lock_the_test_out() {
        let server = RedisServer::with(Options { args: &["--requirepass", "secret"], ..Options::default() });
        let server = server.await;
        let mut stranger = Client::open(server.url()).unwrap().get_connection().unwrap();
        let refused = redis::cmd("GET").arg("a").query::<Value>(&mut stranger).unwrap_err();
        assert_eq!(refused.code(), Some("NOAUTH"));
        assert_eq!(text(&server.command(&["PING"]).await), "PONG");
    }

    #[tokio::test]
    async fn calls_are_counted_by_command() {
        let server = RedisServer::start().await;
        server.command(&["SCRIPT", "LOAD", "return 1"]).await;
        assert_eq!(server.calls("script|load").await, 1);
        assert_eq!(server.calls("evalsha").await, 0);
    }

    #[tokio::test]
    #[should_panic(expected = "no-such-option")]
    async fn a_server_that_does_not_start_says_why() {
        RedisServer::with(Options { args: &["--no-such-option", "1"], ..Options::default() }).await;
    }
}
