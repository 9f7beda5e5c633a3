//! The first screen of `tollgate serve`: what listens, which rules, and with the starter set a request that ends in a 429.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use tollgate::{RuleSet, rules};

use crate::client::login_link;
use crate::data::DataArgs;
use crate::local;
use crate::terminal::{Terminal, Tone};
use crate::words::quoted;

/// An example for the starter set, whose bucket of 50 tokens has too few for the third request of 20.
const EXAMPLE: &str =
    "The rule per-user-free allows 10/s burst 50. Ask for 20 tokens three times; the third is a 429:";
const EXAMPLE_BODY: &str = r#"{"attributes": {"user_id": "42", "plan": "free"}, "cost": 20}"#;
const EXAMPLE_FLAGS: &str = "--user-id 42 --plan free";

/// What is shown.
pub(crate) struct Banner<'a> {
    pub(crate) http: &'a str,
    pub(crate) admin: &'a str,
    pub(crate) metrics: Option<SocketAddr>,
    /// The path of the dashboard that signs in; none without a token that may write in the data directory.
    pub(crate) login: Option<String>,
    pub(crate) data: &'a DataArgs,
    pub(crate) credentials: Credentials,
    pub(crate) rules: String,
    pub(crate) store: String,
    pub(crate) config: Option<&'a str>,
    /// Whether the example works: the rules are the starter set.
    pub(crate) has_example: bool,
}

/// What a client has to present to the server, for the commands of the first screen.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Credentials {
    /// The listener is TLS.
    pub(crate) tls: bool,
    /// The listener requires a client certificate.
    pub(crate) certificate: bool,
    /// Checks need a token.
    pub(crate) check_token: bool,
}

/// Whether the rules are the starter set, for which there is an example.
pub(crate) fn is_starter_set(rules: &RuleSet) -> bool {
    let starter = rules::parse("starter.yaml", rules::STARTER);
    let drafts = |rules: &RuleSet| rules.rules().iter().map(|rule| rule.draft().clone()).collect::<Vec<_>>();
    starter.is_ok_and(|starter| {
        starter.rules().len() == rules.rules().len() && drafts(&starter) == drafts(rules)
    })
}

impl Banner<'_> {
    /// Prints it.
    ///
    /// # Errors
    ///
    /// Standard output is closed.
    pub(crate) fn print(&self, terminal: &mut Terminal) -> anyhow::Result<()> {
        let Banner { http, admin, credentials, rules, store, .. } = self;
        let title = terminal.paint(Tone::Strong, concat!("tollgate ", env!("CARGO_PKG_VERSION")));
        let data_dir = self.data.flag();
        let request = if self.has_example { EXAMPLE_FLAGS } else { "--user-id 42" };
        let explain = format!("tollgate explain{data_dir}{} {request}", credentials.tollgate_flags());
        let explain = terminal.paint(Tone::Faint, &explain);
        let link = format!(
            "signs you in once, within 10 minutes; for another link: tollgate dashboard{data_dir}{}",
            credentials.tollgate_flags()
        );
        let link = terminal.paint(Tone::Faint, &link);
        let out = terminal.out();
        writeln!(out, "{title}\n")?;
        writeln!(out, "  checks     {http}")?;
        match &self.login {
            Some(path) => writeln!(out, "  dashboard  {}\n             {link}", login_link(admin, path))?,
            None => writeln!(out, "  dashboard  {admin}")?,
        }
        if let Some(metrics) = self.metrics {
            writeln!(out, "  metrics    http://{metrics}/metrics")?;
        }
        writeln!(out, "  rules      {rules}")?;
        writeln!(out, "  store      {store}")?;
        if let Some(config) = self.config {
            writeln!(out, "  config     {config}")?;
        }
        if self.has_example {
            let curl = format!("curl -i{} {http}/v1/check", credentials.curl_flags());
            let body = quoted(EXAMPLE_BODY);
            writeln!(out, "\n{EXAMPLE}\n\n  for i in 1 2 3; do {curl} \\\n    -d {body}; done")?;
        }
        writeln!(out, "\nWhich rules a request meets, and why:\n\n  {explain}")?;
        let legend = credentials.legend(&local::token_file(&self.data.path()));
        if !legend.is_empty() {
            writeln!(out, "\nIn these commands\n\n  {}", legend.join("\n  "))?;
        }
        out.flush()?;
        Ok(())
    }
}

impl Credentials {
    /// The flags of `curl` for a check, each with a space before it.
    fn curl_flags(self) -> String {
        let authority = self.tls.then_some(" --cacert ca.pem");
        let certificate = self.certificate.then_some(" --cert client.pem --key client.key");
        let token = self.check_token.then_some(r#" -H "Authorization: Bearer $TOKEN""#);
        [authority, certificate, token].into_iter().flatten().collect()
    }

    /// The flags of commands that ask the server.
    fn tollgate_flags(self) -> String {
        let authority = self.tls.then_some(" --server-ca ca.pem");
        let certificate = self.certificate.then_some(" --server-cert client.pem --server-key client.key");
        [authority, certificate].into_iter().flatten().collect()
    }

    /// What the placeholders in these commands are, a line each.
    fn legend(self, token_file: &Path) -> Vec<String> {
        let authority = self.tls.then(|| "ca.pem      is the authority that signed the server".to_owned());
        let certificate = self
            .certificate
            .then(|| "client.pem  is a certificate that the server accepts, client.key its key".to_owned());
        let token = self.check_token.then(|| {
            let file = quoted(&token_file.to_string_lossy()).into_owned();
            format!("$TOKEN      is the secret of a token: TOKEN=$(cut -d: -f3 {file})")
        });
        [authority, certificate, token].into_iter().flatten().collect()
    }
}

/// Where this machine reaches a listener: one on every address is also on loopback.
pub(crate) fn reachable(listener: SocketAddr) -> SocketAddr {
    let address = match listener.ip() {
        IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) if address.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    };
    SocketAddr::new(address, listener.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_starter_set_has_the_example() {
        let set = |text: &str| rules::parse("rules.yaml", text).unwrap();
        assert!(is_starter_set(&set(rules::STARTER)));
        assert!(!is_starter_set(&set(&rules::STARTER.replace("burst 50\n", "burst 500\n"))));
        assert!(!is_starter_set(&set("rules: []")));
    }

    #[test]
    fn what_the_server_requires_is_in_the_commands() {
        let credentials = Credentials { tls: true, certificate: true, check_token: true };
        assert_eq!(
            credentials.curl_flags(),
            r#" --cacert ca.pem --cert client.pem --key client.key -H "Authorization: Bearer $TOKEN""#
        );
        assert_eq!(
            credentials.tollgate_flags(),
            " --server-ca ca.pem --server-cert client.pem --server-key client.key"
        );
        let legend = credentials.legend(Path::new("my data/token"));
        assert!(legend[2].ends_with("TOKEN=$(cut -d: -f3 'my data/token')"), "{legend:?}");
    }

    #[test]
    fn a_listener_on_every_address_is_reached_on_loopback() {
        for (listener, here) in [
            ("0.0.0.0:8080", "127.0.0.1:8080"),
            ("[::]:8080", "[::1]:8080"),
            ("192.0.2.7:8080", "192.0.2.7:8080"),
        ] {
            assert_eq!(reachable(listener.parse().unwrap()).to_string(), here);
        }
    }
}
