//! What is wrong with a rules file: collected while the rest is read, then shown to people and programs.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use serde::Serialize;

/// Reading stops after this many problems.
pub(super) const MAX_PROBLEMS: usize = 500;

/// Everything that is wrong with a text of rules, in the order of the text.
///
/// Its `Display` is one line for each problem, as in
/// ``rules.yaml:14:12: rule `search`: limit `0/min`: count is zero; the least is 1``; [`RulesError::render`]
/// shows the lines themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesError {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) problems: Vec<Problem>,
}

/// One thing that is wrong, where it is, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Problem {
    /// The line, from 1.
    pub line: usize,
    /// The character in that line, from 1.
    pub column: usize,
    /// The bytes of the text that are wrong; empty where something is missing.
    pub span: Range<usize>,
    /// The name of the rule, or its key if it has no name.
    pub rule: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub help: Option<String>,
    /// What it conflicts with, further up.
    pub earlier: Option<Range<usize>>,
}

impl RulesError {
    pub(super) fn new(name: &str, text: &str, findings: Findings) -> Self {
        let starts = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        let starts: Vec<usize> = std::iter::once(0).chain(starts).collect();
        let line = |at: usize| starts.partition_point(|start| *start <= at);
        let problem = |Finding { span, rule, message, help, earlier }: Finding| {
            let before = &text[starts[line(span.start) - 1]..span.start];
            let message = match earlier {
                Some(earlier) => format!("{message}, first on line {}", line(earlier.start)),
                None => message,
            };
            Problem {
                line: line(span.start),
                column: before.trim_start_matches('\u{feff}').chars().count() + 1,
                span: span.into(),
                rule,
                message,
                help,
                earlier: earlier.map(Range::from),
            }
        };
        let mut found = findings.found;
        found.sort_by(|a, b| (a.span, &a.message).cmp(&(b.span, &b.message)));
        found.dedup_by(|a, b| (a.span, &a.message) == (b.span, &b.message));
        let problems = found.into_iter().map(problem).collect();
        RulesError { name: name.to_owned(), text: text.to_owned(), problems }
    }

    /// What is wrong with a text of another kind, to be shown the same way: places, and the message for each, as in
    /// "what is wrong; what to write".
    pub fn in_text(name: &str, text: &str, found: impl IntoIterator<Item = (Range<usize>, String)>) -> Self {
        let mut findings = Findings::default();
        for (span, message) in found {
            findings.add(Finding::from_text(Span { start: span.start, end: span.end }, &message));
        }
        Self::new(name, text, findings)
    }

    /// What is wrong, in the order of the text. There is at least one.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The note for a text in which reading stopped because of the number of problems.
    pub(super) fn stopped_early(&self) -> Option<String> {
        let stopped = self.problems.len() >= MAX_PROBLEMS;
        stopped
            .then(|| format!("reading stopped after {MAX_PROBLEMS} problems; correct these and read again"))
    }
}

impl Error for RulesError {}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem) in self.problems.iter().enumerate() {
            let newline = if place == 0 { "" } else { "\n" };
            write!(f, "{newline}{}:{problem}", self.name)?;
        }
        match self.stopped_early() {
            Some(note) => write!(f, "\n{}: {note}", self.name),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.title())?;
        self.help.as_ref().map_or(Ok(()), |help| write!(f, "; {help}"))
    }
}

impl Problem {
    /// The rule and what is wrong with it.
    pub(super) fn title(&self) -> String {
        match &self.rule {
            Some(rule) => format!("rule `{rule}`: {}", self.message),
            None => self.message.clone(),
        }
    }
}

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

/// One thing that is wrong. It becomes a [`Problem`] when lines are counted.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) span: Span,
    pub(super) rule: Option<String>,
    pub(super) message: String,
    pub(super) help: Option<String>,
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

    /// What it conflicts with, further up.
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

    /// Assigns everything found since `mark` to a rule.
    pub(super) fn label_since(&mut self, mark: usize, label: &str) {
        for finding in self.found.iter_mut().skip(mark).filter(|finding| finding.rule.is_none()) {
            finding.rule = Some(label.to_owned());
        }
    }

    /// Those that belong to no rule yet.
    pub(super) fn unlabelled(&mut self) -> impl Iterator<Item = &mut Finding> {
        self.found.iter_mut().filter(|finding| finding.rule.is_none())
    }
}

/// A text short enough for a line.
pub(super) fn clip(text: &str) -> String {
    const MAX_CHARS: usize = 60;
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    let mut shown: String = text.chars().take(MAX_CHARS).map(visible).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
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
