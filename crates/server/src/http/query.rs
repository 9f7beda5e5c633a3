//! What stands behind the `?` of a request.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use axum::http::Uri;
use percent_encoding::percent_decode_str;
use tollgate::core::suggest::closest;

use super::problem::Problem;

/// The parameters of a request, each of them known and given once.
#[derive(Debug)]
pub(super) struct Query(Vec<(&'static str, String)>);

impl Query {
    /// Reads the parameters. One that is empty was not given.
    pub(super) fn parse(uri: &Uri, known: &[&'static str]) -> Result<Self, Problem> {
        let mut given: Vec<(&'static str, String)> = Vec::new();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            let Some(known) = known.iter().find(|known| **known == name) else {
                return Err(unknown(&name, known));
            };
            if given.iter().any(|(name, _)| name == known) {
                return Err(Problem::bad_query(known, format!("`{known}` is given twice")));
            }
            if !value.is_empty() {
                given.push((known, value.into_owned()));
            }
        }
        Ok(Query(given))
    }

    /// A parameter as it is.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    /// A whole number.
    pub(super) fn number(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, Problem> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse() {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            _ => {
                let (least, most) = range.into_inner();
                let detail = format!("`{name}` is a whole number from {least} to {most}, not `{text}`");
                Err(Problem::bad_query(name, detail))
            }
        }
    }
}

fn decoded(text: &str) -> Result<Cow<'_, str>, Problem> {
    let spaced = text.replace('+', " ");
    match percent_decode_str(&spaced).decode_utf8() {
        Ok(decoded) => Ok(Cow::Owned(decoded.into_owned())),
        Err(_) => Err(Problem::bad_query("", format!("`{text}` is not UTF-8"))),
    }
}

fn unknown(name: &str, known: &[&'static str]) -> Problem {
    let help = match closest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are {}", known.join(", ")),
    };
    Problem::bad_query(name, format!("unknown parameter `{name}`; {help}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Query, Problem> {
        Query::parse(&format!("/x?{query}").parse().unwrap(), &["user_id", "limit"])
    }

    #[test]
    fn parameters_are_decoded_and_empty_ones_were_not_given() {
        let query = parse("user_id=a%20b%2Bc+d%26&limit=").unwrap();
        assert_eq!((query.text("user_id"), query.text("limit")), (Some("a b+c d&"), None));
        assert_eq!(parse("limit=7").unwrap().number("limit", 1..=9).unwrap(), Some(7));
        assert!(parse("").unwrap().text("user_id").is_none());
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for query in ["usr_id=1", "user_id=1&user_id=2", "user_id=%ff", "x"] {
            assert!(parse(query).is_err(), "{query}");
        }
        for limit in ["0", "10", "-1", "x", "1.0"] {
            assert!(parse(&format!("limit={limit}")).unwrap().number("limit", 1..=9).is_err(), "{limit}");
        }
    }
}
