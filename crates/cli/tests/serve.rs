//! `tollgate serve` as its users meet it: a process, a port, bytes, signals.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::Clock;
use tollgate_tests::token;

const PATIENCE: Duration = Duration::from_secs(20);

struct Served {
    process: Child,
    http: String,
    admin: String,
    greeting: String,
    folder: PathBuf,
}

impl Served {
    /// Starts a server on a free port and waits until it says where.
    fn start(args: &[&str]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tollgate-serve-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let ready = folder.join("ready.json");
        let mut process = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ready-file"])
            .arg(&ready)
            .args(args)
            .env("TOLLGATE_DATA_DIR", folder.join("data"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The greeting is written after the ready file.
        let mut greeting = String::new();
        let mut out = BufReader::new(process.stdout.take().unwrap());
        while !greeting.contains("store ") {
            assert!(out.read_line(&mut greeting).unwrap() > 0, "the server ended: {greeting}");
        }
        let ready: Value = serde_json::from_slice(&fs::read(&ready).unwrap()).unwrap();
        let [http, admin] = ["http", "admin"].map(|name| ready[name].as_str().unwrap().to_owned());
        Served { process, http, admin, greeting, folder }
    }

    fn connect(&self) -> TcpStream {
        connect(&self.http)
    }

    /// The address that serves a path.
    fn plane_of(&self, path: &str) -> &str {
        if support::is_data(path) { &self.http } else { &self.admin }
    }

    /// Sends one request with the server's own token and reads the whole answer.
    fn send(&self, method: &str, path: &str, body: &str) -> String {
        self.send_with(method, path, &self.head(path), body)
    }

    /// The usual lines of a head.
    fn head(&self, path: &str) -> String {
        format!("host: {}\r\n{}", self.plane_of(path), token::lines(&self.folder.join("data")))
    }

    /// The same with lines of its own in the head.
    fn send_with(&self, method: &str, path: &str, lines: &str, body: &str) -> String {
        let mut stream = connect(self.plane_of(path));
        let head = format!("{method} {path} HTTP/1.1\r\n{lines}connection: close\r\n");
        // One write; and the server may answer a body that is too large before it has read all of it.
        let _ = stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// The body of an answer, as JSON.
    fn json(&self, method: &str, path: &str, body: &str) -> Value {
        let answer = self.send(method, path, body);
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    /// Asks again until the answer is as expected.
    fn json_until(&self, path: &str, is_there: impl Fn(&Value) -> bool) -> Value {
        let mut answer = Value::Null;
        until(path, || {
            answer = self.json("GET", path, "");
            is_there(&answer)
        });
        answer
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    fn wait_until_it_stops_accepting(&self) {
        until("the server to stop accepting", || TcpStream::connect(&self.http).is_err());
    }

    fn wait(&mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Asks again and again until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let clock = Clock::system();
    let deadline = clock.now().after(PATIENCE.into());
    while !is_so() {
        assert!(clock.now() < deadline, "still waiting for {what}");
    }
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends the head of a request and waits until the server asks for the body: it is in flight then.
fn begin_a_request(stream: &mut TcpStream, body_bytes: usize) {
    let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\nconnection: close\r\nexpect: 100-continue\r\n";
    write!(stream, "{head}content-length: {body_bytes}\r\n\r\n").unwrap();
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
}

const FREE: &str = r#"{"attributes": {"user_id": "42", "plan": "free"}, "cost": 20}"#;

#[test]
fn the_first_screens_curl_ends_in_a_429_with_all_headers() {
    let served = Served::start(&[]);
    assert!(served.greeting.contains(&format!("http://{}", served.http)), "{}", served.greeting);
    assert!(served.greeting.contains("starter set"));
    // Three requests within the second in which the bucket earns what the third is short of. A busy machine may need
    // several attempts.
    let mut user = 0;
    let mut answers = Default::default();
    until("a refusal", || {
        user += 1;
        let body = FREE.replace("42", &user.to_string());
        answers = [(); 3].map(|()| served.send("POST", "/v1/check", &body));
        answers[2].starts_with("HTTP/1.1 429")
    });
    assert!(answers[0].starts_with("HTTP/1.1 200 OK\r\n"), "{}", answers[0]);
    assert!(answers[1].starts_with("HTTP/1.1 200 OK\r\n"));
    let refused = &answers[2];
    assert!(refused.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{refused}");
    for header in [
        "x-ratelimit-limit: 50",
        "x-ratelimit-remaining: ",
        "x-ratelimit-reset: ",
        "ratelimit-policy: ",
        "ratelimit: ",
        "retry-after: 1",
    ] {
        assert!(refused.contains(&format!("\r\n{header}")), "{header} in {refused}");
    }
    assert!(refused.contains(r#""violated_rule":"per-user-free""#));
}

#[test]
fn rules_come_from_a_file_and_a_bad_one_is_drawn_with_exit_2() {
    let folder = std::env::temp_dir().join(format!("tollgate-rules-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("rules.yaml");
    fs::write(&file, "rules: [{ name: one, key: global, limit: 1/min }]").unwrap();
    let served = Served::start(&["--rules", file.to_str().unwrap()]);
    assert!(served.send("POST", "/v1/check", "{}").starts_with("HTTP/1.1 200"));
    assert!(served.send("POST", "/v1/check", "{}").contains(r#""violated_rule":"one""#));
    fs::write(&file, "rules: [{ name: one, key: global, limt: 1/min }]").unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["serve", "--rules"]).arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("did you mean `limit`?"));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_fresh_data_directory_begins_with_the_starter_set_and_changes_are_obeyed() {
    use tollgate::rules::{RuleBook, parse_rule};
    let served = Served::start(&[]);
    let database = served.folder.join("data/tollgate.db");
    let told = format!("a starter set, now in {}", database.display());
    assert!(served.greeting.contains(&told) && served.greeting.contains("6 rules"), "{}", served.greeting);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let url = format!("sqlite://{}", database.display());
    let book = RuleBook::new(runtime.block_on(tollgate::sql::Database::open(&url)).unwrap());
    let history = runtime.block_on(book.history(None, 99)).unwrap();
    assert!(history.len() == 6 && history.iter().all(|change| change.changed_by == "tollgate"));
    // Another server on the same file does not begin anew.
    let other = Served::start(&["--rules", &url]);
    assert!(other.greeting.contains(&format!("{url}, 6 rules")), "{}", other.greeting);
    let rule = parse_rule("test", "{ name: nobody, key: global, action: deny }").unwrap();
    runtime.block_on(book.add("me", rule.draft().clone())).unwrap();
    for server in [&served, &other] {
        let refused = || server.send("POST", "/v1/check", "{}").starts_with("HTTP/1.1 403");
        until("the change to be obeyed", refused);
    }
    runtime.block_on(book.database().close());
}

#[test]
fn a_database_out_of_reach_is_named_without_its_password() {
    let folder = std::env::temp_dir().join(format!("tollgate-unreachable-{}", std::process::id()));
    for (rules, wanted) in [
        ("postgres://me:s3cret@127.0.0.1:1/rules", "cannot open postgres://me:***@127.0.0.1:1/rules"),
        ("postgres://me:s3cret@127.0.0.1:1/rules?passwrd=s3cret", "unknown parameter `passwrd`"),
        ("postgras://me:s3cret@127.0.0.1:1/rules", "`postgras://me:***@127.0.0.1:1/rules` is not a database"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["serve", "--rules", rules, "--data-dir"])
            .arg(&folder)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2));
        assert!(told.contains(wanted) && !told.contains("s3cret"), "{told}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_address_that_is_taken_is_named_with_a_way_out() {
    let served = Served::start(&[]);
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--http", &served.http, "--admin", "127.0.0.1:0", "--data-dir"])
        .arg(served.folder.join("another"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains(&served.http) && told.contains("choose another with --http"), "{told}");
}

#[test]
fn sigterm_finishes_what_is_in_flight_and_exits_0() {
    let mut served = Served::start(&[]);
    // The head of a request is read, its body still to come, when the signal arrives.
    let mut stream = served.connect();
    begin_a_request(&mut stream, FREE.len());
    served.signal("-TERM");
    served.wait_until_it_stops_accepting();
    write!(stream, "{FREE}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(served.wait().success());
}

#[test]
fn a_signal_is_heard_before_the_server_is_up() {
    // A database that is spoken to and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let rules = format!("postgres://me@{}/rules", silent.local_addr().unwrap());
    let folder = std::env::temp_dir().join(format!("tollgate-starting-{}", std::process::id()));
    let mut process = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--rules", &rules, "--data-dir"])
        .arg(&folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _connection = silent.accept().unwrap();
    let sent = Command::new("kill").args(["-TERM", &process.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let mut ended = None;
    until("the end of the start", || {
        ended = process.try_wait().unwrap();
        ended.is_some()
    });
    assert!(ended.unwrap().success());
    let _ = fs::remove_dir_all(folder); // it may not have come to make it
}

#[test]
fn a_silent_connection_delays_no_stop() {
    let mut served = Served::start(&[]);
    let silent = served.connect();
    let clock = Clock::system();
    served.signal("-TERM");
    let told = clock.now();
    assert!(served.wait().success());
    let took = clock.now().as_micros() - told.as_micros();
    assert!(took < 8_000_000, "it waited {took} µs for a client that asked nothing");
    drop(silent);
}

#[test]
fn a_second_signal_does_not_wait() {
    let mut served = Served::start(&[]);
    let mut stream = served.connect();
    begin_a_request(&mut stream, 99);
    served.signal("-INT");
    served.wait_until_it_stops_accepting();
    served.signal("-INT");
    assert_eq!(served.wait().code(), Some(130));
}

#[test]
fn heads_and_bodies_beyond_their_bounds_are_refused() {
    let served = Served::start(&[]);
    let mut stream = served.connect();
    // The server may answer and close before it has read all of this.
    let _ = write!(stream, "GET /livez HTTP/1.1\r\nhost: x\r\nx-large: {}\r\n\r\n", "y".repeat(40 << 10));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
    let large = format!("{{\"attributes\": {{\"x\": \"{}\"}}}}", "y".repeat(65 << 10));
    assert!(served.send("POST", "/v1/check", &large).starts_with("HTTP/1.1 413"));
    assert!(served.send("GET", "/livez", "").ends_with("ok\n"), "and the server goes on");
}

/// On the system's clock: the instant of the decision, not a later one, is what the wait is added to.
#[test]
fn a_window_on_the_clock_is_said_to_reset_at_its_very_end() {
    let folder = std::env::temp_dir().join(format!("tollgate-window-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("rules.yaml");
    fs::write(&file, "rules: [{ key: global, limit: 500/min, algorithm: fixed_window }]").unwrap();
    let served = Served::start(&["--rules", file.to_str().unwrap()]);
    for _ in 0..20 {
        let answer = served.send("POST", "/v1/check", "{}");
        let reset = answer.lines().find_map(|line| line.strip_prefix("x-ratelimit-reset: ")).unwrap();
        assert_eq!(reset.parse::<u64>().unwrap() % 60, 0, "{answer}");
    }
    fs::remove_dir_all(folder).unwrap();
}

/// A folder that goes away with the test, and the address of a database in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("tollgate-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Scratch(folder)
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.0.join("rules.db").display())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn rules_are_changed_over_http_and_obeyed_by_the_next_check() {
    let scratch = Scratch::new("crud");
    let served = Served::start(&["--rules", &scratch.url()]);
    let host = served.head("/v1/rules");
    let rule = r#"{"name": "one", "key": "user:{user_id}", "limit": "1/h"}"#;
    let added = served.send_with("POST", "/v1/rules", &host, rule);
    assert!(added.starts_with("HTTP/1.1 201"), "{added}");
    assert!(
        added.contains("\r\netag: \"1\"\r\n") && added.contains("\r\nlocation: /v1/rules/1\r\n"),
        "{added}"
    );
    let ask = r#"{"attributes": {"user_id": "42"}}"#;
    assert!(served.send("POST", "/v1/check", ask).starts_with("HTTP/1.1 200"));
    assert!(served.send("POST", "/v1/check", ask).starts_with("HTTP/1.1 429"));

    let patch = |tag: &str| {
        let lines = format!("{host}if-match: {tag}\r\n");
        served.send_with("PATCH", "/v1/rules/1", &lines, r#"{"limit": "1000/h"}"#)
    };
    assert!(served.send("PATCH", "/v1/rules/1", "{}").starts_with("HTTP/1.1 428"));
    assert!(patch("\"7\"").starts_with("HTTP/1.1 412"));
    assert!(patch("\"1\"").contains("\r\netag: \"2\"\r\n"));
    assert!(served.send("POST", "/v1/check", ask).starts_with("HTTP/1.1 200"), "obeyed at once");
    assert!(patch("\"1\"").starts_with("HTTP/1.1 412"), "nobody overwrites what they have not seen");

    let history = served.json("GET", "/v1/rules/history", "");
    let first = &history["history"][0];
    assert_eq!((&first["action"], &first["after"]["limit"]), (&json!("edit"), &json!("1000/h")));
    assert_eq!(history["history"][1]["who"], "admin", "the name of the token");
    let undone = served.json("POST", &format!("/v1/rules/history/{}/undo", first["id"]), "");
    assert_eq!(undone["entry"]["rule"]["limit"], "1/h");
    assert!(served.send("POST", "/v1/check", ask).starts_with("HTTP/1.1 429"), "undone at once");

    let lines = format!("{host}if-match: *\r\n");
    assert!(served.send_with("DELETE", "/v1/rules/1", &lines, "").starts_with("HTTP/1.1 204"));
    assert_eq!(served.json("GET", "/v1/rules", "")["rules"], json!([]));
}

#[test]
fn rules_are_nobody_elses_business() {
    let served = Served::start(&[]);
    let host = format!("host: {}\r\n", served.admin);
    for path in ["/v1/rules", "/v1/stats", "/metrics"] {
        let answer = served.send_with("GET", path, &host, "");
        assert!(
            answer.starts_with("HTTP/1.1 401") && answer.contains("application/problem+json"),
            "{answer}"
        );
        assert!(served.send("GET", path, "").starts_with("HTTP/1.1 200"), "{path}");
    }
}

#[test]
fn a_rules_file_that_is_refused_is_an_error_of_the_list_until_it_is_corrected() {
    let scratch = Scratch::new("refused-file");
    let file = scratch.0.join("rules.yaml");
    let rule = "rules: [{ name: one, key: global, limit: 1/min }]";
    fs::write(&file, rule).unwrap();
    let served = Served::start(&["--rules", file.to_str().unwrap()]);
    assert_eq!(served.json("GET", "/v1/rules", "")["error"], Value::Null);
    fs::write(&file, "rules: [{ name: one, key: global, limt: 1/min }]").unwrap();
    let list = served.json_until("/v1/rules", |list| !list["error"].is_null());
    assert!(list["error"].as_str().unwrap().contains("limt"), "{list}");
    assert_eq!(list["rules"][0]["label"], "one", "the last good rules stay in effect");
    fs::write(&file, format!("{rule}\n")).unwrap();
    served.json_until("/v1/rules", |list| list["error"].is_null());
}

#[test]
fn rules_of_a_file_are_listed_and_changed_in_the_file_only() {
    let scratch = Scratch::new("readonly");
    let file = scratch.0.join("rules.yaml");
    fs::write(&file, "rules: [{ name: one, key: global, limit: 1/min }]").unwrap();
    let served = Served::start(&["--rules", file.to_str().unwrap()]);
    let list = served.json("GET", "/v1/rules", "");
    assert_eq!((&list["writable"], &list["rules"][0]["label"]), (&json!(false), &json!("one")));
    let refused = served.send("POST", "/v1/rules", r#"{"key": "global", "limit": "1/s"}"#);
    assert!(refused.starts_with("HTTP/1.1 409") && refused.contains(file.to_str().unwrap()), "{refused}");
}

#[test]
fn violations_are_on_record_also_after_a_restart_and_the_last_ones_are_written_on_the_way_out() {
    let scratch = Scratch::new("violations");
    let url = scratch.url();
    let refuse = |served: &Served, user: &str| {
        let ask = json!({"attributes": {"user_id": user, "ip": "203.0.113.7"}}).to_string();
        let answers = [0; 3].map(|_| served.send("POST", "/v1/check", &ask));
        assert!(answers[2].starts_with("HTTP/1.1 429"), "{}", answers[2]);
    };
    let mut served = Served::start(&["--rules", &url]);
    served.json("POST", "/v1/rules", r#"{"name": "one", "key": "user:{user_id}", "limit": "1/d"}"#);
    refuse(&served, "41");
    let is_there = |page: &Value| page["violations"][0]["user_id"] == "41";
    let page = served.json_until("/v1/violations?since=1h", is_there);
    assert_eq!(
        (&page["violations"][0]["rule_name"], &page["violations"][0]["rule_id"]),
        (&json!("one"), &json!(1))
    );
    refuse(&served, "42");
    served.signal("-TERM");
    assert!(served.wait().success());

    let served = Served::start(&["--rules", &url, "--no-violations"]);
    let page = served.json("GET", "/v1/violations?user_id=42&limit=10", "");
    let count: u64 =
        page["violations"].as_array().unwrap().iter().filter_map(|row| row["count"].as_u64()).sum();
    assert_eq!((count, &page["next"]), (2, &Value::Null), "{page}");
    refuse(&served, "43");
    drop(served);

    let secret = scratch.0.join("secret");
    fs::write(&secret, "a secret of many bytes").unwrap();
    let mut served = Served::start(&["--rules", &url, "--hash-key-file", secret.to_str().unwrap()]);
    refuse(&served, "44");
    let page = served.json_until("/v1/violations?user_id=44", |page| page["violations"][0].is_object());
    assert_eq!(page["violations"][0]["user_id"].as_str().unwrap().len(), 64, "a hash");
    let all = served.json("GET", "/v1/violations", "");
    assert!(!all.to_string().contains("\"43\"") && !all.to_string().contains("\"44\""), "{all}");
    served.signal("-TERM");
    assert!(served.wait().success());
}

#[test]
fn plans_are_looked_up_and_users_that_nobody_knows_have_the_default() {
    let scratch = Scratch::new("plans");
    let served = Served::start(&["--rules", &scratch.url(), "--default-plan", "free"]);
    for (plan, limit) in [("free", "5/h"), ("pro", "50/h")] {
        let rule = json!({"name": plan, "key": "user:{user_id}", "plan": plan, "limit": limit}).to_string();
        assert!(served.send("POST", "/v1/rules", &rule).starts_with("HTTP/1.1 201"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let database = tollgate::sql::Database::open(&scratch.url()).await.unwrap();
        let tollgate::sql::Pool::Sqlite(pool) = database.pool() else { unreachable!("opened as SQLite") };
        sqlx::query("INSERT INTO account_plan (user_id, plan) VALUES ('42', 'pro')")
            .execute(pool)
            .await
            .unwrap();
        database.close().await;
    });
    let limit = |attributes: Value| {
        let body = json!({ "attributes": attributes }).to_string();
        served.json("POST", "/v1/peek", &body)["limit"].clone()
    };
    // A look-up that is late leaves the default plan to the first request, and its answer to the next.
    until("the plan of the table", || limit(json!({"user_id": "42"})) == 50);
    assert_eq!(limit(json!({"user_id": "7"})), 5, "nobody is unlimited for want of a row");
    assert_eq!(limit(json!({"user_id": "7", "plan": "pro"})), 50, "a plan that is named is believed");
}

fn tollgate(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate")).args(args).output().unwrap()
}

#[test]
fn fallback_rules_decide_until_the_database_can_be_read() {
    let scratch = Scratch::new("fallback");
    let path = |name: &str| scratch.0.join(name).to_str().unwrap().to_owned();
    let (fallback, own) = (path("fallback.yaml"), path("own.yaml"));
    fs::write(&fallback, "rules: [{ name: fallback, key: global, limit: 7/h }]").unwrap();
    fs::write(&own, "rules: [{ name: own, key: global, limit: 9/h }]").unwrap();
    // The folder of the database is not there yet, so it cannot be opened.
    fs::create_dir(path("elsewhere")).unwrap();
    let imported =
        tollgate(&["rules", "import", &own, "--rules", &format!("sqlite://{}/rules.db", path("elsewhere"))]);
    assert!(imported.status.success(), "{imported:?}");
    let url = format!("sqlite://{}/rules.db", path("later"));

    let served = Served::start(&["--rules", &url, "--rules-fallback", &fallback]);
    let limit = || served.json("POST", "/v1/check", r#"{"attributes": {}}"#)["limit"].clone();
    assert_eq!(limit(), 7);
    assert_eq!(served.json("GET", "/readyz", "")["rules"], "stale");
    fs::rename(path("elsewhere"), path("later")).unwrap();
    until("the rules of the database", || limit() == 9);
    served.json_until("/readyz", |ready| ready["rules"] == "fresh");
}

#[test]
fn a_fallback_that_cannot_be_used_is_an_error_at_every_start() {
    let scratch = Scratch::new("bad-fallback");
    let path = |name: &str| scratch.0.join(name).to_str().unwrap().to_owned();
    fs::write(path("rules.yaml"), "rules: []").unwrap();
    fs::write(path("broken.yaml"), "rules: [{ key: global }]").unwrap();
    let database = format!("sqlite://{}", path("rules.db"));
    for (rules, fallback, part) in [
        (&*path("rules.yaml"), &*path("rules.yaml"), "--rules-fallback is for rules in a database"),
        (&database, &path("broken.yaml"), "broken.yaml"),
        (&database, &path("absent.yaml"), "absent.yaml"),
    ] {
        let started =
            tollgate(&["serve", "--http", "127.0.0.1:0", "--rules", rules, "--rules-fallback", fallback]);
        let said = String::from_utf8_lossy(&started.stderr);
        assert!(started.status.code() == Some(2) && said.contains(part), "{said}");
    }
}
