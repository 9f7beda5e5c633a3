//! Leases in virtual time: nodes, a store and a network that does everything networks do, from a seed.
//!
//! Nodes run the code that production runs, `Purse` of `core`, and the store `LeasedBucket`, which production compares each
//! answer of the script with, and `tests/conformance` every step. After every event the
//! invariant is checked (used + out on lease <= capacity, and no node holds what the store does not know of); at the
//! end, the limit's bound over all pairs of admissions, and over every window. What is made up here is the network, the
//! clocks, and who waits for what.
//!
//! A few hundred seeds by default. The long mode, with its report:
//! `SIM_SEEDS=10000 cargo test --workspace --release --test simulation -- --nocapture`.
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
/// Clocks of nodes differ in speed by two parts in a hundred at most.
const DRIFT_PERMILLE: i64 = 20;

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
    if count > 1 {
        assert!(total.locally > total.admitted / 10, "hardly a lease was used: {total}");
        assert!(total.put_back > 0, "nothing was put back: {total}");
    }
}

#[test]
fn leases_never_over_admit_whatever_happens_to_nodes_and_network() {
    every_seed("leases_never", Faults { mixed: false, losses: false, drift_permille: DRIFT_PERMILLE });
}

#[test]
fn a_store_that_loses_its_writes_costs_at_most_one_capacity_each_time() {
    every_seed("a_store_that_loses", Faults { mixed: false, losses: true, drift_permille: DRIFT_PERMILLE });
}

#[test]
fn nodes_that_disagree_about_a_limit_admit_no_more_than_the_larger_one() {
    every_seed("nodes_that_disagree", Faults { mixed: true, losses: false, drift_permille: DRIFT_PERMILLE });
}

/// What it looks for can be seen: nodes that count their leases on clocks which nobody should have.
#[test]
fn nodes_whose_clocks_run_far_too_slow_are_caught() {
    let faults = Faults { mixed: false, losses: false, drift_permille: 600 };
    let caught = (0..SEEDS / 3)
        .filter(|seed| catch_unwind(AssertUnwindSafe(|| World::new(*seed, faults).run())).is_err())
        .count();
    assert!(caught > 10, "{caught} seeds noticed it");
}
