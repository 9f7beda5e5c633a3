//! Rules, a check and a refusal: `cargo run -p tollgate --example limiter`.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use tollgate::{Descriptor, Limiter, MemoryStore, rules};

const RULES: &str = r#"
rules:
  - { name: per-user-free, key: "user:{user_id}", plan: free, limit: 10/min burst 3 }
  - { name: everybody, key: global, limit: 1000/s burst 2000 }
  - { name: banned, key: "user:{user_id}", action: deny, when: { user_id: ["666"] } }
"#;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::new(rules::parse("rules.yaml", RULES)?, MemoryStore::new());

    let request = Descriptor::new().with("user_id", "42").with("plan", "free");
    for _ in 0..4 {
        let answer = limiter.check(&request).await;
        match answer.retry_after() {
            _ if answer.allowed() => println!("allowed, {:?} left", answer.remaining()),
            Some(wait) => println!("refused by {:?}, again in {} s", answer.rule(), wait.ceil_secs()),
            None => println!("refused by {:?}; waiting does not help", answer.rule()),
        }
    }

    let banned = limiter.check(&Descriptor::new().with("user_id", "666")).await;
    println!("{:?} by {:?}", banned.status(), banned.rule());
    Ok(())
}
