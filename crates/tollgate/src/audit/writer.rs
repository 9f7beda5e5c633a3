//! The task that writes violations to the database.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::retention::{Retention, Sweep};
use super::write::{Batch, MAX_BATCH_ROWS, is_refusal};
use super::{ViolationLog, ViolationStats, Violations, WriteOutcome};
use crate::clock::Clock;
use crate::sql::DatabaseError;

/// The pauses between tries: the first, and the longest.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How long a writer may take whose handle was dropped without a shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// How violations are written.
#[derive(Debug, Clone)]
pub struct WriterOptions {
    /// How often. It is done sooner when much has come together.
    pub every: Duration,
    /// How long they are kept.
    pub retention: Retention,
    /// What tells which second is over.
    pub clock: Clock,
}

impl Default for WriterOptions {
    /// Every second; kept for 30 days, up to a million rows.
    fn default() -> Self {
        WriterOptions {
            every: Duration::from_secs(1),
            retention: Retention::default(),
            clock: Clock::system(),
        }
    }
}

/// Writes violations to a database, until it is told to stop.
///
/// While the database is down, slow or full, it keeps what it has and tries again; what comes meanwhile waits in
/// [`Violations`] as long as there is room, and is dropped and counted after that. Rows that the database refuses are
/// dropped and counted. No decision waits for any of it.
#[derive(Debug)]
pub struct Writer {
    violations: Violations,
    stop: oneshot::Sender<Duration>,
    task: JoinHandle<()>,
}

impl Writer {
    /// Starts writing.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn start(violations: Violations, log: ViolationLog, options: WriterOptions) -> Self {
        let (stop, stopped) = oneshot::channel();
        let work = Work {
            violations: violations.clone(),
            log,
            sweep: Sweep::new(options.retention),
            options,
            backlog: VecDeque::new(),
            attempt: None,
            pause: None,
        };
        Writer { violations, stop, task: tokio::spawn(work.run(stopped)) }
    }

    /// Writes what is pending, at most for `within`, counts the rest as dropped, and ends.
    ///
    /// Refusals that come later stay pending.
    pub async fn shutdown(self, within: Duration) -> ViolationStats {
        let _ = self.stop.send(within); // an error is a task that has ended
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the writer of violations has died");
        }
        self.violations.stats()
    }
}

/// What the task works on.
struct Work {
    violations: Violations,
    log: ViolationLog,
    options: WriterOptions,
    sweep: Sweep,
    /// What is to be written. A batch is removed when its outcome is known.
    backlog: VecDeque<Arc<Batch>>,
    /// The attempt at the first batch. It is a task, so that waiting for it can be interrupted and resumed.
    attempt: Option<JoinHandle<Result<(), DatabaseError>>>,
    /// How long to wait after the last failure; `None` while all is well.
    pause: Option<Duration>,
}

impl Work {
    async fn run(mut self, stopped: oneshot::Receiver<Duration>) {
        let within = tokio::select! {
            never = self.work() => match never {},
            within = stopped => within.unwrap_or(SHUTDOWN_TIMEOUT),
        };
        if timeout(within, self.finish()).await.is_err() {
            self.abandon().await;
        }
    }

    async fn work(&mut self) -> Infallible {
        loop {
            tokio::select! {
                () = sleep(self.options.every) => {}
                () = self.violations.half_full() => {}
            }
            if self.backlog.is_empty() {
                let over = self.violations.drain(self.options.clock.now());
                self.stack(over);
            }
            self.write_all().await;
            self.delete_old().await;
        }
    }

    /// Writes everything, also of the second that runs.
    async fn finish(&mut self) {
        self.write_all().await;
        let rest = self.violations.drain_all();
        self.stack(rest);
        self.write_all().await;
    }

    /// Counts everything that is still there as dropped, and ends the attempt that is under way: a database that recovers
    /// later must not receive what was counted as dropped.
    async fn abandon(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            attempt.abort();
            if let Ok(Ok(())) = attempt.await
                && let Some(batch) = self.backlog.pop_front()
            {
                self.violations.settle(batch.refusals(), WriteOutcome::Written);
            }
        }
        let rest = self.violations.drain_all();
        self.stack(rest);
        let refusals = self.backlog.drain(..).map(|batch| batch.refusals()).sum();
        self.violations.settle(refusals, WriteOutcome::Dropped);
        tracing::warn!(refusals, "violations could not be written in time");
    }

    /// Adds violations to what is to be written.
    fn stack(&mut self, violations: Vec<super::Violation>) {
        let mut rest = violations.into_iter().map(|violation| match &self.log.pseudonyms {
            Some(pseudonyms) => pseudonyms.apply(violation),
            None => violation,
        });
        loop {
            let batch: Vec<_> = rest.by_ref().take(MAX_BATCH_ROWS).collect();
            if batch.is_empty() {
                return;
            }
            self.backlog.push_back(Arc::new(Batch::new(batch)));
        }
    }

    async fn write_all(&mut self) {
        while let Some(batch) = self.backlog.front().cloned() {
            let outcome = match self.write(&batch).await {
                Ok(()) => WriteOutcome::Written,
                Err(Failure::Final) => WriteOutcome::Dropped,
                Err(Failure::Passing) => {
                    self.delete_old().await; // this may be what a full database needs
                    sleep(self.longer_pause()).await;
                    continue;
                }
            };
            self.backlog.pop_front();
            self.violations.settle(batch.refusals(), outcome);
            self.sweep.note(batch.violations.len());
        }
    }

    /// Writes a batch, or continues to wait for the attempt in progress.
    async fn write(&mut self, batch: &Arc<Batch>) -> Result<(), Failure> {
        let attempt = self.attempt.get_or_insert_with(|| {
            let (log, batch) = (self.log.clone(), Arc::clone(batch));
            tokio::spawn(async move { log.insert(&batch).await })
        });
        let outcome = attempt.await;
        self.attempt = None;
        match outcome {
            Ok(Ok(())) => {
                if self.pause.take().is_some() {
                    tracing::info!("violations are written again");
                }
                self.violations.set_write_error(None);
                Ok(())
            }
            Ok(Err(error)) if is_refusal(&error) => {
                let error: &(dyn Error + 'static) = &error;
                tracing::error!(error, rows = batch.violations.len(), "the database refuses violations");
                Err(Failure::Final)
            }
            Ok(Err(error)) => {
                if self.pause.is_none() {
                    let error: &(dyn Error + 'static) = &error;
                    tracing::warn!(error, "cannot write violations; retrying");
                }
                self.violations.set_write_error(Some(&error));
                Err(Failure::Passing)
            }
            Err(error) => {
                tracing::error!(%error, rows = batch.violations.len(), "writing violations has a bug");
                Err(Failure::Final)
            }
        }
    }

    fn longer_pause(&mut self) -> Duration {
        let (first, longest) = RETRY_PAUSES;
        *self.pause.insert(self.pause.map_or(first, |pause| (pause * 2).min(longest)))
    }

    /// Deletes what is too old or too much, as long as there is nothing to write.
    async fn delete_old(&mut self) {
        while self.sweep.is_due(self.options.clock.now()) {
            match self.sweep.step(&self.log, self.options.clock.now()).await {
                Ok(()) if self.pause.is_none() => self.violations.set_write_error(None),
                Ok(()) => {}
                Err(error) => {
                    if self.violations.write_error().is_none() {
                        let error: &(dyn Error + 'static) = &error;
                        tracing::warn!(error, "cannot delete old violations; retrying");
                    }
                    self.violations.set_write_error(Some(&error));
                    return;
                }
            }
            if !self.backlog.is_empty() || !self.violations.is_half_empty() {
                return;
            }
        }
    }
}

/// Why a batch was not written.
enum Failure {
    /// The database may recover.
    Passing,
    /// It will not take these rows.
    Final,
}
