//! What a decision costs, in counts that do not depend on what else the machine does: instructions and
//! allocations.

mod allocations;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::{AnyStore, Bounds, Clock, Descriptor, Limiter, MemoryStore, Timestamp, Violations, rules};
use tollgate_bench::contender::{Caller, Check, Contender, Quota};
use tollgate_bench::{instructions, mixed};
use tollgate_server::{App, RulesHome};

use allocations::allocations_of;

/// Look-ups per count; valgrind runs them dozens of times slower than the processor.
const LOOK_UPS: u64 = 2_000;

#[test]
fn a_request_matches_the_same_rules_of_ten_and_of_ten_thousand() {
    let request = mixed::request();
    let [few, many] = [10, 10_000].map(|count| mixed::rules(count).matching(&request));
    assert_eq!(few.len(), mixed::MATCHING);
    assert_eq!(few, many);
}

#[test]
fn a_look_up_among_ten_thousand_rules_costs_at_most_twice_one_among_ten() {
    // Under valgrind this test runs itself, and is here to do the work.
    if let Some((scenario, decisions)) = instructions::requested() {
        instructions::run(&scenario, decisions);
        return;
    }
    let this = "a_look_up_among_ten_thousand_rules_costs_at_most_twice_one_among_ten";
    let count = |scenario: &str| {
        instructions::per_decision(scenario, LOOK_UPS, &["--exact", this])
            .unwrap_or_else(|error| panic!("{error}"))
    };
    for what in ["matching", "tiers"] {
        let few = count(&format!("rules/{what}/10"));
        let many = count(&format!("rules/{what}/10000"));
        assert!(few > 0, "nothing was counted");
        assert!(many <= 2 * few, "{what}: {many} instructions among 10,000 rules, {few} among 10");
    }
}

#[test]
fn a_decision_by_four_rules_allocates_nothing() {
    assert_eq!(allocations_of(|| drop(std::hint::black_box(Box::new(0)))), 1, "the allocator counts");
    let callers: Vec<Caller> = (0..1_000).map(Caller::new).collect();
    for (quota, allowed) in [(Quota::ENDLESS, true), (Quota::SPENT, false)] {
        let limiter = Check::four_tiers(quota);
        for caller in &callers {
            limiter.decide(caller);
        }
        let decide_all = || {
            for caller in callers.iter().cycle().take(10_000) {
                assert_eq!(limiter.decide(caller), allowed, "{caller:?}");
            }
        };
        assert_eq!(allocations_of(decide_all), 0, "allocations in 10,000 decisions, `allowed: {allowed}`");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn recording_refusals_allocates_only_for_the_first_of_each_bucket_and_second() {
    let text = r#"rules: [{ key: "user:{user_id}", limit: 1/h }, { key: "ip:{ip}", limit: 1000000/s }]"#;
    let clock = Clock::manual(Timestamp::from_micros(0));
    let limiter = Limiter::new(
        rules::parse("rules.yaml", text).expect("rules"),
        MemoryStore::with(clock, Bounds::default()),
    )
    .with_violations(Violations::default());
    let caller = Descriptor::new().with("user_id", "42").with("ip", "203.0.113.7").with("endpoint", "/a");
    let other = Descriptor::new().with("ip", "203.0.113.7");
    for allowed in [true, false] {
        assert_eq!(limiter.check(&caller).await.allowed(), allowed);
        assert!(limiter.check(&other).await.allowed());
    }
    let decide_all = || {
        for _ in 0..1_000 {
            for (request, allowed) in [(&caller, false), (&other, true)] {
                let check = std::pin::pin!(limiter.check(request));
                match check.poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(answer) => assert_eq!(answer.allowed(), allowed),
                    Poll::Pending => panic!("a decision waits"),
                }
            }
        }
    };
    assert_eq!(allocations_of(decide_all), 0);
}

#[tokio::test(flavor = "current_thread")]
async fn remembering_a_decision_allocates_nothing_once_every_slot_was_used() {
    let text = r#"rules: [{ key: "user:{user_id}", limit: 1/h }, { key: "ip:{ip}", limit: 1000000/s }]"#;
    let store =
        AnyStore::from(MemoryStore::with(Clock::manual(Timestamp::from_micros(0)), Bounds::default()));
    let limiter = Arc::new(Limiter::new(rules::parse("rules.yaml", text).unwrap(), store));
    let app = App::new(Arc::clone(&limiter), RulesHome::Fixed("code".to_owned())).with_decisions(100);
    let request = Descriptor::new().with("user_id", "42").with("ip", "203.0.113.7").with("endpoint", "/a");
    let answers = [limiter.check(&request).await, limiter.check(&request).await];
    assert!(answers[0].allowed() && !answers[1].allowed());
    let remember_all = || {
        for answer in answers.iter().cycle().take(1_000) {
            app.record(&request, answer, "0123456789abcdef01234567", 1, Duration::from_micros(1));
        }
    };
    remember_all();
    assert_eq!(allocations_of(remember_all), 0);
}
