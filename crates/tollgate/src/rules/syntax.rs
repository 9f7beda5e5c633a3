//! YAML's syntax errors, in words for people who did not write the YAML specification.

use granit_parser::{ErrorKind, ScanError};

use super::findings::{Finding, Span};

/// What is wrong and what to do about it.
pub(super) fn explain(error: &ScanError, text: &str) -> Finding {
    let span = place(error, text);
    let Some((message, help)) = words(error.kind()) else {
        return Finding::new(span, unusual(error.kind()));
    };
    Finding::new(span, message).help(help)
}

/// The character to blame.
fn place(error: &ScanError, text: &str) -> Span {
    let mut start = error.marker().byte_offset().unwrap_or_default().min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let is_tab = matches!(
        error.kind(),
        ErrorKind::TabInBlockIndentation | ErrorKind::TabInIndentation | ErrorKind::TabNotAllowed
    );
    if is_tab && text[..start].ends_with('\t') {
        start -= 1; // The scanner has just stepped over it.
    }
    let width = text[start..].chars().next().filter(|c| *c != '\n').map_or(0, char::len_utf8);
    Span { start, end: start + width }
}

/// The mistakes that people make.
fn words(kind: &ErrorKind) -> Option<(String, &'static str)> {
    use ErrorKind as E;
    let (message, help) = match kind {
        E::MappingValueNotAllowed => (
            "a `:` cannot stand here",
            "line the field up with the others of its rule, or put quotes around a value that contains `: `",
        ),
        E::ExpectedBlockMappingKey | E::InvalidIndentation => (
            "this neither goes on with the value before it nor begins a field",
            "line fields up with each other, and put quotes around a value that begins with `{`, `[` or a quote",
        ),
        E::ExpectedBlockSequenceEntry => (
            "this line is not part of the list above it",
            "line it up with the other fields of its rule, or begin a rule with `- `",
        ),
        E::SimpleKeyExpected | E::InvalidSimpleKey => {
            ("a field's name is followed by `: `", "write it like `limit: 100/min`")
        }
        E::MappingKeyNotAllowed => ("a field cannot begin here", "put it on a line of its own"),
        E::BlockSequenceEntryNotAllowed => (
            "a list cannot begin on this line",
            "put each `- ` on a line of its own, write `[a, b]`, or put quotes around a value that begins with `-`",
        ),
        E::BlockEntryInFlowCollection | E::PlainScalarStartsWithDashFlowIndicator => {
            ("a `-` cannot stand inside brackets", "separate the items with commas")
        }
        E::InvalidColonPlacement => {
            ("a `:` cannot stand here", "close the bracket that is open, or put quotes around the value")
        }
        E::ExpectedFlowMappingSeparator => ("a `,` or `}` is missing here", "separate fields with commas"),
        E::ExpectedFlowSequenceSeparator => ("a `,` or `]` is missing here", "separate items with commas"),
        E::MisplacedFlowCollectionEnd => {
            ("this closes a bracket that was not opened", "drop it, or put quotes around the value")
        }
        E::UnclosedQuotedScalar | E::DocumentIndicatorInQuotedScalar => {
            ("this quote is never closed", "add the missing quote at the end of the value")
        }
        E::InvalidTrailingSingleQuotedScalar => (
            "something follows the closing quote",
            "put the whole value in quotes; inside single quotes `''` stands for one quote",
        ),
        E::InvalidTrailingDoubleQuotedScalar => (
            "something follows the closing quote",
            "put the whole value in quotes, or add the `:` or `,` that belongs here",
        ),
        E::UnknownQuotedScalarEscape
        | E::InvalidQuotedScalarHexEscape
        | E::InvalidLowSurrogateHexEscape
        | E::InvalidLowSurrogate
        | E::MissingLowSurrogate
        | E::UnpairedLowSurrogate
        | E::InvalidUnicodeEscape => (
            "this text has a `\\` that begins no known escape",
            "write `\\\\` for a backslash, or use single quotes",
        ),
        E::TabInBlockIndentation
        | E::TabInIndentation
        | E::TabNotAllowed
        | E::TabInPlainScalar
        | E::TabAtBlockScalarStart => ("a tab cannot indent", "use spaces"),
        E::CommentInterceptedScalar => (
            "a comment stands in the middle of a value",
            "indent the next line like the other fields, or put the value on one line",
        ),
        E::CommentNotSeparated => ("a comment needs a space before its `#`", "add one"),
        E::MissingAnchorOrAliasName => {
            ("a value cannot begin with a bare `*` or `&`", "put quotes around it")
        }
        E::InvalidQuotedScalarIndent | E::InvalidFlowScalarIndent => {
            ("this line is not indented enough for the value it goes on with", "indent it further")
        }
        E::RecursionLimitExceeded => {
            ("this is nested too deeply", "a rules file needs no more than five levels")
        }
        E::UnexpectedEof
        | E::UnexpectedEofFlowSequence
        | E::UnexpectedEofFlowMapping
        | E::UnexpectedEofImplicitFlowMapping
        | E::UnexpectedEofBlockSequence
        | E::UnexpectedEofBlockMapping => ("the text ends too early", "close what is open"),
        _ => return with_character(kind),
    };
    Some((message.to_owned(), help))
}

fn with_character(kind: &ErrorKind) -> Option<(String, &'static str)> {
    match kind {
        ErrorKind::UnexpectedCharacter { character } => Some((
            format!("a value cannot begin with `{}`", character.escape_debug()),
            "put quotes around it",
        )),
        ErrorKind::UnclosedFlowCollection { open } => Some((
            format!("this `{open}` is never closed"),
            if *open == '[' { "add the missing `]`" } else { "add the missing `}`" },
        )),
        ErrorKind::MismatchedFlowCollectionEnd { open, close } => Some((
            format!("this `{open}` is closed by a `{close}`"),
            "brackets come in pairs: `[…]` and `{…}`",
        )),
        _ => None,
    }
}

/// What hardly anybody runs into, in the parser's own words.
fn unusual(kind: &ErrorKind) -> String {
    format!("this is not YAML: {kind}")
}
