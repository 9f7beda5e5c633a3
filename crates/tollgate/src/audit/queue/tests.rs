use super::*;
use crate::rules;
use crate::store::{Bounds, MemoryStore};
use crate::{Clock, Limiter};

const RULES: &str = r#"rules:
  - { name: user, key: "user:{user_id}", limit: 1/h }
  - { name: all, key: global, limit: 2/h, when: { tier: shared } }
  - { name: blocked, key: "ip:{ip}", action: deny, when: { ip: [192.0.2.0/24] } }
  - { name: trial, key: "tenant:{tenant}", limit: 1/h, mode: shadow }"#;

/// A limiter whose refusals are recorded, in the middle of a second.
fn recorded(room: usize) -> (Limiter<MemoryStore>, Violations, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(10_500_000));
    let store = MemoryStore::with(clock.clone(), Bounds::default());
    let violations = Violations::with_room(room);
    let limiter = Limiter::new(rules::parse("rules.yaml", RULES).unwrap(), store);
    (limiter.with_violations(violations.clone()), violations, clock)
}

fn user(id: &str) -> Descriptor<'_> {
    Descriptor::new().with("user_id", id).with("endpoint", "/a").with("ip", "203.0.113.7")
}

async fn check(limiter: &Limiter<MemoryStore>, request: &Descriptor<'_>, times: usize) {
    for _ in 0..times {
        limiter.check(request).await;
    }
}

fn total<'v>(violations: impl IntoIterator<Item = &'v Violation>) -> u64 {
    violations.into_iter().map(|violation| violation.count).sum()
}

#[tokio::test]
async fn a_flood_on_one_bucket_is_one_record_for_each_second() {
    let (limiter, violations, clock) = recorded(100);
    check(&limiter, &user("1"), 1_001).await;
    clock.advance(tollgate_core::Micros::new(1_000_000));
    check(&limiter, &user("1"), 500).await;
    let mut drained = violations.drain_all();
    drained.sort_by_key(|violation| violation.requested_at);
    assert_eq!(drained.iter().map(|violation| violation.count).collect::<Vec<_>>(), [1_000, 500]);
    let first = &drained[0];
    assert_eq!((first.bucket_key.as_str(), first.rule_name.as_str()), ("user:1", "user"));
    assert_eq!((first.user_id.as_deref(), first.ip_address.as_deref()), (Some("1"), Some("203.0.113.7")));
    assert_eq!(first.requested_at, Timestamp::from_micros(10_500_000));
}

#[tokio::test]
async fn the_second_that_runs_stays_until_it_is_over() {
    let (limiter, violations, clock) = recorded(100);
    check(&limiter, &user("1"), 3).await;
    assert_eq!(violations.drain(clock.now()), []);
    check(&limiter, &user("1"), 3).await;
    assert_eq!(violations.drain(clock.now()), []);
    clock.advance(tollgate_core::Micros::new(500_000));
    let drained = violations.drain(clock.now());
    assert_eq!((drained.len(), total(&drained)), (1, 5));
    assert_eq!(drained[0].endpoint.as_deref(), Some("/a"));
}

/// The refusals among `recorded` that have this endpoint.
fn at(recorded: &[Violation], endpoint: &str) -> u64 {
    total(recorded.iter().filter(|violation| violation.endpoint.as_deref() == Some(endpoint)))
}

#[tokio::test]
async fn refusals_of_one_second_at_several_endpoints_are_counted_at_each_of_them() {
    let (limiter, violations, clock) = recorded(32_768);
    check(&limiter, &user("1"), 1).await;
    for turn in 0..1_000 {
        check(&limiter, &user("1").with("endpoint", format!("/{}", turn % 200)), 1).await;
        if turn % 300 == 0 {
            assert_eq!(violations.drain(clock.now()), [], "the second is not over");
        }
    }
    let drained = violations.drain_all();
    assert_eq!(drained.len(), 200);
    for endpoint in 0..200 {
        assert_eq!(at(&drained, &format!("/{endpoint}")), 5, "/{endpoint}");
    }
}

#[tokio::test]
async fn callers_who_share_a_bucket_are_told_apart() {
    let (limiter, violations, _) = recorded(10_000);
    for turn in 0..402 {
        check(&limiter, &user(&(turn % 200).to_string()).with("tier", "shared"), 1).await;
    }
    let drained = violations.drain_all();
    assert_eq!(total(&drained), 400, "two of the checks pass");
    for id in 0..200 {
        let of_user = drained.iter().filter(|violation| violation.user_id == Some(id.to_string()));
        assert!(total(of_user) >= 1, "user {id}");
    }
    assert_eq!(at(&drained, "/a"), 400);
}

#[tokio::test]
async fn endless_new_endpoints_share_a_bounded_number_of_records_without_an_endpoint() {
    let (limiter, violations, _) = recorded(100_000);
    check(&limiter, &user("1"), 1).await;
    for turn in 0..5_000 {
        check(&limiter, &user("1").with("endpoint", format!("/{turn}")), 1).await;
    }
    let drained = violations.drain_all();
    assert_eq!(total(&drained), 5_000);
    let (exact, shared): (Vec<_>, Vec<_>) =
        drained.iter().partition(|violation| violation.endpoint.is_some());
    assert_eq!((exact.len(), total(exact.into_iter())), (256, 256));
    assert_eq!((shared.len(), total(shared.iter().copied())), (1, 5_000 - 256));
    assert_eq!(shared[0].user_id.as_deref(), Some("1"), "what they have in common stays");
}

#[tokio::test]
async fn a_denial_is_a_violation_and_a_shadow_refusal_and_a_peek_are_none() {
    let (limiter, violations, _) = recorded(100);
    check(&limiter, &Descriptor::new().with("ip", "192.0.2.9"), 1).await;
    check(&limiter, &Descriptor::new().with("tenant", "acme"), 5).await;
    check(&limiter, &user("1"), 1).await;
    limiter.request(&user("1")).peek().await;
    let drained = violations.drain_all();
    assert_eq!(drained.len(), 1);
    assert_eq!((drained[0].rule_name.as_str(), drained[0].bucket_key.as_str()), ("blocked", "ip:192.0.2.9"));
}

#[tokio::test]
async fn whoever_waits_is_recorded_once_when_told_to_give_up() {
    let (limiter, violations, _) = recorded(100);
    check(&limiter, &user("1"), 1).await;
    let soon = Timestamp::from_micros(20_000_000);
    assert!(!limiter.request(&user("1")).until_allowed(soon).await.allowed());
    assert_eq!(total(&violations.drain_all()), 1);
}

#[tokio::test]
async fn what_finds_no_room_is_dropped_and_counted_and_nothing_is_lost_from_the_books() {
    let (limiter, violations, _) = recorded(32);
    for id in 0..1_000 {
        check(&limiter, &user(&id.to_string()), 3).await;
    }
    let stats = violations.stats();
    assert_eq!((stats.produced, stats.written), (2_000, 0));
    assert!(stats.dropped >= 2 * (1_000 - 32), "{stats:?}");
    let drained = violations.drain_all();
    assert!(drained.len() <= 32);
    assert_eq!(total(&drained), stats.pending);
    violations.settle(total(&drained), WriteOutcome::Written);
    let stats = violations.stats();
    assert_eq!((stats.written + stats.dropped, stats.pending), (2_000, 0));
}

#[tokio::test]
async fn what_is_carried_over_has_a_bound_too() {
    let (limiter, violations, clock) = recorded(32);
    let (mut drained, mut most) = (0, 0);
    for id in 0..1_000 {
        check(&limiter, &user(&id.to_string()), 2).await;
        drained += total(&violations.drain(clock.now()));
        most = most.max(violations.0.carried.lock().0.len());
    }
    assert!(most <= 64, "{most} records carried over");
    assert_eq!(drained + total(&violations.drain_all()), 1_000);
    assert_eq!((violations.stats().produced, violations.stats().dropped), (1_000, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_that_add_and_one_that_drains_lose_nothing() {
    let (limiter, violations, clock) = recorded(64);
    let limiter = Arc::new(limiter);
    let adding: Vec<_> = (0..4)
        .map(|_| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move {
                for turn in 0..5_000 {
                    check(&limiter, &user(&(turn % 300).to_string()), 1).await;
                }
            })
        })
        .collect();
    let mut drained = 0;
    while adding.iter().any(|task| !task.is_finished()) {
        clock.advance(tollgate_core::Micros::new(10_000));
        drained += total(&violations.drain(clock.now()));
        tokio::task::yield_now().await;
    }
    drained += total(&violations.drain_all());
    let stats = violations.stats();
    assert_eq!(stats.produced, 20_000 - 300);
    assert_eq!(drained + stats.dropped, stats.produced);
}
