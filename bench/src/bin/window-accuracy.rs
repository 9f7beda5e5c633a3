//! How often is the sliding window counter wrong, compared with the exact log? See `window_accuracy.rs` for what is counted.
//! Counts from a seed, no times: a busy machine prints the same.

#![expect(clippy::print_stdout, reason = "it prints a table")]

use tollgate_bench::window_accuracy::{Accuracy, Tables, Workload};

fn main() {
    let requests = if std::env::args().any(|word| word == "--quick") { 50_000 } else { 10_000_000 };
    let found = Workload::ALL.map(|workload| Accuracy::measure(workload, requests));
    print!("{}", Tables(&found));
}
