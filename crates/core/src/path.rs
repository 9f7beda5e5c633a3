//! One spelling of a path, so that a caller cannot avoid a limit by spelling.

use std::borrow::Cow;

/// A path with every `%2F` read as a slash, and, if that is another path, the one with every `%2F` kept. Both are in
/// their one spelling: no query, no doubled or trailing slash, no dot segments, every byte that may stand for itself
/// as itself and every other one percent-encoded. What does not begin with a slash is a name and stays as it is.
#[inline]
pub(crate) fn path_readings(path: Cow<'_, str>) -> (Cow<'_, str>, Option<Box<str>>) {
    if !path.starts_with('/') || is_normal(path.as_bytes(), Star::Byte) {
        return (path, None);
    }
    normal_readings(path)
}

#[cold]
fn normal_readings(path: Cow<'_, str>) -> (Cow<'_, str>, Option<Box<str>>) {
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
    // What follows a slash may begin neither an empty segment nor one of dots.
    let (mut wrong, mut forbidden) = (0, OTHER);
    for byte in path {
        let class =
            CLASSES[usize::from(*byte)] & !(u8::from(star == Star::Wildcard && *byte == b'*') * OTHER);
        wrong |= class & forbidden;
        forbidden = OTHER | class >> 1;
    }
    wrong == 0 && (forbidden == OTHER || path.len() == 1)
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

/// A byte that does not stand for itself.
const OTHER: u8 = 4;
/// A byte that may not follow a slash.
const SLASH_OR_DOT: u8 = 1;
/// In the place of `SLASH_OR_DOT` after a shift.
const SLASH: u8 = 2;

/// What each byte is in a path: a byte that stands for itself is none of it.
const CLASSES: [u8; 256] = {
    let mut classes = [OTHER; 256];
    let bytes = b"-_~!$&'()+,;=:@0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut at = 0;
    while at < bytes.len() {
        classes[bytes[at] as usize] = 0;
        at += 1;
    }
    classes[b'.' as usize] = SLASH_OR_DOT;
    classes[b'/' as usize] = SLASH_OR_DOT | SLASH;
    classes
};

#[inline]
const fn stands_for_itself(byte: u8, star: Star) -> bool {
    CLASSES[byte as usize] <= SLASH_OR_DOT || byte == b'*' && matches!(star, Star::Wildcard)
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
    }
}
