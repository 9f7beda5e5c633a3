//! How long does a decision take, next to governor, to a map behind a mutex, and to what a decision cannot do
//! without? And how much memory does a key take?
//!
//! Known bias: `bench/README.md`.

mod lanes;
mod measure;
mod memory;
mod report;
mod workload;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use mimalloc::MiMalloc;

use crate::lanes::{LANES, Runner};
use crate::measure::{Figures, Slice};
use crate::workload::{COLUMNS, Column, Draws, Keys};

// The allocator of tollgate's own binary, for every contender.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Measures decisions in memory, side by side.
#[derive(Debug, Parser)]
struct Arguments {
    /// Three short rounds: only to see that it works
    #[arg(long)]
    quick: bool,
    /// Also write medians, ranges and every round to this file
    #[arg(long, value_name = "FILE")]
    details: Option<PathBuf>,
    /// Only fill this contender with keys and print what that took; runs in a process of its own
    #[arg(long, value_name = "CONTENDER", hide = true)]
    memory_of: Option<String>,
}

/// How long it takes.
#[derive(Debug, Clone, Copy)]
struct Effort {
    rounds: u32,
    warm_up: Duration,
    measured: Duration,
}

const FULL: Effort =
    Effort { rounds: 7, warm_up: Duration::from_millis(50), measured: Duration::from_millis(300) };
const QUICK: Effort =
    Effort { rounds: 3, warm_up: Duration::from_millis(5), measured: Duration::from_millis(30) };

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let keys = Keys::new(arguments.quick);
    if let Some(name) = &arguments.memory_of {
        return memory::measure_here(name, keys);
    }
    let effort = if arguments.quick { QUICK } else { FULL };
    let memory = memory::measure_each(arguments.quick)?;
    let runners = LANES.map(|lane| Runner::new(lane, keys));
    let figures = measure_all(&runners, effort, keys)?;
    report::print(&figures, &memory);
    if let Some(path) = &arguments.details {
        std::fs::write(path, report::details(&figures, &memory))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Every contender in every column, once a round: A B C … A B C …
fn measure_all(runners: &[Runner], effort: Effort, keys: Keys) -> Result<Figures> {
    let draws = Draws::new(keys);
    let mut figures = Figures::default();
    for round in 0..effort.rounds {
        for column in &COLUMNS {
            let Column { scenario, threads } = *column;
            let callers = draws.of(scenario, round * 2 + u32::from(threads > 1));
            let slice = Slice { callers: &callers, threads, effort, allowed: scenario.allows() };
            for runner in runners {
                let Some(contender) = runner.contender(scenario) else { continue };
                let name = runner.lane.name;
                let ns = contender.drive(&slice).with_context(|| format!("{name} on {column}"))?;
                figures.add(name, *column, ns);
            }
        }
    }
    Ok(figures)
}
