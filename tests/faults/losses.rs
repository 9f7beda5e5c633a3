//! A Redis that forgets: buckets, scripts, everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tollgate_tests::poll;
use tollgate_tests::rows::Stored as _;

use crate::node::{CAPACITY, Node};

#[tokio::test]
async fn after_a_flushall_there_is_one_more_capacity_and_no_error() {
    let node = Node::start().await;
    node.gate.allow_cost("flushed", CAPACITY).await.stored().unwrap();
    assert!(!node.gate.allow("flushed").await.stored().unwrap().allowed);
    node.server.command(&["FLUSHALL"]).await;
    assert!(node.gate.allow_cost("flushed", CAPACITY).await.stored().unwrap().allowed);
    assert!(!node.gate.allow("flushed").await.stored().unwrap().allowed);
    assert_eq!(node.gate.store().stats().uploads, 1, "FLUSHALL leaves scripts alone");
}

#[tokio::test]
async fn after_a_restart_with_nothing_there_is_one_more_capacity_and_the_script_is_back() {
    let mut node = Node::start().await;
    node.gate.allow_cost("restarted", CAPACITY).await.stored().unwrap();
    node.server.restart().await;
    node.recovered().await;
    assert!(node.gate.allow_cost("restarted", CAPACITY).await.stored().unwrap().allowed);
    assert!(!node.gate.allow("restarted").await.stored().unwrap().allowed);
    assert_eq!(node.gate.store().stats().uploads, 2);
}

#[tokio::test]
async fn a_restart_while_nobody_asks_costs_one_decision_at_most() {
    let mut node = Node::start().await;
    for _ in 0..3 {
        let before = node.gate.store().stats().connections;
        node.server.restart().await;
        // Connections are refused while it restarts, so the next attempt may be a moment away.
        poll::until("another connection", async || {
            let stats = node.gate.store().stats();
            (stats.up && stats.connections > before).then_some(())
        })
        .await;
        assert!(node.spend("afterwards").await.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_flush_again_and_again_under_load_fails_no_decision_and_costs_one_upload_each() {
    const FLUSHES: u64 = 15;
    const BETWEEN: u64 = 200;
    let node = Node::start().await;
    let before = node.gate.store().stats().uploads;
    let (done, decided) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let (gate, done, decided) = (node.gate.clone(), done.clone(), decided.clone());
            tokio::spawn(async move {
                while !done.load(Ordering::Relaxed) {
                    gate.allow(&format!("worker {worker}")).await.stored().expect("a flush fails nobody");
                    decided.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for _ in 0..FLUSHES {
        node.server.command(&["SCRIPT", "FLUSH"]).await;
        let flushed = decided.load(Ordering::Relaxed);
        poll::until("decisions after a flush", async || {
            (decided.load(Ordering::Relaxed) >= flushed + BETWEEN).then_some(())
        })
        .await;
    }
    done.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    let uploads = node.gate.store().stats().uploads - before;
    assert!((1..=FLUSHES).contains(&uploads), "{uploads} uploads for {FLUSHES} flushes");
}
