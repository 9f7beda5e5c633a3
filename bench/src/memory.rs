//! What a key costs in memory: every contender in a process of its own, so that none lives in what another freed.

#![expect(clippy::print_stdout, reason = "the child tells its parent")]

use std::env;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::lanes::LANES;
use crate::workload::Keys;

const PAGE_BYTES: f64 = 4_096.0;
const TIMES: usize = 3;

/// Bytes per key of one contender.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) lane: &'static str,
    /// What the process grew by, smallest first.
    pub(crate) resident: Vec<f64>,
    /// What the contender itself says.
    pub(crate) own: Option<f64>,
}

impl Memory {
    pub(crate) fn median(&self) -> f64 {
        self.resident[self.resident.len() / 2]
    }
}

/// Every contender that keeps keys, several times.
pub(crate) fn measure_each(quick: bool) -> Result<Vec<Memory>> {
    LANES.iter().filter(|lane| lane.keyed).map(|lane| measure(lane.name, quick)).collect()
}

fn measure(lane: &'static str, quick: bool) -> Result<Memory> {
    let flags: &[&str] = if quick { &["--quick"] } else { &[] };
    let mut resident = Vec::new();
    let mut own = None;
    for _ in 0..TIMES {
        let child = Command::new(env::current_exe()?).args(["--memory-of", lane]).args(flags).output()?;
        ensure!(child.status.success(), "`--memory-of {lane}`: {}", child.status);
        let text = String::from_utf8(child.stdout)?;
        let mut numbers = text.split_whitespace().map(str::parse::<f64>);
        resident.push(numbers.next().context("a child prints a number")??);
        own = numbers.next().transpose()?;
    }
    resident.sort_by(f64::total_cmp);
    Ok(Memory { lane, resident, own })
}

/// The child: prints how many bytes a key took of the process, and how many the contender knows of.
pub(crate) fn measure_here(name: &str, keys: Keys) -> Result<()> {
    let lane = LANES.iter().find(|lane| lane.name == name);
    let lane = lane.with_context(|| format!("there is no contender `{name}`"))?;
    let before = resident_bytes()?;
    let contender = lane.filled(keys);
    let per_key = |bytes: f64| bytes / f64::from(keys.get());
    print!("{}", per_key(resident_bytes()? - before));
    if let Some(bytes) = contender.bytes() {
        print!(" {}", per_key(f64::from(u32::try_from(bytes)?)));
    }
    println!();
    Ok(())
}

fn resident_bytes() -> Result<f64> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = statm.split(' ').nth(1).context("statm has several numbers")?.parse()?;
    Ok(pages * PAGE_BYTES)
}
