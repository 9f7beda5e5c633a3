use tollgate::{Limiter, MemoryStore, rules};

use super::*;

fn limiter() -> Limiter<MemoryStore> {
    let rules =
        rules::parse("rules.yaml", "rules: [{ name: user, key: 'user:{user_id}', limit: 2/h }]").unwrap();
    Limiter::new(rules, MemoryStore::new())
}

async fn decide(limiter: &Limiter<MemoryStore>, recorder: &Recorder, user: &str, id: &str) {
    let request = Descriptor::new().with("user_id", user);
    let answer = limiter.check(&request).await;
    let happened = Happened {
        id,
        request: &request,
        answer: &answer,
        cost: 1,
        took: Duration::from_nanos(700),
        now: limiter.clock().now(),
    };
    recorder.note(&happened, || limiter.rules());
}

#[tokio::test]
async fn the_newest_take_the_place_of_the_oldest() {
    let limiter = limiter();
    let recorder = Recorder::new(4, &limiter.rules().to_arc());
    for n in 0..10 {
        decide(&limiter, &recorder, &n.to_string(), &format!("id-{n}")).await;
    }
    let ids: Vec<String> = recorder.newest(|_| true).map(|recorded| recorded.id().to_owned()).collect();
    assert_eq!(ids, ["id-9", "id-8", "id-7", "id-6"]);
    assert!(recorder.find("id-5").is_none());
    let found = recorder.find("id-7").unwrap();
    let request = found.request();
    let tier = found.answer.tiers()[0];
    assert_eq!((request.text("user_id").as_deref(), found.is_cut), (Some("7"), false));
    assert_eq!(found.answer.rules().rule(tier.rule).key(&request).to_string(), "user:7");
    assert_eq!((recorder.recorded(), recorder.capacity()), (10, 4));
}

#[tokio::test]
async fn of_huge_attributes_the_beginning_is_kept_and_the_decision_says_so() {
    let limiter = limiter();
    let recorder = Recorder::new(4, &limiter.rules().to_arc());
    decide(&limiter, &recorder, &"ä".repeat(30_000), "huge").await;
    let found = recorder.find("huge").unwrap();
    assert!(found.is_cut);
    assert_eq!(found.request().text("user_id").as_deref(), Some(&*"ä".repeat(16)));
}

#[tokio::test]
async fn a_decision_is_read_with_the_rules_that_made_it_until_too_many_others_were_in_effect() {
    let limiter = limiter();
    let recorder = Recorder::new(4, &limiter.rules().to_arc());
    decide(&limiter, &recorder, "a", "before").await;
    let many = |prefix: &str| {
        let rule = |n| format!("{{ name: {prefix}{n}, key: global, limit: 1/s }}");
        let list: Vec<String> = (0..6_000).map(rule).collect();
        rules::parse("rules.yaml", &format!("rules: [{}]", list.join(", "))).unwrap()
    };
    limiter.set_rules(many("a"));
    recorder.rules(&limiter.rules());
    assert_eq!(recorder.find("before").unwrap().answer.rule(), Some("user"));
    for prefix in ["b", "c"] {
        limiter.set_rules(many(prefix));
        recorder.rules(&limiter.rules());
    }
    assert!(recorder.find("before").is_none());
}

#[tokio::test]
async fn a_rule_that_stays_keeps_its_count_when_the_set_changes() {
    let limiter = limiter();
    let recorder = Recorder::new(4, &limiter.rules().to_arc());
    for _ in 0..3 {
        decide(&limiter, &recorder, "a", "before").await;
    }
    let text = "rules: [{ key: global, limit: 9/s }, { name: user, key: 'user:{user_id}', limit: 2/h }]";
    limiter.set_rules(rules::parse("rules.yaml", text).unwrap());
    decide(&limiter, &recorder, "a", "after").await;
    let counts = recorder.rules_by_refusals(9, &limiter.rules());
    assert_eq!((counts[0].rule.as_str(), counts[0].allowed, counts[0].refused), ("user", 2, 2));
    assert_eq!((counts[1].rule.as_str(), counts[1].allowed), ("global 1s", 1));
}

#[test]
fn decisions_of_many_threads_are_all_counted_and_none_is_torn() {
    let limiter = limiter();
    let recorder = Recorder::new(16, &limiter.rules().to_arc());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (limiter, recorder) = (&limiter, &recorder);
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                for n in 0..500 {
                    let name = format!("{thread}-{n}");
                    runtime.block_on(decide(limiter, recorder, &name, &name));
                    for recorded in recorder.newest(|_| true) {
                        assert_eq!(recorded.request().text("user_id").as_deref(), Some(recorded.id()));
                    }
                }
            });
        }
    });
    let totals = recorder.totals();
    assert_eq!((recorder.recorded(), totals.allowed + totals.refused), (2_000, 2_000));
}
