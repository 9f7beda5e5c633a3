//! Key patterns: what tells the buckets of a rule apart.
//!
//! A pattern is a list of segments between colons: `api:{endpoint}:{user_id}`. `{name}` takes the value of an
//! attribute. A literal after the name of a known attribute is a condition (`endpoint:/api/search` counts only
//! requests to that path); any other literal is a label.

use crate::condition::Condition;
use crate::descriptor::{self, Attribute};

/// The most segments a pattern has.
const MAX_SEGMENTS: usize = 16;

/// A parsed key pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPattern {
    text: Box<str>,
    pub(super) segments: Vec<Segment>,
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Segment {
    Literal(Box<str>),
    Attribute(Attribute),
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
    /// One bucket for all requests.
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

/// Why a text is not a key pattern, and what to write.
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
    /// Too many segments.
    #[error("a key pattern has at most {MAX_SEGMENTS} segments")]
    TooLong,
}

impl KeyPattern {
    /// The pattern of keys that callers name themselves.
    pub(super) fn of_ad_hoc_keys() -> Self {
        let segments = vec![Segment::Attribute(Attribute::new(super::AD_HOC_KEY))];
        KeyPattern { text: "{key}".into(), segments, conditions: Vec::new() }
    }

    /// Reads a pattern.
    ///
    /// # Errors
    ///
    /// Empty segments, stray braces, invalid names.
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
            self.segments.push(Segment::Attribute(Attribute::new(name)));
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
        self.names().map(Attribute::as_str)
    }

    #[inline]
    pub(crate) fn names(&self) -> impl Iterator<Item = &Attribute> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Attribute(name) => Some(name),
            Segment::Literal(_) => None,
        })
    }

    /// What its literals demand of a request.
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// What it counts by: its one attribute, all requests, or a combination.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
