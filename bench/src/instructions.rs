//! Instructions per decision, counted by valgrind.
//!
//! Only what happens inside `repeat` is counted, so neither start nor set-up shows, however long they take: some
//! clocks are calibrated first. Counts do not depend on what else the machine does. A program that counts runs
//! itself: [`requested`] tells it that it is the one being counted.

use std::env;
use std::hint::black_box;
use std::process::Command;

use tollgate::{Tiers, key_seeds};

use crate::contender::{Caller, Check, Contender, Quota, Row};
use crate::mixed;

const SCENARIO: &str = "TOLLGATE_BENCH_SCENARIO";
const DECISIONS: &str = "TOLLGATE_BENCH_DECISIONS";

/// What this crate can run: [`run`] knows these names.
pub const SCENARIOS: [&str; 10] = [
    "store/run_now/allowed",
    "store/run_now/refused",
    "limiter/describe",
    "limiter/check/1_tier",
    "limiter/check/4_tiers",
    "limiter/check/4_tiers/refused",
    "rules/matching/10",
    "rules/matching/10000",
    "rules/tiers/10",
    "rules/tiers/10000",
];

/// What this process shall run, and how often, if it was started to be counted.
pub fn requested() -> Option<(String, u64)> {
    let decisions = env::var(DECISIONS).ok()?.parse().ok()?;
    Some((env::var(SCENARIO).ok()?, decisions))
}

/// Makes so many decisions of a scenario.
///
/// # Panics
///
/// On a name that is not one of [`SCENARIOS`].
pub fn run(scenario: &str, decisions: u64) {
    match scenario {
        "store/run_now/allowed" => decide(&Row::new(Quota::ENDLESS), decisions),
        "store/run_now/refused" => decide(&Row::new(Quota::SPENT), decisions),
        "limiter/describe" => {
            let caller = Caller::new(42);
            repeat(decisions, || black_box(black_box(&caller).request()).get("user_id").is_some());
        }
        "limiter/check/1_tier" => decide(&Check::one_tier(Quota::ENDLESS), decisions),
        "limiter/check/4_tiers" => decide(&Check::four_tiers(Quota::ENDLESS), decisions),
        "limiter/check/4_tiers/refused" => decide(&Check::four_tiers(Quota::SPENT), decisions),
        "rules/matching/10" => matching(10, decisions),
        "rules/matching/10000" => matching(10_000, decisions),
        "rules/tiers/10" => tiers(10, decisions),
        "rules/tiers/10000" => tiers(10_000, decisions),
        unknown => panic!("there is no scenario `{unknown}`"),
    }
}

/// Lets a contender decide so often about one caller.
pub fn decide<C: Contender>(contender: &C, decisions: u64) {
    let caller = Caller::new(42);
    repeat(decisions, || contender.decide(black_box(&caller)));
}

fn matching(rules: usize, decisions: u64) {
    let (rules, request) = (mixed::rules(rules), mixed::request());
    repeat(decisions, || rules.matching(black_box(&request)));
}

fn tiers(rules: usize, decisions: u64) {
    let (rules, request) = (mixed::rules(rules), mixed::request());
    repeat(decisions, || {
        let mut tiers = Tiers::new();
        black_box(rules.tiers(black_box(&request), 1, key_seeds(), &mut tiers));
        tiers.len()
    });
}

/// Does something so often. Valgrind finds this function by its name.
#[inline(never)]
fn repeat<T>(times: u64, mut once: impl FnMut() -> T) {
    for _ in 0..times {
        black_box(once());
    }
}

/// Counts the instructions of one decision, by running this program with these arguments under valgrind.
///
/// # Errors
///
/// Valgrind or the program under it did not do their work, for people to read.
pub fn per_decision(scenario: &str, decisions: u64, arguments: &[&str]) -> Result<u64, String> {
    let program = env::current_exe().map_err(|error| format!("this program cannot be found: {error}"))?;
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--toggle-collect=*instructions*repeat*",
        ])
        .arg(program)
        .args(arguments)
        .env(SCENARIO, scenario)
        .env(DECISIONS, decisions.to_string())
        .output()
        .map_err(|error| format!("cannot run valgrind, install the Debian package `valgrind`: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("`{scenario}` under valgrind: {}\n{said}", output.status));
    }
    let counted = said.lines().find_map(collected).filter(|counted| *counted >= decisions);
    let counted = counted.ok_or_else(|| format!("valgrind counted nothing for `{scenario}`:\n{said}"))?;
    Ok(counted / decisions)
}

/// Reads `==123== Collected : 1234567`.
fn collected(line: &str) -> Option<u64> {
    line.split_once("Collected :")?.1.trim().parse().ok()
}
