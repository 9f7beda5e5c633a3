//! Where in a JSON text a byte is: `rules[2].when.ip`.

use std::fmt::Write as _;

/// A step on the way down.
enum Step {
    Field(String),
    Item(usize),
}

/// What a byte of a text belongs to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) path: String,
    /// The path of the object, where the byte is in the name of one of its fields.
    pub(super) object: Option<String>,
}

/// What begins at a byte, or after it. The text is JSON.
pub(super) fn place_at(text: &str, offset: usize) -> Place {
    let bytes = text.as_bytes();
    let mut steps: Vec<Step> = Vec::new();
    let (mut at, mut expects_field) = (0, false);
    while at < bytes.len() {
        match bytes[at] {
            b' ' | b'\t' | b'\r' | b'\n' | b':' => {}
            b',' => match steps.last_mut() {
                Some(Step::Item(place)) => *place += 1,
                _ => expects_field = true,
            },
            b'}' | b']' => {
                steps.pop();
                expects_field = false;
            }
            b'"' if expects_field => {
                let end = end_of_string(bytes, at);
                let name = serde_json::from_str(&text[at..end]).unwrap_or_default();
                steps.pop();
                let object = (end > offset).then(|| written(&steps));
                steps.push(Step::Field(name));
                expects_field = false;
                if object.is_some() {
                    return Place { path: written(&steps), object };
                }
                at = end - 1;
            }
            _ if at >= offset => break,
            b'{' => {
                steps.push(Step::Field(String::new()));
                expects_field = true;
            }
            b'[' => steps.push(Step::Item(0)),
            b'"' => {
                let end = end_of_string(bytes, at);
                if end > offset {
                    break;
                }
                at = end - 1;
            }
            _ => {} // a number or a word
        }
        at += 1;
    }
    Place { path: written(&steps), object: None }
}

/// Where a text opens more objects and lists within each other than it may.
pub(super) fn too_deep(text: &str, most: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    while at < bytes.len() {
        match bytes[at] {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => at = end_of_string(bytes, at) - 1,
            _ => {}
        }
        if depth > most {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// The byte after a string that begins here.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn written(steps: &[Step]) -> String {
    let mut path = String::new();
    for step in steps {
        match step {
            Step::Field(name) if path.is_empty() => path.push_str(name),
            Step::Field(name) => drop(write!(path, ".{name}")),
            Step::Item(place) => drop(write!(path, "[{place}]")),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_has_the_path_of_what_begins_there() {
        let text = r#" {"rules": [{"key": "a, \"]}"}, {"limt": 5, "when": {"ip": ["x", 7]}}], "z": {}, "y": [{}, "s"]}"#;
        for (part, path) in [
            ("{\"rules\"", ""),
            ("\"rules\"", "rules"),
            ("[{", "rules"),
            ("{\"key\"", "rules[0]"),
            ("\"a, ", "rules[0].key"),
            ("{\"limt\"", "rules[1]"),
            ("\"limt\"", "rules[1].limt"),
            ("limt", "rules[1].limt"),
            ("5,", "rules[1].limt"),
            ("{\"ip\"", "rules[1].when"),
            ("\"x\"", "rules[1].when.ip[0]"),
            ("7]", "rules[1].when.ip[1]"),
            ("{}, \"y", "z"),
            ("\"s\"", "y[1]"),
        ] {
            assert_eq!(place_at(text, text.find(part).unwrap()).path, path, "{part}");
        }
        let of = |part| place_at(text, text.find(part).unwrap()).object;
        assert_eq!((of("\"limt\""), of("\"rules\"")), (Some("rules[1]".to_owned()), Some(String::new())));
        assert_eq!((of("5,"), of("{\"limt\"")), (None, None));
    }

    #[test]
    fn what_is_nested_too_deep_is_found_and_brackets_in_strings_are_none() {
        assert_eq!(too_deep(r#"{"a": [1, {"b": "[[[\"[[["}]}"#, 3), None);
        assert_eq!(too_deep(r#"{"a": [1, {"b": []}]}"#, 3), Some(16));
        assert_eq!(too_deep("\"[[[", 1), None);
    }

    #[test]
    fn no_text_and_no_offset_is_out_of_bounds() {
        for text in ["", "{", "\"", "\"\\", "{\"a", "[1,", "]}"] {
            for offset in 0..9 {
                place_at(text, offset);
            }
        }
    }
}
