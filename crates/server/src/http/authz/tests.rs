use super::super::tests::app_with;
use super::super::*;
use axum::body::to_bytes;
use axum::http::StatusCode;
use serde_json::Value;
use tollgate::core::{HeaderForm, HeaderSet, PartitionSecret};
use tollgate::plans::{PlanOptions, Plans};
use tollgate::{MemoryStore, RedisStore};
use tollgate_tower::IdentifyConfig;
use tower::ServiceExt as _;

use super::*;

const RULES: &str = r#"
rules:
  - { name: per-address, key: "ip:{ip}", limit: 2/h, when: { endpoint: "/api/**", method: GET } }
  - { name: banned, key: "user:{user_id}", action: deny, when: { user_id: ["666"] } }
  - { name: by-host, key: "host:{host}", limit: 1/h, when: { endpoint: /hosts } }
"#;

const LOCAL: &str = "127.0.0.1:50000";

fn app() -> App {
    let config = IdentifyConfig {
        headers: [("x-user".to_owned(), "user_id".to_owned())].into(),
        host: true,
        ..IdentifyConfig::default()
    };
    app_with(RULES).with_identify(Identify::try_from(config).unwrap())
}

/// Asks from a peer, with these headers: status, headers and the problem.
async fn ask(
    app: &Router,
    peer: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> (StatusCode, HeaderMap, Value) {
    let mut request = Request::post(path).extension(Peer(peer.parse().unwrap()));
    for (name, value) in headers {
        request = request.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    let response = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, 1 << 20).await.unwrap();
    (parts.status, parts.headers, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

fn forwarded<'a>(uri: &'a str, client: &'a str) -> Vec<(&'static str, &'a str)> {
    vec![("x-forwarded-method", "get"), ("x-forwarded-uri", uri), ("x-forwarded-for", client)]
}

#[tokio::test]
async fn the_original_request_is_what_is_checked_and_refusals_have_headers_and_a_problem() {
    let app = both_planes(app());
    for uri in ["/api/a?x=1", "//api/%62"] {
        let (status, headers, body) = ask(&app, LOCAL, "/v1/authz", &forwarded(uri, "192.0.2.7")).await;
        assert_eq!((status, body), (StatusCode::OK, Value::Null), "{uri}");
        assert_eq!(headers["x-ratelimit-limit"], "2");
    }
    let (status, headers, body) = ask(&app, LOCAL, "/v1/authz", &forwarded("/api/a", "192.0.2.7")).await;
    assert_eq!(
        (status, &headers["tollgate-status"]),
        (StatusCode::TOO_MANY_REQUESTS, &"429".parse().unwrap())
    );
    assert_eq!(
        (&headers["retry-after"], &headers["content-type"]),
        (&"1800".parse().unwrap(), &"application/problem+json".parse().unwrap())
    );
    assert_eq!(body["violated-policies"], serde_json::json!(["per-address"]));
    let others = [
        forwarded("/api/a", "192.0.2.8"),
        forwarded("/other", "192.0.2.7"),
        vec![("x-original-method", "GET"), ("x-original-uri", "/other"), ("x-forwarded-for", "192.0.2.7")],
        vec![("x-original-method", "POST"), ("x-original-uri", "/api/a"), ("x-forwarded-for", "192.0.2.7")],
    ];
    for headers in others {
        assert_eq!(ask(&app, LOCAL, "/v1/authz", &headers).await.0, StatusCode::OK, "{headers:?}");
    }
}

#[tokio::test]
async fn a_client_that_rotates_what_it_sends_is_one_bucket() {
    let app = both_planes(app());
    let mut statuses = Vec::new();
    for n in 0..4 {
        let said = format!("10.9.8.{n}, 192.0.2.7");
        statuses.push(ask(&app, LOCAL, "/v1/authz", &forwarded("/api/a", &said)).await.0.as_u16());
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
}

#[tokio::test]
async fn a_status_may_be_disguised_and_the_true_one_is_told() {
    let app = both_planes(app());
    let mut seen = Vec::new();
    for _ in 0..3 {
        let asked = ask(&app, LOCAL, "/v1/authz?deny_status=403", &forwarded("/api/a", "192.0.2.7")).await;
        seen.push((
            asked.0.as_u16(),
            asked.1.get("tollgate-status").map(|value| value.to_str().unwrap().to_owned()),
        ));
    }
    assert_eq!(seen, [(200, None), (200, None), (403, Some("429".to_owned()))]);
    let mut banned = forwarded("/", "192.0.2.9");
    banned.push(("x-user", "666"));
    let (status, headers, _) = ask(&app, LOCAL, "/v1/authz?deny_status=401", &banned).await;
    assert_eq!((status.as_u16(), &headers["tollgate-status"]), (401, &"403".parse().unwrap()));
    assert_eq!(headers["x-ratelimit-limit"], "0");
    assert_eq!(headers["x-ratelimit-remaining"], "0");
    assert!(
        !headers.contains_key("x-ratelimit-reset") && !headers.contains_key("retry-after"),
        "{headers:?}"
    );
    for query in ["?deny_status=200", "?deny_status=503", "?deny_status=x", "?denystatus=403"] {
        let (status, headers, body) = ask(&app, LOCAL, &format!("/v1/authz{query}"), &banned).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}: {body}");
        assert_eq!(headers["tollgate-status"], "400");
    }
}

/// A proxy that fails open must not mistake the decision for a failure of tollgate.
#[tokio::test]
async fn a_rule_that_fails_closed_is_marked_as_a_decision() {
    let store = RedisStore::builder("redis://127.0.0.1:1").connect().await.unwrap();
    let rules = "rules: [{ name: strict, key: global, limit: 5/s, on_store_failure: closed }]";
    let rules = tollgate::rules::parse("rules.yaml", rules).unwrap();
    let limiter = Limiter::new(rules, AnyStore::from(store));
    let app = both_planes(App::new(Arc::new(limiter), RulesHome::Fixed("code".to_owned())));
    for (path, shown) in [("/v1/authz", 503), ("/v1/authz?deny_status=403", 403)] {
        let (status, headers, body) = ask(&app, LOCAL, path, &forwarded("/", "192.0.2.7")).await;
        assert_eq!(
            (status.as_u16(), &headers["tollgate-status"]),
            (shown, &"503".parse().unwrap()),
            "{body}"
        );
        assert_eq!(
            (&headers["retry-after"], &body["status"]),
            (&"1".parse().unwrap(), &503.into()),
            "{body}"
        );
    }
}

#[tokio::test]
async fn only_trusted_proxies_may_ask_for_others() {
    let local = both_planes(app());
    let (status, _, body) = ask(&local, "192.0.2.99:1", "/v1/authz", &forwarded("/api/a", "192.0.2.7")).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let detail = body["detail"].as_str().unwrap();
    assert!(detail.contains("192.0.2.99 is none") && detail.contains("trusted_proxies"), "{detail}");
    let config =
        IdentifyConfig { trusted_proxies: vec!["192.0.2.0/24".to_owned()], ..IdentifyConfig::default() };
    let named = app_with(RULES).with_identify(Identify::try_from(config).unwrap());
    let named = both_planes(named);
    let asked = forwarded("/api/a", "203.0.113.7, 192.0.2.1");
    assert_eq!(ask(&named, "192.0.2.99:1", "/v1/authz", &asked).await.0, StatusCode::OK);
    assert_eq!(ask(&named, LOCAL, "/v1/authz", &asked).await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_proxy_that_says_too_little_or_too_much_is_told_what_to_set() {
    let app = both_planes(app());
    for (headers, part) in [
        (vec![], "have it set `x-forwarded-method` or `x-original-method`"),
        (
            vec![("x-forwarded-method", "GET")],
            "have it set `x-forwarded-uri` or `x-original-uri` or `x-original-url`",
        ),
        (vec![("x-forwarded-method", "GET"), ("x-forwarded-uri", "api")], "expected a path"),
        (vec![("x-forwarded-method", "G T"), ("x-forwarded-uri", "/")], "expected a method"),
        (
            vec![("x-forwarded-method", "GET"), ("x-forwarded-uri", "/"), ("x-forwarded-host", "a b")],
            "expected a host",
        ),
        (
            vec![("x-forwarded-method", "GET"), ("x-original-uri", "/api/a"), ("x-forwarded-uri", "/free")],
            "say different things",
        ),
        (
            vec![("x-forwarded-method", "GET"), ("x-forwarded-uri", "/a"), ("x-original-url", "http://h/a")],
            "say different things",
        ),
        (vec![("x-original-method", "GET"), ("x-original-url", "/a")], "expected a URL"),
        (
            vec![("x-original-method", "GET"), ("x-original-url", "http:///a"), ("x-forwarded-host", "b")],
            "say different things",
        ),
        (vec![("x-original-method", "GET"), ("x-original-url", "http://h?/")], "expected a host"),
        (
            vec![("x-original-method", "GET"), ("x-original-url", "http://a/x"), ("x-forwarded-host", "b")],
            "say different things",
        ),
    ] {
        let (status, _, body) = ask(&app, LOCAL, "/v1/authz", &headers).await;
        let detail = body["detail"].as_str().unwrap_or_default();
        assert!(status == StatusCode::BAD_REQUEST && detail.contains(part), "{headers:?}: {body}");
    }
}

#[tokio::test]
async fn every_error_has_the_status_that_the_proxy_chose_and_is_counted() {
    let app = app();
    let gate = Arc::clone(&app.gate);
    let app = both_planes(app);
    for (peer, headers, real) in
        [(LOCAL, vec![], "400"), ("192.0.2.99:1", forwarded("/api/a", "192.0.2.7"), "401")]
    {
        let (status, told, body) = ask(&app, peer, "/v1/authz?deny_status=403", &headers).await;
        assert_eq!((status.as_u16(), &told["tollgate-status"]), (403, &real.parse().unwrap()), "{body}");
        assert_eq!(told["content-type"], "application/problem+json");
        assert_eq!(body["status"].to_string(), real, "{body}");
    }
    assert_eq!(gate.rejected(), [("untrusted_proxy", 1), ("bad_request", 1)]);
    let request = Request::builder().method("PROPFIND").uri("/v1/authz?deny_status=403");
    let response = app.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["tollgate-status"]),
        (403, &"405".parse().unwrap())
    );
}

#[tokio::test]
async fn a_fragment_is_no_part_of_the_path() {
    let rules = "rules: [{ name: login, key: 'ip:{ip}', limit: 1/h, when: { endpoint: /login } }]";
    let app = both_planes(app_with(rules));
    let mut statuses = Vec::new();
    for uri in ["/login", "/login#", "/login#/free", "/login?a#b", "/login%2F", "/x/..%2flogin", "/login%23"]
    {
        statuses.push(ask(&app, LOCAL, "/v1/authz", &forwarded(uri, "192.0.2.7")).await.0.as_u16());
    }
    assert_eq!(statuses, [200, 429, 429, 429, 429, 429, 200], "`%23` is part of a name");
}

#[tokio::test]
async fn ingress_nginx_says_path_and_host_in_one_url() {
    let app = both_planes(app());
    let url = |url, more: &[(&'static str, &'static str)]| {
        [&[("x-original-method", "GET"), ("x-original-url", url), ("x-forwarded-for", "192.0.2.7")], more]
            .concat()
    };
    let mut statuses = Vec::new();
    for (host, more) in [
        ("https://example.com/hosts?x=/", &[][..]),
        ("http://EXAMPLE.com:8443/hosts#", &[("x-forwarded-host", "example.com:8443")]),
        ("https://other.example/hosts", &[]),
    ] {
        statuses.push(ask(&app, LOCAL, "/v1/authz", &url(host, more)).await.0.as_u16());
    }
    assert_eq!(statuses, [200, 429, 200]);
}

#[tokio::test]
async fn every_spelling_of_a_host_is_one_host_and_odd_paths_are_paths() {
    let app = both_planes(app());
    let mut statuses = Vec::new();
    for host in ["Example.com", "example.COM:8080"] {
        let mut headers = forwarded("/hosts", "192.0.2.7");
        headers.push(("x-forwarded-host", host));
        statuses.push(ask(&app, LOCAL, "/v1/authz", &headers).await.0.as_u16());
    }
    assert_eq!(statuses, [200, 429]);
    for uri in ["/api/{a}", "/api/a b", "/api/\"", "/api/ä", "/api/%00%0d%0a"] {
        let (status, headers, body) = ask(&app, LOCAL, "/v1/authz", &forwarded(uri, "192.0.2.77")).await;
        assert!(status == StatusCode::OK || status == StatusCode::TOO_MANY_REQUESTS, "{uri}: {body}");
        assert!(headers.contains_key("x-ratelimit-limit"), "{uri} is below /api");
    }
}

#[tokio::test]
async fn decisions_are_recorded_like_any_other() {
    let app = both_planes(app());
    for _ in 0..3 {
        ask(&app, LOCAL, "/v1/authz", &forwarded("/api/a/", "192.0.2.7")).await;
    }
    let request = Request::get("/v1/decisions").header("host", "localhost");
    let request = request.extension(Peer(LOCAL.parse().unwrap())).body(Body::empty()).unwrap();
    let response = app.oneshot(request).await.unwrap();
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let recorded: Value = serde_json::from_slice(&bytes).unwrap();
    let outcomes: Vec<&str> = recorded["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(outcomes, ["refused", "allowed", "allowed"]);
    let facts = &recorded["decisions"][0]["attributes"];
    assert_eq!((&facts["endpoint"], &facts["method"]), (&"/api/a".into(), &"GET".into()), "{recorded}");
}

#[tokio::test]
async fn older_headers_are_for_forward_auth_too() {
    let app = both_planes(app().with_headers(HeaderForm::new(HeaderSet::Draft06)));
    let (_, headers, _) = ask(&app, LOCAL, "/v1/authz", &forwarded("/api/a", "192.0.2.7")).await;
    assert_eq!(
        (&headers["ratelimit-limit"], headers.contains_key("x-ratelimit-limit")),
        (&"2".parse().unwrap(), false)
    );
}

#[tokio::test]
async fn a_plan_that_was_looked_up_has_the_partition_of_one_that_was_named() {
    let rules = tollgate::rules::parse("rules.yaml", "rules: [{ key: 'plan:{plan}', limit: 10/s }]").unwrap();
    let plans = Plans::new(PlanOptions::new("pro"), |_| async { Ok(None) });
    let limiter = Limiter::new(rules, AnyStore::from(MemoryStore::new())).with_plans(plans);
    let config = IdentifyConfig {
        headers: [("x-user", "user_id"), ("x-plan", "plan")]
            .map(|(name, of)| (name.into(), of.into()))
            .into(),
        ..IdentifyConfig::default()
    };
    let form = HeaderForm::DEFAULT.with_partition(PartitionSecret::new(b"sixteen bytes or").unwrap());
    let app = App::new(Arc::new(limiter), RulesHome::Fixed("code".to_owned()));
    let app = both_planes(app.with_identify(Identify::try_from(config).unwrap()).with_headers(form));
    let policy = async |more: &[(&'static str, &'static str)]| {
        let headers = [forwarded("/", "192.0.2.7"), vec![("x-user", "42")], more.to_vec()].concat();
        ask(&app, LOCAL, "/v1/authz", &headers).await.1["ratelimit-policy"].clone()
    };
    assert_eq!(policy(&[]).await, policy(&[("x-plan", "pro")]).await);
    assert_ne!(policy(&[]).await, policy(&[("x-plan", "free")]).await);
}

#[tokio::test]
async fn an_invalid_cost_attribute_is_400_or_the_deny_status_and_charges_nothing() {
    let config = IdentifyConfig {
        headers: [("x-tokens".to_owned(), "tokens".to_owned())].into(),
        ..IdentifyConfig::default()
    };
    let rules = r#"
rules:
  - { name: model-tokens, key: "ip:{ip}", limit: 10000/h, cost: tokens }
  - { name: requests, key: "ip:{ip}", limit: 5/h }
"#;
    let app = both_planes(app_with(rules).with_identify(Identify::try_from(config).unwrap()));
    let sent = async |path: &str, tokens: &'static str| {
        let headers = [forwarded("/", "192.0.2.7"), vec![("x-tokens", tokens)]].concat();
        ask(&app, LOCAL, path, &headers).await
    };
    for tokens in ["-5000", "1e308", "0", "many"] {
        let (status, headers, problem) = sent("/v1/authz", tokens).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{tokens}: {problem}");
        assert_eq!(headers["content-type"], "application/problem+json");
        assert!(
            !headers.contains_key("retry-after") && !headers.contains_key("x-ratelimit-limit"),
            "{headers:?}"
        );
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("`tokens`") && detail.contains("`model-tokens`"), "{detail}");
        let (status, headers, _) = sent("/v1/authz?deny_status=403", tokens).await;
        assert_eq!((status, &headers["tollgate-status"]), (StatusCode::FORBIDDEN, &"400".parse().unwrap()));
    }
    let (status, headers, _) = sent("/v1/authz", "5e3").await;
    assert_eq!(
        (status, &headers["ratelimit"]),
        (StatusCode::OK, &r#""requests";r=4;t=720, "model-tokens";r=5000;t=1"#.parse().unwrap())
    );
}
