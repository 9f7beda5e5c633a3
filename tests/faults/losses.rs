//! A Redis that forgets: buckets, scripts, everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate::{Clock, Micros};

use crate::node::{CAPACITY, Node};

#[tokio::test]
async fn after_a_flushall_there_is_one_more_capacity_and_no_error() {
    let node = Node::start().await;
    node.gate.allow_cost("flushed", CAPACITY).await.unwrap();
    assert!(!node.gate.allow("flushed").await.unwrap().allowed);
    node.server.command(&["FLUSHALL"]).await;
    assert!(node.gate.allow_cost("flushed", CAPACITY).await.unwrap().allowed);
    assert!(!node.gate.allow("flushed").await.unwrap().allowed);
    assert_eq!(node.gate.store().stats().uploads, 1, "FLUSHALL leaves scripts alone");
}

#[tokio::test]
async fn after_a_restart_with_nothing_there_is_one_more_capacity_and_the_script_is_back() {
    let mut node = Node::start().await;
    node.gate.allow_cost("restarted", CAPACITY).await.unwrap();
    node.server.restart().await;
    node.recovered().await;
    assert!(node.gate.allow_cost("restarted", CAPACITY).await.unwrap().allowed);
    assert!(!node.gate.allow("restarted").await.unwrap().allowed);
    assert_eq!(node.server.calls("script|load").await, 1);
    assert_eq!(node.gate.store().stats().uploads, 2);
}

#[tokio::test]
async fn a_restart_while_nobody_asks_costs_one_decision_at_most() {
    let mut node = Node::start().await;
    for _ in 0..3 {
        node.server.restart().await;
        let failed = usize::from(node.spend("unlucky").await.is_err());
        // A decision waits for the new connection rather than to fail.
        assert_eq!(node.spend("lucky").await.map(|_| failed <= 1), Ok(true));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_flush_every_100_ms_fails_no_decision_and_costs_one_upload_each() {
    const FLUSHES: u64 = 15;
    let node = Node::start().await;
    let before = node.server.calls("script|load").await;
    let done = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let (gate, done) = (node.gate.clone(), done.clone());
            tokio::spawn(async move {
                let mut decided: u64 = 0;
                while !done.load(Ordering::Relaxed) {
                    gate.allow(&format!("worker {worker}")).await.expect("a flush fails nobody");
                    decided += 1;
                }
                decided
            })
        })
        .collect();
    let clock = Clock::system();
    for _ in 0..FLUSHES {
        clock.sleep(Micros::from(Duration::from_millis(100))).await;
        node.server.command(&["SCRIPT", "FLUSH"]).await;
    }
    done.store(true, Ordering::Relaxed);
    let mut decided = 0;
    for worker in workers {
        decided += worker.await.unwrap();
    }
    let uploads = node.server.calls("script|load").await - before;
    assert!(decided > 8 * FLUSHES, "only {decided} decisions");
    assert!((1..=FLUSHES).contains(&uploads), "{uploads} uploads for {FLUSHES} flushes");
}
