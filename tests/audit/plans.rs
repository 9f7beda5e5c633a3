//! Plans from `account_plan`.

use std::time::Duration;

use sqlx::AssertSqlSafe;
use tollgate::plans::{PlanOptions, Plans};
use tollgate::sql::{Database, Pool};
use tollgate::{Descriptor, Limiter, MemoryStore, rules};

use crate::databases::{Fresh, on_both};
use crate::faults::Frozen;

const RULES: &str = r#"rules:
  - { name: free, key: "user:{user_id}", plan: free, limit: 10/s burst 50 }
  - { name: pro, key: "user:{user_id}", plan: pro, limit: 100/s burst 500 }"#;

async fn execute(database: &Database, statement: &str) {
    let statement = AssertSqlSafe(statement.to_owned());
    match database.pool() {
        Pool::Sqlite(pool) => drop(sqlx::query(statement).execute(pool).await.unwrap()),
        Pool::Postgres(pool) => drop(sqlx::query(statement).execute(pool).await.unwrap()),
    }
}

fn limiter(plans: &Plans) -> Limiter<MemoryStore> {
    Limiter::new(rules::parse("rules.yaml", RULES).unwrap(), MemoryStore::new()).with_plans(plans.clone())
}

fn user(id: &str) -> Descriptor<'_> {
    Descriptor::new().with("user_id", id)
}

on_both! {
    async fn a_request_that_names_no_plan_is_decided_by_the_plan_of_its_user(fresh: Fresh) {
        execute(&fresh.database, "INSERT INTO account_plan VALUES ('42', 'pro'), ('a''b', 'pro')").await;
        let patient = PlanOptions { deadline: Duration::from_secs(60), ..PlanOptions::new("free") };
        let plans = Plans::from_database(fresh.database.clone(), patient);
        let limiter = limiter(&plans);
        for (id, limit) in [("42", 500), ("a'b", 500), ("43", 50), ("", 50), ("a\0b", 50)] {
            assert_eq!(limiter.check(&user(id)).await.limit(), Some(limit), "{id:?}");
        }
        let named = limiter.check(&user("42").with("plan", "free")).await;
        assert_eq!((named.limit(), named.plan()), (Some(50), None));
        for _ in 0..100 {
            limiter.check(&user("42")).await;
        }
        assert_eq!(plans.stats().look_ups, 5);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_database_hangs_nobody_waits_beyond_the_deadline_and_nobody_is_unlimited() {
    let fresh = Fresh::postgres().await;
    execute(&fresh.database, "INSERT INTO account_plan VALUES ('42', 'pro'), ('7', 'pro')").await;
    let options =
        PlanOptions { ttl: Duration::ZERO, deadline: Duration::from_secs(60), ..PlanOptions::new("free") };
    let known = Plans::from_database(fresh.database.clone(), options.clone());
    assert_eq!(&*known.plan("42").await, "pro");
    let hasty = PlanOptions { deadline: Duration::from_millis(5), ..options };
    let plans = Plans::from_database(fresh.database.clone(), hasty);
    let limiter = limiter(&plans);

    let frozen = Frozen::freeze(&fresh).await;
    let unknown = limiter.check(&user("7")).await;
    assert_eq!((unknown.limit(), unknown.plan()), (Some(50), Some("free")));
    assert_eq!((plans.stats().late, plans.stats().look_ups), (1, 1));
    drop(frozen);
    // The look-up went on and has filled the cache; its value is stale at once, and better than none.
    let found = || async { &*plans.plan("7").await == "pro" };
    crate::recorded::until(|| "the late answer is there".to_owned(), found).await;
    let frozen = Frozen::freeze(&fresh).await;
    assert_eq!(limiter.check(&user("7")).await.limit(), Some(500), "the stale value");
    drop(frozen);
}
