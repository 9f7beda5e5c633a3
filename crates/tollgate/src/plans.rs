//! Plans: which plan a user is on, where a request does not say.
//!
//! A table of a database, or any other source, is read through a bounded cache. A decision waits for it no longer than
//! a deadline, and then uses what was known before, or the default plan; the look-up continues, and
//! the next request has its answer.
//!
//! ```text
//! request without a plan -> cache -> fresh: that plan
//!                                 -> else:  one look-up per user, waited for until the deadline
//!                                           -> in time: that plan
//!                                           -> late:    the stale one, else the default plan
//! ```

mod cache;

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};
use tollgate_core::Descriptor;

use self::cache::{Cache, Entry, Flight, Known};

/// The most look-ups under way; further users get the plan that was known before, or the default.
const MAX_LOOK_UPS: usize = 256;
/// Longer names of users are not looked up: they are on the default plan.
const MAX_USER_ID: usize = 256;
/// A look-up that takes longer has failed.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a user is not looked up again after a failure.
const FAILURE_TTL: Duration = Duration::from_secs(1);

/// How plans are looked up, and what is assumed where that fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanOptions {
    /// The plan of unknown users, and of those who cannot be looked up in time.
    pub default_plan: String,
    /// How long a plan is cached.
    pub ttl: Duration,
    /// How long it is cached that a user is unknown.
    pub unknown_ttl: Duration,
    /// The most that a decision waits for a look-up.
    pub deadline: Duration,
    /// The most users in the cache.
    pub users: usize,
}

impl PlanOptions {
    /// A minute for plans, ten seconds for unknown users, 10 ms for a decision, 100,000 users.
    pub fn new(default_plan: impl Into<String>) -> Self {
        PlanOptions {
            default_plan: default_plan.into(),
            ttl: Duration::from_secs(60),
            unknown_ttl: Duration::from_secs(10),
            deadline: Duration::from_millis(10),
            users: 100_000,
        }
    }
}

/// Why a look-up failed, whatever the source is.
pub type LookUpError = Box<dyn Error + Send + Sync>;

type LookUp =
    dyn Fn(String) -> Pin<Box<dyn Future<Output = Result<Option<String>, LookUpError>> + Send>> + Send + Sync;

/// Knows the plans of users; clones share the cache.
///
/// ```
/// use tollgate::plans::{PlanOptions, Plans};
/// use tollgate::{Descriptor, Limiter, MemoryStore, rules};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rules = rules::parse("rules.yaml", r#"
/// rules:
///   - { name: free, key: "user:{user_id}", plan: free, limit: 10/s burst 50 }
///   - { name: pro, key: "user:{user_id}", plan: pro, limit: 100/s burst 500 }
/// "#)?;
/// let plans = Plans::new(PlanOptions::new("free"), |user_id| async move {
///     Ok((user_id == "42").then(|| "pro".to_owned()))
/// });
/// let limiter = Limiter::new(rules, MemoryStore::new()).with_plans(plans);
/// assert_eq!(limiter.check(&Descriptor::new().with("user_id", "42")).await.limit(), Some(500));
/// assert_eq!(limiter.check(&Descriptor::new().with("user_id", "7")).await.limit(), Some(50));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Plans(Arc<Inner>);

struct Inner {
    options: PlanOptions,
    default_plan: Arc<str>,
    look_up: Box<LookUp>,
    cache: Cache,
    permits: Arc<Semaphore>,
    runtime: Handle,
    look_ups: AtomicU64,
    failures: AtomicU64,
    late: AtomicU64,
}

/// What the cache had to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlanStats {
    /// Look-ups begun.
    pub look_ups: u64,
    /// Those that failed.
    pub failures: u64,
    /// Decisions that went on without the answer.
    pub late: u64,
    /// Users in the cache.
    pub users: usize,
}

/// What a decision gets.
enum Told {
    /// What to go by, fresh or for want of something better.
    Now(Arc<str>),
    /// It is being looked up.
    Soon { landing: watch::Receiver<Option<Arc<str>>>, max_wait: Duration, meanwhile: Arc<str> },
}

impl Plans {
    /// Plans from a source of your own: `Ok(None)` is a user that it does not know.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, on which look-ups go on in the background.
    pub fn new<F, R>(options: PlanOptions, look_up: F) -> Self
    where
        F: Fn(String) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Option<String>, LookUpError>> + Send + 'static,
    {
        Plans(Arc::new(Inner {
            default_plan: options.default_plan.as_str().into(),
            cache: Cache::with_room(options.users),
            options,
            look_up: Box::new(move |user_id| Box::pin(look_up(user_id))),
            permits: Arc::new(Semaphore::new(MAX_LOOK_UPS)),
            runtime: Handle::current(),
            look_ups: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            late: AtomicU64::new(0),
        }))
    }

    /// Plans from the table `account_plan` of a database.
    ///
    /// # Panics
    ///
    /// As [`Plans::new`].
    #[cfg(feature = "sql")]
    pub fn from_database(database: crate::sql::Database, options: PlanOptions) -> Self {
        Plans::new(options, move |user_id| {
            let database = database.clone();
            async move {
                let statement = "SELECT plan FROM account_plan WHERE user_id = $1";
                let query = crate::sql::each!(database, pool => {
                    sqlx::query_scalar(statement).bind(user_id).fetch_optional(pool).await
                });
                query.map_err(|source| database.error(source).into())
            }
        })
    }

    /// The plan of a request that has a user and names no plan.
    #[inline]
    pub(crate) async fn of(&self, request: &Descriptor<'_>) -> Option<Arc<str>> {
        if request.get("plan").is_some() {
            return None;
        }
        let user_id = request.get("user_id")?;
        Some(self.plan(&user_id.text()).await)
    }

    /// The plan of a user, at the deadline at the latest.
    pub async fn plan(&self, user_id: &str) -> Arc<str> {
        match self.ask(user_id) {
            Told::Now(plan) => plan,
            // Boxed, so that a decision that need not wait carries no timer around.
            Told::Soon { landing, max_wait, meanwhile } => {
                Box::pin(self.wait(landing, max_wait, meanwhile)).await
            }
        }
    }

    /// What the cache had to do so far.
    pub fn stats(&self) -> PlanStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PlanStats {
            look_ups: count(&self.0.look_ups),
            failures: count(&self.0.failures),
            late: count(&self.0.late),
            users: self.0.cache.len(),
        }
    }

    /// Looks into the cache, and begins a look-up unless one is in progress.
    fn ask(&self, user_id: &str) -> Told {
        let inner = &*self.0;
        if user_id.len() > MAX_USER_ID {
            return Told::Now(Arc::clone(&inner.default_plan));
        }
        let now = Instant::now();
        inner.cache.with(user_id, |entry| {
            let plan = match &entry.known {
                Some(known) if now < known.good_until => return Told::Now(Arc::clone(&known.plan)),
                stale => Arc::clone(stale.as_ref().map_or(&inner.default_plan, |known| &known.plan)),
            };
            if !entry.flight.as_ref().is_some_and(Flight::is_under_way) {
                entry.flight = self.begin(user_id, now);
            }
            let Some(flight) = &entry.flight else { return Told::Now(plan) };
            // Counted from when the look-up began: later requests wait only for the rest.
            let max_wait = inner.options.deadline.saturating_sub(now.duration_since(flight.since));
            Told::Soon { landing: flight.landing.clone(), max_wait, meanwhile: plan }
        })
    }

    /// Begins a look-up, unless too many are under way.
    fn begin(&self, user_id: &str, since: Instant) -> Option<Flight> {
        let permit = Arc::clone(&self.0.permits).try_acquire_owned().ok()?;
        let (land, landing) = watch::channel(None);
        let (plans, user_id) = (self.clone(), user_id.to_owned());
        self.0.look_ups.fetch_add(1, Ordering::Relaxed);
        self.0.runtime.spawn(async move {
            let plan = plans.look_up(user_id).await;
            land.send_replace(Some(plan));
            drop(permit);
        });
        Some(Flight { since, landing })
    }

    /// Looks a user up and puts the answer into the cache.
    async fn look_up(&self, user_id: String) -> Arc<str> {
        let inner = &*self.0;
        let found = match timeout(LOOK_UP_TIMEOUT, (inner.look_up)(user_id.clone())).await {
            Ok(found) => found,
            Err(_) => Err("the source of plans did not answer".into()),
        };
        if let Err(error) = &found {
            inner.failures.fetch_add(1, Ordering::Relaxed);
            let error: &(dyn Error + 'static) = &**error;
            tracing::warn!(error, "cannot look up a plan"); // without the user
        }
        let now = Instant::now();
        inner.cache.with(&user_id, |entry| {
            let unknown = || Arc::clone(&inner.default_plan);
            let (plan, ttl) = match found {
                Ok(Some(plan)) => (plan.into(), inner.options.ttl),
                Ok(None) => (unknown(), inner.options.unknown_ttl),
                Err(_) => (entry.known.take().map_or_else(unknown, |known| known.plan), FAILURE_TTL),
            };
            let known = Known { plan: Arc::clone(&plan), good_until: now + ttl };
            *entry = Entry { known: Some(known), flight: None };
            plan
        })
    }

    /// Waits for a look-up, at most for `max_wait`.
    async fn wait(
        &self,
        mut landing: watch::Receiver<Option<Arc<str>>>,
        max_wait: Duration,
        meanwhile: Arc<str>,
    ) -> Arc<str> {
        let landed = async { landing.wait_for(Option::is_some).await.ok().and_then(|plan| plan.clone()) };
        match timeout(max_wait, landed).await {
            Ok(Some(plan)) => plan,
            _ => {
                self.0.late.fetch_add(1, Ordering::Relaxed);
                meanwhile
            }
        }
    }
}

/// The numbers only: users are personal data.
impl fmt::Debug for Plans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = &self.0.options;
        f.debug_struct("Plans").field("options", options).field("stats", &self.stats()).finish()
    }
}

#[cfg(test)]
mod tests;
