//! Where Redis is and how to reach it.

use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{Client, ClientTlsConfig, IntoConnectionInfo as _, TlsCertificates};

use super::RedisStore;
use crate::clock::Clock;

/// The optional knobs of a [`RedisStore`]; see [`RedisStore::builder`].
#[derive(Debug, Clone)]
pub struct RedisBuilder {
    pub(super) url: Url,
    pub(super) key_prefix: String,
    pub(super) deadline: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) max_in_flight: usize,
    pub(super) clock: Clock,
    ca: Option<Vec<u8>>,
    certificate: Option<Certificate>,
}

#[derive(Clone)]
struct Certificate {
    chain: Vec<u8>,
    key: Vec<u8>,
}

/// A URL that may hold a password, which is never shown.
#[derive(Clone)]
pub(super) struct Url(String);

/// Why a store could not be set up. A Redis that is merely away is no such reason.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisConfigError {
    /// Not a URL of a Redis.
    #[error(
        "`{url}` is no address of a Redis: {reason}; write redis://host:6379, rediss://… or unix:///path"
    )]
    Url {
        /// The URL without its password.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Certificates for a connection without TLS.
    #[error("certificates were given, but `{url}` does not use TLS; write rediss://…")]
    CertificatesWithoutTls {
        /// The URL without its password.
        url: String,
    },
    /// A certificate or key that cannot be read.
    #[error("the certificates for `{url}` cannot be used: {reason}")]
    Certificates {
        /// The URL without its password.
        url: String,
        /// What is wrong with them.
        reason: String,
    },
}

impl RedisBuilder {
    pub(super) fn new(url: &str) -> Self {
        RedisBuilder {
            url: Url(url.to_owned()),
            key_prefix: "tg".to_owned(),
            deadline: Duration::from_millis(50),
            connect_timeout: Duration::from_secs(1),
            max_in_flight: 4_096,
            clock: Clock::system(),
            ca: None,
            certificate: None,
        }
    }

    /// What every key begins with; `tg` unless said otherwise.
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// How long a decision waits for Redis, all retries included; 50 ms unless said otherwise.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How long an attempt to connect may take; a second unless said otherwise.
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How many decisions may wait for Redis at once; the next is answered by its rules' failure policy. 4,096 unless
    /// said otherwise.
    #[must_use]
    pub const fn max_in_flight(mut self, decisions: usize) -> Self {
        self.max_in_flight = decisions;
        self
    }

    /// Trusts this authority (PEM) instead of the system's, for `rediss://`.
    #[must_use]
    pub fn ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
        self
    }

    /// Shows this certificate (PEM) to Redis, for `rediss://`.
    #[must_use]
    pub fn client_certificate(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.certificate = Some(Certificate { chain: chain.into(), key: key.into() });
        self
    }

    /// Waits are counted on this clock. A manual one is Redis' time too, so that tests and replay choose it; its keys
    /// then outlive their buckets by up to an hour.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Makes the store and tries to reach Redis.
    ///
    /// A Redis that cannot be reached is logged and tried again in the background; until then every decision is up to
    /// its rules' failure policy. See [`RedisStore::ready`].
    ///
    /// # Errors
    ///
    /// A URL or certificates that make no sense.
    pub async fn connect(self) -> Result<RedisStore, RedisConfigError> {
        let client = self.client()?;
        Ok(RedisStore::start(self, client).await)
    }

    /// The client of the `redis` crate, for whoever has other questions to this Redis.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn client(&self) -> Result<Client, RedisConfigError> {
        // Libraries below ask for a default; if there is one already, it stays.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let url = || self.url.shown();
        let no_url = |error: redis::RedisError| RedisConfigError::Url { url: url(), reason: plain(&error) };
        let info = self.url.0.as_str().into_connection_info().map_err(no_url)?;
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let tls = self.url.0.starts_with("rediss");
        if self.ca.is_none() && self.certificate.is_none() {
            return Client::open(info).map_err(no_url);
        }
        if !tls {
            return Err(RedisConfigError::CertificatesWithoutTls { url: url() });
        }
        let client_tls = self
            .certificate
            .clone()
            .map(|Certificate { chain, key }| ClientTlsConfig { client_cert: chain, client_key: key });
        Client::build_with_tls(info, TlsCertificates { client_tls, root_cert: self.ca.clone() })
            .map_err(|error| RedisConfigError::Certificates { url: url(), reason: plain(&error) })
    }

    /// Where it connects to, without the password.
    pub fn shown(&self) -> String {
        self.url.shown()
    }
}

/// What an error of the client says, without whatever was in the URL.
fn plain(error: &redis::RedisError) -> String {
    error.detail().unwrap_or_else(|| error.category()).to_owned()
}

impl Url {
    /// The URL with its password masked, in the authority as in the query.
    pub(super) fn shown(&self) -> String {
        let Some((scheme, rest)) = self.0.split_once("://") else { return "***".to_owned() };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = match authority.rsplit_once('@') {
            Some((login, host)) => {
                let user = login.split_once(':').map_or("", |(user, _)| user);
                format!("{user}:***@{host}")
            }
            None => authority.to_owned(),
        };
        let path = match path.split_once('?') {
            Some((path, query)) => {
                let mask = |pair: &str| match pair.split_once('=') {
                    Some((name @ ("pass" | "password"), _)) => format!("{name}=***"),
                    _ => pair.to_owned(),
                };
                format!("{path}?{}", query.split('&').map(mask).collect::<Vec<_>>().join("&"))
            }
            None => path.to_owned(),
        };
        format!("{scheme}://{authority}{path}")
    }
}

impl std::fmt::Debug for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificate")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_ever_shown() {
        for (url, shown) in [
            ("redis://localhost:6379/0", "redis://localhost:6379/0"),
            ("redis://:s3cret@localhost", "redis://:***@localhost"),
            ("rediss://app:s3cr@t@host:6380/2", "rediss://app:***@host:6380/2"),
            ("redis://s3cret@host", "redis://:***@host"),
            ("unix:///run/redis.sock?db=1&pass=s3cret", "unix:///run/redis.sock?db=1&pass=***"),
            ("s3cret", "***"),
        ] {
            assert_eq!(Url(url.to_owned()).shown(), shown);
            let debug = format!("{:?}", RedisBuilder::new(url));
            assert!(!debug.contains("s3cr"), "{debug}");
        }
    }

    #[test]
    fn a_bad_url_says_what_to_write() {
        let error = RedisBuilder::new("http://:s3cret@host").client().unwrap_err().to_string();
        assert!(error.contains("write redis://host:6379") && !error.contains("s3cret"), "{error}");
        let error = RedisBuilder::new("redis://host").ca("pem").client().unwrap_err().to_string();
        assert!(error.contains("write rediss://"), "{error}");
    }
}
