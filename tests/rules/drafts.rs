//! Every rule that a file can express, at random.

use std::collections::BTreeMap;

use proptest::option::of;
use proptest::prelude::*;
use tollgate_core::Draft;
use tollgate_core::rule::CostDraft;

/// A valid rule; `number` makes its name unique.
pub(crate) fn draft(number: usize) -> impl Strategy<Value = Draft> {
    (limit(), words(), conditions(), cost(), text(), key()).prop_map(
        move |(limit, words, when, cost, description, key)| {
            let [missing, consistency, on_store_failure, mode, action] = words;
            let action = action.filter(|_| number.is_multiple_of(4));
            let limit = limit.filter_out(action.is_some());
            // Queues are not leased.
            let is_queue = limit.limit.as_ref().is_some_and(|limit| limit.contains("queue"));
            let needs_lease = |word: &String| matches!(word.as_str(), "leased" | "auto");
            let consistency = consistency.filter(|word| !(is_queue && needs_lease(word)));
            Draft {
                name: Some(format!("rule {number}{}", description.clone().unwrap_or_default()))
                    .map(|name| name.chars().filter(|c| !c.is_control()).take(128).collect())
                    .filter(|_| !number.is_multiple_of(3)),
                key: if number.is_multiple_of(3) { format!("user:{{user_id}}:n{number}") } else { key },
                plan: description.clone().filter(|text| !text.is_empty()),
                cost: cost.filter(|_| action.is_none()),
                missing,
                consistency,
                on_store_failure,
                mode,
                action,
                when,
                replaces: Vec::new(),
                ipv6_prefix: number.is_multiple_of(2).then_some(1 + number as u64 % 128),
                description,
                ..limit
            }
        },
    )
}

/// A whole set, whose last rule replaces the named ones.
pub(crate) fn drafts() -> impl Strategy<Value = Vec<Draft>> {
    (1..12_usize).prop_flat_map(|count| {
        let rules: Vec<_> = (0..count).map(|number| draft(number).boxed()).collect();
        rules.prop_map(|mut rules| {
            let replaces = rules.iter().filter_map(|rule| rule.name.clone()).collect();
            let last = Draft {
                name: Some("last".to_owned()),
                key: "global".to_owned(),
                limit: Some("1/s".to_owned()),
                replaces,
                ..Draft::default()
            };
            rules.push(last);
            rules
        })
    })
}

trait FilterOut {
    fn filter_out(self, out: bool) -> Self;
}

impl FilterOut for Draft {
    fn filter_out(self, out: bool) -> Self {
        if out { Draft::default() } else { self }
    }
}

/// The limit and the fields that belong to it.
fn limit() -> impl Strategy<Value = Draft> {
    let limited = |limit: &str, algorithm: Option<&str>, window: Option<&str>| Draft {
        limit: Some(limit.to_owned()),
        algorithm: algorithm.map(str::to_owned),
        window: window.map(str::to_owned),
        ..Draft::default()
    };
    prop_oneof![
        (1..1000_u64, 1..1000_u64).prop_map(move |(rate, burst)| limited(
            &format!("{rate}/s burst {burst}"),
            None,
            None
        )),
        Just(limited("7/s burst 70", Some("token_bucket"), None)),
        Just(limited("  7 / 5 min\tburst 70 ", None, None)),
        (any::<bool>()).prop_map(move |aligned| Draft {
            aligned: Some(aligned),
            ..limited("60 every 1h burst 120", Some("token_bucket_interval"), None)
        }),
        Just(limited("5/s queue 20 free 5", None, None)),
        Just(limited("5/s queue 20", Some("leaky_bucket"), None)),
        Just(limited("5/h", Some("fixed_window"), Some("spread"))),
        Just(Draft {
            time_zone: Some("Europe/Berlin".to_owned()),
            ..limited("5/month", Some("fixed_window"), Some("calendar"))
        }),
        Just(limited("5/15min", Some("sliding_window_log"), None)),
        Just(limited("500/min", Some("sliding_window_counter"), Some("first"))),
    ]
}

fn words() -> impl Strategy<Value = [Option<String>; 5]> {
    let word = |words: &'static [&'static str]| of(prop::sample::select(words).prop_map(str::to_owned));
    (
        word(&["skip", "deny", "shared"]),
        word(&["exact", "leased", "local", "auto"]),
        word(&["open", "closed", "local"]),
        word(&["enforce", "shadow", "off"]),
        word(&["deny", "allow"]),
    )
        .prop_map(|(a, b, c, d, e)| [a, b, c, d, e])
}

fn conditions() -> impl Strategy<Value = BTreeMap<String, Vec<String>>> {
    let values = prop::collection::vec(characters(), 1..3);
    let of_a_tenant = of(values).prop_map(|values| values.map(|values| ("tenant".to_owned(), values)));
    let of_an_address = of(Just(("ip".to_owned(), vec!["10.0.0.0/8".to_owned(), "::1".to_owned()])));
    (of_a_tenant, of_an_address).prop_map(|(one, other)| one.into_iter().chain(other).collect())
}

fn cost() -> impl Strategy<Value = Option<CostDraft>> {
    of(prop_oneof![
        (1..1_u64 << 53).prop_map(CostDraft::Times),
        Just(CostDraft::Attribute("tokens".to_owned()))
    ])
}

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(&[
        "user:{user_id}",
        "ip:{ip_address}",
        "global",
        "endpoint:/api/search",
        "t:{tenant}",
    ])
    .prop_map(str::to_owned)
}

fn text() -> impl Strategy<Value = Option<String>> {
    of(characters())
}

/// Anything but NUL, which PostgreSQL does not keep.
fn characters() -> impl Strategy<Value = String> {
    prop::collection::vec(any::<char>().prop_filter("NUL", |c| *c != '\0'), 1..12)
        .prop_map(|characters| characters.into_iter().collect())
}
