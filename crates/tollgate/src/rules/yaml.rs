//! From YAML text to a tree in which every value has its place, within bounds.
//!
//! Scalars keep the text as written: whether `1.50` is a number is the reader's question. Anchors, aliases and merge keys
//! are errors.

use std::borrow::Cow;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Tag};

use super::errors::{Finding, Findings, Span, clip};

/// The longest text that is read: ten times a file of 100,000 rules.
const MAX_BYTES: usize = 64 << 20;
/// The most values in a file. A long text counts as several.
const MAX_VALUES: usize = 5_000_000;
/// The deepest nesting; a rules file needs five levels.
const MAX_DEPTH: usize = 32;
/// The most fields of one mapping.
const MAX_FIELDS: usize = 256;
/// The longest single text.
const MAX_SCALAR: usize = 16 << 10;

/// A value and its place.
#[derive(Debug)]
pub(super) struct Node<'t> {
    pub(super) span: Span,
    pub(super) value: Value<'t>,
}

/// What YAML can say.
#[derive(Debug)]
pub(super) enum Value<'t> {
    /// Bare text: it may be a number, a boolean or nothing at all.
    Plain(Cow<'t, str>),
    /// Text in quotes or in a block: always text.
    Quoted(Cow<'t, str>),
    List(Vec<Node<'t>>),
    Map(Vec<Entry<'t>>),
    /// Already reported.
    Broken,
}

/// One `key: value`.
#[derive(Debug)]
pub(super) struct Entry<'t> {
    pub(super) key: Node<'t>,
    pub(super) value: Node<'t>,
}

impl Node<'_> {
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

/// Reads the text; an empty document is a null. `None`: the rest cannot be read.
pub(super) fn load<'t>(text: &'t str, findings: &mut Findings) -> Option<Node<'t>> {
    if text.len() > MAX_BYTES {
        let message = format!("the file has {} bytes; at most {MAX_BYTES} are read", text.len());
        findings.add(Finding::new(Span::default(), message));
        return None;
    }
    let options = granit_parser::options! {
        emit_unresolved_aliases: true,
        emit_comments: false,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut loader = Loader { text, findings, open: Vec::new(), root: None, values: 0 };
    for event in Parser::new_from_str_with_options(text, options) {
        let read = match event {
            Ok((event, span)) => loader.take(event, &span),
            Err(error) => Err(explain(&error, text)),
        };
        if let Err(finding) = read {
            loader.findings.add(finding);
            return None;
        }
        if loader.findings.is_full() {
            return None;
        }
    }
    Some(loader.root.unwrap_or(Node { span: Span::default(), value: Value::Plain("".into()) }))
}

struct Loader<'t, 'f> {
    text: &'t str,
    findings: &'f mut Findings,
    /// Lists and mappings that have not ended: where each starts, and its items, or keys and values in turn.
    open: Vec<(usize, Vec<Node<'t>>)>,
    root: Option<Node<'t>>,
    values: usize,
}

impl<'t> Loader<'t, '_> {
    /// Takes in the next event.
    ///
    /// # Errors
    ///
    /// What makes the rest of the file unreadable.
    fn take(&mut self, event: Event<'t>, at: &granit_parser::Span) -> Result<(), Finding> {
        let span = Span::from(at);
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                let finding = Finding::new(span, "a second document begins here");
                return Err(finding.help("a rules file is one document; drop the `---`"));
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_properties(anchor, tag.as_deref(), at);
                self.count(1 + text.len() / 32, span)?;
                let value = self.scalar(text, style, tag.as_deref(), span);
                self.finish(Node { span, value });
            }
            Event::SequenceStart(_, anchor, tag) | Event::MappingStart(_, anchor, tag) => {
                self.refuse_properties(anchor, tag.as_deref(), at);
                self.count(1, span)?;
                self.open.push((span.start, Vec::new()));
            }
            Event::SequenceEnd => self.close(span.end, |_, items| Value::List(items)),
            Event::MappingEnd => self.close(span.end, Self::mapping),
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                self.refuse_reuse(span);
                self.finish(Node { span, value: Value::Broken });
            }
            _ => {}
        }
        Ok(())
    }

    fn count(&mut self, weight: usize, span: Span) -> Result<(), Finding> {
        self.values += weight;
        if self.values <= MAX_VALUES {
            return Ok(());
        }
        Err(Finding::new(span, format!("the file has too many values; at most {MAX_VALUES} are read")))
    }

    fn scalar(&mut self, text: Cow<'t, str>, style: ScalarStyle, tag: Option<&Tag>, span: Span) -> Value<'t> {
        if text.len() > MAX_SCALAR {
            let message = format!("a text of {} bytes; at most {MAX_SCALAR} are read", text.len());
            self.findings.add(Finding::new(span, message));
            return Value::Broken;
        }
        let is_block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
        let is_text =
            style != ScalarStyle::Plain || tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
        match text {
            text if is_block => Value::Quoted(without_last_newline(text)),
            text if is_text => Value::Quoted(text),
            text => Value::Plain(text),
        }
    }

    /// Reports the anchor and the tag of a value.
    fn refuse_properties(&mut self, anchor: usize, tag: Option<&Tag>, at: &granit_parser::Span) {
        if anchor != 0 {
            // The anchor is the nearest `&` before its value, unless the value's span includes it.
            let value = Span::from(at).start;
            let start = match self.text[value..].starts_with('&') {
                true => value,
                false => self.text[..value].rfind('&').unwrap_or(value),
            };
            let rest = &self.text[start..];
            let length = rest.find(|c: char| c.is_whitespace() || ",[]{}".contains(c)).unwrap_or(rest.len());
            self.refuse_reuse(Span { start, end: start + length });
        }
        if let Some(tag) = tag.filter(|tag| !tag.is_yaml_core_schema()) {
            let place = at.tag_span().map_or_else(|| Span::from(at), |span| Span::from(&span));
            let finding =
                Finding::new(place, format!("the tag `{}` means nothing here", clip(&tag.original())));
            self.findings.add(finding.help("drop it, or put quotes around a value that begins with `!`"));
        }
    }

    /// Reports an anchor, an alias or a merge key.
    fn refuse_reuse(&mut self, span: Span) {
        let written = clip(&self.text[span.start..span.end]);
        let message = format!("`{written}`: YAML anchors, aliases and merge keys are not supported");
        let help = "write the value out, or put quotes around a text that begins with `&` or `*`";
        self.findings.add(Finding::new(span, message).help(help));
    }

    /// Puts a finished value where it belongs.
    fn finish(&mut self, node: Node<'t>) {
        match self.open.last_mut() {
            Some((_, children)) => children.push(node),
            None => self.root = Some(node),
        }
    }

    fn close(&mut self, end: usize, value: impl FnOnce(&mut Self, Vec<Node<'t>>) -> Value<'t>) {
        let (start, children) = self.open.pop().expect("the parser opens whatever it closes");
        let value = value(self, children);
        self.finish(Node { span: Span { start, end }, value });
    }

    /// The entries without those that repeat a key.
    fn mapping(&mut self, children: Vec<Node<'t>>) -> Value<'t> {
        if children.len() > 2 * MAX_FIELDS {
            let finding = Finding::new(children[2 * MAX_FIELDS].span, "too many fields in one mapping");
            self.findings.add(finding.help(format!("at most {MAX_FIELDS} are read")));
            return Value::Broken;
        }
        let mut entries: Vec<Entry<'t>> = Vec::with_capacity(children.len() / 2);
        let mut children = children.into_iter();
        while let (Some(key), Some(value)) = (children.next(), children.next()) {
            let Some(name) = key.text() else {
                if !matches!(key.value, Value::Broken) {
                    self.findings
                        .add(Finding::new(key.span, format!("a field's name is text, not {}", key.kind())));
                }
                continue;
            };
            if matches!(&key.value, Value::Plain(text) if text == "<<") {
                // An alias after it is reported already.
                if !matches!(value.value, Value::Broken) {
                    self.refuse_reuse(key.span);
                }
            } else if let Some(first) = find(&entries, name) {
                let finding = Finding::new(key.span, format!("`{}` is given twice", clip(name)));
                self.findings.add(finding.earlier(first.key.span).help("drop one of the two"));
            } else {
                entries.push(Entry { key, value });
            }
        }
        Value::Map(entries)
    }
}

/// A block ends with a newline that is not part of its value: `key: |` and a line below it.
fn without_last_newline(text: Cow<'_, str>) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.trim_end_matches('\n')),
        Cow::Owned(text) => Cow::Owned(text.trim_end_matches('\n').to_owned()),
    }
}

/// A syntax error: common ones with what to do about them, the others in the parser's words.
fn explain(error: &ScanError, text: &str) -> Finding {
    use ErrorKind as E;
    let kind = error.kind();
    let (message, help) = match kind {
        E::MappingValueNotAllowed | E::InvalidColonPlacement => (
            "a `:` cannot stand here",
            "line the field up with the others of its rule, or put quotes around a value that contains `: `",
        ),
        E::ExpectedBlockSequenceEntry | E::ExpectedBlockMappingKey | E::InvalidIndentation => (
            "this line is not part of the list above it",
            "line it up with the other fields of its rule, or begin a rule with `- `",
        ),
        E::SimpleKeyExpected | E::InvalidSimpleKey => {
            ("a field's name is followed by `: `", "write it like `limit: 100/min`")
        }
        E::UnclosedQuotedScalar => {
            ("this quote is never closed", "add the missing quote at the end of the value")
        }
        E::TabInBlockIndentation | E::TabInIndentation | E::TabNotAllowed => {
            ("a tab cannot indent", "use spaces")
        }
        E::MissingAnchorOrAliasName => {
            ("a value cannot begin with a bare `*` or `&`", "put quotes around it")
        }
        E::RecursionLimitExceeded => {
            ("this is nested too deeply", "a rules file needs no more than five levels")
        }
        E::UnexpectedCharacter { character } => {
            let message = format!("a value cannot begin with `{}`", character.escape_debug());
            return Finding::new(blamed(error, text), message).help("put quotes around it");
        }
        E::UnclosedFlowCollection { open } => {
            let help = if *open == '[' { "add the missing `]`" } else { "add the missing `}`" };
            return Finding::new(blamed(error, text), format!("this `{open}` is never closed")).help(help);
        }
        E::MismatchedFlowCollectionEnd { open, close } => {
            let message = format!("this `{open}` is closed by a `{close}`");
            return Finding::new(blamed(error, text), message)
                .help("brackets come in pairs: `[…]` and `{…}`");
        }
        kind => return Finding::new(blamed(error, text), format!("this is not YAML: {kind}")),
    };
    Finding::new(blamed(error, text), message).help(help)
}

/// The character that a syntax error is about.
fn blamed(error: &ScanError, text: &str) -> Span {
    let mut start = text.floor_char_boundary(error.marker().byte_offset().unwrap_or_default());
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
