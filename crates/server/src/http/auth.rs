//! Who may do what: each route names the role that it needs, and a request shows a token of that role, or the session cookie
//! of a user who signed in with one.
//!
//! A token is sent on purpose. A cookie is sent by the browser whichever page asks, so a request with one has to come from the
//! dashboard itself: the page's host is this server (a foreign name that resolves to 127.0.0.1 is not), and the browser says
//! that the request is same-origin.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{Extensions, HeaderMap, HeaderName, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use tollgate::{Clock, Gate, MemoryStore, Micros};

use super::problem::Problem;
use super::sessions::Sessions;
use super::tokens::{Digest, Role, Token, Tokens, digest};

/// Wrong tokens and codes from one network. A right one passes all the same: many callers may share an address, and none of
/// them may shut the others out.
const TRIES: &str = "10/min burst 10";
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const HINT: &str = "send a token, `Authorization: Bearer SECRET`: a line of the token file without its name and role. The \
                    server created such a file when it first started, `token` in its data directory. In a browser, sign \
                    in with the link that the server prints at start, or with a new one: `tollgate dashboard`";

/// The other end of the connection that a request came by; of a Unix socket 127.0.0.1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// The tokens that are accepted, and the names under which a browser may reach the dashboard.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Where tokens come from. The first one also signs login links.
    pub tokens: Vec<Tokens>,
    /// Names besides `localhost`; addresses are always accepted.
    pub hosts: Vec<String>,
}

/// What guards of routes share.
#[derive(Debug)]
pub(crate) struct Auth {
    access: Access,
    pub(super) sessions: Sessions,
    tries: Gate<MemoryStore>,
    /// Whether a `check` token was ever there. Removing the last one must not open the checks to everybody.
    checks_are_closed: AtomicBool,
}

/// Who shows a credential.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The name of its token: the actor in the history of rules.
    pub(super) name: Arc<str>,
    pub(super) role: Role,
    pub(super) token: Digest,
}

/// Whose reservations are bounded together: those of a token, else those of a network.
#[derive(Debug)]
pub(super) struct CallerKey(pub(super) String);

impl<S: Sync> FromRequestParts<S> for CallerKey {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(CallerKey(match (parts.extensions.get::<Caller>(), parts.extensions.get::<Peer>()) {
            (Some(caller), _) => format!("token {}", caller.name),
            (None, Some(Peer(peer))) => format!("address {}", network(peer.ip())),
            (None, None) => "unknown".to_owned(),
        }))
    }
}

impl From<Token> for Caller {
    fn from(token: Token) -> Self {
        Caller { name: token.name, role: token.role, token: token.digest }
    }
}

impl Caller {
    /// Who uses the API without a listener, as the history calls it.
    pub(super) fn in_process(name: &str) -> Self {
        Caller { name: name.into(), role: Role::Write, token: Digest::default() }
    }
}

impl Auth {
    pub(super) fn new(access: Access, clock: Clock) -> Self {
        let limit = TRIES.parse().expect("a limit that is a constant");
        Auth {
            access,
            sessions: Sessions::new(clock),
            tries: Gate::new(limit, MemoryStore::new()),
            checks_are_closed: AtomicBool::new(false),
        }
    }

    /// Whether checks need no credential: there never was a token with the role `check`.
    pub(crate) fn checks_are_open(&self) -> bool {
        if self.checks_are_closed.load(Ordering::Relaxed) {
            return false;
        }
        let closed = self.access.tokens.iter().any(|tokens| tokens.with_role(Role::Check).is_some());
        self.checks_are_closed.fetch_or(closed, Ordering::Relaxed);
        !closed
    }

    /// The token that login links of the first screen stand for.
    pub(super) fn own_token(&self) -> Option<Digest> {
        self.access.tokens.first()?.with_role(Role::Write).map(|token| token.digest)
    }

    /// The token with this digest, as the files are now.
    pub(super) fn token(&self, digest: &Digest) -> Option<Caller> {
        self.access.tokens.iter().find_map(|tokens| tokens.find(digest)).map(Caller::from)
    }

    /// Counts a wrong secret against the network that it came from.
    pub(super) async fn wrong_secret(&self, peer: Option<IpAddr>, problem: Problem) -> Problem {
        let from = peer.map_or_else(|| "unknown".to_owned(), |peer| network(peer).to_string());
        let tries = self.tries.allow(&from).await;
        if tries.allowed() {
            return problem;
        }
        let seconds = tries.retry_after().unwrap_or(Micros::ZERO).ceil_secs().max(1);
        let detail = format!("too many wrong tokens came from this address; wait {seconds} s");
        Problem::new(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens", detail).retry_after(seconds)
    }

    /// The caller of a route that needs a role; `None` where checks are open.
    async fn admit(&self, needed: Role, request: &Parts) -> Result<Option<Caller>, Problem> {
        let headers = &request.headers;
        let caller = match bearer(headers) {
            _ if needed == Role::Check && self.checks_are_open() => return Ok(None),
            Some(secret) => match self.token(&digest(secret)) {
                Some(caller) => caller,
                None => {
                    let problem = unauthorized("the token is not known here; look for it in the token file");
                    return Err(self.wrong_secret(peer(&request.extensions), problem).await);
                }
            },
            // The data plane has no pages.
            None if matches!(needed, Role::Check | Role::Settle) => return Err(unauthorized(HINT)),
            None => self.signed_in(request)?,
        };
        if !caller.role.allows(needed) {
            let detail = format!(
                "the token `{}` has the role `{}`; this needs one with the role {}",
                caller.name,
                caller.role,
                needed.accepted()
            );
            return Err(Problem::new(StatusCode::FORBIDDEN, "not with this token", detail));
        }
        if needed == Role::Write {
            sends_json(&request.method, headers)?;
        }
        Ok(Some(caller))
    }

    /// Who signed in, by the session cookie.
    fn signed_in(&self, request: &Parts) -> Result<Caller, Problem> {
        let session = session_cookie(&request.headers, &request.uri).ok_or_else(|| unauthorized(HINT))?;
        let token = self.sessions.token(session).and_then(|token| self.token(&token));
        let caller = token.ok_or_else(|| unauthorized("the session has ended; sign in again"))?;
        self.require_own_page(&request.method, &request.headers, &request.uri, Unlabelled::Refused)?;
        Ok(caller)
    }

    /// Refuses what a page of another site has a browser send.
    pub(super) fn require_own_page(
        &self,
        method: &Method,
        headers: &HeaderMap,
        uri: &Uri,
        unlabelled: Unlabelled,
    ) -> Result<(), Problem> {
        let host = host(headers, uri).unwrap_or_default();
        if !self.is_known_host(host) {
            let detail = format!(
                "this server is not known as `{host}`; use localhost or an address, or start it with --admin-host"
            );
            return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "not this server", detail));
        }
        let only_reads = method == Method::GET || method == Method::HEAD;
        let same_origin = match (headers.get(SEC_FETCH_SITE), headers.get(ORIGIN)) {
            (Some(site), _) => site == "same-origin" || (only_reads && site == "none"),
            (None, Some(origin)) => {
                let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
                origin.is_some_and(|(_, origin)| origin == host)
            }
            (None, None) => only_reads || unlabelled == Unlabelled::Accepted,
        };
        match same_origin {
            true => Ok(()),
            false => {
                let detail = "a page of another origin sent this; only the dashboard may use its session";
                Err(Problem::new(StatusCode::FORBIDDEN, "not from this page", detail))
            }
        }
    }

    fn is_known_host(&self, host: &str) -> bool {
        let Some(name) = host_name(host) else { return false };
        let mut names = self.access.hosts.iter().map(String::as_str).chain(["localhost"]);
        // An address cannot be made to resolve to another one.
        name.parse::<IpAddr>().is_ok() || names.any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// What becomes of a change of which no header says where it comes from: no browser sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unlabelled {
    Accepted,
    Refused,
}

/// A guard in front of routes.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    pub(super) auth: Arc<Auth>,
    pub(super) needed: Role,
}

/// Lets through who may use the routes behind it.
pub(super) async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    match guard.auth.admit(guard.needed, &parts).await {
        Ok(caller) => {
            if let Some(caller) = caller {
                parts.extensions.insert(caller);
            }
            next.run(Request::from_parts(parts, body)).await
        }
        Err(problem) => problem.into_response(),
    }
}

/// A form of another site cannot have this type.
pub(super) fn sends_json(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    if [Method::GET, Method::HEAD, Method::DELETE].contains(method) {
        return Ok(());
    }
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    match kind.eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "not JSON",
            "a change is sent with `Content-Type: application/json`",
        )),
    }
}

pub(super) fn unauthorized(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "a token is needed", detail)
}

pub(super) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get().map(|Peer(peer)| peer.ip())
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// The host that a client asked: of HTTP/2 the authority, else the header.
pub(super) fn host<'r>(headers: &'r HeaderMap, uri: &'r Uri) -> Option<&'r str> {
    let header = || headers.get(HOST).and_then(|host| host.to_str().ok());
    uri.authority().map(Authority::as_str).or_else(header)
}

/// `name` or `[address]`, with a port or without: the name or the address. The parser of `http` takes more than that.
fn host_name(host: &str) -> Option<&str> {
    let (name, rest) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)).then_some(name)
}

/// The name of the session cookie. Browsers send the cookies of a host to all its ports, so the port is part of the name.
pub(super) fn cookie_name(headers: &HeaderMap, uri: &Uri) -> String {
    let port = host(headers, uri).and_then(|host| host.rsplit_once(':')?.1.parse::<u16>().ok());
    port.map_or_else(|| "tollgate-session".to_owned(), |port| format!("tollgate-session-{port}"))
}

pub(super) fn session_cookie<'r>(headers: &'r HeaderMap, uri: &Uri) -> Option<&'r str> {
    let name = cookie_name(headers, uri);
    let cookies = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs =
        cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// A client with one address of IPv6 has a /64 of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests;
