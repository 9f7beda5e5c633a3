//! What a server asks of its callers, as words for the commands of the first screen.

use std::path::Path;

use crate::words::quoted;

/// What has to be shown to a server, and how it is spoken to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asks<'a> {
    /// It speaks TLS.
    pub(crate) tls: bool,
    /// It lets nobody in without a certificate.
    pub(crate) certificate: bool,
    /// The tokens of which a check has to show one.
    pub(crate) check_tokens: Option<&'a Path>,
    /// Those for everything that changes or reveals state.
    pub(crate) admin_tokens: Option<&'a Path>,
}

impl Asks<'_> {
    pub(super) const fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }

    /// What `curl` needs for a check, each word with a blank before it.
    pub(super) fn of_curl(&self) -> String {
        let authority = self.tls.then_some(" --cacert ca.pem");
        let certificate = self.certificate.then_some(" --cert client.pem --key client.key");
        let token = self.check_tokens.map(|_| r#" -H "Authorization: Bearer $TOKEN""#);
        [authority, certificate, token].into_iter().flatten().collect()
    }

    /// What `tollgate` needs to look.
    pub(super) fn of_tollgate(&self) -> String {
        let authority = self.tls.then(|| " --server-ca ca.pem".to_owned());
        let certificate =
            self.certificate.then(|| " --server-cert client.pem --server-key client.key".to_owned());
        let token = self.admin_tokens.map(|file| format!(" --token-file {}", shown(file)));
        [authority, certificate, token].into_iter().flatten().collect()
    }

    /// What stands for something else in them, a line each.
    pub(super) fn legend(&self) -> Vec<String> {
        let authority =
            self.tls.then(|| "ca.pem      is the authority that vouches for the server".to_owned());
        let certificate = self
            .certificate
            .then(|| "client.pem  is a certificate that the server accepts, client.key its key".to_owned());
        let token =
            self.check_tokens.map(|file| format!("$TOKEN      is one of the tokens in {}", shown(file)));
        [authority, certificate, token].into_iter().flatten().collect()
    }
}

fn shown(file: &Path) -> String {
    quoted(&file.to_string_lossy()).into_owned()
}
