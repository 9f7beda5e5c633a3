//! Problems as pictures: the line, a caret below it, and what to write.

use std::ops::Range;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use super::errors::{Problem, RulesError};

/// How a report is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Characters only, for logs and files.
    Plain,
    /// With colours, for terminals.
    Color,
}

/// How much text is drawn on either side of a problem at most: a file may be one long line.
const MAX_WINDOW: usize = 2 << 10;
/// How far apart two places of one line may be to be drawn together.
const MAX_APART: usize = 100;

impl RulesError {
    /// Draws every problem with the line it is in, a caret, and what to write.
    ///
    /// ```text
    /// error: rule `search`: unknown field `limt`
    ///  --> rules.yaml:3:5
    ///   |
    /// 3 |     limt: 100/min
    ///   |     ^^^^
    ///   |
    ///   = help: did you mean `limit`?
    /// ```
    pub fn render(&self, style: Style) -> String {
        let renderer = match style {
            Style::Plain => Renderer::plain(),
            Style::Color => Renderer::styled(),
        }
        .decor_style(DecorStyle::Ascii);
        let mut drawn: Vec<String> = Vec::with_capacity(self.problems.len() + 1);
        for problem in &self.problems {
            drawn.push(renderer.render(&[self.group(problem)]));
        }
        if let Some(words) = self.stopped_early() {
            drawn.push(renderer.render(&[Group::with_title(Level::NOTE.primary_title(words))]));
        }
        drawn.join("\n\n")
    }

    fn group<'e>(&'e self, problem: &'e Problem) -> Group<'e> {
        let window = Window::around(problem, &self.text);
        let mut snippet = Snippet::source(&self.text[window.bytes.clone()])
            .line_start(window.first_line)
            .annotation(AnnotationKind::Primary.span(window.place(&problem.span, &self.text)));
        // Two places of one long line are shown together only when both fit on a screen.
        let near = |earlier: &&Range<usize>| {
            window.bytes.contains(&earlier.start)
                && (problem.span.start.saturating_sub(earlier.start) < MAX_APART
                    || self.text[earlier.start..problem.span.start].contains('\n'))
        };
        if let Some(earlier) = problem.earlier.as_ref().filter(near) {
            let place = window.place(earlier, &self.text);
            snippet = snippet.annotation(AnnotationKind::Context.span(place).label("first here"));
        }
        let title = Level::ERROR.primary_title(problem.title());
        let group = if window.begins_a_line {
            title.element(snippet.path(&*self.name))
        } else {
            // Columns of the window are not those of the line.
            let origin = Origin::path(&*self.name).line(problem.line).char_column(problem.column);
            title.element(snippet).element(origin)
        };
        group.elements(problem.help.as_deref().map(|help| Level::HELP.message(help)))
    }
}

/// The part of the text that a picture is made of.
struct Window {
    bytes: Range<usize>,
    first_line: usize,
    begins_a_line: bool,
}

impl Window {
    /// The line of a problem, and those up to what it clashes with if that is near.
    fn around(problem: &Problem, text: &str) -> Self {
        let at = problem.span.start;
        let (mut start, begins_a_line) = line_start(text, at);
        if let Some(earlier) = problem.earlier.as_ref().filter(|earlier| earlier.start < start)
            && start - earlier.start < MAX_WINDOW
            && let (begin, true) = line_start(text, earlier.start)
        {
            start = begin;
        }
        let lines_above = text[start..at].bytes().filter(|byte| *byte == b'\n').count();
        Window { bytes: start..line_end(text, at), first_line: problem.line - lines_above, begins_a_line }
    }

    /// A span, as far as its first line goes, counted from the window's start.
    fn place(&self, span: &Range<usize>, text: &str) -> Range<usize> {
        let end = span.end.min(line_end(text, span.start)).max(span.start);
        span.start - self.bytes.start..end - self.bytes.start
    }
}

/// Where the line of a byte begins, or a place near enough and `false`.
fn line_start(text: &str, at: usize) -> (usize, bool) {
    let from = text.floor_char_boundary(at.saturating_sub(MAX_WINDOW));
    match text[from..at].rfind('\n') {
        Some(newline) => (from + newline + 1, true),
        None if from > 0 => (from, false),
        // Some editors begin a file with a mark that no column counts.
        None => (if text.starts_with('\u{feff}') { at.min(3) } else { 0 }, true),
    }
}

/// Where the line of a byte ends, or a place near enough.
fn line_end(text: &str, at: usize) -> usize {
    let until = text.floor_char_boundary(at.saturating_add(MAX_WINDOW).min(text.len()));
    let end = text[at..until].find('\n').map_or(until, |newline| at + newline);
    if text[at..end].ends_with('\r') { end - 1 } else { end }
}
