//! Numbers as people read them.

use std::borrow::Cow;

use tollgate::Micros;

/// A wait, rounded up, in at most two units: `350 us`, `100 ms`, `1.5 s`, `2 min 5 s`, `3 d 4 h`.
pub(crate) fn wait(wait: Micros) -> String {
    let us = wait.get();
    match us {
        0 => "0 s".to_owned(),
        1..1_000 => format!("{us} us"),
        1_000..=999_000 => format!("{} ms", us.div_ceil(1_000)),
        999_001..=59_990_000 => {
            let hundredths = us.div_ceil(10_000);
            let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
            format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => {
            let seconds = wait.ceil_secs();
            match seconds {
                0..3_600 => two(seconds, 60, "min", "s"),
                3_600..86_400 => two(seconds.div_ceil(60), 60, "h", "min"),
                _ => two(seconds.div_ceil(3_600), 24, "d", "h"),
            }
        }
    }
}

/// A wait of the API.
pub(crate) const fn millis(count: u64) -> Micros {
    Micros::new(count.saturating_mul(1_000))
}

fn two(count: u64, each: u64, large: &str, small: &str) -> String {
    match count % each {
        0 => format!("{} {large}", count / each),
        rest => format!("{} {large} {rest} {small}", count / each),
    }
}

/// A number with its thousands apart: `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// So many of something: `1 rule`, `7 rules`.
pub(crate) fn count(number: u64, one: &str) -> String {
    format!("{} {one}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// A part of a whole with one decimal: `12.5 %`.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let (part, whole) = (u128::from(part), u128::from(whole));
    let permille = (part * 1_000 + whole / 2).checked_div(whole).unwrap_or(0);
    format!("{}.{} %", permille / 10, permille % 10)
}

/// A text that callers chose, without what could move a terminal's cursor or turn its writing round.
pub(crate) fn printable(text: &str) -> String {
    let harmless = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if harmless(c) { shown.push(c) } else { shown.extend(c.escape_default()) }
    }
    shown
}

/// A text as one word for a shell: as it is, or between quotes.
pub(crate) fn quoted(text: &str) -> Cow<'_, str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:=@%+,".contains(&byte);
    match !text.is_empty() && text.bytes().all(plain) {
        true => text.into(),
        false => format!("'{}'", text.replace('\'', r"'\''")).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_reads_in_its_own_units_and_never_too_short() {
        for (us, text) in [
            (0, "0 s"),
            (1, "1 us"),
            (1_001, "2 ms"),
            (100_000, "100 ms"),
            (999_001, "1 s"),
            (1_500_000, "1.5 s"),
            (1_500_001, "1.51 s"),
            (10_000_000, "10 s"),
            (59_990_001, "1 min"),
            (125_000_000, "2 min 5 s"),
            (3_600_000_000, "1 h"),
            (3_660_000_001, "1 h 2 min"),
            (273_600_000_000, "3 d 4 h"),
        ] {
            assert_eq!(wait(Micros::new(us)), text, "{us}");
        }
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(count(1, "rule"), "1 rule");
        assert_eq!(percent(1, 8), "12.5 %");
        assert_eq!(percent(1, 0), "0.0 %");
        assert_eq!((percent(294, 383), percent(89, 383)), ("76.8 %".to_owned(), "23.2 %".to_owned()));
        assert_eq!((percent(1, 2_000), percent(1, 2_001)), ("0.1 %".to_owned(), "0.0 %".to_owned()));
        assert_eq!(percent(u64::MAX, u64::MAX), "100.0 %");
    }

    #[test]
    fn whatever_a_word_for_a_shell_holds_it_stays_one_word() {
        for (text, word) in [
            ("/api/search", "/api/search"),
            ("user_id=42", "user_id=42"),
            ("", "''"),
            ("a b", "'a b'"),
            ("*", "'*'"),
            ("$(reboot)", "'$(reboot)'"),
            ("it's", r"'it'\''s'"),
            ("~", "'~'"),
        ] {
            assert_eq!(quoted(text), word);
        }
    }

    #[test]
    fn what_could_fool_a_terminal_is_escaped_and_the_rest_is_not() {
        assert_eq!(printable("ä漢🦀 a/b"), "ä漢🦀 a/b");
        assert_eq!(printable("a\x1b[31m\r\n\x07\u{9b}b"), r"a\u{1b}[31m\r\n\u{7}\u{9b}b");
        assert_eq!(printable("abc\u{202e}fed"), r"abc\u{202e}fed");
    }
}
