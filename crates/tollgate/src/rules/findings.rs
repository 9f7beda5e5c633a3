//! What is wrong so far, while the rest is still being read.

use std::ops::Range;

/// Reading stops after so many problems; a file with more is mended in rounds.
pub(super) const MAX_PROBLEMS: usize = 500;

/// A stretch of the text, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
}

impl From<&granit_parser::Span> for Span {
    fn from(span: &granit_parser::Span) -> Self {
        span.byte_range().map_or_else(Span::default, |range| Span { start: range.start, end: range.end })
    }
}

impl From<Span> for Range<usize> {
    fn from(span: Span) -> Self {
        span.start..span.end
    }
}

/// One thing that is wrong. It becomes a [`Problem`](super::Problem) when lines are counted.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) span: Span,
    pub(super) rule: Option<String>,
    pub(super) message: String,
    pub(super) help: Option<String>,
    /// What it clashes with, further up.
    pub(super) earlier: Option<Span>,
}

impl Finding {
    pub(super) fn new(span: Span, message: impl Into<String>) -> Self {
        Finding { span, rule: None, message: message.into(), help: None, earlier: None }
    }

    /// From an error of core, whose texts are "what is wrong; what to write".
    pub(super) fn from_text(span: Span, text: &str) -> Self {
        match split_help(text) {
            Some((message, help)) => Finding::new(span, message).help(help),
            None => Finding::new(span, text),
        }
    }

    pub(super) fn help(self, help: impl Into<String>) -> Self {
        Finding { help: Some(help.into()), ..self }
    }

    pub(super) fn earlier(self, span: Span) -> Self {
        Finding { earlier: Some(span), ..self }
    }
}

/// Everything found so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    found: Vec<Finding>,
}

impl Findings {
    pub(super) fn add(&mut self, finding: Finding) {
        if !self.is_full() {
            self.found.push(finding);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.found.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Whether it is time to stop reading.
    pub(super) fn is_full(&self) -> bool {
        self.found.len() >= MAX_PROBLEMS
    }

    /// Says of which rule everything is that was found since `mark`.
    pub(super) fn label_since(&mut self, mark: usize, label: &str) {
        for finding in self.found.iter_mut().skip(mark).filter(|finding| finding.rule.is_none()) {
            finding.rule = Some(label.to_owned());
        }
    }

    /// Those that are not yet of a rule.
    pub(super) fn unlabelled(&mut self) -> impl Iterator<Item = &mut Finding> {
        self.found.iter_mut().filter(|finding| finding.rule.is_none())
    }

    /// All of them in the order of the text. A mapping that is merged twice is reported once.
    pub(super) fn into_sorted(mut self) -> Vec<Finding> {
        self.found.sort_by(|a, b| (a.span, &a.message).cmp(&(b.span, &b.message)));
        self.found.dedup_by(|a, b| (a.span, &a.message) == (b.span, &b.message));
        self.found
    }
}

/// What was written, short enough for a line.
pub(super) fn clip(text: &str) -> String {
    const LONGEST: usize = 60;
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    let mut shown: String = text.chars().take(LONGEST).map(visible).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

/// Splits at the first `; ` that is not part of something quoted.
fn split_help(text: &str) -> Option<(&str, &str)> {
    let mut in_ticks = false;
    for (at, c) in text.char_indices() {
        in_ticks ^= c == '`';
        if !in_ticks && let Some(help) = text[at..].strip_prefix("; ") {
            return Some((&text[..at], help));
        }
    }
    None
}
