use std::sync::Arc;

use tollgate_core::{Descriptor, Limit, Rule, RuleSet, Timestamp};

use super::*;
use crate::clock::Clock;
use crate::rules;
use crate::store::{Bounds, MemoryStore};

const MINUTE: Micros = Micros::new(60_000_000);

fn limiter(text: &str) -> (Limiter<MemoryStore>, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(1_000_000_000));
    let store = MemoryStore::with(clock.clone(), Bounds::default());
    (Limiter::new(rules::parse("rules.yaml", text).unwrap(), store), clock)
}

fn user() -> Descriptor<'static> {
    Descriptor::new().with("user_id", "42").with("endpoint", "/v1/chat")
}

async fn reserve(limiter: &Limiter<MemoryStore>, cost: u64) -> ReservationId {
    limiter.request(&user()).cost(cost).reserve(MINUTE).await.unwrap().reservation.unwrap()
}

async fn remaining(limiter: &Limiter<MemoryStore>) -> Vec<u64> {
    let answer = limiter.request(&user()).cost(0).peek().await;
    answer.tiers().iter().map(|tier| tier.verdict().remaining).collect()
}

const TIERS: &str = r#"rules:
  - { name: user, key: "user:{user_id}", limit: 100/h }
  - { name: all, key: global, limit: 1000/h }
  - { name: dear, key: "api:{endpoint}:{user_id}", limit: 300/h, cost: 3 }
  - { name: trial, key: "user:{user_id}", limit: 50/h, mode: shadow }"#;

#[tokio::test]
async fn the_unused_part_is_given_back_to_every_tier() {
    let (limiter, _) = limiter(TIERS);
    let id = reserve(&limiter, 40).await;
    assert_eq!(remaining(&limiter).await, [60, 960, 180, 10]);
    let settled = limiter.settle(id, 15).await.unwrap();
    let expected =
        Settled { reserved: 40, actual: 15, refunded: 25, charged: 0, unpaid: 0, already_settled: false };
    assert_eq!(settled, expected);
    assert_eq!(remaining(&limiter).await, [85, 985, 255, 35]);
}

#[tokio::test]
async fn only_the_first_settlement_counts() {
    let (limiter, _) = limiter(TIERS);
    let id = reserve(&limiter, 40).await;
    let first = limiter.settle(id, 15).await.unwrap();
    for again in [15, 0, 90] {
        let settled = limiter.settle(id, again).await.unwrap();
        assert_eq!(settled, Settled { already_settled: true, ..first });
    }
    assert_eq!(remaining(&limiter).await, [85, 985, 255, 35]);
}

#[tokio::test]
async fn the_missing_part_is_charged_down_to_empty_independently_for_each_tier() {
    let (limiter, _) = limiter(TIERS);
    let id = reserve(&limiter, 40).await;
    limiter.request(&user()).cost(30).check().await;
    assert_eq!(remaining(&limiter).await, [30, 930, 90, 10]);
    let settled = limiter.settle(id, 90).await.unwrap();
    let expected =
        Settled { reserved: 40, actual: 90, refunded: 0, charged: 30, unpaid: 20, already_settled: false };
    assert_eq!(settled, expected);
    assert_eq!(remaining(&limiter).await, [0, 880, 0, 0]);
    assert_eq!(limiter.settle(id, 90).await.unwrap(), Settled { already_settled: true, ..expected });
    assert_eq!(remaining(&limiter).await, [0, 880, 0, 0]);
}

#[tokio::test]
async fn an_expired_reservation_is_spent() {
    let (limiter, clock) = limiter("rules: [{ key: 'user:{user_id}', limit: 100/d }]");
    let id = reserve(&limiter, 40).await;
    clock.advance(Micros::new(59_999_999));
    assert_eq!(limiter.settle(id, 40).await.unwrap().refunded, 0);
    let late = reserve(&limiter, 40).await;
    clock.advance(MINUTE);
    assert_eq!(limiter.settle(late, 0).await, Err(SettleError::Gone));
    assert_eq!(limiter.settle(ReservationId::from_bits(7), 0).await, Err(SettleError::Gone));
    assert_eq!(remaining(&limiter).await, [20]);
}

#[tokio::test]
async fn a_reservation_of_nothing_is_not_kept() {
    let (limiter, _) = limiter("rules: [{ key: 'user:{user_id}', limit: 100/d }]");
    assert_eq!(limiter.request(&user()).cost(0).reserve(MINUTE).await.unwrap_err(), ReserveError::Nothing);
    let id = reserve(&limiter, 1).await;
    assert_eq!(limiter.settle(id, 30).await.unwrap().charged, 29);
    assert_eq!(remaining(&limiter).await, [70]);
}

#[tokio::test]
async fn a_reservation_over_forty_limits_is_kept() {
    let rule = |number| {
        format!("  - {{ name: of-forty-rules-number-{number}, key: 'user:{{user_id}}', limit: 100/h }}\n")
    };
    let (limiter, _) = limiter(&format!("rules:\n{}", (0..40).map(rule).collect::<String>()));
    let id = reserve(&limiter, 30).await;
    assert_eq!(limiter.settle(id, 10).await.unwrap().refunded, 20);
    assert_eq!(remaining(&limiter).await, [90; 40]);
}

#[tokio::test]
async fn a_repeated_settlement_answers_the_same_even_after_a_reload() {
    let (limiter, _) = limiter(TIERS);
    let id = reserve(&limiter, 40).await;
    let first = limiter.settle(id, 120).await.unwrap();
    assert_eq!((first.charged, first.unpaid), (60, 20));
    limiter.set_rules(rules::parse("rules.yaml", TIERS.replace("100/h", "200/h").as_str()).unwrap());
    assert_eq!(limiter.settle(id, 0).await.unwrap(), Settled { already_settled: true, ..first });
    assert_eq!(remaining(&limiter).await[0], 100);
}

/// Waits before the settlement, and what is left then.
async fn after(limit: &str, wait: u64) -> u64 {
    let (limiter, clock) =
        limiter(&format!("rules: [{{ name: r, key: 'user:{{user_id}}', limit: {limit} }}]"));
    let id = reserve(&limiter, 4).await;
    clock.advance(Micros::new(wait));
    limiter.request(&user()).cost(3).check().await;
    limiter.settle(id, 1).await.unwrap();
    remaining(&limiter).await[0]
}

/// Of 10 each: 4 are reserved, later 3 are taken, and 1 was needed. The clock begins 40 s into a minute.
#[tokio::test]
async fn a_window_that_has_passed_gives_nothing_back() {
    for (limit, wait, left) in [
        ("10/d burst 10", 1_000_000, 6),
        ("10 every 60s", 1_000_000, 6),
        // Full again before the 3 were taken.
        ("10 every 30s", 30_000_000, 7),
        ("10/d queue 9", 1_000_000, 6),
        ("10/min, algorithm: fixed_window", 19_999_999, 6),
        ("10/min, algorithm: fixed_window", 20_000_000, 7),
        ("10/min, algorithm: fixed_window, window: first", 59_999_999, 6),
        ("10/50s, algorithm: sliding_window_log", 49_999_999, 6),
        ("10/50s, algorithm: sliding_window_log", 50_000_000, 7),
        ("10/min, algorithm: sliding_window_counter", 19_999_999, 6),
        // What is given back counts as long as the window before this one does.
        ("10/min, algorithm: sliding_window_counter", 20_000_000, 6),
        ("10/5s, algorithm: sliding_window_counter", 10_000_000, 7),
    ] {
        assert_eq!(after(limit, wait).await, left, "{limit} after {wait} µs");
    }
}

#[tokio::test]
async fn a_settlement_never_fills_a_bucket_above_its_capacity() {
    let (limiter, clock) = limiter("rules: [{ key: 'user:{user_id}', limit: 10/s }]");
    let id = reserve(&limiter, 8).await;
    clock.advance(Micros::new(500_000));
    limiter.settle(id, 0).await.unwrap();
    assert_eq!(remaining(&limiter).await, [10]);
    limiter.check(&user()).await;
    let late = reserve(&limiter, 8).await;
    clock.advance(Micros::new(1_000_000));
    limiter.request(&user()).cost(5).check().await;
    // A second gave all 8 back: there is nothing left to give.
    limiter.settle(late, 0).await.unwrap();
    assert_eq!(remaining(&limiter).await, [5]);
}

#[tokio::test]
async fn rules_that_changed_meanwhile_are_left_alone() {
    let (limiter, _) = limiter(TIERS);
    let id = reserve(&limiter, 40).await;
    let changed = r#"rules:
      - { name: user, key: "user:{user_id}", limit: 200/h }
      - { name: all, key: global, limit: 1000/h, algorithm: fixed_window }
      - { name: dear, key: "api:{endpoint}", limit: 300/h, cost: 3 }
      - { name: other, key: "user:{user_id}", limit: 50/h }"#;
    limiter.set_rules(rules::parse("rules.yaml", changed).unwrap());
    limiter.request(&user()).cost(10).check().await;
    assert_eq!(remaining(&limiter).await, [150, 990, 270, 40]);
    assert_eq!(limiter.settle(id, 0).await.unwrap().refunded, 40);
    assert_eq!(remaining(&limiter).await, [190, 990, 270, 40]);
}

#[tokio::test]
async fn a_rule_that_takes_its_cost_from_an_attribute_is_not_settled() {
    let (limiter, _) = limiter("rules: [{ key: 'user:{user_id}', limit: 100/h, cost: size }]");
    let request = user().with("size", "20");
    let reserved = limiter.request(&request).cost(40).reserve(MINUTE).await.unwrap();
    assert!(reserved.answer.allowed() && reserved.reservation.is_none(), "there is nothing to settle");
    assert_eq!(limiter.request(&request).cost(0).peek().await.remaining(), Some(80));
}

#[tokio::test]
async fn a_limit_that_came_with_the_request_is_settled_too() {
    let (limiter, _) = limiter("rules: []");
    let limit: Limit = "100/h".parse().unwrap();
    let own = Arc::new(RuleSet::of(Rule::ad_hoc(limit)));
    let request = Rule::naming("job");
    let reserved = limiter.request(&request).rules(Arc::clone(&own)).cost(40).reserve(MINUTE).await.unwrap();
    limiter.settle(reserved.reservation.unwrap(), 10).await.unwrap();
    assert_eq!(limiter.request(&request).rules(own).cost(0).peek().await.remaining(), Some(90));
}

#[tokio::test]
async fn a_refused_or_unlimited_request_has_nothing_to_settle() {
    let (limiter, _) = limiter("rules: [{ key: 'user:{user_id}', limit: 100/h }]");
    let refused = limiter.request(&user()).cost(101).reserve(MINUTE).await.unwrap();
    assert!(!refused.answer.allowed() && refused.reservation.is_none());
    let unlimited = limiter.request(&Descriptor::new()).cost(101).reserve(MINUTE).await.unwrap();
    assert!(unlimited.answer.allowed() && unlimited.reservation.is_none());
}

#[tokio::test]
async fn a_caller_with_too_many_unsettled_reservations_is_charged_nothing_and_others_reserve() {
    let (limiter, _) = limiter("rules: [{ key: 'user:{user_id}', limit: 1000000/h }]");
    let user = user();
    let reserve = async |caller| limiter.request(&user).caller(caller).reserve(MINUTE).await;
    let mut open = Vec::new();
    let full = loop {
        match reserve("greedy").await {
            Ok(reserved) => open.push(reserved.reservation.unwrap()),
            Err(error) => break error,
        }
    };
    assert_eq!(full, ReserveError::Full(ReservationLimit::Caller { max: open.len() }));
    assert_eq!(open.len(), 100_000 / 16);
    assert_eq!(remaining(&limiter).await, [1_000_000 - open.len() as u64], "the refused one is not charged");
    assert!(reserve("another").await.is_ok());
    limiter.settle(open[0], 0).await.unwrap();
    assert!(reserve("greedy").await.is_ok(), "a settled one makes room");
    assert_eq!(reserve("greedy").await.unwrap_err(), full);
}

#[tokio::test]
async fn a_reservation_that_is_refused_keeps_no_place() {
    let (limiter, _) = limiter("rules: [{ key: 'user:{user_id}', limit: 10/d }]");
    let user = user();
    for _ in 0..10_000 {
        let refused = limiter.request(&user).cost(11).caller("greedy").reserve(MINUTE).await.unwrap();
        assert!(refused.reservation.is_none());
    }
    assert!(limiter.request(&user).caller("greedy").reserve(MINUTE).await.unwrap().reservation.is_some());
}

#[tokio::test]
async fn what_time_has_not_repaid_of_the_price_is_given_back() {
    // 10 of 10 reserved, 4 used; 8 have come back since, so 2 are left to give back.
    let (limiter, clock) = limiter("rules: [{ key: 'user:{user_id}', limit: 1/s burst 10 }]");
    let id = reserve(&limiter, 10).await;
    clock.advance(Micros::new(8_000_000));
    limiter.settle(id, 4).await.unwrap();
    assert_eq!(remaining(&limiter).await, [10]);
    // 3 have come back: all 6 that were not used are left.
    let id = reserve(&limiter, 10).await;
    clock.advance(Micros::new(3_000_000));
    limiter.settle(id, 4).await.unwrap();
    assert_eq!(remaining(&limiter).await, [9]);
}

#[test]
fn an_id_is_read_as_it_is_written_and_in_no_other_way() {
    let id = ReservationId::random().unwrap();
    let tagged = ReservationId { tag: Tag::read(b"kQ-_"), ..id };
    assert_eq!(id.to_string().parse(), Ok(id));
    assert_eq!(tagged.to_string().parse(), Ok(tagged));
    assert_eq!(ReservationId::from_bits(7).to_string(), "00000000000000000000000000000007");
    let digits = "0000000000000000000000000000000";
    for last in ["", "G", "A", "7kQ3", "7kQ3x1", "7kQ3{", "7 Q3x", "7é__"] {
        assert_eq!(format!("{digits}{last}").parse::<ReservationId>(), Err(ReservationIdError), "{last}");
    }
    assert_eq!("+0000000000000000000000000000007".parse::<ReservationId>(), Err(ReservationIdError));
}
