//! What a rule demands of a request before it applies.

use ipnet::{IpNet, Ipv4Net};

use crate::descriptor::{self, Attribute, Descriptor, Value};
use crate::glob::Glob;

/// One demand: an attribute must have one of some values.
///
/// Endpoints are compared as globs, addresses by network, methods and hosts without regard to case, everything else to
/// the letter. An absent attribute meets no demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    attribute: Attribute,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Test {
    OneOf(Vec<Box<str>>),
    Path(Vec<Glob>),
    Within(Vec<IpNet>),
}

/// A value that its attribute cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConditionError {
    /// Not a network.
    #[error("`{text}` is neither an address nor a network; write `203.0.113.7` or `10.0.0.0/8`")]
    Network {
        /// What was written.
        text: String,
    },
    /// No value at all could be met by none.
    #[error("no value is given for `{attribute}`, so the rule could never apply; list at least one")]
    NoValue {
        /// The attribute.
        attribute: String,
    },
}

impl Condition {
    /// Demands that `attribute` has one of `values`.
    ///
    /// # Errors
    ///
    /// No values, or one for `ip` that is neither an address nor a network.
    pub fn new<'a>(
        attribute: &str,
        values: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, ConditionError> {
        let mut values = values.into_iter().peekable();
        if values.peek().is_none() {
            return Err(ConditionError::NoValue { attribute: attribute.to_owned() });
        }
        let attribute = Attribute::new(attribute);
        let test = match attribute.as_str() {
            descriptor::IP => Test::Within(IpNet::aggregate(&values.map(network).collect::<Result<_, _>>()?)),
            descriptor::ENDPOINT => Test::Path(values.map(Glob::new).collect()),
            descriptor::METHOD => {
                Test::OneOf(values.map(|value| value.to_ascii_uppercase().into()).collect())
            }
            descriptor::HOST => Test::OneOf(values.map(|value| value.to_ascii_lowercase().into()).collect()),
            _ => Test::OneOf(values.map(Into::into).collect()),
        };
        Ok(Condition { attribute, test })
    }

    /// The attribute it is about.
    pub fn attribute(&self) -> &str {
        self.attribute.as_str()
    }

    pub(crate) const fn name(&self) -> &Attribute {
        &self.attribute
    }

    pub(crate) const fn test(&self) -> &Test {
        &self.test
    }

    /// Whether a request meets it, in either reading of a path with `%2F`.
    #[inline]
    pub fn holds(&self, request: &Descriptor<'_>) -> bool {
        let Some(value) = request.value(&self.attribute) else { return false };
        match (&self.test, value, value.as_text()) {
            (Test::OneOf(values), _, Some(text)) => values.iter().any(|value| **value == *text),
            (Test::Path(globs), _, Some(path)) => {
                any_matches(globs, path)
                    || request.encoded_endpoint().is_some_and(|path| any_matches(globs, path))
            }
            (Test::Within(networks), Value::Ip(address), _) => {
                networks.iter().any(|network| network.contains(address))
            }
            _ => false,
        }
    }

    /// Whether a request meets it in both readings of a path with `%2F`.
    pub(crate) fn holds_in_both_readings(&self, request: &Descriptor<'_>) -> bool {
        let decoded = request.value(&self.attribute).and_then(Value::as_text);
        match (&self.test, decoded, request.encoded_endpoint()) {
            (Test::Path(globs), Some(decoded), Some(encoded)) => {
                any_matches(globs, decoded) && any_matches(globs, encoded)
            }
            _ => self.holds(request),
        }
    }

    /// A value that meets it, to try a rule out with.
    pub fn example(&self) -> String {
        let values = match &self.test {
            Test::OneOf(values) => values.first().map(ToString::to_string),
            Test::Path(globs) => globs.first().map(|glob| glob.as_str().replace("**", "x").replace('*', "x")),
            Test::Within(networks) => networks.first().map(|network| network.addr().to_string()),
        };
        values.expect("a condition has at least one value")
    }

    /// What it demands, for people: `method one of GET, POST`.
    pub fn describe(&self) -> String {
        let values: Vec<String> = match &self.test {
            Test::OneOf(values) => values.iter().map(ToString::to_string).collect(),
            Test::Path(globs) => globs.iter().map(|glob| glob.as_str().to_owned()).collect(),
            Test::Within(networks) => networks.iter().map(ToString::to_string).collect(),
        };
        let relation = match (&self.test, values.len()) {
            (Test::OneOf(_), 1) => "is",
            (Test::OneOf(_), _) => "is one of",
            (Test::Path(_), _) => "matches",
            (Test::Within(_), _) => "is in",
        };
        format!("{} {relation} {}", self.attribute(), values.join(", "))
    }
}

fn any_matches(globs: &[Glob], path: &str) -> bool {
    globs.iter().any(|glob| glob.matches(path))
}

/// A network, or the network of a single address; addresses mapped into IPv6 are IPv4.
fn network(text: &str) -> Result<IpNet, ConditionError> {
    let single =
        |text: &str| text.parse().ok().map(|address: std::net::IpAddr| IpNet::from(address.to_canonical()));
    text.parse::<IpNet>()
        .ok()
        .map(|network| canonical(network.trunc()))
        .or_else(|| single(text))
        .ok_or_else(|| ConditionError::Network { text: text.to_owned() })
}

/// Networks of addresses mapped into IPv6 are those of the IPv4 addresses.
fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(mapped) = network else { return network };
    let (Some(address), Some(length)) = (mapped.addr().to_ipv4_mapped(), mapped.prefix_len().checked_sub(96))
    else {
        return network;
    };
    Ipv4Net::new(address, length).map_or(network, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(attribute: &str, values: &[&str], request: &Descriptor<'_>) -> bool {
        Condition::new(attribute, values.iter().copied()).unwrap().holds(request)
    }

    #[test]
    fn an_example_meets_its_condition() {
        for (attribute, values) in [
            ("plan", &["free", "pro"][..]),
            ("method", &["post"]),
            ("host", &["Example.COM"]),
            ("endpoint", &["/a/*/b", "/c"]),
            ("endpoint", &["/api/**"]),
            ("endpoint", &["**"]),
            ("ip", &["10.0.0.0/8"]),
            ("ip", &["2001:db8::7"]),
        ] {
            let condition = Condition::new(attribute, values.iter().copied()).unwrap();
            let example = condition.example();
            assert!(condition.holds(&Descriptor::new().with(attribute, &*example)), "{attribute}: {example}");
        }
    }

    #[test]
    fn each_attribute_is_compared_in_its_own_way() {
        let request = Descriptor::new()
            .with("method", "post")
            .with("endpoint", "/api/search/")
            .with("ip", "::ffff:10.1.2.3")
            .with("user_id", "42");
        assert!(holds("method", &["get", "Post"], &request));
        assert!(holds("endpoint", &["/api/*"], &request));
        assert!(holds("ip", &["10.0.0.0/8"], &request));
        assert!(holds("ip_address", &["10.1.2.3"], &request));
        assert!(holds("ip", &["::ffff:10.0.0.0/104"], &request));
        assert!(holds("user_id", &["42"], &request));
        assert!(!holds("user_id", &["4*"], &request));
        assert!(!holds("ip", &["2001:db8::/32"], &request));
        assert!(!holds("tenant", &["x"], &request));
    }

    #[test]
    fn a_condition_that_nothing_meets_is_an_error() {
        assert!(Condition::new("method", []).is_err());
        assert!(Condition::new("ip", ["10.0.0.0/99"]).is_err());
    }
}
