//! A key as bytes, for stores that name their buckets by text.
//!
//! ```text
//! tg:{kQ3x}Zt0_5yqN1vXw:42        prefix, hash tag, rule, values
//! tg:{9fBa}m2RkO7cH4uTd#…         a long one: the values as their SHA-256
//! ```
//!
//! The hash tag decides the slot in a Redis Cluster. It is four letters of a hash of the principal that the key is about,
//! so that all keys of one caller share a slot and no caller can choose a slot by putting braces in a name.

use std::hash::{Hash as _, Hasher as _};
use std::net::IpAddr;

use sha2::{Digest, Sha256};

use super::{Key, KeyValue, ShaHasher};
use crate::descriptor;

/// The longest key that shows its values.
const LONGEST: usize = 256;
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

impl Key<'_> {
    /// Appends the key as text that no other key has. Values of more than 256 bytes are hashed.
    pub fn encode(&self, prefix: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(prefix.as_bytes());
        out.extend_from_slice(b":{");
        letters(self.principal(), 4, out);
        out.push(b'}');
        let [first, second] = self.space.digest;
        // 72 bits tell rules apart. With a value of 8 letters the key then fits an allocation of 32 bytes.
        letters(first, 6, out);
        letters(second, 6, out);
        let values = out.len();
        for value in self.values() {
            out.push(b':');
            value.encode(out);
            if out.len() - values > LONGEST {
                out.truncate(values);
                return self.encode_hashed(out);
            }
        }
    }

    fn encode_hashed(&self, out: &mut Vec<u8>) {
        let mut sha = ShaHasher(Sha256::new());
        self.hash(&mut sha);
        out.push(b'#');
        for part in sha.0.finalize().chunks_exact(8) {
            letters(u64::from_le_bytes(part.try_into().expect("chunks of 8")), 11, out);
        }
    }

    /// A hash of whom the key is about: the caller, else the address, else every value; without values the rule.
    fn principal(&self) -> u64 {
        let mut sha = ShaHasher(Sha256::new());
        let of = |wanted: &str| self.space.pattern.names().find(|name| name.as_str() == wanted);
        match of(descriptor::USER_ID).or_else(|| of(descriptor::IP)) {
            Some(name) => {
                sha.write(name.as_str().as_bytes());
                self.hash_value(name, &mut sha);
            }
            None if self.values().next().is_none() => self.hash(&mut sha),
            None => self.hash_values(&mut sha),
        }
        sha.finish()
    }
}

impl KeyValue<'_> {
    /// Text keeps what is plain; what has a meaning here is percent-encoded. A percent sign alone is not a value.
    fn encode(&self, out: &mut Vec<u8>) {
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"%:{}@#".contains(&byte);
        match self {
            KeyValue::Missing => out.push(b'%'),
            KeyValue::Text(text) => {
                // A value that is too long anyway is cut: the caller hashes the whole instead.
                for byte in text.bytes().take(LONGEST + 1) {
                    if plain(byte) {
                        out.push(byte);
                    } else {
                        let digit = |nibble: u8| b"0123456789ABCDEF"[usize::from(nibble)];
                        out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 15)]);
                    }
                }
            }
            KeyValue::Network(IpAddr::V4(address)) => {
                out.push(b'@');
                out.extend_from_slice(address.to_string().as_bytes());
            }
            KeyValue::Network(IpAddr::V6(address)) => {
                out.push(b'@');
                out.extend(address.to_string().bytes().map(|byte| if byte == b':' { b'-' } else { byte }));
            }
        }
    }
}

/// The lowest bits of a number, six to a letter.
fn letters(mut bits: u64, count: usize, out: &mut Vec<u8>) {
    for _ in 0..count {
        out.push(LETTERS[(bits & 63) as usize]);
        bits >>= 6;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::{KeyPattern, Space};
    use crate::Descriptor;

    fn encoded(space: &Space, request: &Descriptor<'_>) -> String {
        let mut out = Vec::new();
        space.key(request).encode("tg", &mut out);
        String::from_utf8(out).unwrap()
    }

    fn space(name: &str, pattern: &str) -> Space {
        Space::new(&[name], KeyPattern::parse(pattern).unwrap(), 64)
    }

    fn tag(key: &str) -> &str {
        key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).unwrap().0
    }

    #[test]
    fn no_two_value_tuples_share_a_key_whatever_they_contain() {
        let space = space("r", "{a}:{b}");
        let words =
            ["", "x", ":", "x:", ":x", "%", "%3A", "{}", "}{", "@1.2.3.4", "#", "\0", "\r\n", "é", "*"];
        let mut seen = HashMap::new();
        for a in words.into_iter().map(Some).chain([None]) {
            for b in words.into_iter().map(Some).chain([None]) {
                let mut request = Descriptor::new();
                if let Some(a) = a {
                    request.set("a", a);
                }
                if let Some(b) = b {
                    request.set("b", b);
                }
                let key = encoded(&space, &request);
                assert!(key.bytes().all(|byte| byte.is_ascii_graphic()), "{key}");
                assert_eq!(seen.insert(key.clone(), (a, b)), None, "{key}");
            }
        }
    }

    #[test]
    fn long_values_are_hashed_and_stay_apart() {
        let space = space("r", "tenant:{tenant}");
        let long = |last: &str| Descriptor::new().with("tenant", "x".repeat(1 << 20) + last);
        let (a, b) = (encoded(&space, &long("a")), encoded(&space, &long("b")));
        assert_ne!(a, b);
        assert!(a.len() < 100 && a.contains('#'), "{a}");
    }

    #[test]
    fn all_keys_of_one_caller_share_a_tag_and_braces_in_a_name_do_not_choose_it() {
        let request = Descriptor::new().with("user_id", "{0}42").with("endpoint", "/a");
        let [second, day, api] = [
            space("per second", "user:{user_id}"),
            space("per day", "user:{user_id}"),
            space("api", "api:{endpoint}:{user_id}"),
        ]
        .map(|space| encoded(&space, &request));
        assert_ne!(second, day);
        assert_eq!(tag(&second), tag(&day));
        assert_eq!(tag(&second), tag(&api));
        assert_eq!(second.matches('{').count(), 1, "{second}");
        assert_eq!(tag(&second).len(), 4);
    }
}
