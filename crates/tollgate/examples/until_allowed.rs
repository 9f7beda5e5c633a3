//! A background job that waits its turn: `cargo run -p tollgate --example until_allowed`.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use tollgate::{Descriptor, Limiter, MemoryStore, Micros, rules};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rules =
        rules::parse("rules.yaml", "rules: [{ name: mails, key: 'job:{job}', limit: 10/s burst 2 }]")?;
    let limiter = Limiter::new(rules, MemoryStore::new());
    let job = Descriptor::new().with("job", "newsletter");

    let deadline = limiter.clock().now().after(Micros::from(Duration::from_millis(450)));
    for mail in 1..=10 {
        let answer = limiter.request(&job).until_allowed(deadline).await;
        if !answer.allowed() {
            println!("mail {mail}: its turn would come after the deadline");
            break;
        }
        println!("mail {mail}: sent");
    }
    Ok(())
}
