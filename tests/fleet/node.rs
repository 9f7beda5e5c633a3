//! A node of a fleet: this program once more, as a process of its own.
//!
//! Says `ready`, waits for a line, sends so many requests with these attributes, a few at a time, and prints what
//! became of them as JSON. Its clock is wrong by as much as it is told.

use std::error::Error;
use std::io::{BufRead as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;
use std::{env, fs, io};

use tokio::process::Command;
use tollgate::{Clock, Descriptor, Limiter, RedisStore, rules};

/// How many requests are under way at once.
const AT_ONCE: usize = 16;
/// A busy machine is no reason to decide without the store.
const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Tally {
    admitted: AtomicU64,
    refused: AtomicU64,
    degraded: AtomicU64,
}

/// What a node is to do, in its environment: URL, rules, requests, how far its clock is off, attributes.
const ORDERS: &str = "TOLLGATE_FLEET_NODE";
/// No value contains it.
const BETWEEN: char = '\u{1f}';

/// The command that starts a node.
pub(crate) fn command(orders: &[&str]) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", "node::is_what_it_was_told_to_be", "--quiet", "--nocapture"]);
    command.env(ORDERS, orders.join(&BETWEEN.to_string()));
    command
}

/// Nothing to do, unless the fleet started this process.
#[tokio::test]
async fn is_what_it_was_told_to_be() {
    if let Ok(orders) = env::var(ORDERS) {
        let orders: Vec<&str> = orders.split(BETWEEN).collect();
        run(&orders).await.unwrap();
    }
}

async fn run(orders: &[&str]) -> Result<(), Box<dyn Error + Send + Sync>> {
    let [url, file, requests, off_us, attributes @ ..] = orders else {
        return Err("URL, rules, requests, clock and attributes were expected".into());
    };
    let rules = rules::parse(file, &fs::read_to_string(file)?)?;
    let redis = RedisStore::builder(url).deadline(DEADLINE).clock(Clock::system_off_by(off_us.parse()?));
    let store = redis.connect().await?;
    store.ready().await?;
    let limiter = Arc::new(Limiter::new(rules, store));
    let attributes: Arc<[String]> = attributes.iter().map(ToString::to_string).collect();
    let left = Arc::new(AtomicI64::new(requests.parse()?));
    let tally = Arc::new(Tally::default());

    say("ready")?;
    io::stdin().lock().read_line(&mut String::new())?;
    let senders: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let (limiter, attributes) = (limiter.clone(), attributes.clone());
            let (left, tally) = (left.clone(), tally.clone());
            tokio::spawn(async move {
                let pairs = attributes.iter().filter_map(|pair| pair.split_once('='));
                let request =
                    pairs.fold(Descriptor::new(), |request, (name, value)| request.with(name, value));
                while left.fetch_sub(1, Ordering::Relaxed) > 0 {
                    let answer = limiter.check(&request).await;
                    let count = match (answer.degraded(), answer.allowed()) {
                        (Some(_), _) => &tally.degraded,
                        (None, true) => &tally.admitted,
                        (None, false) => &tally.refused,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for sender in senders {
        sender.await?;
    }
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (admitted, refused, degraded) = (read(&tally.admitted), read(&tally.refused), read(&tally.degraded));
    say(&serde_json::json!({ "admitted": admitted, "refused": refused, "degraded": degraded }).to_string())?;
    Ok(())
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
