//! `tollgate serve` as its users meet it: a process, a port, bytes, signals.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

struct Served {
    process: Child,
    http: String,
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
            .args(["serve", "--http", "127.0.0.1:0", "--ready-file"])
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
        let text = fs::read_to_string(&ready).unwrap();
        let http = text.strip_prefix(r#"{"http":""#).and_then(|text| text.strip_suffix(r#""}"#)).unwrap();
        Served { process, http: http.to_owned(), greeting, folder }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends one request and reads the whole answer.
    fn send(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = self.connect();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", self.http);
        // One write; and the server may answer a body that is too large before it has read all of it.
        let _ = stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    fn wait_until_it_stops_accepting(&self) {
        let tries = (0..20_000).take_while(|_| TcpStream::connect(&self.http).is_ok()).count();
        assert!(tries < 20_000, "it still accepts connections");
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
    let answers = [0; 3].map(|_| served.send("POST", "/v1/check", FREE));
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
        assert!((0..20_000).any(|_| refused()), "the change is not obeyed");
    }
    runtime.block_on(book.database().close());
}

#[test]
fn a_database_out_of_reach_is_named_without_its_password() {
    let folder = std::env::temp_dir().join(format!("tollgate-unreachable-{}", std::process::id()));
    for (rules, wanted) in [
        ("postgres://me:s3cret@127.0.0.1:1/rules", "cannot open postgres://me:***@127.0.0.1:1/rules"),
        ("postgres://me:s3cret@127.0.0.1:1/rules?passwrd=s3cret", "the parameter `passwrd`"),
        ("postgras://me:s3cret@127.0.0.1:1/rules", "`postgras://me:***@127.0.0.1:1/rules` is no database"),
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
        .args(["serve", "--http", &served.http, "--data-dir"])
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
