//! The facts about a request that rules match and count by.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use smallvec::SmallVec;

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

/// The facts about one request: `user_id=42 plan=free ip=203.0.113.7 endpoint=/api/search method=GET`.
///
/// Facts are brought into one form as they are added, so that nobody slips past a limit by spelling: paths are
/// normalised, IPv4 addresses mapped into IPv6 are IPv4, methods are upper case, hosts lower, `ip_address` is `ip`. Adding a
/// fact again replaces it. Borrowed values stay borrowed: describing an ordinary request allocates nothing.
///
/// Whether `%2F` separates two segments is decided by the application, so a path with `%2F` has two readings. The fact,
/// and therefore every key, has the decoded one; [`encoded_endpoint`](Self::encoded_endpoint) has the other.
///
/// ```
/// use tollgate_core::Descriptor;
///
/// let request = Descriptor::new().with("user_id", "42").with("endpoint", "//api/%73earch/?q=1");
/// assert_eq!(request.text("endpoint").as_deref(), Some("/api/search"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Descriptor<'a> {
    facts: SmallVec<[(Name<'a>, Value<'a>); 6]>,
    /// Only where it differs from the fact.
    encoded_endpoint: Option<Box<str>>,
}

/// The value of one fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'a> {
    /// Any text; numbers and booleans arrive as text.
    Text(Cow<'a, str>),
    /// An address.
    Ip(IpAddr),
}

impl<'a> Descriptor<'a> {
    /// A request about which nothing is known yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same request with one more fact.
    #[must_use]
    #[inline]
    pub fn with(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
        self.set(name, value);
        self
    }

    /// The same request with the client's address.
    #[must_use]
    pub fn with_ip(mut self, address: IpAddr) -> Self {
        self.set_ip(address);
        self
    }

    /// Adds the client's address.
    #[inline]
    pub fn set_ip(&mut self, address: IpAddr) {
        self.put(Name::new(Cow::Borrowed(IP)), Value::Ip(address.to_canonical()));
    }

    /// Adds one more fact.
    #[inline]
    pub fn set(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) {
        let (name, value) = (Name::new(name.into()), value.into());
        let value = match &*name.text {
            IP => match value.parse::<IpAddr>() {
                Ok(address) => Value::Ip(address.to_canonical()),
                Err(_) => Value::Text(value),
            },
            ENDPOINT => {
                let (decoded, encoded) = path_readings(value);
                self.encoded_endpoint = encoded;
                Value::Text(decoded)
            }
            METHOD => Value::Text(upper_case(value)),
            HOST => Value::Text(lower_case(value)),
            _ => Value::Text(value),
        };
        self.put(name, value);
    }

    #[inline]
    fn put(&mut self, name: Name<'a>, value: Value<'a>) {
        match self.facts.iter_mut().find(|(known, _)| known.is(&name)) {
            Some(fact) => fact.1 = value,
            None => self.facts.push((name, value)),
        }
    }

    /// The value of a fact.
    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        self.find(&Name::new(Cow::Borrowed(name)))
    }

    /// The value of a fact whose name was read before.
    #[inline]
    pub(crate) fn find(&self, name: &Name<'_>) -> Option<&Value<'a>> {
        self.facts.iter().find(|(known, _)| known.is(name)).map(|(_, value)| value)
    }

    /// The value of a fact as text.
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        self.get(name).map(Value::text)
    }

    /// The endpoint with its `%2F` kept, if it has any: `/a%2Fb` where the fact is `/a/b`.
    #[inline]
    pub fn encoded_endpoint(&self) -> Option<&str> {
        self.encoded_endpoint.as_deref()
    }

    /// Every fact, in the order they were added.
    pub fn facts(&self) -> impl Iterator<Item = (&str, &Value<'a>)> {
        self.facts.iter().map(|(name, value)| (&*name.text, value))
    }

    /// Every fact with its name as it was read.
    #[inline]
    pub(crate) fn named_facts(&self) -> impl Iterator<Item = (&Name<'a>, &Value<'a>)> {
        self.facts.iter().map(|(name, value)| (name, value))
    }
}

/// The name of an attribute. The usual ones are told apart by a number, without comparing text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name<'a> {
    number: u8,
    text: Cow<'a, str>,
}

impl<'a> Name<'a> {
    /// How many names have a number, counting 0, which all the others share.
    pub(crate) const NUMBERS: usize = 6;

    #[inline]
    pub(crate) fn new(text: Cow<'a, str>) -> Self {
        let (number, text) = match &*text {
            USER_ID => (1, Cow::Borrowed(USER_ID)),
            PLAN => (2, Cow::Borrowed(PLAN)),
            IP | "ip_address" => (3, Cow::Borrowed(IP)),
            ENDPOINT => (4, Cow::Borrowed(ENDPOINT)),
            METHOD => (5, Cow::Borrowed(METHOD)),
            _ => (0, text),
        };
        Name { number, text }
    }

    /// The same name for as long as anybody wants it.
    pub(crate) fn owned(text: &str) -> Name<'static> {
        Name::new(Cow::Owned(text.to_owned()))
    }

    #[inline]
    pub(crate) fn is(&self, other: &Name<'_>) -> bool {
        self.number == other.number && (self.number != 0 || self.text == other.text)
    }

    #[inline]
    pub(crate) fn number(&self) -> usize {
        usize::from(self.number)
    }

    #[inline]
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

impl Value<'_> {
    /// The value as text: borrowed, unless it is an address.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Value::Text(text) => Cow::Borrowed(text),
            Value::Ip(address) => Cow::Owned(address.to_string()),
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(text),
            Value::Ip(address) => address.fmt(f),
        }
    }
}

/// An address as a bucket sees it: IPv6 cut to the network that one customer usually gets.
pub(crate) fn network(address: IpAddr, ipv6_prefix: u8) -> IpAddr {
    match address {
        IpAddr::V6(address) if ipv6_prefix < 128 => {
            let mask = u128::MAX.checked_shl(128 - u32::from(ipv6_prefix)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
        address => address,
    }
}

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

/// A path with every `%2F` read as a slash, and, if that is another path, the one with every `%2F` kept. Both are in
/// their one spelling: no query, no doubled or trailing slash, no dot segments, every byte that may stand for itself
/// as itself and every other one percent-encoded. What does not begin with a slash is a name and stays as it is.
fn path_readings(path: Cow<'_, str>) -> (Cow<'_, str>, Option<Box<str>>) {
    if !path.starts_with('/') || is_normal(path.as_bytes(), Star::Byte) {
        return (path, None);
    }
    // The dots of `/a%2Fb/../c` remove another segment in each reading, so both start from the path as given.
    let decoded = has_encoded_slash(&path).then(|| path.replace("%2F", "/").replace("%2f", "/"));
    let encoded = normal(path, Star::Byte);
    match decoded.map(|decoded| normal(Cow::Owned(decoded), Star::Byte)) {
        Some(decoded) if decoded != encoded => (decoded, Some(encoded.into())),
        _ => (encoded, None),
    }
}

fn has_encoded_slash(path: &str) -> bool {
    path.as_bytes().windows(3).any(|bytes| bytes.eq_ignore_ascii_case(b"%2F"))
}

/// A pattern in the spelling of paths. A star is a wildcard and `%2A` the byte.
pub(crate) fn normal_pattern(pattern: &str) -> Cow<'_, str> {
    normal(Cow::Borrowed(pattern), Star::Wildcard)
}

/// What a bare star in a path is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Star {
    Byte,
    Wildcard,
}

fn normal(path: Cow<'_, str>, star: Star) -> Cow<'_, str> {
    if !path.starts_with('/') || is_normal(path.as_bytes(), star) {
        return path;
    }
    let end = path.find(['?', '#']).unwrap_or(path.len());
    let mut segments: Vec<String> = Vec::new();
    for segment in path[..end].split('/') {
        match respelt(segment.as_bytes(), star).as_str() {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment.to_owned()),
        }
    }
    Cow::Owned(format!("/{}", segments.join("/")))
}

fn is_normal(path: &[u8], star: Star) -> bool {
    let mut before = 0;
    for (index, byte) in path.iter().enumerate() {
        let begins_segment = before == b'/';
        match byte {
            b'/' | b'.' if begins_segment => return false,
            b'/' if index > 0 && index + 1 == path.len() => return false,
            b'/' => before = b'/',
            byte if stands_for_itself(*byte, star) => before = *byte,
            _ => return false,
        }
    }
    true
}

/// Decodes every byte of a segment, then encodes those that need it. A `%` that encodes nothing is a byte too.
fn respelt(segment: &[u8], star: Star) -> String {
    let mut out = String::with_capacity(segment.len());
    let mut rest = segment;
    while let [first, after @ ..] = rest {
        let decoded = after.get(..2).filter(|_| *first == b'%').and_then(hex_byte);
        let (byte, spelling) = decoded.map_or((*first, star), |byte| (byte, Star::Byte));
        rest = if decoded.is_some() { &after[2..] } else { after };
        if stands_for_itself(byte, spelling) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

const fn stands_for_itself(byte: u8, star: Star) -> bool {
    match byte {
        b'*' => matches!(star, Star::Wildcard),
        b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'+' | b',' | b';' | b'='
        | b':' | b'@' => true,
        byte => byte.is_ascii_alphanumeric(),
    }
}

/// The byte behind two hexadecimal digits.
pub(crate) fn hex_byte(digits: &[u8]) -> Option<u8> {
    let [high, low] = digits else { return None };
    let value = |digit: &u8| char::from(*digit).to_digit(16);
    u8::try_from(value(high)? * 16 + value(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_path_is_one_path() {
        for path in
            ["/a/b", "/a/b/", "//a//b", "/%61/b", "/a/b?x=1", "/a/./b", "/a/c/../b", "/a/b#f", "/a/%62/"]
        {
            assert_eq!(path_readings(path.into()), ("/a/b".into(), None), "{path}");
        }
        for (path, normal) in [
            ("/", "/"),
            ("//", "/"),
            ("/..", "/"),
            ("/?x", "/"),
            ("/100%", "/100%25"),
            ("/a%2", "/a%252"),
            ("search", "search"),
            ("/.hidden", "/.hidden"),
            ("/%2e%2e/x", "/x"),
            ("/ä%C3%A4", "/%C3%A4%C3%A4"),
            ("/x|y", "/x%7Cy"),
            ("/x%7cy", "/x%7Cy"),
            ("/a b", "/a%20b"),
            ("/a*", "/a%2A"),
            ("/a%2a", "/a%2A"),
        ] {
            assert_eq!(path_readings(path.into()), (normal.into(), None), "{path}");
        }
    }

    #[test]
    fn an_ordinary_path_stays_borrowed() {
        assert!(matches!(path_readings("/api/search.json".into()), (Cow::Borrowed(_), None)));
    }

    #[test]
    fn a_path_with_an_encoded_slash_has_two_readings() {
        for (path, decoded, encoded) in [
            ("/a%2fb", "/a/b", "/a%2Fb"),
            ("/login%2F", "/login", "/login%2F"),
            ("/%2Flogin", "/login", "/%2Flogin"),
            ("/a/..%2Flogin", "/login", "/a/..%2Flogin"),
            ("/a/%2e%2e%2Flogin", "/login", "/a/..%2Flogin"),
            ("/a%2Fb/../login", "/a/login", "/login"),
            ("/%%2F", "/%25", "/%25%2F"),
        ] {
            assert_eq!(path_readings(path.into()), (decoded.into(), Some(encoded.into())), "{path}");
        }
        for (path, only) in [("/a?x=%2F", "/a"), ("/a%252Fb", "/a%252Fb"), ("a%2Fb", "a%2Fb")] {
            assert_eq!(path_readings(path.into()), (only.into(), None), "{path}");
        }
        let replaced = Descriptor::new().with("endpoint", "/a%2Fb").with("endpoint", "/c");
        assert_eq!(replaced, Descriptor::new().with("endpoint", "/c"));
    }

    #[test]
    fn addresses_have_one_form() {
        let mapped = Descriptor::new().with("ip_address", "::ffff:203.0.113.7");
        assert_eq!(mapped.text("ip").as_deref(), Some("203.0.113.7"));
        let address = "2001:db8:1:2:3::4".parse().unwrap();
        assert_eq!(network(address, 64).to_string(), "2001:db8:1:2::");
        assert_eq!(network(address, 0).to_string(), "::");
        assert_eq!(network(address, 128), address);
    }

    #[test]
    fn a_fact_added_twice_is_the_later_one() {
        let request = Descriptor::new().with("method", "get").with("method", "post");
        assert_eq!(request.text("method").as_deref(), Some("POST"));
        assert_eq!(request.facts().count(), 1);
    }
}
