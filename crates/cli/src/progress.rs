//! A progress bar for long replays, where somebody watches.

use std::io::{self, IsTerminal as _};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shorter traces are over before a bar is worth drawing.
const LONG: u64 = 32 << 20;

/// A bar for reading so many bytes; a hidden one when that is soon done or nobody would see it.
pub(crate) fn bar(bytes: Option<u64>) -> ProgressBar {
    let Some(bytes) = bytes.filter(|bytes| *bytes >= LONG && io::stderr().is_terminal()) else {
        return ProgressBar::hidden();
    };
    let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr_with_hz(5));
    match ProgressStyle::with_template("replaying {wide_bar} {bytes} of {total_bytes}, {eta} left") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
