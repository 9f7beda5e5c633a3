//! What the system says about this process.

use std::fs;
use std::path::Path;

/// What it uses. Where the system has no `/proc` there is nothing to tell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Process {
    pub(super) resident_bytes: u64,
    pub(super) cpu_seconds: f64,
    pub(super) open_files: u64,
}

/// The kernel counts processor time in hundredths of a second for everybody who asks.
const TICKS_A_SECOND: f64 = 100.0;
const PAGE: u64 = 4096;

impl Process {
    pub(super) fn now() -> Option<Self> {
        let itself = Path::new("/proc/self");
        let statm = fs::read_to_string(itself.join("statm")).ok()?;
        let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
        let stat = fs::read_to_string(itself.join("stat")).ok()?;
        // The name of the program is in parentheses and may hold anything.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let mut ticks = || fields.next()?.parse::<f64>().ok();
        let cpu_seconds = (ticks()? + ticks()?) / TICKS_A_SECOND;
        let open_files = u64::try_from(fs::read_dir(itself.join("fd")).ok()?.count()).ok()?;
        Some(Process { resident_bytes: pages * PAGE, cpu_seconds, open_files })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory_and_files() {
        let Some(process) = Process::now() else { return assert!(!Path::new("/proc/self").exists()) };
        assert!(process.resident_bytes > 1 << 20 && process.open_files > 2 && process.cpu_seconds >= 0.0);
    }
}
