//! Signals to processes that a test started.

use std::process::Command;

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Stands still, with its sockets open: the kernel accepts connections and bytes, nobody answers.
    Stop,
    /// Goes on.
    Continue,
    /// Ends at once, without a word.
    Kill,
    /// Is asked to end.
    Terminate,
}

impl Signal {
    /// Sends it to one process.
    ///
    /// # Panics
    ///
    /// There is no such process, or no `kill` program.
    pub fn send(self, pid: u32) {
        let name = match self {
            Signal::Stop => "-STOP",
            Signal::Continue => "-CONT",
            Signal::Kill => "-KILL",
            Signal::Terminate => "-TERM",
        };
        let sent = Command::new("kill").args([name, &pid.to_string()]).status();
        let sent = sent.expect("`kill` starts; the Debian package is `procps`");
        assert!(sent.success(), "kill {name} {pid}: {sent}");
    }
}
