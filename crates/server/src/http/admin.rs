//! Who may see and change state: whoever shows a token; while none is set, whoever sits on this machine, and no web page
//! or proxy in their name.
//!
//! Being on loopback is not enough. A web page can have its own name resolved to 127.0.0.1 and then ask in the
//! visitor's browser, which the Host gives away; it can send a form here, which the Origin gives away; and a proxy
//! on this machine makes everybody look local, which the headers it adds give away.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};

use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{FORWARDED, HOST, ORIGIN, RETRY_AFTER, VIA, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::App;
use super::problem::Problem;
use super::tokens::{Role, Shown, Tokens, network};

/// What proxies add, besides everything that begins with `x-forwarded`.
const ADDED_BY_PROXIES: [HeaderName; 8] = [
    FORWARDED,
    VIA,
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("x-client-ip"),
    HeaderName::from_static("x-cluster-client-ip"),
    HeaderName::from_static("true-client-ip"),
    HeaderName::from_static("cf-connecting-ip"),
    HeaderName::from_static("fastly-client-ip"),
];

/// The other end of the connection that a request came by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Who sends a request, to bound what one caller may keep here: the name of its token, else its address.
#[derive(Debug)]
pub(super) struct Caller(pub(super) String);

impl FromRequestParts<App> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Infallible> {
        let token = [&app.access.check, &app.access.admin].into_iter().flatten();
        let mut names = token.filter_map(|tokens| tokens.name(&parts.headers));
        let address = || match parts.extensions.get() {
            Some(Peer(peer)) => format!("address {}", network(peer.ip())),
            None => "unknown".to_owned(),
        };
        Ok(Caller(names.next().map_or_else(address, |name| format!("token {name}"))))
    }
}

/// Why a request is not believed to come from this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Stranger {
    #[error(
        "only callers on this machine may do this, and {0} is another; ask there, as in \
         `ssh HOST curl http://127.0.0.1:8081/v1/rules`, or start the server with --admin-token-file"
    )]
    Elsewhere(IpAddr),
    #[error("nobody knows where this request comes from; ask over TCP on this machine")]
    Unknown,
    #[error("the header `{0}` says that a proxy passed this on; ask the server itself, on this machine")]
    Forwarded(HeaderName),
    #[error("the Host `{0}` is not this machine's; ask http://localhost or http://127.0.0.1")]
    Host(String),
    #[error("there is no Host; ask http://localhost or http://127.0.0.1")]
    NoHost,
    #[error("a page of `{0}` sent this; only pages of http://localhost and http://127.0.0.1 may")]
    Origin(String),
}

/// What the surfaces ask of their callers.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Who may see and change state; without it, whoever is on this machine.
    pub admin: Option<Tokens>,
    /// Who may ask for decisions; without it, everybody. Tokens that may change state may ask as well.
    pub check: Option<Tokens>,
}

/// POST, and yet only looks.
const ONLY_LOOKS: [&str; 4] = ["/v1/explain", "/v1/replay", "/v1/rules/preview", "/v1/playground"];

/// Lets through who may see or change state.
pub(super) async fn guard(State(access): State<Access>, request: Request, next: Next) -> Response {
    let Some(tokens) = &access.admin else {
        return match look(&request) {
            Ok(()) => next.run(request).await,
            Err(stranger) => {
                Problem::new(StatusCode::UNAUTHORIZED, "not from this machine", stranger.to_string())
                    .into_response()
            }
        };
    };
    // A token of the other file is known, so it does not count as a wrong one.
    if is_only_in(access.check.as_ref(), tokens, request.headers()) {
        return wrong_role("this token may only ask for decisions; use one of --admin-token-file here");
    }
    let needed = role_for(request.method(), request.uri().path());
    match tokens.look(request.headers(), peer(&request)).await {
        Shown::Known(role) if role >= needed => next.run(request).await,
        Shown::Known(_) => wrong_role("this token may only look; a change takes one that may write"),
        shown => unknown(shown),
    }
}

/// Lets through who may ask for decisions.
pub(super) async fn guard_check(State(access): State<Access>, request: Request, next: Next) -> Response {
    let Some(tokens) = &access.check else { return next.run(request).await };
    // Known as one that may write, it is no wrong try here.
    if access.admin.as_ref().is_some_and(|admin| admin.knows(request.headers(), Role::Write)) {
        return next.run(request).await;
    }
    if is_only_in(access.admin.as_ref(), tokens, request.headers()) {
        let detail =
            "this token may only look; a decision takes one of --check-token-file, or one that may write";
        return wrong_role(detail);
    }
    match tokens.look(request.headers(), peer(&request)).await {
        Shown::Known(_) => next.run(request).await,
        shown => unknown(shown),
    }
}

/// Whether the token that is shown is one of the other tokens and none of these.
fn is_only_in(others: Option<&Tokens>, these: &Tokens, headers: &HeaderMap) -> bool {
    others.is_some_and(|others| others.knows(headers, Role::Read)) && !these.knows(headers, Role::Read)
}

/// To a caller whose token is known and not enough.
fn wrong_role(detail: &str) -> Response {
    Problem::new(StatusCode::FORBIDDEN, "not with this token", detail).into_response()
}

fn peer(request: &Request) -> Option<IpAddr> {
    request.extensions().get().map(|Peer(peer)| peer.ip())
}

/// What a token must allow for this.
pub(super) fn role_for(method: &Method, path: &str) -> Role {
    let looks = method == Method::GET || method == Method::HEAD || ONLY_LOOKS.contains(&path);
    if looks { Role::Read } else { Role::Write }
}

/// To a caller who showed no token, or none that is known.
fn unknown(shown: Shown) -> Response {
    if let Shown::Wait(wait) = shown {
        let seconds = wait.ceil_secs().max(1);
        let detail = format!("too many wrong tokens came from this address; wait {seconds} s");
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens", detail);
        return ([(RETRY_AFTER, HeaderValue::from(seconds))], problem).into_response();
    }
    let (challenge, detail) = match shown {
        Shown::None => ("Bearer", "send a token: `Authorization: Bearer …`"),
        _ => {
            ("Bearer error=\"invalid_token\"", "this token is not known here; look for it in the token file")
        }
    };
    let problem = Problem::new(StatusCode::UNAUTHORIZED, "a token is needed", detail);
    ([(WWW_AUTHENTICATE, HeaderValue::from_static(challenge))], problem).into_response()
}

fn look(request: &Request) -> Result<(), Stranger> {
    let Peer(peer) = request.extensions().get().ok_or(Stranger::Unknown)?;
    if !is_this_machine(peer.ip()) {
        return Err(Stranger::Elsewhere(peer.ip().to_canonical()));
    }
    let headers = request.headers();
    if let Some(name) = headers.keys().find(|name| is_added_by_proxies(name)) {
        return Err(Stranger::Forwarded(name.clone()));
    }
    look_at_hosts(headers, request.uri().authority())?;
    let stranger = headers.get_all(ORIGIN).iter().map(text).find(|origin| !is_local_origin(origin));
    stranger.map_or(Ok(()), |origin| Err(Stranger::Origin(origin)))
}

/// The Host, and what a request line that names one says; HTTP/2 has only the latter, its `:authority`.
fn look_at_hosts(headers: &HeaderMap, authority: Option<&Authority>) -> Result<(), Stranger> {
    let hosts = headers.get_all(HOST).iter().map(text);
    let mut named = hosts.chain(authority.map(Authority::to_string)).peekable();
    if named.peek().is_none() {
        return Err(Stranger::NoHost);
    }
    named.find(|host| !is_local_host(host)).map_or(Ok(()), |host| Err(Stranger::Host(host)))
}

fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

fn is_added_by_proxies(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-forwarded") || ADDED_BY_PROXIES.contains(name)
}

fn is_this_machine(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// `localhost`, `127.0.0.1:8080`, `[::1]:8080`.
fn is_local_host(text: &str) -> bool {
    let Ok(authority) = text.parse::<Authority>() else { return false };
    let host = authority.host();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_local =
        host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(is_this_machine);
    is_local && !text.contains('@')
}

/// `http://localhost:3000`; a page without an origin of its own says `null`.
fn is_local_origin(text: &str) -> bool {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    host.is_some_and(is_local_host)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn asked(peer: Option<&str>, uri: &str, headers: &[(&str, &str)]) -> Result<(), Stranger> {
        let mut request = Request::get(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::empty()).unwrap();
        if let Some(peer) = peer {
            request.extensions_mut().insert(Peer(peer.parse().unwrap()));
        }
        look(&request)
    }

    fn with(headers: &[(&str, &str)]) -> Result<(), Stranger> {
        asked(Some("127.0.0.1:50000"), "/v1/rules", headers)
    }

    #[test]
    fn only_peers_on_loopback_are_local() {
        let host = [("host", "localhost")];
        for peer in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(asked(Some(peer), "/v1/rules", &host), Ok(()), "{peer}");
        }
        for peer in ["192.0.2.7:1", "10.0.0.1:1", "[2001:db8::1]:1", "0.0.0.0:1"] {
            let told = asked(Some(peer), "/v1/rules", &host).unwrap_err();
            assert!(matches!(told, Stranger::Elsewhere(_)), "{peer}");
        }
        let told = asked(Some("[::ffff:192.0.2.7]:1"), "/v1/rules", &host).unwrap_err().to_string();
        assert!(told.contains("192.0.2.7 is another") && told.contains("ssh"), "{told}");
        assert_eq!(asked(None, "/v1/rules", &host), Err(Stranger::Unknown));
    }

    #[test]
    fn the_host_is_a_name_or_an_address_of_this_machine() {
        for host in
            ["localhost", "LocalHost:8080", "127.0.0.1", "127.1.2.3:80", "[::1]", "[::1]:8080", "localhost:"]
        {
            assert_eq!(with(&[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "evil.localhost",
            "127.0.0.1.evil.example",
            "192.0.2.7:8080",
            "0.0.0.0",
            "[::2]:8080",
            "::1",
            "localhost@evil.example",
            "evil@localhost",
            "2130706433",
            "",
        ] {
            assert_eq!(with(&[("host", host)]), Err(Stranger::Host(host.to_owned())), "{host}");
        }
        assert_eq!(with(&[]), Err(Stranger::NoHost));
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(with(&two), Err(Stranger::Host("evil.example".to_owned())));
        let line = asked(Some("127.0.0.1:1"), "http://evil.example/v1/rules", &[("host", "localhost")]);
        assert_eq!(line, Err(Stranger::Host("evil.example".to_owned())));
        assert_eq!(
            asked(Some("127.0.0.1:1"), "http://localhost:8080/v1/rules", &[]),
            Ok(()),
            "as over HTTP/2"
        );
        let line = asked(Some("127.0.0.1:1"), "http://evil.example/v1/rules", &[]);
        assert_eq!(line, Err(Stranger::Host("evil.example".to_owned())));
    }

    #[test]
    fn a_page_from_elsewhere_may_not() {
        for origin in ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:8080"] {
            assert_eq!(with(&[("host", "localhost"), ("origin", origin)]), Ok(()), "{origin}");
        }
        for origin in
            ["https://evil.example", "null", "", "localhost", "file://localhost", "http://localhost.evil"]
        {
            let told = with(&[("host", "localhost"), ("origin", origin)]);
            assert_eq!(told, Err(Stranger::Origin(origin.to_owned())), "{origin}");
        }
    }

    #[test]
    fn what_a_proxy_passed_on_is_never_local() {
        for name in [
            "x-forwarded-for",
            "X-Forwarded-Host",
            "x-forwarded",
            "forwarded",
            "via",
            "x-real-ip",
            "cf-connecting-ip",
        ] {
            let told = with(&[("host", "localhost"), (name, "127.0.0.1")]).unwrap_err();
            assert!(matches!(told, Stranger::Forwarded(_)), "{name}");
        }
        assert_eq!(with(&[("host", "localhost"), ("x-request-id", "1")]), Ok(()));
    }
}
