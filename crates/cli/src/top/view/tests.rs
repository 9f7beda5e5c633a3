use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;

use super::*;

fn watched() -> Watched {
    let stats = json!({
        "version": "0.1.0", "started_at": "2026-11-15T12:00:00Z", "uptime_s": 125, "now_ms": 0,
        "totals": {"allowed": 1200, "refused": 299, "denied": 1, "unavailable": 0, "shadow_refused": 3, "degraded": 0},
        "per_second": {"start_s": 0, "allowed": [1, 5, 10, 2], "refused": [0, 0, 7, 1]},
        "latency_us": {"p50": 0.8, "p90": 1.5, "p99": 240.0, "p999": 12000.0, "max": 13000.0, "count": 1500},
        "rules": [{"rule": "per-user", "allowed": 1200, "refused": 299, "shadow_refused": 3}],
        "top_refused": [{"key": "user:\u{1b}[31m42", "rule": "per-user", "refused": 120, "at_least": 119}],
        "store": {"kind": "memory", "shown": "memory", "up": true, "buckets": 42, "bytes": 65536},
        "rule_set": {"source": "rules.yaml", "version": "abc", "count": 3, "age_s": 2, "error": null},
        "violations": null, "degraded": []
    });
    Watched {
        server: "http://127.0.0.1:8080".into(),
        stats: serde_json::from_value(stats).unwrap(),
        away: None,
    }
}

#[test]
fn a_frame_tells_traffic_times_state_and_who_is_refused() {
    let text = View::of(&watched()).text();
    for told in [
        "tollgate 0.1.0 at http://127.0.0.1:8080, up 2 min 5 s; this node only",
        "nothing is wrong",
        "allowed/s: 10 (most 10)",
        "turned away/s: 7 (most 7)",
        "1,200 allowed, 299 refused, 1 denied, 0 unavailable; 20.0 % turned away",
        "p50 0.8 us  p90 1.5 us  p99 240 us  p99.9 12.0 ms",
        "memory, up, 42 buckets, 65 kB",
        "rules.yaml, 3 rules, looked at 2 s ago",
        "per-user",
        "≤ 120",
    ] {
        assert!(text.contains(told), "{told} is missing:\n{text}");
    }
    assert!(
        !text.contains('\u{1b}') && text.contains(r"user:\u{1b}[31m42"),
        "callers move no cursor:\n{text}"
    );
}

#[test]
fn what_is_wrong_is_told_first() {
    let mut watched = watched();
    watched.stats.store.up = false;
    watched.stats.rule_set.on_store_failure = serde_json::from_value(json!([
        {"policy": "open", "count": 5, "rules": ["a", "b", "c", "d", "e"]},
        {"policy": "closed", "count": 1, "rules": ["login"]},
    ]))
    .unwrap();
    watched.stats.degraded =
        serde_json::from_value(json!([{"policy": "open", "reason": "unreachable", "decisions": 7}])).unwrap();
    watched.stats.rule_set.error = Some("rules.yaml:3: no limit".to_owned());
    watched.update(Err(anyhow::anyhow!("cannot reach http://127.0.0.1:8080")));
    let text = View::of(&watched).text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[1..5],
        [
            "no answer, this is what was seen last: cannot reach http://127.0.0.1:8080",
            "the store is unavailable; fail open: a, b, c and 2 more; fail closed: login",
            "7 decisions without the store: open, unreachable",
            "rules are not the newest: rules.yaml:3: no limit",
        ]
    );
}

#[test]
fn a_terminal_of_any_size_shows_what_fits() {
    let watched = watched();
    for (width, height) in [(120, 40), (80, 24), (20, 5), (1, 1)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| frame.render_widget(&View::of(&watched), frame.area())).unwrap();
        let shown = terminal.backend().buffer().content().iter().any(|cell| cell.symbol() != " ");
        assert!(shown, "{width}x{height}");
    }
}
