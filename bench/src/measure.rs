//! One slice: a contender, a sequence of callers, one or two pinned threads, a fraction of a second.

#![expect(clippy::disallowed_methods, reason = "this is what measures time")]

use std::array;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tollgate_bench::contender::{Caller, Contender};

use crate::Effort;
use crate::workload::Column;

/// Names are written so many at a time, so that a decision finds its key in the cache but not in the store buffer.
const BATCH: usize = 16;
/// Batches between two looks at the clock.
const BATCHES: usize = 16;

/// What is measured in one go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slice<'a> {
    /// Who asks, over and over; a power of two of them.
    pub(crate) callers: &'a [u32],
    pub(crate) threads: u8,
    pub(crate) effort: Effort,
    /// The answer that everybody must get.
    pub(crate) allowed: bool,
}

/// A contender that can be measured. The loop is compiled for each one.
pub(crate) trait Drive: Contender {
    /// The nanoseconds one decision took a thread.
    fn drive(&self, slice: &Slice<'_>) -> Result<f64>;
}

impl<C: Contender> Drive for C {
    fn drive(&self, slice: &Slice<'_>) -> Result<f64> {
        self.refill_shared();
        self.decide(&Caller::new(slice.callers[0])); // the first may pass where the others shall not
        let start = Barrier::new(usize::from(slice.threads));
        let work: Vec<Work> = thread::scope(|scope| {
            let spawn = |thread| {
                let start = &start;
                scope.spawn(move || work(self, slice, thread, start))
            };
            let threads: Vec<_> = (0..slice.threads).map(spawn).collect();
            threads.into_iter().map(|thread| thread.join().expect("workers do not panic")).collect()
        });
        let wrong: u32 = work.iter().map(|work| work.wrong).sum();
        ensure!(wrong == 0, "{wrong} decisions were not `allowed: {}`", slice.allowed);
        let per_second: f64 =
            work.iter().map(|work| f64::from(work.decisions) / work.time.as_secs_f64()).sum();
        Ok(f64::from(slice.threads) * 1e9 / per_second)
    }
}

/// What one thread did.
struct Work {
    decisions: u32,
    wrong: u32,
    time: Duration,
}

fn work<C: Contender>(contender: &C, slice: &Slice<'_>, thread: u8, start: &Barrier) -> Work {
    let core = usize::from(thread);
    core_affinity::set_for_current(core_affinity::CoreId { id: core });
    let mut callers: [Caller; BATCH] = array::from_fn(|_| Caller::new(0));
    // The threads walk through the same sequence, half of it apart.
    let mut at = slice.callers.len() / 2 * core;
    let mut wrong = 0;
    let mut decide = || {
        for _ in 0..BATCHES {
            for caller in &mut callers {
                caller.turn_into(slice.callers[at & (slice.callers.len() - 1)]);
                at += 1;
            }
            for caller in &callers {
                wrong += u32::from(contender.decide(caller) != slice.allowed);
            }
        }
    };
    start.wait();
    let warming = Instant::now();
    while warming.elapsed() < slice.effort.warm_up {
        decide();
    }
    let begun = Instant::now();
    let mut rounds = 0;
    let time = loop {
        decide();
        rounds += 1;
        let time = begun.elapsed();
        if time >= slice.effort.measured {
            break time;
        }
    };
    let batch = u32::try_from(BATCH * BATCHES).expect("small");
    Work { decisions: rounds * batch, wrong, time }
}

/// All that was measured.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    cells: Vec<Cell>,
}

/// One contender in one column: the nanoseconds of every round.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) lane: &'static str,
    pub(crate) column: Column,
    pub(crate) rounds: Vec<f64>,
}

impl Figures {
    pub(crate) fn add(&mut self, lane: &'static str, column: Column, ns: f64) {
        match self.cells.iter_mut().find(|cell| cell.lane == lane && cell.column == column) {
            Some(cell) => cell.rounds.push(ns),
            None => self.cells.push(Cell { lane, column, rounds: vec![ns] }),
        }
    }

    pub(crate) fn cell(&self, lane: &str, column: Column) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.lane == lane && cell.column == column)
    }

    /// The contenders, in the order they were measured.
    pub(crate) fn lanes(&self) -> Vec<&'static str> {
        let mut lanes: Vec<&'static str> = Vec::new();
        for cell in &self.cells {
            if !lanes.contains(&cell.lane) {
                lanes.push(cell.lane);
            }
        }
        lanes
    }

    /// How many times the throughput of one is the other's, in the same column.
    pub(crate) fn ratio(&self, lane: &str, to: &str, column: Column) -> Option<f64> {
        Some(self.cell(to, column)?.median() / self.cell(lane, column)?.median())
    }
}

impl Cell {
    pub(crate) fn median(&self) -> f64 {
        let sorted = self.sorted();
        sorted[sorted.len() / 2]
    }

    pub(crate) fn range(&self) -> (f64, f64) {
        let sorted = self.sorted();
        (sorted[0], sorted[sorted.len() - 1])
    }

    /// Millions of decisions a second, all threads together.
    pub(crate) fn millions_per_second(&self) -> f64 {
        f64::from(self.column.threads) * 1e3 / self.median()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.rounds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

#[cfg(test)]
mod tests {
    use tollgate_bench::contender::Quota;
    use tollgate_bench::peers::OneCell;

    use super::*;

    /// A slice takes 257 tokens at least; ten of them take more than the burst.
    #[test]
    fn a_cell_that_all_slices_share_is_never_used_up() {
        let cell = OneCell::new(Quota { per_hour: 1, burst: 600 });
        let effort = Effort { rounds: 1, warm_up: Duration::ZERO, measured: Duration::ZERO };
        let slice = Slice { callers: &[0; 256], threads: 1, effort, allowed: true };
        for _ in 0..10 {
            cell.drive(&slice).expect("nothing is refused");
        }
    }
}
