//! `If-Match`: which version a change is meant for.

use axum::http::header::IF_MATCH;
use axum::http::{HeaderMap, StatusCode};

use super::super::problem::Problem;

/// The versions that may be changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum IfMatch {
    /// Whichever it is.
    Any,
    /// One of these.
    Versions(Vec<i64>),
}

impl IfMatch {
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let mut versions = Vec::new();
        let mut given = headers.get_all(IF_MATCH).iter().peekable();
        if given.peek().is_none() {
            let detail = "send If-Match with the ETag of the rule as you saw it, or `*` for whichever it is";
            let status = StatusCode::PRECONDITION_REQUIRED;
            return Err(Problem::new(status, "If-Match is missing", detail));
        }
        for value in given {
            let text = value.to_str().unwrap_or_default();
            for tag in text.split(',').map(str::trim) {
                match tag.strip_prefix("W/").unwrap_or(tag) {
                    "*" => return Ok(IfMatch::Any),
                    strong if strong == tag => versions.extend(version(tag)?),
                    weak => drop(version(weak)?), // is none that would do for a change
                }
            }
        }
        Ok(IfMatch::Versions(versions))
    }

    pub(super) fn fits(&self, version: i64) -> bool {
        match self {
            IfMatch::Any => true,
            IfMatch::Versions(versions) => versions.contains(&version),
        }
    }
}

/// The version in a tag; a tag that is not of ours has none.
fn version(tag: &str) -> Result<Option<i64>, Problem> {
    let inside = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    let wrong = || Problem::bad_header(format!("If-Match is an ETag such as `\"3\"`, or `*`, not `{tag}`"));
    inside.map(|tag| tag.parse().ok()).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&'static str]) -> Result<IfMatch, Problem> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IF_MATCH, axum::http::HeaderValue::from_static(value));
        }
        IfMatch::of(&headers)
    }

    #[test]
    fn a_tag_a_list_or_a_star_is_read() {
        assert_eq!(of(&["*"]).unwrap(), IfMatch::Any);
        assert_eq!(of(&["\"3\""]).unwrap(), IfMatch::Versions(vec![3]));
        assert_eq!(of(&["\"3\", \"4\"", "\"5\""]).unwrap(), IfMatch::Versions(vec![3, 4, 5]));
        assert_eq!(of(&["\"abc\", W/\"3\""]).unwrap(), IfMatch::Versions(vec![]));
        for wrong in ["3", "\"", "", "W/3"] {
            assert!(of(&[wrong]).is_err(), "{wrong}");
        }
        assert!(of(&[]).is_err());
    }
}
