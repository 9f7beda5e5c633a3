//! The database of a server, wherever its rules are.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use support::{Served, body, status};
use tollgate_tests::poll::{self, PATIENCE};
use tollgate_tests::postgres::Postgres;
use tollgate_tests::scratch::Scratch;

const RULES: &str = r#"rules:
  - { name: free, key: "user:{user_id}", plan: free, limit: 1/d }
  - { name: pro, key: "user:{user_id}", plan: pro, limit: 1000/d }"#;
const FREE: &str = r#"{"attributes": {"user_id": "42", "plan": "free"}}"#;

/// A folder with a rules file.
struct Folder {
    scratch: Scratch,
    rules: String,
    data: String,
}

impl Folder {
    fn new() -> Self {
        let scratch = Scratch::new("database");
        let [rules, data] =
            ["rules.yaml", "data"].map(|name| scratch.path().join(name).display().to_string());
        fs::write(&rules, RULES).unwrap();
        Folder { scratch, rules, data }
    }

    fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).display().to_string()
    }

    fn own_database_exists(&self) -> bool {
        Path::new(&self.data).join("tollgate.db").exists()
    }

    fn serve(&self, args: &[&str]) -> Served {
        Served::start(&[&["--data-dir", &self.data], args].concat())
    }
}

/// One check that passes, and one that is refused.
fn refuse(served: &Served) {
    let answers = [served.post("/v1/check", FREE), served.post("/v1/check", FREE)];
    assert_eq!(answers.each_ref().map(|answer| status(answer)), [200, 429], "{answers:?}");
}

fn json(served: &Served, path: &str) -> Value {
    serde_json::from_str(&body(&served.get(path))).unwrap()
}

/// Waits until the server finds a violation.
fn recorded(served: &Served) -> Value {
    poll::blocking("a violation is recorded", PATIENCE, || {
        served.get("/v1/violations").contains("\"user_id\":\"42\"")
    });
    json(served, "/v1/violations")["violations"][0].clone()
}

fn violations(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("violations").args(args).env_clear().output().unwrap()
}

fn found(args: &[&str]) -> String {
    let output = violations(&[&["--json"], args].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn violations_of_a_rules_file_are_in_the_data_directory() {
    let folder = Folder::new();
    let served = folder.serve(&["--rules", &folder.rules]);
    refuse(&served);
    let violation = recorded(&served);
    assert_eq!((&violation["rule_name"], &violation["rule_id"]), (&"free".into(), &Value::Null));
    served.stop();
    assert!(found(&["--data-dir", &folder.data]).contains("user:42"));
    assert!(found(&["--data-dir", &folder.data, "--rules", &folder.rules]).contains("user:42"));
}

#[test]
fn violations_and_plans_of_a_rules_file_are_in_the_database_that_is_named() {
    let (folder, postgres) = (Folder::new(), Postgres::start());
    let url = postgres.url();
    let served = folder.serve(&["--rules", &folder.rules, "--database", &url, "--default-plan", "free"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let database = tollgate::sql::Database::open(&url).await.unwrap();
        let tollgate::sql::Pool::Postgres(pool) = database.pool() else {
            unreachable!("opened as PostgreSQL")
        };
        sqlx::query("INSERT INTO account_plan VALUES ('7', 'pro')").execute(pool).await.unwrap();
        database.close().await;
    });
    poll::blocking("the plan is that of the table", PATIENCE, || {
        served.post("/v1/peek", r#"{"attributes": {"user_id": "7"}}"#).contains("\"limit\":1000,")
    });
    refuse(&served);
    recorded(&served);
    served.stop();
    assert!(found(&["--database", &url]).contains("user:42"));
    assert!(!folder.own_database_exists());
}

#[test]
fn violations_are_in_the_database_of_the_rules_unless_another_is_named() {
    let (folder, postgres) = (Folder::new(), Postgres::start());
    let (url, other) = (postgres.url(), format!("sqlite://{}", folder.path("other.db")));
    let imported = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["rules", "import", &folder.rules, "--rules", &url])
        .output()
        .unwrap();
    assert!(imported.status.success(), "{imported:?}");
    let served = folder.serve(&["--rules", &url]);
    refuse(&served);
    assert_eq!(recorded(&served)["rule_id"], 1);
    served.stop();
    assert_eq!(found(&["--rules", &url]).lines().count(), 1);

    let served = folder.serve(&["--rules", &url, "--database", &other]);
    refuse(&served);
    recorded(&served);
    served.stop();
    assert_eq!(found(&["--rules", &url]).lines().count(), 1, "the new one is not there");
    assert_eq!(found(&["--rules", &url, "--database", &other]).lines().count(), 1);
    assert!(!folder.own_database_exists());
}

#[test]
fn without_rules_a_database_that_is_named_has_them_and_begins_with_the_starter_set() {
    let folder = Folder::new();
    let url = format!("sqlite://{}", folder.path("named.db"));
    let first = folder.serve(&["--database", &url]);
    assert!(first.greeting.contains("a starter set, now in sqlite://"), "{}", first.greeting);
    first.stop();
    let second = folder.serve(&["--database", &url]);
    assert!(!second.greeting.contains("a starter set"), "{}", second.greeting);
    assert_eq!(json(&second, "/v1/rules")["writable"], true);
    second.stop();
    assert!(!folder.own_database_exists());
}

#[test]
fn a_database_that_is_down_at_the_start_stops_neither_the_server_nor_the_record() {
    let (folder, mut postgres) = (Folder::new(), Postgres::start());
    postgres.crash(); // before it has tables
    let url = postgres.url();
    let served = folder.serve(&["--rules", &folder.rules, "--database", &url, "--default-plan", "free"]);
    refuse(&served);
    poll::blocking("the outage is reported", PATIENCE, || {
        json(&served, "/readyz")["violations"] == "failing"
            && json(&served, "/v1/stats")["violations"]["error"].is_string()
    });
    assert_eq!(json(&served, "/readyz")["ready"], true);
    assert_eq!(status(&served.get("/v1/violations")), 503);
    postgres.resume();
    recorded(&served);
    let ready = || json(&served, "/readyz")["violations"] == "written";
    poll::blocking("the recovery is reported", PATIENCE, ready);
    let log = served.stop();
    assert!(log.contains("ERROR") && log.contains("serving without the database"), "{log}");
    assert!(log.contains("the database has recovered") && log.contains("dropped=0"), "{log}");
}

#[test]
fn a_damaged_file_is_named_in_the_log_and_the_server_serves() {
    let folder = Folder::new();
    fs::create_dir(&folder.data).unwrap();
    fs::write(Path::new(&folder.data).join("tollgate.db"), "rules: []\n".repeat(1_000)).unwrap();
    let served = folder.serve(&["--rules", &folder.rules]);
    refuse(&served);
    let log = served.stop();
    assert!(log.contains("it is not an SQLite database, or it is damaged; restore it"), "{log}");
}

#[test]
fn nodes_that_share_a_redis_are_warned_of_a_database_of_their_own() {
    let folder = Folder::new();
    let warning = "name one database for all of them";
    let args = ["--rules", &folder.rules, "--store", "redis://127.0.0.1:1"];
    assert!(folder.serve(&args).stop().contains(warning));
    assert!(!folder.serve(&[&args[..], &["--no-violations"]].concat()).stop().contains(warning));
    assert!(!folder.serve(&args[..2]).stop().contains(warning), "one node");
}

#[test]
fn an_address_that_is_not_that_of_a_database_is_refused() {
    for (address, told) in [
        ("me:secret@db.example/limits", "--database is neither sqlite://path nor postgres://user@host/name"),
        ("postgres://me:secret@db.example/limits?passwrd=secret", "unknown parameter `passwrd`"),
    ] {
        let folder = Folder::new();
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["serve", "--http", ":0", "--admin", ":0", "--rules", &folder.rules, "--database", address])
            .args(["--data-dir", &folder.data])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(told) && !said.contains("secret"), "{said}");
    }
}
