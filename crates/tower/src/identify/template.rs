//! Path templates: `/tenants/{tenant}/**`.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::percent_decode_str;
use tollgate::Descriptor;
use tollgate::core::Value;

use super::attribute_name;

/// Takes attributes from the segments of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template {
    text: Box<str>,
    segments: Vec<Segment>,
    /// Whether anything may follow: `**`.
    open: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Literal(Box<str>),
    /// `*`
    Any,
    /// `{name}`
    Attribute(Box<str>),
}

/// Why a text is no path template, and what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// It does not begin with a slash.
    #[error("path template `{text}`: begin with a slash, as in `/tenants/{{tenant}}/**`")]
    Relative {
        /// The template.
        text: String,
    },
    /// A brace or star beside other text, or a name that is none.
    #[error(
        "path template `{text}`: `{segment}`: between two slashes stands text, `*` or an attribute as `{{name}}`"
    )]
    Segment {
        /// The template.
        text: String,
        /// Where.
        segment: String,
    },
    /// Something behind `**`.
    #[error("path template `{text}`: `**` stands for the rest of the path; put it at the end")]
    NotLast {
        /// The template.
        text: String,
    },
    /// One name twice.
    #[error("path template `{text}`: `{{{name}}}` is there twice; give each segment a name of its own")]
    Twice {
        /// The template.
        text: String,
        /// The name.
        name: String,
    },
    /// No name at all.
    #[error(
        "path template `{text}`: nothing is taken from it; name a segment, as in `/tenants/{{tenant}}/**`"
    )]
    NoAttribute {
        /// The template.
        text: String,
    },
}

impl Template {
    pub(super) fn parse(text: &str) -> Result<Self, TemplateError> {
        if !text.starts_with('/') {
            return Err(TemplateError::Relative { text: text.to_owned() });
        }
        let mut template = Template { text: text.into(), segments: Vec::new(), open: false };
        for segment in split(text) {
            template.push(segment)?;
        }
        match template.segments.iter().any(|segment| matches!(segment, Segment::Attribute(_))) {
            true => Ok(template),
            false => Err(TemplateError::NoAttribute { text: text.to_owned() }),
        }
    }

    fn push(&mut self, segment: &str) -> Result<(), TemplateError> {
        let text = || self.text.to_string();
        if self.open {
            return Err(TemplateError::NotLast { text: text() });
        }
        let name = segment.strip_prefix('{').and_then(|name| name.strip_suffix('}')).map(attribute_name);
        let segment = match (segment, name) {
            ("**", _) => {
                self.open = true;
                return Ok(());
            }
            ("*", _) => Segment::Any,
            (_, Some(Ok(name))) => Segment::Attribute(name),
            (segment, None) if !segment.contains(['{', '}', '*']) => literal(segment),
            (segment, _) => {
                return Err(TemplateError::Segment { text: text(), segment: segment.to_owned() });
            }
        };
        if let Segment::Attribute(name) = &segment
            && self.segments.contains(&segment)
        {
            return Err(TemplateError::Twice { text: text(), name: name.to_string() });
        }
        self.segments.push(segment);
        Ok(())
    }

    /// Adds what a request's path says, if it fits. Of a path with `%2F` the decoded reading comes first, as it does in
    /// keys; the encoded one counts where only that fits.
    pub(super) fn add<'a>(&'a self, facts: &mut Descriptor<'a>) {
        let path = match facts.get("endpoint") {
            Some(Value::Borrowed(path)) if self.fits(path) => {
                return self.take(path, facts, decoded);
            }
            Some(Value::Owned(path)) if self.fits(path) => path.to_string(),
            _ => match facts.encoded_endpoint() {
                Some(path) if self.fits(path) => path.to_owned(),
                _ => return,
            },
        };
        self.take(&path, facts, |segment| Cow::Owned(decoded(segment).into_owned()));
    }

    fn take<'a, 'p>(
        &'a self,
        path: &'p str,
        facts: &mut Descriptor<'a>,
        value: impl Fn(&'p str) -> Cow<'a, str>,
    ) {
        for (segment, part) in self.segments.iter().zip(split(path)) {
            if let Segment::Attribute(name) = segment {
                facts.set(&**name, value(part));
            }
        }
    }

    fn fits(&self, path: &str) -> bool {
        let mut parts = split(path);
        let same = |segment: &Segment| match (segment, parts.next()) {
            (Segment::Literal(literal), Some(part)) => **literal == *part,
            (_, part) => part.is_some(),
        };
        path.starts_with('/') && self.segments.iter().all(same) && (self.open || parts.next().is_none())
    }
}

fn split(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

/// A literal as a normalised path has it.
fn literal(segment: &str) -> Segment {
    let path = Descriptor::new().with("endpoint", format!("/{segment}"));
    let decoded = path.text("endpoint").unwrap_or_default();
    let normal = path.encoded_endpoint().unwrap_or(&decoded);
    Segment::Literal(normal.trim_start_matches('/').into())
}

/// The value behind a segment. What is not text behind its percent signs stays encoded; a NUL in front keeps it apart
/// from whoever is called like that.
fn decoded(segment: &str) -> Cow<'_, str> {
    match percent_decode_str(segment).decode_utf8() {
        Ok(text) if !text.starts_with('\0') => text,
        _ => Cow::Owned(format!("\0{segment}")),
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The attributes a template takes from a path, as `name=value`.
    fn taken(template: &str, path: &str) -> Option<String> {
        let template = Template::parse(template).unwrap();
        let mut facts = Descriptor::new().with("endpoint", path);
        template.add(&mut facts);
        let taken: Vec<String> =
            facts.attributes().skip(1).map(|(name, value)| format!("{name}={value}")).collect();
        (!taken.is_empty()).then(|| taken.join(" "))
    }

    #[test]
    fn segments_become_attributes() {
        let template = "/tenants/{tenant}/**";
        for path in [
            "/tenants/acme",
            "/tenants/acme/",
            "/tenants/acme/a/b",
            "//tenants//acme/x",
            "/%74enants/%61cme?x=1",
        ] {
            assert_eq!(taken(template, path).as_deref(), Some("tenant=acme"), "{path}");
        }
        for path in ["/tenants", "/", "/Tenants/acme", "/a/tenants/acme", "tenants/acme", "*", ""] {
            assert_eq!(taken(template, path), None, "{path}");
        }
        assert_eq!(taken("/v1/*/{kind}/{id}", "/v1/x/y/z").as_deref(), Some("kind=y id=z"));
        assert_eq!(taken("/v1/*/{kind}/{id}", "/v1/x/y/z/more"), None);
        assert_eq!(taken("/caf%c3%a9 au lait/{n}", "/café%20au%20lait/1").as_deref(), Some("n=1"));
    }

    #[test]
    fn values_are_decoded_and_no_two_segments_share_one() {
        assert_eq!(taken("/{x}", "/a%20b%2Fc").as_deref(), Some("x=a b/c"));
        let spellings = ["/%FF", "/%25FF", "/%00%25FF", "/%00%FF", "/%EF%BF%BD", "/%00", "/%2500"];
        let values: std::collections::HashSet<_> = spellings.iter().map(|path| taken("/{x}", path)).collect();
        assert_eq!(values.len(), spellings.len());
    }

    #[test]
    fn an_encoded_slash_is_read_as_a_slash_where_that_fits() {
        assert_eq!(taken("/tenants/{tenant}/**", "/tenants/acme%2Fx").as_deref(), Some("tenant=acme"));
        assert_eq!(taken("/tenants/{tenant}/**", "/x/..%2Ftenants%2Facme").as_deref(), Some("tenant=acme"));
        assert_eq!(taken("/files/{name}", "/files/a%2Fb").as_deref(), Some("name=a/b"));
        assert_eq!(taken("/a%2Fb/{x}", "/a%2Fb/1").as_deref(), Some("x=1"));
        assert_eq!(taken("/a%2Fb/{x}", "/a/b/1"), None);
    }

    #[test]
    fn what_is_no_template_says_why() {
        for (text, part) in [
            ("tenants/{tenant}", "begin with a slash"),
            ("/a{b}", "`a{b}`"),
            ("/{}", "`{}`"),
            ("/{a b}", "`{a b}`"),
            ("/{a}/b*", "`b*`"),
            ("/**/{a}", "at the end"),
            ("/{a}/{a}", "twice"),
            ("/a/**", "nothing is taken"),
        ] {
            let error = Template::parse(text).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(text), "{text}: {error}");
        }
    }
}
