//! Key patterns, and the keys they make: one bucket per distinct tuple of values.
//!
//! A pattern is a list of segments between colons: `api:{endpoint}:{user_id}`. `{name}` takes the value of an
//! attribute. A literal after the name of a known attribute is a condition (`endpoint:/api/search` counts only
//! requests to that path); any other literal is a label.

mod encode;
mod read;

use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use crate::condition::Condition;
use crate::descriptor::{self, Descriptor, Name, Value};
use crate::limit::Limit;
use crate::rule::Consistency;
use crate::time::Micros;

/// The fact that holds a caller's own name for its bucket.
pub(crate) const AD_HOC_KEY: &str = "key";
/// The most segments a pattern has.
const MAX_SEGMENTS: usize = 16;

/// A parsed key pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPattern {
    text: Box<str>,
    segments: Vec<Segment>,
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Literal(Box<str>),
    Attribute(Name<'static>),
}

/// What a rule counts by, read off its pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// One bucket per caller.
    User,
    /// One bucket per path.
    Endpoint,
    /// One bucket per address.
    Ip,
    /// One bucket for everybody.
    Global,
    /// Anything else.
    Custom,
}

impl Scope {
    /// The word in answers and SQL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Scope::User => "user",
            Scope::Endpoint => "endpoint",
            Scope::Ip => "ip",
            Scope::Global => "global",
            Scope::Custom => "custom",
        }
    }
}

/// Why a text is no key pattern, and what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// Nothing there.
    #[error("the key pattern is empty; write one like `user:{{user_id}}`, `ip:{{ip}}` or `global`")]
    Empty,
    /// Two colons in a row, or one at an end.
    #[error("empty segment in `{text}`; segments between colons must not be empty")]
    EmptySegment {
        /// The pattern.
        text: String,
    },
    /// A brace without its partner, or text beside one.
    #[error("`{segment}`: an attribute stands alone between colons, as in `api:{{endpoint}}:{{user_id}}`")]
    Braces {
        /// The segment.
        segment: String,
    },
    /// Not a name.
    #[error("`{name}` is not an attribute's name; use letters, digits, `_`, `-` and `.`")]
    Name {
        /// What was written.
        name: String,
    },
    /// The literal after `ip:` is neither address nor network.
    #[error("`{text}` is neither an address nor a network; write `203.0.113.7` or `10.0.0.0/8`")]
    Network {
        /// What was written.
        text: String,
    },
    /// More than anybody needs.
    #[error("a key pattern has at most {MAX_SEGMENTS} segments")]
    TooLong,
}

impl KeyPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    ///
    /// Empty segments, stray braces, names that are none.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        let words: Vec<&str> = text.split(':').collect();
        if words.len() > MAX_SEGMENTS {
            return Err(PatternError::TooLong);
        }
        let mut pattern = KeyPattern { text: text.into(), segments: Vec::new(), conditions: Vec::new() };
        let mut rest = &words[..];
        let mut known = None;
        while !rest.is_empty() {
            // An IPv6 literal has colons of its own: it is all that is left.
            let joined;
            let (word, used) = match known {
                Some(descriptor::IP)
                    if !rest[0].starts_with('{')
                        && rest.len() > 1
                        && rest[1..].iter().all(|w| !w.contains('{')) =>
                {
                    joined = rest.join(":");
                    (joined.as_str(), rest.len())
                }
                _ => (rest[0], 1),
            };
            known = pattern.push(word, known)?;
            rest = &rest[used..];
        }
        Ok(pattern)
    }

    /// Adds a segment; answers which attribute a literal after it would be compared with.
    fn push(
        &mut self,
        word: &str,
        known: Option<&'static str>,
    ) -> Result<Option<&'static str>, PatternError> {
        if word.is_empty() {
            return Err(PatternError::EmptySegment { text: self.text.to_string() });
        }
        if word.contains(['{', '}']) {
            let name = word
                .strip_prefix('{')
                .and_then(|word| word.strip_suffix('}'))
                .filter(|name| !name.contains(['{', '}']))
                .ok_or_else(|| PatternError::Braces { segment: word.to_owned() })?;
            check_name(name)?;
            self.segments.push(Segment::Attribute(Name::owned(name)));
            return Ok(None);
        }
        self.segments.push(Segment::Literal(word.into()));
        let Some(attribute) = known else { return Ok(known_attribute(word)) };
        let condition =
            Condition::new(attribute, [word]).map_err(|_| PatternError::Network { text: word.to_owned() })?;
        self.conditions.push(condition);
        Ok(None)
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The attributes whose values tell buckets apart.
    pub fn attributes(&self) -> impl Iterator<Item = &str> {
        self.names().map(Name::as_str)
    }

    #[inline]
    pub(crate) fn names(&self) -> impl Iterator<Item = &Name<'static>> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Attribute(name) => Some(name),
            Segment::Literal(_) => None,
        })
    }

    /// What its literals demand of a request.
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// What it counts by: the one attribute it is about, everybody, or something of its own.
    pub fn scope(&self) -> Scope {
        let mut about = self.attributes().chain(self.conditions.iter().map(Condition::attribute));
        let Some(first) = about.next() else {
            let global = matches!(self.segments.first(), Some(Segment::Literal(word)) if &**word == "global");
            return if global { Scope::Global } else { Scope::Custom };
        };
        match first {
            _ if !about.all(|other| other == first) => Scope::Custom,
            descriptor::USER_ID => Scope::User,
            descriptor::ENDPOINT => Scope::Endpoint,
            descriptor::IP => Scope::Ip,
            _ => Scope::Custom,
        }
    }
}

/// The attribute that a word before a literal names.
fn known_attribute(word: &str) -> Option<&'static str> {
    match word {
        "user" | descriptor::USER_ID => Some(descriptor::USER_ID),
        descriptor::IP | "ip_address" => Some(descriptor::IP),
        descriptor::ENDPOINT => Some(descriptor::ENDPOINT),
        descriptor::METHOD => Some(descriptor::METHOD),
        descriptor::PLAN => Some(descriptor::PLAN),
        _ => None,
    }
}

/// Whether a text can name an attribute.
pub(crate) fn check_name(name: &str) -> Result<(), PatternError> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if !name.is_empty() && name.len() <= 64 && name.bytes().all(good) {
        Ok(())
    } else {
        Err(PatternError::Name { name: name.to_owned() })
    }
}

/// All the keys of one rule: what tells its buckets from every other rule's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    digest: [u64; 2],
    pattern: KeyPattern,
    ipv6_prefix: u8,
    shown: Shown,
    consistency: Consistency,
}

/// How the values of a key are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// Percent-encoded where they could be mistaken for the pattern.
    Encoded,
    /// As they are: there is no pattern around them.
    AsSent,
}

impl Space {
    /// The keys of a rule with this identity.
    pub fn new(identity: &[&str], pattern: KeyPattern, ipv6_prefix: u8) -> Self {
        let mut fields = vec!["rule", pattern.as_str()];
        fields.extend(identity);
        let (shown, consistency) = (Shown::Encoded, Consistency::Exact);
        Space { digest: digest(&fields), pattern, ipv6_prefix, shown, consistency }
    }

    /// The keys that callers name themselves, for limits without a rule, apart from every rule's.
    pub fn ad_hoc(limit: &Limit) -> Self {
        Self::without_rule("ad hoc", limit)
    }

    /// The same for trying limits out: nobody else's keys.
    pub fn playground(limit: &Limit) -> Self {
        Self::without_rule("playground", limit)
    }

    fn without_rule(purpose: &str, limit: &Limit) -> Self {
        let segments = vec![Segment::Attribute(Name::owned(AD_HOC_KEY))];
        let pattern = KeyPattern { text: "{key}".into(), segments, conditions: Vec::new() };
        let digest = digest(&[purpose, &limit.identity()]);
        let (shown, consistency) = (Shown::AsSent, Consistency::Exact);
        Space { digest, pattern, ipv6_prefix: 128, shown, consistency }
    }

    /// The same keys, with decisions on them made elsewhere: it changes no bucket.
    #[must_use]
    pub fn with_consistency(self, consistency: Consistency) -> Self {
        Space { consistency, ..self }
    }

    /// Where decisions on these keys are made.
    #[inline]
    pub const fn consistency(&self) -> Consistency {
        self.consistency
    }

    /// 128 bits that tell this rule's keys from every other's.
    pub const fn digest(&self) -> [u64; 2] {
        self.digest
    }

    /// The pattern.
    pub const fn pattern(&self) -> &KeyPattern {
        &self.pattern
    }

    /// Whether callers name its keys themselves.
    pub(crate) const fn is_without_rule(&self) -> bool {
        matches!(self.shown, Shown::AsSent)
    }

    /// The key of a request; an attribute that is absent counts as one more value.
    #[inline]
    pub fn key<'a>(&'a self, request: &'a Descriptor<'_>) -> Key<'a> {
        let values = self.pattern.names().map(|name| match request.find(name) {
            None => KeyValue::Missing,
            Some(Value::Text(text)) => KeyValue::Text(text),
            Some(Value::Ip(address)) => KeyValue::Network(descriptor::network(*address, self.ipv6_prefix)),
        });
        Key { space: self, values: values.collect() }
    }

    /// The key of a caller's own name for its bucket.
    #[inline]
    pub fn named<'a>(&'a self, name: &'a str) -> Key<'a> {
        let values = [KeyValue::Text(name), KeyValue::Missing, KeyValue::Missing];
        Key { space: self, values: SmallVec::from_buf_and_len(values, 1) }
    }
}

/// 128 bits of SHA-256 over fields that cannot run into each other.
fn digest(fields: &[&str]) -> [u64; 2] {
    let mut sha = Sha256::new();
    for field in fields {
        sha.update(u64::try_from(field.len()).unwrap_or(u64::MAX).to_le_bytes());
        sha.update(field.as_bytes());
    }
    let bytes = sha.finalize();
    let half = |from: usize| u64::from_le_bytes(bytes[from..from + 8].try_into().expect("8 of 32 bytes"));
    [half(0), half(8)]
}

/// Names one bucket: a rule and the values of its attributes, borrowed from the request.
///
/// Two keys hash the same bytes exactly when rule and values are the same, whatever the values contain. For
/// people a key is the pattern with its values in place: `user:42`, `ip:2001:db8::/64`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key<'a> {
    space: &'a Space,
    values: SmallVec<[KeyValue<'a>; 3]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyValue<'a> {
    Text(&'a str),
    Network(IpAddr),
    Missing,
}

impl<'a> Key<'a> {
    /// The rule's part of the key.
    pub const fn space(&self) -> &'a Space {
        self.space
    }

    /// The same key for as long as this one is borrowed, to be put beside a limit of one's own.
    pub fn borrowed(&self) -> Key<'_> {
        Key { space: self.space, values: self.values.iter().copied().collect() }
    }

    /// Whether every attribute of the pattern was there.
    pub fn is_complete(&self) -> bool {
        !self.values.contains(&KeyValue::Missing)
    }

    /// Where this key's spread windows of a length begin: the same on every node.
    pub fn spread(&self, window: Micros) -> Micros {
        let mut sha = ShaHasher(Sha256::new());
        self.hash(&mut sha);
        Micros::new(sha.finish() % window.get().max(1))
    }
}

/// The injective encoding: digest of the rule, then tag, length and bytes of each value.
impl Hash for Key<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.space.digest[0]);
        state.write_u64(self.space.digest[1]);
        for value in &self.values {
            value.hash(state);
        }
    }
}

/// Written out, because nodes of different builds must agree: tag and length, then bytes.
impl Hash for KeyValue<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            KeyValue::Missing => state.write_u64(0),
            KeyValue::Text(text) => {
                state.write_u64(1 << 56 | u64::try_from(text.len()).unwrap_or(u64::MAX >> 8));
                state.write(text.as_bytes());
            }
            KeyValue::Network(IpAddr::V4(address)) => {
                state.write_u64(2 << 56 | u64::from(address.to_bits()));
            }
            KeyValue::Network(IpAddr::V6(address)) => {
                state.write_u64(3 << 56);
                state.write(&address.octets());
            }
        }
    }
}

/// SHA-256 behind the standard trait, with byte order fixed so that every node agrees.
struct ShaHasher(Sha256);

impl Hasher for ShaHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn write_u64(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    fn finish(&self) -> u64 {
        let bytes = self.0.clone().finalize();
        u64::from_le_bytes(bytes[..8].try_into().expect("8 of 32 bytes"))
    }
}

/// The pattern with values in place; what could be mistaken for the pattern is percent-encoded.
impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut values = self.values.iter();
        for (index, segment) in self.space.pattern.segments.iter().enumerate() {
            if index > 0 {
                f.write_char(':')?;
            }
            match segment {
                Segment::Literal(word) => f.write_str(word)?,
                Segment::Attribute(name) => match values.next() {
                    Some(KeyValue::Text(text)) if self.space.shown == Shown::AsSent => f.write_str(text)?,
                    Some(KeyValue::Text(text)) => percent_encoded(text, f)?,
                    Some(KeyValue::Network(IpAddr::V6(address))) if self.space.ipv6_prefix < 128 => {
                        write!(f, "{address}/{}", self.space.ipv6_prefix)?;
                    }
                    Some(KeyValue::Network(address)) => write!(f, "{address}")?,
                    // No value looks like this: braces in values are encoded.
                    Some(KeyValue::Missing) | None => write!(f, "{{{}}}", name.as_str())?,
                },
            }
        }
        Ok(())
    }
}

fn percent_encoded(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"%:{}\"\\".contains(&byte);
    if text.bytes().all(plain) {
        return f.write_str(text);
    }
    for byte in text.bytes() {
        if plain(byte) { f.write_char(char::from(byte))? } else { write!(f, "%{byte:02X}")? }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Opening, Phase};

    fn space(pattern: &str) -> Space {
        Space::new(&["name"], KeyPattern::parse(pattern).unwrap(), 64)
    }

    fn shown(pattern: &str, request: &Descriptor<'_>) -> String {
        space(pattern).key(request).to_string()
    }

    #[test]
    fn scopes_are_read_off_the_pattern() {
        for (pattern, scope) in [
            ("user:{user_id}", "user"),
            ("user:42", "user"),
            ("endpoint:/api/search", "endpoint"),
            ("endpoint:{endpoint}", "endpoint"),
            ("ip:{ip}", "ip"),
            ("ip:{ip_address}", "ip"),
            ("global", "global"),
            ("global:api", "global"),
            ("api:{endpoint}:{user_id}", "custom"),
            ("login", "custom"),
            ("tenant:{tenant}", "custom"),
        ] {
            assert_eq!(KeyPattern::parse(pattern).unwrap().scope().as_str(), scope, "{pattern}");
        }
    }

    #[test]
    fn a_literal_after_an_attribute_is_a_condition_and_any_other_is_a_label() {
        let conditions = |pattern: &str| KeyPattern::parse(pattern).unwrap().conditions().len();
        assert_eq!(conditions("endpoint:/api/search"), 1);
        assert_eq!(conditions("user:42"), 1);
        assert_eq!(conditions("plan:free:user:{user_id}"), 1);
        assert_eq!(conditions("ip:2001:db8::/32"), 1);
        assert_eq!(conditions("global:api"), 0);
        assert_eq!(conditions("user:{user_id}"), 0);
    }

    #[test]
    fn bad_patterns_say_what_to_write() {
        for (pattern, part) in [
            ("", "`user:{user_id}`"),
            ("user::x", "empty segment"),
            ("user:{user_id", "stands alone"),
            ("user:id-{user_id}", "stands alone"),
            ("user:{}", "not an attribute's name"),
            ("user:{a b}", "not an attribute's name"),
            ("ip:nowhere", "neither an address"),
        ] {
            let error = KeyPattern::parse(pattern).unwrap_err().to_string();
            assert!(error.contains(part), "{pattern}: {error}");
        }
    }

    #[test]
    fn a_key_reads_like_its_pattern_and_hides_nothing() {
        let request = Descriptor::new()
            .with("user_id", "a:b{c}%")
            .with("ip", "2001:db8:0:1:2:3:4:5")
            .with("endpoint", "/api/search");
        assert_eq!(shown("user:{user_id}", &request), "user:a%3Ab%7Bc%7D%25");
        assert_eq!(shown("ip:{ip}", &request), "ip:2001:db8:0:1::/64");
        assert_eq!(shown("api:{endpoint}:{missing}", &request), "api:/api/search:{missing}");
    }

    #[test]
    fn no_two_value_tuples_make_one_key() {
        let pair = space("x:{a}:{b}");
        let hash = |a: &str, b: &str| {
            let request = Descriptor::new().with("a", a.to_owned()).with("b", b.to_owned());
            let mut sha = ShaHasher(Sha256::new());
            pair.key(&request).hash(&mut sha);
            sha.finish()
        };
        let hostile = ["", "a", "b", "ab", "a:b", "\0", "\u{1}", "{a}", "%", "\r\n", "aa", "::"];
        let mut seen = std::collections::HashMap::new();
        for a in hostile {
            for b in hostile {
                assert_eq!(seen.insert(hash(a, b), (a, b)), None);
            }
        }
    }

    #[test]
    fn another_name_pattern_or_algorithm_is_another_space() {
        let pattern = || KeyPattern::parse("user:{user_id}").unwrap();
        assert_ne!(Space::new(&["a"], pattern(), 64).digest, Space::new(&["b"], pattern(), 64).digest);
        let minute = crate::Micros::new(60_000_000);
        let hour = crate::Micros::new(3_600_000_000);
        let limits = |count| {
            [
                Limit::token_bucket(count, minute, 10),
                Limit::leaky_bucket(count, minute, 10, 0),
                Limit::fixed_window(count, minute, Phase::Epoch),
                Limit::fixed_window(count, hour, Phase::Epoch),
                Limit::fixed_window(count, minute, Phase::First),
                Limit::sliding_window_log(count, minute),
                Limit::sliding_window_log(count, hour),
                Limit::sliding_window_counter(count, minute, Opening::Epoch),
                Limit::sliding_window_counter(count, hour, Opening::Epoch),
                Limit::sliding_window_counter(count, minute, Opening::First),
            ]
            .map(|limit| Space::ad_hoc(&limit.unwrap()).digest)
        };
        assert_eq!(limits(5), limits(6), "another count is the same bucket");
        assert_eq!(std::collections::HashSet::from(limits(5)).len(), limits(5).len());
        let digest = |rate: &str| Space::ad_hoc(&rate.parse().unwrap()).digest;
        assert_eq!(digest("5/s"), digest("100/h burst 7"), "usage carries over between rates");
    }
}
