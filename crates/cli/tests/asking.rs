//! `check --server` and `explain --server`: the same words as without a server, and what to do where there is none.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use tollgate_tests::certificates::Certificates;
use tollgate_tests::poll;
use tollgate_tests::scratch::Scratch;

const RULES: &str = r#"
rules:
  - { name: per-user, key: "user:{user_id}", limit: 5/h burst 3 }
  - { name: stricter, key: "user:{user_id}", limit: 2/h, mode: shadow }
  - { name: everybody, key: global, limit: 1000/s burst 2000 }
  - { name: banned, key: "user:{user_id}", action: deny, when: { user_id: ["666"] } }
  - { name: queue, key: "queue:{job}", limit: 1/min queue 2, when: { endpoint: /jobs } }
  - { name: model-tokens, key: "tenant:{tenant}", limit: 10000/h, cost: tokens }
"#;

struct Served {
    process: Child,
    /// Where checks are answered.
    checks: String,
    /// The admin API.
    url: String,
    folder: Scratch,
}

impl Served {
    async fn start() -> Self {
        Self::start_in(Scratch::new("asking"), "http", &[]).await
    }

    /// The same in this folder, with more to say.
    async fn start_in(folder: Scratch, scheme: &str, more: &[&str]) -> Self {
        fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
        let ready = folder.path().join("ready.json");
        let process = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args([
                "serve",
                "--http",
                "127.0.0.1:0",
                "--admin",
                "127.0.0.1:0",
                "--rules",
                "rules.yaml",
                "--ready-file",
            ])
            .arg(&ready)
            .args(more)
            .env("TOLLGATE_DATA_DIR", folder.path().join("data"))
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = poll::until("a tollgate that is ready", async || fs::read_to_string(&ready).ok()).await;
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let [checks, url] =
            ["http", "admin"].map(|name| format!("{scheme}://{}", said[name].as_str().unwrap()));
        Served { process, checks, url, folder }
    }

    /// The address that serves a command.
    fn of(&self, words: &[&str]) -> &str {
        if words[0] == "check" { &self.checks } else { &self.url }
    }

    /// The same command with the server and with its rules.
    fn both(&self, words: &[&str]) -> [(Option<i32>, String); 2] {
        let rules = self.folder.path().join("rules.yaml").display().to_string();
        [["--server", self.of(words)], ["--rules", &rules]].map(|place| {
            let output = self.tollgate(&[words, &place].concat());
            (output.status.code(), text(&output.stdout))
        })
    }
}

impl Served {
    /// A command that finds the server's token.
    fn tollgate(&self, words: &[&str]) -> Output {
        tollgate_in(&self.folder.path().join("data"), words)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A command on a machine without a server.
fn tollgate(words: &[&str]) -> Output {
    tollgate_in(Path::new("no-data"), words)
}

fn tollgate_in(data: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(words).env_clear().env("TOLLGATE_DATA_DIR", data).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn a_check_at_a_server_reads_like_one_here_and_counts_there() {
    let served = Served::start().await;
    for words in [
        &["check", "--user-id", "42", "--cost", "2"][..],
        &["check", "--user-id", "666"],
        &["check", "--attr", "job=1", "--endpoint", "/jobs"],
        &["check"],
    ] {
        let [there, here] = served.both(words);
        assert_eq!(there, here, "{words:?}");
    }
    let [(code, there), _] = served.both(&["check", "--user-id", "42", "--repeat", "2"]);
    assert_eq!(code, Some(1), "{there}");
    let lines: Vec<&str> = there.lines().collect();
    assert_eq!(lines[0], "allowed  0 of 3 left  [per-user: user:42]  [shadow: stricter would refuse]");
    assert!(lines[1].starts_with("refused  try again in "), "{there}");
    let [(_, there), _] = served.both(&["check", "--user-id", "7", "--cost", "4"]);
    assert!(there.starts_with("refused  a cost of 4 never fits a limit of 3  [per-user: user:7]"), "{there}");
    let [(_, json), _] = served.both(&["check", "--user-id", "8", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["allowed"] == true && json["decision_id"].is_string(), "{json}");
}

#[tokio::test]
async fn an_explanation_of_a_server_reads_like_one_here_and_it_remembers_decisions() {
    let served = Served::start().await;
    for words in [
        &["explain", "--user-id", "42", "--plan", "free", "--endpoint", "//a?x"][..],
        &["explain", "--user-id", "42", "--cost", "4"],
        &["explain", "--user-id", "666"],
        &["explain", "--user-id", "42", "--json"],
        &["explain"],
    ] {
        let [there, here] = served.both(words);
        assert_eq!(there, here, "{words:?}");
    }
    for (cost, told) in [("2", "was allowed; per-user speaks"), ("2", "was refused by per-user")] {
        let [(_, json), _] = served.both(&["check", "--user-id", "42", "--cost", cost, "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let id = json["decision_id"].as_str().unwrap();
        let output = served.tollgate(&["explain", "--server", &served.url, "--decision", id]);
        let said = text(&output.stdout);
        assert!(said.starts_with("user_id=42\n") && said.contains(told) && said.contains(id), "{said}");
        assert!(said.contains("<- speaks") && said.contains("does not apply"), "{said}");
    }
    let unknown = served.tollgate(&["explain", "--server", &served.url, "--decision", "0123"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("10000"), "{}", text(&unknown.stderr));
}

#[test]
fn a_server_that_is_not_there_or_none_is_told_apart() {
    for command in ["check", "explain"] {
        let port = tollgate_tests::ports::free_port();
        let nobody = tollgate(&[command, "--server", &format!("http://127.0.0.1:{port}")]);
        let said = text(&nobody.stderr);
        assert_eq!(nobody.status.code(), Some(2));
        assert!(
            said.contains("cannot reach") && said.contains("is `tollgate serve` running there?"),
            "{said}"
        );
        let two = tollgate(&[command, "--server", "http://127.0.0.1:1", "--rules", "rules.yaml"]);
        assert!(text(&two.stderr).contains("two places; name one"));
        let none = tollgate(&[command, "--server", "127.0.0.1:8080"]);
        assert!(text(&none.stderr).contains("write it like http://127.0.0.1:8081"), "{}", text(&none.stderr));
    }
    let past = tollgate(&["explain", "--decision", "0123"]);
    assert!(text(&past.stderr).contains("only a server remembers decisions"), "{}", text(&past.stderr));
}

#[tokio::test]
async fn what_a_server_does_not_take_is_said_in_its_words() {
    let served = Served::start().await;
    let long = "x".repeat(70_000);
    let output = served.tollgate(&["check", "--server", &served.checks, "--user-id", &long]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("at most 65536 bytes"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn an_invalid_cost_attribute_is_an_error_at_a_server_and_here() {
    let served = Served::start().await;
    let rules = served.folder.path().join("rules.yaml").display().to_string();
    for place in [["--server", &served.checks], ["--rules", &rules]] {
        for more in [&[][..], &["--json"]] {
            let words = ["check", "--attr", "tenant=a", "--attr", "tokens=5000 "];
            let output = tollgate(&[&words[..], &place, more].concat());
            assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), String::new()), "{output:?}");
            let said = text(&output.stderr);
            assert!(said.contains("attribute `tokens` is `5000 `, and rule `model-tokens`"), "{said}");
        }
    }
    let [there, here] = served.both(&["explain", "--attr", "tenant=a", "--attr", "tokens=-5000"]);
    assert_eq!(there, here);
    assert!(here.1.contains("would be refused by model-tokens: the cost is invalid\n"), "{}", here.1);
    assert!(here.1.contains("attribute `tokens` is `-5000`"), "{}", here.1);
    let [there, here] = served.both(&["check", "--attr", "tenant=b", "--attr", "tokens=9e3"]);
    assert_eq!(there, here);
    assert_eq!(here.1, "allowed  1,000 of 10,000 left  [model-tokens: tenant:b]\n");
}

#[tokio::test]
async fn a_server_behind_tls_answers_whoever_trusts_it_and_shows_what_it_asks_for() {
    let folder = Scratch::new("asking-tls");
    let certificates = Certificates::make(folder.path());
    let words = ["--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-client-ca", "ca.pem"];
    let served = Served::start_in(folder, "https", &words).await;
    let files = [certificates.authority(), certificates.certificate("client"), certificates.key("client")];
    let [authority, certificate, key] = files.map(|path| path.display().to_string());
    let (trust, show) = (["--server-ca", &*authority], ["--server-cert", &certificate, "--server-key", &key]);
    let asked = |words: &[&str], more: &[&str]| {
        served.tollgate(&[words, &["--server", served.of(words)], more].concat())
    };
    for (words, part) in [
        (&["check", "--user-id", "42"][..], "allowed  2 of 3 left"),
        (&["explain", "--user-id", "42"], "would be allowed"),
        (&["rules", "list"], "stricter"),
        (&["top", "--once"], "per-user"),
    ] {
        let output = asked(words, &[&trust[..], &show].concat());
        assert!(text(&output.stdout).contains(part), "{words:?}: {output:?}");
        assert_eq!(output.status.code(), Some(0), "{words:?}");
    }
    let stranger = asked(&["check"], &show);
    assert_eq!((stranger.status.code(), text(&stranger.stdout)), (Some(2), String::new()));
    assert!(text(&stranger.stderr).contains("--server-ca"), "{stranger:?}");
    let unknown = asked(&["check"], &trust);
    assert_eq!((unknown.status.code(), text(&unknown.stdout)), (Some(2), String::new()), "{unknown:?}");
    let half = asked(&["check"], &[&trust[..], &show[..2]].concat());
    assert!(text(&half.stderr).contains("--server-cert and --server-key go together"), "{half:?}");
    let plain = served.tollgate(&["check", "--server", &served.checks.replace("https", "http")]);
    assert_eq!((plain.status.code(), text(&plain.stdout)), (Some(2), String::new()), "{plain:?}");
}

#[tokio::test]
async fn a_request_that_passes_without_its_store_is_not_said_to_be_counted() {
    let store = ["--store", "redis://127.0.0.1:1"];
    let served = Served::start_in(Scratch::new("asking-open"), "http", &store).await;
    let there =
        |words: &[&str]| text(&served.tollgate(&[words, &["--server", served.of(words)]].concat()).stdout);
    let checked = there(&["check", "--user-id", "42"]);
    let told = "not counted: the store is unavailable and the rule fails open";
    assert!(checked.starts_with(&format!("allowed  {told}")), "{checked}");
    let explained = there(&["explain", "--user-id", "42"]);
    assert!(explained.contains("would be allowed and not counted: the store is unavailable"), "{explained}");
    assert!(explained.contains(told) && !explained.contains(" left"), "{explained}");
    let frame = there(&["top", "--once"]);
    assert!(frame.lines().next().unwrap().ends_with("; this node only"), "{frame}");
    let diff = served.tollgate(&["rules", "diff", &served.url, &served.url]);
    let note = text(&diff.stderr);
    assert!(diff.status.code() == Some(0) && note.contains("the rules of its own node"), "{note}");
}
