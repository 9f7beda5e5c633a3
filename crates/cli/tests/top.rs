//! `tollgate top --once`, and commands that show a server their token.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use support::{Served, status};
use tollgate_tests::poll;
use tollgate_tests::scratch::Scratch;
use tollgate_tests::token;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A command of a user who has another data directory.
fn tollgate(words: &[&str]) -> Output {
    tollgate_in(Path::new("no-data"), words)
}

fn tollgate_in(data: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(words).env_clear().env("TOLLGATE_DATA_DIR", data).output().unwrap()
}

fn said(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn a_frame_of_a_running_server_tells_what_it_did() {
    let served = Served::start(&[]);
    // Faster than the bucket refills, whatever the machine does beside it.
    poll::blocking("a refusal", poll::PATIENCE, || {
        let greedy = r#"{"attributes": {"user_id": "greedy", "plan": "free"}, "cost": 50}"#;
        status(&served.post("/v1/check", greedy)) == 429
    });
    let (code, frame) = said(&tollgate_in(served.data(), &["top", "--once"]));
    assert_eq!(code, Some(0), "{frame}");
    assert!(frame.contains(&format!("asking the server at http://{}\n", served.admin)), "{frame}");
    for told in
        ["tollgate ", "nothing is wrong", "allowed/s", "p99.9", "memory, up", "6 rules", "user:greedy"]
    {
        assert!(frame.contains(told), "{told} is missing:\n{frame}");
    }
    let refusals = frame.lines().find(|line| line.contains("per-user-free")).unwrap();
    assert!(refusals.contains("user:greedy"), "{frame}");
}

#[test]
fn a_server_that_wants_a_token_is_shown_the_one_of_the_file() {
    let scratch = Scratch::new("tokens");
    let (servers, ours, wrong) =
        (scratch.path().join("admin.token"), scratch.path().join("ours"), scratch.path().join("wrong"));
    token::write(&servers, &format!("# of the night shift\nboard:read:{TOKEN}\napp:check:check-{TOKEN}\n"));
    fs::write(&ours, format!("# as the server has it\nops:write:write-{TOKEN}\n")).unwrap();
    fs::write(&wrong, "\n# none\n").unwrap();
    let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let served = Served::start(&["--token-file", &path(&servers)]);
    let url = format!("http://{}", served.admin);
    let with = |words: &[&str], file: &str| {
        said(&tollgate(&[words, &["--server", &url, "--token-file", file]].concat()))
    };

    let (code, told) = said(&tollgate(&["top", "--once", "--server", &url]));
    assert!(code == Some(2) && told.contains("token"), "{told}");
    for words in [&["top", "--once"][..], &["rules", "list"]] {
        let (code, told) = with(words, &path(&servers));
        assert_eq!(code, Some(0), "{words:?}: {told}");
    }
    let checks = format!("http://{}", served.http);
    let words = ["check", "--user-id", "7", "--plan", "free", "--server", &checks];
    let (code, told) = said(&tollgate(&words));
    assert!(code == Some(2) && told.contains("needs a token"), "there is one with the role check: {told}");
    let (code, told) = said(&tollgate_in(served.data(), &words));
    assert_eq!(code, Some(0), "{told}");
    let (code, told) = with(&["rules", "disable", "everybody"], &path(&servers));
    assert!(code == Some(2) && told.contains("needs one with the role `write`"), "{told}");
    token::write(&servers, &fs::read_to_string(&ours).unwrap());
    poll::blocking("the new token to be known", poll::PATIENCE, || {
        said(&with_output(&url, &path(&ours))).0 == Some(0)
    });
    let (code, told) = with(&["rules", "disable", "everybody"], &path(&ours));
    assert_eq!(code, Some(0), "{told}");
    let (code, told) = with(&["top", "--once"], &path(&wrong));
    assert!(code == Some(2) && told.contains("has no token"), "{told}");
}

fn with_output(url: &str, file: &str) -> Output {
    tollgate(&["rules", "list", "--server", url, "--token-file", file])
}

#[test]
fn a_server_that_is_not_there_and_a_terminal_that_is_none_are_errors_with_a_way_out() {
    let (code, told) = said(&tollgate(&["top", "--once", "--server", "http://127.0.0.1:1"]));
    assert!(code == Some(2) && told.contains("is `tollgate serve` running there?"), "{told}");
    let (code, told) = said(&tollgate(&["top", "--once"]));
    assert!(code == Some(2) && told.contains("no server runs over the data directory no-data"), "{told}");
    let (code, told) = said(&tollgate(&["top", "--interval", "0"]));
    assert!(code == Some(2) && told.contains("from 0.1 to 3600"), "{told}");
}
