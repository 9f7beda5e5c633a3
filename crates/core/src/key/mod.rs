//! Keys: one bucket per distinct tuple of values.
//!
//! A key is a view of a rule and a request. It is hashed, shown or encoded when that is needed, by walking the segments
//! of the rule's pattern.

mod encode;
mod hash;
mod parse;
mod pattern;

use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use sha2::{Digest, Sha256};

use crate::descriptor::{self, Attribute, Descriptor, Value};
use crate::limit::Limit;
use crate::time::Micros;
use pattern::Segment;

pub use hash::KeySeeds;
pub(crate) use pattern::check_name;
pub use pattern::{KeyPattern, PatternError, Scope};

/// The attribute that holds a caller's own name for its bucket.
pub(crate) const AD_HOC_KEY: &str = "key";

/// All the keys of one rule: what tells its buckets from every other rule's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    digest: [u64; 2],
    pattern: KeyPattern,
    ipv6_prefix: u8,
    notation: Notation,
    /// Whether all requests have the same key: the pattern has no attributes.
    is_shared: bool,
}

/// How the values of a key are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notation {
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
        let is_shared = pattern.names().next().is_none();
        Space { digest: digest(&fields), pattern, ipv6_prefix, notation: Notation::Encoded, is_shared }
    }

    /// The keys that callers name themselves, for limits without a rule, separate from every rule's.
    pub fn ad_hoc(limit: &Limit) -> Self {
        Self::without_rule("ad hoc", limit)
    }

    /// The same for trying limits out, separate from all other keys.
    pub fn playground(limit: &Limit) -> Self {
        Self::without_rule("playground", limit)
    }

    fn without_rule(purpose: &str, limit: &Limit) -> Self {
        let digest = digest(&[purpose, &limit.identity()]);
        Space {
            digest,
            pattern: KeyPattern::of_ad_hoc_keys(),
            ipv6_prefix: 128,
            notation: Notation::AsSent,
            is_shared: false,
        }
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
        matches!(self.notation, Notation::AsSent)
    }

    /// The key of a request; an attribute that is absent counts as one more value.
    #[inline]
    pub const fn key<'a>(&'a self, request: &'a Descriptor<'a>) -> Key<'a> {
        Key { space: self, request }
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

/// Names one bucket: a rule and the values of its attributes in a request.
///
/// Two keys hash the same bytes exactly when rule and values are the same, whatever the values contain. For
/// people a key is the pattern with its values in place: `user:42`, `ip:2001:db8::/64`.
#[derive(Debug, Clone, Copy)]
pub struct Key<'a> {
    space: &'a Space,
    request: &'a Descriptor<'a>,
}

/// One value of a key.
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

    /// Whether every attribute of the pattern is present.
    #[inline(never)] // few rules ask
    pub fn is_complete(&self) -> bool {
        !self.values().any(|value| value == KeyValue::Missing)
    }

    /// Where this key's spread windows of a length begin: the same on every node.
    pub fn spread(&self, window: Micros) -> Micros {
        Micros::new(self.spread_seed() % window.get().max(1))
    }

    /// The number that [`spread`](Self::spread) is computed from, for a store that keeps no keys.
    pub fn spread_seed(&self) -> u64 {
        let mut sha = ShaHasher(Sha256::new());
        self.hash(&mut sha);
        sha.finish()
    }

    #[inline]
    fn values(self) -> impl Iterator<Item = KeyValue<'a>> {
        self.space.pattern.names().map(move |name| self.value(name))
    }

    #[inline(always)]
    fn hash_values<H: Hasher>(self, state: &mut H) {
        for name in self.space.pattern.names() {
            self.hash_value(name, state);
        }
    }

    /// Tag and length, then bytes. Written out, because nodes of different builds must agree.
    #[inline(always)]
    fn hash_value<H: Hasher>(self, name: &Attribute, state: &mut H) {
        let text = match self.request.value(name) {
            None => return state.write_u64(0),
            Some(Value::Ip(IpAddr::V4(address))) => {
                return state.write_u64(2 << 56 | u64::from(address.to_bits()));
            }
            Some(Value::Ip(IpAddr::V6(address))) => {
                state.write_u64(3 << 56);
                return state.write(&descriptor::network(*address, self.space.ipv6_prefix).octets());
            }
            Some(Value::Borrowed(text)) => text,
            Some(Value::Owned(text)) => &**text,
        };
        state.write_u64(1 << 56 | u64::try_from(text.len()).unwrap_or(u64::MAX >> 8));
        state.write(text.as_bytes());
    }

    #[inline]
    fn value(self, name: &Attribute) -> KeyValue<'a> {
        match self.request.value(name) {
            None => KeyValue::Missing,
            Some(Value::Borrowed(text)) => KeyValue::Text(text),
            Some(Value::Owned(text)) => KeyValue::Text(text),
            Some(Value::Ip(address)) => {
                KeyValue::Network(descriptor::network_of(*address, self.space.ipv6_prefix))
            }
        }
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.space.digest == other.space.digest && self.values().eq(other.values())
    }
}

impl Eq for Key<'_> {}

/// The injective encoding: digest of the rule, then tag, length and bytes of each value.
impl Hash for Key<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.space.digest[0]);
        state.write_u64(self.space.digest[1]);
        self.hash_values(state);
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
        for (index, segment) in self.space.pattern.segments.iter().enumerate() {
            if index > 0 {
                f.write_char(':')?;
            }
            match segment {
                Segment::Literal(word) => f.write_str(word)?,
                Segment::Attribute(name) => match self.value(name) {
                    KeyValue::Text(text) if self.space.notation == Notation::AsSent => f.write_str(text)?,
                    KeyValue::Text(text) => percent_encoded(text, f)?,
                    KeyValue::Network(IpAddr::V6(address)) if self.space.ipv6_prefix < 128 => {
                        write!(f, "{address}/{}", self.space.ipv6_prefix)?;
                    }
                    KeyValue::Network(address) => write!(f, "{address}")?,
                    // No value looks like this: braces in values are encoded.
                    KeyValue::Missing => write!(f, "{{{}}}", name.as_str())?,
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
