//! What is wrong with a rules file, to be read by people and programs.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use serde::Serialize;

use super::findings::{Finding, Findings, MAX_PROBLEMS, Span};

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
    /// The bytes of the text to blame; empty where something is missing.
    pub span: Range<usize>,
    /// The name of the rule, or its key if it has no name.
    pub rule: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub help: Option<String>,
    /// What it clashes with, further up.
    pub earlier: Option<Range<usize>>,
}

impl RulesError {
    pub(super) fn new(name: &str, text: &str, findings: Findings) -> Self {
        let lines = Lines::new(text);
        let problems = findings.into_sorted().into_iter().map(|finding| lines.problem(finding)).collect();
        RulesError { name: name.to_owned(), text: text.to_owned(), problems }
    }

    /// What is wrong with a text of another kind, to be shown the same way: places, and what to say of each, as in
    /// "what is wrong; what to write".
    pub fn in_text(name: &str, text: &str, found: impl IntoIterator<Item = (Range<usize>, String)>) -> Self {
        let mut findings = Findings::default();
        for (span, said) in found {
            findings.add(Finding::from_text(Span { start: span.start, end: span.end }, &said));
        }
        Self::new(name, text, findings)
    }

    /// The name the text was read under.
    pub fn source_name(&self) -> &str {
        &self.name
    }

    /// What is wrong, in the order of the text. There is at least one.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// What to say when reading stopped for the sheer number of problems.
    pub(super) fn stopped_early(&self) -> Option<String> {
        let stopped = self.problems.len() >= MAX_PROBLEMS;
        stopped.then(|| format!("reading stopped after {MAX_PROBLEMS} problems; mend these and read again"))
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
            Some(words) => write!(f, "\n{}: {words}", self.name),
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

/// Where the lines of a text begin.
struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn new(text: &'t str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Lines { text, starts: std::iter::once(0).chain(breaks.map(|(at, _)| at + 1)).collect() }
    }

    /// The line of a byte, from 1.
    fn line(&self, at: usize) -> usize {
        self.starts.partition_point(|start| *start <= at)
    }

    fn problem(&self, finding: Finding) -> Problem {
        let line = self.line(finding.span.start);
        let before = &self.text[self.starts[line - 1]..finding.span.start];
        let column = before.trim_start_matches('\u{feff}').chars().count() + 1;
        let message = match finding.earlier {
            Some(earlier) => format!("{}, first on line {}", finding.message, self.line(earlier.start)),
            None => finding.message,
        };
        Problem {
            line,
            column,
            span: finding.span.into(),
            rule: finding.rule,
            message,
            help: finding.help,
            earlier: finding.earlier.map(Range::from),
        }
    }
}
