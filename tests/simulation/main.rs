//! The ledger in virtual time: nodes, a store and a network that loses, delays and reorders, from a seed.
//!
//! Nodes run `NodeBucket` and the store runs `ParentBucket` of `core`. After every event of a small world the invariant is
//! checked: what all nodes have is on the ledger, and ledger and usage fit the capacity. At the end the limit's bound is
//! checked over all intervals of admissions. Large worlds report utilisation, fairness and calls.
//!
//! A few hundred seeds by default. The long mode, with its report:
//! `SIM_SEEDS=9900 cargo test --workspace --release --test simulation -- --nocapture`.
//! A failure prints the command that runs its seed again.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![expect(clippy::print_stdout, reason = "it reports what was simulated")]

mod bound;
mod cases;
mod explore;
mod fleet;
mod store;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use world::{Faults, Report, World};

/// Seeds of a quick run.
const SEEDS: u64 = 200;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs all seeds under some faults; a failing one is named with the command that runs it again.
fn every_seed(test: &str, faults: Faults) {
    let seeds = match number("SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SIM_SEEDS").unwrap_or(SEEDS),
    };
    let count = seeds.end - seeds.start;
    let mut total = Report::default();
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| World::new(seed, faults).run())) {
            Ok(report) => total += report,
            Err(_) => panic!(
                "seed {seed} fails; again: SIM_SEED={seed} cargo test --workspace --test simulation {test} -- --nocapture"
            ),
        }
    }
    println!("{test}: {count} seeds, {total}");
    if count > 1 {
        assert!(total.on_leases > total.admitted / 10, "hardly a lease was used: {total}");
        assert!(total.released > 0 && total.held > 0, "nothing was released or held: {total}");
    }
}

#[test]
fn leases_and_holds_never_admit_too_much_whatever_happens_to_nodes_and_network() {
    every_seed("leases_and_holds", Faults::default());
}

/// One seed in a quick run, 100 in the long mode.
#[test]
fn hundreds_of_nodes_never_admit_too_much() {
    let seeds = (number("SIM_SEEDS").unwrap_or(0) / 99).max(1);
    let mut total = Report::default();
    for seed in 0..seeds {
        total += World::new(seed, Faults { large: true, ..Faults::default() }).run();
    }
    println!("hundreds_of_nodes: {seeds} seeds, {total}");
}

#[test]
fn nodes_that_disagree_about_a_limit_admit_no_more_than_the_larger_one() {
    every_seed("nodes_that_disagree", Faults { mixed: true, ..Faults::default() });
}

#[test]
fn a_store_that_loses_writes_costs_one_capacity_and_the_refill_of_its_leases() {
    every_seed("a_store_that_loses", Faults { losses: true, ..Faults::default() });
}

/// The checks can fail: nodes whose clocks are a tenth too fast refill before the store does.
#[test]
fn clocks_beyond_the_allowed_drift_are_noticed() {
    let faults = Faults { drift_ppm: 300_000, ..Faults::default() };
    let noticed = (0..SEEDS / 2)
        .filter(|seed| catch_unwind(AssertUnwindSafe(|| World::new(*seed, faults).run())).is_err())
        .count();
    assert!(noticed > 5, "{noticed} seeds noticed it");
}
