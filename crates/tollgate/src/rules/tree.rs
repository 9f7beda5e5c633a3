//! A YAML document as a tree in which every value knows where it was written.
//!
//! Scalars keep the text as written: whether `1.50` is a number is the reader's question.

use std::borrow::Cow;
use std::rc::Rc;

use super::findings::Span;

/// A value and its place.
#[derive(Debug, Clone)]
pub(super) struct Node<'t> {
    pub(super) span: Span,
    pub(super) value: Value<'t>,
}

/// What YAML can say.
#[derive(Debug, Clone)]
pub(super) enum Value<'t> {
    /// Bare text: it may be a number, a boolean or nothing at all.
    Plain(Cow<'t, str>),
    /// Text in quotes or in a block: always text.
    Quoted(Cow<'t, str>),
    List(Rc<[Node<'t>]>),
    Map(Rc<[Entry<'t>]>),
    /// Already reported; nobody says more about it.
    Broken,
}

/// One `key: value`.
#[derive(Debug, Clone)]
pub(super) struct Entry<'t> {
    pub(super) key: Node<'t>,
    pub(super) value: Node<'t>,
}

impl<'t> Node<'t> {
    /// The text of a scalar, however it was written.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Plain(text) | Value::Quoted(text) => Some(text),
            _ => None,
        }
    }

    /// Whether nothing was written: empty, `~` or `null`.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Plain(text) if matches!(&**text, "" | "~" | "null" | "Null" | "NULL"))
    }

    /// Where a caret shows the value best: a mapping is its first key.
    pub(super) fn head(&self) -> Span {
        match &self.value {
            Value::Map(entries) => entries.first().map_or(self.span, |entry| entry.key.span),
            _ => self.span,
        }
    }

    /// What it is, in words: "a list".
    pub(super) fn kind(&self) -> &'static str {
        match &self.value {
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
            _ if self.is_null() => "nothing",
            Value::Plain(text) if matches!(&**text, "true" | "false") => "true or false",
            Value::Plain(text) if is_numeric(text) => "a number",
            _ => "text",
        }
    }
}

/// Whether bare text is a number to YAML.
pub(super) fn is_numeric(text: &str) -> bool {
    let begins_like_one = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    begins_like_one && text.parse::<f64>().is_ok()
}

/// The entry of a name.
pub(super) fn find<'e, 't>(entries: &'e [Entry<'t>], name: &str) -> Option<&'e Entry<'t>> {
    entries.iter().find(|entry| entry.key.text() == Some(name))
}
