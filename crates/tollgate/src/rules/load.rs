//! From text to a tree, within bounds.
//!
//! An alias shares the value it stands for, so aliases to aliases cost nothing to hold. What they would cost to
//! read is counted as if every one were written out, and that is bounded.

use std::borrow::Cow;
use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, Tag};

use super::findings::{Finding, Findings, Span, clip};
use super::syntax;
use super::tree::{Entry, Node, Value, find};

/// The longest text that is read: ten times a file of 100,000 rules.
const MAX_BYTES: usize = 64 << 20;
/// The most values in a file, aliases written out. A long text counts as several.
const MAX_VALUES: usize = 5_000_000;
/// The most values that all aliases of a file may stand for.
const MAX_ALIASED: usize = 1_000_000;
/// The deepest nesting; a rules file needs five levels.
const MAX_DEPTH: usize = 32;
/// The most fields of one mapping.
const MAX_FIELDS: usize = 256;
/// The longest single text.
const MAX_SCALAR: usize = 16 << 10;

/// Reads the text; an empty document is a null. Nothing is returned when the rest cannot be understood.
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
    let mut loader = Loader::new(findings);
    for event in Parser::new_from_str_with_options(text, options) {
        let read = match event {
            Ok((event, span)) => loader.take(event, &span),
            Err(error) => Err(syntax::explain(&error, text)),
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
    findings: &'f mut Findings,
    open: Vec<Frame<'t>>,
    root: Option<Node<'t>>,
    /// Finished anchors, and what reading each costs.
    anchors: HashMap<usize, (Node<'t>, usize)>,
    values: usize,
    aliased: usize,
}

/// A list or mapping whose end has not come.
struct Frame<'t> {
    start: usize,
    anchor: usize,
    values_before: usize,
    /// Items, or keys and values in turn.
    children: Vec<Node<'t>>,
}

impl<'t, 'f> Loader<'t, 'f> {
    fn new(findings: &'f mut Findings) -> Self {
        Loader { findings, open: Vec::new(), root: None, anchors: HashMap::new(), values: 0, aliased: 0 }
    }

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
                self.refuse_tag(tag.as_deref(), at);
                let value = self.scalar(text, style, tag.as_deref(), span);
                let weight = 1 + value_len(&value) / 32;
                self.count(weight, span)?;
                self.finish(Node { span, value }, anchor, weight);
            }
            Event::SequenceStart(_, anchor, tag) | Event::MappingStart(_, anchor, tag) => {
                self.refuse_tag(tag.as_deref(), at);
                let values_before = self.values;
                self.count(1, span)?;
                self.open.push(Frame { start: span.start, anchor, values_before, children: Vec::new() });
            }
            Event::SequenceEnd => self.close(span.end, |_, items| Value::List(items.into())),
            Event::MappingEnd => self.close(span.end, Self::mapping),
            Event::Alias(anchor) => self.alias(anchor, span)?,
            Event::UnresolvedAlias(name) => {
                let name = clip(&name);
                let finding = Finding::new(
                    span,
                    format!("`*{name}` stands for an anchor `&{name}`, which is not there"),
                )
                .help("put quotes around a value that begins with `*`");
                self.findings.add(finding);
                self.finish(Node { span, value: Value::Broken }, 0, 1);
            }
            _ => {}
        }
        Ok(())
    }

    fn count(&mut self, weight: usize, span: Span) -> Result<(), Finding> {
        self.values = self.values.saturating_add(weight);
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

    fn refuse_tag(&mut self, tag: Option<&Tag>, at: &granit_parser::Span) {
        if let Some(tag) = tag.filter(|tag| !tag.is_yaml_core_schema()) {
            let place = at.tag_span().map_or_else(|| Span::from(at), |span| Span::from(&span));
            let finding =
                Finding::new(place, format!("the tag `{}` means nothing here", clip(&tag.original())));
            self.findings.add(finding.help("drop it, or put quotes around a value that begins with `!`"));
        }
    }

    /// Puts a finished value where it belongs.
    fn finish(&mut self, node: Node<'t>, anchor: usize, weight: usize) {
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), weight));
        }
        match self.open.last_mut() {
            Some(frame) => frame.children.push(node),
            None => self.root = Some(node),
        }
    }

    fn close(&mut self, end: usize, value: impl FnOnce(&mut Self, Vec<Node<'t>>) -> Value<'t>) {
        let frame = self.open.pop().expect("the parser opens whatever it closes");
        let weight = self.values - frame.values_before;
        let value = value(self, frame.children);
        self.finish(Node { span: Span { start: frame.start, end }, value }, frame.anchor, weight);
    }

    fn alias(&mut self, anchor: usize, span: Span) -> Result<(), Finding> {
        let Some((node, weight)) = self.anchors.get(&anchor).cloned() else {
            self.findings.add(Finding::new(span, "this alias stands inside the value it stands for"));
            self.finish(Node { span, value: Value::Broken }, 0, 1);
            return Ok(());
        };
        self.aliased = self.aliased.saturating_add(weight);
        if self.aliased > MAX_ALIASED {
            let message = format!("the aliases up to here stand for more than {MAX_ALIASED} values");
            return Err(Finding::new(span, message).help("write the values out"));
        }
        self.count(weight, span)?;
        self.finish(Node { span, ..node }, 0, weight);
        Ok(())
    }

    /// The entries without those that repeat a key, and with those that `<<` brings in.
    fn mapping(&mut self, children: Vec<Node<'t>>) -> Value<'t> {
        if children.len() > 2 * MAX_FIELDS {
            self.findings.add(too_many_fields(children[2 * MAX_FIELDS].span));
            return Value::Broken;
        }
        let mut entries: Vec<Entry<'t>> = Vec::with_capacity(children.len() / 2);
        let mut merges = Vec::new();
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
                merges.push(value);
            } else if let Some(first) = find(&entries, name) {
                let finding = Finding::new(key.span, format!("`{}` is given twice", clip(name)));
                self.findings.add(finding.earlier(first.key.span).help("drop one of the two"));
            } else {
                entries.push(Entry { key, value });
            }
        }
        for merged in merges {
            self.merge(&mut entries, merged);
        }
        Value::Map(entries.into())
    }

    /// Adds the entries of a `<<`; those that are written out win.
    fn merge(&mut self, entries: &mut Vec<Entry<'t>>, merged: Node<'t>) {
        match &merged.value {
            Value::Map(more) => {
                for entry in more.iter() {
                    if entry.key.text().is_some_and(|name| find(entries, name).is_none()) {
                        entries.push(entry.clone());
                    }
                }
                if entries.len() > MAX_FIELDS {
                    self.findings.add(too_many_fields(merged.span));
                    entries.clear();
                }
            }
            Value::List(maps) if maps.iter().all(|node| matches!(node.value, Value::Map(_))) => {
                maps.iter().for_each(|node| self.merge(entries, node.clone()));
            }
            Value::Broken => {}
            _ => {
                let finding =
                    Finding::new(merged.span, format!("`<<` takes a mapping, not {}", merged.kind()));
                self.findings.add(finding.help("write `<<: *name` where a mapping is marked `&name`"));
            }
        }
    }
}

fn too_many_fields(span: Span) -> Finding {
    Finding::new(span, "too many fields in one mapping").help(format!("at most {MAX_FIELDS} are read"))
}

/// A block ends with a newline that nobody means: `key: |` and a line below it.
fn without_last_newline(text: Cow<'_, str>) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.trim_end_matches('\n')),
        Cow::Owned(text) => Cow::Owned(text.trim_end_matches('\n').to_owned()),
    }
}

fn value_len(value: &Value<'_>) -> usize {
    match value {
        Value::Plain(text) | Value::Quoted(text) => text.len(),
        _ => 0,
    }
}
