use super::*;
use crate::algorithm::{Answer, Bucket, Demand, Window};
use crate::descriptor::Descriptor;
use crate::key::KeySeeds;
use crate::rule::{Draft, FailurePolicy};
use crate::ruleset::Ruling;
use crate::tier::{Growth, Outcome, StoreError, Tiers, Verdict};
use crate::time::Micros;

/// An hour and a half second after the epoch.
const NOW: i64 = 3_600_500_000;

/// The rows of a request that limits decide.
fn rows(rules: &RuleSet, request: &Descriptor<'_>, cost: u64) -> Tiers {
    let mut tiers = Tiers::new();
    let ruling = rules.tiers(request, cost, &KeySeeds::new([1, 2, 3, 4]), &mut tiers);
    assert!(matches!(ruling, Ruling::Limited), "limits decide");
    tiers
}

/// The headers of rules (name, limit, algorithm) after `cost` was asked of each fresh bucket.
fn headers(form: &HeaderForm, rules: &[(&str, &str, &str)], cost: u64, now: i64) -> Option<RateLimitHeaders> {
    let draft = |(name, limit, algorithm): &(&str, &str, &str)| Draft {
        name: (!name.is_empty()).then(|| (*name).to_owned()),
        key: "all:{tenant}".to_owned(),
        missing: Some("shared".to_owned()),
        limit: Some((*limit).to_owned()),
        algorithm: (!algorithm.is_empty()).then(|| (*algorithm).to_owned()),
        ..Draft::default()
    };
    let rules = RuleSet::new(rules.iter().map(|rule| draft(rule).build().unwrap()).collect()).unwrap();
    let request = Descriptor::new().with("tenant", "acme");
    let now = Timestamp::from_micros(now);
    let mut tiers = rows(&rules, &request, cost);
    for tier in &mut tiers {
        let mut bucket = Bucket::open(rules.rule(tier.rule).limit().unwrap(), None, now, Window::Own);
        let answer = bucket.ask(Demand { cost, max_wait: Micros::MAX });
        if let Answer::Pass { .. } = answer {
            bucket.take(cost);
        }
        tier.outcome = Outcome::Decided(bucket.verdict(answer));
    }
    form.headers(&Decision::new(&rules, tiers), &rules, Some(&request), now)
}

fn lines(form: &HeaderForm, rules: &[(&str, &str, &str)], cost: u64) -> Vec<String> {
    let headers = headers(form, rules, cost, NOW).unwrap();
    headers.fields().map(|(field, value)| format!("{}: {value}", field.name())).collect()
}

const TWO: [(&str, &str, &str); 2] =
    [("per-user", "10/s burst 50", ""), ("global", "50000/s burst 100000", "")];

#[test]
fn every_enforcing_limit_is_listed_and_the_binding_limit_gives_the_numbers() {
    let headers = headers(&HeaderForm::DEFAULT, &TWO, 38, NOW).unwrap();
    let expected = [
        (HeaderField::XLimit, "50"),
        (HeaderField::XRemaining, "12"),
        (HeaderField::XReset, "3605"),
        (HeaderField::Policy, r#""per-user";q=50;w=5, "global";q=100000;w=2"#),
        (HeaderField::State, r#""per-user";r=12;t=1, "global";r=99962;t=1"#),
    ];
    assert!(headers.fields().eq(expected), "{headers:?}");
    assert_eq!(headers.get(HeaderField::Limit), None);
    assert_eq!(headers.retry_after(), None);
    let places: Vec<_> = headers.places().collect();
    let text = headers.into_text();
    assert!(places.into_iter().map(|(field, place)| (field, &text[place])).eq(expected));
}

#[test]
fn a_reset_may_count_from_now() {
    let form = HeaderForm::DEFAULT.with_reset(ResetForm::Delta);
    assert_eq!(headers(&form, &TWO, 38, NOW).unwrap().get(HeaderField::XReset), Some("4"));
}

#[test]
fn older_forms_are_as_their_drafts_have_them() {
    assert_eq!(
        lines(&HeaderForm::new(HeaderSet::Draft06), &TWO, 38),
        ["ratelimit-limit: 50", "ratelimit-remaining: 12", "ratelimit-reset: 4"]
    );
    let rules =
        [("per-ip", "10/s", ""), ("", "1000/h", "fixed_window"), ("short", "99/100ms", "fixed_window")];
    assert_eq!(
        lines(&HeaderForm::new(HeaderSet::Draft03), &rules, 1),
        [
            r#"x-ratelimit-limit: 10, 10;w=1;name="per-ip", 1000;w=3600, 99;name="short""#,
            "x-ratelimit-remaining: 9",
            "x-ratelimit-reset: 1"
        ]
    );
}

#[test]
fn every_form_tells_a_refused_caller_when_to_return() {
    for set in HeaderSet::ALL {
        let told = headers(&HeaderForm::new(set), &[("small", "2/min burst 5", "")], 5, NOW).unwrap();
        assert_eq!(told.retry_after(), None, "{set:?}");
        let told = headers(
            &HeaderForm::new(set),
            &[("small", "2/min", ""), ("fixed", "1/h", "fixed_window")],
            2,
            NOW,
        );
        assert_eq!(told.unwrap().retry_after(), None, "no wait helps: {set:?}");
    }
    assert!(lines(&HeaderForm::new(HeaderSet::None), &TWO, 38).is_empty());
}

/// The headers of a decision without the store, by rules (name, limit, on_store_failure), one of which may be answered.
fn degraded(form: &HeaderForm, rules: &[(&str, &str, &str)], answered: Option<Verdict>) -> RateLimitHeaders {
    let draft = |(name, limit, policy): &(&str, &str, &str)| Draft {
        name: Some((*name).to_owned()),
        key: "global".to_owned(),
        limit: Some((*limit).to_owned()),
        on_store_failure: Some((*policy).to_owned()),
        ..Draft::default()
    };
    let rules = RuleSet::new(rules.iter().map(|rule| draft(rule).build().unwrap()).collect()).unwrap();
    let request = Descriptor::new();
    let mut tiers = rows(&rules, &request, 1);
    for (place, tier) in tiers.iter_mut().enumerate() {
        let rule = rules.rule(tier.rule);
        let capacity = rule.limit().unwrap().capacity();
        let instead = |policy, verdict| Outcome::Instead { policy, verdict, error: StoreError::Unreachable };
        tier.outcome = match (answered, rule.without_store()) {
            (Some(answered), _) if place == 0 => Outcome::Decided(answered),
            (_, FailurePolicy::Closed) => {
                instead(FailurePolicy::Closed, Verdict::closed(capacity, Micros::new(1)))
            }
            (_, policy) => instead(policy, Verdict::open(capacity)),
        };
    }
    let decision = Decision::new(&rules, tiers);
    form.headers(&decision, &rules, Some(&request), Timestamp::from_micros(NOW)).unwrap()
}

fn told(headers: &RateLimitHeaders) -> Vec<String> {
    headers.fields().map(|(field, value)| format!("{}: {value}", field.name())).collect()
}

#[test]
fn failing_open_reports_a_full_limit_that_resets_now() {
    let rules = [("per-user", "10/s burst 50", "open"), ("global", "50000/s burst 100000", "open")];
    let headers = degraded(&HeaderForm::DEFAULT, &rules, None);
    assert_eq!(
        told(&headers),
        [
            "x-ratelimit-limit: 50",
            "x-ratelimit-remaining: 50",
            "x-ratelimit-reset: 3601",
            r#"ratelimit-policy: "per-user";q=50;w=5, "global";q=100000;w=2"#,
            r#"ratelimit: "per-user";r=50, "global";r=100000"#,
        ]
    );
    assert_eq!(headers.retry_after(), None);
    assert_eq!(
        told(&degraded(&HeaderForm::new(HeaderSet::Draft06), &rules, None)),
        ["ratelimit-limit: 50", "ratelimit-remaining: 50", "ratelimit-reset: 0"]
    );
    assert_eq!(
        told(&degraded(&HeaderForm::new(HeaderSet::Draft03), &rules, None)),
        [
            r#"x-ratelimit-limit: 50, 50;w=5;name="per-user", 100000;w=2;name="global""#,
            "x-ratelimit-remaining: 50",
            "x-ratelimit-reset: 0"
        ]
    );
}

/// Where a part of the store has answered, as a Cluster without one shard does.
#[test]
fn a_limit_that_fails_open_is_listed_beside_those_that_were_decided() {
    let rules = [("per-user", "10/s burst 50", "open"), ("global", "50000/s burst 100000", "open")];
    let decided = Verdict { remaining: 12, growth: Growth::After(Micros::new(1)), ..Verdict::open(50) };
    let headers = degraded(&HeaderForm::DEFAULT, &rules, Some(decided));
    assert_eq!(headers.get(HeaderField::XRemaining), Some("12"));
    assert_eq!(headers.get(HeaderField::State), Some(r#""per-user";r=12;t=1, "global";r=100000"#));
}

#[test]
fn failing_closed_reports_nothing_left_no_reset_and_when_to_retry() {
    let rules = [("strict", "10/s burst 50", "closed")];
    for (set, expected) in [
        (
            HeaderSet::Default,
            &[
                "x-ratelimit-limit: 50",
                "x-ratelimit-remaining: 0",
                r#"ratelimit-policy: "strict";q=50;w=5"#,
                r#"ratelimit: "strict";r=0"#,
            ][..],
        ),
        (HeaderSet::Draft06, &["ratelimit-limit: 50", "ratelimit-remaining: 0"]),
        (HeaderSet::Draft03, &[r#"x-ratelimit-limit: 50, 50;w=5;name="strict""#, "x-ratelimit-remaining: 0"]),
        (HeaderSet::None, &[]),
    ] {
        let headers = degraded(&HeaderForm::new(set), &rules, None);
        assert_eq!(told(&headers), expected, "{set:?}");
        assert_eq!(headers.retry_after(), Some(1), "{set:?}");
    }
}

#[test]
fn a_denial_reports_a_limit_of_zero_without_reset_and_retry() {
    let draft = Draft {
        name: Some("banned".to_owned()),
        key: "global".to_owned(),
        action: Some("deny".to_owned()),
        ..Draft::default()
    };
    let rules = RuleSet::new(vec![draft.build().unwrap()]).unwrap();
    let request = Descriptor::new();
    let ruling = rules.tiers(&request, 1, &KeySeeds::new([1, 2, 3, 4]), &mut Tiers::new());
    let Ruling::Denied(rule) = ruling else { panic!("a denial") };
    for (set, expected) in [
        (
            HeaderSet::Default,
            &[
                "x-ratelimit-limit: 0",
                "x-ratelimit-remaining: 0",
                r#"ratelimit-policy: "banned";q=0"#,
                r#"ratelimit: "banned";r=0"#,
            ][..],
        ),
        (HeaderSet::Draft06, &["ratelimit-limit: 0", "ratelimit-remaining: 0"]),
        (HeaderSet::Draft03, &[r#"x-ratelimit-limit: 0, 0;name="banned""#, "x-ratelimit-remaining: 0"]),
        (HeaderSet::None, &[]),
    ] {
        let now = Timestamp::from_micros(NOW);
        let headers = HeaderForm::new(set).headers(&Decision::denied(rule), &rules, Some(&request), now);
        let headers = headers.unwrap();
        assert_eq!(told(&headers), expected, "{set:?}");
        assert_eq!(headers.retry_after(), None, "{set:?}");
    }
}

#[test]
fn windows_below_a_second_have_no_w_and_a_full_bucket_no_t() {
    let rules = [("short", "5/100ms", "fixed_window"), ("log", "5/2s", "sliding_window_log")];
    let headers = headers(&HeaderForm::DEFAULT, &rules, 0, NOW).unwrap();
    assert_eq!(headers.get(HeaderField::Policy), Some(r#""log";q=5;w=2, "short";q=5"#));
    assert_eq!(headers.get(HeaderField::State), Some(r#""log";r=5, "short";r=5"#));
}

#[test]
fn a_refusal_that_no_wait_cures_has_no_retry_after() {
    let form = HeaderForm::DEFAULT.with_retry_jitter(60);
    assert_eq!(headers(&form, &[("small", "10/s burst 5", "")], 6, NOW).unwrap().retry_after(), None);
}

/// What a refused request is told, where the window of a minute was used up by other requests.
fn refused_at(form: &HeaderForm, now: i64) -> u64 {
    let draft = Draft {
        key: "global".to_owned(),
        limit: Some("5/min".to_owned()),
        algorithm: Some("fixed_window".to_owned()),
        ..Draft::default()
    };
    let rules = RuleSet::new(vec![draft.build().unwrap()]).unwrap();
    let request = Descriptor::new();
    let mut tiers = rows(&rules, &request, 1);
    let now = Timestamp::from_micros(now);
    let mut bucket = Bucket::open(rules.rule(0).limit().unwrap(), None, now, Window::Own);
    bucket.take(5);
    let answer = bucket.ask(Demand { cost: 1, max_wait: Micros::MAX });
    tiers[0].outcome = Outcome::Decided(bucket.verdict(answer));
    let decision = Decision::new(&rules, tiers);
    form.headers(&decision, &rules, None, now).unwrap().retry_after().unwrap()
}

#[test]
fn jitter_only_ever_makes_it_later_and_reaches_every_second_of_it() {
    let jittered = HeaderForm::DEFAULT.with_retry_jitter(3);
    let mut seen = [0; 4];
    for step in 0..4_000 {
        let now = NOW + step * 37;
        let (plain, later) = (refused_at(&HeaderForm::DEFAULT, now), refused_at(&jittered, now));
        seen[usize::try_from(later - plain).unwrap()] += 1;
        assert_eq!(later, refused_at(&jittered, now), "the same input, the same answer");
    }
    assert!(seen.iter().all(|count| (800..1_200).contains(count)), "{seen:?}");
}

#[test]
fn any_name_and_number_make_a_structured_field() {
    let hostile = "a \"quoted\" \\ n\u{e4}me";
    let rules = [(hostile, "9007199254740991/s", "fixed_window"), ("x", "5/s", "")];
    let secret = PartitionSecret::new(b"sixteen bytes or").unwrap();
    for form in [HeaderForm::DEFAULT, HeaderForm::DEFAULT.with_partition(secret)] {
        let headers = headers(&form, &rules, 1, 1_800_000_000_000_000).unwrap();
        for field in [HeaderField::Policy, HeaderField::State] {
            let text = headers.get(field).unwrap();
            let list: sfv::List = sfv::Parser::new(text).parse().unwrap();
            assert_eq!(list.len(), 2, "{text}");
        }
        assert!(headers.get(HeaderField::Policy).unwrap().contains(";q=999999999999999"));
        for (_, value) in headers.fields() {
            assert!(value.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{value}");
        }
    }
    let old = lines(&HeaderForm::new(HeaderSet::Draft03), &rules, 1).remove(0);
    let list: sfv::List = sfv::Parser::new(old.strip_prefix("x-ratelimit-limit: ").unwrap()).parse().unwrap();
    assert_eq!(list.len(), 3);
}

/// The strings of a list field.
fn names(headers: &RateLimitHeaders, field: HeaderField) -> Vec<String> {
    let list: sfv::List = sfv::Parser::new(headers.get(field).unwrap()).parse().unwrap();
    let name = |entry: &sfv::ListEntry| match entry {
        sfv::ListEntry::Item(item) => item.bare_item.as_string().unwrap().as_str().to_owned(),
        sfv::ListEntry::InnerList(_) => panic!("an item"),
    };
    list.iter().map(name).collect()
}

#[test]
fn list_fields_have_at_most_1_kib_of_whole_items_the_same_in_both_and_the_binding_limit_first() {
    let letters: Vec<String> = (0..18).map(|n| format!("{n:02}{}", "x".repeat(98))).collect();
    let umlauts: Vec<String> = (0..4).map(|n| format!("{n}{}", "\u{e4}".repeat(60))).collect();
    for all in [&letters, &umlauts] {
        // The last one is the binding limit.
        let limits: Vec<String> = (0..all.len()).map(|n| format!("{}/s", 1_000 - n)).collect();
        let rules: Vec<_> = all.iter().zip(&limits).map(|(name, limit)| (&**name, &**limit, "")).collect();
        let secret = PartitionSecret::new(b"sixteen bytes or").unwrap();
        for form in [HeaderForm::DEFAULT, HeaderForm::DEFAULT.with_partition(secret)] {
            let headers = headers(&form, &rules, 1, NOW).unwrap();
            for (field, value) in headers.fields() {
                assert!(value.len() <= 1_024, "{field:?}: {}", value.len());
            }
            let listed = names(&headers, HeaderField::Policy);
            assert_eq!(listed, names(&headers, HeaderField::State));
            assert!((2..all.len()).contains(&listed.len()), "{listed:?}");
            assert_eq!(listed[0].get(..1), all[all.len() - 1].get(..1), "{listed:?}");
        }
        let old = headers(&HeaderForm::new(HeaderSet::Draft03), &rules, 1, NOW).unwrap();
        let value = old.get(HeaderField::XLimit).unwrap();
        assert!((500..=1_030).contains(&value.len()), "{}", value.len());
    }
}

#[test]
fn a_binding_limit_that_does_not_fit_leaves_the_list_fields_out() {
    let long = "\u{1f600}".repeat(128);
    let rules = [("short", "10/s", ""), (&*long, "5/s", "")];
    let told = headers(&HeaderForm::DEFAULT, &rules, 1, NOW).unwrap();
    assert_eq!((told.get(HeaderField::XLimit), told.get(HeaderField::XRemaining)), (Some("5"), Some("4")));
    assert_eq!((told.get(HeaderField::Policy), told.get(HeaderField::State)), (None, None));
    assert_eq!(lines(&HeaderForm::new(HeaderSet::Draft03), &rules, 1)[0], "x-ratelimit-limit: 5");
}

#[test]
fn what_a_string_cannot_hold_is_percent_encoded() {
    let mut out = String::new();
    text::push_string(&mut out, "a\r\nx-evil: 1\0\u{7f}");
    assert_eq!(out, r#""a%0D%0Ax-evil: 1%00%7F""#);
}

#[test]
fn a_partition_is_told_by_a_hash_that_depends_on_the_secret() {
    let told = |secret: &[u8]| {
        let form = HeaderForm::DEFAULT.with_partition(PartitionSecret::new(secret).unwrap());
        headers(&form, &TWO[..1], 1, NOW).unwrap().get(HeaderField::State).unwrap().to_owned()
    };
    let one = told(b"sixteen bytes or");
    assert!(!one.contains("acme") && one.starts_with(r#""per-user";r=49;t=1;pk=:"#), "{one}");
    assert_eq!(one, told(b"sixteen bytes or"));
    assert_ne!(one, told(b"another sixteen!"));
    assert_eq!(PartitionSecret::new(b"short").unwrap_err().length, 5);
}
