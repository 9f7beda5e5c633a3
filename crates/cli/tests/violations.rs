//! `tollgate violations` as its users meet it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use tollgate::audit::{Pseudonyms, ViolationLog, Writer, WriterOptions};
use tollgate::sql::Database;
use tollgate::{Bounds, Clock, Descriptor, Limiter, MemoryStore, Timestamp, Violations, rules};

const SECRET: &str = "a secret of many bytes";

/// A folder that goes away with the test, and the address of a database in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("tollgate-cli-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Scratch(folder)
    }

    fn database(&self) -> PathBuf {
        self.0.join("tollgate.db")
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.database().display())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Refuses these users three times each, one second after the other, the first at 2026-11-15T12:00:00Z.
fn refuse(url: &str, users: &[&str], pseudonyms: Option<Pseudonyms>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let clock = Clock::manual(Timestamp::from_micros(1_794_744_000_000_000));
        let text = r#"rules: [{ name: per-user, key: "user:{user_id}", limit: 1/d }]"#;
        let violations = Violations::default();
        let limiter = Limiter::new(
            rules::parse("rules.yaml", text).unwrap(),
            MemoryStore::with(clock.clone(), Bounds::default()),
        )
        .with_violations(violations.clone());
        let log = ViolationLog::new(Database::open(url).await.unwrap());
        let log = match pseudonyms {
            Some(pseudonyms) => log.with_pseudonyms(pseudonyms),
            None => log,
        };
        let options = WriterOptions { clock: clock.clone(), ..WriterOptions::default() };
        let writer = Writer::start(violations, log, options);
        for user in users {
            let request = Descriptor::new().with("user_id", *user).with("ip", "203.0.113.7");
            for _ in 0..4 {
                limiter.check(&request).await;
            }
            clock.advance(Duration::from_secs(1));
        }
        assert_eq!(writer.shutdown(Duration::from_secs(60)).await.dropped, 0);
    });
}

fn violations(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("violations").args(args).env_clear().output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

#[test]
fn refusals_are_listed_newest_first_and_narrowed_down() {
    let scratch = Scratch::new("listed");
    refuse(&scratch.url(), &["41", "42", "4\x1b[31m3"], None);
    let output = violations(&["--rules", &scratch.url()]);
    let shown = text(&output.stdout);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 4, "{shown}\n{}", text(&output.stderr));
    assert!(lines[0].starts_with("TIME"), "{shown}");
    assert!(lines[1].contains(r"4\u{1b}[31m3") && !shown.contains('\x1b'), "{shown}");
    assert_eq!(
        lines[2].split_whitespace().collect::<Vec<_>>(),
        ["2026-11-15T12:00:01.000000Z", "3", "per-user", "user:42", "42", "203.0.113.7", "-"]
    );

    let output = violations(&["--rules", &scratch.url(), "--user-id", "42", "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((found["bucket_key"].as_str(), found["count"].as_u64()), (Some("user:42"), Some(3)));
    assert_eq!(found["endpoint"], serde_json::Value::Null);

    let count = |args: &[&str]| {
        let url = scratch.url();
        let args: Vec<&str> = ["--rules", &url, "--json"].iter().chain(args).copied().collect();
        text(&violations(&args).stdout).lines().count()
    };
    assert_eq!(count(&["--since", "2026-11-15T12:00:01Z"]), 2);
    assert_eq!(count(&["--until", "2026-11-15T12:00:01Z"]), 1);
    assert_eq!(count(&["--rule", "per-user", "--ip", "203.0.113.7"]), 3);
    assert_eq!(count(&["--ip", "203.0.113.8"]), 0);
    assert_eq!(count(&["--endpoint", "/api"]), 0);
    assert_eq!(count(&["--limit", "0"]), 0);
    let output = violations(&["--rules", &scratch.url(), "--limit", "2"]);
    assert_eq!(text(&output.stdout).lines().count(), 3);
    assert!(text(&output.stderr).contains("newest 2 violations; there are more"), "{output:?}");
}

#[test]
fn hashed_users_are_found_with_the_secret() {
    let scratch = Scratch::new("hashed");
    let file = scratch.0.join("secret");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    refuse(&scratch.url(), &["42"], Some(Pseudonyms::new(SECRET.as_bytes()).unwrap()));
    let (url, file) = (scratch.url(), file.display().to_string());
    let plain = violations(&["--rules", &url, "--user-id", "42"]);
    assert_eq!((text(&plain.stdout), text(&plain.stderr)), ("", "no violations\n"));
    let known = violations(&["--rules", &url, "--user-id", "42", "--hash-key-file", &file]);
    assert_eq!(text(&known.stdout).lines().count(), 2, "{known:?}");
}

#[test]
fn what_cannot_be_answered_is_an_error_that_says_what_to_do() {
    let scratch = Scratch::new("errors");
    let known = Scratch::new("known");
    refuse(&known.url(), &[], None);
    let (missing, known) = (scratch.url(), known.url());
    for (args, told) in [
        (vec![], "name the server's database with --database, or its data directory"),
        (vec!["--rules", "rules.yaml", "--data-dir", "absent"], "absent/tollgate.db"),
        (vec!["--rules", "mysql://me:secret@h/n"], "`mysql://me:***@h/n` is not a database"),
        (vec!["--database", "me:secret@h/n"], "--database is neither sqlite://path nor postgres://"),
        (vec!["--rules", &known, "--since", "yesterday"], "`since`: expected how long ago"),
        (vec!["--rules", &missing], "tollgate.db"),
    ] {
        let output = violations(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(told), "{args:?}: {}", text(&output.stderr));
    }
    assert!(!Path::new(&scratch.database()).exists(), "looking makes no database");
}
