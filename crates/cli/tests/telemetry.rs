//! What operators see of `tollgate serve`: metrics, logs, traces, readiness, and how it stops.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;
use support::{Served, body, status};
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;
use tollgate_tests::scratch::Scratch;
use tollgate_tests::token;

const ONE: &str = r#"{"attributes": {"user_id": "42", "plan": "free"}}"#;

/// Name and type of every metric.
fn names(metrics: &str) -> BTreeMap<String, String> {
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let named = types.map(|line| {
        let (name, kind) = line.split_once(' ').unwrap();
        let total = if kind == "counter" { "_total" } else { "" };
        (format!("{name}{total}"), kind.to_owned())
    });
    named.collect()
}

/// The same as documented.
fn documented() -> BTreeMap<String, String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    let page = fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let named = rows.map(|row| {
        let mut cells = row.split('|').map(str::trim);
        let name = cells.next().unwrap().trim_end_matches('`');
        (name.to_owned(), cells.next().unwrap().to_owned())
    });
    named.collect()
}

#[tokio::test]
async fn metrics_are_those_of_the_reference_and_no_others() {
    let redis = RedisServer::start().await;
    let memory = names(&body(&Served::start(&[]).get("/metrics")));
    let over_redis = names(&body(&Served::start(&["--store", &redis.url()]).get("/metrics")));
    let told: BTreeMap<_, _> = memory.into_iter().chain(over_redis).collect();
    assert_eq!(told, documented());
}

#[test]
fn metrics_are_in_the_prometheus_text_format_where_text_plain_is_preferred() {
    let served = Served::start(&[]);
    assert_eq!(status(&served.post("/v1/check", ONE)), 200);
    let told = |accept: &str| served.send("GET", "/metrics", &format!("accept: {accept}\r\n"), "");
    let plain = told("text/plain");
    assert!(plain.to_lowercase().contains("\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    let plain = body(&plain);
    assert!(plain.contains("\n# TYPE tollgate_requests_total counter\n"), "{plain}");
    assert!(!plain.contains("# EOF"), "{plain}");
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    for accept in [prometheus, "*/*"] {
        let open = told(accept);
        assert!(
            open.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n")
        );
        assert!(body(&open).ends_with("# EOF\n"), "{open}");
    }
    // histogram_quantile is NaN for a histogram without this bucket.
    for histogram in plain.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" histogram"))
    {
        assert!(plain.contains(&format!("\n{histogram}_bucket{{le=\"+Inf\"}} ")), "{histogram}: {plain}");
    }
    let series = |text: &str| -> BTreeSet<String> {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
    };
    assert_eq!(series(&plain), series(&body(&told("*/*"))), "the same series in both formats");
}

#[test]
fn a_hundred_thousand_users_add_no_series() {
    let served = Served::start(&[]);
    let series = || body(&served.get("/metrics")).lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(status(&served.post("/v1/check", ONE)), 200);
    let before = series();
    for hundred in 0..200 {
        let users = (0..500).map(|user| {
            format!(
                r#"{{"attributes": {{"user_id": "u{}", "ip": "10.{}.{}.1"}}}}"#,
                hundred * 500 + user,
                hundred,
                user % 256
            )
        });
        let requests = users.collect::<Vec<_>>().join(",");
        let answer = served.post("/v1/check/batch", &format!(r#"{{"requests": [{requests}]}}"#));
        assert_eq!(status(&answer), 200, "{answer}");
    }
    assert_eq!(series(), before);
    let requests = body(&served.get("/metrics"));
    let allowed =
        requests.lines().find(|line| line.starts_with(r#"tollgate_requests_total{outcome="allowed"}"#));
    assert!(allowed.is_some(), "{requests}");
}

#[test]
fn secrets_never_appear_in_logs_errors_or_metrics() {
    const CANARY: &str = "canary-7f3a9c51d2";
    let scratch = Scratch::new("canary");
    let tokens = scratch.path().join("tokens");
    token::write(&tokens, &format!("ops:write:{CANARY}-token\n"));
    let store = format!("redis://user:{CANARY}@127.0.0.1:1");
    let served = Served::start(&[
        "--token-file",
        tokens.to_str().unwrap(),
        "--store",
        &store,
        "--log",
        "debug",
        "--log-format",
        "json",
        "--log-requests",
        "1",
    ]);
    let mut answers = vec![served.greeting.clone()];
    let authorized = format!("authorization: Bearer {CANARY}-token\r\n");
    for (method, path, head, text) in [
        ("GET", "/metrics", authorized.as_str(), ""),
        ("GET", "/v1/stats", &authorized, ""),
        ("GET", "/v1/rules", &format!("authorization: Bearer {CANARY}-wrong\r\n"), ""),
        (
            "POST",
            "/v1/check",
            &format!("cookie: session={CANARY}\r\nx-api-key: {CANARY}\r\n"),
            r#"{"attributes": 5}"#,
        ),
        ("GET", &format!("/nothing?token={CANARY}"), &format!("authorization: Basic {CANARY}\r\n"), ""),
    ] {
        answers.push(served.send(method, path, head, text));
    }
    let log = served.stop();
    assert!(log.lines().count() > 4, "there is a log: {log}");
    assert!(!log.contains(CANARY), "{log}");
    assert!(answers.iter().all(|answer| !answer.contains(CANARY)), "{answers:?}");
}

#[test]
fn a_log_of_json_has_an_object_on_each_line_and_a_share_of_the_requests() {
    let served = Served::start(&["--log-format", "json", "--log-requests", "0.5"]);
    let named = served.send("POST", "/v1/check", "x-request-id: abc-123\r\n", ONE);
    assert!(named.contains("\r\nx-request-id: abc-123\r\n"), "{named}");
    for _ in 0..9 {
        assert!(served.post("/v1/check", ONE).contains("\r\nx-request-id: "));
    }
    let log = served.stop();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let requests: Vec<&Value> = lines.iter().filter(|line| line["target"] == "tollgate::request").collect();
    assert_eq!(requests.len(), 5, "{log}");
    let one = requests[0];
    assert!(one["path"] == "/v1/check" && one["status"] == 200 && one["took_us"].is_u64(), "{one}");
}

/// A caller's path and a rule's name come into the log; neither ends a line of it or moves the cursor.
#[test]
fn control_characters_in_what_is_logged_are_escaped() {
    let scratch = Scratch::new("controls");
    let rules = scratch.path().join("rules.yaml");
    fs::write(&rules, "rules: [{ key: global, limit: 1/s }]").unwrap();
    for format in ["pretty", "json"] {
        let served = Served::start(&[
            "--rules",
            rules.to_str().unwrap(),
            "--log",
            "debug",
            "--log-format",
            format,
            "--log-requests",
            "1",
        ]);
        served.get("/a%1b[31m%0d%0aINFO%20all%20is%20well");
        served.send("GET", "/livez", "x-request-id: a\u{9b}31m\r\n", "");
        fs::write(&rules, "rules: [{ name: \"x\\u001b[31m\\r\\ny\", key: global }]").unwrap();
        poll::blocking("the mistake to be found", poll::PATIENCE, || {
            let stats: Value = serde_json::from_str(&body(&served.get("/v1/stats"))).unwrap();
            stats["rule_set"]["error"].is_string()
        });
        fs::write(&rules, "rules: [{ key: global, limit: 1/s }]").unwrap();
        let log = served.stop();
        assert!(log.contains("%1b"), "{format}: the path is there: {log}");
        let moves = |letter: char| letter.is_control() && letter != '\n';
        assert!(
            !log.contains(moves) && !log.lines().any(|line| line.starts_with("INFO")),
            "{format}: {log:?}"
        );
    }
}

#[tokio::test]
async fn a_store_that_is_away_is_told_and_makes_nobody_unready() {
    let redis = RedisServer::start().await;
    let served = Served::start(&["--store", &redis.url()]);
    poll::blocking("the store to be up", poll::PATIENCE, || {
        let told = served.get("/readyz");
        assert_eq!(status(&told), 200);
        body(&told)
            == r#"{"ready":true,"store":"up","rules":"fresh","violations":"written","stopping":false}"#
    });
    drop(redis);
    poll::blocking("the store to be missed", poll::PATIENCE, || {
        served.post("/v1/check", ONE);
        body(&served.get("/readyz")).contains(r#""ready":true,"store":"unreachable""#)
    });
    // While it connects again, decisions may be late instead.
    poll::blocking("metrics of a store that is unavailable", poll::PATIENCE, || {
        served.post("/v1/check", ONE);
        let metrics = body(&served.get("/metrics"));
        let degraded = r#"tollgate_degraded_decisions_total{policy="open",reason="unreachable"} "#;
        let count = metrics.lines().find_map(|line| line.strip_prefix(degraded)?.parse::<u64>().ok());
        metrics.contains("\ntollgate_store_up 0\n") && count > Some(0)
    });
}

#[test]
fn a_full_store_is_counted_with_its_refusals_and_logged_once() {
    const KEYS: usize = 30_000;
    let scratch = Scratch::new("full-store");
    let rules = scratch.path().join("rules.yaml");
    fs::write(&rules, "rules: [{ name: per-user, key: 'user:{user_id}', limit: 1/d }]").unwrap();
    let served = Served::start(&["--rules", rules.to_str().unwrap(), "--store-memory", "1MiB"]);
    for first in (0..KEYS).step_by(1_000) {
        let one = |user: usize| format!(r#"{{"attributes": {{"user_id": "{user}"}}}}"#);
        let requests: Vec<String> = (first..first + 1_000).map(one).collect();
        let body = format!(r#"{{"requests": [{}]}}"#, requests.join(","));
        assert_eq!(status(&served.post("/v1/check/batch", &body)), 200);
    }
    let metrics = body(&served.get("/metrics"));
    let value = |name: &str| -> usize {
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap().parse().unwrap()
    };
    assert_eq!(value("tollgate_overflowed_total"), KEYS - value("tollgate_buckets"), "{metrics}");
    let log = served.stop();
    assert_eq!(log.matches("the store is full").count(), 1, "{log}");
}

/// Everything that stands in a page or a file between backticks or in an expression and looks like a metric.
fn mentioned(text: &str) -> BTreeSet<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter| !is_name(letter));
    let known =
        |word: &&str| (word.starts_with("tollgate_") || word.starts_with("process_")) && !word.ends_with('_');
    let base = |word: &str| {
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
        of_histogram.unwrap_or(word).to_owned()
    };
    words.filter(known).map(base).collect()
}

/// A runbook that tells causes apart by a label is of use only if the alert keeps that label.
#[test]
fn alerts_keep_the_labels_that_their_runbooks_need() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let alerts = fs::read_to_string(root.join("deploy/prometheus/alerts.yaml")).unwrap();
    let runbooks = fs::read_to_string(root.join("docs/operating/alerts.md")).unwrap();
    let mut needed = 0;
    for runbook in runbooks.split("\n## ").skip(1) {
        let name = runbook.lines().next().unwrap();
        let alert = alerts.split("- alert: ").find(|alert| alert.starts_with(name)).unwrap();
        for rest in runbook.split("label `").skip(1) {
            let label = &rest[..rest.find('`').unwrap()];
            let kept =
                alert.split_once(" by (").is_none_or(|(_, by)| by[..by.find(')').unwrap()].contains(label));
            assert!(kept, "{name} drops {label}");
            assert!(alert.contains(&format!("$labels.{label}")), "{name} does not show {label}");
            needed += 1;
        }
    }
    assert_eq!(needed, 2, "failing open and failing closed");
}

#[test]
fn alerts_and_dashboard_ask_for_metrics_that_there_are() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let known: BTreeSet<String> = documented().into_keys().collect();
    for file in ["prometheus/alerts.yaml", "grafana/tollgate.json"] {
        let asked = mentioned(&fs::read_to_string(deploy.join(file)).unwrap());
        let strange: Vec<_> = asked.difference(&known).collect();
        assert!(asked.len() > 5 && strange.is_empty(), "{file}: {strange:?}");
    }
}
