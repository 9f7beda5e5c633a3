use std::num::NonZeroU32;

use super::*;
use crate::decision::Decision;
use crate::rule::Draft;
use crate::tier::Growth;
use crate::time::Micros;

const SEEDS: [u64; 4] = [1, 2, 3, 4];

fn draft(name: &str, key: &str) -> Draft {
    Draft { name: Some(name.into()), key: key.into(), limit: Some("10/s".into()), ..Draft::default() }
}

fn set(drafts: impl IntoIterator<Item = Draft>) -> RuleSet {
    RuleSet::new(drafts.into_iter().map(|draft| draft.build().unwrap()).collect()).unwrap()
}

/// What the rules say about a request, and the rows they make.
fn ruled(rules: &RuleSet, request: &Descriptor<'_>, cost: u64) -> (Ruling, Tiers) {
    let mut tiers = Tiers::new();
    (rules.tiers(request, cost, &KeySeeds::new(SEEDS), &mut tiers), tiers)
}

fn labels(rules: &RuleSet, request: &Descriptor<'_>) -> Vec<String> {
    rules.matching(request).iter().map(|rule| rules.rule(*rule).label().to_owned()).collect()
}

/// Every kind of condition, many times over.
fn many(rules: usize) -> RuleSet {
    set((0..rules).map(|n| {
        let name = format!("rule {n}");
        match n % 8 {
            0 => Draft { plan: Some(format!("plan {}", n / 8)), ..draft(&name, "user:{user_id}") },
            1 => draft(&name, &format!("endpoint:/api/{}", n / 8)),
            2 => {
                Draft { when: when("endpoint", &format!("/tenants/*/{}", n / 8)), ..draft(&name, "ip:{ip}") }
            }
            3 => Draft { when: when("endpoint", &format!("/files/{}*/x", n / 8)), ..draft(&name, "ip:{ip}") },
            4 => Draft {
                when: when("ip", &format!("10.{}.{}.0/24", n / 8 / 256, n / 8 % 256)),
                ..draft(&name, "ip:{ip}")
            },
            5 => Draft { when: when("tenant", &(n / 8).to_string()), ..draft(&name, "tenant:{tenant}") },
            6 => Draft { when: when("endpoint", &format!("/deep/{}/**", n / 8)), ..draft(&name, "global") },
            _ => draft(&name, &format!("user:{}", n / 8)),
        }
    }))
}

fn when(attribute: &str, value: &str) -> std::collections::BTreeMap<String, Vec<String>> {
    [(attribute.to_owned(), vec![value.to_owned()])].into()
}

#[test]
fn the_index_finds_exactly_what_looking_at_every_rule_finds() {
    let rules = many(2_000);
    for n in 0..600_usize {
        let m = n * 7 % 250;
        let path = match n % 8 {
            0 => format!("/api/{m}"),
            1 => format!("/tenants/acme/{m}"),
            2 => format!("/files/{m}abc/x"),
            3 => format!("/deep/{m}/a/b"),
            4 => format!("/deep/{m}"),
            5 => format!("/api%2F{m}"),
            6 => format!("/files/{m}%2Fx/x"),
            _ => format!("/deep%2F{m}%2f../a"),
        };
        let request = Descriptor::new()
            .with("user_id", m.to_string())
            .with("plan", format!("plan {m}"))
            .with("endpoint", path)
            .with("tenant", m.to_string())
            .with("ip", format!("10.0.{m}.9"));
        let (found, looked) = (
            rules.matching(&request),
            (0..2_000).filter(|rule| rules.rule(*rule).applies_to(&request).is_ok()),
        );
        assert_eq!(found.to_vec(), looked.collect::<Vec<RuleIndex>>(), "{request:?}");
        assert!(!found.is_empty());
    }
}

#[test]
fn a_rule_off_or_replaced_does_not_apply() {
    let rules = set([
        draft("default", "user:{user_id}"),
        Draft {
            replaces: vec!["default".into()],
            when: when("tenant", "big"),
            ..draft("special", "user:{user_id}")
        },
        Draft { mode: Some("off".into()), ..draft("sleeping", "global") },
        Draft { mode: Some("shadow".into()), replaces: vec!["default".into()], ..draft("trial", "global") },
    ]);
    let user = Descriptor::new().with("user_id", "1");
    assert_eq!(labels(&rules, &user), ["default", "trial"], "a rule in shadow mode replaces none");
    assert_eq!(labels(&rules, &user.with("tenant", "big")), ["special", "trial"]);
}

#[test]
fn either_reading_of_an_encoded_slash_limits_and_denies_and_only_both_allow_or_replace() {
    let rules = set([
        draft("limit", "endpoint:/api/login"),
        Draft { when: when("endpoint", "/api%2F*"), ..draft("encoded", "ip:{ip}") },
        draft("default", "user:{user_id}"),
        Draft {
            when: when("endpoint", "/api/**"),
            replaces: vec!["default".into()],
            ..draft("special", "user:{user_id}")
        },
    ]);
    let at = |path: &'static str| {
        Descriptor::new().with("endpoint", path).with("user_id", "42").with("ip", "203.0.113.7")
    };
    assert_eq!(labels(&rules, &at("/api/login")), ["limit", "special"]);
    let both_apply = ["limit", "encoded", "default", "special"];
    assert_eq!(labels(&rules, &at("/api%2Flogin")), both_apply, "a rule for one reading replaces none");
    assert_eq!(labels(&rules, &at("/api/x%2f..%2Flogin")), ["limit", "special"], "both are below /api");

    let action = |name: &str, action: &str, path: &str| Draft {
        limit: None,
        action: Some(action.into()),
        when: when("endpoint", path),
        ..draft(name, "ip:{ip}")
    };
    let rules = set([
        draft("limit", "ip:{ip}"),
        action("public", "allow", "/public/**"),
        action("internal", "deny", "/internal/**"),
    ]);
    let ruling = |path| match ruled(&rules, &at(path), 1).0 {
        Ruling::Denied(_) => "denied",
        Ruling::Exempt => "exempt",
        Ruling::Limited => "limited",
        Ruling::Invalid(..) => "invalid",
    };
    for (path, expected) in [
        ("/public/a", "exempt"),
        ("/public/a%2Fb", "exempt"),
        ("/public/..%2Fa", "limited"),
        ("/x%2F../public/a", "limited"),
        ("/public%2Fa", "limited"),
        ("/internal%2Fa", "denied"),
        ("/public/..%2Finternal", "denied"),
    ] {
        assert_eq!(ruling(path), expected, "{path}");
    }
}

#[test]
fn a_missing_attribute_skips_denies_or_shares() {
    let missing = |word: &str| Draft { missing: Some(word.into()), ..draft(word, "user:{user_id}") };
    let without_user = Descriptor::new();
    let rules = set([missing("skip"), missing("shared")]);
    assert_eq!(labels(&rules, &without_user), ["shared"]);
    let rules = set([missing("deny")]);
    assert!(matches!(ruled(&rules, &without_user, 1).0, Ruling::Denied(0)));
    let with_user = Descriptor::new().with("user_id", "1");
    assert!(matches!(ruled(&rules, &with_user, 1).0, Ruling::Limited));
}

#[test]
fn deny_beats_allow_beats_limits() {
    let action = |name: &str, action: &str, user: &str| Draft {
        action: Some(action.into()),
        limit: None,
        when: when("user_id", user),
        ..draft(name, "user:{user_id}")
    };
    let rules = set([
        draft("limit", "user:{user_id}"),
        action("trusted", "allow", "1"),
        action("banned", "deny", "2"),
        action("also trusted", "allow", "2"),
    ]);
    let ruling = |user: &str| {
        let request = Descriptor::new().with("user_id", user.to_owned());
        match ruled(&rules, &request, 1) {
            (Ruling::Denied(rule), _) => format!("denied by {}", rules.rule(rule).label()),
            (Ruling::Exempt, _) => "exempt".to_owned(),
            (Ruling::Invalid(_, error), _) => error.to_string(),
            (Ruling::Limited, tiers) => format!("{} limits", tiers.len()),
        }
    };
    assert_eq!([ruling("1"), ruling("2"), ruling("3")], ["exempt", "denied by banned", "1 limits"]);
}

#[test]
fn a_rule_costs_what_it_says() {
    use crate::rule::CostDraft;
    let rules = set([
        draft("plain", "global"),
        Draft { cost: Some(CostDraft::Times(5)), ..draft("times", "global") },
        Draft { cost: Some(CostDraft::Attribute("tokens".into())), ..draft("attribute", "global") },
    ]);
    let costs = |request: &Descriptor<'_>| {
        rules.rules().iter().map(|rule| rule.cost(request, 2).ok()).collect::<Vec<Option<u64>>>()
    };
    assert_eq!(costs(&Descriptor::new().with("tokens", "700")), [Some(2), Some(10), Some(700)]);
    assert_eq!(costs(&Descriptor::new()), [Some(2), Some(10), Some(2)], "absent: the request's own cost");
    for odd in ["-1", "1.5", "NaN", "", "0", "5000 ", "18446744073709551616"] {
        let request = Descriptor::new().with("tokens", odd);
        assert_eq!(costs(&request), [Some(2), Some(10), None], "{odd} is not a cost");
        let Ruling::Invalid(2, error) = ruled(&rules, &request, 2).0 else { panic!("{odd}") };
        assert_eq!((&*error.rule, &*error.attribute, &*error.value), ("attribute", "tokens", odd));
        let buckets = rules.buckets(&request, 1, &KeySeeds::new(SEEDS));
        assert_eq!(buckets.len(), 3, "a reset needs no cost");
    }
    let unit = |request: &Descriptor<'_>| [0, 1, 2].map(|rule| rules.rule(rule).unit_cost(request));
    assert_eq!(unit(&Descriptor::new()), [1, 5, 1]);
    assert_eq!(unit(&Descriptor::new().with("tokens", "700")), [1, 5, 0]);
}

#[test]
fn an_invalid_set_is_refused_whole_with_every_reason() {
    let build = |drafts: Vec<Draft>| {
        let rules = drafts.into_iter().map(|draft| draft.build().unwrap()).collect();
        RuleSet::new(rules).unwrap_err().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let replacing =
        |name: &str, target: &str| Draft { replaces: vec![target.into()], ..draft(name, "global") };
    let errors = build(vec![
        draft("same", "global"),
        draft("same", "ip:{ip}"),
        replacing("a", "b"),
        replacing("b", "a"),
        replacing("c", "a"),
        replacing("d", "smae"),
    ]);
    assert_eq!(
        errors,
        [
            "rule `same` is there twice; give one of them another `name`",
            "rule `a` replaces itself, directly or through others, so none of them would apply",
            "rule `b` replaces itself, directly or through others, so none of them would apply",
            "replaces `smae`, but there is no rule of that name; did you mean `same`?",
        ]
    );
    let unnamed = |limit: &str| Draft { key: "global".into(), limit: Some(limit.into()), ..Draft::default() };
    assert_eq!(build(vec![unnamed("1/s"), unnamed("1000 every 1s"), unnamed("1/min")]).len(), 1);
}

fn verdict(allowed: bool, remaining: u64, retry: Option<u64>, reset: u64) -> Verdict {
    Verdict {
        allowed,
        limit: 10,
        remaining,
        retry_after: retry.map(Micros::new),
        reset_after: Micros::new(reset),
        delay: Micros::new(remaining),
        growth: Growth::Full,
    }
}

fn decided(verdicts: &[Verdict], shadow: Option<usize>) -> (Option<String>, bool, u64) {
    let mode = |place| (shadow == Some(place)).then(|| "shadow".to_owned());
    let names = ["b", "a", "c"];
    let rules =
        set((0..verdicts.len()).map(|place| Draft { mode: mode(place), ..draft(names[place], "global") }));
    let request = Descriptor::new();
    let (Ruling::Limited, mut tiers) = ruled(&rules, &request, 1) else { panic!("limits") };
    for (tier, verdict) in tiers.iter_mut().zip(verdicts) {
        tier.outcome = Outcome::Decided(*verdict);
    }
    let decision = Decision::new(&rules, tiers);
    let binding = decision.binding_limit().map(|tier| rules.rule(tier.rule).label().to_owned());
    (binding, decision.allowed(), decision.delay().get())
}

#[test]
fn the_refusal_with_the_longest_wait_binds_then_the_first_name() {
    let (yes, no) = (verdict(true, 9, Some(0), 5), |retry| verdict(false, 0, retry, 5));
    assert_eq!(decided(&[yes, no(Some(7)), no(Some(9))], None), (Some("c".into()), false, 0));
    assert_eq!(decided(&[no(Some(9)), no(None), no(Some(9))], None), (Some("a".into()), false, 0));
    assert_eq!(decided(&[no(Some(9)), no(Some(9)), yes], None), (Some("a".into()), false, 0));
}

#[test]
fn of_limits_that_allow_the_least_remaining_binds_then_the_longest_reset_then_the_first_name() {
    let yes = |remaining, reset| verdict(true, remaining, Some(0), reset);
    assert_eq!(decided(&[yes(3, 1), yes(2, 1), yes(4, 9)], None), (Some("a".into()), true, 4));
    assert_eq!(decided(&[yes(2, 1), yes(2, 1), yes(2, 9)], None), (Some("c".into()), true, 2));
    assert_eq!(decided(&[yes(2, 1), yes(2, 1), yes(2, 1)], None), (Some("a".into()), true, 2));
}

#[test]
fn a_rule_in_shadow_mode_never_binds_and_never_refuses() {
    let (yes, no) = (verdict(true, 9, Some(0), 5), verdict(false, 0, None, 5));
    assert_eq!(decided(&[yes, no], Some(1)), (Some("b".into()), true, 9));
    assert_eq!(decided(&[no], Some(0)), (None, true, 0));
}

/// A request with these attributes.
fn named(names: &[&str]) -> Descriptor<'static> {
    names.iter().fold(Descriptor::new(), |request, name| request.with((*name).to_owned(), "x"))
}

#[test]
fn a_rule_matches_only_requests_that_have_every_attribute_it_needs() {
    let rules = set([
        draft("two", "pair:{tenant}:{region}"),
        Draft { when: when("device", "x"), ..draft("condition", "tenant:{tenant}") },
        Draft { missing: Some("shared".into()), ..draft("shared", "pair:{tenant}:{region}") },
        draft("mixed", "user:{user_id}:{region}"),
    ]);
    for (present, expected) in [
        (&[][..], &["shared"][..]),
        (&["tenant"], &["shared"]),
        (&["region"], &["shared"]),
        (&["tenant", "region"], &["two", "shared"]),
        (&["region", "tenant", "unknown"], &["two", "shared"]),
        (&["device"], &["shared"]),
        (&["device", "tenant"], &["condition", "shared"]),
        (&["user_id"], &["shared"]),
        (&["user_id", "region"], &["shared", "mixed"]),
        (&["user_id", "region", "tenant", "device"], &["two", "condition", "shared", "mixed"]),
    ] {
        assert_eq!(labels(&rules, &named(present)), expected, "{present:?}");
    }
}

/// Six attributes have fixed bits, so 58 others fit.
#[test]
fn the_last_of_64_attributes_still_counts() {
    let rules = set((0..58).map(|n| draft(&format!("rule {n}"), &format!("x:{{attribute_{n}}}"))));
    for n in [0, 1, 56, 57] {
        assert_eq!(labels(&rules, &named(&[&format!("attribute_{n}")])), [format!("rule {n}")]);
    }
    assert!(labels(&rules, &Descriptor::new().with("user_id", "1")).is_empty());
}

#[test]
fn more_than_64_attributes_are_an_error_that_names_the_rule_and_the_attribute() {
    let drafts = (0..60).map(|n| draft(&format!("rule {n}"), &format!("user:{{user_id}}:{{attribute_{n}}}")));
    let errors = RuleSet::new(drafts.map(|draft| draft.build().unwrap()).collect()).unwrap_err();
    let expected = SetError::TooManyAttributes { rule: 58, attribute: "attribute_58".to_owned() };
    assert_eq!(errors, [expected], "the first one too many, once");
    assert_eq!(errors[0].rule(), 58);
    assert_eq!(
        errors[0].to_string(),
        "the rules name more than 64 attributes; `attribute_58` is one too many"
    );
}

#[test]
fn a_divided_set_has_the_same_indices_and_one_nodes_share_of_each_limit() {
    let limit = |name: &str, limit: &str| Draft { limit: Some(limit.into()), ..draft(name, "global") };
    let deny = Draft { limit: None, action: Some("deny".into()), ..draft("deny", "ip:{ip}") };
    let rules = set([limit("large", "10/s burst 50"), limit("one", "1/h"), deny]);
    let rank = |place, nodes| Rank { place, nodes: NonZeroU32::new(nodes).unwrap() };
    let capacities = |rank| {
        let divided = rules.divided(rank);
        divided.rules().iter().map(|rule| rule.limit().map(crate::Limit::capacity)).collect::<Vec<_>>()
    };
    assert_eq!(capacities(rank(Some(0), 4)), [Some(13), Some(1), None]);
    assert_eq!(capacities(rank(Some(3), 4)), [Some(12), None, None], "none is left of one token");
    assert_eq!(capacities(rank(None, 4)), [Some(12), Some(1), None], "an unknown place gets at least one");
    assert_eq!(capacities(rank(Some(0), 1)), [Some(50), Some(1), None]);
    let divided = rules.divided(rank(Some(1), 2));
    assert!(divided.rules().iter().zip(rules.rules()).all(|(share, rule)| share.label() == rule.label()));
    assert!(
        divided.rules().iter().zip(rules.rules()).all(|(share, rule)| share.space() == rule.space()),
        "the same keys"
    );
}

#[test]
fn a_divided_set_is_built_again_only_when_the_rank_changes() {
    let rules = set([draft("all", "global")]);
    let rank = |place| Rank { place: Some(place), nodes: NonZeroU32::new(2).unwrap() };
    let first = rules.divided(rank(0));
    assert!(Arc::ptr_eq(&first, &rules.divided(rank(0))));
    let other = rules.divided(rank(1));
    assert!(!Arc::ptr_eq(&first, &other));
    assert!(Arc::ptr_eq(&other, &rules.divided(rank(1))));
}

#[test]
fn a_rule_that_replaces_others_is_a_set_by_itself() {
    let rules = set([
        draft("default", "user:{user_id}"),
        Draft { replaces: vec!["default".into()], ..draft("special", "user:{user_id}") },
    ]);
    let alone = RuleSet::of(rules.rule(1).clone());
    assert_eq!(labels(&alone, &named(&["user_id"])), ["special"]);
    assert!(labels(&alone, &Descriptor::new()).is_empty());
}
