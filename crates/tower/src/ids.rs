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

    /// The next name: 24 hexadecimal digits.
    pub fn next(&self) -> String {
        format!("{:016x}{:08x}", self.process, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

impl Default for DecisionIds {
    fn default() -> Self {
        Self::new()
    }
}
