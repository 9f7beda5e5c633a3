//! Where Redis is, read from a URL.
//!
//! | URL | |
//! |---|---|
//! | `redis://`, `rediss://`, `unix://` | one Redis |
//! | `redis-sentinel://h1,h2,h3/name` | whatever primary the sentinels name; `?db=`, `?sentinel_user=`, `?sentinel_pass=` |
//! | `redis-cluster://h1,h2,…` | a Cluster, known by some of its nodes |
//!
//! `rediss-sentinel://` and `rediss-cluster://` are the same over TLS, towards sentinels as towards nodes.

use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _};

/// A URL that may hold a password, which is never shown.
#[derive(Clone)]
pub(super) struct Url(pub(super) String);

/// What a URL says.
#[derive(Debug, Clone)]
pub(crate) enum Address {
    /// One Redis.
    One(ConnectionInfo),
    /// The primary of a name.
    Sentinel {
        /// Who knows it.
        sentinels: Vec<ConnectionInfo>,
        /// The name.
        name: String,
        /// How to speak to the primary, wherever it is.
        node: ConnectionInfo,
    },
    /// Some of the nodes of a Cluster.
    Cluster(Vec<ConnectionInfo>),
}

impl Address {
    /// Any of its addresses: they all speak TLS, or none does.
    pub(super) fn any(&self) -> &ConnectionInfo {
        match self {
            Address::One(info) | Address::Sentinel { node: info, .. } => info,
            Address::Cluster(nodes) => &nodes[0],
        }
    }
}

/// The parts of a URL of several hosts.
struct Several<'u> {
    scheme: &'static str,
    login: &'u str,
    hosts: Vec<&'u str>,
    path: &'u str,
    query: Vec<(&'u str, &'u str)>,
}

impl Url {
    /// What the URL says.
    ///
    /// # Errors
    ///
    /// What is wrong with it, without a word of it that may be secret.
    pub(super) fn address(&self) -> Result<Address, String> {
        if self.0.ends_with("#insecure") {
            return Err("certificates are always checked; name your authority instead".to_owned());
        }
        let (scheme, rest) = self.0.split_once("://").unwrap_or_default();
        match scheme {
            "redis-sentinel" => sentinel(&Several::read("redis", rest)?),
            "rediss-sentinel" => sentinel(&Several::read("rediss", rest)?),
            "redis-cluster" => cluster(&Several::read("redis", rest)?),
            "rediss-cluster" => cluster(&Several::read("rediss", rest)?),
            _ => info(&self.0).map(Address::One),
        }
    }

    /// The URL with its passwords masked, in the authority as in the query.
    pub(super) fn shown(&self) -> String {
        let Some((scheme, rest)) = self.0.split_once("://") else { return "***".to_owned() };
        // The last `@` ends the login, even where a password was not encoded.
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) if !scheme.ends_with("unix") => {
                let user = login.split_once(':').map_or("", |(user, _)| user);
                (format!("{user}:***@"), rest)
            }
            _ => (String::new(), rest),
        };
        let path = match rest.split_once('?') {
            Some((path, query)) => {
                let mask = |pair: &str| match pair.split_once('=') {
                    Some((name @ ("pass" | "password" | "sentinel_pass"), _)) => format!("{name}=***"),
                    _ => pair.to_owned(),
                };
                format!("{path}?{}", query.split('&').map(mask).collect::<Vec<_>>().join("&"))
            }
            None => rest.to_owned(),
        };
        format!("{scheme}://{login}{path}")
    }
}

impl<'u> Several<'u> {
    fn read(scheme: &'static str, rest: &'u str) -> Result<Self, String> {
        let (login, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts: Vec<&str> = hosts.split(',').collect();
        if hosts.iter().any(|host| host.is_empty()) {
            return Err("a host is missing; write host1:port,host2:port".to_owned());
        }
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let query = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
        Ok(Several { scheme, login, hosts, path, query })
    }

    /// One of the hosts, with a login, at its port or the usual one.
    fn host(&self, host: &str, login: &str, usual_port: u16) -> Result<ConnectionInfo, String> {
        let at = if login.is_empty() { "" } else { "@" };
        let name_ends = host.rfind(']').unwrap_or(0);
        let port = if host[name_ends..].contains(':') { String::new() } else { format!(":{usual_port}") };
        info(&format!("{}://{login}{at}{host}{port}", self.scheme))
    }

    fn parameter(&self, name: &str) -> Option<&'u str> {
        self.query.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }

    /// Whether there is nothing in the query that nobody reads.
    fn knows_only(&self, names: &[&str]) -> Result<(), String> {
        match self.query.iter().find(|(name, _)| !names.contains(name)) {
            None => Ok(()),
            Some(_) if names.is_empty() => Err("it takes no parameters after a question mark".to_owned()),
            Some(_) => Err(format!("its parameters are {}", names.join(", "))),
        }
    }
}

fn sentinel(url: &Several<'_>) -> Result<Address, String> {
    url.knows_only(&["db", "sentinel_user", "sentinel_pass"])?;
    if url.path.is_empty() || url.path.contains('/') {
        return Err("the name of the primary is missing; write redis-sentinel://host1,host2/NAME".to_owned());
    }
    let login = match (url.parameter("sentinel_user"), url.parameter("sentinel_pass")) {
        (None, None) => String::new(),
        (user, password) => format!("{}:{}", user.unwrap_or_default(), password.unwrap_or_default()),
    };
    let sentinels = url.hosts.iter().map(|host| url.host(host, &login, 26379)).collect::<Result<_, _>>()?;
    let node = url.host(url.hosts[0], url.login, 6379)?;
    let db = url.parameter("db").unwrap_or("0").parse().map_err(|_| "`db` is no number".to_owned())?;
    let settings = node.redis_settings().clone().set_db(db);
    Ok(Address::Sentinel { sentinels, name: url.path.to_owned(), node: node.set_redis_settings(settings) })
}

fn cluster(url: &Several<'_>) -> Result<Address, String> {
    url.knows_only(&[])?;
    if !matches!(url.path, "" | "0") {
        return Err("a Cluster has one database, 0; leave the path out".to_owned());
    }
    let nodes = url.hosts.iter().map(|host| url.host(host, url.login, 6379));
    nodes.collect::<Result<_, _>>().map(Address::Cluster)
}

fn info(url: &str) -> Result<ConnectionInfo, String> {
    let info = url.into_connection_info().map_err(|error| plain(&error))?;
    Ok(info.set_tcp_settings(TcpSettings::default().set_nodelay(true)))
}

/// The same at another address, over TLS or not as before.
pub(crate) fn at(info: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let address = match info.addr() {
        ConnectionAddr::TcpTls { .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(address)
}

/// What an error of the client says, without whatever was in the URL.
pub(super) fn plain(error: &redis::RedisError) -> String {
    error.detail().unwrap_or_else(|| error.category()).to_owned()
}

impl std::fmt::Debug for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Result<Address, String> {
        Url(url.to_owned()).address()
    }

    fn addresses(infos: &[ConnectionInfo]) -> Vec<String> {
        infos.iter().map(|info| info.addr().to_string()).collect()
    }

    #[test]
    fn no_password_is_ever_shown() {
        for (url, shown) in [
            ("redis://localhost:6379/0", "redis://localhost:6379/0"),
            ("redis://:s3cret@localhost", "redis://:***@localhost"),
            ("rediss://app:s3cr@t@host:6380/2", "rediss://app:***@host:6380/2"),
            ("redis://s3cret@host", "redis://:***@host"),
            ("unix:///run/redis.sock?db=1&pass=s3cret", "unix:///run/redis.sock?db=1&pass=***"),
            ("redis://:s3cret/more@host", "redis://:***@host"),
            ("redis://:s3cret?more@host", "redis://:***@host"),
            ("unix:///run/redis.sock?pass=a@s3cret", "unix:///run/redis.sock?pass=***"),
            (
                "redis-sentinel://u:s3cret@a,b/main?db=1&sentinel_pass=s3cret",
                "redis-sentinel://u:***@a,b/main?db=1&sentinel_pass=***",
            ),
            ("s3cret", "***"),
        ] {
            assert_eq!(Url(url.to_owned()).shown(), shown);
            assert!(!format!("{:?}", Url(url.to_owned())).contains("s3cr"), "{url}");
        }
    }

    #[test]
    fn sentinels_and_the_primary_have_ports_and_logins_of_their_own() {
        let address =
            address("redis-sentinel://app:s@a,b:5000,[::1]/main?db=2&sentinel_user=w&sentinel_pass=x");
        let Ok(Address::Sentinel { sentinels, name, node }) = address else { panic!("{address:?}") };
        assert_eq!(addresses(&sentinels), ["a:26379", "b:5000", "::1:26379"]);
        assert_eq!(name, "main");
        let (watch, app) = (sentinels[0].redis_settings(), node.redis_settings());
        assert_eq!((watch.username(), watch.password(), watch.db()), (Some("w"), Some("x"), 0));
        assert_eq!((app.username(), app.password(), app.db()), (Some("app"), Some("s"), 2));
    }

    #[test]
    fn a_cluster_is_some_of_its_nodes_with_one_login() {
        let address = address("rediss-cluster://:s@a,b:7001");
        let Ok(Address::Cluster(nodes)) = address else { panic!("{address:?}") };
        assert_eq!(addresses(&nodes), ["a:6379", "b:7001"]);
        assert!(nodes.iter().all(|node| matches!(node.addr(), ConnectionAddr::TcpTls { .. })));
        assert!(nodes.iter().all(|node| node.redis_settings().password() == Some("s")));
    }

    #[test]
    fn what_is_missing_is_said_and_what_is_secret_is_not() {
        for (url, says) in [
            ("redis-sentinel://a,b", "name of the primary"),
            ("redis-sentinel://a,,b/main", "host is missing"),
            ("redis-sentinel://a/main?pass=s3cret", "its parameters are db, sentinel_user"),
            ("redis-sentinel://a/main?db=s3cret", "no number"),
            ("redis-cluster://a/3", "one database"),
            ("redis-cluster://a?password=s3cret", "takes no parameters"),
            ("redis-cluster://", "host is missing"),
            ("redis://host#insecure", "always checked"),
        ] {
            let error = address(url).unwrap_err();
            assert!(error.contains(says) && !error.contains("s3cret"), "{url}: {error}");
        }
    }
}
