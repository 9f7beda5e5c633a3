//! How long this process has been on its processors.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// The time all threads of this process have spent on a processor. That of threads that are gone is not counted.
///
/// # Errors
///
/// `/proc` is not as Linux has it.
pub fn processor_time() -> Result<Duration> {
    let mut spent = 0;
    for thread in fs::read_dir("/proc/self/task")? {
        spent += time_of(&thread?.path())?;
    }
    Ok(Duration::from_nanos(spent))
}

fn time_of(thread: &Path) -> Result<u64> {
    let text = fs::read_to_string(thread.join("schedstat"))?;
    Ok(text.split_whitespace().next().context("schedstat has numbers")?.parse()?)
}
