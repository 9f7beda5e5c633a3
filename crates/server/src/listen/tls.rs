//! TLS of a listener: a certificate and its key, and whom a client's certificate must come from.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::reload::Reloadable;

/// The files that TLS is made of. They may be replaced while the server runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and those that vouch for it, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// With it, clients must show a certificate that one of these (PEM) vouches for.
    pub client_ca: Option<PathBuf>,
}

/// Why files make no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is no PEM, or has nothing of use in it.
    #[error("{} has no {what} in PEM form", path.display())]
    Pem {
        /// Which.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// The parts do not fit together.
    #[error("the certificate {} cannot be used with the key {}", certificate.display(), key.display())]
    Mismatch {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The authorities that clients are checked against are of no use.
    #[error("{} cannot be used to check clients: {reason}", path.display())]
    ClientAuthorities {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl TlsFiles {
    /// Reads the files, now and whenever they change.
    pub(crate) fn keep(self) -> Result<Arc<Reloadable<ServerConfig>>, TlsError> {
        let mut files = vec![self.certificate.clone(), self.key.clone()];
        files.extend(self.client_ca.clone());
        Reloadable::new("TLS certificates", files, move || self.load(), || None)
    }

    fn load(&self) -> Result<ServerConfig, TlsError> {
        // Libraries below ask for a default; if there is one already, it stays.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let chain = certificates(&self.certificate)?;
        let key = read(&self.key)?;
        let key = PrivateKeyDer::from_pem_slice(&key)
            .map_err(|_| TlsError::Pem { path: self.key.clone(), what: "private key" })?;
        let config = match &self.client_ca {
            None => ServerConfig::builder().with_no_client_auth(),
            Some(path) => {
                let refused = |reason: String| TlsError::ClientAuthorities { path: path.clone(), reason };
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| refused(error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots))
                    .build()
                    .map_err(|error| refused(error.to_string()))?;
                ServerConfig::builder().with_client_cert_verifier(verifier)
            }
        };
        let mismatch = |source| TlsError::Mismatch {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        };
        let mut config = config.with_single_cert(chain, key).map_err(mismatch)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(path)?;
    let none = |_: pem::Error| TlsError::Pem { path: path.to_owned(), what: "certificate" };
    let found = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>().map_err(none)?;
    if found.is_empty() {
        return Err(TlsError::Pem { path: path.to_owned(), what: "certificate" });
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}
