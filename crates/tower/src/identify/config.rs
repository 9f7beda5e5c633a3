//! `[identify]` of `tollgate.toml`: the same as text.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use super::{ForwardingHeader, Identify, IdentifyError};

/// `[identify]`: which header, API key, path template or address becomes which attribute.
///
/// ```
/// use tollgate_tower::{Identify, IdentifyConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config: IdentifyConfig = toml::from_str(r#"
/// trusted_proxies = ["10.0.0.0/8", "192.0.2.7"]
/// forwarding_header = "x-forwarded-for"           # or "forwarded"
/// paths = ["/tenants/{tenant}/**"]
/// host = true
/// headers = { x-user-id = "user_id", x-plan = "plan" }
/// api_key = { header = "x-api-key", attribute = "api_key", hashed = true }
/// "#)?;
/// let identify = Identify::try_from(config)?;
/// # drop(identify); Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IdentifyConfig {
    /// Peers whose forwarding header is believed: addresses and networks.
    pub trusted_proxies: Vec<String>,
    /// The header they write.
    pub forwarding_header: ForwardingHeader,
    /// Headers, and the attributes they become.
    pub headers: BTreeMap<String, String>,
    /// The header that holds an API key.
    pub api_key: Option<ApiKeyConfig>,
    /// Path templates.
    pub paths: Vec<String>,
    /// Whether the host becomes an attribute.
    pub host: bool,
}

/// `api_key`: where it is and what it becomes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiKeyConfig {
    /// The header.
    pub header: String,
    /// The attribute; `api_key` if nobody says.
    #[serde(default = "api_key")]
    pub attribute: String,
    /// Whether it is hashed first, which it is if nobody says.
    #[serde(default = "yes")]
    pub hashed: bool,
}

fn api_key() -> String {
    "api_key".to_owned()
}

const fn yes() -> bool {
    true
}

impl TryFrom<IdentifyConfig> for Identify {
    type Error = IdentifyError;

    fn try_from(config: IdentifyConfig) -> Result<Self, IdentifyError> {
        let networks = config.trusted_proxies.iter().map(|text| network(text));
        let mut identify = Identify::new()
            .trusted_proxies(networks.collect::<Result<Vec<_>, _>>()?)
            .forwarding_header(config.forwarding_header);
        if config.host {
            identify = identify.host();
        }
        for template in &config.paths {
            identify = identify.path(template)?;
        }
        for (header, attribute) in &config.headers {
            identify = identify.header(header, attribute)?;
        }
        match config.api_key {
            Some(key) if key.hashed => identify.api_key(&key.header, &key.attribute),
            Some(key) => identify.header(&key.header, &key.attribute),
            None => Ok(identify),
        }
    }
}

/// A network, or an address that is one by itself.
fn network(text: &str) -> Result<IpNet, IdentifyError> {
    let address = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse().or_else(|_| address()).map_err(|_| IdentifyError::Network { text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identify(text: &str) -> Result<Identify, String> {
        let config: IdentifyConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        Identify::try_from(config).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_said_is_the_default() {
        assert_eq!(toml::from_str(""), Ok(IdentifyConfig::default()));
        assert_eq!(format!("{:?}", identify("").unwrap()), format!("{:?}", Identify::new()));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        for (text, part) in [
            ("header = {}", "unknown field `header`"),
            ("trusted_proxies = ['10.0.0.0/33']", "`10.0.0.0/33` is neither"),
            ("headers = { 'x user' = 'user_id' }", "`x user` cannot be the name of a header"),
            ("headers = { x-user = 'user id' }", "`user id` is not an attribute's name"),
            ("paths = ['tenants']", "begin with a slash"),
            ("forwarding_header = 'x-real-ip'", "x-real-ip"),
            ("api_key = { header = 'x-api-key', hash = true }", "unknown field `hash`"),
        ] {
            let error = identify(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
