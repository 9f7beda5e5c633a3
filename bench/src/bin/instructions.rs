//! How many instructions does a decision take? See `bench/README.md`.

#![expect(clippy::print_stdout, reason = "it prints a table")]

use tollgate_bench::contender::Quota;
use tollgate_bench::instructions::{self, SCENARIOS, decide};
use tollgate_bench::peers::{Governor, MutexMap};

const DECISIONS: u64 = 20_000;
const PEERS: [&str; 4] = ["governor/allowed", "governor/refused", "mutex_map/allowed", "mutex_map/refused"];

fn main() -> anyhow::Result<()> {
    if let Some((scenario, decisions)) = instructions::requested() {
        run(&scenario, decisions);
        return Ok(());
    }
    println!("| {:<30} | instructions |", "scenario");
    println!("|-{0:-<30}-|-{0:->12}:|", "");
    for scenario in SCENARIOS.into_iter().chain(PEERS) {
        let count = instructions::per_decision(scenario, DECISIONS, &[]).map_err(anyhow::Error::msg)?;
        println!("| {scenario:<30} | {count:>12} |");
    }
    Ok(())
}

fn run(scenario: &str, decisions: u64) {
    match scenario {
        "governor/allowed" => decide(&Governor::new(Quota::ENDLESS), decisions),
        "governor/refused" => decide(&Governor::new(Quota::SPENT), decisions),
        "mutex_map/allowed" => decide(&MutexMap::new(Quota::ENDLESS), decisions),
        "mutex_map/refused" => decide(&MutexMap::new(Quota::SPENT), decisions),
        known => instructions::run(known, decisions),
    }
}
