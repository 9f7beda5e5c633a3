//! Certificates for tests of TLS, made by the `openssl` program.

use std::path::{Path, PathBuf};
use std::process::Command;

/// An authority of our own, and a server and a client it vouches for; all files lie in one folder.
#[derive(Debug)]
pub struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    /// Makes them, valid for `localhost` and `127.0.0.1` and for two days.
    ///
    /// # Panics
    ///
    /// There is no `openssl` program, or it fails.
    pub fn make(folder: &Path) -> Self {
        let certificates = Certificates { folder: folder.to_owned() };
        certificates.openssl("ca", "/CN=tollgate tests", &[]);
        for (name, subject) in [("server", "/CN=localhost"), ("client", "/CN=client")] {
            let (authority, its_key) = (certificates.authority(), certificates.key("ca"));
            let signed = [
                ["-CA", utf8(&authority)],
                ["-CAkey", utf8(&its_key)],
                ["-addext", "basicConstraints=critical,CA:FALSE"],
                ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"],
            ];
            certificates.openssl(name, subject, signed.as_flattened());
        }
        certificates
    }

    /// Whom clients and servers should trust.
    pub fn authority(&self) -> PathBuf {
        self.certificate("ca")
    }

    /// The certificate of `server` or `client`.
    pub fn certificate(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.pem"))
    }

    /// The private key of `server` or `client`.
    pub fn key(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.key"))
    }

    fn openssl(&self, name: &str, subject: &str, signed: &[&str]) {
        let output = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-nodes", "-days", "2", "-subj", subject])
            .arg("-keyout")
            .arg(self.key(name))
            .arg("-out")
            .arg(self.certificate(name))
            .args(signed)
            .output()
            .expect("`openssl` starts; the Debian package is `openssl`");
        assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}
