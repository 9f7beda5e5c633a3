//! What operators see of requests: a span and a line for each that is looked at, and the numbers of all of them.

mod format;
pub(crate) mod metrics;
mod process;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use tollgate::Answer;
use tollgate_tower::DecisionIds;
use tracing::Span;

/// The name of a request, the caller's own or one of ours.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longer ones are not repeated.
const LONGEST_ID: usize = 128;

/// Makes a span a part of the trace that a request belongs to.
pub type Adopt = Arc<dyn Fn(&Span, &HeaderMap) + Send + Sync>;

/// Which requests are looked at. Where none is, a request pays nothing for it.
#[derive(Clone)]
pub struct Observe {
    /// Of every 1,000,000 requests, how many get a line in the log.
    log_ppm: u32,
    adopt: Option<Adopt>,
    seen: Arc<AtomicU64>,
    ids: Arc<DecisionIds>,
}

impl Observe {
    /// Looks at nobody.
    pub fn nothing() -> Self {
        Observe { log_ppm: 0, adopt: None, seen: Arc::default(), ids: Arc::new(DecisionIds::new()) }
    }

    /// The same, with a line in the log for so many of a million requests, evenly spread.
    #[must_use]
    pub fn with_log(self, of_a_million: u32) -> Self {
        Observe { log_ppm: of_a_million.min(1_000_000), ..self }
    }

    /// The same, with a span for every request, made a part of the caller's trace by `adopt`.
    #[must_use]
    pub fn with_traces(self, adopt: Adopt) -> Self {
        Observe { adopt: Some(adopt), ..self }
    }

    pub(crate) const fn is_off(&self) -> bool {
        self.log_ppm == 0 && self.adopt.is_none()
    }

    /// Whether this request gets a line: every so many-th does.
    pub(crate) fn logs_this(&self) -> bool {
        let share = u64::from(self.log_ppm);
        let before = self.seen.fetch_add(1, Ordering::Relaxed).wrapping_mul(share);
        share > 0 && before / 1_000_000 != before.wrapping_add(share) / 1_000_000
    }

    /// The name of a request: its own, if it has a sane one.
    pub(crate) fn request_id(&self, headers: &HeaderMap) -> HeaderValue {
        let own = headers.get(REQUEST_ID).filter(|id| {
            let id = id.as_bytes();
            (1..=LONGEST_ID).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
        });
        own.cloned().unwrap_or_else(|| {
            HeaderValue::from_str(&self.ids.next().to_string()).expect("digits are what headers are made of")
        })
    }

    /// The span of a request, within its caller's trace.
    pub(crate) fn span(&self, method: &str, path: &str, id: &HeaderValue, headers: &HeaderMap) -> Span {
        let Some(adopt) = &self.adopt else { return Span::none() };
        let span = tracing::info_span!(
            target: "tollgate::request",
            "request",
            otel.kind = "server",
            otel.name = format!("{method} {path}"),
            http.request.method = method,
            url.path = path,
            request_id = id.to_str().unwrap_or_default(),
            http.response.status_code = tracing::field::Empty,
            tollgate.outcome = tracing::field::Empty,
            tollgate.rule = tracing::field::Empty,
            tollgate.decision_id = tracing::field::Empty,
        );
        adopt(&span, headers);
        span
    }
}

/// Tells the span of the request, if there is one, what was decided.
pub(crate) fn tell_span(answer: &Answer, id: &str) {
    let span = Span::current();
    if span.is_disabled() {
        return;
    }
    span.record("tollgate.outcome", answer.status().as_str());
    span.record("tollgate.decision_id", id);
    if let Some(rule) = answer.rule() {
        span.record("tollgate.rule", rule);
    }
}

impl fmt::Debug for Observe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observe")
            .field("log_ppm", &self.log_ppm)
            .field("traces", &self.adopt.is_some())
            .finish_non_exhaustive()
    }
}

impl Default for Observe {
    fn default() -> Self {
        Self::nothing()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_requests_gets_a_line_and_they_are_evenly_spread() {
        for (of_a_million, expected) in
            [(0, 0), (1, 1), (10_000, 1_000), (333_333, 33_333), (1_000_000, 100_000)]
        {
            let observe = Observe::nothing().with_log(of_a_million);
            let lines = (0..100_000).filter(|_| observe.logs_this()).count();
            assert!(lines.abs_diff(expected) <= 1, "{of_a_million}: {lines}");
        }
        let observe = Observe::nothing().with_log(100_000);
        let lines: Vec<bool> = (0..100).map(|_| observe.logs_this()).collect();
        assert!(lines.chunks(10).all(|ten| ten.iter().filter(|line| **line).count() == 1));
    }

    #[test]
    fn a_request_keeps_its_name_unless_it_is_none() {
        let observe = Observe::nothing();
        let named = |name: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(name).unwrap());
            observe.request_id(&headers)
        };
        assert_eq!(named(b"abc-123"), "abc-123");
        for bad in [&b"with blanks"[..], b"", b"caf\xc3\xa9", &[b'a'; 129]] {
            assert_eq!(named(bad).len(), 24, "{bad:?}");
        }
    }
}
