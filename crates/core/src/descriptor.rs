//! The attributes of a request that rules match and count by.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::path::path_readings;

/// The attribute that names a caller's plan.
pub(crate) const PLAN: &str = "plan";
/// The attribute that names a caller.
pub(crate) const USER_ID: &str = "user_id";
/// The attribute that holds the client's address.
pub(crate) const IP: &str = "ip";
/// The attribute that holds the path of a request.
pub(crate) const ENDPOINT: &str = "endpoint";
/// The attribute that holds the method of a request.
pub(crate) const METHOD: &str = "method";
/// The attribute that holds the host of a request.
pub(crate) const HOST: &str = "host";

/// The attributes with a fixed number, by their number.
const FIXED: [&str; 6] = [USER_ID, PLAN, IP, ENDPOINT, METHOD, HOST];

/// The attributes of one request: `user_id=42 plan=free ip=203.0.113.7 endpoint=/api/search method=GET`.
///
/// Values are normalised as they are added, so that a caller cannot avoid a limit by spelling: paths are
/// normalised, IPv4 addresses mapped into IPv6 are IPv4, methods are upper case, hosts lower, `ip_address` is `ip`.
/// Adding an attribute again replaces it. Borrowed values stay borrowed: describing an ordinary request allocates
/// nothing.
///
/// Whether `%2F` separates two segments is decided by the application, so a path with `%2F` has two readings. The
/// attribute, and therefore every key, has the decoded one; [`encoded_endpoint`](Self::encoded_endpoint) has the other.
///
/// ```
/// use tollgate_core::Descriptor;
///
/// let request = Descriptor::new().with("user_id", "42").with("endpoint", "//api/%73earch/?q=1");
/// assert_eq!(request.text("endpoint").as_deref(), Some("/api/search"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Descriptor<'a> {
    /// The attributes with a fixed number that are present, one bit each.
    present: u8,
    /// The attributes with a fixed number.
    fixed: [Option<Value<'a>>; FIXED.len()],
    /// The first of the others, in the order they were added.
    other: Option<Other<'a>>,
    /// The rest of them.
    more: Vec<Other<'a>>,
    /// Only where it differs from the attribute.
    encoded_endpoint: Option<Box<str>>,
}

/// An attribute without a fixed number. These are not in a `SmallVec`, which would make a descriptor invariant in its
/// lifetime.
type Other<'a> = (Cow<'a, str>, Value<'a>);

/// The value of one attribute: text (numbers and booleans arrive as text), or an address. Flat, so that it takes 24 bytes.
#[derive(Debug, Clone)]
pub enum Value<'a> {
    /// Text of the caller's.
    Borrowed(&'a str),
    /// Text that had to be normalised or built.
    Owned(Box<str>),
    /// An address.
    Ip(IpAddr),
}

const _: () = assert!(size_of::<Value<'_>>() == 24);

/// An attribute that a rule names. The usual ones are found by a number, without comparing text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attribute {
    number: Option<u8>,
    name: Box<str>,
}

impl Attribute {
    /// How many attributes have a fixed number.
    pub(crate) const FIXED: usize = FIXED.len();
    /// The number of the address.
    pub(crate) const IP: usize = 2;
    /// The number of the endpoint.
    pub(crate) const ENDPOINT: usize = 3;

    pub(crate) fn new(name: &str) -> Self {
        match number(name) {
            Some(number) => Attribute { number: Some(number), name: FIXED[usize::from(number)].into() },
            None => Attribute { number: None, name: name.into() },
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.name
    }

    /// The fixed number, if it has one.
    pub(crate) fn number(&self) -> Option<usize> {
        self.number.map(usize::from)
    }
}

/// The fixed number of an attribute.
#[inline(always)]
fn number(name: &str) -> Option<u8> {
    Some(match name {
        USER_ID => 0,
        PLAN => 1,
        IP | "ip_address" => 2,
        ENDPOINT => 3,
        METHOD => 4,
        HOST => 5,
        _ => return None,
    })
}

impl<'a> Descriptor<'a> {
    /// A request about which nothing is known yet.
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same request with one more attribute.
    #[must_use]
    #[inline(always)] // a name that is known at compile time is then compared at compile time
    pub fn with(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
        self.set(name, value);
        self
    }

    /// The same request with the client's address.
    #[must_use]
    #[inline]
    pub fn with_ip(mut self, address: IpAddr) -> Self {
        self.set_ip(address);
        self
    }

    /// Adds the client's address.
    #[inline]
    pub fn set_ip(&mut self, address: IpAddr) {
        self.set_fixed(2, Value::Ip(address.to_canonical()));
    }

    /// Adds one more attribute.
    #[inline(always)]
    pub fn set(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) {
        let (name, value) = (name.into(), value.into());
        let Some(number) = number(&name) else { return self.set_other(name, value.into()) };
        let value = match number {
            2 => match value.parse::<IpAddr>() {
                Ok(address) => Value::Ip(address.to_canonical()),
                Err(_) => value.into(),
            },
            3 => {
                let (decoded, encoded) = path_readings(value);
                self.encoded_endpoint = encoded;
                decoded.into()
            }
            4 => upper_case(value).into(),
            5 => lower_case(value).into(),
            _ => value.into(),
        };
        self.set_fixed(number, value);
    }

    #[inline(always)]
    fn set_fixed(&mut self, number: u8, value: Value<'a>) {
        self.present |= 1 << number;
        self.fixed[usize::from(number)] = Some(value);
    }

    #[inline]
    fn set_other(&mut self, name: Cow<'a, str>, value: Value<'a>) {
        match &self.other {
            None => self.other = Some((name, value)),
            Some(_) => self.set_one_of_several(name, value),
        }
    }

    #[inline(never)]
    fn set_one_of_several(&mut self, name: Cow<'a, str>, value: Value<'a>) {
        let mut known = self.other.iter_mut().chain(&mut self.more);
        if let Some(attribute) = known.find(|(known, _)| *known == name) {
            attribute.1 = value;
            return;
        }
        self.more.push((name, value));
    }

    /// The value of an attribute.
    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        match number(name) {
            Some(number) => self.fixed[usize::from(number)].as_ref(),
            None => self.named(name),
        }
    }

    /// The value of an attribute that a rule names.
    #[inline]
    pub(crate) fn value(&self, attribute: &Attribute) -> Option<&Value<'a>> {
        match attribute.number {
            Some(number) => self.fixed[usize::from(number)].as_ref(),
            None => self.named(&attribute.name),
        }
    }

    #[inline(never)] // the usual attributes have a number
    fn named(&self, name: &str) -> Option<&Value<'a>> {
        self.others().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// The value of an attribute as text.
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        self.get(name).map(Value::text)
    }

    /// The endpoint with its `%2F` kept, if it has any: `/a%2Fb` where the attribute is `/a/b`.
    #[inline]
    pub fn encoded_endpoint(&self) -> Option<&str> {
        self.encoded_endpoint.as_deref()
    }

    /// Every attribute: first those with a fixed number, then the others in the order they were added.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &Value<'a>)> {
        let fixed = FIXED.into_iter().zip(&self.fixed);
        let fixed = fixed.filter_map(|(name, value)| value.as_ref().map(|value| (name, value)));
        fixed.chain(self.others().map(|(name, value)| (&**name, value)))
    }

    /// The value of an attribute with a fixed number.
    #[inline]
    pub(crate) const fn fixed_value(&self, number: usize) -> Option<&Value<'a>> {
        self.fixed[number].as_ref()
    }

    /// The attributes with a fixed number that are present, one bit each.
    #[inline]
    pub(crate) const fn fixed_mask(&self) -> u8 {
        self.present
    }

    /// All other attributes.
    #[inline]
    pub(crate) fn others(&self) -> impl Iterator<Item = &Other<'a>> {
        self.other.iter().chain(&self.more)
    }
}

impl Value<'_> {
    /// The value as text: borrowed, unless it is an address.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Value::Borrowed(text) => Cow::Borrowed(text),
            Value::Owned(text) => Cow::Borrowed(text),
            Value::Ip(address) => Cow::Owned(address.to_string()),
        }
    }

    /// The text, unless it is an address.
    #[inline]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Borrowed(text) => Some(text),
            Value::Owned(text) => Some(text),
            Value::Ip(_) => None,
        }
    }
}

impl<'a> From<Cow<'a, str>> for Value<'a> {
    #[inline]
    fn from(text: Cow<'a, str>) -> Self {
        match text {
            Cow::Borrowed(text) => Value::Borrowed(text),
            Cow::Owned(text) => Value::Owned(text.into()),
        }
    }
}

/// Borrowed and owned text are equal.
impl PartialEq for Value<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Value::Ip(one), Value::Ip(other)) => one == other,
            (one, other) => one.as_text().is_some() && one.as_text() == other.as_text(),
        }
    }
}

impl Eq for Value<'_> {}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Borrowed(text) => f.write_str(text),
            Value::Owned(text) => f.write_str(text),
            Value::Ip(address) => address.fmt(f),
        }
    }
}

/// An address as a bucket sees it: IPv6 cut to the network that one customer usually gets.
pub(crate) fn network_of(address: IpAddr, ipv6_prefix: u8) -> IpAddr {
    match address {
        IpAddr::V6(address) => network(address, ipv6_prefix).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[inline(never)]
pub(crate) fn network(address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let host_bits = 128 - u32::from(prefix.min(128));
    Ipv6Addr::from_bits(address.to_bits() & u128::MAX.checked_shl(host_bits).unwrap_or(0))
}

#[inline]
fn upper_case(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        Cow::Owned(text.to_ascii_uppercase())
    } else {
        text
    }
}

fn lower_case(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(text.to_ascii_lowercase())
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_one_form() {
        let mapped = Descriptor::new().with("ip_address", "::ffff:203.0.113.7");
        assert_eq!(mapped.text("ip").as_deref(), Some("203.0.113.7"));
        let address = "2001:db8:1:2:3::4".parse().unwrap();
        assert_eq!(network_of(address, 64).to_string(), "2001:db8:1:2::");
        assert_eq!(network_of(address, 0).to_string(), "::");
        assert_eq!(network_of(address, 128), address);
    }

    #[test]
    fn an_attribute_added_twice_has_the_later_value() {
        let request = Descriptor::new().with("method", "get").with("method", "post");
        assert_eq!(request.text("method").as_deref(), Some("POST"));
        assert_eq!(request.attributes().count(), 1);
    }

    #[test]
    fn a_replaced_endpoint_keeps_no_reading_of_the_earlier_one() {
        let replaced = Descriptor::new().with("endpoint", "/a%2Fb").with("endpoint", "/c");
        assert_eq!(replaced, Descriptor::new().with("endpoint", "/c"));
    }
}
