//! What is refused is written, found, and forgotten in time.

use std::time::Duration;

use tollgate::audit::{
    MAX_TEXT, Pseudonyms, Retention, ViolationFilter, ViolationLog, ViolationPage, WriteOutcome, Writer,
    WriterOptions,
};
use tollgate::sql::{Database, Pool};
use tollgate::{Bounds, Clock, Descriptor, Limiter, MemoryStore, Micros, Timestamp, Violations, rules};

use crate::databases::{Fresh, on_both};
use crate::recorded::{PATIENCE, Recorded, in_the_table, request, until};

fn all() -> ViolationFilter {
    ViolationFilter { limit: 1_000, ..ViolationFilter::default() }
}

/// The log with what identifies a caller hashed.
fn hashed(fresh: &Fresh) -> ViolationLog {
    ViolationLog::new(fresh.database.clone()).with_pseudonyms(Pseudonyms::new(b"0123456789abcdef").unwrap())
}

async fn text(database: &Database, sql: &'static str) -> String {
    match database.pool() {
        Pool::Sqlite(pool) => sqlx::query_scalar(sql).fetch_one(pool).await,
        Pool::Postgres(pool) => sqlx::query_scalar(sql).fetch_one(pool).await,
    }
    .unwrap()
}

/// The bucket keys of a page, in order.
fn keys(page: &ViolationPage) -> Vec<&str> {
    page.violations.iter().map(|found| found.violation.bucket_key.as_str()).collect()
}

on_both! {
    async fn a_flood_is_one_row_for_each_second_with_the_count_of_its_refusals(fresh: Fresh) {
        let recorded = Recorded::with_room(1_000);
        let log = ViolationLog::new(fresh.database.clone());
        let writer = recorded.writer(log.clone());
        recorded.refuse("42", 5_000);
        recorded.settled().await;
        recorded.refuse("42", 700);
        let stats = writer.shutdown(PATIENCE).await;
        assert_eq!((stats.produced, stats.written, stats.dropped, stats.pending), (5_701, 5_701, 0, 0));
        assert_eq!(in_the_table(&fresh.database).await, (2, 5_701));
        let newest = &log.find(&all()).await.unwrap().violations[0].violation;
        assert_eq!((newest.bucket_key.as_str(), newest.count), ("user:42", 701));
        assert_eq!(newest.user_id.as_deref(), Some("42"));
        assert_eq!(newest.ip_address.as_deref(), Some("203.0.113.7"));
        assert_eq!(newest.endpoint.as_deref(), Some("/api/search"));
        assert_eq!(newest.requested_at, recorded.clock.now());
        assert_eq!((newest.rule_id, newest.rule_name.as_str()), (None, "user"));
        assert_eq!(newest.tokens_at_time, "0.000277".parse().unwrap(), "one second of an hour");
    }

    async fn tokens_have_decimals_and_what_is_not_an_address_is_kept_and_found(fresh: Fresh) {
        let clock = Clock::manual(Timestamp::from_micros(1_794_744_000_500_000));
        let rules = "rules: [{ name: all, key: global, limit: 1/s burst 5 }]";
        let store = MemoryStore::with(clock.clone(), Bounds::default());
        let violations = Violations::with_room(100);
        let limiter = Limiter::new(rules::parse("rules.yaml", rules).unwrap(), store);
        let limiter = limiter.with_violations(violations.clone());
        assert!(limiter.request(&Descriptor::new()).cost(5).check().await.allowed());
        let addresses = ["203.0.113.7", "2001:db8::1", "unix", "10.0.0.0/8", "fe80::1%eth0", ""];
        let second = Micros::new(1_000_000);
        clock.advance(Micros::new(1_500_000));
        for address in addresses {
            clock.advance(second); // one row each
            clock.advance(Micros::new(1)); // and no whole number of tokens
            assert!(!limiter.request(&Descriptor::new().with("ip", address)).cost(100).check().await.allowed());
        }
        for log in [ViolationLog::new(fresh.database.clone()), hashed(&fresh)] {
            let options = WriterOptions { clock: clock.clone(), ..WriterOptions::default() };
            let writer = Writer::start(violations.clone(), log.clone(), options);
            let stats = writer.shutdown(PATIENCE).await;
            assert_eq!((stats.pending, stats.dropped), (0, 0));
            for address in addresses {
                let found = log.find(&ViolationFilter { ip: Some(address.to_owned()), ..all() }).await.unwrap();
                assert_eq!(found.violations.len(), 1, "{address}");
            }
            // Once more, to be written as hashes.
            for address in addresses {
                clock.advance(second);
                assert!(!limiter.request(&Descriptor::new().with("ip", address)).cost(100).check().await.allowed());
            }
        }
        let found = ViolationLog::new(fresh.database.clone()).find(&all()).await.unwrap().violations;
        let tokens: Vec<_> = found.iter().rev().map(|found| found.violation.tokens_at_time.to_string()).collect();
        assert_eq!(tokens[..4], ["2.500001", "3.500002", "4.500003", "5"]);
        let addresses: Vec<_> = found.iter().rev().map(|found| found.violation.ip_address.as_deref().unwrap()).collect();
        assert_eq!(addresses[..6], ["203.0.113.7", "2001:db8::1", "unix", "10.0.0.0/8", "fe80::1%eth0", ""]);
        assert!(addresses[6..].iter().all(|hash| hash.len() == 64), "{addresses:?}");
        let whole = "SELECT CAST(count(*) AS TEXT) FROM rate_limit_violation WHERE tokens_at_time > 2.5 AND tokens_at_time < 2.6";
        assert_eq!(text(&fresh.database, whole).await, "1");
        if fresh.postgres.is_some() {
            let typed = "SELECT string_agg(host(ip_address), ' ' ORDER BY requested_at) FROM rate_limit_violation \
                         WHERE ip_address <<= inet '203.0.113.0/24' OR family(ip_address) = 6";
            assert_eq!(text(&fresh.database, typed).await, "203.0.113.7 2001:db8::1");
        }
    }

    async fn violations_are_found_by_who_where_what_and_when(fresh: Fresh) {
        let recorded = Recorded::with_room(1_000);
        let log = ViolationLog::new(fresh.database.clone());
        let writer = recorded.writer(log.clone());
        recorded.refuse("1", 1);
        recorded.settled().await;
        recorded.refuse("2", 1);
        let blocked = Descriptor::new().with("ip", "192.0.2.1").with("endpoint", "/login/");
        assert!(!recorded.check(&blocked));
        let between = recorded.clock.now();
        recorded.settled().await;
        recorded.refuse("3", 1);
        writer.shutdown(PATIENCE).await;

        let found = async |filter| {
            let page = log.find(&filter).await.unwrap();
            keys(&page).join(" ")
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(found(ViolationFilter { user_id: some("2"), ..all() }).await, "user:2");
        assert_eq!(found(ViolationFilter { user_id: some("4"), ..all() }).await, "");
        assert_eq!(found(ViolationFilter { ip: some("::ffff:192.0.2.1"), ..all() }).await, "ip:192.0.2.1");
        assert_eq!(found(ViolationFilter { endpoint: some("//login?x"), ..all() }).await, "ip:192.0.2.1");
        assert_eq!(found(ViolationFilter { rule: some("blocked"), ..all() }).await, "ip:192.0.2.1");
        assert_eq!(found(ViolationFilter { rule: some("user"), ..all() }).await, "user:3 user:2 user:1");
        assert_eq!(found(ViolationFilter { until: Some(between), ..all() }).await, "user:1");
        let since = ViolationFilter { since: Some(between), rule: some("user"), ..all() };
        assert_eq!(found(since.clone()).await, "user:3 user:2");
        assert_eq!(found(ViolationFilter { ip: some("203.0.113.7"), limit: 1, ..since }).await, "user:3");
    }

    async fn every_refusal_is_found_by_its_endpoint_and_address_also_where_a_second_mixes_them(fresh: Fresh) {
        let recorded = Recorded::with_room(1_000);
        let log = ViolationLog::new(fresh.database.clone());
        let writer = recorded.writer(log.clone());
        recorded.check(&request("1"));
        for turn in 0..120 {
            let endpoint = ["/orders", "/search", "/login"][turn % 3];
            let ip = ["203.0.113.7", "2001:db8::7"][turn % 2];
            assert!(!recorded.check(&Descriptor::new().with("user_id", "1").with("ip", ip).with("endpoint", endpoint)));
        }
        let stats = writer.shutdown(PATIENCE).await;
        assert_eq!((stats.produced, stats.written), (120, 120));
        let refusals = async |filter: ViolationFilter| -> u64 {
            log.find(&filter).await.unwrap().violations.iter().map(|found| found.violation.count).sum()
        };
        let some = |text: &str| Some(text.to_owned());
        for endpoint in ["/orders", "/search", "/login"] {
            assert_eq!(refusals(ViolationFilter { endpoint: some(endpoint), ..all() }).await, 40, "{endpoint}");
        }
        for ip in ["203.0.113.7", "2001:db8::7"] {
            assert_eq!(refusals(ViolationFilter { ip: some(ip), ..all() }).await, 60, "{ip}");
        }
        let both = ViolationFilter { endpoint: some("/login"), ip: some("2001:db8::7"), ..all() };
        assert_eq!(refusals(both).await, 20);
    }

    async fn pages_follow_each_other_without_gap_or_overlap_whatever_comes_meanwhile(fresh: Fresh) {
        let recorded = Recorded::with_room(1_000);
        let log = ViolationLog::new(fresh.database.clone());
        let writer = recorded.writer(log.clone());
        // Ten instants, and at each of them thirty rows that only their ids tell apart.
        for instant in 0..10 {
            for user in 0..30 {
                recorded.refuse(&format!("{instant}-{user}"), 1);
            }
            recorded.settled().await;
        }
        let whole = log.find(&all()).await.unwrap();
        assert_eq!((whole.violations.len(), whole.next), (300, None));
        let order = |page: &ViolationPage| -> Vec<_> {
            page.violations.iter().map(|found| (found.violation.requested_at, found.violation_id)).collect()
        };
        assert!(order(&whole).is_sorted_by(|newer, older| newer > older));
        for limit in [1, 7, 29, 30, 299, 300] {
            let mut filter = ViolationFilter { limit, ..all() };
            let mut pages = Vec::new();
            loop {
                let page = log.find(&filter).await.unwrap();
                assert!(page.violations.len() <= limit);
                pages.extend(order(&page));
                recorded.refuse(&format!("late-{limit}"), 1); // newer than every page
                let Some(next) = page.next else { break };
                filter.cursor = Some(next);
            }
            assert_eq!(pages.len(), pages.len().min(300), "by {limit}");
            assert_eq!(pages, order(&whole)[..300], "by {limit}");
        }
        writer.shutdown(PATIENCE).await;
        let narrow = log.find(&ViolationFilter { limit: 0, ..all() }).await.unwrap();
        assert_eq!(narrow.violations.len(), 1);
        assert!(narrow.next.is_some());
    }

    async fn any_text_comes_back_as_it_went_in_but_for_its_bounds(fresh: Fresh) {
        let recorded = Recorded::with_room(1_000);
        let log = ViolationLog::new(fresh.database.clone());
        let writer = recorded.writer(log.clone());
        let long = "x".repeat(1_000_000);
        let texts = ["", "a\0b", "\r\n\x1b[31m", "'; DROP TABLE x; --", "\"\\u0000", "ä漢🦀", "{}[]", "null", &long];
        for text in texts {
            recorded.refuse(text, 1);
        }
        let stats = writer.shutdown(PATIENCE).await;
        assert_eq!((stats.written, stats.dropped), (9, 0));
        for text in texts {
            let page = log.find(&ViolationFilter { user_id: Some(text.to_owned()), ..all() }).await.unwrap();
            let expected = if text == long { &long[..MAX_TEXT] } else { &text.replace('\0', "\u{2400}") };
            assert_eq!(page.violations.len(), 1, "{expected:?}");
            assert_eq!(page.violations[0].violation.user_id.as_deref(), Some(expected));
        }
    }

    async fn hashed_callers_are_found_by_whoever_has_the_secret_and_are_nowhere_in_the_table(fresh: Fresh) {
        let recorded = Recorded::with_room(1_000);
        let open = ViolationLog::new(fresh.database.clone());
        let log = open.clone().with_pseudonyms(Pseudonyms::new(b"a secret of many bytes").unwrap());
        let writer = recorded.writer(log.clone());
        recorded.refuse("4711", 3);
        recorded.refuse("4712", 1);
        let by_address = Descriptor::new().with("ip", "203.0.113.99").with("by", "address");
        recorded.check(&by_address);
        recorded.check(&by_address);
        assert_eq!(writer.shutdown(PATIENCE).await.written, 5);

        let by_user = ViolationFilter { user_id: Some("4711".to_owned()), ..all() };
        let page = log.find(&by_user).await.unwrap();
        assert_eq!(page.violations.iter().map(|found| found.violation.count).collect::<Vec<_>>(), [3]);
        let by_address = ViolationFilter { ip: Some("203.0.113.99".to_owned()), ..all() };
        assert_eq!(log.find(&by_address).await.unwrap().violations.len(), 1);
        assert_eq!(open.find(&by_user).await.unwrap().violations, []);
        let other = open.clone().with_pseudonyms(Pseudonyms::new(b"a secret of other bytes").unwrap());
        assert_eq!(other.find(&by_user).await.unwrap().violations, []);
        let everything = serde_json::to_string(&open.find(&all()).await.unwrap()).unwrap();
        assert!(!everything.contains("471") || !everything.contains("4711"), "{everything}");
        assert!(!everything.contains("203.0.113"), "{everything}");
        assert!(everything.contains("\"rule_name\":\"user\""), "{everything}");
    }

    async fn what_is_too_old_or_too_much_is_forgotten_oldest_first(fresh: Fresh) {
        let recorded = Recorded::with_room(10_000);
        let log = ViolationLog::new(fresh.database.clone());
        let retention = Retention { age: Duration::from_secs(3_600), rows: 2_500 };
        let options = WriterOptions { retention, ..recorded.options() };
        let writer = Writer::start(recorded.violations.clone(), log.clone(), options);
        let rows = async || in_the_table(&fresh.database).await.0;
        for user in 0..5_000 {
            recorded.refuse(&format!("old-{user}"), 1);
            if user == 2_499 {
                recorded.settled().await;
            }
        }
        recorded.settled().await;
        until(|| "the oldest are forgotten".to_owned(), || async { rows().await == 2_500 }).await;
        let oldest_left = log.find(&all()).await.unwrap();
        assert_eq!(oldest_left.violations.len(), 1_000);
        let first = ViolationFilter { user_id: Some("old-0".to_owned()), ..all() };
        assert_eq!(log.find(&first).await.unwrap().violations, []);

        recorded.clock.advance(Micros::new(3_600_000_000));
        recorded.refuse("new", 1);
        recorded.settled().await;
        until(|| "the old are forgotten".to_owned(), || async { rows().await == 1 }).await;
        assert_eq!(keys(&log.find(&all()).await.unwrap()), ["user:new"]);
        let stats = writer.shutdown(PATIENCE).await;
        assert_eq!((stats.written, stats.dropped, stats.pending), (stats.produced, 0, 0));
    }
}

#[tokio::test]
async fn who_drains_without_a_database_keeps_the_books_too() {
    let recorded = Recorded::with_room(100);
    recorded.refuse("1", 10);
    let drained: u64 = recorded.violations.drain_all().iter().map(|violation| violation.count).sum();
    recorded.violations.settle(drained, WriteOutcome::Written);
    assert!(!recorded.check(&request("1")));
    let stats = recorded.violations.stats();
    assert_eq!((stats.produced, stats.written, stats.pending), (11, 10, 1));
}
