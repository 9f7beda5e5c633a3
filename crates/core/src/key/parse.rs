//! A key as people read it, back into the facts it was made from.

use std::net::IpAddr;

use super::Space;
use super::pattern::Segment;
use crate::descriptor::{self, Descriptor};
use crate::path::hex_byte;

impl Space {
    /// The request whose key is shown as this text: `user:42` under `user:{user_id}` has the user 42. None where no
    /// request has such a key.
    pub fn read(&self, shown: &str) -> Option<Descriptor<'static>> {
        let mut request = Descriptor::new();
        let fits = read(&self.pattern.segments, shown, &mut request);
        // Whatever was read, only a key that is shown the same is the same key.
        (fits && self.key(&request).to_string() == shown).then_some(request)
    }
}

/// Reads the segments off a text; true when they are all there and nothing is left.
fn read(segments: &[Segment], text: &str, request: &mut Descriptor<'static>) -> bool {
    let Some((segment, later)) = segments.split_first() else { return text.is_empty() };
    match segment {
        Segment::Literal(word) => text
            .strip_prefix(&**word)
            .and_then(|rest| after(rest, later))
            .is_some_and(|rest| read(later, rest, request)),
        Segment::Attribute(name) => {
            let name = name.as_str();
            // Only addresses have colons of their own.
            let most = if name == descriptor::IP { usize::MAX } else { 1 };
            let ends = text.match_indices(':').map(|(at, _)| at).chain([text.len()]);
            ends.take(most).any(|end| {
                let mut tried = request.clone();
                let given = set(&mut tried, name, &text[..end]);
                let fits =
                    given && after(&text[end..], later).is_some_and(|rest| read(later, rest, &mut tried));
                if fits {
                    *request = tried;
                }
                fits
            })
        }
    }
}

/// What follows a segment: a colon and more where there are more, nothing where it was the last.
fn after<'t>(rest: &'t str, later: &[Segment]) -> Option<&'t str> {
    if later.is_empty() { rest.is_empty().then_some(rest) } else { rest.strip_prefix(':') }
}

/// Adds the fact that a value stands for; a name in braces stands for a fact that is not there.
fn set(request: &mut Descriptor<'static>, name: &str, shown: &str) -> bool {
    if shown.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) == Some(name) {
        return true;
    }
    let address = shown.split_once('/').map_or(shown, |(address, _)| address);
    match address.parse::<IpAddr>() {
        Ok(address) if name == descriptor::IP => request.set_ip(address),
        _ => match decoded(shown) {
            Some(value) => request.set(name.to_owned(), value),
            None => return false,
        },
    }
    true
}

fn decoded(shown: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(shown.len());
    let mut rest = shown.as_bytes();
    while let [first, after @ ..] = rest {
        let encoded = after.get(..2).filter(|_| *first == b'%').and_then(hex_byte);
        bytes.push(encoded.unwrap_or(*first));
        rest = if encoded.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyPattern;

    fn space(pattern: &str) -> Space {
        Space::new(&["name"], KeyPattern::parse(pattern).unwrap(), 64)
    }

    #[test]
    fn a_shown_key_leads_back_to_the_same_bucket() {
        let facts = [
            ("user_id", "42"),
            ("user_id", "a:b%{}\u{e4}\"\\"),
            ("user_id", ""),
            ("endpoint", "//a%2fb/"),
            ("ip", "203.0.113.7"),
            ("ip", "2001:db8:1:2:3::4"),
            ("ip", "not an address"),
        ];
        for pattern in [
            "user:{user_id}",
            "api:{endpoint}:{user_id}",
            "ip:{ip}",
            "{ip}:x:{user_id}",
            "global",
            "ip:10.0.0.0/8",
        ] {
            let space = space(pattern);
            for first in &facts {
                for second in &facts {
                    let request = Descriptor::new().with(first.0, first.1).with(second.0, second.1);
                    let shown = space.key(&request).to_string();
                    let read = space.read(&shown).unwrap_or_else(|| panic!("{pattern}: {shown}"));
                    let (key, same) = (space.key(&request), space.key(&read));
                    assert_eq!(key, same, "{pattern}");
                }
            }
        }
    }

    #[test]
    fn what_no_key_looks_like_is_none() {
        for (pattern, shown) in [
            ("user:{user_id}", "user"),
            ("user:{user_id}", "user:4:2"),
            ("user:{user_id}", "ip:42"),
            ("user:{user_id}", "user:%ff"),
            ("ip:{ip}", "ip:2001:db8::1"),
            ("global", "global:"),
            ("global", ""),
            ("a:{x}:b", "a:b"),
        ] {
            assert!(space(pattern).read(shown).is_none(), "{pattern} {shown}");
        }
    }
}
