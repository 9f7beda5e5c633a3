//! Who a request is from and what it is for, however it is spelt: FAULTS.md, "Identity and keys", through the
//! middleware.

#![allow(clippy::unwrap_used, reason = "a test that is surprised stops there")]

mod support;

use std::collections::HashSet;

use axum::body::Body;
use http::request::Builder;
use http::{HeaderValue, Request, StatusCode};
use tollgate_tower::identify::ForwardingHeader;
use tollgate_tower::{Identify, TollgateLayer};

use support::{Answered, Inner, from, limiter, send};

/// What is left in the bucket of each request, one after the other, where every bucket begins with a hundred.
async fn left(key: &str, identify: Identify, requests: impl IntoIterator<Item = Builder>) -> Vec<u64> {
    let (limiter, _) = limiter(&format!("  - {{ key: '{key}', limit: 100/h, missing: skip }}"));
    let service = Inner::default().behind(&TollgateLayer::new(limiter).identify(identify));
    let mut left = Vec::new();
    for request in requests {
        let answer = send(&service, request).await;
        assert_eq!(answer.status, StatusCode::OK);
        left.push(remaining(&answer));
    }
    left
}

/// 100 where no limit applied.
fn remaining(answer: &Answered) -> u64 {
    answer.headers.get("x-ratelimit-remaining").map_or(100, |left| left.to_str().unwrap().parse().unwrap())
}

/// Whether so many requests share one bucket.
fn one_bucket(left: &[u64]) -> bool {
    left.iter().copied().eq((0..100).rev().take(left.len()))
}

/// Whether each request has a bucket of its own.
fn a_bucket_each(left: &[u64]) -> bool {
    left.iter().all(|left| *left == 99)
}

const PEER: &str = "203.0.113.7";

#[tokio::test]
async fn every_spelling_of_a_path_reaches_the_same_rule_and_bucket() {
    let spellings = [
        "/a",
        "/a/",
        "//a",
        "/%61",
        "/a?x=1",
        "/./a",
        "/b/../a",
        "/a//",
        "http://example.com/a",
        "/%2e/a",
        "/a%2F",
        "/b/..%2fa",
    ];
    for key in ["endpoint:{endpoint}", "endpoint:/a"] {
        let left = left(key, Identify::new(), spellings.map(|path| from(PEER, path))).await;
        assert!(one_bucket(&left), "{key}: {left:?}");
    }
    let others = ["/", "/A", "/a/b", "/a.", "/a;x=1", "/%2561", "/a%252F"];
    let left = left("endpoint:{endpoint}", Identify::new(), others.map(|path| from(PEER, path))).await;
    assert!(a_bucket_each(&left), "other paths have other buckets: {left:?}");
}

#[tokio::test]
async fn the_case_of_method_and_host_does_not_matter() {
    let methods = ["GET", "get", "Get"].map(|method| from(PEER, "/").method(method));
    let by_method = left("method:{method}", Identify::new(), methods).await;
    assert!(one_bucket(&by_method), "{by_method:?}");

    let hosts = ["example.com", "EXAMPLE.COM", "Example.com:8080", "example.com.", "x@example.com"];
    let mut requests: Vec<Builder> = hosts.iter().map(|host| from(PEER, "/").header("host", *host)).collect();
    requests.push(from(PEER, "https://Example.Com:443/"));
    requests.push(from(PEER, "http://example.com/").header("host", "other.example"));
    let by_host = left("host:{host}", Identify::new().host(), requests).await;
    assert!(one_bucket(&by_host), "{by_host:?}");
}

fn behind_proxies() -> Identify {
    Identify::new().trusted_proxies(["10.0.0.0/8".parse().unwrap(), "2001:db8:ff::/48".parse().unwrap()])
}

#[tokio::test]
async fn one_client_rotating_the_forwarding_headers_is_one_bucket() {
    let rotating = |peer: &'static str, behind: &'static str| {
        (0..20).map(move |n| {
            let claimed = format!("192.0.2.{n}{behind}");
            from(peer, "/")
                .header("x-forwarded-for", &claimed)
                .header("forwarded", format!("for=192.0.2.{n}"))
        })
    };
    let direct = left("ip:{ip}", behind_proxies(), rotating(PEER, "")).await;
    assert!(one_bucket(&direct), "from an untrusted peer: {direct:?}");
    let proxied = left("ip:{ip}", behind_proxies(), rotating("10.0.0.1", ", 203.0.113.7")).await;
    assert!(one_bucket(&proxied), "what is left of the client's address: {proxied:?}");
    let chained = left("ip:{ip}", behind_proxies(), rotating("10.0.0.1", ", 203.0.113.7, 10.1.1.1")).await;
    assert!(one_bucket(&chained), "through two proxies: {chained:?}");
    let garbled = left("ip:{ip}", behind_proxies(), rotating("10.0.0.1", ", unknown")).await;
    assert!(one_bucket(&garbled), "what cannot be read counts to the proxy: {garbled:?}");
    let nobody = left("ip:{ip}", Identify::new(), rotating("10.0.0.1", "")).await;
    assert!(one_bucket(&nobody), "nobody is trusted unless somebody says so: {nobody:?}");
    let honest = left("ip:{ip}", behind_proxies(), rotating("10.0.0.1", "")).await;
    assert!(a_bucket_each(&honest), "a trusted proxy tells its clients apart: {honest:?}");
    let rfc = behind_proxies().forwarding_header(ForwardingHeader::Forwarded);
    let rfc = left("ip:{ip}", rfc, rotating("2001:db8:ff::1", ", 203.0.113.7")).await;
    assert!(a_bucket_each(&rfc), "by `Forwarded` where that is chosen: {rfc:?}");
}

#[tokio::test]
async fn a_header_in_several_lines_is_one_list() {
    let lines = (0..20).map(|n| {
        let request = from("10.0.0.1", "/").header("x-forwarded-for", format!("192.0.2.{n}"));
        request.header("x-forwarded-for", "203.0.113.7").header("x-forwarded-for", "10.0.0.2")
    });
    let left = left("ip:{ip}", behind_proxies(), lines).await;
    assert!(one_bucket(&left), "{left:?}");
}

#[tokio::test]
async fn one_ipv6_network_and_one_mapped_address_are_one_bucket() {
    let same = ["2001:db8:1:2::1", "2001:db8:1:2:ffff::", "2001:db8:1:2:3:4:5:6"];
    let same = left("ip:{ip}", Identify::new(), same.map(|peer| from(peer, "/"))).await;
    assert!(one_bucket(&same), "a /64 is one customer: {same:?}");
    let mapped = ["203.0.113.7", "::ffff:203.0.113.7", "::ffff:cb00:7107"];
    let mapped = left("ip:{ip}", Identify::new(), mapped.map(|peer| from(peer, "/"))).await;
    assert!(one_bucket(&mapped), "mapped addresses are IPv4: {mapped:?}");
    let said = ["203.0.113.7", "::ffff:203.0.113.7", "203.0.113.7:1234", "[::ffff:203.0.113.7]:80"];
    let said = said.map(|address| from("10.0.0.1", "/").header("x-forwarded-for", address));
    let said = left("ip:{ip}", behind_proxies(), said).await;
    assert!(one_bucket(&said), "also where a proxy says so: {said:?}");
    let others = ["2001:db8:1:3::1", "2001:db8:1:2::1", "203.0.113.8", "::cb00:7107"];
    let others = left("ip:{ip}", Identify::new(), others.map(|peer| from(peer, "/"))).await;
    assert!(a_bucket_each(&others), "{others:?}");
}

/// Ids that try to be somebody else.
fn hostile() -> Vec<Vec<u8>> {
    let mega = |last: u8| [&vec![b'x'; 1 << 20][..], &[last]].concat();
    let mut ids: Vec<Vec<u8>> = [
        "",
        "a",
        "a:b",
        ":a",
        "a:",
        "a%3Ab",
        "a%3ab",
        "{a}",
        "{user_id}",
        "a}{b",
        "a|b",
        "a,b",
        "a=b",
        "a;b",
        "a\tb",
        "\"a\"",
        "'a'",
        "a\\",
        "a\\\\",
        "%",
        "%00",
        "%0d%0a",
        "a%0D%0AX-Evil: 1",
        "*",
        "**",
        "/a",
        "/a/",
        "ä",
        "a\u{308}",
        "\u{fffd}",
        "0",
        "00",
        "-0",
        "null",
        "true",
    ]
    .map(|id| id.as_bytes().to_vec())
    .to_vec();
    ids.extend([
        b"\xff".to_vec(),
        b"\xfe".to_vec(),
        b"\xc3".to_vec(),
        mega(b'1'),
        mega(b'2'),
        vec![b'y'; 256],
        vec![b'y'; 257],
    ]);
    ids
}

#[tokio::test]
async fn hostile_ids_never_share_and_never_split_a_bucket() {
    let ids = hostile();
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
    let request = |id: &Vec<u8>| from(PEER, "/").header("x-id", HeaderValue::from_bytes(id).unwrap());
    for identify in
        [Identify::new().header("x-id", "id").unwrap(), Identify::new().api_key("x-id", "id").unwrap()]
    {
        let twice = ids.iter().chain(&ids).map(request);
        let left = left("id:{id}", identify, twice).await;
        let (first, second) = left.split_at(ids.len());
        assert!(a_bucket_each(first), "{first:?}");
        assert!(second.iter().all(|left| *left == 98), "{second:?}");
    }
}

#[tokio::test]
async fn a_pair_of_values_is_no_other_pair() {
    let pairs = [
        ("a", "b:c"),
        ("a:b", "c"),
        ("", "a:b:c"),
        ("a:b:c", ""),
        ("a", ""),
        ("", "a"),
        ("a{", "}"),
        ("a", "{}"),
    ];
    let requests = pairs.map(|(one, two)| from(PEER, "/").header("x-one", one).header("x-two", two));
    let identify = Identify::new().header("x-one", "one").unwrap().header("x-two", "two").unwrap();
    let left = left("pair:{one}:{two}", identify, requests).await;
    assert!(a_bucket_each(&left), "{left:?}");
}

#[tokio::test]
async fn ids_with_nul_and_line_ends_from_paths_and_code_are_ids_like_others() {
    let paths = ["/t/%00", "/t/%0D%0Ax-evil:%201", "/t/%0d", "/t/%FF", "/t/%25FF", "/t/a%2Fb", "/t/%7Bt%7D"];
    let by_path =
        left("t:{t}", Identify::new().path("/t/{t}/**").unwrap(), paths.map(|path| from(PEER, path))).await;
    assert!(a_bucket_each(&by_path), "{by_path:?}");
    let spellings = ["/t/%41", "/t/A", "/t/A/", "//t//A/x?y=1"].map(|path| from(PEER, path));
    let spellings = left("t:{t}", Identify::new().path("/t/{t}/**").unwrap(), spellings).await;
    assert!(one_bucket(&spellings), "{spellings:?}");

    #[derive(Clone)]
    struct User(String);
    let by_user = Identify::new().extension(|user: &User, facts| facts.set("user_id", &*user.0));
    let users =
        ["a", "a\0", "a\r\nx-evil: 1", "a\n", "\0"].map(|id| from(PEER, "/").extension(User(id.to_owned())));
    let by_user = left("user:{user_id}", by_user, users).await;
    assert!(a_bucket_each(&by_user), "{by_user:?}");
}

#[tokio::test]
async fn nothing_a_client_sends_gets_into_the_headers_of_an_answer() {
    let (limiter, _) = limiter(r#"  - { name: 'é "%0D" \ {id}', key: "id:{id}", limit: 1/h }"#);
    let identify = Identify::new().path("/{id}").unwrap();
    let service = Inner::default().behind(&TollgateLayer::new(limiter).identify(identify));
    for kind in ["text/plain", "application/grpc"] {
        for _ in 0..2 {
            let request = from(PEER, "/a%0D%0Ax-evil:%201").header("content-type", kind);
            let answer = send(&service, request).await;
            assert!(!answer.headers.contains_key("x-evil"), "{answer:?}");
            for (name, value) in &answer.headers {
                let printable = value.as_bytes().iter().all(|byte| (b' '..=b'~').contains(byte));
                assert!(printable, "{name}: {value:?}");
            }
        }
    }
}

#[tokio::test]
async fn an_api_key_is_one_caller_however_it_is_sent_and_never_shown() {
    let identify = Identify::new().api_key("authorization", "api_key").unwrap();
    let request = |value: &str| from(PEER, "/").header("authorization", value);
    let values = ["Bearer sekret", "bearer sekret", "BEARER   sekret", "sekret", " Bearer sekret "];
    let same = left("key:{api_key}", identify.clone(), values.map(request)).await;
    assert!(one_bucket(&same), "{same:?}");
    let (parts, _) = request("Bearer sekret").body(Body::empty()).unwrap().into_parts();
    let facts = format!("{:?}", identify.describe(&parts));
    assert!(facts.contains("api_key") && !facts.contains("sekret"), "{facts}");
}

#[tokio::test]
async fn of_several_sources_the_later_one_speaks() {
    let identify = Identify::new().header("x-user", "user_id").unwrap().with(|request, facts| {
        if request.headers.contains_key("x-admin") {
            facts.set("user_id", "admin");
        }
    });
    let (parts, ()) =
        Request::get("/a/").header("x-user", "7").header("x-admin", "1").body(()).unwrap().into_parts();
    let facts: Vec<String> =
        identify.describe(&parts).attributes().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(facts, ["user_id=admin", "endpoint=/a", "method=GET"]);
}
