//! The first screen, taken at its word: what it says to try is tried.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use tollgate_tests::scratch::Scratch;

/// Starts a server with these rules, pastes its first screen's commands, and gives back the screen and what they print.
fn paste(rules: Option<&str>) -> (String, String, String) {
    let folder = Scratch::new("screen");
    let mut words = vec!["serve", "--http", "127.0.0.1:0"];
    if let Some(rules) = rules {
        fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        words.extend(["--rules", "rules.yaml"]);
    }
    let mut served = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(words)
        .env("TOLLGATE_DATA_DIR", folder.path().join("data"))
        .current_dir(folder.path())
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
    let requests = run(&screen[start..end]);
    let explain = screen.lines().find(|line| line.contains("tollgate explain")).unwrap();
    let explained =
        run(&explain.replace("tollgate explain", concat!(env!("CARGO_BIN_EXE_tollgate"), " explain")));
    served.kill().unwrap();
    served.wait().unwrap();
    (screen, requests, explained)
}

fn run(script: &str) -> String {
    let output = Command::new("bash").args(["-c", script]).output();
    let output = output.expect("bash starts; the Debian packages are `bash` and `curl`");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn statuses(answers: &str) -> Vec<&str> {
    let heads = answers.lines().filter(|line| line.contains("HTTP/1.1 "));
    heads.map(|line| line.split("HTTP/1.1 ").last().unwrap().split(' ').next().unwrap()).collect()
}

#[test]
fn what_the_first_screen_says_to_try_ends_in_a_429_whatever_the_rules() {
    let (screen, answers, explained) = paste(None);
    assert_eq!(statuses(&answers), ["200", "200", "429"], "{screen}\n{answers}");
    assert!(explained.contains("per-user-free") && explained.contains("<- speaks"), "{explained}");

    let logins = r#"rules: [{ name: logins, key: "login:{ip}", limit: 2/15min, algorithm: sliding_window_log,
                    when: { endpoint: /login, method: POST } }]"#;
    let (screen, answers, explained) = paste(Some(logins));
    assert!(screen.contains("rules.yaml, 1 rule\n"), "{screen}");
    assert_eq!(statuses(&answers), ["200", "200", "429"], "{screen}\n{answers}");
    assert!(explained.contains("would be refused by logins"), "the server's own buckets: {explained}");
}
