//! The two text formats of `/metrics`, and which of them a scraper asks for.

use std::collections::HashSet;

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;

/// How the metrics are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextFormat {
    /// OpenMetrics 1.0, the default.
    OpenMetrics,
    /// The Prometheus text format 0.0.4, for scrapers that do not read OpenMetrics.
    Prometheus,
}

impl TextFormat {
    /// The Prometheus text format where `Accept` prefers `text/plain`; otherwise OpenMetrics.
    pub(crate) fn accepted(headers: &HeaderMap) -> Self {
        let lines = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let ranges: Vec<Range<'_>> = lines.flat_map(|line| line.split(',')).map(Range::parse).collect();
        let plain = quality(&ranges, "text", "plain");
        if plain > quality(&ranges, "application", "openmetrics-text") {
            TextFormat::Prometheus
        } else {
            TextFormat::OpenMetrics
        }
    }

    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            TextFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            TextFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// One media range of an `Accept` header, with its quality in thousandths.
#[derive(Debug, Clone, Copy)]
struct Range<'a> {
    kind: &'a str,
    subtype: &'a str,
    quality: u16,
}

impl<'a> Range<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let (kind, subtype) = parts.next().and_then(|range| range.split_once('/')).unwrap_or_default();
        let parameter = |part: &'a str| {
            let (name, value) = part.split_once('=')?;
            name.trim().eq_ignore_ascii_case("q").then(|| value.trim())
        };
        Range { kind, subtype, quality: parts.find_map(parameter).map_or(1_000, thousandths) }
    }

    /// How exactly it names a type; `None` where it does not match.
    fn specificity(&self, kind: &str, subtype: &str) -> Option<u8> {
        match (self.kind, self.subtype) {
            ("*", "*") => Some(0),
            (own, "*") if own.eq_ignore_ascii_case(kind) => Some(1),
            (own, name) if own.eq_ignore_ascii_case(kind) && name.eq_ignore_ascii_case(subtype) => Some(2),
            _ => None,
        }
    }
}

/// The quality that `Accept` gives to a type: that of the most specific range, 0 where none matches.
fn quality(ranges: &[Range<'_>], kind: &str, subtype: &str) -> u16 {
    let matching = ranges.iter().filter_map(|range| Some((range.specificity(kind, subtype)?, range.quality)));
    matching.max().map_or(0, |(_, quality)| quality)
}

/// `0.35` is 350. A weight that is not a number counts as 0.
fn thousandths(weight: &str) -> u16 {
    let (whole, fraction) = weight.split_once('.').unwrap_or((weight, ""));
    let digits = format!("{whole}{fraction:0<3}");
    if fraction.len() > 3 { 0 } else { digits.parse().map_or(0, |number: u16| number.min(1_000)) }
}

/// The Prometheus text format of an OpenMetrics text without units, exemplars and timestamps. They differ in the metadata
/// of counters, which has the sample's name here, and in the end mark.
pub(super) fn prometheus(openmetrics: &str) -> String {
    let counters: HashSet<&str> = openmetrics.lines().filter_map(counter_name).collect();
    let mut text = String::with_capacity(openmetrics.len());
    for line in openmetrics.lines().filter(|line| *line != "# EOF") {
        let metadata = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
        match metadata.and_then(|rest| rest.split_once(' ')) {
            Some((name, rest)) if counters.contains(name) => {
                let keyword = &line[..line.len() - name.len() - rest.len() - 1];
                text.extend([keyword, name, "_total ", rest]);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

fn counter_name(line: &str) -> Option<&str> {
    line.strip_prefix("# TYPE ")?.strip_suffix(" counter")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(lines: &[&str]) -> TextFormat {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(ACCEPT, line.parse().unwrap());
        }
        TextFormat::accepted(&headers)
    }

    #[test]
    fn text_plain_is_served_where_it_is_preferred() {
        for lines in [
            &["text/plain"][..],
            &["text/plain; version=0.0.4"],
            &["TEXT/PLAIN;Q=0.9"],
            &["text/*"],
            &["text/plain, */*;q=0.5"],
            &["text/plain;q=0.5,application/openmetrics-text;q=0.3"],
            &["application/openmetrics-text;q=0", "text/plain;q=0.001"],
        ] {
            assert_eq!(accepted(lines), TextFormat::Prometheus, "{lines:?}");
        }
    }

    #[test]
    fn openmetrics_is_served_otherwise() {
        for lines in [
            &[][..],
            &["*/*"],
            &["application/json"],
            &["application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"],
            &["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"],
            &["text/plain,application/openmetrics-text"],
            &["text/plain;q=0"],
            &["text/plain;q=much"],
            &["", ";q=1", "text"],
        ] {
            assert_eq!(accepted(lines), TextFormat::OpenMetrics, "{lines:?}");
        }
    }

    #[test]
    fn counters_are_described_by_the_name_of_their_samples() {
        let openmetrics = "# HELP a What a is\n# TYPE a counter\na_total{rule=\"# TYPE a counter\"} 1\n\
             # HELP b B a counter\n# TYPE b gauge\nb 2\n# HELP c C\n# TYPE c histogram\nc_bucket{le=\"+Inf\"} 1\n# EOF\n";
        let text = "# HELP a_total What a is\n# TYPE a_total counter\na_total{rule=\"# TYPE a counter\"} 1\n\
             # HELP b B a counter\n# TYPE b gauge\nb 2\n# HELP c C\n# TYPE c histogram\nc_bucket{le=\"+Inf\"} 1\n";
        assert_eq!(prometheus(openmetrics), text);
    }
}
