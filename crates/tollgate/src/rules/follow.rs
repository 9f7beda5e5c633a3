//! Keeps a limiter's rules those of their source.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tollgate_core::{Micros, RuleSet, Timestamp};

use super::snapshot::SnapshotFile;
use super::source::{Loaded, RuleSource, SourceError, off_thread};
use crate::clock::Clock;
use crate::limiter::Limiter;
use crate::store::Store;

/// Callers that may have asked for a look before the next has to wait for it.
const MAX_WAITING: usize = 64;

/// Follows a source: new rules that are valid take effect, and otherwise the last good ones stay.
///
/// ```no_run
/// # async fn serve(store: tollgate::MemoryStore) -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use tollgate::Limiter;
/// use tollgate::rules::{Follower, RuleSource};
///
/// let (rules, follower) = Follower::start(RuleSource::file("rules.yaml")).await?;
/// let limiter = Arc::new(Limiter::new(rules, store));
/// let status = follower.status();
/// tokio::spawn(follower.run(Arc::clone(&limiter)));
/// println!("rules of version {}", status.report().version);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Follower {
    source: RuleSource,
    status: RulesStatus,
    refresher: Refresher,
    asked: mpsc::Receiver<oneshot::Sender<()>>,
    /// The rules before the present ones, until the next look: requests have finished with them by then, so that none of
    /// them has to free a large set.
    retired: Option<Arc<RuleSet>>,
    snapshot: Option<SnapshotFile>,
}

/// Makes a follower look at its source immediately. Clones reach the same follower.
#[derive(Debug, Clone)]
pub struct Refresher(mpsc::Sender<oneshot::Sender<()>>);

/// The state of the rules. Clones show the same.
#[derive(Debug, Clone)]
pub struct RulesStatus {
    clock: Clock,
    report: Arc<Mutex<RulesReport>>,
}

/// The state of the rules at an instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesReport {
    /// Where they come from; no password in it.
    pub source: String,
    /// Which they are.
    pub version: String,
    /// How many.
    pub rules: usize,
    /// When they took effect.
    pub loaded_at: Timestamp,
    /// Since when.
    pub age: Micros,
    /// Why there are no newer ones, if the source was refused or could not be reached.
    pub error: Option<String>,
    /// Since when that is so.
    pub stale_since: Option<Timestamp>,
}

impl Follower {
    /// Loads the rules to begin with.
    ///
    /// # Errors
    ///
    /// The source cannot be reached, or everything that is wrong with its rules.
    pub async fn start(mut source: RuleSource) -> Result<(RuleSet, Self), SourceError> {
        let loaded = first(&mut source).await?;
        Ok(Follower::new(source, loaded))
    }

    /// Loads the rules to begin with; if the database is down or its rules are invalid, the last good ones.
    ///
    /// The last good rules are kept in `file` from then on. One invalid row must not keep a fleet from being restarted,
    /// so an invalid set is treated as a database that is down: the log and [`RulesStatus`] say why the rules are old.
    ///
    /// # Errors
    ///
    /// The source cannot be reached or its rules are invalid, and nothing is kept of it.
    pub async fn start_with_snapshot(
        mut source: RuleSource,
        file: SnapshotFile,
    ) -> Result<(RuleSet, Self), SourceError> {
        let error = match first(&mut source).await {
            Ok(loaded) => {
                let version = loaded.version.clone();
                let (rules, mut follower) = Follower::new(source, loaded);
                follower.snapshot = Some(file);
                return Ok((follower.keep(rules, &version).await?, follower));
            }
            Err(error) => error,
        };
        let (kept, shown) = (file.clone(), source.shown().to_owned());
        let path = file.path().display().to_string();
        let loaded = match off_thread(move || kept.read(&shown)).await? {
            Ok(loaded) => loaded,
            Err(reason) => {
                tracing::warn!(file = path, reason, "the kept rules cannot be used");
                return Err(error);
            }
        };
        tracing::error!(
            source = source.shown(),
            file = path,
            version = loaded.version,
            "starting with the last good rules, which may be out of date"
        );
        let (rules, mut follower) = Follower::new(source, loaded);
        follower.snapshot = Some(file);
        follower.fail(&error);
        Ok((rules, follower))
    }

    /// Begins with other rules than those of the source, because it cannot be reached. The source is followed: its rules
    /// take effect as soon as they can be read, and are kept in `file` from then on.
    #[must_use]
    pub fn start_without_source(
        source: RuleSource,
        rules: RuleSet,
        file: Option<SnapshotFile>,
        reason: &SourceError,
    ) -> (RuleSet, Self) {
        let (rules, mut follower) = Follower::new(source, Loaded { rules, version: "fallback".to_owned() });
        follower.snapshot = file;
        follower.fail(reason);
        (rules, follower)
    }

    fn new(source: RuleSource, loaded: Loaded) -> (RuleSet, Self) {
        let clock = Clock::system();
        let report = RulesReport {
            source: source.shown().to_owned(),
            version: loaded.version,
            rules: loaded.rules.rules().len(),
            loaded_at: clock.now(),
            age: Micros::new(0),
            error: None,
            stale_since: None,
        };
        let status = RulesStatus { clock, report: Arc::new(Mutex::new(report)) };
        let (ask, asked) = mpsc::channel(MAX_WAITING);
        let follower =
            Follower { source, status, refresher: Refresher(ask), asked, retired: None, snapshot: None };
        (loaded.rules, follower)
    }

    /// The state of the rules.
    pub fn status(&self) -> RulesStatus {
        self.status.clone()
    }

    /// What makes it look immediately.
    pub fn refresher(&self) -> Refresher {
        self.refresher.clone()
    }

    /// The source.
    pub const fn source(&mut self) -> &mut RuleSource {
        &mut self.source
    }

    /// Follows the source forever.
    pub async fn run<S: Store + 'static>(mut self, limiter: Arc<Limiter<S>>) {
        let mut asking = Vec::new();
        loop {
            tokio::select! {
                () = self.source.changed() => {}
                Some(done) = self.asked.recv() => asking.push(done),
            }
            while let Ok(done) = self.asked.try_recv() {
                asking.push(done); // one look serves them all
            }
            self.look(&limiter).await;
            for done in asking.drain(..) {
                let _ = done.send(()); // the caller may have gone
            }
        }
    }

    async fn look<S: Store + 'static>(&mut self, limiter: &Arc<Limiter<S>>) {
        if let Some(rules) = self.retired.take() {
            let _ = off_thread(move || drop(rules)).await; // an error is a runtime that shuts down
        }
        let known = self.status.report.lock().version.clone();
        match self.source.load(Some(&known)).await {
            Ok(None) => self.recover(),
            Ok(Some(loaded)) => {
                if let Err(error) = self.take(loaded, limiter).await {
                    self.fail(&error);
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Puts new rules in place.
    async fn take<S: Store + 'static>(
        &mut self,
        loaded: Loaded,
        limiter: &Arc<Limiter<S>>,
    ) -> Result<(), SourceError> {
        let Loaded { rules, version } = loaded;
        let count = rules.rules().len();
        let rules = self.keep(rules, &version).await?;
        self.retired = Some(limiter.set_rules(rules));
        self.recover();
        let mut report = self.status.report.lock();
        (report.rules, report.loaded_at) = (count, self.status.clock.now());
        report.version.clone_from(&version);
        drop(report);
        tracing::info!(source = self.source.shown(), %version, rules = count, "new rules are in effect");
        Ok(())
    }

    /// Writes the rules to the snapshot file, if there is one. A failure does not keep them from being used.
    async fn keep(&self, rules: RuleSet, version: &str) -> Result<RuleSet, SourceError> {
        let Some(file) = self.snapshot.clone() else { return Ok(rules) };
        let (source, version) = (self.source.shown().to_owned(), version.to_owned());
        off_thread(move || {
            if let Err(error) = file.write(&source, &version, &rules) {
                let path = file.path().display();
                tracing::warn!(file = %path, %error, "cannot keep the rules for a start without the database");
            }
            rules
        })
        .await
    }

    fn recover(&self) {
        let mut report = self.status.report.lock();
        report.stale_since = None;
        if report.error.take().is_some() {
            drop(report);
            tracing::info!(source = self.source.shown(), "the source of the rules has recovered");
        }
    }

    /// Keeps the last good rules and logs it, once for each new reason.
    fn fail(&self, error: &SourceError) {
        let said = error.in_full();
        let mut report = self.status.report.lock();
        report.stale_since.get_or_insert_with(|| self.status.clock.now());
        let is_news = report.error.as_ref() != Some(&said);
        report.error = Some(said.clone());
        drop(report);
        if is_news {
            let what = if error.is_refusal() { "refused" } else { "out of reach" };
            tracing::warn!(
                source = self.source.shown(),
                error = said,
                "the new rules are {what}; the last good ones stay"
            );
        }
    }
}

impl Refresher {
    /// Done when the follower has looked: the rules that the source has now are in effect, unless [`RulesStatus`] says
    /// why not. Without a follower nothing happens.
    pub async fn refresh(&self) {
        let (done, looked) = oneshot::channel();
        if self.0.send(done).await.is_ok() {
            let _ = looked.await; // an error is a follower that has ended
        }
    }
}

impl RulesStatus {
    /// How the rules are now.
    pub fn report(&self) -> RulesReport {
        let report = self.report.lock().clone();
        let age = self.clock.now().as_micros().saturating_sub(report.loaded_at.as_micros());
        RulesReport { age: Micros::new(u64::try_from(age).unwrap_or(0)), ..report }
    }
}

async fn first(source: &mut RuleSource) -> Result<Loaded, SourceError> {
    source.load(None).await?.ok_or(SourceError::Interrupted)
}
