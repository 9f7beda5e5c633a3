//! A decision's numbers as headers of an answer.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tollgate::Micros;
use tollgate::core::{HeaderField, RateLimitHeaders};

static X_LIMIT: HeaderName = HeaderName::from_static(HeaderField::XLimit.name());
static X_REMAINING: HeaderName = HeaderName::from_static(HeaderField::XRemaining.name());
static X_RESET: HeaderName = HeaderName::from_static(HeaderField::XReset.name());
static POLICY: HeaderName = HeaderName::from_static(HeaderField::Policy.name());
static STATE: HeaderName = HeaderName::from_static(HeaderField::State.name());
static LIMIT: HeaderName = HeaderName::from_static(HeaderField::Limit.name());
static REMAINING: HeaderName = HeaderName::from_static(HeaderField::Remaining.name());
static RESET: HeaderName = HeaderName::from_static(HeaderField::Reset.name());

/// Puts a decision's numbers on an answer.
///
/// Where the answer has such headers already, from a service behind this one, `RateLimit` and `RateLimit-Policy`
/// keep its items and get ours as one more line of the list. The others hold one number, and ours win.
pub fn write_headers(values: RateLimitHeaders, headers: &mut HeaderMap) {
    let (places, retry_after) = (values.places(), values.retry_after());
    // All values share one piece of memory.
    let text = Bytes::from(values.into_text());
    // Room for these and the few that servers add behind us.
    headers.reserve(7);
    for (field, place) in places {
        // Rule names are encoded into printable ASCII before they come here.
        let Ok(value) = HeaderValue::from_maybe_shared(text.slice(place)) else { continue };
        if field.is_a_list() {
            headers.append(name(field), value);
        } else {
            headers.insert(name(field), value);
        }
    }
    if let Some(seconds) = retry_after {
        headers.insert(RETRY_AFTER, seconds.into());
    }
}

/// Says when to try again: whole seconds, rounded up, at least one.
pub(crate) fn write_retry_after(wait: Micros, headers: &mut HeaderMap) {
    headers.insert(RETRY_AFTER, wait.ceil_secs().max(1).into());
}

fn name(field: HeaderField) -> &'static HeaderName {
    match field {
        HeaderField::XLimit => &X_LIMIT,
        HeaderField::XRemaining => &X_REMAINING,
        HeaderField::XReset => &X_RESET,
        HeaderField::Policy => &POLICY,
        HeaderField::State => &STATE,
        HeaderField::Limit => &LIMIT,
        HeaderField::Remaining => &REMAINING,
        HeaderField::Reset => &RESET,
    }
}
