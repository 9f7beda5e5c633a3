//! Names for decisions.

use std::sync::atomic::{AtomicU64, Ordering};

/// Gives every decision a name that no other decision has, on any node.
#[derive(Debug)]
pub struct DecisionIds {
    process: u64,
    next: AtomicU64,
}

impl DecisionIds {
    /// Names of a process that starts.
    pub fn new() -> Self {
        let mut process = [0; 8];
        // Without randomness names are only unique within this process; nothing else hangs on it.
        if let Err(error) = getrandom::fill(&mut process) {
            tracing::warn!(%error, "no randomness for decision ids");
        }
        DecisionIds { process: u64::from_le_bytes(process), next: AtomicU64::new(0) }
    }

    /// The next name: 24 hexadecimal digits, half of them the process' own, half of them a number.
    #[expect(clippy::cast_possible_truncation, reason = "a digit is in the lowest four bits")]
    pub fn next(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut name = String::with_capacity(24);
        // Formatting would take longer than many a decision.
        let digits = |bits: u64| {
            let digit = move |place: u32| {
                char::from(b"0123456789abcdef"[usize::from((bits >> (4 * place)) as u8 & 15)])
            };
            (0..12).rev().map(digit)
        };
        name.extend(digits(self.process));
        name.extend(digits(number));
        name
    }
}

impl Default for DecisionIds {
    fn default() -> Self {
        Self::new()
    }
}
