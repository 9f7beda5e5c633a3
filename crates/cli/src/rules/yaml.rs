//! Rules as a rules file spells them.

use std::fmt::Write as _;

use serde_json::Value;
use tollgate::core::Draft;

use super::fields::fields;

/// Where a value stands: between brackets more characters mean something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Around {
    Lines,
    Brackets,
}

/// A whole file.
pub(super) fn file<'d>(drafts: impl IntoIterator<Item = &'d Draft>) -> String {
    let items: String = drafts.into_iter().map(|draft| item(draft, "  ")).collect();
    if items.is_empty() { "rules: []\n".to_owned() } else { format!("rules:\n{items}") }
}

/// A rule as an item of a list, a line for each field.
fn item(draft: &Draft, indent: &str) -> String {
    let mut text = String::new();
    for (place, (name, value)) in fields(draft).enumerate() {
        let bullet = if place == 0 { "- " } else { "  " };
        let _ = writeln!(text, "{indent}{bullet}{name}: {}", line_value(&value)); // writing to a String
    }
    text
}

/// A rule in one line.
pub(super) fn braces(draft: &Draft) -> String {
    let fields: Vec<String> =
        fields(draft).map(|(name, value)| format!("{name}: {}", bracket_value(&value))).collect();
    format!("{{ {} }}", fields.join(", "))
}

/// What a field says, behind `name: ` on a line of its own.
fn line_value(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text, Around::Lines),
        value => bracket_value(value),
    }
}

/// What a field says, between brackets.
pub(super) fn bracket_value(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text, Around::Brackets),
        // A list of one is what the one is.
        Value::Array(items) => match &items[..] {
            [Value::String(one)] => scalar(one, Around::Brackets),
            items => format!("[{}]", items.iter().map(bracket_value).collect::<Vec<_>>().join(", ")),
        },
        Value::Object(entries) => {
            let entry = |(name, value): (&String, &Value)| {
                format!("{}: {}", scalar(name, Around::Brackets), bracket_value(value))
            };
            format!("{{ {} }}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        value => value.to_string(),
    }
}

/// A text, in quotes where YAML would take it for something else.
fn scalar(text: &str, around: Around) -> String {
    if is_plain(text, around) { text.to_owned() } else { quoted(text) }
}

fn is_plain(text: &str, around: Around) -> bool {
    let is_harmless = |c: char| {
        c.is_ascii_alphanumeric()
            || " _-./:*+@%<>=$^".contains(c)
            || (around == Around::Lines && "{}[],".contains(c))
    };
    let is_word = |word: &str| text.eq_ignore_ascii_case(word);
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
        && text.chars().all(is_harmless)
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && text.parse::<f64>().is_err()
        && !["null", "true", "false"].into_iter().any(is_word)
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            // What is not printable, or not everybody's idea of a space or line.
            c if c.is_control() || ('\u{2000}'..='\u{206f}').contains(&c) || is_special(c) => {
                let _ = write!(out, "\\U{:08x}", u32::from(c)); // writing to a String
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn is_special(c: char) -> bool {
    matches!(c, '\u{a0}' | '\u{feff}' | '\u{fff0}'..='\u{ffff}') || u32::from(c) & 0xfffe == 0xfffe
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::rules;

    /// Texts that YAML makes something else of.
    const AWKWARD: [&str; 29] = [
        "plain",
        "user:{user_id}",
        "10/s burst 50",
        "1.50",
        "007",
        "true",
        "Null",
        "~",
        "- a",
        "a: b",
        "a #b",
        "#b",
        "'",
        "\"",
        "\\",
        "a, b",
        "[a]",
        "{a}",
        " a ",
        "a:",
        "*a",
        "&a",
        "!a",
        "é漢🦀",
        "a\nb\t",
        "\u{85}\u{2028}",
        "\u{feff}",
        "%x",
        "@x",
    ];

    #[test]
    fn whatever_a_text_says_is_read_back() {
        for text in AWKWARD {
            let draft = Draft {
                key: text.to_owned(),
                plan: Some(text.to_owned()),
                when: [(text.to_owned(), vec![text.to_owned()]), ("b".to_owned(), vec![text.to_owned(); 2])]
                    .into(),
                replaces: vec![text.to_owned()],
                description: Some(text.to_owned()),
                ..Draft::default()
            };
            for written in [file([&draft, &draft]), format!("rules: [{}, {0}]", braces(&draft))] {
                let read = rules::parse_drafts("written", &written);
                let read = read.unwrap_or_else(|error| panic!("{error}\n{written}"));
                assert_eq!(read, [draft.clone(), draft.clone()], "{written}");
            }
        }
    }

    #[test]
    fn what_needs_no_quotes_has_none() {
        let draft = Draft {
            name: Some("a".to_owned()),
            key: "user:{user_id}".to_owned(),
            limit: Some("10/s burst 50".to_owned()),
            ..Draft::default()
        };
        assert_eq!(
            file([&draft]),
            "rules:\n  - name: a\n    key: user:{user_id}\n    limit: 10/s burst 50\n"
        );
        assert_eq!(braces(&draft), "{ name: a, key: \"user:{user_id}\", limit: 10/s burst 50 }");
        assert_eq!(file([]), "rules: []\n");
    }
}
