//! A frame of `tollgate top` as lines of text: what is wrong, traffic, state, who is refused most.

use tollgate::Micros;
use tollgate_server::api::{FailurePolicyRules, Stats};

use super::Watched;
use crate::table::table;
use crate::terminal::Tone;
use crate::words::{count, grouped, percent, printable, wait};

/// Rules that are named in a line about the store.
const MAX_NAMED: usize = 3;
/// Seconds of traffic that are drawn at most.
const MAX_SECONDS: usize = 60;
/// The heights that a character can draw.
const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// One line, no longer than the screen is wide.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) tone: Option<Tone>,
    pub(super) text: String,
}

/// The frame for a screen of this size.
pub(super) fn lines(watched: &Watched, width: usize, height: usize) -> Vec<Line> {
    let Stats { version, uptime_s, per_second, .. } = &watched.stats;
    let title =
        format!("tollgate {version} at {}, up {}; this node only", watched.server, seconds(*uptime_s));
    let mut lines = vec![cut(&title, width, Some(Tone::Strong))];
    match &problems(watched)[..] {
        [] => lines.push(cut("nothing is wrong", width, Some(Tone::Faint))),
        problems => {
            for problem in problems {
                lines.extend(wrapped("", problem, width, Some(Tone::Bad)));
            }
        }
    }
    lines.push(cut(&traffic("allowed/s", &per_second.allowed, width), width, Some(Tone::Good)));
    lines.push(cut(&traffic("rejected/s", &per_second.refused, width), width, Some(Tone::Bad)));
    for (name, text) in facts(&watched.stats) {
        lines.extend(wrapped(&format!("{name:<11}"), &text, width, None));
    }
    let left = height.saturating_sub(lines.len());
    for table in [refused_keys(&watched.stats), refusing_rules(&watched.stats)] {
        let rows = table.lines().take((left / 2).saturating_sub(1)).enumerate();
        lines.push(cut("", width, None));
        lines.extend(rows.map(|(row, text)| cut(text, width, (row == 0).then_some(Tone::Faint))));
    }
    lines.truncate(height);
    lines
}

/// Everything that needs attention.
fn problems(watched: &Watched) -> Vec<String> {
    let Stats { store, rule_set, violations, degraded, .. } = &watched.stats;
    let mut problems = Vec::new();
    if let Some(error) = &watched.error {
        problems.push(format!("no answer, these are the last numbers: {}", printable(error)));
    }
    if !store.up {
        let policies = rule_set.on_store_failure.iter().map(rules_with);
        let parts: Vec<String> =
            std::iter::once("the store is unavailable".to_owned()).chain(policies).collect();
        problems.push(parts.join("; "));
    }
    for degraded in degraded {
        let decisions = count(degraded.decisions, "decision");
        problems.push(format!("{decisions} without the store: {}, {}", degraded.policy, degraded.reason));
    }
    if let Some(error) = &rule_set.error {
        problems.push(format!("rules are not the newest: {}", printable(error)));
    }
    if let Some(violations) = violations.as_ref().filter(|violations| violations.dropped > 0) {
        problems.push(format!("{} dropped", count(violations.dropped, "violation")));
    }
    problems
}

/// Which rules have a failure policy: `fail open: per-user, search and 3 more`.
fn rules_with(FailurePolicyRules { policy, count, rules }: &FailurePolicyRules) -> String {
    let verb = match &**policy {
        "local" => "count on this node alone",
        "closed" => "fail closed",
        _ => "fail open",
    };
    let named: Vec<String> = rules.iter().take(MAX_NAMED).map(|rule| printable(rule)).collect();
    let more = match count.saturating_sub(named.len() as u64) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{verb}: {}{more}", named.join(", "))
}

/// The last seconds that are over, the newest at the right edge.
fn traffic(name: &str, seconds: &[u64], width: usize) -> String {
    let over = &seconds[..seconds.len().saturating_sub(1)];
    let head = |newest: u64, max: u64| {
        format!("{name:<11}{:<24}", format!("{} (max {})", grouped(newest), grouped(max)))
    };
    let room = width.saturating_sub(head(0, 0).chars().count()).min(MAX_SECONDS);
    let shown = &over[over.len().saturating_sub(room)..];
    let max = over[over.len().saturating_sub(MAX_SECONDS)..].iter().copied().max().unwrap_or(0);
    let level = |count: &u64| match max {
        0 => LEVELS[0],
        max => {
            LEVELS[usize::try_from((u128::from(*count) * 8).div_ceil(u128::from(max))).unwrap_or(8).min(8)]
        }
    };
    head(over.last().copied().unwrap_or(0), max) + &shown.iter().map(level).collect::<String>()
}

fn facts(stats: &Stats) -> [(&'static str, String); 4] {
    let Stats { totals, latency_us, store, rule_set, .. } = stats;
    let rejected = totals.refused + totals.denied + totals.unavailable;
    let decisions = format!(
        "{} allowed, {} refused, {} denied, {} unavailable; {} rejected",
        grouped(totals.allowed),
        grouped(totals.refused),
        grouped(totals.denied),
        grouped(totals.unavailable),
        percent(rejected, totals.allowed + rejected),
    );
    let latency = [
        ("p50", latency_us.p50),
        ("p90", latency_us.p90),
        ("p99", latency_us.p99),
        ("p99.9", latency_us.p999),
    ];
    let latency = latency.map(|(name, micros)| format!("{name} {}", micros_text(micros)));
    let mut kept = vec![printable(&store.shown), if store.up { "up" } else { "unavailable" }.to_owned()];
    kept.extend(store.buckets.map(|buckets| count(buckets, "bucket")));
    kept.extend(store.bytes.map(|bytes| format!("{} kB", grouped(bytes / 1_000))));
    kept.extend(store.in_flight.map(|calls| format!("{} in flight", grouped(calls))));
    kept.extend(store.outages.map(|outages| count(outages, "outage")));
    let mut rules = vec![printable(&rule_set.source), count(rule_set.count, "rule")];
    rules.extend(rule_set.age_s.map(|age| format!("loaded {} ago", seconds(age))));
    [
        ("decisions", decisions),
        ("latency", latency.join("  ")),
        ("store", kept.join(", ")),
        ("rules", rules.join(", ")),
    ]
}

/// Numbers first: a name that does not fit is cut.
fn refused_keys(stats: &Stats) -> String {
    let mut table = table(["REFUSED", "RULE", "KEY"], &[0]);
    for top in &stats.top_refused {
        table.add_row([format!("≤ {}", grouped(top.refused)), printable(&top.rule), printable(&top.key)]);
    }
    table.trim_fmt()
}

fn refusing_rules(stats: &Stats) -> String {
    let mut table = table(["REFUSED", "SHADOW", "ALLOWED", "RULE"], &[0, 1, 2]);
    for rule in &stats.rules {
        let counts = [rule.refused, rule.shadow_refused, rule.allowed].map(grouped);
        table.add_row(counts.into_iter().chain([printable(&rule.rule)]));
    }
    table.trim_fmt()
}

fn cut(text: &str, width: usize, tone: Option<Tone>) -> Line {
    Line { tone, text: text.chars().take(width).collect() }
}

/// A text on as many lines as it needs, broken between words where possible; further lines are indented like the first.
fn wrapped(head: &str, text: &str, width: usize, tone: Option<Tone>) -> Vec<Line> {
    let indent = head.chars().count().min(width / 3);
    let room = (width - indent).max(1);
    let mut rest: Vec<char> = text.chars().collect();
    let mut lines = Vec::new();
    loop {
        let head: String = if lines.is_empty() { head.into() } else { String::new() };
        let head: String = format!("{head:<indent$}").chars().take(indent).collect();
        if rest.len() <= room {
            lines.push(Line { tone, text: head + &rest.iter().collect::<String>() });
            return lines;
        }
        let space = rest[..=room].iter().rposition(|c| *c == ' ').filter(|at| *at > 0);
        let after = rest.split_off(space.map_or(room, |at| at + 1));
        let text: String = rest.iter().collect();
        lines.push(Line { tone, text: head + text.trim_end() });
        rest = after;
    }
}

fn seconds(seconds: u64) -> String {
    wait(Micros::new(seconds.saturating_mul(1_000_000)))
}

/// Microseconds with one decimal below a hundred.
fn micros_text(micros: f64) -> String {
    match micros {
        ..100.0 => format!("{micros:.1} us"),
        ..10_000.0 => format!("{micros:.0} us"),
        _ => format!("{:.1} ms", micros / 1_000.0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn watched() -> Watched {
        let stats = json!({
            "version": "0.1.0", "started_at": "2026-11-15T12:00:00Z", "uptime_s": 125, "now_ms": 0, "view": "node",
            "totals": {"allowed": 1200, "refused": 299, "denied": 1, "unavailable": 0, "shadow_refused": 3, "degraded": 0},
            "per_second": {"start_s": 0, "allowed": [1, 5, 10, 2], "refused": [0, 0, 7, 1], "degraded": [0, 0, 0, 0]},
            "latency_us": {"p50": 0.8, "p90": 1.5, "p99": 240.0, "p999": 12000.0, "max": 13000.0, "count": 1500},
            "rules": [{"rule": "per-user", "allowed": 1200, "refused": 299, "shadow_refused": 3}],
            "top_refused": [{"key": "user:\u{1b}[31m42", "rule": "per-user", "refused": 120, "at_least": 119}],
            "store": {"kind": "memory", "shown": "memory", "up": true, "buckets": 42, "bytes": 65536},
            "rule_set": {"source": "rules.yaml", "version": "abc", "count": 3, "age_s": 2, "error": null,
                         "on_store_failure": []},
            "violations": null, "degraded": []
        });
        Watched {
            server: "http://127.0.0.1:8081".into(),
            stats: serde_json::from_value(stats).unwrap(),
            error: None,
        }
    }

    fn text(watched: &Watched, width: usize, height: usize) -> String {
        lines(watched, width, height).into_iter().map(|line| line.text + "\n").collect()
    }

    #[test]
    fn a_frame_has_traffic_times_state_and_who_is_refused() {
        let text = text(&watched(), 100, usize::MAX);
        for part in [
            "tollgate 0.1.0 at http://127.0.0.1:8081, up 2 min 5 s; this node only",
            "nothing is wrong",
            "allowed/s  10 (max 10)             ▁▄█",
            "rejected/s 7 (max 7)                 █",
            "1,200 allowed, 299 refused, 1 denied, 0 unavailable; 20.0 % rejected",
            "p50 0.8 us  p90 1.5 us  p99 240 us  p99.9 12.0 ms",
            "memory, up, 42 buckets, 65 kB",
            "rules.yaml, 3 rules, loaded 2 s ago",
            "    299       3    1,200  per-user",
            "  ≤ 120  per-user",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        assert!(
            !text.contains('\u{1b}') && text.contains(r"user:\u{1b}[31m42"),
            "no escape sequence of a caller reaches the terminal:\n{text}"
        );
    }

    #[test]
    fn what_is_wrong_comes_first() {
        let mut watched = watched();
        watched.stats.store.up = false;
        watched.stats.rule_set.on_store_failure = serde_json::from_value(json!([
            {"policy": "open", "count": 5, "rules": ["a", "b", "c", "d", "e"]},
            {"policy": "closed", "count": 1, "rules": ["login"]},
        ]))
        .unwrap();
        watched.stats.degraded =
            serde_json::from_value(json!([{"policy": "open", "reason": "unreachable", "decisions": 7}]))
                .unwrap();
        watched.stats.rule_set.error = Some("rules.yaml:3: no limit".to_owned());
        watched.update(Err(anyhow::anyhow!("cannot reach http://127.0.0.1:8081")));
        let text = text(&watched, 100, usize::MAX);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1..5],
            [
                "no answer, these are the last numbers: cannot reach http://127.0.0.1:8081",
                "the store is unavailable; fail open: a, b, c and 2 more; fail closed: login",
                "7 decisions without the store: open, unreachable",
                "rules are not the newest: rules.yaml:3: no limit",
            ]
        );
    }

    #[test]
    fn a_terminal_of_any_size_shows_what_fits() {
        let mut watched = watched();
        watched.update(Err(anyhow::anyhow!("cannot reach http://127.0.0.1:8081 for a reason that is long")));
        for (width, height) in [(120, 40), (80, 24), (40, 24), (20, 5), (1, 1)] {
            let lines = lines(&watched, width, height);
            assert!(lines.len() <= height && !lines[0].text.is_empty(), "{width}x{height}");
            assert!(
                lines.iter().all(|line| line.text.chars().count() <= width),
                "{width}x{height}: {lines:#?}"
            );
        }
        let narrow = text(&watched, 40, 30);
        assert!(
            narrow.contains("\ncannot reach http://127.0.0.1:8081 for a\nreason that is long\n"),
            "{narrow}"
        );
        assert!(
            narrow.contains(
                "\ndecisions  1,200 allowed, 299 refused, 1\n           denied, 0 unavailable; 20.0 %\n"
            ),
            "{narrow}"
        );
        assert!(narrow.contains("REFUSED  RULE      KEY\n"), "{narrow}");
    }
}
