//! What there is to see of a server, drawn.
//!
//! ```text
//! who, since when
//! allowed and refused each second
//! latency, store, rules, what is wrong
//! rules that refuse most | keys that are refused most
//! ```

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, RenderDirection, Row, Sparkline, Table, Widget};

use super::Watched;
use crate::client::{FailurePolicy, Stats};
use crate::words::{count, grouped, percent, printable, wait};
use tollgate::Micros;

/// How wide and high a frame is that is printed.
const PRINTED: Rect = Rect { x: 0, y: 0, width: 100, height: 30 };
/// Rules that are named in a line about the store.
const MAX_NAMED: usize = 3;
const GOOD: Color = Color::Green;
const BAD: Color = Color::Red;

/// A frame of a server.
pub(super) struct View<'a> {
    watched: &'a Watched,
    stats: &'a Stats,
}

impl<'a> View<'a> {
    pub(super) fn of(watched: &'a Watched) -> Self {
        View { watched, stats: &watched.stats }
    }

    /// The frame as lines of text, without colours.
    pub(super) fn text(&self) -> String {
        let mut buffer = Buffer::empty(PRINTED);
        self.render(PRINTED, &mut buffer);
        let row = |y| (0..PRINTED.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        let lines: Vec<String> = (0..PRINTED.height).map(|y| row(y).trim_end().to_owned()).collect();
        let last = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
        lines[..last].iter().map(|line| format!("{line}\n")).collect()
    }

    fn title(&self) -> Line<'_> {
        let Stats { version, uptime_s, .. } = self.stats;
        Line::from(vec![
            Span::styled("tollgate ", Modifier::BOLD),
            Span::raw(format!(
                "{version} at {}, up {}; this node only",
                self.watched.server,
                seconds(*uptime_s)
            )),
        ])
    }

    /// Everything that needs somebody's eye; a line of it in good times.
    fn troubles(&self) -> Vec<Line<'_>> {
        let Stats { store, rule_set, violations, degraded, .. } = self.stats;
        let mut troubles = Vec::new();
        if let Some(why) = &self.watched.away {
            troubles.push(format!("no answer, this is what was seen last: {}", printable(why)));
        }
        if !store.up {
            let policies = rule_set.on_store_failure.iter().map(rules_with);
            let parts: Vec<String> =
                std::iter::once("the store is unavailable".to_owned()).chain(policies).collect();
            troubles.push(parts.join("; "));
        }
        for degraded in degraded {
            let decisions = count(degraded.decisions, "decision");
            troubles.push(format!("{decisions} without the store: {}, {}", degraded.policy, degraded.reason));
        }
        if let Some(error) = &rule_set.error {
            troubles.push(format!("rules are not the newest: {}", printable(error)));
        }
        if let Some(violations) = violations.as_ref().filter(|violations| violations.dropped > 0) {
            troubles.push(format!("{} dropped", count(violations.dropped, "violation")));
        }
        if troubles.is_empty() {
            return vec![Line::styled("nothing is wrong", Modifier::DIM)];
        }
        troubles.into_iter().map(|trouble| Line::from(trouble).fg(BAD).bold()).collect()
    }

    fn facts(&self) -> Vec<Line<'_>> {
        let Stats { totals, latency_us, store, rule_set, .. } = self.stats;
        let latency = [
            ("p50", latency_us.p50),
            ("p90", latency_us.p90),
            ("p99", latency_us.p99),
            ("p99.9", latency_us.p999),
        ];
        let latency = latency.map(|(name, micros)| format!("{name} {}", micros_text(micros)));
        let turned_away = totals.refused + totals.denied + totals.unavailable;
        let all = totals.allowed + turned_away;
        let parts = format!(
            "{} allowed, {} refused, {} denied, {} unavailable; {} turned away",
            grouped(totals.allowed),
            grouped(totals.refused),
            grouped(totals.denied),
            grouped(totals.unavailable),
            percent(turned_away, all),
        );
        let mut kept = vec![printable(&store.shown), if store.up { "up" } else { "away" }.to_owned()];
        kept.extend(store.buckets.map(|buckets| count(buckets, "bucket")));
        kept.extend(store.bytes.map(|bytes| format!("{} kB", grouped(bytes / 1_000))));
        kept.extend(store.in_flight.map(|calls| format!("{} in flight", grouped(calls))));
        kept.extend(store.outages.map(|outages| count(outages, "outage")));
        let mut rules = vec![printable(&rule_set.source), count(rule_set.count, "rule")];
        rules.extend(rule_set.age_s.map(|age| format!("looked at {} ago", seconds(age))));
        vec![
            fact("decisions", parts),
            fact("latency", latency.join("  ")),
            fact("store", kept.join(", ")),
            fact("rules", rules.join(", ")),
        ]
    }

    fn rules(&self) -> Table<'_> {
        let rows = self.stats.rules.iter().map(|rule| {
            let counts =
                [rule.refused, rule.shadow_refused, rule.allowed].map(|number| right(grouped(number)));
            let [refused, shadow, allowed] = counts;
            Row::new([Line::from(printable(&rule.rule)), refused, shadow, allowed])
        });
        let widths =
            [Constraint::Fill(1), Constraint::Length(11), Constraint::Length(9), Constraint::Length(13)];
        let head = ["rule", "    refused", "   shadow", "      allowed"];
        Table::new(rows, widths).header(Row::new(head).dim()).block(titled("rules that refuse most"))
    }

    fn keys(&self) -> Table<'_> {
        let rows = self.stats.top_refused.iter().map(|top| {
            let refused = right(format!("≤ {}", grouped(top.refused)));
            Row::new([Line::from(printable(&top.key)), Line::from(printable(&top.rule)), refused])
        });
        let widths = [Constraint::Fill(2), Constraint::Fill(1), Constraint::Length(12)];
        let head = ["key", "rule", "     refused"];
        Table::new(rows, widths).header(Row::new(head).dim()).block(titled("keys that are refused most"))
    }
}

/// Which rules have a failure policy: `fail open: per-user, search and 3 more`.
fn rules_with(FailurePolicy { policy, count, rules }: &FailurePolicy) -> String {
    let verb = match policy.as_str() {
        "local" => "count on this node alone",
        "closed" => "fail closed",
        _ => "fail open",
    };
    let named: Vec<String> = rules.iter().take(MAX_NAMED).map(|rule| printable(rule)).collect();
    let more = match count.saturating_sub(named.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{verb}: {}{more}", named.join(", "))
}

impl Widget for &View<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let (troubles, facts) = (self.troubles(), self.facts());
        let height = |lines: &[Line<'_>]| Constraint::Length(u16::try_from(lines.len()).unwrap_or(u16::MAX));
        let rows = [
            Constraint::Length(1),
            height(&troubles),
            Constraint::Length(7),
            height(&facts),
            Constraint::Fill(1),
        ];
        let [title, wrong, traffic, known, lists] = area.layout(&Layout::vertical(rows));
        self.title().render(title, buffer);
        Paragraph::new(troubles).render(wrong, buffer);
        let [allowed, refused] = traffic.layout(&side_by_side());
        let seconds = &self.stats.per_second;
        spark("allowed/s", &seconds.allowed, GOOD, allowed, buffer);
        spark("turned away/s", &seconds.refused, BAD, refused, buffer);
        Paragraph::new(facts).render(known, buffer);
        let [rules, keys] = lists.layout(&side_by_side());
        Widget::render(self.rules(), rules, buffer);
        Widget::render(self.keys(), keys, buffer);
    }
}

fn side_by_side() -> Layout {
    Layout::horizontal([Constraint::Fill(1); 2]).spacing(2)
}

/// The last seconds that are over, the newest at the right edge.
fn spark(name: &str, seconds: &[u64], color: Color, area: Rect, buffer: &mut Buffer) {
    let over = &seconds[..seconds.len().saturating_sub(1)];
    let newest = over.last().copied().unwrap_or(0);
    let shown = &over[over.len().saturating_sub(usize::from(area.width.saturating_sub(2)))..];
    let most = shown.iter().copied().max().unwrap_or(0);
    let block = titled(format!("{name}: {} (most {})", grouped(newest), grouped(most)));
    let newest_first = shown.iter().rev();
    Sparkline::default()
        .block(block)
        .data(newest_first)
        .direction(RenderDirection::RightToLeft)
        .style(Style::new().fg(color))
        .render(area, buffer);
}

fn titled<'a>(title: impl Into<Line<'a>>) -> Block<'a> {
    Block::new().borders(Borders::TOP).title(title)
}

fn fact(name: &str, text: String) -> Line<'static> {
    Line::from(vec![Span::styled(format!("{name:<10}"), Modifier::DIM), Span::raw(text)])
}

fn right(text: String) -> Line<'static> {
    Line::from(text).right_aligned()
}

fn seconds(seconds: u64) -> String {
    wait(Micros::new(seconds.saturating_mul(1_000_000)))
}

/// Microseconds as they are told: with one decimal below a hundred.
fn micros_text(micros: f64) -> String {
    match micros {
        ..100.0 => format!("{micros:.1} us"),
        ..10_000.0 => format!("{micros:.0} us"),
        _ => format!("{:.1} ms", micros / 1_000.0),
    }
}

#[cfg(test)]
mod tests;
