//! How to reach Redis, and how long to wait for it.

use std::time::Duration;

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, TlsCertificates};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::RedisStore;
use super::address::{Address, Url, plain};
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

/// Why a store could not be set up. A Redis that is merely away is no such reason.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisConfigError {
    /// Not a URL of a Redis.
    #[error(
        "`{url}` is no address of a Redis: {reason}; write redis://host:6379, rediss://…, unix:///path, redis-sentinel://host1,host2/name or redis-cluster://host1,host2"
    )]
    Url {
        /// The URL without its password.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A prefix that would decide where keys lie in a Cluster.
    #[error("`{prefix}` cannot begin keys: braces decide where a Redis Cluster keeps them; leave them out")]
    Prefix {
        /// The prefix.
        prefix: String,
    },
    /// Certificates for a connection without TLS.
    #[error(
        "certificates were given, but `{url}` does not use TLS; write rediss://…, rediss-sentinel://… or rediss-cluster://…"
    )]
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
            connect_timeout: Duration::from_millis(500),
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

    /// How long an attempt to connect may take; half a second unless said otherwise.
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How many decisions may wait for Redis at once, for each node of a Cluster; the next is answered by its rules'
    /// failure policy. 4,096 unless said otherwise.
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
        if self.key_prefix.contains(['{', '}']) {
            return Err(RedisConfigError::Prefix { prefix: self.key_prefix });
        }
        let address = self.address()?;
        let tls = if is_tls(address.any()) { Some(self.tls()?.into()) } else { None };
        Ok(RedisStore::start(self, address, tls).await)
    }

    /// The client of the `redis` crate, for whoever has other questions to this Redis.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), and where the URL names more than one server.
    pub fn client(&self) -> Result<Client, RedisConfigError> {
        match self.address()? {
            Address::One(info) => self.client_of(info),
            _ => Err(self.no_url("it names several servers".to_owned())),
        }
    }

    /// A client of one of the servers.
    pub(crate) fn client_of(&self, info: ConnectionInfo) -> Result<Client, RedisConfigError> {
        if self.ca.is_none() && self.certificate.is_none() {
            return Client::open(info).map_err(|error| self.no_url(plain(&error)));
        }
        let client_tls = self
            .certificate
            .clone()
            .map(|Certificate { chain, key }| ClientTlsConfig { client_cert: chain, client_key: key });
        Client::build_with_tls(info, TlsCertificates { client_tls, root_cert: self.ca.clone() })
            .map_err(|error| self.bad_certificates(plain(&error)))
    }

    /// What the URL says.
    pub(crate) fn address(&self) -> Result<Address, RedisConfigError> {
        // Libraries below ask for a default; if there is one already, it stays.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let address = self.url.address().map_err(|reason| self.no_url(reason))?;
        if (self.ca.is_some() || self.certificate.is_some()) && !is_tls(address.any()) {
            return Err(RedisConfigError::CertificatesWithoutTls { url: self.shown() });
        }
        Ok(address)
    }

    fn no_url(&self, reason: String) -> RedisConfigError {
        RedisConfigError::Url { url: self.shown(), reason }
    }

    /// Whom to trust, and what to show.
    fn tls(&self) -> Result<ClientConfig, RedisConfigError> {
        let certificates = |pem: &[u8]| {
            CertificateDer::pem_slice_iter(pem)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| self.bad_certificates(error.to_string()))
        };
        let roots = match &self.ca {
            Some(pem) => certificates(pem)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let mut trusted = RootCertStore::empty();
        let (good, _) = trusted.add_parsable_certificates(roots);
        if good == 0 {
            return Err(self.bad_certificates("there is no authority in them".to_owned()));
        }
        let config = ClientConfig::builder().with_root_certificates(trusted);
        let Some(Certificate { chain, key }) = &self.certificate else {
            return Ok(config.with_no_client_auth());
        };
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
            self.bad_certificates("the key is no private key in PEM".to_owned()) // never a word of it
        })?;
        config
            .with_client_auth_cert(certificates(chain)?, key)
            .map_err(|error| self.bad_certificates(error.to_string()))
    }

    fn bad_certificates(&self, reason: String) -> RedisConfigError {
        RedisConfigError::Certificates { url: self.shown(), reason }
    }

    /// Where it connects to, without the password.
    pub fn shown(&self) -> String {
        self.url.shown()
    }
}

fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
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
        let debug = format!("{:?}", RedisBuilder::new("redis://:s3cret@host"));
        assert!(!debug.contains("s3cr"), "{debug}");
    }

    #[test]
    fn a_bad_url_says_what_to_write() {
        let error = RedisBuilder::new("http://:s3cret@host").client().unwrap_err().to_string();
        assert!(error.contains("write redis://host:6379") && !error.contains("s3cret"), "{error}");
        let error = RedisBuilder::new("redis://host").ca("pem").client().unwrap_err().to_string();
        assert!(error.contains("write rediss://"), "{error}");
    }
}
