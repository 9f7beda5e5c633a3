//! A node of a fleet: this program once more, as a process of its own.
//!
//! Says `ready`, asks as fast as it may, and writes down every admission: when it asked and when it knew. Ends when its
//! input does.

use std::error::Error;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, io};

use tokio::process::Command;
use tollgate::{Clock, Micros};

use crate::{check, node_with};

/// What a node is to do, in its environment: URL, file to write to, rules.
const ORDERS: &str = "TOLLGATE_LEASES_NODE";
/// No value contains it.
const BETWEEN: char = '\u{1f}';
/// Requests under way at once, and the pause of each before its next.
const ASKERS: usize = 4;
const PAUSE: Micros = Micros::new(1_000);
/// As a node has it in production.
const DEADLINE: Duration = Duration::from_millis(50);

/// The command that starts a node.
pub(crate) fn command(orders: &[&str]) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", "process::is_what_it_was_told_to_be", "--quiet", "--nocapture"]);
    command.env(ORDERS, orders.join(&BETWEEN.to_string()));
    command
}

/// Nothing to do, unless a fleet started this process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_what_it_was_told_to_be() {
    if let Ok(orders) = env::var(ORDERS) {
        let orders: Vec<&str> = orders.split(BETWEEN).collect();
        run(&orders).await.unwrap();
    }
}

async fn run(orders: &[&str]) -> Result<(), Box<dyn Error + Send + Sync>> {
    let [url, file, rules] = orders else { return Err("URL, file and rules were expected".into()) };
    let node = node_with(url, rules, DEADLINE).await;
    let log = Arc::new(File::options().append(true).create(true).open(file)?);
    let askers: Vec<_> = (0..ASKERS)
        .map(|_| {
            let (node, log) = (Arc::clone(&node), Arc::clone(&log));
            tokio::spawn(async move {
                let clock = Clock::system();
                loop {
                    let asked = now();
                    let answer = check(&node).await;
                    assert!(!answer.allowed() || answer.degraded().is_none(), "closed lets nothing pass");
                    if answer.allowed() {
                        // One short write: whole, or not there at all.
                        (&*log).write_all(format!("{asked} {}\n", now()).as_bytes()).unwrap();
                    }
                    clock.sleep(PAUSE).await;
                }
            })
        })
        .collect();
    writeln!(io::stdout(), "ready")?;
    io::stdout().flush()?;
    tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new())).await??;
    for asker in askers {
        asker.abort();
        assert!(!asker.await.is_err_and(|error| error.is_panic()), "an asker panicked");
    }
    node.store().close().await;
    Ok(())
}

/// Microseconds that all processes of a machine count alike.
#[expect(clippy::disallowed_methods, reason = "the clocks of several processes are compared")]
fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros()
}
