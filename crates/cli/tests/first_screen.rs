//! The first screen, taken at its word: what it says to try is tried.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use tollgate_tests::certificates::Certificates;
use tollgate_tests::poll;
use tollgate_tests::scratch::Scratch;
use tollgate_tests::token;

const TOKEN: &str = "check-0123456789abcdef";

/// Pastes the first screen's commands until the third request is refused: the bucket earns what it is short of in a
/// second, and on a busy machine three commands may take longer.
fn paste_until_refused(folder: &Path, words: &[&str]) -> (String, String, String) {
    let mut pasted = Default::default();
    poll::blocking("a refusal", 3 * poll::PATIENCE, || {
        pasted = paste(folder, words);
        statuses(&pasted.1).last() == Some(&"429")
    });
    pasted
}

/// Starts a server in a folder, pastes its first screen's commands there, and gives back the screen and what they print.
fn paste(folder: &Path, words: &[&str]) -> (String, String, String) {
    let mut served = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .args(words)
        .env("TOLLGATE_DATA_DIR", folder.join("data"))
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut screen = String::new();
    let mut out = BufReader::new(served.stdout.take().unwrap());
    while !screen.contains("tollgate explain") {
        assert!(out.read_line(&mut screen).unwrap() > 0, "the server ended: {screen}");
    }
    let start = screen.find("  for i in").unwrap_or(screen.len());
    let end = screen.find("; done").map_or(screen.len(), |end| end + "; done".len());
    let requests = run(&screen[start..end], folder);
    let explain = screen.lines().find(|line| line.contains("tollgate explain")).unwrap();
    let explain = explain.replace("tollgate explain", concat!(env!("CARGO_BIN_EXE_tollgate"), " explain"));
    let explained = run(&explain, folder);
    served.kill().unwrap();
    served.wait().unwrap();
    (screen, requests, explained)
}

fn run(script: &str, folder: &Path) -> String {
    let output = Command::new("bash").args(["-c", script]).env("TOKEN", TOKEN).current_dir(folder).output();
    let output = output.expect("bash starts; the Debian packages are `bash` and `curl`");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The statuses of answers over HTTP/1.1 and HTTP/2.
fn statuses(answers: &str) -> Vec<&str> {
    let heads = answers.split("HTTP/").skip(1);
    heads.map(|head| head.split(' ').nth(1).unwrap().trim()).collect()
}

#[test]
fn what_the_first_screen_says_to_try_with_the_starter_set_ends_in_a_429() {
    let folder = Scratch::new("screen");
    let (screen, answers, explained) = paste_until_refused(folder.path(), &[]);
    assert!(screen.contains("The rule per-user-free allows 10/s burst 50."), "{screen}");
    assert_eq!(statuses(&answers), ["200", "200", "429"], "{screen}\n{answers}");
    let refused = answers.rsplit("HTTP/").next().unwrap();
    assert!(refused.contains(r#""violated_rule":"per-user-free""#), "{refused}");
    assert!(explained.contains("per-user-free") && explained.contains("<- speaks"), "{explained}");
}

#[test]
fn the_first_screen_claims_nothing_about_other_rules() {
    let folder = Scratch::new("screen-rules");
    let rules = r#"rules: [{ name: logins, key: "login:{ip}", limit: 2/15min }]"#;
    fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    let (screen, _, explained) = paste(folder.path(), &["--rules", "rules.yaml"]);
    assert!(screen.contains("rules.yaml, 1 rule\n"), "{screen}");
    assert!(!screen.contains("429") && !screen.contains("curl"), "{screen}");
    assert!(explained.contains("does not apply\n  logins"), "{explained}");
}

#[test]
fn what_the_first_screen_says_to_try_works_under_tls_and_with_tokens() {
    let folder = Scratch::new("screen-tls");
    Certificates::make(folder.path()); // `ca.pem`, `client.pem` and `client.key`, as the screen calls them
    token::write(&folder.path().join("tokens"), &format!("app:check:{TOKEN}\n"));
    let tls = ["--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-client-ca", "ca.pem"];
    let tokens = ["--token-file", "tokens"];
    let (screen, answers, explained) = paste_until_refused(folder.path(), &[&tls[..], &tokens].concat());
    assert!(
        screen.contains("checks     https://127.0.0.1:") && screen.contains("dashboard  https://127.0.0.1:"),
        "{screen}"
    );
    assert_eq!(statuses(&answers), ["200", "200", "429"], "{screen}\n{answers}");
    assert!(explained.contains("per-user-free") && explained.contains("<- speaks"), "{screen}\n{explained}");
}
