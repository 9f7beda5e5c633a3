//! What does a batch save? Single checks and `check_many` of 100 requests, one rule, over ten million keys in random order.
//!
//! A single check waits for the memory of its bucket. A batch fetches the buckets of all its requests before it decides the
//! first. Rounds alternate; the ratio is the median of those within a round.
//!
//! Known bias: one thread, nothing else in the caches, descriptions made before the clock starts in both.

#![expect(clippy::print_stdout, reason = "it prints a table")]
#![expect(clippy::disallowed_methods, reason = "it reads the clock to measure")]

use std::time::Instant;

use anyhow::{Result, ensure};
use tollgate::{Bounds, Clock, Descriptor, Limiter, MemoryStore, rules};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEYS: u64 = 10_000_000;
const BATCH: usize = 100;
const BATCHES: u64 = 10_000;
const ROUNDS: usize = 7;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let rules = "rules: [{ name: user, key: 'user:{user_id}', limit: 100/h burst 250000000 }]";
    let store = MemoryStore::with(Clock::system(), Bounds { buckets: 12_000_000, bytes: 2 << 30 });
    let limiter = Limiter::new(rules::parse("rules.yaml", rules)?, store);
    for key in 0..KEYS {
        let user = key.to_string();
        ensure!(limiter.check(&Descriptor::new().with("user_id", &*user)).await.allowed(), "it is refused");
    }
    let mut random = Random(7);
    let mut ratios = Vec::new();
    println!("| round | single checks/s | batches of {BATCH}, decisions/s | ratio |\n|---:|---:|---:|---:|");
    for round in 1..=ROUNDS {
        let single = measure(&mut random, async |requests| {
            for request in requests {
                ensure!(limiter.check(request).await.allowed(), "it is refused");
            }
            Ok(())
        })
        .await?;
        let batch = measure(&mut random, async |requests| {
            let requests: Vec<_> = requests.iter().map(|request| limiter.request(request)).collect();
            ensure!(
                limiter.check_many(&requests).await.iter().all(|answer| answer.allowed()),
                "one is refused"
            );
            Ok(())
        })
        .await?;
        println!("| {round} | {single:.0} | {batch:.0} | {:.2} |", batch / single);
        ratios.push(batch / single);
    }
    ratios.sort_by(f64::total_cmp);
    println!("\n- median ratio: {:.2} (wanted at least 2)", ratios[ROUNDS / 2]);
    Ok(())
}

/// Decisions per second, over batches of random keys.
async fn measure(
    random: &mut Random,
    mut decide: impl AsyncFnMut(&[Descriptor<'_>]) -> Result<()>,
) -> Result<f64> {
    let mut time = std::time::Duration::ZERO;
    for _ in 0..BATCHES {
        let users: Vec<String> = (0..BATCH).map(|_| (random.next() % KEYS).to_string()).collect();
        let requests: Vec<_> = users.iter().map(|user| Descriptor::new().with("user_id", &**user)).collect();
        let began = Instant::now();
        decide(&requests).await?;
        time += began.elapsed();
    }
    Ok(BATCH as f64 * BATCHES as f64 / time.as_secs_f64())
}

/// A stream of random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
