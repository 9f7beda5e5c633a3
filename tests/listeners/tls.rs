//! TLS and mutual TLS, and certificates that are renewed while the server runs.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tollgate_server::TlsFiles;
use tollgate_tests::certificates::Certificates;
use tollgate_tests::poll::until;
use tollgate_tests::scratch::Scratch;

use crate::access::access;
use crate::http2::only_this_servers_names_sign_in;
use crate::server::{Options, Running, ask, check, impatient};

pub(crate) fn files(certificates: &Certificates) -> TlsFiles {
    TlsFiles {
        certificate: certificates.certificate("server"),
        key: certificates.key("server"),
        client_ca: None,
    }
}

/// A client that trusts an authority, and shows a certificate if it has one.
pub(crate) fn client(
    certificates: &Certificates,
    shows: Option<&str>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> TlsConnector {
    TlsConnector::from(Arc::new(config(certificates, shows, versions)))
}

fn config(
    certificates: &Certificates,
    shows: Option<&str>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> ClientConfig {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificates.authority()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_protocol_versions(versions).with_root_certificates(roots);
    match shows {
        None => config.with_no_client_auth(),
        Some(name) => {
            let chain = vec![CertificateDer::from_pem_file(certificates.certificate(name)).unwrap()];
            let key = PrivateKeyDer::from_pem_file(certificates.key(name)).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    }
}

pub(crate) async fn dial(server: &Running, client: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
    client.connect(ServerName::try_from("localhost").unwrap(), server.connect().await).await
}

/// The answer to a check; empty where no connection comes about.
async fn checked(server: &Running, client: &TlsConnector) -> String {
    match dial(server, client).await {
        Ok(stream) => ask(stream, &check("")).await,
        Err(_) => String::new(),
    }
}

fn copy(from: &Certificates, to: &Path) {
    for (source, name) in [(from.certificate("server"), "server.pem"), (from.key("server"), "server.key")] {
        fs::copy(source, to.join(name)).unwrap();
    }
}

#[tokio::test]
async fn checks_are_answered_over_tls_1_2_and_1_3_and_not_without() {
    let scratch = Scratch::new("listener-tls");
    let certificates = Certificates::make(scratch.path());
    let server = Running::start(Options { tls: Some(files(&certificates)), ..Options::default() }).await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let answer = checked(&server, &client(&certificates, None, &[version])).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }
    let plain = server.ask(&check("")).await;
    assert!(!plain.contains("HTTP/1.1 200"), "{plain}");
    server.stop().await;
}

#[tokio::test]
async fn http_2_is_agreed_on_and_an_operator_may_use_it() {
    let scratch = Scratch::new("listener-alpn");
    let certificates = Certificates::make(scratch.path());
    let options = Options { tls: Some(files(&certificates)), access: access(), ..Options::default() };
    let server = Running::start(options).await;
    let name = ServerName::try_from("localhost").unwrap();
    let stream = http2_client(&certificates).connect(name, server.connect_admin().await).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    only_this_servers_names_sign_in(stream).await;
    server.stop().await;
}

fn http2_client(certificates: &Certificates) -> TlsConnector {
    let mut config = config(certificates, None, rustls::ALL_VERSIONS);
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

#[tokio::test]
async fn a_client_that_agrees_on_http_2_and_does_not_finish_its_preface_is_cut_off() {
    let scratch = Scratch::new("listener-preface");
    let certificates = Certificates::make(scratch.path());
    let options = Options { tls: Some(files(&certificates)), limits: impatient(), ..Options::default() };
    let server = Running::start(options).await;
    for begun in ["", "PRI * HTTP/2.0\r\n"] {
        let mut stream = dial(&server, &http2_client(&certificates)).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        assert_eq!(ask(&mut stream, begun).await, "");
    }
    server.stop().await;
}

#[tokio::test]
async fn with_an_authority_for_clients_only_those_it_vouches_for_get_in() {
    let scratch = Scratch::new("listener-mtls");
    let certificates = Certificates::make(scratch.path());
    let tls = TlsFiles { client_ca: Some(certificates.authority()), ..files(&certificates) };
    let server = Running::start(Options { tls: Some(tls), ..Options::default() }).await;
    let versions = rustls::ALL_VERSIONS;
    let known = checked(&server, &client(&certificates, Some("client"), versions)).await;
    assert!(known.starts_with("HTTP/1.1 200 OK"), "{known}");
    let stranger = checked(&server, &client(&certificates, None, versions)).await;
    assert!(!stranger.contains("HTTP/1.1"), "{stranger}");
    server.stop().await;
}

#[tokio::test]
async fn a_new_certificate_is_taken_without_a_restart_and_a_bad_one_leaves_the_old() {
    let scratch = Scratch::new("listener-reload");
    let [old, new] = ["old", "new"].map(|name| {
        let folder = scratch.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        Certificates::make(&folder)
    });
    copy(&old, scratch.path());
    let tls = TlsFiles {
        certificate: scratch.path().join("server.pem"),
        key: scratch.path().join("server.key"),
        client_ca: None,
    };
    let server = Running::start(Options { tls: Some(tls), ..Options::default() }).await;
    let [trusts_old, trusts_new] =
        [&old, &new].map(|certificates| client(certificates, None, rustls::ALL_VERSIONS));
    assert!(checked(&server, &trusts_old).await.starts_with("HTTP/1.1 200"));
    assert!(checked(&server, &trusts_new).await.is_empty());

    // A connection from before goes on.
    let mut before = dial(&server, &trusts_old).await.unwrap();
    copy(&new, scratch.path());
    let is_new = async || checked(&server, &trusts_new).await.starts_with("HTTP/1.1 200").then_some(());
    until("the new certificate", is_new).await;
    assert!(ask(&mut before, &check("")).await.starts_with("HTTP/1.1 200"));

    fs::write(scratch.path().join("server.pem"), "no certificate\n").unwrap();
    // The next good one is read, so the bad one was seen before it; meanwhile the old one served.
    assert!(checked(&server, &trusts_new).await.starts_with("HTTP/1.1 200"));
    copy(&old, scratch.path());
    let is_old = async || {
        if checked(&server, &trusts_new).await.starts_with("HTTP/1.1 200") {
            return None;
        }
        // The new one is not in use any more and does not come back, so the old one is.
        let answer = checked(&server, &trusts_old).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "no certificate is in use: {answer}");
        Some(())
    };
    until("the old certificate again", is_old).await;
    server.stop().await;
}

#[tokio::test]
async fn files_that_make_no_tls_are_told_apart() {
    let scratch = Scratch::new("listener-bad-tls");
    let certificates = Certificates::make(scratch.path());
    let told = async |tls: TlsFiles| {
        let store = tollgate::AnyStore::from(tollgate::MemoryStore::new());
        let limiter = tollgate::Limiter::new(tollgate::RuleSet::default(), store);
        let home = tollgate_server::RulesHome::Fixed("code".to_owned());
        let app = tollgate_server::App::new(Arc::new(limiter), home);
        let config = tollgate_server::Config {
            tls: Some(tls),
            ..tollgate_server::Config::new("127.0.0.1:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap())
        };
        let error = tollgate_server::Server::bind(&config, app).await.unwrap_err();
        std::error::Error::source(&error).unwrap().to_string()
    };
    let good = files(&certificates);
    let missing = TlsFiles { certificate: scratch.path().join("none.pem"), ..good.clone() };
    assert!(told(missing).await.starts_with("cannot read "));
    let swapped = TlsFiles { certificate: good.key.clone(), ..good.clone() };
    assert!(told(swapped).await.ends_with("has no certificate in PEM form"));
    let no_key = TlsFiles { key: good.certificate.clone(), ..good.clone() };
    assert!(told(no_key).await.ends_with("has no private key in PEM form"));
    let of_another = TlsFiles { key: certificates.key("client"), ..good };
    assert!(told(of_another).await.contains("cannot be used with the key"));
}
