//! Rules that change while requests are decided.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tollgate::rules::{Follower, RuleSource, RulesReport, RulesStatus, SnapshotFile, SourceError};
use tollgate::sql::Database;
use tollgate::{Clock, Descriptor, Limiter, MemoryStore};
use tollgate_tests::poll;
use tollgate_tests::postgres::Postgres;
use tollgate_tests::scratch::Scratch;

use crate::tables::run;

/// A change takes a fraction of a second; a busy machine may take longer, but less than the poll of 30 s.
const PATIENCE: Duration = Duration::from_secs(20);

/// A limiter whose rules are followed, until it is dropped.
pub(crate) struct Followed {
    pub(crate) limiter: Arc<Limiter<MemoryStore>>,
    pub(crate) status: RulesStatus,
    task: JoinHandle<()>,
}

impl Followed {
    pub(crate) async fn start(source: RuleSource) -> Self {
        Followed::go(Follower::start(source).await.unwrap())
    }

    fn go((rules, follower): (tollgate::RuleSet, Follower)) -> Self {
        let limiter = Arc::new(Limiter::new(rules, MemoryStore::new()));
        let status = follower.status();
        let task = tokio::spawn(follower.run(Arc::clone(&limiter)));
        Followed { limiter, status, task }
    }

    pub(crate) fn labels(&self) -> Vec<String> {
        self.limiter.rules().rules().iter().map(|rule| rule.label().to_owned()).collect()
    }

    pub(crate) async fn until_the_rules_are(&self, labels: &[&str]) {
        until(&format!("the rules are {labels:?}"), || self.labels() == labels).await;
    }

    async fn until_reported(&self, what: &str, is_so: impl Fn(&RulesReport) -> bool) -> RulesReport {
        poll::until(what, async || Some(self.status.report()).filter(&is_so)).await
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    poll::until(what, async || is_so().then_some(())).await;
}

fn file(name: &str) -> String {
    format!("rules: [{{ name: {name}, key: global, limit: 5/h burst 5 }}]")
}

fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_may_be_rewritten_replaced_broken_and_taken_away() {
    let folder = Scratch::new("file").keep();
    let path = folder.join("rules.yaml");
    fs::write(&path, file("first")).unwrap();
    let followed = Followed::start(RuleSource::file(&path)).await;
    let version = followed.status.report().version;
    fs::write(&path, file("rewritten")).unwrap();
    followed.until_the_rules_are(&["rewritten"]).await;
    followed.until_reported("another version", |report| report.version != version).await;
    replace(&path, &file("replaced"));
    followed.until_the_rules_are(&["replaced"]).await;
    replace(&path, &file("again"));
    followed.until_the_rules_are(&["again"]).await;
    // What is wrong is told, and the last good rules stay.
    replace(&path, "rules: [{ name: bad, key: global, limt: 1/s }]");
    let report = followed.until_reported("the file is refused", |report| report.error.is_some()).await;
    assert!(report.error.unwrap().contains("did you mean `limit`?") && report.stale_since.is_some());
    assert_eq!(followed.labels(), ["again"]);
    fs::remove_file(&path).unwrap();
    let gone =
        |report: &RulesReport| report.error.as_ref().is_some_and(|error| error.contains("cannot read"));
    followed.until_reported("the file is gone", gone).await;
    assert_eq!(followed.labels(), ["again"]);
    replace(&path, &file("back"));
    followed.until_the_rules_are(&["back"]).await;
    let report = followed.until_reported("it is well again", |report| report.error.is_none()).await;
    assert_eq!((report.stale_since, report.rules), (None, 1));
    fs::remove_dir_all(folder).unwrap();
}

/// Time stamps of files have a resolution of milliseconds, so a file that is rewritten right after it was read may look the
/// same. The fastest of several rounds bounds the delay on a busy machine, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_rewritten_right_after_it_was_read_is_in_effect_within_a_second() {
    let folder = Scratch::new("file-racy").keep();
    let path = folder.join("rules.yaml");
    let (clock, mut fastest_us) = (Clock::system(), i64::MAX);
    for _ in 0..5 {
        fs::write(&path, file("one")).unwrap();
        let followed = Followed::start(RuleSource::file(&path)).await;
        fs::write(&path, file("two")).unwrap();
        let written = clock.now();
        followed.until_the_rules_are(&["two"]).await;
        fastest_us = fastest_us.min(clock.now().as_micros() - written.as_micros());
    }
    assert!(fastest_us < 1_000_000, "{fastest_us} us");
    fs::remove_dir_all(folder).unwrap();
}

/// A mounted ConfigMap: `rules.yaml -> ..data/rules.yaml`, `..data -> ..1`, and an update renames a new `..data` over it.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_kubernetes_swaps_is_followed() {
    let folder = Scratch::new("links").keep();
    for (version, name) in [("..1", "one"), ("..2", "two"), ("..3", "three")] {
        fs::create_dir(folder.join(version)).unwrap();
        fs::write(folder.join(version).join("rules.yaml"), file(name)).unwrap();
    }
    let point_at = |version: &str| {
        symlink(version, folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    };
    point_at("..1");
    symlink("..data/rules.yaml", folder.join("rules.yaml")).unwrap();
    let followed = Followed::start(RuleSource::file(folder.join("rules.yaml"))).await;
    assert_eq!(followed.labels(), ["one"]);
    point_at("..2");
    followed.until_the_rules_are(&["two"]).await;
    fs::remove_dir_all(folder.join("..1")).unwrap();
    point_at("..3");
    followed.until_the_rules_are(&["three"]).await;
    fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_is_followed_and_a_bad_row_refuses_the_whole_set_by_its_number() {
    let folder = Scratch::new("sqlite").keep();
    let url = format!("sqlite://{}", folder.join("rules.db").display());
    let database = Database::open(&url).await.unwrap();
    let followed = Followed::start(RuleSource::database(&url)).await;
    assert!(followed.labels().is_empty());
    is_followed(&database, &followed).await;
    database.close().await;
    fs::remove_dir_all(folder).unwrap();
}

async fn is_followed(database: &Database, followed: &Followed) {
    run(database, "INSERT INTO rate_limit_rule (name, key_pattern, rate_per_second, burst_capacity) VALUES ('a', 'global', 0.001, 5)").await.unwrap();
    followed.until_the_rules_are(&["a"]).await;
    let everybody = Descriptor::new();
    for left in [4, 3] {
        assert_eq!(followed.limiter.check(&everybody).await.remaining(), Some(left));
    }
    // A bad row: nothing of the new set is taken, also not what is good of it.
    run(database, "INSERT INTO rate_limit_rule (rule_id, name, key_pattern, limit_text) VALUES (77, 'b', 'ip:{ip}', 'fast')").await.unwrap();
    run(
        database,
        "INSERT INTO rate_limit_rule (name, key_pattern, limit_text) VALUES ('c', 'ip:{ip}', '1/s')",
    )
    .await
    .unwrap();
    let report = followed.until_reported("the rows are refused", |report| report.error.is_some()).await;
    let error = report.error.unwrap();
    assert!(error.contains("rule_id 77: rule `b`: ") && error.contains("not a whole number"), "{error}");
    assert_eq!(followed.labels(), ["a"]);
    // Mended, and what the unchanged rule counted is still counted.
    run(database, "UPDATE rate_limit_rule SET limit_text = '9/h' WHERE rule_id = 77").await.unwrap();
    until("all three are there", || followed.labels().len() == 3).await;
    let answer = followed.limiter.check(&everybody).await;
    assert!(answer.remaining().is_some_and(|left| left <= 3), "{answer:?}");
    assert_eq!(answer.rules().rules().iter().find(|rule| rule.label() == "b").unwrap().id(), Some(77));
    run(database, "DELETE FROM rate_limit_rule").await.unwrap();
    until("they are gone", || followed.labels().is_empty()).await;
    followed.until_reported("it is well again", |report| report.error.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_tells_of_changes_and_may_crash_and_come_back() {
    let mut server = Postgres::start();
    let folder = Scratch::new("kept").keep();
    let kept = SnapshotFile::new(folder.join("rules.snapshot"));
    let database = Database::open(&server.url()).await.unwrap();
    let source = || RuleSource::database(&server.url());
    let url = server.url();
    let followed = Followed::go(Follower::start_with_snapshot(source(), kept.clone()).await.unwrap());
    is_followed(&database, &followed).await;
    run(
        &database,
        "INSERT INTO rate_limit_rule (name, key_pattern, limit_text) VALUES ('kept', 'global', '1/s')",
    )
    .await
    .unwrap();
    followed.until_the_rules_are(&["kept"]).await;
    server.crash();
    let report = followed.until_reported("it is out of reach", |report| report.stale_since.is_some()).await;
    assert!(!report.error.unwrap().is_empty());
    assert_eq!(followed.labels(), ["kept"]);
    // A node that starts meanwhile has the last good rules, if it kept any; else it says so and does not start.
    let late =
        Followed::go(Follower::start_with_snapshot(RuleSource::database(&url), kept.clone()).await.unwrap());
    assert_eq!(late.labels(), ["kept"]);
    assert!(late.status.report().stale_since.is_some());
    assert_eq!(late.limiter.rules().rules()[0].id(), followed.limiter.rules().rules()[0].id());
    for other in [SnapshotFile::new(folder.join("none")), damaged(&kept, &folder)] {
        let refused = Follower::start_with_snapshot(RuleSource::database(&url), other).await;
        assert!(matches!(refused, Err(SourceError::Database(_))), "{refused:?}");
    }
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(fs::metadata(kept.path()).unwrap().permissions().mode() & 0o777, 0o600);
    server.resume();
    for node in [&followed, &late] {
        let report = node.until_reported("it is back", |report| report.stale_since.is_none()).await;
        assert_eq!(report.error, None);
    }
    // The pool of the test reconnects, too.
    until_run(&database, "UPDATE rate_limit_rule SET name = 'renamed'").await;
    for node in [&followed, &late] {
        node.until_the_rules_are(&["renamed"]).await;
    }
    database.close().await;
    drop((followed, late));
    fs::remove_dir_all(folder).unwrap();
}

/// One bad row must not keep a fleet from being restarted.
#[tokio::test(flavor = "multi_thread")]
async fn start_with_an_invalid_row_takes_the_last_good_rules_and_says_so() {
    let folder = Scratch::new("invalid");
    let url = format!("sqlite://{}", folder.path().join("rules.db").display());
    let kept = SnapshotFile::new(folder.path().join("rules.snapshot"));
    let database = Database::open(&url).await.unwrap();
    let insert = |name: &str, limit: &str| {
        format!(
            "INSERT INTO rate_limit_rule (name, key_pattern, limit_text) VALUES ('{name}', 'global', '{limit}')"
        )
    };
    run(&database, &insert("good", "1/s")).await.unwrap();
    let start = async || Follower::start_with_snapshot(RuleSource::database(&url), kept.clone()).await;
    drop(Followed::go(start().await.unwrap()));
    run(&database, &insert("bad", "fast")).await.unwrap();
    let followed = Followed::go(start().await.unwrap());
    assert_eq!(followed.labels(), ["good"]);
    let report = followed.status.report();
    assert!(report.error.unwrap().contains("rule `bad`") && report.stale_since.is_some());
    run(&database, "UPDATE rate_limit_rule SET limit_text = '2/s' WHERE name = 'bad'").await.unwrap();
    followed.until_the_rules_are(&["good", "bad"]).await;
    // Without a snapshot there is nothing to start with.
    run(&database, "UPDATE rate_limit_rule SET limit_text = 'fast' WHERE name = 'bad'").await.unwrap();
    let none = SnapshotFile::new(folder.path().join("none"));
    let refused = Follower::start_with_snapshot(RuleSource::database(&url), none).await;
    assert!(matches!(refused, Err(SourceError::Rows(_))), "{refused:?}");
    database.close().await;
}

/// A copy of a file of kept rules without its last line.
fn damaged(kept: &SnapshotFile, folder: &Path) -> SnapshotFile {
    let text = fs::read_to_string(kept.path()).unwrap();
    let damaged = folder.join("damaged");
    fs::write(&damaged, text.trim_end().rsplit_once('\n').unwrap().0).unwrap();
    SnapshotFile::new(damaged)
}

async fn until_run(database: &Database, sql: &str) {
    let clock = Clock::system();
    let deadline = clock.now().after(PATIENCE.into());
    while let Err(error) = run(database, sql).await {
        assert!(clock.now() < deadline, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flip_between_two_sets_never_mixes_them_within_a_request() {
    let folder = Scratch::new("flip").keep();
    let path = folder.join("rules.yaml");
    let set = |side: &str| {
        let rule = |number| format!("{{ name: {side}{number}, key: 'user:{{user_id}}', limit: 1000000/s }}");
        format!("rules: [{}]", (0..6).map(rule).collect::<Vec<_>>().join(", "))
    };
    fs::write(&path, set("a")).unwrap();
    let followed = Followed::start(RuleSource::file(&path)).await;
    let stop = AtomicBool::new(false);
    let sides = std::thread::scope(|threads| {
        let load = |user: usize| {
            let (limiter, stop) = (&followed.limiter, &stop);
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let user = user.to_string();
                let request = Descriptor::new().with("user_id", user.as_str());
                let mut seen = [0_u64; 2];
                while !stop.load(Ordering::Relaxed) {
                    let answer = runtime.block_on(limiter.check(&request));
                    let sides: Vec<u8> = answer
                        .tiers()
                        .iter()
                        .map(|tier| answer.rules().rule(tier.rule).label().as_bytes()[0])
                        .collect();
                    assert!(sides.len() == 6 && sides.iter().all(|side| *side == sides[0]), "{sides:?}");
                    seen[usize::from(sides[0] - b'a')] += 1;
                }
                seen
            }
        };
        let loads: Vec<_> = (0..3).map(|user| threads.spawn(load(user))).collect();
        tokio::task::block_in_place(|| {
            let now = tokio::runtime::Handle::current();
            for flip in 0..20 {
                let side = if flip % 2 == 0 { "b" } else { "a" };
                replace(&path, &set(side));
                now.block_on(until("the flip is seen", || followed.labels()[0].starts_with(side)));
            }
        });
        stop.store(true, Ordering::Relaxed);
        loads.into_iter().map(|load| load.join().unwrap()).fold([0; 2], |a, b| [a[0] + b[0], a[1] + b[1]])
    });
    assert!(sides[0] > 0 && sides[1] > 0, "{sides:?}");
    fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_fleet_may_start_together() {
    let server = Postgres::start();
    let folder = Scratch::new("fleet").keep();
    let sqlite = format!("sqlite://{}", folder.join("rules.db").display());
    for url in [sqlite, server.url()] {
        let start = || {
            let url = url.clone();
            tokio::spawn(async move { Database::open(&url).await })
        };
        let fleet: Vec<_> = (0..8).map(|_| start()).collect();
        for node in fleet {
            let database = node.await.unwrap().unwrap();
            assert_eq!(run(&database, "DELETE FROM account_plan").await.unwrap(), 0);
            database.close().await;
        }
    }
    fs::remove_dir_all(folder).unwrap();
}
