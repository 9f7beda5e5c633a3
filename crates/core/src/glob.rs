//! Globs over paths: `*` within a segment, `**` across.

use crate::path::normal_pattern;

/// A path pattern such as `/api/*/items` or `/static/**`.
///
/// `*` stands for any part of a segment, also an empty one; `**` for any text, slashes included. `/a/**`
/// matches `/a/b` and everything below `/a`, and `/a` itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Glob {
    pattern: Box<str>,
    is_literal: bool,
}

impl Glob {
    /// A pattern, normalised as paths are.
    pub fn new(pattern: &str) -> Self {
        let pattern = normal_pattern(pattern);
        Glob { is_literal: !pattern.contains('*'), pattern: pattern.into() }
    }

    /// The pattern.
    pub fn as_str(&self) -> &str {
        &self.pattern
    }

    /// The path it stands for, when it is the only one.
    pub fn literal(&self) -> Option<&str> {
        self.is_literal.then_some(&*self.pattern)
    }

    /// Whether a normalised path fits.
    #[inline]
    pub fn matches(&self, path: &str) -> bool {
        if self.is_literal {
            return *self.pattern == *path;
        }
        let below = self.pattern.strip_suffix("/**");
        below.is_some_and(|parent| fits(parent.as_bytes(), path.as_bytes()))
            || fits(self.pattern.as_bytes(), path.as_bytes())
    }
}

/// Matches in one pass, remembering the last star of each kind to come back to: at most
/// `pattern * path` steps, whatever the pattern.
fn fits(pattern: &[u8], path: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    let mut deep: Option<(usize, usize)> = None;
    loop {
        if pattern[p..].starts_with(b"**") {
            p += 2;
            deep = Some((p, t));
            star = None;
            continue;
        }
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, t));
            continue;
        }
        if p == pattern.len() && t == path.len() {
            return true;
        }
        if p < pattern.len() && t < path.len() && pattern[p] == path[t] {
            (p, t) = (p + 1, t + 1);
            continue;
        }
        match (star, deep) {
            (Some((after, from)), _) if path.get(from).is_some_and(|byte| *byte != b'/') => {
                star = Some((after, from + 1));
                (p, t) = (after, from + 1);
            }
            (_, Some((after, from))) if from < path.len() => {
                deep = Some((after, from + 1));
                star = None;
                (p, t) = (after, from + 1);
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stays_in_its_segment_and_two_go_anywhere() {
        for (pattern, path, expected) in [
            ("/api/*", "/api/search", true),
            ("/api/*", "/api/search/deep", false),
            ("/api/*", "/api", false),
            ("/api/**", "/api/search/deep", true),
            ("/api/**", "/api", true),
            ("/api/**", "/apis", false),
            ("/api/*/items", "/api/7/items", true),
            ("/api/*/items", "/api/7/8/items", false),
            ("/**/items", "/a/b/items", true),
            ("/v*/x", "/v12/x", true),
            ("/a*b*c", "/aXbYc", true),
            ("/a*b*c", "/aXbY", false),
            ("*", "search", true),
            ("**", "/any/thing", true),
            ("/**/a/*/z", "/a/b/a/c/z", true),
            ("/s%2Ax", "/szzx", false),
            ("/s%2Ax", "/s%2Ax", true),
        ] {
            assert_eq!(Glob::new(pattern).matches(path), expected, "{pattern} on {path}");
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_exponential_time() {
        let pattern = Glob::new(&"/a*".repeat(200));
        assert!(!pattern.matches(&"/aaaaaaaa".repeat(100)));
        let deep = Glob::new(&format!("{}b", "**a".repeat(200)));
        assert!(!deep.matches(&"a".repeat(2_000)));
    }
}
