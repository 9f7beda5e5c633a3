//! How long a request may be held for its turn.

use std::time::Duration;

use http::Version;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use tollgate::Micros;

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// How long this one request may be held for a leaky bucket: a request extension, set by a layer further out.
///
/// It only ever shortens what the layer's `max_wait` allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxWait(pub Duration);

/// What bounds the wait of every request of a layer.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    pub(crate) max_wait: Micros,
    /// Callers say here how many milliseconds they have.
    pub(crate) header: Option<HeaderName>,
}

impl Patience {
    /// The nearest of all deadlines that apply to a request.
    pub(crate) fn of(&self, request: &Parts) -> Micros {
        let extension = request.extensions.get().map(|MaxWait(wait)| *wait);
        let header = self.header.as_ref().and_then(|name| millis(&request.headers, name));
        // gRPC is always HTTP/2, or 3.
        let grpc = (request.version >= Version::HTTP_2).then(|| grpc_timeout(&request.headers)).flatten();
        let nearest = [extension, header, grpc].into_iter().flatten().min();
        nearest.map_or(self.max_wait, |wait| self.max_wait.min(wait.into()))
    }
}

fn millis(headers: &HeaderMap, name: &HeaderName) -> Option<Duration> {
    digits(headers.get(name)?.as_bytes()).map(Duration::from_millis)
}

/// `grpc-timeout: 100m`: up to eight digits and a unit.
fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let (unit, amount) = headers.get(GRPC_TIMEOUT).map(HeaderValue::as_bytes)?.split_last()?;
    let amount = digits(amount).filter(|amount| *amount <= 99_999_999)?;
    Some(match unit {
        b'H' => Duration::from_secs(amount * 3_600),
        b'M' => Duration::from_secs(amount * 60),
        b'S' => Duration::from_secs(amount),
        b'm' => Duration::from_millis(amount),
        b'u' => Duration::from_micros(amount),
        b'n' => Duration::from_nanos(amount),
        _ => return None,
    })
}

/// Digits and nothing else: no sign, no point.
fn digits(text: &[u8]) -> Option<u64> {
    let text = text.iter().all(u8::is_ascii_digit).then_some(text)?;
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patience(version: Version, headers: &[(&'static str, &str)], extension: Option<MaxWait>) -> u64 {
        let (mut parts, ()) = http::Request::new(()).into_parts();
        parts.version = version;
        parts.extensions.extend(
            extension
                .map(|wait| {
                    let mut extensions = http::Extensions::new();
                    extensions.insert(wait);
                    extensions
                })
                .unwrap_or_default(),
        );
        for (name, value) in headers {
            parts.headers.insert(*name, value.parse().unwrap());
        }
        let header = Some(HeaderName::from_static("x-timeout-ms"));
        Patience { max_wait: Micros::new(30_000_000), header }.of(&parts).get()
    }

    #[test]
    fn the_nearest_deadline_counts_and_none_is_further_than_the_layers() {
        let all = [("x-timeout-ms", "700"), ("grpc-timeout", "2S")];
        assert_eq!(patience(Version::HTTP_2, &[], None), 30_000_000);
        assert_eq!(patience(Version::HTTP_2, &all, None), 700_000);
        assert_eq!(patience(Version::HTTP_2, &all[1..], None), 2_000_000);
        assert_eq!(patience(Version::HTTP_2, &all, Some(MaxWait(Duration::from_millis(5)))), 5_000);
        assert_eq!(patience(Version::HTTP_11, &all[1..], None), 30_000_000, "no gRPC on HTTP/1.1");
        assert_eq!(patience(Version::HTTP_2, &[("grpc-timeout", "99999999H")], None), 30_000_000);
    }

    #[test]
    fn every_unit_of_grpc_is_known_and_nonsense_is_no_deadline() {
        for (text, micros) in [
            ("1H", 30_000_000),
            ("0M", 0),
            ("3S", 3_000_000),
            ("40m", 40_000),
            ("5u", 5),
            ("1n", 1),
            ("", 30_000_000),
            ("S", 30_000_000),
            ("-1S", 30_000_000),
            ("1.5S", 30_000_000),
            ("999999999n", 30_000_000),
            ("3s", 30_000_000),
        ] {
            assert_eq!(patience(Version::HTTP_2, &[("grpc-timeout", text)], None), micros, "{text}");
        }
    }
}
