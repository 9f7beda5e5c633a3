//! `tollgate rules` as its users meet it: against a file, SQLite, PostgreSQL and a server.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::rules::RuleBook;
use tollgate::sql::Database;
use tollgate_tests::poll;
use tollgate_tests::postgres::Postgres;
use tollgate_tests::scratch::Scratch;

const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `tollgate rules` with these arguments, as ann.
fn rules(args: &[&str]) -> Output {
    rules_with(args, "", &[])
}

fn rules_with(args: &[&str], input: &str, variables: &[(&str, &str)]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .arg("rules")
        .args(args)
        .env_clear()
        .env("USER", "ann")
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes()); // it may not be read
    child.wait_with_output().unwrap()
}

/// What a command prints that succeeds.
fn good(args: &[&str]) -> String {
    let output = rules(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", err(&output));
    out(&output)
}

/// What a command says that fails.
fn bad(args: &[&str]) -> String {
    let output = rules(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {}", out(&output));
    err(&output)
}

/// The arguments, for the rules in this place.
fn on<'a>(place: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    [args, &["--rules", place]].concat()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn every_field() -> String {
    format!("{}/../../examples/rules/every-field.yaml", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn sqlite_does_what_it_is_told() {
    let scratch = Scratch::new("cli-rules");
    a_database_does_what_it_is_told(&format!("sqlite://{}", scratch.path().join("rules.db").display()));
}

#[test]
fn postgres_does_what_it_is_told() {
    let server = Postgres::start();
    a_database_does_what_it_is_told(&server.url());
}

fn a_database_does_what_it_is_told(url: &str) {
    let fields = [
        "add",
        "--name",
        "per-user",
        "--key",
        "user:{user_id}",
        "--limit",
        "10/s burst 50",
        "--plan",
        "free",
    ];
    assert_eq!(good(&on(url, &fields)), "added per-user (rule 1, version 1)\n");
    let whole =
        r#"{"key": "global", "limit": "5/min", "mode": "shadow", "when": {"method": ["GET", "PUT"]}}"#;
    let added = &json_lines(&good(&on(url, &["add", "--json", whole])))[0];
    assert_eq!((&added["rule_id"], &added["label"]), (&json!(2), &json!("global 1min")));
    assert_eq!(added["rule"]["when"]["method"], json!(["GET", "PUT"]));
    let list = good(&on(url, &["list"]));
    let words: Vec<&str> = list.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(words[..6], ["1", "per-user", "user:{user_id}", "user", "free", "10/s"]);
    // A rule with conditions does not read like one for every request.
    assert!(list.lines().next().unwrap().ends_with("MODE     WHEN"), "{list}");
    assert!(list.lines().nth(1).unwrap().ends_with("enforce  -"), "{list}");
    assert!(list.lines().nth(2).unwrap().ends_with("shadow   method: [GET, PUT]"), "{list}");
    let listed = json_lines(&good(&on(url, &["list", "--json"])));
    assert_eq!((&listed[0]["when"], &listed[1]["when"]), (&json!({}), &json!({"method": ["GET", "PUT"]})));

    // A rule is called by its label or number; what is not there gets what was meant.
    let shown = good(&on(url, &["show", "1"]));
    assert!(shown.starts_with("per-user\n") && shown.contains("  version      1\n"), "{shown}");
    assert_eq!(
        bad(&on(url, &["show", "per-usr"])),
        "error: there is no rule `per-usr`; did you mean `per-user`?\n"
    );

    let edit =
        ["edit", "per-user", "--limit", "20/s burst 50", "--unset", "plan", "--when", "endpoint=/api/*"];
    assert_eq!(
        good(&on(url, &edit)),
        "changed per-user (rule 1, version 2): plan: free -> none; limit: 10/s burst 50 -> 20/s burst 50; \
         when: none -> { endpoint: /api/* }\n"
    );
    // Who edits what is no longer there sees both.
    let conflict = bad(&on(url, &["edit", "per-user", "--limit", "30/s", "--if-version", "1"]));
    assert!(conflict.contains("you saw version 1, it is version 2 now"), "{conflict}");
    assert!(
        conflict.contains("yours:  { name: per-user, key: \"user:{user_id}\", limit: 30/s,"),
        "{conflict}"
    );
    assert!(
        conflict.contains("theirs: { name: per-user, key: \"user:{user_id}\", limit: 20/s"),
        "{conflict}"
    );
    assert_eq!(
        bad(&on(url, &["edit", "per-user", "--limit", "0/s"])),
        "error: rule `per-user`: limit `0/s`: count is zero; the least is 1 (to block a caller outright write \
         `action: deny`)\n"
    );
    assert!(bad(&on(url, &["edit", "per-user", "--unset", "plann"])).contains("did you mean `plan`?"));
    assert!(bad(&on(url, &fields)).contains("there twice"), "the same name again");

    // Off and on again keeps the mode.
    assert_eq!(good(&on(url, &["disable", "global 1min"])), "global 1min (rule 2, version 2) is off\n");
    assert_eq!(good(&on(url, &["disable", "2"])), "global 1min (rule 2, version 2) is already off\n");
    assert_eq!(good(&on(url, &["enable", "2"])), "global 1min (rule 2, version 3) is on, mode shadow\n");

    let removed = rules(&on(url, &["remove", "per-user"]));
    assert!(
        out(&removed).starts_with("removed per-user (rule 1, version 2): { name: per-user,"),
        "{removed:?}"
    );
    let way_back = err(&removed);
    let change =
        way_back.strip_prefix("`tollgate rules undo ").and_then(|rest| rest.split('`').next()).unwrap();
    let history = json_lines(&good(&on(url, &["history", "per-user", "--json"])));
    let actions: Vec<&str> = history.iter().map(|change| change["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["remove", "edit", "add"]);
    assert!(history.iter().all(|change| change["who"] == "ann"));
    assert!(
        good(&on(url, &["undo", change]))
            .starts_with("per-user (rule 1, version 3) is back to { name: per-user,")
    );
    let table = good(&on(url, &["history", "--limit", "2"]));
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.contains("  ann  add     per-user  { name: per-user"), "{table}");

    imports_and_exports_without_loss(url);
    rates_with_decimals_survive_export_and_import(url);
}

fn rates_with_decimals_survive_export_and_import(url: &str) {
    let scratch = Scratch::new("cli-decimals");
    let file = scratch.path().join("rules.yaml");
    fs::write(&file, "rules: [{ name: slow, key: global, limit: 5/2s burst 50 }]").unwrap();
    let file = file.to_str().unwrap();
    good(&on(url, &["import", file, "--replace"]));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let rate = || {
        runtime.block_on(async {
            let book = RuleBook::new(Database::open(url).await.unwrap());
            let row = book.list().await.unwrap().remove(0);
            book.database().close().await;
            (row.rate_per_second.unwrap().to_string(), row.burst_capacity, row.fields.limit)
        })
    };
    assert_eq!(rate(), ("2.5".to_owned(), Some(50), None));
    let changed = good(&on(url, &["edit", "slow", "--limit", "1/2s burst 50"]));
    assert!(changed.contains("limit: 5/2s burst 50 -> 1/2s burst 50"), "{changed}");
    assert_eq!(rate(), ("0.5".to_owned(), Some(50), None));
    let exported = scratch.path().join("exported.yaml");
    fs::write(&exported, good(&on(url, &["export"]))).unwrap();
    good(&on(url, &["import", file, "--replace"]));
    assert_eq!(rate().0, "2.5");
    good(&on(url, &["import", exported.to_str().unwrap(), "--replace"]));
    assert_eq!(rate(), ("0.5".to_owned(), Some(50), None));
    let newest = json_lines(&good(&on(url, &["history", "--json"]))).remove(0);
    let undone = good(&on(url, &["undo", &newest["id"].to_string()]));
    assert!(undone.contains("limit: 5/2s burst 50"), "{undone}");
    assert_eq!(rate().0, "2.5");
}

fn imports_and_exports_without_loss(url: &str) {
    let file = every_field();
    let planned = good(&on(url, &["import", &file, "--replace", "--dry-run"]));
    assert!(planned.contains("13 added, 2 removed, 0 changed, 0 the same"), "{planned}");
    assert_eq!(json_lines(&good(&on(url, &["list", "--json"]))).len(), 2);
    let added = good(&on(url, &["import", &file]));
    assert!(added.contains("13 added, 0 removed, 0 changed, 0 the same"), "{added}");
    let replaced = good(&on(url, &["import", &file, "--replace"]));
    assert!(replaced.contains("0 added, 2 removed, 0 changed, 13 the same"), "{replaced}");
    assert_eq!(good(&["diff", &file, url]), "no difference: 13 rules\n");
    assert_eq!(good(&on(url, &["lint"])), "ok: 13 rules\n");

    let scratch = Scratch::new("cli-export");
    let exported = scratch.path().join("rules.yaml");
    fs::write(&exported, good(&on(url, &["export"]))).unwrap();
    let exported = exported.to_str().unwrap();
    assert_eq!(good(&["lint", exported]), "ok: 13 rules\n");
    assert_eq!(good(&["diff", &file, exported]), "no difference: 13 rules\n");
    assert_eq!(good(&on(url, &["import", exported, "--replace"])), "no difference: 13 rules\n");

    // One bad rule keeps all of them out.
    fs::write(scratch.path().join("bad.yaml"), "rules: [{ name: a, key: global, limit: 1/s }, { key: b }]")
        .unwrap();
    assert!(
        bad(&on(url, &["import", scratch.path().join("bad.yaml").to_str().unwrap()]))
            .contains("needs a `limit`")
    );
    assert_eq!(json_lines(&good(&on(url, &["list", "--json"]))).len(), 13);
    // The other commands take the database, too; only an error is 2.
    for command in ["check", "explain", "doctor"] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_tollgate")).args([command, "--rules", url]).output().unwrap();
        assert_ne!(output.status.code(), Some(2), "{command}: {}", err(&output));
    }
}

#[test]
fn a_file_is_read_and_never_changed() {
    let scratch = Scratch::new("cli-file");
    let file = scratch.path().join("rules.yaml");
    let text = "rules:\n  # everybody\n  - { name: a, key: global, limit: 10/s } # plenty\n";
    fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    let changing = [
        &["add", "--key", "global", "--limit", "1/s"][..],
        &["edit", "a", "--limit", "20/s"],
        &["remove", "a"],
        &["enable", "a"],
        &["disable", "a"],
        &["undo", "1"],
        &["import", &every_field()],
    ];
    for command in changing {
        let said = bad(&on(path, command));
        assert!(said.starts_with(&format!("error: {path} is a file, ")), "{said}");
        assert!(said.contains("edit the file, which a running server loads within a second"), "{said}");
        assert!(
            said.contains(&format!("`tollgate rules import {path} --rules sqlite://rules.db`")),
            "{said}"
        );
        let new = scratch.path().join("new.yaml");
        bad(&on(new.to_str().unwrap(), command));
        assert!(!new.exists(), "{command:?}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert!(bad(&on(path, &["history"])).contains("a file keeps no history"));
    assert_eq!(json_lines(&good(&on(path, &["list", "--json"])))[0]["limit"], "10/s");
    assert!(good(&on(path, &["show", "a"])).starts_with("a\n"));
    assert_eq!(good(&on(path, &["lint"])), "ok: 1 rule\n");
    assert_eq!(good(&on(path, &["export"])), "rules:\n  - name: a\n    key: global\n    limit: 10/s\n");
    assert_eq!(good(&["diff", path, path]), "no difference: 1 rule\n");
}

#[test]
fn diff_exits_with_0_and_with_1_for_a_difference_where_that_was_asked_for() {
    let scratch = Scratch::new("cli-diff-code");
    let other = scratch.path().join("other.yaml").to_str().unwrap().to_owned();
    fs::write(&other, "rules: [{ name: x, key: global, limit: 1/s }]").unwrap();
    let code = |args: &[&str]| rules(&[&["diff"], args].concat()).status.code();
    assert_eq!(code(&[&every_field(), &other]), Some(0), "different");
    assert_eq!(code(&[&every_field(), &other, "--exit-code"]), Some(1), "different");
    assert_eq!(code(&[&every_field(), &other, "--exit-code", "--json"]), Some(1), "different");
    assert_eq!(code(&[&other, &other, "--exit-code"]), Some(0), "the same");
    assert_eq!(code(&[&other, "nowhere.yaml", "--exit-code"]), Some(2), "an error");
}

#[test]
fn places_are_told_apart_and_passwords_never_shown() {
    assert!(
        bad(&["add", "--key", "global", "--limit", "1/s"])
            .contains("say where yours are: --rules sqlite://rules.db")
    );
    let two = bad(&["list", "--rules", "a.yaml", "--server", "http://127.0.0.1:1"]);
    assert!(two.contains("two places; name one"), "{two}");
    // A flag wins over the other's variable.
    let output =
        rules_with(&["list", "--rules", &every_field()], "", &[("TOLLGATE_SERVER", "http://127.0.0.1:1")]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(bad(&["list", "--server", "http://127.0.0.1:1"]).contains("is `tollgate serve` running there?"));
    for place in [
        ["--rules", "postgres://me:canary@127.0.0.1:1/x"],
        ["--rules", "postgrs://me:canary@127.0.0.1:1/x"],
        ["--server", "http://me:canary@127.0.0.1:1"],
        ["--server", "https://me:canary@127.0.0.1:1"],
    ] {
        for command in [&["list"][..], &["add", "--key", "global", "--limit", "1/s"], &["lint"], &["export"]]
        {
            let said = bad(&[command, &place].concat());
            assert!(said.contains("127.0.0.1") && !said.contains("canary"), "{said}");
        }
    }
    for help in [
        &["rules", "list", "--help"][..],
        &["serve", "--help"],
        &["violations", "--help"],
        &["check", "--help"],
    ] {
        let url = "postgres://me:canary@db/x";
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(help)
            .env("TOLLGATE_RULES", url)
            .output()
            .unwrap();
        assert!(out(&output).contains("--rules") && !out(&output).contains("canary"), "{help:?}");
    }
    // Looking makes no database, nor does changing what is not there.
    let scratch = Scratch::new("cli-looking");
    let url = format!("sqlite://{}/none.db", scratch.path().display());
    bad(&["list", "--rules", &url]);
    bad(&["remove", "a", "--rules", &url]);
    assert!(!scratch.path().join("none.db").exists());
}

/// Answers requests in turn with what is given, and tells what it was asked.
fn stub(answers: Vec<(&'static str, Value)>) -> (String, thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served =
        thread::spawn(move || answers.into_iter().map(|answer| serve_one(&listener, answer)).collect());
    (url, served)
}

fn serve_one(listener: &TcpListener, (status, body): (&str, Value)) -> String {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut asked = String::new();
    while !asked.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut asked).unwrap() > 0, "{asked}");
    }
    let length = asked
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |n| n.parse().unwrap());
    let mut sent = vec![0; length];
    reader.read_exact(&mut sent).unwrap();
    let body = body.to_string();
    write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .unwrap();
    asked + &String::from_utf8(sent).unwrap()
}

#[test]
fn a_server_is_asked_as_its_api_has_it() {
    let rule = json!({"name": "a", "key": "global", "limit": "1/s"});
    let entry = json!({"rule_id": 7, "version": 3, "label": "a", "active": true, "rule": rule,
                       "created_at": "2026-11-16T00:00:00Z", "updated_at": "2026-11-16T00:00:00Z"});
    let set = json!({"source": "sqlite://rules.db", "version": 9, "writable": true, "error": null, "rules": [entry]});
    let mut edited = entry.clone();
    edited["version"] = json!(4);
    let (url, served) = stub(vec![("200 OK", set.clone()), ("200 OK", json!({"rules": [edited]}))]);
    assert_eq!(
        good(&["edit", "a", "--limit", "2/s", "--server", &url]),
        "changed a (rule 7, version 4): limit: 1/s -> 2/s\n"
    );
    let asked = served.join().unwrap();
    assert!(asked[1].starts_with("POST /v1/rules/edits HTTP/1.1\r\n"), "{}", asked[1]);
    let edit = r#"{"edits":[{"update":{"rule_id":7,"version":3,"rule":{"name":"a","key":"global","limit":"2/s"}}}]}"#;
    assert!(asked[1].ends_with(edit), "{}", asked[1]);

    let problem = json!({"title": "changed meanwhile", "detail": "it is version 4 now", "current": entry});
    let (url, _) = stub(vec![("200 OK", set.clone()), ("412 Precondition Failed", problem)]);
    assert_eq!(
        bad(&["edit", "a", "--limit", "2/s", "--server", &url]),
        "error: it is version 4 now\n  yours:  { name: a, key: global, limit: 2/s }\n  theirs: { name: a, key: global, \
         limit: 1/s }\n"
    );

    let problem = json!({"title": "the rules cannot be changed here", "detail": "the rules are those of the file a.yaml"});
    let (url, _) = stub(vec![("200 OK", set.clone()), ("409 Conflict", problem)]);
    assert_eq!(
        bad(&["remove", "a", "--server", &url]),
        format!("error: {url}: the rules are those of the file a.yaml\n")
    );

    let problem =
        json!({"title": "invalid", "errors": [{"rule": "b", "field": "limit", "message": "is too fast"}]});
    let (url, _) = stub(vec![("422 Unprocessable Content", problem)]);
    let refused = bad(&["add", "--name", "b", "--key", "global", "--limit", "1/s", "--server", &url]);
    assert_eq!(refused, format!("error: {url}: rule `b`: is too fast\n"));
}

/// A `tollgate serve` of its own, killed when it is dropped.
struct Server {
    process: Child,
    http: String,
    admin: String,
    data: Scratch,
}

impl Server {
    fn start(rules: &str) -> Self {
        let data = Scratch::new("cli-walk");
        let ready = data.path().join("ready.json");
        let process = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args([
                "serve",
                "--http",
                "127.0.0.1:0",
                "--admin",
                "127.0.0.1:0",
                "--rules",
                rules,
                "--ready-file",
            ])
            .arg(&ready)
            .env("TOLLGATE_DATA_DIR", data.path().join("data"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        poll::blocking("the server", PATIENCE, || ready.exists());
        let ready: Value = serde_json::from_slice(&fs::read(&ready).unwrap()).unwrap();
        let [http, admin] = ["http", "admin"].map(|name| ready[name].as_str().unwrap().to_owned());
        Server { process, http, admin, data }
    }

    /// Whether a check of user 42 is refused.
    fn refuses(&self) -> bool {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        let body = r#"{"attributes": {"user_id": "42"}, "cost": 2}"#;
        let head = format!("POST /v1/check HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", self.http);
        write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.starts_with("HTTP/1.1 429")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_running_server_obeys_within_a_second() {
    let database = Postgres::start();
    let server = Server::start(&database.url());
    assert!(!server.refuses(), "no rules yet");
    good(&["add", "--rules", &database.url(), "--name", "slow", "--key", "user:{user_id}", "--limit", "1/h"]);
    poll::blocking("the new rule to be obeyed", PATIENCE, || server.refuses());
    good(&["remove", "--rules", &database.url(), "slow"]);
    poll::blocking("the rule to be gone", PATIENCE, || !server.refuses());
}

#[test]
fn a_running_server_does_what_it_is_told_and_the_next_check_obeys() {
    let database = Postgres::start();
    let server = Server::start(&database.url());
    let url = format!("http://{}", server.admin);
    let data = server.data.path().join("data").display().to_string();
    let told = |args: &[&str]| good(&[args, &["--server", &url, "--data-dir", &data]].concat());

    told(&["add", "--name", "slow", "--key", "user:{user_id}", "--limit", "1/h"]);
    assert!(server.refuses(), "added");
    told(&["edit", "slow", "--limit", "100/h"]);
    assert!(!server.refuses(), "edited");
    told(&["edit", "slow", "--limit", "1/h", "--unset", "plan"]);
    told(&["disable", "slow"]);
    assert!(!server.refuses(), "off");
    told(&["enable", "slow"]);
    assert!(server.refuses(), "on again");
    let removed = told(&["remove", "slow"]);
    assert!(removed.contains("removed slow") && !server.refuses(), "{removed}");

    let history = json_lines(&told(&["history", "--json"]));
    let last = history.iter().find(|change| change["after"].is_null()).expect("the removal");
    told(&["undo", &last["id"].to_string()]);
    assert!(server.refuses(), "undone");

    let file = Scratch::new("cli-import");
    let path = file.path().join("rules.yaml");
    fs::write(&path, "rules: [{ name: wide, key: global, limit: 1000/s }]").unwrap();
    told(&["import", path.to_str().unwrap(), "--replace"]);
    assert!(!server.refuses(), "replaced");
    assert!(told(&["export"]).contains("name: wide"));
    assert!(told(&["list"]).contains("wide"));
}
