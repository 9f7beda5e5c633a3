//! The connection to Redis, and the breaker in front of it.
//!
//! ```text
//!            connected                        a decision was answered
//! Connecting ---------> Up <------------------------------------------- HalfOpen <--.
//!     ^  |              |  |                                               |        | connected
//!     |  | not          |  | too many decisions in a row                   |        |
//!     |  v connected    |  v were not answered in time         it was not  v        |
//!     |  Down <---------|--'---------------------------------------------- Down ----'
//!     '-----------------' the connection broke
//! ```
//!
//! Decisions share one connection and are pipelined. While the link is `Connecting`, at the start and after a connection
//! broke, they wait for the outcome, each until its deadline and a bounded number in all. While it is `Down`, they fail
//! immediately and one task reconnects, one attempt at a time. If decisions had failed over the last connection, it is
//! `HalfOpen` then: the next decision is the probe, and the others fail immediately until it is answered. If Redis could
//! not be reached at all, a connection that answers is enough.
//!
//! A command is sent once. The exceptions are answers that prove it was not run: if Redis does not know a script, it
//! is uploaded, once for all decisions that wait for it, and the command is sent again; a node of a Cluster says which node to ask instead.
//!
//! A Redis that answers, but refuses to write (full, a replica), is an alarm with the first refusal. Decisions that
//! write nothing still work there, so only a charge that was written ends the alarm.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::{Mutex, Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::answer::{Failure, Outcome, Redirect, Refusal};
use super::config::RedisBuilder;
use super::connection::{Connection, Preface};
use super::script::Script;
use super::sentinel::Dialer;
use super::stream::Ended;
use crate::store::StoreError;

/// This many failed decisions in a row open the breaker.
const MAX_FAILURES: u32 = 20;
/// An alarm is over when nothing was refused for this long.
const QUIET: Duration = Duration::from_secs(5);
/// A connection that lasted so long was no accident: the next attempt after it is made quickly again.
const LASTING: Duration = Duration::from_secs(2);
/// The pause between two attempts, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// A supervised connection. Dropping it ends the supervision.
#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
    supervisor: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    shown: String,
    dialer: Dialer,
    kind: Kind,
    deadline: Duration,
    connect_timeout: Duration,
    state: watch::Sender<State>,
    /// Decisions that were not answered since the last answer.
    failures: AtomicU32,
    /// Decisions that Redis refused to make since the last that was written.
    rejections: AtomicU32,
    /// Whether the log says that something is wrong, and when it last was.
    alarm: parking_lot::Mutex<Option<Instant>>,
    /// One upload of the scripts at a time.
    uploading: Mutex<()>,
    uploads: AtomicU64,
    /// Whether a decision is the probe of a half-open link.
    is_probing: AtomicBool,
    /// Whether the breaker has closed since the last refusal to write, and no charge was written yet.
    is_recovering: AtomicBool,
    /// Whether a new connection has to be proved by a decision: decisions failed over the last one, so that it is not enough
    /// that Redis answers at all.
    needs_probe: AtomicBool,
    /// For those who may wait for this Redis.
    permits: Semaphore,
    max_in_flight: usize,
    /// There is news of where Redis is: connect again, at once.
    moved: Notify,
    counters: Arc<Counters>,
}

/// What the links of a store have seen.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) uploads: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) outages: AtomicU64,
    pub(super) overloaded: AtomicU64,
}

/// Where a link leads.
#[derive(Debug)]
pub(super) struct Target {
    /// Its name in the log.
    pub(super) shown: String,
    pub(super) dialer: Dialer,
    pub(super) kind: Kind,
}

/// What is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A Redis that has every key.
    Whole,
    /// A node of a Cluster, which may send us to another.
    Member,
}

#[derive(Debug, Clone)]
enum State {
    Connecting,
    Up(Connection),
    /// Connected again; the next decision is the probe. The others fail with the last error.
    HalfOpen(Connection, StoreError),
    Down(StoreError),
}

impl State {
    const fn is_connected(&self) -> bool {
        matches!(self, State::Up(_) | State::HalfOpen(..))
    }

    /// Whether this is the connection of that number.
    fn has(&self, number: u64) -> bool {
        match self {
            State::Up(connection) | State::HalfOpen(connection, _) => connection.number == number,
            State::Connecting | State::Down(_) => false,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

impl Link {
    /// Begins to connect.
    pub(super) fn start(config: &RedisBuilder, target: Target, counters: Arc<Counters>) -> Self {
        let Target { shown, dialer, kind } = target;
        let shared = Arc::new(Shared {
            shown,
            dialer,
            kind,
            deadline: config.deadline,
            connect_timeout: config.connect_timeout,
            state: watch::Sender::new(State::Connecting),
            failures: AtomicU32::new(0),
            rejections: AtomicU32::new(0),
            alarm: parking_lot::Mutex::new(None),
            uploading: Mutex::new(()),
            uploads: AtomicU64::new(0),
            is_probing: AtomicBool::new(false),
            is_recovering: AtomicBool::new(false),
            needs_probe: AtomicBool::new(false),
            permits: Semaphore::new(config.max_in_flight),
            max_in_flight: config.max_in_flight,
            moved: Notify::new(),
            counters,
        });
        let supervisor = tokio::spawn(supervise(Arc::clone(&shared)));
        Link { shared, supervisor }
    }

    /// Sends a command and waits for its answer until the deadline. An answer that `read` makes nothing of breaks the
    /// connection.
    pub(super) async fn call<T>(
        &self,
        command: &Cmd,
        deadline: Instant,
        read: impl FnOnce(Value) -> Option<T>,
    ) -> Result<T, StoreError> {
        match self.attempt(command, Preface::None, deadline, read).await? {
            Outcome::Done(answer) => Ok(answer),
            Outcome::Elsewhere(Redirect::Later(error)) => Err(error),
            Outcome::Elsewhere(_) => Err(StoreError::rejected("MOVED")),
        }
    }

    /// The same of a node that may have reasons to do nothing.
    pub(super) async fn attempt<T>(
        &self,
        command: &Cmd,
        preface: Preface,
        deadline: Instant,
        read: impl FnOnce(Value) -> Option<T>,
    ) -> Result<Outcome<T>, StoreError> {
        let permit = self.shared.permits.try_acquire();
        if permit.is_err() && !Script::relieves_the_store(command) {
            self.shared.counters.overloaded.fetch_add(1, Ordering::Relaxed);
            return Err(StoreError::Overloaded);
        }
        let sent = Sent::now(&self.shared);
        let failure = match timeout_at(deadline, sent.call(command, preface)).await {
            Ok(Ok(answer)) => match read(answer) {
                Some(answer) => {
                    sent.answered();
                    return Ok(Outcome::Done(answer));
                }
                None => Failure::broken(None),
            },
            Ok(Err(Refusal::Redis(error))) => match self.shared.redirect(&error) {
                Some(redirect) => {
                    sent.answered();
                    return Ok(Outcome::Elsewhere(redirect));
                }
                None => error.into(),
            },
            Ok(Err(Refusal::NoConnection(error))) => Failure::quick(error),
            Err(_) => Failure::quick(StoreError::Timeout),
        };
        Err(sent.failed(failure))
    }

    /// A question beside the decisions, which neither counts for nor against this Redis.
    pub(super) async fn query(&self, command: &Cmd, deadline: Instant) -> Result<Value, StoreError> {
        let asked = timeout_at(deadline, async {
            let mut connection = self.shared.connected().await?;
            let answer = connection.send(command, Preface::None).await;
            answer.map_err(|error| Failure::from(error).error)
        });
        asked.await.unwrap_or(Err(StoreError::Timeout))
    }

    /// Nothing became of a decision by its deadline, for reasons the node gave.
    pub(super) fn given_up(&self, error: StoreError) -> StoreError {
        let number = match &*self.shared.state.borrow() {
            State::Up(connection) | State::HalfOpen(connection, _) => connection.number,
            State::Connecting | State::Down(_) => 0,
        };
        self.shared.failed(Failure::quick(error), number)
    }

    /// Redis is elsewhere now: connect again, at once.
    pub(super) fn redial(&self) {
        self.shared.state.send_if_modified(|state| {
            let was_connected = state.is_connected();
            if was_connected {
                *state = State::Connecting;
            }
            was_connected
        });
        self.shared.moved.notify_one();
    }

    /// A charge was written.
    pub(super) fn wrote(&self) {
        let shared = &*self.shared;
        if shared.rejections.load(Ordering::Relaxed) != 0 {
            shared.rejections.store(0, Ordering::Relaxed);
            let has_recovered = shared.is_recovering.swap(false, Ordering::Relaxed);
            shared.all_clear_after(if has_recovered { Duration::ZERO } else { QUIET });
        }
    }

    /// Waits for the outcome of the first attempt to connect.
    pub(super) async fn settled(&self) -> Result<(), StoreError> {
        let mut state = self.shared.state.subscribe();
        match state.wait_for(|state| !matches!(state, State::Connecting)).await.as_deref() {
            Ok(State::Down(error)) => Err(*error),
            _ => Ok(()),
        }
    }

    /// Whether decisions are made at the store.
    pub(super) fn is_up(&self) -> bool {
        matches!(*self.shared.state.borrow(), State::Up(_))
    }

    /// Whether a decision would be sent.
    pub(super) fn is_reachable(&self) -> bool {
        self.shared.state.borrow().is_connected() && !self.is_down()
    }

    /// Whether a decision would fail immediately.
    pub(super) fn is_down(&self) -> bool {
        match *self.shared.state.borrow() {
            State::Down(_) => true,
            State::HalfOpen(..) => self.shared.is_probing.load(Ordering::Relaxed),
            State::Connecting | State::Up(_) => false,
        }
    }

    /// How many decisions wait for it.
    pub(super) fn in_flight(&self) -> usize {
        self.shared.max_in_flight - self.shared.permits.available_permits()
    }
}

/// A command on its way. Whoever stops waiting for it after a while has seen a failure, too.
#[derive(Debug)]
struct Sent<'l> {
    shared: &'l Arc<Shared>,
    at: Instant,
    /// The connection that was used, once one was.
    number: AtomicU64,
    /// Whether it is the probe of a half-open link.
    is_probe: AtomicBool,
    told: bool,
}

impl<'l> Sent<'l> {
    fn now(shared: &'l Arc<Shared>) -> Self {
        Sent {
            shared,
            at: Instant::now(),
            number: AtomicU64::new(0),
            is_probe: AtomicBool::new(false),
            told: false,
        }
    }

    async fn call(&self, command: &Cmd, preface: Preface) -> Result<Value, Refusal> {
        let mut connection = self.connection().await.map_err(Refusal::NoConnection)?;
        self.number.store(connection.number, Ordering::Relaxed);
        self.shared.run(&mut connection, command, preface).await.map_err(Refusal::Redis)
    }

    /// The connection; of a half-open link only if no other decision is the probe.
    async fn connection(&self) -> Result<Connection, StoreError> {
        if let State::Up(connection) = &*self.shared.state.borrow() {
            return Ok(connection.clone());
        }
        let connection = self.shared.connected().await?;
        if let State::HalfOpen(_, error) = &*self.shared.state.borrow() {
            if self.shared.is_probing.swap(true, Ordering::Relaxed) {
                return Err(*error);
            }
            self.is_probe.store(true, Ordering::Relaxed);
        }
        Ok(connection)
    }

    fn answered(mut self) {
        self.told = true;
        if *self.is_probe.get_mut() {
            self.shared.close_breaker(*self.number.get_mut());
        }
        if self.shared.failures.load(Ordering::Relaxed) != 0 {
            self.shared.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Without a connection nothing was sent; after that, nobody knows whether it was run.
    fn failed(mut self, failure: Failure) -> StoreError {
        self.told = true;
        let number = *self.number.get_mut();
        let error = self.shared.failed(failure, number);
        if number == 0 { error.unsent() } else { error }
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if !self.told && self.at.elapsed() >= self.shared.deadline / 4 {
            self.shared.failed(Failure::quick(StoreError::Timeout), *self.number.get_mut());
        }
        if *self.is_probe.get_mut() {
            self.shared.is_probing.store(false, Ordering::Relaxed);
        }
    }
}

impl Shared {
    /// Sends a command, and again after an upload if Redis does not know the script.
    async fn run(
        self: &Arc<Self>,
        connection: &mut Connection,
        command: &Cmd,
        preface: Preface,
    ) -> Result<Value, RedisError> {
        loop {
            let uploads = self.uploads.load(Ordering::Acquire);
            match connection.send(command, preface).await {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    // In a task of its own: a decision that is dropped does not leave it half done.
                    let (shared, connection) = (Arc::clone(self), connection.clone());
                    let uploaded =
                        tokio::spawn(async move { shared.upload(connection, uploads).await }).await;
                    uploaded
                        .map_err(|_| RedisError::from((ErrorKind::Client, "the upload was given up")))??;
                }
                answer => return answer,
            }
        }
    }

    /// Uploads all scripts, unless that was done since the `known` number of uploads: a command that ends a hold is then never
    /// delayed by an upload of its own.
    async fn upload(&self, connection: Connection, known: u64) -> Result<(), RedisError> {
        let _one_at_a_time = self.uploading.lock().await;
        if self.uploads.load(Ordering::Acquire) != known {
            return Ok(());
        }
        try_join_all(Script::ALL.map(|script| {
            let mut connection = connection.clone();
            async move {
                let load = redis::cmd("SCRIPT").arg("LOAD").arg(script.code()).take();
                connection.send(&load, Preface::None).await
            }
        }))
        .await?;
        self.uploads.fetch_add(1, Ordering::Release);
        self.counters.uploads.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Where else to ask, if this is a node of a Cluster.
    fn redirect(&self, error: &RedisError) -> Option<Redirect> {
        if self.kind == Kind::Member { Redirect::of(error) } else { None }
    }

    /// The connection, once it is known whether there is one.
    async fn connected(&self) -> Result<Connection, StoreError> {
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| !matches!(state, State::Connecting)).await;
        match settled.as_deref() {
            Ok(State::Up(connection) | State::HalfOpen(connection, _)) => Ok(connection.clone()),
            Ok(State::Down(error)) => Err(*error),
            Ok(State::Connecting) | Err(_) => Err(StoreError::Unreachable),
        }
    }

    /// The probe of a half-open link was answered over the connection of that number.
    fn close_breaker(&self, number: u64) {
        let closed = self.state.send_if_modified(|state| match state {
            State::HalfOpen(connection, _) if connection.number == number => {
                *state = State::Up(connection.clone());
                true
            }
            _ => false,
        });
        if closed && self.rejections.load(Ordering::Relaxed) == 0 {
            self.all_clear_after(Duration::ZERO);
        } else if closed {
            self.is_recovering.store(true, Ordering::Relaxed);
        }
    }

    /// Takes note of a failure: a connection that broke is replaced, and too many failures in a row open the breaker.
    /// What failed on another connection than the present one says nothing about it.
    fn failed(&self, failure: Failure, number: u64) -> StoreError {
        let Failure { error, broken, detail } = failure;
        let rejected = matches!(error, StoreError::Rejected { .. });
        if rejected && number != 0 {
            self.raise_alarm(&error, detail.as_deref());
        }
        let opened = self.state.send_if_modified(|state| {
            match state {
                State::HalfOpen(current, _) if current.number == number => {
                    self.needs_probe.store(true, Ordering::Relaxed);
                    *state = State::Down(error);
                    return true;
                }
                State::Up(current) if current.number == number && broken => {
                    // A replica answers at a fixed address; sentinels are asked for another.
                    let is_replica = rejected && self.dialer.is_fixed();
                    self.needs_probe.store(is_replica, Ordering::Relaxed);
                    *state = State::Connecting;
                    return true;
                }
                State::Up(current) if current.number == number => {}
                // A decision for which there was no connection in time.
                State::Connecting if number == 0 => {}
                _ => return false,
            }
            let in_a_row = if rejected { &self.rejections } else { &self.failures };
            let too_many = in_a_row.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_FAILURES;
            if too_many {
                self.needs_probe.store(number != 0, Ordering::Relaxed);
                *state = State::Down(error);
            }
            too_many
        });
        if opened && matches!(*self.state.borrow(), State::Down(_)) {
            self.raise_alarm(&error, detail.as_deref());
        }
        error
    }

    /// One line when something goes wrong, however often it does until all is clear.
    fn raise_alarm(&self, error: &StoreError, detail: Option<&str>) {
        if self.alarm.lock().replace(Instant::now()).is_none() {
            self.counters.outages.fetch_add(1, Ordering::Relaxed);
            let detail = detail.map(|detail| format!(" ({detail})")).unwrap_or_default();
            tracing::warn!(
                store = self.shown,
                reason = error.reason(),
                "{error}{detail}; each rule's on_store_failure applies until it recovers"
            );
        }
    }

    /// And one when it is over, if nothing went wrong for so long.
    fn all_clear_after(&self, quiet: Duration) {
        let mut alarm = self.alarm.lock();
        if alarm.is_some_and(|last| last.elapsed() >= quiet) {
            *alarm = None;
            tracing::info!(store = self.shown, "the store is back; it decides again");
        }
    }

    /// A new connection that answers.
    async fn connect(self: &Arc<Self>, number: u64) -> Result<(Connection, Ended), Failure> {
        let too_late = |_| Failure::quick(StoreError::Timeout);
        let dialled = timeout(self.connect_timeout, self.dialer.connect()).await;
        let (redis, meter, ended) = dialled.map_err(too_late)??;
        let mut connection = Connection { redis, meter, number };
        let ping = redis::cmd("PING");
        match timeout(self.deadline, connection.send(&ping, Preface::None)).await.map_err(too_late)? {
            // A user without the right to PING may still have those that decisions need.
            Err(error) if error.code() != Some("NOPERM") => Err(error.into()),
            Ok(_) | Err(_) => Ok((connection, ended)),
        }
    }

    /// The state of a new connection.
    fn connected_state(&self, connection: Connection) -> State {
        if !self.needs_probe.swap(false, Ordering::Relaxed) {
            return State::Up(connection);
        }
        match &*self.state.borrow() {
            State::Down(error) => State::HalfOpen(connection, *error),
            _ => State::HalfOpen(connection, StoreError::rejected("READONLY")),
        }
    }
}

/// Keeps a connection up for as long as the link lives.
async fn supervise(shared: Arc<Shared>) {
    let mut changes = shared.state.subscribe();
    let mut pause = FIRST_PAUSE;
    let mut warned = false;
    for number in 1.. {
        let connected = tokio::select! {
            connected = shared.connect(number) => connected,
            // Whatever this attempt would have found, it is out of date.
            () = shared.moved.notified() => continue,
        };
        match connected {
            Ok((mut connection, ended)) => {
                let since = Instant::now();
                shared.failures.store(0, Ordering::Relaxed);
                shared.counters.connections.fetch_add(1, Ordering::Relaxed);
                let state = shared.connected_state(connection.clone());
                let is_half_open = matches!(state, State::HalfOpen(..));
                shared.is_probing.store(false, Ordering::Relaxed);
                shared.state.send_replace(state);
                if !is_half_open && shared.rejections.load(Ordering::Relaxed) == 0 {
                    shared.all_clear_after(Duration::ZERO);
                }
                warned = warned || shared.warn_of_eviction(&mut connection).await;
                drop(connection);
                tokio::select! {
                    _ = changes.wait_for(|state| !state.has(number)) => {}
                    // The server closed the connection while it was idle.
                    _ = ended => {
                        shared.state.send_if_modified(|state| {
                            let was_connected = state.has(number);
                            if was_connected {
                                *state = State::Connecting;
                            }
                            was_connected
                        });
                    }
                }
                if since.elapsed() >= LASTING {
                    pause = FIRST_PAUSE;
                    if matches!(*shared.state.borrow(), State::Connecting) {
                        continue;
                    }
                }
            }
            Err(Failure { error, detail, .. }) => {
                shared.raise_alarm(&error, detail.as_deref());
                let was_refusing = shared.rejections.load(Ordering::Relaxed) >= MAX_FAILURES;
                shared.needs_probe.store(was_refusing, Ordering::Relaxed);
                shared.state.send_replace(State::Down(error));
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = LONGEST_PAUSE.min(pause * 2),
            () = shared.moved.notified() => pause = FIRST_PAUSE,
        }
    }
}

impl Shared {
    /// Whether it was worth a warning that this Redis drops buckets when its memory is full.
    async fn warn_of_eviction(&self, connection: &mut Connection) -> bool {
        let asked = timeout(self.connect_timeout, connection.eviction_policy()).await;
        let Ok(Some(policy)) = asked else { return false };
        if policy == "noeviction" {
            return false;
        }
        tracing::warn!(
            store = self.shown,
            "maxmemory-policy is {policy}: a bucket that Redis drops starts full again; set it to noeviction"
        );
        true
    }
}
