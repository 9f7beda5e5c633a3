//! The connection to Redis, and the breaker in front of it.
//!
//! ```text
//!            a connection, and a charge that went through
//! Connecting ------------------------------------------------> Up
//!     ^  |                                                    |  |
//!     |  | no                      the connection broke       |  | so many decisions in a row
//!     |  v                                                    |  v were not answered in time
//!     |  Down <-----------------------------------------------|--'
//!     '-------------------------------------------------------'
//! ```
//!
//! Decisions share one connection and are written together. While it is `Down` they fail at once, and one task, one
//! attempt at a time, tries to connect and to make a charge of its own; only when that works is it `Up` again. While
//! it is `Connecting` for the first time they wait for the outcome, each until its deadline.
//!
//! A command is sent once. The one exception is an answer that proves it was not run: a script that Redis does not
//! know is uploaded, by one for all, and the command sent again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::config::RedisBuilder;
use super::script;
use crate::store::StoreError;

/// So many decisions in a row that failed open the breaker.
const PATIENCE: u32 = 20;
/// The pause between two attempts, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// A supervised connection. Dropping it ends the supervision.
#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
    supervisor: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    shown: String,
    client: Client,
    deadline: Duration,
    connect_timeout: Duration,
    state: watch::Sender<State>,
    /// Failures since the last success.
    failures: AtomicU32,
    /// One upload of the script at a time.
    uploading: Mutex<()>,
    counters: Counters,
}

/// What a link has seen.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) uploads: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) outages: AtomicU64,
}

#[derive(Debug, Clone)]
enum State {
    Connecting,
    Up { connection: MultiplexedConnection, number: u64 },
    Down(StoreError),
}

impl Drop for Link {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

impl Link {
    /// Begins to connect. `probe` is a charge that proves that decisions can be made.
    pub(super) fn start(config: &RedisBuilder, client: Client, probe: Cmd) -> Self {
        let shared = Arc::new(Shared {
            shown: config.shown(),
            client,
            deadline: config.deadline,
            connect_timeout: config.connect_timeout,
            state: watch::Sender::new(State::Connecting),
            failures: AtomicU32::new(0),
            uploading: Mutex::new(()),
            counters: Counters::default(),
        });
        let supervisor = tokio::spawn(supervise(Arc::clone(&shared), probe));
        Link { shared, supervisor }
    }

    /// Sends a command and waits for its answer until the deadline.
    pub(super) async fn call(&self, command: &Cmd) -> Result<Value, StoreError> {
        let shared = &*self.shared;
        // Reading a state copies a few pointers.
        let outcome = match timeout(shared.deadline, shared.call(command)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure { error: StoreError::Timeout, number: None, broken: false }),
        };
        outcome.map_err(|failure| shared.failed(failure)).inspect(|_| {
            if shared.failures.load(Ordering::Relaxed) != 0 {
                shared.failures.store(0, Ordering::Relaxed);
            }
        })
    }

    /// Waits for the outcome of the first attempt to connect.
    pub(super) async fn settled(&self) -> Result<(), StoreError> {
        let mut state = self.shared.state.subscribe();
        match state.wait_for(|state| !matches!(state, State::Connecting)).await.as_deref() {
            Ok(State::Down(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Whether decisions are made at the store.
    pub(super) fn is_up(&self) -> bool {
        matches!(*self.shared.state.borrow(), State::Up { .. })
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.shared.counters
    }
}

/// A command that failed, and on which connection.
#[derive(Debug)]
struct Failure {
    error: StoreError,
    number: Option<u64>,
    /// Whether the connection is of no more use.
    broken: bool,
}

impl Failure {
    fn at_once(error: StoreError) -> Self {
        Failure { error, number: None, broken: false }
    }

    fn of(error: &RedisError, number: u64) -> Self {
        let code = error.code().unwrap_or_default();
        let (error, broken) = match error.kind() {
            // Whoever answers this is no primary any more: resolve the address again.
            ErrorKind::Server(ServerErrorKind::ReadOnly) => (StoreError::rejected(code), true),
            ErrorKind::Server(_) | ErrorKind::Extension => (StoreError::rejected(code), false),
            ErrorKind::AuthenticationFailed => (StoreError::rejected("NOAUTH"), true),
            _ => (StoreError::Unreachable, true),
        };
        Failure { error, number: Some(number), broken }
    }
}

impl Shared {
    async fn call(&self, command: &Cmd) -> Result<Value, Failure> {
        let (mut connection, number) = self.connection().await.map_err(Failure::at_once)?;
        self.run(&mut connection, command).await.map_err(|error| Failure::of(&error, number))
    }

    /// Sends a command, and again after an upload when Redis does not know the script.
    async fn run(&self, connection: &mut MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
        loop {
            let uploads = self.counters.uploads.load(Ordering::Acquire);
            let answer = connection.send_packed_command(command).await;
            match answer.and_then(Value::extract_error) {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    self.upload(connection, uploads).await?;
                }
                answer => return answer,
            }
        }
    }

    /// Uploads the script, unless somebody did since the `known` number of uploads.
    async fn upload(&self, connection: &mut MultiplexedConnection, known: u64) -> Result<(), RedisError> {
        let _one_at_a_time = self.uploading.lock().await;
        if self.counters.uploads.load(Ordering::Acquire) != known {
            return Ok(());
        }
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(script::CODE).take();
        connection.send_packed_command(&load).await.and_then(Value::extract_error)?;
        self.counters.uploads.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The connection, once it is known whether there is one.
    async fn connection(&self) -> Result<(MultiplexedConnection, u64), StoreError> {
        if let State::Up { connection, number } = &*self.state.borrow() {
            return Ok((connection.clone(), *number));
        }
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| !matches!(state, State::Connecting)).await;
        match settled.as_deref() {
            Ok(State::Up { connection, number }) => Ok((connection.clone(), *number)),
            Ok(State::Down(error)) => Err(error.clone()),
            Ok(State::Connecting) | Err(_) => Err(StoreError::Unreachable),
        }
    }

    /// Takes note of a failure: a connection that broke is replaced, and too many failures in a row open the breaker.
    fn failed(&self, failure: Failure) -> StoreError {
        let Failure { error, number, broken } = failure;
        let in_a_row = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        self.state.send_if_modified(|state| {
            let State::Up { number: current, .. } = state else { return false };
            if broken && number == Some(*current) {
                *state = State::Connecting;
            } else if in_a_row >= PATIENCE {
                *state = State::Down(error.clone());
            } else {
                return false;
            }
            true
        });
        error
    }

    /// A new connection over which a charge went through.
    async fn connect(&self, probe: &Cmd) -> Result<MultiplexedConnection, Failure> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024);
        let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = timeout(self.connect_timeout, connecting)
            .await
            .map_err(|_| Failure::at_once(StoreError::Timeout))?
            .map_err(|error| Failure::of(&error, 0))?;
        timeout(self.deadline, self.run(&mut connection, probe))
            .await
            .map_err(|_| Failure::at_once(StoreError::Timeout))?
            .map_err(|error| Failure::of(&error, 0))?;
        Ok(connection)
    }
}

/// Keeps a connection up for as long as the link lives.
async fn supervise(shared: Arc<Shared>, probe: Cmd) {
    let mut changes = shared.state.subscribe();
    let mut pause = FIRST_PAUSE;
    let mut reported: Option<StoreError> = None;
    for number in 1.. {
        match shared.connect(&probe).await {
            Ok(connection) => {
                shared.failures.store(0, Ordering::Relaxed);
                shared.counters.connections.fetch_add(1, Ordering::Relaxed);
                shared.state.send_replace(State::Up { connection, number });
                if reported.take().is_some() {
                    tracing::info!(store = shared.shown, "the store is back; it decides again");
                }
                pause = FIRST_PAUSE;
                let settled = changes.wait_for(|state| !matches!(state, State::Up { .. })).await;
                let Ok(State::Down(error)) = settled.as_deref() else { continue };
                shared.report(&mut reported, error);
            }
            Err(Failure { error, .. }) => {
                shared.report(&mut reported, &error);
                shared.state.send_replace(State::Down(error));
            }
        }
        tokio::time::sleep(pause).await;
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

impl Shared {
    /// One line when the store is lost, and another only when the reason changes.
    fn report(&self, reported: &mut Option<StoreError>, error: &StoreError) {
        if reported.is_none() {
            self.counters.outages.fetch_add(1, Ordering::Relaxed);
        }
        if reported.as_ref() != Some(error) {
            tracing::warn!(
                store = self.shown,
                reason = error.reason(),
                "{error}; each rule's on_store_failure decides until it is back"
            );
            *reported = Some(error.clone());
        }
    }
}
