//! `ANY /v1/authz`: forward-auth. A proxy asks before it passes a request on.
//!
//! The facts are found as the middleware finds them, in the request that the proxy tells about: its method and path are
//! in `X-Forwarded-Method` and `X-Forwarded-Uri` (Caddy, Traefik) or `X-Original-Method` and `X-Original-URI` (nginx) or
//! `X-Original-URL` (ingress-nginx), its host in `X-Forwarded-Host` or the URL, its headers beside them. Any client could
//! write these, so only trusted proxies may ask.

use std::net::IpAddr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::uri::{Authority, PathAndQuery};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri};
use axum::response::IntoResponse as _;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use tollgate::{Answer, Descriptor, Micros, Timestamp};
use tollgate_tower::{Identify, Protocol, Refusal, write_headers};

use super::App;
use super::auth::Peer;
use super::problem::Problem;
use super::query::Query;

const PATH: &str = "/v1/authz";
/// What a proxy says about the request it has; the first name wins nothing, they must agree.
const METHOD: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-method"), HeaderName::from_static("x-original-method")];
const TARGET: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-uri"), HeaderName::from_static("x-original-uri")];
/// The same with scheme and host before it, as ingress-nginx writes it; the only one if it is there.
const URL: [HeaderName; 1] = [HeaderName::from_static("x-original-url")];
const HOST: [HeaderName; 1] = [HeaderName::from_static("x-forwarded-host")];
/// The true status of a refusal, whatever `deny_status` makes of it. Only answers of this route have it, so a proxy that
/// fails open can tell the 503 of a rule that fails closed from a failure of tollgate.
const STATUS: HeaderName = HeaderName::from_static("tollgate-status");
/// The longest a request is held for its turn in a leaky bucket: well within what a request has, and what a stop waits.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// The least time between two warnings about a proxy that is not trusted.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);
/// What a request line may hold, and our reader of them does not.
const ODD: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'`').add(b'{').add(b'}');

/// Who asks for whom.
#[derive(Debug)]
pub(crate) struct Gate {
    identify: Identify,
    untrusted: AtomicU64,
    invalid: AtomicU64,
    /// When the last warning was logged, in microseconds; `i64::MIN` before the first.
    warned_at: AtomicI64,
}

impl Gate {
    /// A gate that identifies requests like this. Where no proxy is trusted, those on this machine are.
    pub(crate) fn new(identify: Identify) -> Self {
        Gate {
            identify: identify.or_local_proxies().peer(peer),
            untrusted: AtomicU64::new(0),
            invalid: AtomicU64::new(0),
            warned_at: AtomicI64::new(i64::MIN),
        }
    }

    /// Whether a peer with this address is a trusted proxy.
    pub(crate) fn trusts(&self, peer: IpAddr) -> bool {
        self.identify.trusts(peer)
    }

    /// Requests that were rejected before they were decided, by reason.
    pub(crate) fn rejected(&self) -> [(&'static str, u64); 2] {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [("untrusted_proxy", count(&self.untrusted)), ("bad_request", count(&self.invalid))]
    }

    /// Puts method and target of the request that a proxy asks about in the place of its own.
    fn admit(&self, asked: &mut Parts, now: Timestamp) -> Result<(), Problem> {
        if !self.identify.trusts_peer(asked) {
            self.untrusted.fetch_add(1, Ordering::Relaxed);
            self.warn(asked, now);
            return Err(untrusted(asked));
        }
        let read = method(&asked.headers).and_then(|method| Ok((method, uri(&asked.headers)?)));
        (asked.method, asked.uri) = read.inspect_err(|_| {
            self.invalid.fetch_add(1, Ordering::Relaxed);
        })?;
        Ok(())
    }

    /// Clients of such a proxy are all refused, and only its operator can change that.
    fn warn(&self, asked: &Parts, now: Timestamp) {
        let (now, last) = (now.as_micros(), self.warned_at.load(Ordering::Relaxed));
        let is_due = last == i64::MIN || Duration::from_micros(now.abs_diff(last)) >= WARNING_INTERVAL;
        let is_ours =
            || self.warned_at.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_due && is_ours() {
            let rejected = self.untrusted.load(Ordering::Relaxed);
            tracing::warn!(
                peer = peer_name(asked),
                rejected,
                "forward-auth from a proxy that is not trusted: its requests are refused; if it is yours, name it in \
                 `trusted_proxies` of [identify] or with --trusted-proxies"
            );
        }
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new(Identify::new())
    }
}

fn peer(request: &Parts) -> Option<IpAddr> {
    request.extensions.get().map(|Peer(peer)| peer.ip())
}

/// Decide the request that a proxy asks about, found in its headers, and charge it if it may pass.
#[utoipa::path(method(get, head, post, put, patch, delete, options), path = "/v1/authz", tag = "decisions",
    params(
        ("deny_status" = Option<u16>, Query, minimum = 400, maximum = 499,
            description = "the status of every refusal; the true one is in `tollgate-status`, with or without this parameter"),
        ("X-Forwarded-Method" = Option<String>, Header, description = "or `X-Original-Method`"),
        ("X-Forwarded-Uri" = Option<String>, Header, description = "or `X-Original-URI`, or `X-Original-URL`"),
        ("X-Forwarded-Host" = Option<String>, Header),
        ("X-Forwarded-For" = Option<String>, Header),
    ),
    responses(
        (status = 200, description = "it may pass"),
        (status = 400, description = "the proxy does not say what it is asked for, or the cost is invalid"),
        (status = 401, description = "not a trusted proxy"),
        (status = 403, description = "a rule denies it"),
        (status = 429, description = "a limit is used up"),
        (status = "4XX", description = "any of these answers but 200, with the status that `deny_status` names"),
        (status = 503, description = "the store is unavailable, and a rule fails closed"),
    ))]
pub(super) async fn authz(State(app): State<App>, request: Request) -> Response<Body> {
    let (asked, _) = request.into_parts();
    match deny_status(&asked.uri) {
        Ok(status) => {
            let response = app.answer_proxy(asked).await.unwrap_or_else(Problem::into_response);
            if response.status().is_success() { response } else { with_status(response, status) }
        }
        Err(problem) => with_status(problem.into_response(), None),
    }
}

/// The answer to a request that is rejected before it reaches its route; at forward-auth with the status that it asks for.
pub(crate) fn rejected(uri: &Uri, problem: Problem) -> Response<Body> {
    let refusal = problem.into_response();
    match uri.path() == PATH {
        true => with_status(refusal, deny_status(uri).ok().flatten()),
        false => refusal,
    }
}

impl App {
    async fn answer_proxy(&self, mut asked: Parts) -> Result<Response<Body>, Problem> {
        self.gate.admit(&mut asked, self.limiter.clock().now())?;
        let facts = self.gate.identify.describe(&asked);
        let (answer, id) = self.admit(&facts).await;
        let decided = answer.request(&facts);
        let headers = self.headers.headers(&answer, answer.rules(), Some(&decided), answer.at());
        if !answer.allowed() {
            return Ok(Refusal::of(&answer, headers, id).into_response(Protocol::Http).map(Body::from));
        }
        if answer.delay() > Micros::ZERO {
            self.limiter.clock().sleep(answer.delay()).await;
        }
        let mut response = Response::new(Body::empty());
        if let Some(values) = headers {
            write_headers(values, response.headers_mut());
        }
        Ok(response)
    }

    /// Decides a request that can be held, and remembers that under a name.
    async fn admit(&self, facts: &Descriptor<'_>) -> (Answer, String) {
        let clock = self.limiter.clock();
        let started = clock.stopwatch_nanos();
        let answer = self.limiter.request(facts).max_wait(MAX_WAIT).check().await;
        let took = Duration::from_nanos(clock.stopwatch_nanos().saturating_sub(started));
        let id = self.ids.next();
        self.record(&answer.request(facts), &answer, &id, 1, took);
        (answer, id)
    }
}

/// `?deny_status=403`, for proxies that pass no other refusal on. Only a 4xx: proxies that fail open let a request pass on a
/// 5xx, so a refusal must never have one.
fn deny_status(uri: &Uri) -> Result<Option<StatusCode>, Problem> {
    let number = Query::parse(uri, &["deny_status"])?.number("deny_status", 400..=499)?;
    Ok(number.and_then(|number| StatusCode::from_u16(u16::try_from(number).ok()?).ok()))
}

/// The status with which forward-auth refuses a request that is rejected with this status before it is parsed; none if
/// the request is for another route. This takes the bytes of the request line, or their beginning.
pub(crate) fn refusal_status(request_line: &[u8], status: StatusCode) -> Option<StatusCode> {
    let target = request_line.split(|byte| *byte == b' ').nth(1)?;
    let uri = Uri::try_from(target).ok().filter(|uri| uri.path() == PATH)?;
    Some(deny_status(&uri).ok().flatten().unwrap_or(status))
}

/// The same refusal with its status in `tollgate-status`, and under another status if one is asked for.
fn with_status(mut refusal: Response<Body>, status: Option<StatusCode>) -> Response<Body> {
    let code = HeaderValue::from(refusal.status().as_u16());
    refusal.headers_mut().insert(STATUS, code);
    if let Some(status) = status {
        *refusal.status_mut() = status;
    }
    refusal
}

fn peer_name(request: &Parts) -> String {
    peer(request).map_or_else(|| "an unknown peer".to_owned(), |peer| peer.to_canonical().to_string())
}

fn untrusted(request: &Parts) -> Problem {
    let detail = format!(
        "only trusted proxies may ask for others, and {} is none; name it in `trusted_proxies` of [identify], or ask \
         from this machine where none is named",
        peer_name(request)
    );
    Problem::new(StatusCode::UNAUTHORIZED, "not a trusted proxy", detail)
}

fn method(headers: &HeaderMap) -> Result<Method, Problem> {
    let said = said(headers, &METHOD)?.ok_or_else(|| missing(&METHOD))?;
    Method::from_bytes(said).map_err(|_| bad(&METHOD, "a method such as GET"))
}

/// Path and query, and the host where the proxy says it.
fn uri(headers: &HeaderMap) -> Result<Uri, Problem> {
    let (said_target, url_host) = target(headers)?;
    // A fragment is no part of a request, and applications cut it off: `/login#` is `/login`.
    let said_target = said_target.split(|byte| *byte == b'#').next().unwrap_or_default();
    let target = percent_encode(said_target, ODD).to_string();
    let expected = || bad(&TARGET, "a path such as /api/search?q=1");
    if !target.starts_with('/') {
        return Err(expected());
    }
    let mut parts = axum::http::uri::Parts::default();
    parts.path_and_query = Some(target.parse::<PathAndQuery>().map_err(|_| expected())?);
    if let Some(host) = host(headers, url_host)? {
        let host = Authority::try_from(host).map_err(|_| bad(&HOST, "a host such as example.com"))?;
        parts.authority = Some(host);
        parts.scheme = Some(axum::http::uri::Scheme::HTTP);
    }
    Uri::from_parts(parts).map_err(|_| expected())
}

/// The path, and the host, which may be empty, if it is in a URL. A URL stands alone: beside it, one of the two would be the client's.
fn target(headers: &HeaderMap) -> Result<(&[u8], Option<&[u8]>), Problem> {
    match (said(headers, &TARGET)?, said(headers, &URL)?) {
        (Some(target), None) => Ok((target, None)),
        (None, Some(url)) => {
            let expected = || bad(&URL, "a URL such as https://example.com/api/search?q=1");
            let rest = url
                .strip_prefix(b"https://")
                .or_else(|| url.strip_prefix(b"http://"))
                .ok_or_else(expected)?;
            let path = rest.iter().position(|byte| *byte == b'/').ok_or_else(expected)?;
            let (host, path) = rest.split_at(path);
            Ok((path, Some(host)))
        }
        (Some(_), Some(_)) => Err(conflict(&[&TARGET[..], &URL].concat())),
        (None, None) => Err(missing(&[&TARGET[..], &URL].concat())),
    }
}

fn host<'h>(headers: &'h HeaderMap, in_url: Option<&'h [u8]>) -> Result<Option<&'h [u8]>, Problem> {
    match (said(headers, &HOST)?, in_url) {
        (Some(said), Some(in_url)) if !said.eq_ignore_ascii_case(in_url) => {
            Err(conflict(&[&HOST[..], &URL].concat()))
        }
        (said, in_url) => Ok(in_url.or(said).filter(|host| !host.is_empty())),
    }
}

/// What the headers of these names say, all of them the same. A proxy writes one of them; the other may be the client's.
fn said<'h>(headers: &'h HeaderMap, names: &[HeaderName]) -> Result<Option<&'h [u8]>, Problem> {
    let mut lines = names.iter().flat_map(|name| headers.get_all(name)).map(HeaderValue::as_bytes);
    let first = lines.next();
    if lines.any(|other| Some(other) != first) {
        return Err(conflict(names));
    }
    Ok(first)
}

fn conflict(names: &[HeaderName]) -> Problem {
    let detail =
        format!("{} say different things; have the proxy set one and remove the others", list(names));
    Problem::bad_header(detail)
}

fn missing(names: &[HeaderName]) -> Problem {
    Problem::bad_header(format!("the proxy does not say what it is asked for; have it set {}", list(names)))
}

fn bad(names: &[HeaderName], expected: &str) -> Problem {
    Problem::bad_header(format!("{}: expected {expected}", list(names)))
}

fn list(names: &[HeaderName]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(" or ")
}

#[cfg(test)]
mod tests;
