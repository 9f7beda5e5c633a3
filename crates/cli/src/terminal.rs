//! Where output goes, and whether it is coloured.

use std::env;
use std::error::Error;
use std::io::{self, IsTerminal as _, StdoutLock, Write};

use clap::ValueEnum;
use tollgate::rules::{RulesError, Style};

/// When to use colours: `auto` is on a terminal, unless NO_COLOR is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

/// What a word tells at a glance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// It passes.
    Good,
    /// It does not.
    Bad,
    /// Look here.
    Strong,
    /// By the way.
    Faint,
}

/// Standard output and standard error, and which of them shows colours.
#[derive(Debug)]
pub(crate) struct Terminal {
    out: Out,
    out_style: Style,
    err_style: Style,
}

/// Standard output, whose errors can be told from those of any other pipe.
#[derive(Debug)]
pub(crate) struct Out(StdoutLock<'static>);

/// The reader of standard output went away, as `head` does.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads standard output any more")]
struct Unread;

impl Terminal {
    pub(crate) fn new(color: Color) -> Self {
        let style = |is_terminal: bool| match color {
            Color::Always => Style::Color,
            Color::Auto if is_terminal && wants_color() => Style::Color,
            Color::Auto | Color::Never => Style::Plain,
        };
        let out = io::stdout().lock();
        let out_style = style(out.is_terminal());
        Terminal { out: Out(out), out_style, err_style: style(io::stderr().is_terminal()) }
    }

    /// Standard output.
    pub(crate) fn out(&mut self) -> &mut Out {
        &mut self.out
    }

    /// A word for standard output.
    pub(crate) fn paint(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            _ if self.out_style == Style::Plain => return text.to_owned(),
            Tone::Good => 32,
            Tone::Bad => 31,
            Tone::Strong => 1,
            Tone::Faint => 2,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// Whether standard error shows colours.
    pub(crate) fn colours_remarks(&self) -> bool {
        self.err_style == Style::Color
    }

    /// A remark on standard error. That it may be closed is no reason to stop.
    pub(crate) fn remark(&self, text: &str) {
        remark(text);
    }

    /// Everything wrong with a rules file, drawn on standard error.
    pub(crate) fn draw(&self, error: &RulesError) {
        self.remark(&error.render(self.err_style));
    }

    /// Says on standard error why the command failed: in one line, or with the lines of the rules file to blame.
    pub(crate) fn complain(&self, error: &anyhow::Error) {
        match error.downcast_ref::<RulesError>() {
            Some(error) => self.draw(error),
            None if self.err_style == Style::Color => {
                self.remark(&format!("\x1b[1;31merror\x1b[0m: {error:#}"));
            }
            None => self.remark(&format!("error: {error:#}")),
        }
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(unread)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(unread)
    }
}

/// A remark on standard error. That it may be closed is no reason to stop.
pub(crate) fn remark(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn unread(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => io::Error::new(io::ErrorKind::BrokenPipe, Unread),
        _ => error,
    }
}

fn wants_color() -> bool {
    let silent = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !silent && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether the reader of standard output has seen enough. A pipe to a server or a database that breaks is another matter.
pub(crate) fn is_unread(error: &anyhow::Error) -> bool {
    let by_us = |cause: &(dyn Error + 'static)| {
        let told = cause.downcast_ref().and_then(io::Error::get_ref);
        told.is_some_and(|told| told.is::<Unread>())
    };
    error.chain().any(by_us)
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn only_the_pipe_of_standard_output_may_break_in_silence() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        let ours: anyhow::Result<()> = Err(unread(broken())).context("cannot print");
        let theirs: anyhow::Result<()> = Err(broken()).context("cannot reach http://127.0.0.1:8080");
        assert!(is_unread(&ours.unwrap_err()) && !is_unread(&theirs.unwrap_err()));
        let full = unread(io::ErrorKind::StorageFull.into());
        assert!(!is_unread(&full.into()), "a full disk is told");
    }
}
