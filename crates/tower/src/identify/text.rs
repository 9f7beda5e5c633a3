//! Values of headers as text, in one spelling.

use std::borrow::Cow;

use http::header::{HOST, HeaderValue};
use http::request::Parts;
use sha2::{Digest, Sha256};

/// A header's value as text, without the blanks around it.
///
/// What is not UTF-8 is told apart all the same: a NUL, which no header holds, and then a character for each byte.
pub(super) fn value(value: &HeaderValue) -> Cow<'_, str> {
    let bytes = value.as_bytes().trim_ascii();
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(std::iter::once(0).chain(bytes.iter().copied()).map(char::from).collect()),
    }
}

/// `Bearer abc` without its first word: `bearer  abc` is the same caller.
pub(super) fn without_scheme(value: Cow<'_, str>) -> Cow<'_, str> {
    let after = value.find([' ', '\t']).map_or(0, |end| end + 1);
    match value {
        Cow::Borrowed(text) => Cow::Borrowed(text[after..].trim_start()),
        Cow::Owned(text) => Cow::Owned(text[after..].trim_start().to_owned()),
    }
}

/// The first 128 bits of the SHA-256 of a secret, in hexadecimal.
pub(super) fn digest(secret: &str) -> String {
    hex::encode(&Sha256::digest(secret.as_bytes())[..16])
}

/// The host a request is for: in lower case, without user, port and the dot at the end.
pub(super) fn host(request: &Parts) -> Option<Cow<'_, str>> {
    let host = match request.uri.host() {
        Some(host) => Cow::Borrowed(host),
        None => value(request.headers.get(HOST)?),
    };
    Some(match host {
        Cow::Borrowed(host) => lower_case(bare_host(host)),
        Cow::Owned(host) => Cow::Owned(lower_case(bare_host(&host)).into_owned()),
    })
}

fn bare_host(host: &str) -> &str {
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let end = match host.find(']') {
        Some(end) if host.starts_with('[') => end + 1,
        _ => host.find(':').unwrap_or(host.len()),
    };
    host[..end].trim_end_matches('.')
}

fn lower_case(text: &str) -> Cow<'_, str> {
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(text.to_ascii_lowercase())
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header_value_is_a_text_of_its_own() {
        let values: [&[u8]; 7] =
            [b"", b"a", b"\xff", "\u{ff}".as_bytes(), b"\xfe", "jürgen".as_bytes(), b"j\xfcrgen"];
        let headers = values.map(|value| HeaderValue::from_bytes(value).unwrap());
        let texts: std::collections::HashSet<_> = headers.iter().map(value).collect();
        assert_eq!(texts.len(), values.len());
        assert_eq!(value(&headers[5]), "jürgen");
        assert_eq!(value(&HeaderValue::from_static(" \ta b\t ")), "a b");
    }

    #[test]
    fn a_scheme_is_left_out_however_it_is_spelt() {
        for text in ["Bearer abc", "bearer abc", "BEARER  abc", "Bearer\tabc", "abc"] {
            assert_eq!(without_scheme(text.into()), "abc", "{text}");
        }
    }

    #[test]
    fn a_secret_is_told_by_its_hash() {
        assert_eq!(digest("abc"), "ba7816bf8f01cfea414140de5dae2223");
    }

    #[test]
    fn every_spelling_of_a_host_is_one_host() {
        for text in ["example.com", "EXAMPLE.com", "example.com:8080", "example.com.", "u:p@example.com:80"] {
            assert_eq!(lower_case(bare_host(text)), "example.com", "{text}");
        }
        assert_eq!(bare_host("[2001:db8::1]:443"), "[2001:db8::1]");
        assert_eq!(bare_host(""), "");
    }
}
