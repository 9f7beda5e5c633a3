//! Golden traces: each folder has rules, a trace and what replaying it must print, byte for byte.
//!
//! The numbers were worked out from the semantics and agree with a second reading of them. A change here is a
//! change of what users see: `TOLLGATE_BLESS=1` rewrites the files, and the diff is to be read line by line.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use tollgate::replay::Replay;
use tollgate::{Clock, RedisStore, Timestamp, rules};
use tollgate_tests::redis_cluster::{RedisCluster, Replicas};
use tollgate_tests::redis_server::RedisServer;
use tollgate_tests::sentinels::Sentinels;

/// A test for each folder, and one that none was forgotten.
macro_rules! golden {
    ($($test:ident: $folder:literal,)+) => {
        const FOLDERS: &[&str] = &[$($folder),+];

        $(
            #[test]
            fn $test() {
                compare($folder);
            }
        )+
    };
}

golden! {
    calendar_windows_follow_the_clocks_of_their_zone: "calendar",
    a_clock_that_goes_back_is_late_or_stepped: "clock-steps",
    a_rule_has_its_own_idea_of_cost: "cost",
    deny_beats_allow_beats_limits: "deny-and-allow",
    fixed_windows_begin_on_the_clock_with_the_first_take_or_spread: "fixed-window",
    every_spelling_of_a_value_is_one_key: "keys",
    a_leaky_bucket_delays_and_then_refuses: "leaky-bucket",
    a_missing_attribute_skips_refuses_or_shares: "missing",
    what_was_used_stays_used_when_rules_change: "reconfiguration",
    a_rule_stands_in_for_those_it_replaces: "replaces",
    rules_on_trial_count_and_never_refuse: "shadow",
    a_sliding_counter_rounds_its_estimate_down: "sliding-window-counter",
    a_sliding_log_is_exact: "sliding-window-log",
    several_tiers_stand_or_fall_together: "tiers",
    a_token_bucket_keeps_fractions_of_a_token: "token-bucket",
    aligned_ticks_are_on_the_clock: "token-bucket-aligned",
    interval_ticks_count_from_the_take_that_found_it_full: "token-bucket-interval",
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("replay")
}

fn compare(folder: &str) {
    let folder = root().join(folder);
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let printed = replayed(&read("rules.yaml"), &read("trace.jsonl"));
    if env::var_os("TOLLGATE_BLESS").is_some() {
        fs::write(folder.join("expected.jsonl"), &printed).expect("the golden file is writable");
    }
    let expected = read("expected.jsonl");
    for (number, (printed, expected)) in (1..).zip(printed.lines().zip(expected.lines())) {
        assert_eq!(printed, expected, "line {number} of {}", folder.display());
    }
    assert_eq!(printed, expected, "{}", folder.display());
}

fn replayed(rules: &str, trace: &str) -> String {
    let replay = Replay::new(rules::parse("rules.yaml", rules).expect("good rules"));
    let mut out = Vec::new();
    let lines = replay.run(trace.as_bytes(), |step| {
        step.write_json(&mut out);
        out.push(b'\n');
        Ok(())
    });
    assert!(lines.expect("a good trace") > 0);
    String::from_utf8(out).expect("JSON is UTF-8")
}

#[tokio::test]
async fn redis_prints_the_same_lines() {
    let server = RedisServer::start().await;
    prints_the_same_lines(&server.url()).await;
    let left: Vec<String> = server.contents().await.into_iter().map(|(key, _)| key).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_redis_that_sentinels_name_prints_the_same_lines() {
    let sentinels = Sentinels::start().await;
    prints_the_same_lines(&sentinels.url()).await;
    assert_eq!(sentinels.servers[0].server.contents().await, []);
}

#[tokio::test]
async fn a_cluster_prints_the_same_lines() {
    let cluster = RedisCluster::start(Replicas::None).await;
    prints_the_same_lines(&cluster.url()).await;
    for node in &cluster.nodes {
        assert_eq!(node.server.contents().await, []);
    }
}

/// Replays every golden trace through the Redis at a URL, and leaves nothing there.
async fn prints_the_same_lines(url: &str) {
    for folder in FOLDERS {
        let read = |name: &str| fs::read_to_string(root().join(folder).join(name)).unwrap_or_default();
        let rules = rules::parse("rules.yaml", &read("rules.yaml")).expect("good rules");
        let store = RedisStore::builder(url)
            .key_prefix(*folder)
            .clock(Clock::manual(Timestamp::from_micros(0)))
            .deadline(Duration::from_secs(20))
            .connect_timeout(Duration::from_secs(20))
            .connect()
            .await
            .expect("a URL");
        let replay = Replay::over(rules, store);
        let mut out = Vec::new();
        let trace = read("trace.jsonl");
        let lines = replay.run_async(trace.as_bytes(), |step| {
            step.write_json(&mut out);
            out.push(b'\n');
            Ok(())
        });
        lines.await.unwrap_or_else(|error| panic!("{folder}: {error}"));
        assert_eq!(String::from_utf8(out).expect("JSON is UTF-8"), read("expected.jsonl"), "{folder}");
        replay.store().delete_all().await.expect("the server answers");
    }
}

#[test]
fn every_folder_has_a_test() {
    let folders = fs::read_dir(root()).expect("this folder").flatten();
    let mut folders: Vec<String> = folders
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    folders.sort();
    let mut known = FOLDERS.to_vec();
    known.sort_unstable();
    assert_eq!(folders, known);
}
