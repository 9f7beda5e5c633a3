//! One node and its Redis, with a proxy between them.

use std::io::{self, Write};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tollgate::{Gate, Limit, RedisStore, StoreError};
use tollgate_tests::fault_proxy::FaultProxy;
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;
use tollgate_tests::rows::Stored as _;
use tracing_subscriber::fmt::MakeWriter;

/// How long a decision may take where the fault is not about time: a busy machine is no fault.
pub(crate) const UNHURRIED: Duration = Duration::from_secs(2);
/// As a node has it in production.
pub(crate) const USUAL: Duration = Duration::from_millis(50);
/// A second is demanded; this is what a busy machine may make of it.
pub(crate) const RECOVERED_WITHIN: Duration = Duration::from_secs(5);
/// Nothing comes back while a test runs.
pub(crate) const CAPACITY: u64 = 1_000;

/// A gate of [`CAPACITY`] over a Redis behind a proxy.
pub(crate) struct Node {
    pub(crate) gate: Arc<Gate<RedisStore>>,
    pub(crate) proxy: FaultProxy,
    pub(crate) server: RedisServer,
    /// Lines that were logged before it was ready: a busy machine may need several attempts.
    lines_at_start: usize,
}

impl Node {
    pub(crate) async fn with_deadline(deadline: Duration) -> Self {
        listen_to_logs();
        let server = RedisServer::start().await;
        let proxy = FaultProxy::start(server.port()).await;
        let store = RedisStore::builder(&proxy.url()).deadline(deadline).connect().await.unwrap();
        poll::until("a store that is ready", async || store.ready().await.ok()).await;
        let gate = Arc::new(Gate::new(slow_limit(), store));
        poll::until("the first decision", async || gate.allow("the first").await.stored().ok()).await;
        let lines_at_start = logged(&proxy.url()).len();
        Node { gate, proxy, server, lines_at_start }
    }

    pub(crate) async fn start() -> Self {
        Self::with_deadline(UNHURRIED).await
    }

    /// Takes a token; what remains.
    pub(crate) async fn spend(&self, key: &str) -> Result<u64, StoreError> {
        self.gate.allow(key).await.stored().map(|verdict| verdict.remaining)
    }

    /// What remains, once the store answers again.
    pub(crate) async fn remaining(&self, key: &str) -> u64 {
        poll::until("the store to answer", async || self.gate.peek(key).await.stored().ok()).await.remaining
    }

    /// Asks until the breaker is open, and answers how often that took.
    pub(crate) async fn open_the_breaker(&self) -> usize {
        let mut asked = 0;
        poll::until("the breaker to open", async || {
            asked += 1;
            let _ = self.gate.allow("while it is lost").await;
            (!self.gate.store().stats().up).then_some(())
        })
        .await;
        asked
    }

    /// Waits until decisions are made again.
    pub(crate) async fn recovered(&self) {
        poll::within(RECOVERED_WITHIN, "the store to decide again", async || {
            self.gate.allow("after it healed").await.stored().ok()
        })
        .await;
    }

    /// What was logged about this node's store since it was ready.
    pub(crate) fn logged(&self) -> Vec<String> {
        logged(&self.proxy.url()).split_off(self.lines_at_start)
    }
}

/// A thousand at once and then one a day.
pub(crate) fn slow_limit() -> Limit {
    "1/d burst 1000".parse().unwrap()
}

/// Lines of this process' log that mention something.
pub(crate) fn logged(about: &str) -> Vec<String> {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let text = String::from_utf8_lossy(&log);
    text.lines().filter(|line| line.contains(about)).map(str::to_owned).collect()
}

/// Collects what is logged from now on, however verbose.
pub(crate) fn listen_to_logs() {
    static LISTENING: LazyLock<()> = LazyLock::new(|| {
        tracing_subscriber::fmt().with_env_filter("trace").with_ansi(false).with_writer(Log).init();
    });
    LazyLock::force(&LISTENING);
}

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Writes to [`LOG`].
#[derive(Clone, Copy)]
struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Log;

    fn make_writer(&self) -> Log {
        *self
    }
}
