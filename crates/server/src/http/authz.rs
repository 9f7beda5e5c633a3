//! `ANY /v1/authz`: forward-auth. A proxy asks before it passes a request on.
//!
//! The facts are found as the middleware finds them, in the request that the proxy tells about: its method and path are
//! in `X-Forwarded-Method` and `X-Forwarded-Uri` (Caddy, Traefik) or `X-Original-Method` and `X-Original-URI` (nginx), its
//! host in `X-Forwarded-Host`, its headers beside them. Anybody could write these, so only trusted proxies are heard.

use std::net::IpAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::uri::{Authority, PathAndQuery};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use tollgate::{Answer, Descriptor, Micros};
use tollgate_tower::{Identify, Protocol, Refusal, write_headers};

use super::App;
use super::admin::Peer;
use super::problem::{Problem, ProblemBody};
use super::query::Query;

/// What a proxy says about the request it has; the first name wins nothing, they must agree.
const METHOD: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-method"), HeaderName::from_static("x-original-method")];
const TARGET: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-uri"), HeaderName::from_static("x-original-uri")];
const HOST: [HeaderName; 1] = [HeaderName::from_static("x-forwarded-host")];
/// What the status would have been, where the proxy cannot pass it on.
const STATUS: HeaderName = HeaderName::from_static("tollgate-status");
/// The longest a request is held for its turn in a leaky bucket: well within what a request has, and what a stop waits.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// What a request line may hold, and our reader of them does not.
const ODD: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'`').add(b'{').add(b'}').add(b'#');

/// Who asks for whom.
#[derive(Debug)]
pub(crate) struct Gate(Identify);

impl Gate {
    /// A gate that identifies requests like this. Where no proxy is trusted, those on this machine are.
    pub(crate) fn new(identify: Identify) -> Self {
        Gate(identify.or_local_proxies().peer(peer))
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
        ("deny_status" = Option<u16>, Query, minimum = 400, maximum = 599,
            description = "the status of every refusal; the true one is in `tollgate-status`"),
        ("X-Forwarded-Method" = Option<String>, Header, description = "or `X-Original-Method`"),
        ("X-Forwarded-Uri" = Option<String>, Header, description = "or `X-Original-URI`"),
        ("X-Forwarded-Host" = Option<String>, Header),
        ("X-Forwarded-For" = Option<String>, Header),
    ),
    responses(
        (status = 200, description = "it may pass"),
        (status = 400, description = "the proxy does not say what it is asked for, or the cost is invalid", body = ProblemBody,
            content_type = "application/problem+json"),
        (status = 401, description = "not a trusted proxy", body = ProblemBody,
            content_type = "application/problem+json"),
        (status = 403, description = "a rule denies it", body = ProblemBody,
            content_type = "application/problem+json"),
        (status = 429, description = "a limit is used up", body = ProblemBody,
            content_type = "application/problem+json"),
        (status = 503, description = "the store is away, and a rule lets nothing pass then", body = ProblemBody,
            content_type = "application/problem+json"),
    ))]
pub(super) async fn authz(State(app): State<App>, request: Request) -> Result<Response<Body>, Problem> {
    let Gate(identify) = &*app.gate;
    let (mut asked, _) = request.into_parts();
    let deny_status = deny_status(&asked.uri)?;
    if !identify.trusts_peer(&asked) {
        return Err(stranger(&asked));
    }
    asked.method = method(&asked.headers)?;
    asked.uri = uri(&asked.headers)?;
    let facts = identify.describe(&asked);
    let (answer, id) = app.admit(&facts).await;
    let decided = answer.request(&facts);
    let headers = app.headers.headers(&answer, answer.rules(), Some(&decided), answer.at());
    if !answer.allowed() {
        let refusal = Refusal::of(&answer, headers, id).into_response(Protocol::Http);
        return Ok(in_disguise(refusal, deny_status).map(Body::from));
    }
    if answer.delay() > Micros::ZERO {
        app.limiter.clock().sleep(answer.delay()).await;
    }
    let mut response = Response::new(Body::empty());
    if let Some(values) = headers {
        write_headers(values, response.headers_mut());
    }
    Ok(response)
}

impl App {
    /// Decides a request that can be held, and remembers that under a name.
    async fn admit(&self, facts: &Descriptor<'_>) -> (Answer, String) {
        let clock = self.limiter.clock();
        let started = clock.stopwatch_nanos();
        let answer = self.limiter.check_within(facts, 1, MAX_WAIT.into()).await;
        let took = Duration::from_nanos(clock.stopwatch_nanos().saturating_sub(started));
        let id = self.ids.next();
        self.record(&answer.request(facts), &answer, &id, 1, took);
        (answer, id)
    }
}

/// `?deny_status=403`, for proxies that know no other no.
fn deny_status(uri: &Uri) -> Result<Option<StatusCode>, Problem> {
    let number = Query::parse(uri, &["deny_status"])?.number("deny_status", 400..=599)?;
    Ok(number.and_then(|number| StatusCode::from_u16(u16::try_from(number).ok()?).ok()))
}

/// The same answer under another status; the true one is in `tollgate-status`.
fn in_disguise(mut refusal: Response<Vec<u8>>, status: Option<StatusCode>) -> Response<Vec<u8>> {
    if let Some(status) = status {
        let code = HeaderValue::from(refusal.status().as_u16());
        refusal.headers_mut().insert(STATUS, code);
        *refusal.status_mut() = status;
    }
    refusal
}

fn stranger(request: &Parts) -> Problem {
    let who =
        peer(request).map_or_else(|| "nobody knows who".to_owned(), |peer| peer.to_canonical().to_string());
    let detail = format!(
        "only trusted proxies may ask for others, and {who} is none; name it in `trusted_proxies` of [identify], or ask \
         from this machine where none is named"
    );
    Problem::new(StatusCode::UNAUTHORIZED, "not a trusted proxy", detail)
}

fn method(headers: &HeaderMap) -> Result<Method, Problem> {
    let said = said(headers, &METHOD)?.ok_or_else(|| missing(&METHOD))?;
    Method::from_bytes(said).map_err(|_| bad(&METHOD, "a method such as GET"))
}

/// Path and query, and the host where the proxy says it.
fn uri(headers: &HeaderMap) -> Result<Uri, Problem> {
    let said_target = said(headers, &TARGET)?.ok_or_else(|| missing(&TARGET))?;
    let target = percent_encode(said_target, ODD).to_string();
    let expected = || bad(&TARGET, "a path such as /api/search?q=1");
    if !target.starts_with('/') {
        return Err(expected());
    }
    let mut parts = axum::http::uri::Parts::default();
    parts.path_and_query = Some(target.parse::<PathAndQuery>().map_err(|_| expected())?);
    if let Some(host) = said(headers, &HOST)? {
        let host = Authority::try_from(host).map_err(|_| bad(&HOST, "a host such as example.com"))?;
        parts.authority = Some(host);
        parts.scheme = Some(axum::http::uri::Scheme::HTTP);
    }
    Uri::from_parts(parts).map_err(|_| expected())
}

/// What the headers of these names say, all of them the same. A proxy writes one of them; the other may be the client's.
fn said<'h>(headers: &'h HeaderMap, names: &[HeaderName]) -> Result<Option<&'h [u8]>, Problem> {
    let mut lines = names.iter().flat_map(|name| headers.get_all(name)).map(HeaderValue::as_bytes);
    let first = lines.next();
    if lines.any(|other| Some(other) != first) {
        let detail =
            format!("{} say different things; have the proxy set one and remove the other", list(names));
        return Err(Problem::bad_header(detail));
    }
    Ok(first)
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
