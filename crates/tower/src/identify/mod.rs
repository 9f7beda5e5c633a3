//! From a request to the facts about it.
//!
//! Three facts are always there: `ip`, `endpoint` and `method`. Everything else is added by a source: a header, an API
//! key, a path template, the host, a request extension, code. Sources are asked in the order they were added, and a
//! later one replaces what an earlier one said.

mod address;
mod config;
mod template;
mod text;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::{AUTHORIZATION, HeaderName};
use http::request::Parts;
use ipnet::IpNet;
use tollgate::Descriptor;
use tollgate::core::KeyPattern;

pub use address::ForwardingHeader;
use address::Proxies;
pub use config::{ApiKeyConfig, IdentifyConfig};
use template::Template;
pub use template::TemplateError;

/// How the facts about a request are found.
///
/// ```
/// use tollgate_tower::Identify;
///
/// # #[derive(Clone)] struct User { id: u64, plan: &'static str }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let identify = Identify::new()
///     .trusted_proxies(["10.0.0.0/8".parse()?]) // whose X-Forwarded-For is believed
///     .header("x-tenant", "tenant")?            // a header of a gateway that checked it
///     .api_key("authorization", "api_key")?     // hashed: keys are secrets
///     .path("/projects/{project}/**")?
///     .extension(|user: &User, facts| {         // what an authentication layer further out found
///         facts.set("user_id", user.id.to_string());
///         facts.set("plan", user.plan);
///     });
/// # drop(identify); Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Identify {
    peer: Option<Arc<FindPeer>>,
    proxies: Proxies,
    sources: Vec<Source>,
    warned: Arc<AtomicBool>,
}

type FindPeer = dyn Fn(&Parts) -> Option<IpAddr> + Send + Sync;
type AddFacts = dyn for<'a> Fn(&'a Parts, &mut Descriptor<'a>) + Send + Sync;

/// Where a fact comes from.
#[derive(Clone)]
enum Source {
    Header { name: HeaderName, attribute: Box<str> },
    ApiKey { name: HeaderName, attribute: Box<str> },
    Path(Template),
    Host,
    Code(Arc<AddFacts>),
}

/// Why requests cannot be identified like that, and what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentifyError {
    /// Not the name of a header.
    #[error("`{name}` cannot be the name of a header; write one like `x-user-id`")]
    Header {
        /// What was written.
        name: String,
    },
    /// Not a name that a rule could say.
    #[error("`{name}` is not an attribute's name; use letters, digits, `_`, `-` and `.`, as in `user_id`")]
    Attribute {
        /// What was written.
        name: String,
    },
    /// Not a path template.
    #[error(transparent)]
    Path(#[from] TemplateError),
    /// Neither address nor network.
    #[error(
        "trusted_proxies: `{text}` is neither an address nor a network; write `10.0.0.7` or `10.0.0.0/8`"
    )]
    Network {
        /// What was written.
        text: String,
    },
}

impl Identify {
    /// The peer's address, path and method.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes an attribute from a header.
    ///
    /// The value is believed as it is: name only headers that a layer or a gateway in front has checked or set. Of
    /// several lines the first counts, as where a handler reads it. Of `Authorization` the scheme is left out.
    ///
    /// # Errors
    ///
    /// One of the names is none.
    pub fn header(self, name: &str, attribute: &str) -> Result<Self, IdentifyError> {
        let (name, attribute) = (header_name(name)?, attribute_name(attribute)?);
        Ok(self.and(Source::Header { name, attribute }))
    }

    /// Takes an attribute from a header that holds an API key, hashed.
    ///
    /// Values show up in answers, violations and logs, and keys do not belong there. The attribute is the first 128
    /// bits of the key's SHA-256, in hexadecimal: the same on every node.
    ///
    /// # Errors
    ///
    /// One of the names is none.
    pub fn api_key(self, name: &str, attribute: &str) -> Result<Self, IdentifyError> {
        let (name, attribute) = (header_name(name)?, attribute_name(attribute)?);
        Ok(self.and(Source::ApiKey { name, attribute }))
    }

    /// Takes attributes from paths that fit a template.
    ///
    /// `/tenants/{tenant}/**` takes `tenant` from `/tenants/acme` and everything below it. `*` stands for one segment,
    /// `**` at the end for any number. Paths are normalised first, and values percent-decoded.
    ///
    /// # Errors
    ///
    /// The text is no template.
    pub fn path(self, template: &str) -> Result<Self, IdentifyError> {
        let template = Template::parse(template)?;
        Ok(self.and(Source::Path(template)))
    }

    /// Adds `host`: in lower case, without port and without the dot at the end.
    #[must_use]
    pub fn host(self) -> Self {
        self.and(Source::Host)
    }

    /// Takes the route that axum matched, such as `/users/{id}`, as an attribute: one bucket for all of a route's
    /// paths. Only layers that axum applies after routing see it: those of `Router::layer` and `route_layer`.
    ///
    /// # Errors
    ///
    /// The name is none.
    #[cfg(feature = "axum")]
    pub fn matched_path(self, attribute: &str) -> Result<Self, IdentifyError> {
        let attribute = attribute_name(attribute)?;
        Ok(self.extension(move |path: &axum::extract::MatchedPath, facts| {
            facts.set(attribute.to_string(), path.as_str());
        }))
    }

    /// Adds facts from a request extension, where there is one: what an authentication layer further out left.
    #[must_use]
    pub fn extension<T: Send + Sync + 'static>(
        self,
        add: impl for<'a> Fn(&'a T, &mut Descriptor<'a>) + Send + Sync + 'static,
    ) -> Self {
        self.with(move |request, facts| {
            if let Some(extension) = request.extensions.get::<T>() {
                add(extension, facts);
            }
        })
    }

    /// Adds facts by code.
    #[must_use]
    pub fn with(self, add: impl for<'a> Fn(&'a Parts, &mut Descriptor<'a>) + Send + Sync + 'static) -> Self {
        self.and(Source::Code(Arc::new(add)))
    }

    fn and(mut self, source: Source) -> Self {
        self.sources.push(source);
        self
    }

    /// Finds the peer's address by code.
    ///
    /// Without it the address is taken from the extensions that say it: axum's `ConnectInfo<SocketAddr>` (feature
    /// `axum`), or a `SocketAddr` of your own, which is the way for hyper. For tonic:
    ///
    /// ```
    /// use tollgate_tower::Identify;
    /// use tonic::transport::server::TcpConnectInfo;
    ///
    /// let identify = Identify::new()
    ///     .peer(|request| Some(request.extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()));
    /// # drop(identify);
    /// ```
    #[must_use]
    pub fn peer(mut self, find: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.peer = Some(Arc::new(find));
        self
    }

    /// The peers whose forwarding header is believed.
    ///
    /// The header is read from the right, where the nearest proxy wrote, for as long as the addresses are those of
    /// trusted proxies; the first other one is the client. What cannot be read ends it there. From anybody else the
    /// header counts for nothing.
    #[must_use]
    pub fn trusted_proxies(mut self, networks: impl IntoIterator<Item = IpNet>) -> Self {
        self.proxies.trust(networks);
        self
    }

    /// Which header the trusted proxies write; `X-Forwarded-For` if nobody says.
    #[must_use]
    pub const fn forwarding_header(mut self, header: ForwardingHeader) -> Self {
        self.proxies.read(header);
        self
    }

    /// Trusts proxies on this machine where no [others](Self::trusted_proxies) are named, and believes them for one hop:
    /// the last address of the header is the client's, whoever that is.
    #[must_use]
    pub const fn or_local_proxies(mut self) -> Self {
        self.proxies.or_trust_local();
        self
    }

    /// Whether a request's peer is a trusted proxy.
    pub fn trusts_peer(&self, request: &Parts) -> bool {
        self.find_peer(request).is_some_and(|peer| self.trusts(peer))
    }

    /// Whether the peer with this address is a trusted proxy.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.proxies.trust_peer(peer)
    }

    fn find_peer(&self, request: &Parts) -> Option<IpAddr> {
        self.peer.as_ref().map_or_else(|| known_peer(request), |find| find(request))
    }

    /// The facts about a request.
    pub fn describe<'a>(&'a self, request: &'a Parts) -> Descriptor<'a> {
        let mut facts = Descriptor::new();
        match self.find_peer(request) {
            Some(peer) => facts.set_ip(self.proxies.client(peer, &request.headers)),
            None => self.warn_once(),
        }
        facts.set("endpoint", request.uri.path());
        facts.set("method", request.method.as_str());
        for source in &self.sources {
            source.add(request, &mut facts);
        }
        facts
    }

    /// Rules that count by address would be skipped without anybody noticing.
    #[cold]
    fn warn_once(&self) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a request without a peer's address: rules by `ip` do not apply to it; serve axum with \
                 `into_make_service_with_connect_info::<SocketAddr>()` and the feature `axum`, or name \
                 `Identify::peer`"
            );
        }
    }
}

impl Source {
    fn add<'a>(&'a self, request: &'a Parts, facts: &mut Descriptor<'a>) {
        match self {
            Source::Header { name, attribute } => {
                if let Some(value) = credential(request, name) {
                    facts.set(&**attribute, value);
                }
            }
            Source::ApiKey { name, attribute } => {
                if let Some(key) = credential(request, name) {
                    facts.set(&**attribute, text::digest(&key));
                }
            }
            Source::Path(template) => template.add(facts),
            Source::Host => {
                if let Some(host) = text::host(request) {
                    facts.set("host", host);
                }
            }
            Source::Code(add) => add(request, facts),
        }
    }
}

/// A header's value; of `Authorization` only what is behind the scheme, however that is spelt.
fn credential<'a>(request: &'a Parts, name: &HeaderName) -> Option<std::borrow::Cow<'a, str>> {
    let value = text::value(request.headers.get(name)?);
    Some(if *name == AUTHORIZATION { text::without_scheme(value) } else { value })
}

/// The peer's address where servers leave it.
fn known_peer(request: &Parts) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(peer)) =
        request.extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(peer.ip());
    }
    request.extensions.get().map(SocketAddr::ip)
}

fn header_name(name: &str) -> Result<HeaderName, IdentifyError> {
    name.parse().map_err(|_| IdentifyError::Header { name: name.to_owned() })
}

/// A name that a key pattern can say.
fn attribute_name(name: &str) -> Result<Box<str>, IdentifyError> {
    match KeyPattern::parse(&format!("{{{name}}}")) {
        Ok(_) => Ok(name.into()),
        Err(_) => Err(IdentifyError::Attribute { name: name.to_owned() }),
    }
}

impl fmt::Debug for Identify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Identify");
        debug.field("proxies", &self.proxies).field("sources", &self.sources).finish_non_exhaustive()
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Header { name, attribute } => write!(f, "header {name} as {attribute}"),
            Source::ApiKey { name, attribute } => write!(f, "API key {name} as {attribute}"),
            Source::Path(template) => write!(f, "path {template}"),
            Source::Host => f.write_str("host"),
            Source::Code(_) => f.write_str("code"),
        }
    }
}
