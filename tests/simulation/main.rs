//! Leases in virtual time: nodes, a store and a network that does everything networks do, from a seed.
//!
//! Nodes and store run the code that production runs: `Holding` and `LeasedBucket` of `core`. After every event the
//! invariant is checked (used + out on lease <= capacity, and no node holds what the store does not know of); at the
//! end, the limit's bound over all pairs of admissions, and over every window.
//!
//! A few hundred seeds by default. The long mode: `SIM_SEEDS=10000 cargo test --workspace --release --test simulation`.
//! One seed again: the command that a failure prints.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![expect(clippy::print_stdout, reason = "it reports what was simulated")]

mod bound;
mod faultless;
mod node;
mod store;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use world::{Faults, Tally, World};

/// Seeds of a quick run.
const SEEDS: u64 = 300;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs all seeds under some faults; one that fails is named with the command that runs it again.
fn every_seed(test: &str, faults: Faults) {
    let seeds = match number("SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SIM_SEEDS").unwrap_or(SEEDS),
    };
    let count = seeds.end - seeds.start;
    let mut total = Tally::default();
    for seed in seeds {
        let run = catch_unwind(AssertUnwindSafe(|| World::new(seed, faults).run()));
        match run {
            Ok(tally) => total += tally,
            Err(_) => panic!(
                "seed {seed} fails; again: SIM_SEED={seed} cargo test --workspace --test simulation {test} -- --nocapture"
            ),
        }
    }
    println!("{test}: {count} seeds, {total}");
    assert!(total.locally > total.admitted / 10, "hardly a lease was used: {total}");
    assert!(count == 1 || total.put_back > 0, "nothing was put back: {total}");
}

#[test]
fn leases_never_over_admit_whatever_happens_to_nodes_and_network() {
    every_seed("leases_never", Faults { losses: false });
}

#[test]
fn a_store_that_loses_its_writes_costs_at_most_one_capacity_each_time() {
    every_seed("a_store_that_loses", Faults { losses: true });
}
