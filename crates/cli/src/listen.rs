//! How `serve` listens: addresses, credentials, TLS and bounds.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use tollgate_server::{Access, Config, Endpoint, ListenerLimits, Observe, TlsFiles, Tokens};

use crate::banner::Credentials;
use crate::local::token_file;
use crate::store::bytes;

/// The flags.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Listening")]
pub(crate) struct ListenArgs {
    /// Where decisions are answered. `:9000` and `9000` are 127.0.0.1:9000, for this machine only; `0.0.0.0:9000` listens
    /// on every IPv4 address. Port 0 takes a free one
    #[arg(long, value_name = "ADDR", env = "TOLLGATE_HTTP", default_value = "127.0.0.1:8080", value_parser = address)]
    http: SocketAddr,
    /// Where the dashboard and the admin API are: an address, or unix:PATH for a socket that only this user can open
    #[arg(long, value_name = "ADDR", env = "TOLLGATE_ADMIN", default_value = "127.0.0.1:8081", value_parser = endpoint)]
    admin: Endpoint,
    /// Serve /metrics at this address as well, without TLS and without a token
    #[arg(long, value_name = "ADDR", env = "TOLLGATE_METRICS", value_parser = address)]
    metrics: Option<SocketAddr>,
    /// Write the addresses here, as JSON, when every listener is up
    #[arg(long, value_name = "FILE", env = "TOLLGATE_READY_FILE")]
    ready_file: Option<PathBuf>,
    /// Tokens besides the one in the data directory: lines `name:role:secret` with the role check, settle, read or write. One
    /// with the role check closes the checks to callers without a token
    #[arg(long, value_name = "FILE", env = "TOLLGATE_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// A name, besides localhost, under which browsers may reach the dashboard; addresses are always accepted
    #[arg(long = "admin-host", value_name = "NAME", env = "TOLLGATE_ADMIN_HOST", value_delimiter = ',')]
    admin_hosts: Vec<String>,
    /// Serve TLS with this certificate, as PEM; it is read again when it changes
    #[arg(long, value_name = "FILE", env = "TOLLGATE_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// The certificate's key, as PEM
    #[arg(long, value_name = "FILE", env = "TOLLGATE_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// Only let clients in whose certificate comes from one of these, as PEM
    #[arg(long, value_name = "FILE", env = "TOLLGATE_TLS_CLIENT_CA")]
    tls_client_ca: Option<PathBuf>,
    /// Connections to --http, and at most 1024 to each other listener; further ones are answered 503 or closed
    #[arg(long, value_name = "N", env = "TOLLGATE_MAX_CONNECTIONS", default_value = "10000",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections: u32,
    /// Connections of one client address to --http; loopback and trusted proxies have no such bound [default: none]
    #[arg(long, value_name = "N", env = "TOLLGATE_MAX_CONNECTIONS_PER_ADDRESS",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections_per_address: Option<u32>,
    /// Memory of the requests in progress and the unread answers of each listener; what does not fit is answered 503
    #[arg(long, value_name = "SIZE", env = "TOLLGATE_CONNECTION_MEMORY", default_value = "64MiB", value_parser = bytes)]
    connection_memory: u64,
    /// Seconds for the head of a request, from its first byte
    #[arg(long, value_name = "SECONDS", env = "TOLLGATE_HEAD_TIMEOUT_S", default_value = "10",
          value_parser = clap::value_parser!(u32).range(1..=3_600))]
    head_timeout_s: u32,
    /// Seconds that a connection may be silent between requests
    #[arg(long, value_name = "SECONDS", env = "TOLLGATE_IDLE_TIMEOUT_S", default_value = "75",
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    idle_timeout_s: u32,
}

/// The address to listen at. A port alone is on loopback: what the whole network may reach is said in full.
fn address(text: &str) -> Result<SocketAddr, String> {
    let port = match text.rsplit_once(':') {
        Some(("" | "localhost", port)) => Some(port),
        Some(_) => None,
        None => Some(text),
    };
    let digits = port.filter(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
    let loopback =
        digits.and_then(|port| port.parse().ok()).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    loopback.or_else(|| text.parse().ok()).ok_or_else(|| {
        "expected ADDRESS:PORT, like `127.0.0.1:8080`, `0.0.0.0:8080` or `[::1]:8080`, or `:8080` for 127.0.0.1:8080, with \
         a port from 0 to 65535"
            .to_owned()
    })
}

/// An address, or the path of a Unix socket. Commands that find it start in other directories, so it is made absolute.
fn endpoint(text: &str) -> Result<Endpoint, String> {
    match text.strip_prefix("unix:") {
        Some(path) => std::path::absolute(path)
            .map(Endpoint::Unix)
            .map_err(|_| "expected the path of a socket, like unix:/run/tollgate/admin.sock".to_owned()),
        None => address(text).map(Endpoint::Tcp),
    }
}

fn number(connections: u32) -> usize {
    usize::try_from(connections).unwrap_or(usize::MAX)
}

impl ListenArgs {
    /// Where and how to listen.
    ///
    /// # Errors
    ///
    /// Flags that do not go together.
    pub(crate) fn config(&self, observe: Observe) -> anyhow::Result<Config> {
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some(TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                client_ca: self.tls_client_ca.clone(),
            }),
            (None, None) if self.tls_client_ca.is_some() => {
                bail!("--tls-client-ca checks clients of TLS; give --tls-cert and --tls-key too")
            }
            (None, None) => None,
            _ => bail!("--tls-cert and --tls-key go together; give both or none"),
        };
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        Ok(Config {
            tls,
            observe,
            limits: ListenerLimits {
                connections: number(self.max_connections),
                connections_per_address: self.max_connections_per_address.map(number),
                memory: usize::try_from(self.connection_memory).unwrap_or(usize::MAX),
                head: seconds(self.head_timeout_s),
                idle: seconds(self.idle_timeout_s),
                ..ListenerLimits::default()
            },
            http: self.http,
            admin: self.admin.clone(),
            metrics: self.metrics,
        })
    }

    /// The file that says when every listener is up, and where.
    pub(crate) fn ready_file(&self) -> Option<&Path> {
        self.ready_file.as_deref()
    }

    /// What callers have to present.
    pub(crate) const fn credentials(&self, check_token: bool) -> Credentials {
        Credentials { tls: self.tls_cert.is_some(), certificate: self.tls_client_ca.is_some(), check_token }
    }

    /// Who may ask what. Creates the server's own token if it is missing. Must be called within a runtime.
    ///
    /// # Errors
    ///
    /// A token file that is refused.
    pub(crate) fn access(&self, data: &Path) -> anyhow::Result<Access> {
        let own = Tokens::own_file(&token_file(data))?;
        let given = self.token_file.as_deref().map(Tokens::file).transpose()?;
        Ok(Access { tokens: [own].into_iter().chain(given).collect(), hosts: self.admin_hosts.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_on_loopback() {
        for (text, expected) in [
            (":9000", "127.0.0.1:9000"),
            ("9000", "127.0.0.1:9000"),
            (":0", "127.0.0.1:0"),
            ("0", "127.0.0.1:0"),
            ("localhost:65535", "127.0.0.1:65535"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::]:80", "[::]:80"),
            ("[::1]:0", "[::1]:0"),
        ] {
            assert_eq!(address(text).unwrap(), expected.parse().unwrap(), "{text}");
        }
        for text in [
            "",
            ":",
            ":65536",
            ":+1",
            "+1",
            ":x",
            "x",
            "127.0.0.1",
            "::1",
            "::1:80",
            "*:80",
            "localhost",
            ":80:",
        ] {
            assert!(address(text).is_err_and(|error| error.contains("`:8080` for 127.0.0.1:8080")), "{text}");
        }
    }
}
