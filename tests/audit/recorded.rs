//! A limiter whose refusals go to a database.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::audit::{ViolationLog, Violations, Writer, WriterOptions};
use tollgate::sql::Database;
use tollgate::{Bounds, Clock, Descriptor, Limiter, MemoryStore, Micros, Timestamp, rules};
use tollgate_tests::poll;

/// A busy machine may take its time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One token an hour for each user, tenants beside that, and a blocked network.
const RULES: &str = r#"rules:
  - { name: user, key: "user:{user_id}", limit: 1/h }
  - { name: address, key: "ip:{ip}", limit: 1/h, when: { by: address } }
  - { name: blocked, key: "ip:{ip}", action: deny, when: { ip: [192.0.2.0/24] } }"#;

/// A limiter, what it records, and the clock both go by: 2026-11-15T12:00:00.5Z, until it is turned.
pub(crate) struct Recorded {
    pub(crate) limiter: Limiter<MemoryStore>,
    pub(crate) violations: Violations,
    pub(crate) clock: Clock,
}

impl Recorded {
    pub(crate) fn with_room(records: usize) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_794_744_000_500_000));
        let store = MemoryStore::with(clock.clone(), Bounds::default());
        let violations = Violations::with_room(records);
        let limiter = Limiter::new(rules::parse("rules.yaml", RULES).unwrap(), store);
        Recorded { limiter: limiter.with_violations(violations.clone()), violations, clock }
    }

    /// Starts to write what is recorded, a hundred times a second.
    pub(crate) fn writer(&self, log: ViolationLog) -> Writer {
        Writer::start(self.violations.clone(), log, self.options())
    }

    pub(crate) fn options(&self) -> WriterOptions {
        WriterOptions {
            every: Duration::from_millis(10),
            clock: self.clock.clone(),
            ..WriterOptions::default()
        }
    }

    /// Uses a user's token, unless that was done before, and is refused so many times.
    pub(crate) fn refuse(&self, user_id: &str, times: usize) {
        self.check(&request(user_id));
        for _ in 0..times {
            assert!(!self.check(&request(user_id)));
        }
    }

    /// Checks, and proves that the decision waits for nothing: it is there at the first poll.
    pub(crate) fn check(&self, request: &Descriptor<'_>) -> bool {
        let check = pin!(self.limiter.check(request));
        match check.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer.allowed(),
            Poll::Pending => panic!("a decision waits for the record of a violation"),
        }
    }

    /// Lets the second end, and waits until everything is settled.
    pub(crate) async fn settled(&self) {
        self.clock.advance(Micros::new(1_000_000));
        let what = || format!("everything is settled: {:?}", self.violations.stats());
        until(what, || async { self.violations.stats().pending == 0 }).await;
    }
}

pub(crate) fn request(user_id: &str) -> Descriptor<'_> {
    Descriptor::new().with("user_id", user_id).with("ip", "203.0.113.7").with("endpoint", "/api/search")
}

/// Waits for a state, looking again and again.
pub(crate) async fn until<F: Future<Output = bool>>(what: impl Fn() -> String, mut is_so: impl FnMut() -> F) {
    poll::within(PATIENCE, &what(), async || is_so().await.then_some(())).await;
}

/// How many rows there are, and of how many refusals.
pub(crate) async fn in_the_table(database: &Database) -> (i64, i64) {
    let statement = "SELECT count(*), CAST(coalesce(sum(count), 0) AS bigint) FROM rate_limit_violation";
    match database.pool() {
        tollgate::sql::Pool::Sqlite(pool) => sqlx::query_as(statement).fetch_one(pool).await.unwrap(),
        tollgate::sql::Pool::Postgres(pool) => sqlx::query_as(statement).fetch_one(pool).await.unwrap(),
    }
}
