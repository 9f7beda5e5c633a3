//! A request as the command line describes it.

use std::net::IpAddr;

use serde_json::{Map, Value, json};
use tollgate::Descriptor;
use tollgate::core::limit::MAX_EXACT;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Request")]
pub(crate) struct RequestArgs {
    /// Who asks
    #[arg(long, value_name = "ID", env = "TOLLGATE_USER_ID")]
    user_id: Option<String>,
    /// The caller's plan, such as free or pro
    #[arg(long, env = "TOLLGATE_PLAN")]
    plan: Option<String>,
    /// The client's address
    #[arg(long, value_name = "ADDRESS", env = "TOLLGATE_IP")]
    ip: Option<IpAddr>,
    /// The path, such as /api/search
    #[arg(long, value_name = "PATH", env = "TOLLGATE_ENDPOINT")]
    endpoint: Option<String>,
    /// The method, such as GET
    #[arg(long, env = "TOLLGATE_METHOD")]
    method: Option<String>,
    /// Any other attribute; may be given several times
    #[arg(long = "attr", value_name = "NAME=VALUE", env = "TOLLGATE_ATTR", value_parser = attribute)]
    attributes: Vec<(String, String)>,
    /// How many tokens the request takes
    #[arg(
        long,
        value_name = "TOKENS",
        env = "TOLLGATE_COST",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(..=MAX_EXACT),
    )]
    pub(crate) cost: u64,
}

impl RequestArgs {
    /// The body of a check.
    pub(crate) fn body(&self) -> Value {
        let request = self.descriptor();
        let attribute =
            |(name, value): (&str, &tollgate::core::Value<'_>)| (name.to_owned(), value.to_string().into());
        let attributes: Map<String, Value> = request.attributes().map(attribute).collect();
        json!({ "attributes": attributes, "cost": self.cost })
    }

    pub(crate) fn descriptor(&self) -> Descriptor<'_> {
        let named = [
            ("user_id", &self.user_id),
            ("plan", &self.plan),
            ("endpoint", &self.endpoint),
            ("method", &self.method),
        ];
        let mut request = Descriptor::new();
        for (name, value) in named {
            if let Some(value) = value {
                request.set(name, value);
            }
        }
        if let Some(address) = self.ip {
            request = request.with_ip(address);
        }
        for (name, value) in &self.attributes {
            request.set(name, value);
        }
        request
    }
}

/// The request in one line: `user_id=42 plan=free`.
pub(crate) fn shown(request: &Descriptor<'_>) -> String {
    let facts: Vec<String> = request.attributes().map(|(name, value)| format!("{name}={value}")).collect();
    if facts.is_empty() { "a request about which nothing is known".to_owned() } else { facts.join(" ") }
}

fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it like `tenant=acme`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_is_split_at_the_first_equals_sign() {
        assert_eq!(attribute("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(attribute("a="), Ok(("a".to_owned(), String::new())));
        assert!(attribute("a").is_err());
        assert!(attribute("=a").is_err());
    }
}
