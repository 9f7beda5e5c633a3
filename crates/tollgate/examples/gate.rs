//! One limit, one store, keys of your own: `cargo run -p tollgate --example gate`.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use tollgate::{Gate, MemoryStore};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gate = Gate::new("5/min burst 3".parse()?, MemoryStore::new());
    for request in 1..=4 {
        let answer = gate.allow("user:123").await;
        let left = answer.remaining().unwrap_or_default();
        println!("request {request}: allowed {}, {left} left", answer.allowed());
    }
    Ok(())
}
