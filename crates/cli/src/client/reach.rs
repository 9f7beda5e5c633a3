//! How to reach a server: what to show it, and whom to believe that it is the one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail, ensure};
use http::{HeaderValue, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::{Client, Connector, Http, Transport};
use crate::data::DataArgs;
use crate::local::{LocalServer, token_file};
use crate::terminal::remark;

const EXAMPLE: &str = "write it like http://127.0.0.1:8081 or unix:/run/tollgate/admin.sock";

/// What a server asks for, and what we ask of it.
#[derive(Debug, clap::Args)]
pub(crate) struct ReachArgs {
    /// The token to show to a server: one in this file, with the role `write` if there is such a one. Without it, the server
    /// that runs over the data directory is shown its own
    #[arg(long, value_name = "FILE", env = "TOLLGATE_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) data: DataArgs,
    /// The authority to trust for https://, as PEM; the system's without it
    #[arg(long, value_name = "FILE", env = "TOLLGATE_SERVER_CA")]
    server_ca: Option<PathBuf>,
    /// The certificate to show for https://, as PEM
    #[arg(long, value_name = "FILE", env = "TOLLGATE_SERVER_CERT")]
    server_cert: Option<PathBuf>,
    /// The certificate's key, as PEM
    #[arg(long, value_name = "FILE", env = "TOLLGATE_SERVER_KEY")]
    server_key: Option<PathBuf>,
}

/// Which of a server's listeners is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plane {
    /// Decisions.
    Data,
    /// The dashboard and the admin API.
    Admin,
}

/// A command about one server.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// The server [default: the one that runs over the data directory]
    #[arg(long, value_name = "URL", env = "TOLLGATE_SERVER", hide_env_values = true)]
    server: Option<String>,
    #[command(flatten)]
    reach: ReachArgs,
}

impl ServerArgs {
    /// The server that is named, else the one of this machine.
    ///
    /// # Errors
    ///
    /// The address is not one, or no server runs here.
    pub(crate) fn client(&self, plane: Plane) -> anyhow::Result<Client> {
        let url = match &self.server {
            Some(server) => server.clone(),
            None => self.reach.local(plane).with_context(|| {
                format!(
                    "no server runs over the data directory {}; start one with `tollgate`, or name one with --server",
                    self.reach.data.shown()
                )
            })?,
        };
        self.reach.client(&url)
    }
}

/// Where a server is.
#[derive(Debug)]
pub(crate) struct Address {
    /// What paths are put behind.
    base: String,
    /// The same as it may be shown.
    shown: String,
    /// The Unix socket that it is reached through.
    socket: Option<PathBuf>,
}

impl Address {
    /// Reads one.
    ///
    /// # Errors
    ///
    /// It is none, and how to write one.
    pub(crate) fn of(url: &str) -> anyhow::Result<Self> {
        if let Some(path) = url.strip_prefix("unix:") {
            let base = "http://localhost".to_owned();
            return Ok(Address { base, shown: url.to_owned(), socket: Some(path.into()) });
        }
        let shown = tollgate::sql::masked(url.trim_end_matches('/'));
        let uri: Uri = url.parse().map_err(|_| anyhow!("--server {shown} is no address; {EXAMPLE}"))?;
        let Some(scheme @ ("http" | "https")) = uri.scheme_str() else {
            bail!("--server {shown} does not begin with http://, https:// or unix:; {EXAMPLE}");
        };
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        ensure!(!authority.contains('@'), "--server {shown}: a server takes no password; {EXAMPLE}");
        let base = format!("{scheme}://{authority}{}", uri.path().trim_end_matches('/'));
        Ok(Address { base, shown, socket: None })
    }

    fn is_tls(&self) -> bool {
        self.base.starts_with("https:")
    }

    /// Whether a server that runs over the data directory says that it is here.
    fn is_of(&self, server: &LocalServer) -> bool {
        let address = if self.socket.is_some() { &self.shown } else { &self.base };
        [&server.http, &server.admin].contains(&address)
    }
}

impl ReachArgs {
    /// A server by its address, which nobody has asked yet.
    ///
    /// # Errors
    ///
    /// The address is none, or a file is of no use. Nothing of a token or a key is repeated.
    pub(crate) fn client(&self, url: &str) -> anyhow::Result<Client> {
        let address = Address::of(url)?;
        // The file that a variable names may be that of `serve`, without a token that may do everything.
        let authorization = match (self.own_token(&address)?, &self.token_file) {
            (Some(own), _) => Some(own),
            (None, file) => file.as_deref().map(bearer).transpose()?,
        };
        let connector = self.connector(&address)?;
        let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
        let Address { base, shown, .. } = address;
        Ok(Client { shown, transport: Transport::Http(Box::new(Http { base, authorization, client })) })
    }

    /// The address of the server that runs over the data directory; says on standard error that it is used.
    pub(crate) fn local(&self, plane: Plane) -> Option<String> {
        let server = LocalServer::find(&self.data.path())?;
        let address = if plane == Plane::Data { server.http } else { server.admin };
        remark(&format!("asking the server at {address}"));
        Some(address)
    }

    /// The token of the server that runs over the data directory, for that server alone.
    fn own_token(&self, address: &Address) -> anyhow::Result<Option<HeaderValue>> {
        let folder = self.data.path();
        match LocalServer::find(&folder).filter(|server| address.is_of(server)) {
            Some(_) => bearer(&token_file(&folder)).map(Some),
            None => Ok(None),
        }
    }

    fn connector(&self, address: &Address) -> anyhow::Result<HttpsConnector<Connector>> {
        // Libraries below ask for a default; if there is one already, it stays.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let config = match address.is_tls() {
            true => self.tls()?,
            // Nobody is trusted where nobody is asked.
            false => {
                ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth()
            }
        };
        let connector = match &address.socket {
            Some(path) => Connector::Unix(path.clone()),
            None => {
                let mut connector = HttpConnector::new();
                connector.enforce_http(false);
                Connector::Tcp(connector)
            }
        };
        let builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1();
        Ok(builder.wrap_connector(connector))
    }

    /// Whom to trust, and what to show.
    fn tls(&self) -> anyhow::Result<ClientConfig> {
        let mut trusted = RootCertStore::empty();
        let (good, _) = trusted.add_parsable_certificates(match &self.server_ca {
            Some(path) => certificates(path)?,
            None => rustls_native_certs::load_native_certs().certs,
        });
        ensure!(good > 0, "no authority is known to this system; name the server's with --server-ca");
        let config = ClientConfig::builder().with_root_certificates(trusted);
        match (&self.server_cert, &self.server_key) {
            (None, None) => Ok(config.with_no_client_auth()),
            (Some(chain), Some(key)) => {
                let said = || format!("{} cannot be used with the key {}", chain.display(), key.display());
                config.with_client_auth_cert(certificates(chain)?, private_key(key)?).with_context(said)
            }
            _ => bail!("--server-cert and --server-key go together; give both or none"),
        }
    }
}

/// A path of the dashboard as a link for a browser. Browsers do not open Unix sockets; ssh forwards a port to one.
pub(crate) fn login_link(admin: &str, path: &str) -> String {
    match admin.strip_prefix("unix:") {
        None => format!("{admin}{path}"),
        Some(socket) => format!("http://localhost:8081{path} (after ssh -L 8081:{socket} HOST)"),
    }
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<Vec<_>, _>>();
    let found = found.ok().filter(|found| !found.is_empty());
    found.with_context(|| format!("{} has no certificate in PEM form", path.display()))
}

fn private_key(path: &Path) -> anyhow::Result<PrivateKeyDer<'static>> {
    let key = PrivateKeyDer::from_pem_slice(&read(path)?).ok(); // the reason could hold a word of it
    key.with_context(|| format!("{} has no private key in PEM form", path.display()))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The secret of a line `name:role:secret`, of one that may write if there is such a one.
fn bearer(path: &Path) -> anyhow::Result<HeaderValue> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read the token file {}", path.display()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parts = |line| {
        let mut parts = str::splitn(line, 3, ':').skip(1);
        Some((parts.next()?, parts.next()?))
    };
    let mut tokens: Vec<(&str, &str)> = lines.filter_map(parts).collect();
    tokens.sort_by_key(|(role, _)| *role != "write");
    let (_, token) = tokens.first().with_context(|| {
        format!("{} has no token; put one on a line, as name:role:secret", path.display())
    })?;
    let sane = token.bytes().all(|byte| byte.is_ascii_graphic());
    ensure!(sane, "{}: a token has visible characters only and no blanks", path.display());
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))?;
    value.set_sensitive(true);
    Ok(value)
}
