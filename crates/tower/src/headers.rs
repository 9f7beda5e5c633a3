//! A decision's numbers as headers of an answer.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use itoa::Buffer as Digits;
use tollgate::core::RateLimitHeaders;

/// Whether others may have said something there.
enum Place {
    Ours(HeaderName),
    Shared(HeaderName),
}

static PLACES: [Place; 5] = [
    Place::Ours(HeaderName::from_static("x-ratelimit-limit")),
    Place::Ours(HeaderName::from_static("x-ratelimit-remaining")),
    Place::Ours(HeaderName::from_static("x-ratelimit-reset")),
    Place::Shared(HeaderName::from_static("ratelimit-policy")),
    Place::Shared(HeaderName::from_static("ratelimit")),
];

/// Puts a decision's numbers on an answer.
///
/// Where the answer has such headers already, from a service behind this one, `RateLimit` and `RateLimit-Policy`
/// keep its items and get ours as one more line of the list. `X-RateLimit-*` hold one number, and ours win.
pub fn write_headers(values: &RateLimitHeaders, headers: &mut HeaderMap) {
    // All values share one piece of memory.
    let mut text = Vec::with_capacity(values.policy.len() + values.state.len() + 3 * 20);
    let mut add = |value: &str| {
        text.extend_from_slice(value.as_bytes());
        text.len()
    };
    let ends = [
        add(Digits::new().format(values.limit)),
        add(Digits::new().format(values.remaining)),
        add(Digits::new().format(values.reset)),
        add(&values.policy),
        add(&values.state),
    ];
    let text = Bytes::from(text);
    let mut start = 0;
    // Room for these and the few that servers add behind us.
    headers.reserve(ends.len() + 2);
    for (place, end) in PLACES.iter().zip(ends) {
        // Rule names are encoded into printable ASCII before they come here.
        if let Ok(value) = HeaderValue::from_maybe_shared(text.slice(start..end)) {
            match place {
                Place::Ours(name) => drop(headers.insert(name, value)),
                Place::Shared(name) => drop(headers.append(name, value)),
            }
        }
        start = end;
    }
    if let Some(seconds) = values.retry_after {
        headers.insert(RETRY_AFTER, seconds.into());
    }
}
