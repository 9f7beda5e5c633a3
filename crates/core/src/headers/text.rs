//! As much of structured fields (RFC 9651) as limits need: strings and integers.

use std::fmt::Write as _;

/// Integers have at most 15 digits.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// A String; what it cannot hold is percent-encoded.
pub(super) fn push_string(out: &mut String, text: &str) {
    out.push('"');
    let stands_for_itself = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if text.bytes().all(stands_for_itself) {
        out.push_str(text);
    } else {
        push_escaped(out, text);
    }
    out.push('"');
}

fn push_escaped(out: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                out.push('\\');
                out.push(character);
            }
            ' '..='~' => out.push(character),
            other => {
                let mut buffer = [0; 4];
                for byte in other.encode_utf8(&mut buffer).bytes() {
                    let _ = write!(out, "%{byte:02X}");
                }
            }
        }
    }
}

/// A parameter, such as `;q=50`.
pub(super) fn push_integer(out: &mut String, name: &str, value: u64) {
    out.push_str(name);
    push_number(out, value);
}

/// An Integer.
pub(super) fn push_number(out: &mut String, value: u64) {
    out.push_str(itoa::Buffer::new().format(value.min(MAX_INTEGER)));
}
