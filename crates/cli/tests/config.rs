//! `tollgate.toml` as operators meet it: `config check`, `config show`, and what a server makes of it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::process::{Command, Output};

use tollgate_tests::scratch::Scratch;

/// Runs a command in a folder with this file.
fn tollgate(words: &[&str], variables: &[(&str, &str)], file: &str) -> Output {
    let folder = Scratch::new("config");
    fs::write(folder.path().join("tollgate.toml"), file).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TOLLGATE_")) {
        command.env_remove(name);
    }
    command.args(words).envs(variables.iter().copied()).current_dir(folder.path()).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

const FILE: &str =
    "http = '127.0.0.1:1'\nnodes = 3\nstore = 'redis://:sekret@127.0.0.1:6'\n[headers]\nform = 'none'\n";

#[test]
fn show_says_where_each_value_comes_from_and_keeps_secrets() {
    let variables = [("TOLLGATE_NODES", "4"), ("TOLLGATE_RULES", "postgres://me:sekret@h/n")];
    let shown = tollgate(&["config", "show", "--http", "127.0.0.1:2"], &variables, FILE);
    let lines = out(&shown);
    let line =
        |key: &str| lines.lines().find(|line| line.starts_with(&format!("{key} "))).unwrap().to_owned();
    let words = |key: &str| line(key).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words("http"), ["http", "127.0.0.1:2", "flag"]);
    assert_eq!(words("nodes"), ["nodes", "4", "TOLLGATE_NODES"]);
    assert_eq!(words("key_prefix"), ["key_prefix", "tg", "default"]);
    assert_eq!(words("data_dir"), ["data_dir", "-", "default"]);
    assert_eq!(words("headers.form"), ["headers.form", "'none'", "tollgate.toml"]);
    assert!(line("store").ends_with("tollgate.toml") && !lines.contains("sekret"), "{lines}");

    let shown = tollgate(&["config", "show", "--json"], &variables, FILE);
    let shown: serde_json::Value = serde_json::from_str(&out(&shown)).unwrap();
    assert_eq!(shown["file"], "tollgate.toml");
    let settings = shown["settings"].as_array().unwrap();
    let nodes = settings.iter().find(|setting| setting["key"] == "nodes").unwrap();
    assert_eq!(
        *nodes,
        serde_json::json!({"key": "nodes", "value": "4", "from": "env", "variable": "TOLLGATE_NODES"})
    );
}

#[test]
fn show_keeps_a_password_where_the_scheme_was_forgotten() {
    let file = "rules = 'me:sekret@db/rules'\nstore = 'user:se@kret@redis:6379'\nkey_prefix = 'a@b'\n";
    for words in [&["config", "show"][..], &["config", "show", "--json"]] {
        let shown = out(&tollgate(words, &[("TOLLGATE_OTLP", "http://me:sekret@collector:4317")], file));
        assert!(shown.contains("***@redis:6379") && shown.contains("a@b"), "{shown}");
        assert!(!shown.contains("kret"), "{shown}");
    }
}

#[test]
fn check_counts_what_is_right_and_draws_what_is_not() {
    let good = tollgate(&["config", "check"], &[], FILE);
    assert_eq!((good.status.code(), out(&good)), (Some(0), "tollgate.toml: ok: 4 settings\n".to_owned()));
    for words in [&["config", "check", "tollgate.toml"][..], &["config", "show"], &["serve"], &[]] {
        let bad = tollgate(words, &[], "htpp = '127.0.0.1:1'\n[identify]\nhosts = true\n");
        let drawn = err(&bad);
        assert_eq!(bad.status.code(), Some(2), "{words:?}");
        assert!(drawn.contains("did you mean `http`?") && drawn.contains("tollgate.toml:1:1"), "{drawn}");
        assert!(drawn.contains("did you mean `host`?") && drawn.contains("tollgate.toml:3:1"), "{drawn}");
    }
    let missing = tollgate(&["serve", "--config", "other.toml"], &[], FILE);
    assert!(err(&missing).contains("cannot read the configuration other.toml"), "{}", err(&missing));
    let nothing = tollgate(&["config", "check", "other.toml"], &[], FILE);
    assert_eq!(nothing.status.code(), Some(2));
}

#[test]
fn half_a_certificate_is_an_error_wherever_the_half_is() {
    let file = "store = 'rediss://127.0.0.1:6'\nstore_cert = 'a.pem'\n";
    let half = tollgate(&["serve", "--http", "127.0.0.1:0"], &[], file);
    assert_eq!(half.status.code(), Some(2));
    assert!(err(&half).contains("--store-key"), "{}", err(&half));
}
