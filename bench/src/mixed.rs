//! Rule sets of any size in which a request matches the same few rules.

use std::collections::BTreeMap;

use tollgate::core::Draft;
use tollgate::{Descriptor, RuleSet};

/// How many rules of [`rules`] match [`request`], however many there are.
pub const MATCHING: usize = 4;

const LIMITS: [&str; 4] = ["10/s burst 50", "100/min", "60 every 60s", "5/s queue 20 free 5"];
const NETWORKS_V4: [u8; 8] = [12, 16, 20, 22, 24, 26, 28, 32];
const NETWORKS_V6: [u8; 4] = [32, 48, 56, 64];

/// The request that is looked up.
pub fn request() -> Descriptor<'static> {
    Descriptor::new()
        .with("user_id", "42")
        .with("plan", "free")
        .with("ip", "203.0.113.7")
        .with("endpoint", "/api/search")
        .with("method", "GET")
        .with("tenant", "acme")
}

/// So many rules, at least ten: four that match [`request`] and one of each other kind, then more of each kind.
///
/// # Panics
///
/// On fewer than ten.
pub fn rules(count: usize) -> RuleSet {
    assert!(count >= 10, "ten kinds of rules, not {count}");
    let matching = [
        draft("global", &[]),
        Draft { plan: Some("free".to_owned()), ..draft("user:{user_id}", &[]) },
        draft("api:{endpoint}:{user_id}", &[("endpoint", "/api/*"), ("method", "GET")]),
        draft("ip:{ip}", &[("ip", "203.0.113.0/24")]),
    ];
    let drafts = matching.into_iter().chain((0..count - MATCHING).map(other));
    let named = drafts.zip(0..).map(|(draft, place)| Draft {
        name: Some(format!("rule {place}")),
        limit: draft.action.is_none().then(|| LIMITS[place % LIMITS.len()].to_owned()),
        ..draft
    });
    let built = named.map(|draft| draft.build().expect("a good rule")).collect();
    RuleSet::new(built).expect("a good set")
}

/// A rule that does not match: users, plans, endpoints to the letter and by pattern, networks, attributes of the
/// operator's own, and several of them at once.
fn other(number: usize) -> Draft {
    let (kind, at) = (number % 12, number / 12);
    match kind {
        0 => Draft { plan: Some(format!("plan-{at}")), ..draft("user:{user_id}", &[]) },
        1 => draft(&format!("endpoint:/api/v{}/things-{at}", at % 9), &[]),
        2 => draft("ip:{ip}", &[("ip", &network(at))]),
        3 => draft("api:{endpoint}", &[("endpoint", &pattern(at))]),
        4 => draft("tenant:{tenant}", &[("tenant", &format!("tenant-{at}"))]),
        5 => Draft {
            action: Some("deny".to_owned()),
            ..draft("user:{user_id}", &[("user_id", &format!("banned-{at}"))])
        },
        6 => draft(&format!("user:vip-{at}"), &[]),
        7 => Draft {
            plan: Some("free".to_owned()),
            ..draft("api:{endpoint}:{user_id}", &[("endpoint", &format!("/free/things-{at}"))])
        },
        8 => draft("region:{region}", &[("region", &format!("region-{at}")), ("method", "GET")]),
        9 => draft("api:{endpoint}", &[("endpoint", &format!("/team-{at}/*")), ("method", "POST")]),
        10 => draft("key:{api_key}", &[("api_key", &format!("key-{at}")), ("endpoint", "/api/*")]),
        _ => Draft {
            plan: Some(format!("plan-{}", at % 10)),
            ..draft("ip:{ip}:{tenant}", &[("tenant", &format!("partner-{at}"))])
        },
    }
}

fn draft(key: &str, when: &[(&str, &str)]) -> Draft {
    let when: BTreeMap<String, Vec<String>> =
        when.iter().map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()])).collect();
    Draft { key: key.to_owned(), when, ..Draft::default() }
}

/// Networks of a dozen sizes and both families, none of them around the request's address.
fn network(at: usize) -> String {
    let (high, low) = (at / 256 % 256, at % 256);
    match at % 3 {
        0 => format!("2001:db8:{high:x}:{low:x}00::/{}", NETWORKS_V6[at / 3 % NETWORKS_V6.len()]),
        _ => format!("10.{high}.{low}.128/{}", NETWORKS_V4[at / 3 % NETWORKS_V4.len()]),
    }
}

/// Path patterns with stars in different places.
fn pattern(at: usize) -> String {
    match at % 4 {
        0 => format!("/files-{at}/**"),
        1 => format!("/api/team-{at}/*"),
        2 => format!("/api/*/export-{at}"),
        _ => format!("/img/{at}-*.png"),
    }
}
