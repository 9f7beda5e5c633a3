//! A decision's numbers as headers of an answer.

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tollgate::core::RateLimitHeaders;

const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");

/// Puts a decision's numbers on an answer.
///
/// Where the answer has such headers already, from a service behind this one, `RateLimit` and `RateLimit-Policy`
/// keep its items and get ours as one more line of the list. `X-RateLimit-*` hold one number, and ours win.
pub fn write_headers(values: RateLimitHeaders, headers: &mut HeaderMap) {
    headers.reserve(5);
    headers.insert(X_LIMIT, values.limit.into());
    headers.insert(X_REMAINING, values.remaining.into());
    headers.insert(X_RESET, values.reset.into());
    // Rule names are encoded into printable ASCII before they come here.
    if let (Ok(policy), Ok(state)) =
        (HeaderValue::try_from(values.policy), HeaderValue::try_from(values.state))
    {
        headers.append(POLICY, policy);
        headers.append(STATE, state);
    }
    if let Some(seconds) = values.retry_after {
        headers.insert(RETRY_AFTER, seconds.into());
    }
}
